"""The table of optimizers: everyone else reads it."""

from __future__ import annotations

import subprocess
import sys
from typing import get_args

import pytest
import torch
from torch import nn

from rksp.errors import InputError
from rksp.evidence import first_step
from rksp.optimizers import OPTIMIZERS, Family, make_optimizer, optimizer_named
from rksp.recipe import Recipe

NAMES = [spec.name for spec in OPTIMIZERS]
MADE = [spec.name for spec in OPTIMIZERS if spec.make is not None]


def test_a_recipe_chooses_among_the_table():
    assert list(get_args(Recipe.model_fields["optimizer"].annotation)) == NAMES
    assert {spec.family for spec in OPTIMIZERS} == set(get_args(Family))


def test_an_optimizer_that_is_only_known_is_refused_with_the_way_out():
    assert MADE == ["adamw", "sgd", "lion", "adafactor", "muon"]
    with pytest.raises(InputError, match="'soap', but cannot take its steps; choose adamw, sgd"):
        make_optimizer(nn.Linear(2, 2), Recipe(optimizer="soap", learning_rate=1e-3))


@pytest.mark.parametrize("name", MADE)
def test_every_optimizer_can_be_made_and_steps(name):
    if name == "muon" and not hasattr(torch.optim, "Muon"):
        pytest.skip("torch before 2.9 has no Muon, and make_optimizer says so")
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = make_optimizer(model, Recipe(optimizer=name, learning_rate=0.1))
    model(torch.ones(3, 4)).square().sum().backward()
    optimizer.step()
    moved = [not torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True)]
    assert moved[0]


@pytest.mark.parametrize("name", NAMES)
def test_the_first_step_depends_on_fields_of_the_table_alone(name):
    other = Recipe(optimizer=name, max_steps=7, adam_beta1=0.5, batch_size=3, momentum=0.1)
    assert first_step(other) == first_step(Recipe(optimizer=name))
    decayed = other.model_copy(update={"weight_decay": 0.5})
    assert first_step(decayed) != first_step(other)


@pytest.mark.parametrize(
    ("said", "name", "loss"),
    [
        ("adamw_torch_fused", "adamw", ""),
        ("paged_adamw_8bit", "adamw", ""),
        ("AdamW", "adamw", ""),
        ("FusedAdam", "adamw", "weight decay decoupled"),
        ("lion_8bit", "lion", ""),
        ("torch.optim.SGD", "sgd", ""),
        ("Adafactor", "adafactor", ""),
        ("MuonWithAuxAdam", "muon", ""),
        ("AdEMAMix", None, ""),
        ("SophiaG", "sophia", ""),
        ("cautious_adamw", "cautious", ""),
        ("rprop", None, ""),
    ],
)
def test_names_of_trainers(said, name, loss):
    spec, lost = optimizer_named(said)
    assert (None if spec is None else spec.name, lost) == (name, loss)


def test_the_table_needs_no_torch():
    code = "import sys, rksp.recipe, rksp.options; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
