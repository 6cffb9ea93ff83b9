"""Stored ladders: the model that a specification builds today is the one that was trained."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.places import ROOT

from lab.ladders.collection import read_collection
from lab.ladders.fine_tuning.table import shipped_fine_tuning
from lab.ladders.ladder import LadderRun, ladder_batches
from lab.zoo import build_member
from rksp.datasets.batch import task_loss

RUNS = ROOT / "datasets" / "runs"
# Curves keep 16 significant bits, and processors add in other orders.
TOLERANCE = 1e-4


def _collections() -> list[Path]:
    pytest.importorskip("pyarrow")
    return [path for path in sorted(RUNS.glob("*.parquet")) if path != shipped_fine_tuning()]


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
