"""Collections and measurements grow, and known ladders are not trained twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.ladders.collection import build_collection, collection_ids, read_collection
from lab.ladders.measure import measure_ladder
from lab.ladders.measurements import pack_measurements, unpack_measurements, write_measurement
from lab.ladders.plan import Plan
from lab.ladders.run import run_plan
from rksp.ground.errors import ArtifactError


def _plan(ladders: int) -> Plan:
    return Plan.model_validate(
        {
            "name": "tiny",
            "seed": 3,
            "ladders": ladders,
            "families": {"zoo_pre_ln": 1.0},
            "tasks": {"recall": 1.0},
            "task_options": {"recall": {"length": 8, "vocab": 32, "pairs": 2}},
            "widths": [16],
            "depths": [1],
            "batch_sizes": [2],
            "sequence_lengths": [8],
            "steps": [2],
        }
    )


@pytest.mark.slow
def test_a_collection_grows_without_training_its_ladders_again(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    run_plan(_plan(1), first, workers=1)
    small, large = tmp_path / "small.parquet", tmp_path / "large.parquet"
    build_collection([first], small)
    tally = run_plan(_plan(2), second, workers=1, known=collection_ids(small))
    assert (tally.already_stored, tally.newly_run) == (1, 1)
    build_collection([small, second], large)
    both = tmp_path / "both.parquet"
    build_collection([second, first], both)
    assert large.read_bytes() == both.read_bytes()
    assert len(read_collection(large)) == 2


def test_task_options_of_a_plan_replace_the_drawn_ones() -> None:
    (spec,) = _plan(1).expand()
    assert spec.task_options == {"length": 8, "vocab": 32, "pairs": 2}
    assert spec.shape["vocab_size"] == 32
    assert spec.shape["max_position_embeddings"] == spec.recipe.sequence_length == 8


def test_packed_measurements_are_carried_along(tmp_path: Path) -> None:
    shipped = unpack_measurements()
    name = min(shipped)
    folder = tmp_path / "measured"
    folder.mkdir()
    changed = shipped[name] | {"parameters": 1}
    (folder / f"{name}.json").write_text(json.dumps(changed), encoding="utf-8")
    base, output = tmp_path / "base.xz", tmp_path / "all.xz"
    assert pack_measurements(folder, base) == 1
    other = max(shipped)
    (folder / f"{name}.json").rename(folder / f"{other}.json")
    (folder / f"{other}.json").write_text(json.dumps(shipped[other]), encoding="utf-8")
    assert pack_measurements(folder, output, base=base) == 2
    assert unpack_measurements(output) == {name: changed, other: shipped[other]}


def test_a_shipped_measurement_is_what_its_ladder_measures(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    name = "01e86f2dd8838b83"
    (spec,) = (run.spec for run in read_collection() if run.spec.id == name)
    write_measurement(tmp_path, name, measure_ladder(spec))
    assert pack_measurements(tmp_path, tmp_path / "one.xz") == 1
    found = unpack_measurements(tmp_path / "one.xz")[name]["features"]
    stored = unpack_measurements()[name]["features"]  # with columns that are not measured any more
    assert set(found) < set(stored)
    # Stored before 0.6, when what a tied output layer copies of its input counted as excess.
    assert found.pop("excess_initial_loss") == pytest.approx(
        stored["excess_initial_loss"], abs=5e-3
    )
    assert found == pytest.approx({key: stored[key] for key in found}, rel=1e-3, abs=1e-3)


def test_measurements_of_another_schema_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"schema": "features-0", "ladder": "x", "features": {}}')
    with pytest.raises(ArtifactError, match="features-0"):
        pack_measurements(tmp_path, tmp_path / "one.xz")
