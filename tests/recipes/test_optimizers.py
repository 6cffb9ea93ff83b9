"""The table of optimizers: everyone else reads it."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from torch import nn

from rksp.assessment.risk import edge_inputs
from rksp.classifiers.edge_model import load_edge_model
from rksp.ground.errors import InputError
from rksp.recipe import MuonScale, Recipe
from rksp.recipe.coverage import not_covered
from rksp.recipe.optimizers.makers import matched_rate
from rksp.recipe.optimizers.own import Lion
from rksp.recipe.optimizers.table import (
    OPTIMIZERS,
    Family,
    make_optimizer,
    optimizer_named,
)

NAMES = [spec.name for spec in OPTIMIZERS]
MADE = [spec.name for spec in OPTIMIZERS if spec.make is not None]


def test_a_recipe_chooses_among_the_table():
    assert list(get_args(Recipe.model_fields["optimizer"].annotation)) == NAMES
    assert {spec.family for spec in OPTIMIZERS} == set(get_args(Family))


def test_an_optimizer_that_is_only_known_is_refused_with_the_way_out():
    with pytest.raises(InputError, match="'soap', but cannot take its steps; choose adamw, adam"):
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


def test_muon_steps_in_the_scale_of_the_recipe():
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("torch before 2.9 has no Muon")
    moved = {}
    for scale in get_args(MuonScale):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 2))
        nn.init.eye_(model[0].weight)
        recipe = Recipe(optimizer="muon", learning_rate=0.01, muon_scale=scale)
        optimizer = make_optimizer(model, recipe)
        (model(torch.randn(8, 64)) ** 3).sum().backward()
        optimizer.step()
        moved[scale] = (model[0].weight.detach() - torch.eye(64)).norm().item()
    for scale in get_args(MuonScale):
        ratio = moved[scale] / moved["match_rms_adamw"]
        assert ratio == pytest.approx(matched_rate(64, scale), rel=0.02), scale


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (torch.optim.AdamW, "adamw"),
        (torch.optim.Adam, "adam"),
        (torch.optim.SGD, "sgd"),
        (torch.optim.NAdam, "nadamw"),
        (Lion, "lion"),
    ],
)
def test_a_class_of_optimizers_stands_for_its_name(kind, name):
    assert Recipe.parse({"optimizer": kind}).optimizer == name


def test_a_class_that_rksp_does_not_have_is_refused():
    with pytest.raises(InputError, match="RMSprop"):
        Recipe.parse({"optimizer": torch.optim.RMSprop})


def test_adam_is_judged_as_adamw_unless_its_decay_differs():
    sizes = {"width": 64, "depth": 4, "vocabulary": 99, "norm": "pre"}
    assert edge_inputs(Recipe(optimizer="adam"), **sizes) == edge_inputs(Recipe(), **sizes)
    assert not_covered(Recipe(optimizer="adam")) == ()
    decayed = Recipe(optimizer="adam", weight_decay=0.1)
    assert not_covered(decayed) == ("weight decay inside adam",)
    assert not_covered(Recipe(weight_decay=0.1)) == ()


def test_an_optimizer_is_covered_if_and_only_if_the_fit_holds_it():
    held = {"adamw"} | load_edge_model().ranges.keys()
    for spec in OPTIMIZERS:
        assert bool(not_covered(Recipe(optimizer=spec.name))) is (
            (spec.counts_as or spec.name) not in held
        ), spec.name
    assert {"nadamw", "mars", "soap"} <= held and "lamb" not in held


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
        ("SingleDeviceNorMuon", "muon", "without its rows' second moment"),
        ("AdEMAMix", None, ""),
        ("SophiaG", "sophia", ""),
        ("cautious_adamw", "cautious", ""),
        ("rprop", None, ""),
    ],
)
def test_names_of_trainers(said, name, loss):
    spec, lost = optimizer_named(said)
    assert (None if spec is None else spec.name, lost) == (name, loss)


def _walk(name: str, gradients: list[torch.Tensor], start: torch.Tensor) -> torch.Tensor:
    """Return a weight after a step along each of several gradients."""
    model = nn.Linear(3, 2, bias=False, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(start)
    optimizer = make_optimizer(
        model, Recipe(optimizer=name, learning_rate=0.1, adam_beta2=0.98, weight_decay=0.5)
    )
    for gradient in gradients:
        model.weight.grad = gradient.clone()
        optimizer.step()
    return model.weight.detach()


def _by_hand(name: str, gradients: list[torch.Tensor], start: torch.Tensor) -> torch.Tensor:
    """Take the same steps from the papers' equations, one after the other."""
    beta1, beta2, eps = 0.9, 0.98, 1e-8
    weight, mean, square = start.clone(), 0.0, 0.0
    for t, gradient in enumerate(gradients, start=1):
        seen = gradient + 0.5 * weight if name == "adam" else gradient
        mean = beta1 * mean + (1 - beta1) * seen
        square = beta2 * square + (1 - beta2) * seen**2
        ahead = mean / (1 - beta1**t)
        if name == "nadamw":
            ahead = beta1 * mean / (1 - beta1 ** (t + 1)) + (1 - beta1) * seen / (1 - beta1**t)
        update = ahead / ((square / (1 - beta2**t)).sqrt() + eps)
        decay = 0.0 if name == "adam" else 0.5
        weight = weight * (1 - 0.1 * decay) - 0.1 * update
    return weight


@pytest.mark.parametrize("name", ["adamw", "adam", "nadamw"])
def test_the_kin_of_adam_take_the_steps_of_their_papers(name):
    generator = torch.Generator().manual_seed(0)
    draw = lambda: torch.randn(2, 3, generator=generator, dtype=torch.float64)
    start, gradients = draw(), [draw() for _ in range(5)]
    torch.testing.assert_close(_walk(name, gradients, start), _by_hand(name, gradients, start))
    others = {"adamw", "adam", "nadamw"} - {name}
    for other in others:  # a negative control: the five steps tell them apart
        gap = (_walk(name, gradients, start) - _by_hand(other, gradients, start)).abs().max()
        assert gap > 1e-3


def test_a_state_can_be_saved_and_goes_on():
    def gradient(seed):
        return torch.randn(3, generator=torch.Generator().manual_seed(seed))

    weight, copy = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    whole, halted = Lion([weight], lr=0.1), Lion([copy], lr=0.1)
    for seed in range(4):
        weight.grad = gradient(seed)
        whole.step()
    for seed in range(2):
        copy.grad = gradient(seed)
        halted.step()
    resumed = Lion([copy], lr=0.1)
    resumed.load_state_dict(halted.state_dict())
    for seed in range(2, 4):
        copy.grad = gradient(seed)
        resumed.step()
    assert torch.equal(weight, copy)
