"""Plans of fine-tuning, and what is stored of their ladders."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from support.fine_tunings import LORA, shipped_plan, tiny_plan, tiny_spec
from typer.testing import CliRunner

from lab import commands as cli
from lab.ladders.contents import hold_fine_tuning, packed_ids
from lab.ladders.fine_tuning.base_model import (
    BaseReport,
)
from lab.ladders.fine_tuning.card import fine_tuning_card
from lab.ladders.fine_tuning.measured import MEASURED
from lab.ladders.fine_tuning.run import FineTunedLadder, HeldOut
from lab.ladders.fine_tuning.store import read_fine_tuned, write_fine_tuned
from lab.ladders.fine_tuning.summary import summarize
from lab.ladders.fine_tuning.table import pack_fine_tuning, read_fine_tuning
from lab.ladders.run import run_plan
from rksp.ground.errors import ArtifactError, InputError
from rksp.own_runs.outcome import Curves

pytest.importorskip("peft")

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")


def test_every_prefix_has_all_families_and_methods() -> None:
    specs = tiny_plan(ladders=16).expand()
    assert len({spec.id for spec in specs}) == 16
    for turn in range(0, 16, 2):
        assert {spec.family for spec in specs[turn : turn + 2]} == {"gpt2", "vit"}
        assert {spec.method for spec in specs[turn : turn + 2]} == {"all", "lora"}
    assert tiny_plan(ladders=4).expand() == specs[:4]
    assert {spec.base.shape["hidden_size"] for spec in specs} == {16, 32}
    assert {spec.recipe.lora_rank for spec in specs} == {None, 1, 2}


def test_a_plan_that_cannot_be_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown family 'gpt3'"):
        tiny_plan(pretrained={"gpt3": tiny_plan().pretrained["gpt2"]})
    with pytest.raises(ValueError, match="says nothing of width 16"):
        tiny_plan(bases={32: {"steps": 2, "learning_rate": 1e-3}})
    with pytest.raises(InputError, match="within the budget 1"):
        tiny_plan(budget=1.0).expand()


def test_the_shipped_plan_has_what_it_promises() -> None:
    specs = shipped_plan().expand()[:180]
    assert len({spec.family for spec in specs}) == 9
    adapters = {(spec.recipe.lora_rank, spec.recipe.lora_alpha) for spec in specs}
    assert len(adapters - {(None, None)}) == 6
    shapes = {(spec.recipe.batch_size, spec.task_options.get("length")) for spec in specs}
    assert {batch for batch, _ in shapes} == {4, 8, 16} and {32, 64} <= {n for _, n in shapes}
    for spec in specs:
        low, *_, high = spec.rates
        assert high / low > 1e3


def test_a_resumed_plan_trains_nothing_twice(tmp_path: Path, monkeypatch) -> None:
    trained: list[str] = []
    plan = tiny_plan(ladders=3)

    def run(action, items, folder, **options) -> None:
        for item in items:
            trained.append(item.id)
            (folder / f"{item.id}.json").write_text("{}")

    monkeypatch.setattr("lab.ladders.run.work_through", run)
    assert run_plan(plan, tmp_path).newly_run == 3
    assert run_plan(tiny_plan(ladders=5), tmp_path).newly_run == 2
    assert len(trained) == len(set(trained)) == 5


def _ladder(seed: int = 5, losses=(2.0, 1.0, 1.5), method: str = "lora") -> FineTunedLadder:
    """Three rates: slow, best, failed; the old ability is lost from the second on."""
    spec = tiny_spec(seed=seed, count=3, recipe=LORA if method == "lora" else {})
    spec = spec.model_copy(update={"task_options": spec.task_options | {"examples": 16}})
    steps = spec.recipe.max_steps
    return FineTunedLadder(
        spec=spec,
        base=BaseReport(held_out=2.0, trivial=3.0, parameters=10, seconds=1.0),
        trained_parameters=7,
        before=HeldOut(new=2.5, old=2.0),
        measured=dict.fromkeys(MEASURED, 0.25) | {"critical_rate": None},
        rates=tuple(spec.rates),
        curves=tuple(
            Curves(
                loss=np.full(steps, loss, np.float32),
                grad_norm=np.ones(steps, np.float32),
                planned_steps=steps,
            )
            for loss in losses
        ),
        after=(
            HeldOut(new=2.2, old=2.1),
            HeldOut(new=1.4, old=2.4),
            HeldOut(new=2.6, old=math.nan),
        ),
        seconds=(0.5, 0.5, 0.5),
    )


def test_a_ladder_survives_its_file_and_the_table(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    ladders = [_ladder(1), _ladder(2, method="all")]
    for ladder in ladders:
        path = write_fine_tuned(tmp_path / "ladders", ladder, {"torch": "2"})
        assert str(read_fine_tuned(path).after) == str(ladder.after)
    packed = tmp_path / "fine_tuning.parquet"
    assert pack_fine_tuning([tmp_path / "ladders"], packed) == 6
    found = read_fine_tuning(packed)
    assert {ladder.spec.id for ladder in found} == {ladder.spec.id for ladder in ladders}
    for ladder in found:
        twin = next(other for other in ladders if other.spec == ladder.spec)
        assert str(ladder.after) == str(twin.after)
        assert ladder.judge() == twin.judge() and ladder.base == twin.base
        assert ladder.measured == twin.measured
    assert packed_ids(packed) == {ladder.spec.id for ladder in ladders}
    again = tmp_path / "again.parquet"
    pack_fine_tuning([packed], again)
    assert again.read_bytes() == packed.read_bytes()


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"schema": "rksp-ladder-1"}))
    with pytest.raises(ArtifactError, match="schema"):
        read_fine_tuned(path)
    path.write_text("{")
    with pytest.raises(ArtifactError, match="not a stored ladder"):
        read_fine_tuned(path)
    assert not hold_fine_tuning(path) and not hold_fine_tuning(tmp_path / "none")


def test_the_summary_finds_the_best_the_failed_and_the_forgotten() -> None:
    ladder = _ladder()
    found = summarize(ladder)
    low, middle, high = ladder.rates
    assert (found.best_training, found.best, found.first_failed) == (middle, middle, high)
    assert found.first_forgetting == middle and found.first_worse == high
    assert found.first_held_out_failed == high
    assert found.gain == pytest.approx(1.1)
    assert found.regret(middle) == 0 and found.regret(low / 10) == pytest.approx(0.8)
    assert found.regret(math.sqrt(low * middle)) == pytest.approx(0.4)


def test_pack_and_card_know_ladders_of_fine_tuning(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    for seed in (1, 2):
        write_fine_tuned(tmp_path / "ladders", _ladder(seed, method=("all", "lora")[seed - 1]), {})
    packed = tmp_path / "fine_tuning.parquet"
    runner = CliRunner()
    result = runner.invoke(cli.app, ["pack", str(tmp_path / "ladders"), "-o", str(packed)])
    assert result.exit_code == 0 and result.stdout.startswith("6 runs in ")
    shown = runner.invoke(cli.app, ["card", str(packed)])
    assert shown.exit_code == 0 and shown.stdout == fine_tuning_card(read_fine_tuning(packed))
    assert "6 runs in 2 ladders, 33.3 % failed" in shown.stdout
    assert "| lora | 0.0003 | 1 |" in shown.stdout
