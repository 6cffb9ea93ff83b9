"""What people mistype is answered with what was given and what to do."""

from __future__ import annotations

import pytest
import torch
from support.commands import left_with

import rksp
from rksp.cli.explain import explained
from rksp.ground.errors import InputError
from rksp.models import names
from rksp.recipe import Recipe

MISTAKES = {
    "score nosuch.yaml": "no file or folder nosuch.yaml",
    "score m.gguf": "config.json",
    "score mymodel": "OWNER/NAME",
    "score gpt2 --optimizer rmsprop": "--optimizer is 'rmsprop', which is unknown",
    "score gpt2 --lr 3e4": "did you mean 3e-4?",
    "score gpt2 --lr 6e-4.5": "--lr is '6e-4.5', which is no number",
    f"score gpt2 --lr {'9' * 5000} --lr 3d": "is no number",
    "score gpt2 --lr 1e-4,1e-3": "rksp grid TARGET lr=1e-4,1e-3",
    "score gpt2 --batch-size 99999999999999999999": "which no run reaches",
    "score llama --lr 1e-3 --set hidden_size=100": "The hidden size (100) is not a multiple",
    "gpt2": "did you mean rksp score gpt2?",
}


@pytest.mark.parametrize("typed", MISTAKES)
def test_a_mistake_is_named_with_what_to_do(typed, capsys):
    assert left_with(typed.split()) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert MISTAKES[typed] in said
    assert "did you mean soap" not in said
    assert len(said) < 1000
    assert "Strict" not in said and "validate_" not in said


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
        *(("grokking", "grokking"), ("calibrate", "rksp calibrate"), ("trainers", "The trainers")),
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
