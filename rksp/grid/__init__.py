"""Grids: many targets and recipes, each distinct initialization profiled once."""

from rksp.ground.doors import open_door

open_door(__name__, "rksp.calls.trial:grid")
