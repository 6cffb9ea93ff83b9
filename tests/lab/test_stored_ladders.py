"""Stored ladders: the model that a specification builds today is the one that was trained."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.places import ROOT
from torch import nn

from lab.ladders.collection import SCHEMA, read_collection
from lab.ladders.fine_tuning.base_model import BaseSpec, base_member
from lab.ladders.fine_tuning.plan import FineTuningPlan
from lab.ladders.fine_tuning.table import read_fine_tuning, shipped_fine_tuning
from lab.ladders.grid import read_ladder_plan
from lab.ladders.ladder import LadderRun, ladder_batches
from lab.ladders.parquet import schema_of
from lab.tasks.domain_tasks import PADDING, START
from lab.zoo import build_member
from rksp.datasets.batch import task_loss

RUNS, PLANS = (ROOT / "datasets" / name for name in ("runs", "plans"))
# Curves keep 16 significant bits, and processors add in other orders.
TOLERANCE = 1e-4


def _collections() -> list[Path]:
    pytest.importorskip("pyarrow")
    return [path for path in sorted(RUNS.glob("*.parquet")) if schema_of(path) == SCHEMA]


def _one_of_each_family(path: Path) -> list[LadderRun]:
    plain = [run for run in read_collection(path) if not run.spec.interventions]
    return list({run.spec.family: run for run in plain}.values())


def _first_loss(run: LadderRun, seed: int) -> float:
    model = build_member(run.spec.family, run.spec.shape, seed=seed)
    return float(task_loss(model, ladder_batches(run.spec)[0]))


# Mamba without its CUDA kernels says so, once, in a warning or a log line.
@pytest.mark.filterwarnings("ignore:.*fast path.*", "ignore:.*requires_grad.*:UserWarning")
def test_a_stored_ladder_begins_with_the_loss_of_its_model_today() -> None:
    pytest.importorskip("transformers")
    for path in _collections():
        for run in _one_of_each_family(path):
            stored = float(run.curves[0].loss[0])
            found = _first_loss(run, run.spec.seed)
            assert found == pytest.approx(stored, rel=TOLERANCE), (path.name, run.spec.family)


@pytest.mark.filterwarnings("ignore:.*requires_grad.*:UserWarning")
def test_the_first_loss_tells_another_model() -> None:
    run = next(r for r in read_collection() if r.spec.family == "zoo_pre_ln")
    other = _first_loss(run, run.spec.seed + 1)
    assert other != pytest.approx(float(run.curves[0].loss[0]), rel=TOLERANCE)


def _parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_a_stored_ladder_of_fine_tuning_builds_a_base_model_of_the_size_it_had() -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("pyarrow")
    if not shipped_fine_tuning().is_file():
        pytest.skip("no ladder of fine-tuning is packed")
    sizes = {run.spec.base.id: (run.spec.base, run.base) for run in read_fine_tuning()}
    assert sizes
    for spec, report in sizes.values():
        assert _parameters(base_member(spec)) == report.parameters, (spec.family, spec.shape)


def _pairs() -> list[BaseSpec]:
    """Return the base models of the shipped plan that have an encoder and a decoder."""
    plan = read_ladder_plan(PLANS / "fine_tuning.yaml")
    assert isinstance(plan, FineTuningPlan)
    return [
        plan.base(family, width)
        for family, member in plan.pretrained.items()
        if member.kind == "encoder-decoder"
        for width in member.widths
    ]


def test_a_base_model_of_two_halves_knows_the_tokens_of_the_domain_tasks() -> None:
    pytest.importorskip("transformers")
    assert {spec.family for spec in _pairs()} == {"t5", "bart"}
    for spec in _pairs():
        config = base_member(spec).config
        assert (config.pad_token_id, config.decoder_start_token_id) == (PADDING, START)
        # One that the lab trains from its initialization reads tasks that have neither.
        alone = build_member(spec.family, spec.shape, seed=0).config
        assert (alone.pad_token_id, alone.decoder_start_token_id) == (0, 0)


def test_the_t5_that_is_tuned_is_gated_and_the_lab_s_own_is_not() -> None:
    pytest.importorskip("transformers")
    spec = next(spec for spec in _pairs() if spec.family == "t5")
    alone = build_member(spec.family, spec.shape, seed=0)
    assert base_member(spec).config.is_gated_act and not alone.config.is_gated_act
    # A gated layer has one matrix more, in each of the two stacks.
    width = spec.shape["hidden_size"]
    assert _parameters(base_member(spec)) == _parameters(alone) + 2 * 4 * width**2
