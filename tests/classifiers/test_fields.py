"""Every field of a recipe says what it does to the edge, and what it says is so."""

from __future__ import annotations

import pytest

from rksp.assessment.risk import edge_inputs
from rksp.classifiers.edge_model import load_edge_model
from rksp.classifiers.levers.effects import load_lever_table
from rksp.classifiers.levers.fields import edge_effect, edge_effects
from rksp.recipe import Recipe

_MODEL = {"width": 768, "depth": 12, "vocabulary": 50_257, "norm": "pre", "family": "gpt2"}
_USUAL = {"max_steps": 20_000, "warmup_steps": 500, "batch_size": 8, "sequence_length": 256}
_OTHER = {
    "weight_decay": 0.3,
    "max_grad_norm": 0.1,
    "adam_epsilon": 1e-6,
    "adam_beta2": 0.8,
    "adam_beta1": 0.99,
    "warmup_steps": 2000,
    "batch_size": 64,
    "sequence_length": 1024,
    "min_lr_ratio": 0.8,
    "max_steps": 2000,
    "precision": "bf16",
    "z_loss": 1e-4,
    "gradient_accumulation_steps": 8,
}


@pytest.mark.parametrize("field", Recipe.model_fields)
def test_every_field_has_a_sentence(field):
    assert edge_effect(field)


@pytest.mark.parametrize("field", _OTHER)
def test_a_field_moves_the_edge_if_it_says_so(field):
    one, other = (
        load_edge_model().predict(edge_inputs(Recipe(**_USUAL | more), **_MODEL)).log_edge
        for more in ({}, {field: _OTHER[field]})
    )
    assert ("moves E by" in edge_effect(field)) == (abs(one - other) > 1e-6)


def test_what_pairs_measured_is_said_with_their_number_and_interval():
    size = load_lever_table().size("decoder", "weight_decay")
    said = edge_effect("weight_decay")
    assert "no effect beyond chance" in said and f"{size.pairs} pairs" in said
    assert f"[{size.low:+.2f}, {size.high:+.2f}]" in said
    assert "no effect seen: of 88 public runs" in edge_effect("adam_epsilon")
    assert "not measured" in edge_effect("precision")


def test_fields_fall_into_three_kinds_for_a_page():
    moves, none, unknown = edge_effects(["warmup_steps", "weight_decay", "precision", "rows"])
    assert "warmup_steps (+" in moves and "weight_decay (" in none and "precision" in unknown


def test_a_shift_beyond_chance_is_no_missing_effect(monkeypatch):
    table = load_lever_table()
    size = table.size("decoder", "weight_decay").model_copy(update={"low": 0.05})
    sizes = {"decoder": table.sizes["decoder"] | {"weight_decay": size}}
    bent = table.model_copy(update={"sizes": sizes})
    monkeypatch.setattr("rksp.classifiers.levers.fields.load_lever_table", lambda: bent)
    assert "no effect" not in edge_effect("weight_decay")
