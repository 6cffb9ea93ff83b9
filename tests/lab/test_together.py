"""Ladders that grow together end as they do alone, and known ladders are not trained twice."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from rksp.cli import lab as cli
from rksp.ground.errors import ArtifactError
from rksp.lab.collection import build_collection, collection_ids, read_collection
from rksp.lab.ladder import run_ladder
from rksp.lab.measure import measure_ladder
from rksp.lab.measurements import pack_measurements, unpack_measurements, write_measurement
from rksp.lab.plan import LadderSpec, Plan
from rksp.lab.run import run_plan
from rksp.lab.together import groups, run_group, shape_key

RECIPE = {"max_steps": 8, "batch_size": 2, "sequence_length": 8, "warmup_steps": 2}


def _spec(**fields: object) -> LadderSpec:
    defaults: dict[str, object] = {
        "family": "zoo_no_norm",
        "shape": {
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "vocab_size": 32,
            "max_position_embeddings": 8,
        },
        "task": "recall",
        "task_options": {"length": 8, "vocab": 32, "pairs": 2},
        "recipe": RECIPE,
        "seed": 5,
        "first_rate": 1e-3,
        "count": 4,
        "step": 0.75,
    }
    return LadderSpec.model_validate({**defaults, **fields})


def test_ladders_of_one_shape_grow_together_as_they_grow_alone() -> None:
    clipped = {**RECIPE, "max_grad_norm": 0.5, "adam_beta2": 0.95, "warmup_steps": 0}
    specs = [_spec(), _spec(seed=6), _spec(recipe=clipped)]
    assert len(groups(specs)) == 1
    for together, spec in zip(run_group(specs, device="cpu"), specs, strict=True):
        alone = run_ladder(spec)
        assert together.spec == spec
        assert together.rates == alone.rates
        assert together.judge().outcomes == alone.judge().outcomes
        outcomes = alone.judge().outcomes
        assert not outcomes[0].is_failure
        for ours, theirs, outcome in zip(together.curves, alone.curves, outcomes, strict=True):
            assert len(ours.loss) == len(theirs.loss)
            if not outcome.is_failure:  # a run that explodes amplifies every rounding
                np.testing.assert_allclose(ours.loss, theirs.loss, rtol=1e-3)
    assert any(outcome.is_failure for outcome in run_ladder(specs[0]).judge().outcomes)


def test_a_group_shares_its_program_s_shape_and_nothing_else() -> None:
    longer = _spec(recipe={**RECIPE, "max_steps": 9})
    wider = _spec(shape={**_spec().shape, "hidden_size": 32})
    sgd = _spec(recipe={**RECIPE, "optimizer": "sgd"})
    gpt2 = _spec(family="gpt2")
    assert [shape_key(s) is None for s in (_spec(), sgd, gpt2)] == [False, True, True]
    assert len(groups([_spec(), longer, wider, sgd, gpt2, _spec(seed=1)])) == 5


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


def test_a_device_that_is_not_there_is_refused(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(_plan(1).model_dump_json(), encoding="utf-8")
    result = CliRunner().invoke(
        cli.app, ["run", str(plan), "-o", str(tmp_path / "out"), "--device", "tpu"]
    )
    assert result.exit_code != 0
    assert "tpu" in str(result.exception)
    assert not (tmp_path / "out").exists()


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
