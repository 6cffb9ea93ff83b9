"""Public rows of fine-tuning: what each becomes, and the commands that read them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from support.commands import run_rksp

from lab.commands import main
from lab.fine_tuning_fit.ladder import CARD, LADDER, PRACTICE, RECIPE, RUN
from lab.fine_tuning_fit.public_rows import public_ladders
from rksp.classifiers.fine_tuning.model import load_fine_tuning_model


def _row(name: str, method: str = "lora", *, family: str = "llama", **more: object) -> dict:
    arch = {"family": family, "model": f"{family}-7B", "params": None, "hidden_size": 4096}
    recipe = {"optimizer": "adamw", "lora_rank": 16, "lora_alpha": 32, "lr": 2e-4}
    row = {"id": name, "group": "a-group", "method": method, "metric": "loss", "license": "MIT"}
    return row | {"arch": arch, "recipe": recipe} | more


def _ladder(name: str, **more: object) -> dict:
    rates, losses = [1e-5, 1e-4, 1e-3, 1e-2], [2.0, 1.5, 1.0, None]
    failed = [False, False, False, True]
    return _row(name, rates=rates, final_loss=losses, failed=failed, higher_is_better=False, **more)


def _card(name: str, rate: float, *, failed: bool = False) -> dict:
    recipe = {"optimizer": "adam(w)", "schedule": "linear"}
    full = _row(name, "full (not visible)", family="bert", group="hf-model-cards", recipe=recipe)
    return full | {"rate": rate, "failed": failed}


def test_a_ladder_has_its_brackets_and_its_method():
    (read,) = public_ladders([_ladder("one", retention=[9.0, 9.0, 5.0, 1.0])])
    assert (read.kind, read.inputs.method, read.inputs.kind) == (LADDER, "lora", "decoder")
    assert read.inputs.parameters == 7e9
    assert read.best == pytest.approx((-3.5, -2.5))
    assert read.edge == pytest.approx((-3, -2))
    assert read.forgetting == pytest.approx((-4, -3))


@pytest.mark.parametrize(
    ("more", "noise"),
    [
        ({"score_sd": [3.0, 0.0, 6.0, 9.0], "replicates": [9, 1, 4, 4]}, [1.0, 4.5, 3.0, 4.5]),
        ({"metric": "GSM8K accuracy %"}, [100 * (0.09 / 1319) ** 0.5] * 4),
        ({"metric": "CFIMDB F1 %"}, [0.0] * 4),
        ({"metric": "accuracy % of their own questions"}, [0.0] * 4),
    ],
)
def test_a_result_is_as_noisy_as_its_seeds_or_its_questions(more, noise):
    scores = {"final_loss": None, "score": [10.0, 90.0, 90.0, 10.0]}
    row = _ladder("one") | scores | {"higher_is_better": True} | more
    (read,) = public_ladders([row])
    assert read.noise == pytest.approx(noise)
    assert public_ladders([_ladder("a loss")])[0].noise == (0.0,) * 4


@pytest.mark.parametrize(
    ("words", "method", "objective"),
    [
        ("dpo-full", "full", "preference"),
        ("orpo-qlora", "qlora", "orpo"),
        ("classification-full", "full", "classification"),
        ("full (continued pre-training)", "full", "continued"),
        ("lora_null", "lora-null", "next_token"),
        ("lora (weight decay 0.3)", "lora", "next_token"),
    ],
)
def test_the_words_of_a_method_are_a_method_and_an_objective(words, method, objective):
    (read,) = public_ladders([_row("one", words, trained_well=True)])
    assert (read.inputs.method, read.inputs.objective) == (method, objective)


def test_a_recipe_bounds_the_edge_and_an_assumed_one_says_nothing():
    (read,) = public_ladders([_row("one", trained_well=True), _row("two", trained_well="assumed")])
    assert (read.kind, read.edge) == (RECIPE, (math.log10(2e-4), math.inf))
    assert read.best[0] < math.log10(2e-4) < read.best[1]


def test_a_failed_run_bounds_the_edge_from_above():
    (read,) = public_ladders([_row("one", rate=1e-3, failed=True)])
    assert (read.kind, read.edge) == (RUN, (-math.inf, -3.0))


def test_cards_bound_the_edge_and_those_that_failed_say_nothing():
    cards = [_card(f"card-{n}", 2e-5) for n in range(30)]
    read = public_ladders([*cards, _card("bad", 1e-3, failed=True), _card("wild", 0.1)])
    assert {x.kind for x in read} == {PRACTICE, CARD}
    (passed,) = [x for x in read if x.kind == CARD]  # the wild one counts as those below it
    assert (passed.count, passed.edge) == (31, (math.log10(2e-5), math.inf))
    assert passed.inputs.kind == "encoder"


def test_the_commands_fit_and_judge_the_rows_of_files(tmp_path: Path):
    names = [("llama", "east"), ("gemma", "west"), ("bert", "north")]
    rows = [_ladder(f"{f}-{g}", family=f, group=g) for f, g in names]
    rows += [_row("recipe", trained_well=True), *(_card(f"card-{n}", 2e-5) for n in range(4))]
    path, output = tmp_path / "rows.jsonl", tmp_path / "model.json"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = run_rksp("fit-fine-tuning", str(path), "-o", str(output), program=main)
    assert done.returncode == 0, done.stderr
    fitted = load_fine_tuning_model(output)
    assert {"east", "west", "north", "lab"} <= set(fitted.card["rows"]["ladder"])
    assert {row["rate"] for row in fitted.card["measured"]} == {"best", "edge", "forgetting"}
    judged = run_rksp("eval-fine-tuning", str(path), program=main)
    assert judged.returncode == 0, judged.stderr
    assert "| families | 12 | 3 |" in judged.stdout  # of the rows alone
    assert "| full, decoder (" in judged.stdout


def test_a_file_without_rows_is_refused_in_a_sentence(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_text("[]\n")
    done = run_rksp("fit-fine-tuning", str(path), "-o", str(tmp_path / "model.json"), program=main)
    assert done.returncode == 2
    assert "line 1" in done.stderr and not (tmp_path / "model.json").exists()
