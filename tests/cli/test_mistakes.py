"""What people mistype is answered with what was given and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.commands import left_with

import rksp
from rksp.cli.explain import explained
from rksp.ground.errors import InputError
from rksp.models import names
from rksp.recipe import Recipe

TYPED = [
    line.split("\t")
    for line in (Path(__file__).parent / "mistakes.tsv").read_text("utf-8").splitlines()
    if not line.startswith("#")
]
RUN_FILE = """\
model_name_or_path: gpt2
learning_rate: 3.0e-4
lr_scheduler_type: cosine
per_device_train_batch_size: 32
max_steps: 1000
warmup_steps: 100
"""


@pytest.mark.parametrize(("typed", "code", "key"), TYPED, ids=[one[0] for one in TYPED])
def test_a_mistake_is_named_with_what_to_do(typed, code, key, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.yaml").write_text(RUN_FILE)
    left = left_with(typed.split())
    shown = capsys.readouterr()
    said = " ".join(shown.err.split())
    assert code in ("*", str(left)), said
    assert all(part in said for part in key.split("|")), said
    assert not (left == 2 and shown.out), shown.out
    assert len(said) < 1000
    assert "Strict" not in said and "validate_" not in said and "Traceback" not in said


def test_there_are_as_many_as_a_user_typed():
    assert len(TYPED) >= 89


@pytest.mark.parametrize(
    ("file", "content", "command"),
    [
        ("run.log", "step 1 loss 2.0\n", "why"),
        ("report.json", '{"schema_version": "1"}', "report"),
        ("grid.db", "SQLite format 3\0", "grid"),
    ],
)
def test_a_file_of_another_command_names_that_command(file, content, command, capsys, tmp_path):
    path = tmp_path / file
    path.write_text(content)
    assert left_with(["score", str(path)]) == 2
    assert f"rksp {command} {path}" in capsys.readouterr().err


def test_what_is_right_is_not_taken_for_a_mistake(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("l’été.yaml").write_text(RUN_FILE)  # a file of that name is there
    command = ["score", "l’été.yaml", "--lr", "6e–4", "--evidence", "config", "--devices", "1"]
    assert left_with(command) in (0, 1)
    assert "did you mean" not in capsys.readouterr().err


def test_a_long_number_is_cut(capsys):
    assert left_with(["score", "gpt2", "--lr", "9" * 5000 + "d"]) == 2
    assert len(capsys.readouterr().err) < 1000


def test_a_whole_float_sets_a_number_of_layers(capsys):
    command = ["score", "gpt2", "--lr", "1e-4", "--evidence", "config", "--set", "n_layer=1e1"]
    assert left_with(command) in (0, 1)


@pytest.mark.parametrize(
    ("status", "said"),
    [(None, "cannot be reached"), (401, "log in"), (403, "log in"), (404, "no such model")],
)
def test_the_hub_says_why_it_gave_nothing(status, said):
    error = OSError()
    if status is not None:
        error.response = type("Response", (), {"status_code": status})()
    assert said in " ".join(names._why(error))


@pytest.mark.parametrize(
    ("word", "title"),
    [
        *(("gradient", "gradient norm"), ("the width", "width")),
        *(
            ("grokking", "grokking"),
            ("calibrate", "rksp calibrate, the old name of rksp confirm --sweep"),
            ("trainers", "The trainers"),
        ),
    ],
)
def test_explain_knows_the_words_of_the_page_and_the_commands(word, title):
    assert explained(word)[0].startswith(title)


def test_python_says_what_it_takes():
    layer = torch.nn.Linear(2, 2)
    with pytest.raises(InputError, match="recipe is of type AdamW; it should be a Recipe"):
        rksp.score("gpt2", recipe=torch.optim.AdamW(layer.parameters()))
    with pytest.raises(InputError, match="for a model of JAX"):
        rksp.score({"params": {}})
    with pytest.raises(InputError, match="warmup belongs to the recipe"):
        rksp.score("gpt2", warmup=100)
    assert Recipe.parse({"warmup": 100}).warmup_steps == 100
