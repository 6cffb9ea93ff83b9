"""Confirm: a short monitored run, or several arms side by side, against the prediction."""

from rksp.ground.doors import open_door

open_door(__name__, "rksp.calls.trial:confirm")
