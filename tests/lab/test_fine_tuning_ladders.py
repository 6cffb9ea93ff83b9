"""Packed ladders of fine-tuning: what is read of them, their summary and their card."""

from __future__ import annotations

import math

import numpy as np
import pytest
from typer.testing import CliRunner

from lab import commands as cli
from lab.ladders.collection import shipped_collection
from lab.ladders.fine_tuning.card import fine_tuning_card
from lab.ladders.fine_tuning.ladder import (
    BaseReport,
    BaseSpec,
    FineTunedLadder,
    FineTuningSpec,
    HeldOut,
)
from lab.ladders.fine_tuning.summary import summarize
from lab.ladders.fine_tuning.table import read_fine_tuning
from rksp.ground.errors import ArtifactError, InputError
from rksp.own_runs.outcome import Curves
from rksp.recipe import Recipe

pytest.importorskip("pyarrow")

STEPS = 4
LORA = {"peft": "lora", "lora_rank": 2, "lora_alpha": 4.0, "lora_targets": ("c_attn",)}


def _ladder(method: str = "lora", losses=(2.0, 1.0, 1.5)) -> FineTunedLadder:
    """Three rates: slow, best, failed; the old ability is lost from the second on."""
    shape = {"hidden_size": 32, "vocab_size": 256, "tie_word_embeddings": True}
    spec = FineTuningSpec(
        base=BaseSpec(family="gpt2", shape=shape, task="next_byte", recipe=Recipe()),
        task="next_byte",
        task_options={"domain": "cipher", "examples": 16},
        recipe=Recipe(max_steps=STEPS, **(LORA if method == "lora" else {})),
        seed=5,
        first_rate=1e-4,
        count=3,
        step=1.0,
    )
    return FineTunedLadder(
        id=method,
        spec=spec,
        base=BaseReport(held_out=2.0, trivial=3.0, parameters=10),
        trained_parameters=7,
        before=HeldOut(new=2.5, old=2.0),
        measured={"grad_norm": 0.25, "critical_rate": None},
        rates=tuple(spec.rates),
        curves=tuple(
            Curves(
                loss=np.full(STEPS, loss, np.float32),
                grad_norm=np.ones(STEPS, np.float32),
                planned_steps=STEPS,
            )
            for loss in losses
        ),
        after=(
            HeldOut(new=2.2, old=2.1),
            HeldOut(new=1.4, old=2.4),
            HeldOut(new=2.6, old=math.nan),
        ),
    )


def test_a_base_model_has_learned_half_a_nat_below_the_frequencies() -> None:
    known = {"trivial": 3.0, "parameters": 10}
    assert BaseReport(held_out=2.4, **known).has_learned
    assert not BaseReport(held_out=2.6, **known).has_learned


def test_the_packed_ladders_have_their_labels_and_a_name_each() -> None:
    found = read_fine_tuning()
    assert len({ladder.id for ladder in found}) == len(found) > 200
    assert {ladder.spec.method for ladder in found} == {"all", "lora"}
    for ladder in found:
        assert list(ladder.rates) == sorted(ladder.rates)
        assert len(ladder.judge().outcomes) == len(ladder.rates) == len(ladder.after)
        assert (ladder.trained_parameters < ladder.base.parameters) or ladder.spec.method == "all"


def test_a_file_of_another_kind_is_refused(tmp_path) -> None:
    with pytest.raises(ArtifactError, match="schema"):
        read_fine_tuning(shipped_collection())
    with pytest.raises(InputError, match="no collection"):
        read_fine_tuning(tmp_path / "none.parquet")


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


def test_the_card_counts_the_runs_and_the_command_prints_it(monkeypatch) -> None:
    card = fine_tuning_card([_ladder("all"), _ladder("lora")])
    assert "6 runs in 2 ladders, 33.3 % failed" in card
    assert "| lora | 0.0003 | 1 |" in card
    monkeypatch.setattr("lab.ladders.collection.read_collection", lambda path: [])
    monkeypatch.setattr("lab.ladders.card.data_card", lambda ladders: "The data card.\n")
    shown = CliRunner().invoke(cli.app, ["card"])
    assert shown.exit_code == 0 and shown.stdout.startswith("The data card.\n\n# Ladders of")
    assert shown.stdout.endswith(fine_tuning_card(read_fine_tuning()))
