"""Where rksp cannot tell, no document of any kind holds a number of risk."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands import run_rksp

import rksp
from rksp.assessment.pipeline import evaluate
from rksp.confirm.confirm import mean_prediction
from rksp.documents.answer import KINDS as ANSWERED
from rksp.documents.options import MeasureOptions
from rksp.models.resolve import resolve
from rksp.recipe import Recipe
from rksp.report.formats import KINDS

# What an answer gives beside its verdict; `risk` and `threshold` are what the user asked with.
NUMBERS = {
    *(
        name
        for kind in ANSWERED
        for name, field in kind.model_fields.items()
        if field.annotation in (float, float | None) and name not in ("risk", "threshold")
    ),
    *("low", "high", "probabilities", "curve", "contributions", "edge_shift"),
}
CONFIG = MeasureOptions(evidence="config")
UNTOLD, TOLD = {"optimizer": "lamb"}, {"optimizer": "adamw"}


def _numbers(part: object, name: str = "") -> Iterator[tuple[str, object]]:
    """Yield every number of risk in a document, under the name that holds it."""
    if isinstance(part, dict):
        for key, value in part.items():
            yield from _numbers(value, key if key in NUMBERS or not name else name)
    elif isinstance(part, list):
        for value in part:
            yield from _numbers(value, name)
    elif name in NUMBERS and isinstance(part, int | float):
        yield name, part


def _command(*words: str) -> dict:
    done = run_rksp(*words, "--evidence", "config", "--format", "json")
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def _score(run: dict[str, str], folder: Path) -> dict:
    return _command("score", "gpt2", "--lr", "1e-3", "--optimizer", run["optimizer"])


def _files(run: dict[str, str], folder: Path) -> dict:
    return _command("score", "gpt2", "llama", "--lr", "1e-3", "--optimizer", run["optimizer"])


def _grid(run: dict[str, str], folder: Path) -> dict:
    axes = ["lr=1e-4,1e-3", "warmup_steps=0,10", f"optimizer={run['optimizer']}"]
    return _command("grid", "gpt2", *axes, "-o", str(folder / "grid.db"))


def _confirm(run: dict[str, str], folder: Path) -> dict:
    """Return the part of a confirmation that predicts; the others count trained runs."""
    recipe = Recipe(learning_rate=1e-3, **run)
    found = evaluate(resolve("gpt2", counts=False), recipe, CONFIG)
    return mean_prediction([found, found], 0.5).model_dump(mode="json")


def _diff(run: dict[str, str], folder: Path) -> dict:
    names = [str(folder / f"{rate}.json") for rate in ("1e-3", "2e-3")]
    for name, rate in zip(names, ("1e-3", "2e-3"), strict=True):
        asked = ["--lr", rate, "--optimizer", run["optimizer"], "--evidence", "config"]
        run_rksp("score", "gpt2", *asked, "-o", name)
    return json.loads(run_rksp("diff", *names, "--format", "json").stdout)


def _transfer(run: dict[str, str], folder: Path) -> dict:
    return _command("score", "gpt2", "--tuned", "gpt2=1e-3", "--optimizer", run["optimizer"])


def _python(run: dict[str, str], folder: Path) -> dict:
    fields = rksp.score("gpt2", recipe=run, lr=1e-3, evidence="config").to_dict()
    return {name: value for name, value in fields.items() if name in NUMBERS}


MADE = {"score": _score, "files": _files, "grid": _grid, "confirm": _confirm, "diff": _diff}
ANSWERS = MADE | {"transfer": _transfer, "python": _python}


def test_every_kind_of_document_is_tried():
    past = {"why", "watch"}  # what the shipped model says of runs, beside how they ended
    assert set(MADE) | past == set(KINDS)


@pytest.mark.parametrize("kind", ANSWERS)
def test_an_answer_that_is_none_holds_no_number(kind: str, tmp_path: Path):
    assert list(_numbers(ANSWERS[kind](UNTOLD, tmp_path))) == []


@pytest.mark.parametrize("kind", sorted({*ANSWERS} - {"diff"}))  # which compares findings
def test_an_answer_holds_numbers(kind: str, tmp_path: Path):
    assert list(_numbers(ANSWERS[kind](TOLD, tmp_path)))
