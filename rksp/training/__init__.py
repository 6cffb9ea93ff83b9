"""Training for a few minutes: the loop, and the optimizers a recipe can name."""

from rksp.training.loop import gradient_norm, hopeless, task_loss, train
from rksp.training.optimizers import Lion, make_optimizer

__all__ = ["Lion", "gradient_norm", "hopeless", "make_optimizer", "task_loss", "train"]
