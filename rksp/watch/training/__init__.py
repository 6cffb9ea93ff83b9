"""Short training runs: the plain loop, and the run with monitors, interventions and faults."""

from rksp.watch.training.loop import gradient_norm, hopeless, train
from rksp.watch.training.runner import RunRecord, judge_alone, run, without

__all__ = ["RunRecord", "gradient_norm", "hopeless", "judge_alone", "run", "train", "without"]
