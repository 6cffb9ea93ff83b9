"""Training for a few minutes: the loop that the lab and the confirmation share."""

from rksp.training.loop import gradient_norm, hopeless, train

__all__ = ["gradient_norm", "hopeless", "train"]
