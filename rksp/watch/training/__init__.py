"""Short training runs: the plain loop, and the run with monitors, interventions and faults."""

from rksp.watch.training.loop import RunRecord, judge_alone, run, train, without

__all__ = ["RunRecord", "judge_alone", "run", "train", "without"]
