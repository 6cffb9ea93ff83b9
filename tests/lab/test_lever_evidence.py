"""Sizes of levers beside papers and public runs: signs that agree, and rows that say nothing."""

from __future__ import annotations

import json

import pytest
from support.levers import lever_table

from lab.ladders.lever_evidence import lever_card, read_rows
from rksp.ground.errors import InputError

BASE = {
    **{"optimizer": "adamw", "betas": [0.9, 0.98], "warmup_steps": 100, "batch_tokens": 1000},
    **{"weight_decay": 0.1, "clip": 1.0},
}


def run(changed: str, failed: bool = False, loss: float | None = 3.0, **recipe: object) -> dict:
    return {
        **{"ladder": "a", "changed": changed, "recipe": {**BASE, **recipe}},
        **{"final_loss": loss, "baseline_loss": 3.0, "failed": failed},
    }


def lines(card: str, lever: str) -> list[list[str]]:
    found = [line.split(" | ") for line in card.splitlines() if line.startswith(f"| {lever} |")]
    return [[cell.strip("| ") for cell in line] for line in found]


def test_a_lever_whose_runs_fail_less_agrees_with_one_that_raises_the_edge() -> None:
    rows = [
        run("Baseline"),
        run("warmup=300", loss=2.9, warmup_steps=300),
        run("warmup=30", failed=True, loss=None, warmup_steps=30),
    ]
    shown = lines(lever_card(lever_table(warmup=0.3), rows), "warmup")[-1]
    assert shown == ["warmup", "+0.30", "1", "0%", "-0.100", "1", "100%", "–", "yes"]
    against = lines(lever_card(lever_table(warmup=-0.3), rows), "warmup")[-1]
    assert against[-1] == "no"


def test_runs_of_other_optimizers_and_of_unknown_bases_do_not_count() -> None:
    rows = [
        run("Baseline"),
        run("warmup=300", warmup_steps=300, optimizer="muon"),
        run("warmup=30", warmup_steps=30) | {"ladder": "b"},
    ]
    assert "change one setting" not in lever_card(lever_table(warmup=0.3), rows)


def test_ladders_of_warm_ups_are_counted() -> None:
    ladder = {"warmup_steps": [100, 400], "final_loss": [4.0, 3.9]}
    worse = {"warmup_steps": [100, 400, 800], "final_loss": [4.0, 3.9, None]}
    card = lever_card(lever_table(warmup=0.3), [ladder, worse, ladder | {"final_loss": [3, 4]}])
    assert lines(card, "warmup")[-1] == ["warmup", "+0.30", "3", "2 of 3", "-0.100"]


def test_a_paper_without_a_number_is_compared_by_its_sign() -> None:
    (first, second) = lines(lever_card(lever_table(qk_norm=0.5)), "qk_norm")[-2:]
    assert first[1:4] == ["+0.50", "+0.82", "yes"] and second[1:4] == ["+0.50", "+", "yes"]
    assert lines(lever_card(lever_table(batch=0.5)), "batch")[-1][3] == "no"


def test_a_file_that_holds_no_objects_is_refused(tmp_path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(BASE) + "\n[1]\n")
    with pytest.raises(InputError, match="line 2"):
        read_rows([file])
