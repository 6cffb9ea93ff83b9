"""The smallest base models and ladders of fine-tuning."""

from __future__ import annotations

from support.places import ROOT

from lab.ladders.fine_tuning.base_model import BaseSpec
from lab.ladders.fine_tuning.plan import FineTuningPlan
from lab.ladders.fine_tuning.spec import FineTuningSpec
from lab.ladders.grid import read_ladder_plan
from rksp.recipe import Recipe

LORA = {"peft": "lora", "lora_rank": 2, "lora_alpha": 4.0, "lora_targets": ("c_attn",)}

PLAN = {
    "name": "tiny",
    "seed": 3,
    "ladders": 8,
    "pretrained": {
        "gpt2": {
            "kind": "decoder",
            "widths": [16, 32],
            "attention": ["c_attn"],
            "linear": ["c_fc"],
        },
        "vit": {"kind": "vision", "widths": [16], "attention": ["q_proj"], "linear": ["fc1"]},
    },
    "kinds": {
        "decoder": {
            "old": {"task": "next_byte", "options": {"domain": "plays"}},
            "new": [
                {"task": "next_byte", "options": {"domain": "cipher"}},
                {"task": "mirrored", "fresh_head": True, "objective": "classification"},
            ],
        },
        "vision": {
            "old": {"task": "digit_views", "objective": "classification"},
            "new": [
                {"task": "digit_views", "options": {"view": "turned"}},
                {"task": "digit_views", "options": {"label": "parity"}, "fresh_head": True},
            ],
        },
    },
    "bases": {16: {"steps": 2, "learning_rate": 1e-3}, 32: {"steps": 2, "learning_rate": 1e-3}},
    "base_recipe": {"batch_size": 2},
    "depth": 1,
    "head_width": 8,
    "sequence_lengths": [8],
    "batch_sizes": [2],
    "steps": [3],
    "count": 2,
    "ranks": [1, 2],
}


def tiny_plan(**fields: object) -> FineTuningPlan:
    return FineTuningPlan.model_validate({**PLAN, **fields})


def tiny_base(steps: int = 2, **fields: object) -> BaseSpec:
    recipe = Recipe(learning_rate=4e-3, max_steps=steps, warmup_steps=steps // 10, batch_size=8)
    shape = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vocab_size": 256,
        "max_position_embeddings": 16,
        "tie_word_embeddings": True,
    }
    options = {"domain": "plays", "length": 16}
    given = {"family": "gpt2", "shape": shape, "task": "next_byte", "task_options": options}
    return BaseSpec.model_validate({**given, "recipe": recipe, **fields})


def tiny_spec(base: BaseSpec | None = None, **fields: object) -> FineTuningSpec:
    recipe = Recipe(max_steps=4, batch_size=4, sequence_length=16, **fields.pop("recipe", {}))
    given = {
        "base": base or tiny_base(),
        "task": "next_byte",
        "task_options": {"domain": "cipher", "length": 16},
        "seed": 5,
        "first_rate": 1e-4,
        "count": 2,
        "step": 1.0,
    }
    return FineTuningSpec.model_validate({**given, "recipe": recipe, **fields})


def shipped_plan() -> FineTuningPlan:
    plan = read_ladder_plan(ROOT / "datasets" / "plans" / "fine_tuning.yaml")
    assert isinstance(plan, FineTuningPlan)
    return plan
