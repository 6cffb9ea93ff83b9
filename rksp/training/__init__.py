"""Training for a few minutes: the loop that the lab and the confirmation share, and the run that
is watched and acted upon."""

from rksp.training.loop import Companion, gradient_norm, hopeless, train
from rksp.training.runner import RunRecord, judge_alone, run

__all__ = [
    "Companion",
    "RunRecord",
    "gradient_norm",
    "hopeless",
    "judge_alone",
    "run",
    "train",
]
