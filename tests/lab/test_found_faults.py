"""What the harness of faults has found, each small: `python -m lab.faults inputs`."""

from __future__ import annotations

import json

import pytest
from support.benchmark_scripts import harness

answers = harness("answers")
SCORE = ("score", "gpt2", "--evidence", "config", "--lr", "1e-3")
GRID = ("grid", "grid.yaml", "--dry-run")
TEXT = {"model_type": "phi", "hidden_size": "9", "num_attention_heads": 2}

# Case: command, name and text of the file, and what the refusal says; None if it is an answer.
FOUND = {
    "second decay of zero": ((*SCORE, "--beta2", "0"), None, "", None),
    "target that is a number": (GRID, "grid.yaml", "target: 3\ngrid:\n  lr: [1e-4]\n", "'target'"),
    "set that is a list": (
        GRID,
        "grid.yaml",
        "target: gpt2\nset: [1]\ngrid:\n  lr: [1]\n",
        "'set'",
    ),
    "recipe that is a text": (GRID, "grid.yaml", "recipe: a\ngrid:\n  lr: [1]\n", "'recipe'"),
    "width that is a text": (
        ("score", "config.json", "--evidence", "config"),
        "config.json",
        json.dumps(TEXT),
        "hidden_size",
    ),
    "plan of too many ladders": (
        ("lab", "run", "plan.yaml", "-o", "x"),
        "plan.yaml",
        "name: a\nladders: 1000000000\nfamilies: {gpt2: 1}\ntasks: {bytes: 1}\n",
        "ladders",
    ),
    "plan without weights": (
        ("lab", "run", "plan.yaml", "-o", "x"),
        "plan.yaml",
        "name: a\nladders: 2\nfamilies: {gpt2: 0}\ntasks: {bytes: 1}\n",
        "families",
    ),
    "plan that unfolds": (
        ("lab", "run", "plan.yaml", "-o", "x"),
        "plan.yaml",
        "a: &a [1, 2]\n"
        + "".join(f"b{n}: &b{n} [*a, *a, *a]\na: &a [*b{n}, *b{n}]\n" for n in range(20)),
        "plan.yaml",
    ),
    "parameters without end": ((*SCORE, "--max-params", "inf"), None, "", "--max-params"),
    "axis without values": (
        ("grid", "grid.json", "--samples", "5", "--dry-run"),
        "grid.json",
        '[{"lr": [], "n_embd": [16]}]',
        "has no values",
    ),
    "threads without end": ((*SCORE, "--threads=2147483648"), None, "", "--threads"),
}


@pytest.mark.parametrize("name", FOUND)
def test_it_does_not_come_back(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command, file, text, refusal = FOUND[name]
    files = {} if file is None else {file: text.encode()}
    given = answers.answer(answers.Case(command=command, files=files))
    assert answers.complaint(given) is None
    assert (given.code == 2) == (refusal is not None), given.err
    assert (refusal or "") in given.err


@pytest.mark.parametrize("command", [(*SCORE, "--recipe"), ("lab", "run", "-o", "x")])
def test_devices_and_pipes_are_not_read(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = answers.answer(answers.Case(command=(*command, "/dev/zero"), files={}))
    assert given.code == 2, given.err
    assert answers.complaint(given) is None
