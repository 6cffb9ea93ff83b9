"""Ten thousand cells of a configuration are cheap, and what makes them so changes no byte."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.edge_cases import inputs

from rksp.assessment.evidence import Evidence
from rksp.assessment.pipeline import judge
from rksp.classifiers.edge_model import Remembered, load_edge_model
from rksp.documents.options import MeasureOptions
from rksp.grid.cell import Base, make_cell
from rksp.ground.text import safe_json, safe_strings
from rksp.models.resolve import resolve
from rksp.question.run import origins_of_flags
from rksp.recipe import Recipe
from rksp.recipe_files.said.origin import assumptions
from rksp.spectra.features import Tier

SCALARS = st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False)
VALUES = st.recursive(
    SCALARS.filter(lambda value: value not in (math.inf, -math.inf)),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_stored_json_is_as_safe_as_its_strings(value):
    for is_ascii in (True, False):
        text = json.dumps(value, ensure_ascii=is_ascii)
        assert safe_json(text) == safe_strings(json.loads(text))


def _lost(said, rate: float) -> float:
    """Return the expected excess by its definition, part by part."""
    middles = [(i + 0.5) / 21 for i in range(21)]
    total = 0.0
    for of, curve in ((said.best, said.below), (said.edge, said.above)):
        for weight, part in zip(of.weights, of.parts, strict=True):
            ends = [math.log10(part.alone().quantile(share)) for share in middles]
            off = [math.log10(rate) - end for end in ends]
            total += weight * float(np.mean(np.interp(off, said.knots, curve)))
    return total


@pytest.mark.parametrize("width", [64, 768, 8192])
def test_all_parts_at_once_lose_what_each_loses(width):
    said = load_edge_model().predict(inputs(width))
    for rate in (1e-5, 1e-3, 0.1):
        assert said.expected_excess(rate) == pytest.approx(_lost(said, rate), rel=1e-9)


def test_losses_found_together_are_those_found_alone():
    together, alone = (load_edge_model().predict(inputs(512)) for _ in range(2))
    rates = [10 ** (-6 + i / 60) for i in range(360)]
    together.lose_at(rates)
    lost = [alone.expected_excess(rate) for rate in rates]
    assert [together.expected_excess(rate) for rate in rates] == lost
    assert len(set(lost)) > 300


def test_what_is_remembered_is_what_was_said():
    model = load_edge_model()
    memory, run = Remembered(model), inputs(512)
    again, said = memory.predict(run), model.predict(run)
    assert memory.predict(run) is again
    for ask in ("start_here", "likely_edge", "log_best"):
        assert getattr(again, ask) == getattr(said, ask)
    other = memory.predict(replace(run, depth=run.depth + 1))
    assert other.likely_edge != again.likely_edge
    measured = {"grad_norm": 1.0}
    assert memory.predict(run, measured).log_edge == model.predict(run, measured).log_edge
    assert memory.predict(run, measured).log_edge != again.log_edge


def test_cells_judge_alike_with_and_without_a_memory():
    source = resolve("gpt2", counts=False)
    options = MeasureOptions(evidence="config")
    fresh = lambda: Evidence(source=source, options=options, tier=Tier.CONFIG)
    evidence, memory, rates = fresh(), Remembered(load_edge_model()), (1e-4, 1e-2)
    settings = (
        {"warmup_steps": 0},
        {"warmup_steps": 10},
        {"warmup_steps": 100},
        {"optimizer": "sgd"},
        {"adam_beta2": 0.9},
        {"precision": "fp16-pure"},
    )
    levers = set()
    for rate, changed in itertools.product(rates, settings):
        recipe = Recipe(learning_rate=rate, **changed)
        with_memory = judge(evidence, recipe, classifier=memory, with_details=False, rates=rates)
        without = judge(fresh(), recipe, with_details=False)
        assert with_memory.risk == without.risk and with_memory.findings == without.findings
        levers.add(tuple((one.name, one.factor) for one in without.risk.levers))
    assert len(levers) >= 3  # so that one recipe's would be wrong for another


@pytest.mark.parametrize(
    "point",
    [
        {"lr": 1e-3},
        {"lr": 1e-3, "optimizer": "sgd", "beta1": 0.5},
        {"schedule": "wsd", "decay_steps": 10, "batch_size": 4},
        {"schedule": "constant", "warmup": 20},
    ],
)
def test_cells_assume_what_their_recipe_does(point):
    base = Base(target="gpt2", recipe={"max_steps": 500})
    for rate in (1e-4, 1e-2):
        cell = make_cell(base, point | {"lr": rate}, "here")
        names = {"max_steps", "learning_rate", *point} - {"lr", "beta1", "warmup"}
        names |= {"adam_beta1"} if "beta1" in point else set()
        names |= {"warmup_steps"} if "warmup" in point else set()
        origins = origins_of_flags(cell.recipe, dict.fromkeys(names, "the grid"))
        assert dict(cell.assumed) == assumptions(dict(cell.recipe), origins)


_COST = """
import resource, subprocess, sys
def seconds(*words):
    subprocess.run([sys.executable, "-P", "-m", "rksp", *words], check=True, capture_output=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
score = seconds("score", "gpt2", "--lr", "1e-4", "--evidence", "config", "--exit-zero")
axes = ("lr=logspace(-5,-2,1000)", "warmup_steps=range(100,1001,100)", "--evidence", "config")
more = ("-o", sys.argv[1], "--format", "html", "--exit-zero")
grid = seconds("grid", "gpt2", *axes, *more) - score
print(grid / score)
"""


@pytest.mark.slow
def test_ten_thousand_cells_cost_few_scores_of_a_configuration(tmp_path):
    command = [sys.executable, "-P", "-c", _COST, str(tmp_path / "grid.db")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(done.stdout) < 25  # 80 before estimates were remembered
