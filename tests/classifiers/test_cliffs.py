"""No numeric setting of a run has a cliff: 2 % of it never move the edge by a factor."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from rksp.assessment.risk import edge_inputs
from rksp.classifiers.edge_inputs import EdgeInputs
from rksp.classifiers.edge_model import load_edge_model
from rksp.documents.terms import DEFAULT_RISK
from rksp.recipe import Recipe

_STEP = 1.02
_CLIFF = 0.15  # decades
_POINTS = 14  # of every setting, a random way apart
_MODELS = {
    "gpt2": {"width": 768, "depth": 12, "vocabulary": 50_257, "norm": "pre", "family": "gpt2"},
    "llama": {"width": 2048, "depth": 24, "vocabulary": 32_000, "norm": "pre", "family": "llama"},
    "bert": {
        **{"width": 768, "depth": 12, "vocabulary": 30_522, "norm": "post", "family": "bert"},
        **{"predicts_next": False, "masks": True},
    },
    "own": {"width": 96, "depth": 5, "vocabulary": 600, "norm": "none", "init_std": 0.02},
}
_RECIPE = {"max_steps": 20_000, "warmup_steps": 500, "batch_size": 64, "sequence_length": 512}
# The range of every setting, and whether it is a field of the model.
_WHOLE = {
    "max_steps": (60, 200_000),
    "warmup_steps": (60, 40_000),
    "batch_size": (60, 20_000),
    "sequence_length": (60, 8192),
    "gradient_accumulation_steps": (60, 4000),
    "decay_steps": (60, 20_000),
    "width": (60, 16_384),
    "depth": (60, 200),
    "vocabulary": (60, 200_000),
}
_REAL = {
    "min_lr_ratio": (0.001, 0.95),
    "adam_beta1": (0.001, 0.5),
    "adam_beta2": (0.0005, 0.5),
    "init_std": (1e-4, 0.9),
    "weight_decay": (1e-4, 0.9),
    "max_grad_norm": (0.01, 90.0),
    "adam_epsilon": (1e-12, 1e-3),
}
_OF_MODEL = ("width", "depth", "vocabulary", "init_std")
_TO_ONE = ("adam_beta1", "adam_beta2")  # whose distance from 1 moves


def _inputs(model: dict, setting: str, value: float) -> EdgeInputs:
    shown = 1 - value if setting in _TO_ONE else value
    if setting in _OF_MODEL:
        return edge_inputs(Recipe(**_RECIPE), **model | {setting: shown})
    schedule = {"schedule": "wsd"} if setting == "decay_steps" else {}
    return edge_inputs(Recipe(**_RECIPE | schedule | {setting: shown}), **model)


def _rates(inputs: EdgeInputs) -> np.ndarray:
    said = load_edge_model().predict(inputs)
    return np.log10([said.likely_edge, said.rate_at(DEFAULT_RISK)])


def _steepest(read: Callable[[float], EdgeInputs], values: list[tuple[float, float]]) -> float:
    return max(float(np.abs(_rates(read(b)) - _rates(read(a))).max()) for a, b in values)


def _pairs(setting: str, draw: np.random.Generator) -> list[tuple[float, float]]:
    low, high = (_WHOLE | _REAL)[setting]
    values = np.exp(draw.uniform(math.log(low), math.log(high / _STEP), _POINTS)).tolist()
    if setting == "warmup_steps":  # to the run's length, half of it, and past it
        steps = _RECIPE["max_steps"]
        values += [steps / _STEP, steps - 1, steps, steps / 2 - 1, steps / 2]
    if setting not in _WHOLE:
        return [(value, value * _STEP) for value in values]
    return [(round(v), max(round(v) + 1, math.floor(v * _STEP))) for v in values]


@pytest.mark.parametrize("setting", [*_WHOLE, *_REAL])
@pytest.mark.parametrize("model", _MODELS)
def test_a_small_change_of_a_setting_moves_the_edge_a_little(model, setting):
    draw = np.random.default_rng(len(setting))
    read = lambda value: _inputs(_MODELS[model], setting, value)
    assert _steepest(read, _pairs(setting, draw)) < _CLIFF


def test_a_cliff_would_be_seen():
    """The negative control: a norm that goes away is a cliff."""
    one = _inputs(_MODELS["gpt2"], "width", 768)
    bare = replace(one, norm="none")
    assert _steepest(lambda value: one if value < 1 else bare, [(0.0, 1.0)]) > _CLIFF
