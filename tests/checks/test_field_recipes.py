"""Published runs whose recipe failed or worked, and causes that are not in the configuration."""

from __future__ import annotations

import pytest
from support.check_evidence import BAD, TUNED, found, healthy, measured, tiny, token_batch

from rksp.documents.finding import Level
from rksp.documents.verdict import least_verdict

# Parameters, learning rate, and whether the run in fp16 ended without a known divergence.
IN_FP16 = {
    "BigScience 104B": (104e9, 6e-5, False),
    "OPT-175B": (175e9, 1.2e-4, False),
    "GLM-130B": (130e9, 8e-5, False),
    "OPT-13B": (13e9, 1e-4, True),
    "GPT-NeoX-20B": (20e9, 0.97e-4, True),
    "Pythia-12B": (12e9, 1.2e-4, True),
    "Pythia-160M": (160e6, 6e-4, True),
    "BLOOM-7.1B": (7.1e9, 1.2e-4, True),
    "a model of 1.3B at six times GPT-3's rate": (1.3e9, 1.8e-3, False),
}


@pytest.mark.parametrize("run", IN_FP16)
def test_fp16_is_a_cause_where_public_runs_diverged_in_it(run: str):
    parameters, rate, went_well = IN_FP16[run]
    sizes = {"parameters": int(parameters)}
    edge = {"likely_edge": None, "do_not_exceed": None, "start_here": None}
    recipe = {"learning_rate": rate, "precision": "fp16"}
    seen = found(healthy(recipe=recipe, facts=sizes, **edge))["fp16-training"]
    assert (seen.level is Level.NOTE) == went_well
    assert seen.is_cause and (least_verdict(seen) == "ok") == went_well
    assert "fp16-training" not in found(
        healthy(recipe=recipe | {"precision": "bf16"}, facts=sizes, **edge)
    )


# case → (check, its level, failing recipe, facts, stable recipe)
RECIPES = {
    "1 nanoGPT on a V100": (
        "fp16-training",
        Level.NOTE,  # GPT-3, OPT and Pythia trained in fp16 to the end
        {"learning_rate": 6e-4, "precision": "fp16"},
        {},
        {"learning_rate": 6e-4, "precision": "bf16"},
    ),
    "4 OPT-175B 11.x": (
        "published-rate",
        Level.NOTE,
        {"learning_rate": 3e-4, "max_grad_norm": 2.5},
        {"parameters": 175_000_000_000, "qk_norms": 1},
        {"learning_rate": 4e-5},  # two thirds of GPT-3's, where it ended
    ),
    "8 MPT-125M": (
        "warmup",
        Level.WARNING,
        {"learning_rate": 6e-4, "warmup_steps": 100, "max_steps": 4800},  # length is our choice
        {},
        {"learning_rate": 6e-4, "warmup_steps": 1000, "max_steps": 4800},
    ),
    "9 MPT-1B": (
        "warmup",
        Level.WARNING,
        {"learning_rate": 2e-4, "warmup_steps": 100, "max_steps": 100_000},
        {"parameters": 1_300_000_000, "width": 2048, "depth": 24},
        {"learning_rate": 2e-4, "warmup_steps": 1000, "max_steps": 100_000},
    ),
    "14 Mamba-130M cast to bf16": (
        "low-precision-parameters",
        Level.WARNING,
        {"precision": "bf16-pure"},
        {},
        {"precision": "bf16"},
    ),
    "22 Marin 8B": (
        "published-rate",
        Level.WARNING,
        {"learning_rate": 2e-3},
        {"parameters": 8_000_000_000, "width": 4096, "depth": 32},
        {"learning_rate": 3e-4},
    ),
    "22 Marin 8B at the end": (
        "missing-z-loss",
        Level.WARNING,
        {"learning_rate": 1e-3},
        {"parameters": 8_000_000_000, "width": 4096, "depth": 32},
        {"learning_rate": 1e-3, "z_loss": 1e-4},
    ),
    "25 RoPE-ViT at LAMB's rate": (
        "no-clipping",
        Level.WARNING,
        {"learning_rate": 3e-3, "max_grad_norm": None},  # the rate is not in the thread
        {"parameters": 86_000_000},
        {"learning_rate": 3e-3, "max_grad_norm": 1.0},
    ),
    "25 RoPE-ViT at a lower rate": (
        "no-clipping",
        Level.WARNING,
        {"learning_rate": 3e-3, "max_grad_norm": None},
        {"parameters": 86_000_000},
        {"learning_rate": 5e-4, "max_grad_norm": None},
    ),
    "26 DeiT-B with automatic fp16": (
        "fp16-training",
        Level.NOTE,
        {"learning_rate": 1e-3, "precision": "fp16", "batch_size": 1024},
        {"parameters": 86_000_000},
        {"learning_rate": 1e-3, "precision": "fp32", "batch_size": 1024},
    ),
    "28 Tensor2Tensor big on one device": (
        "batch-scaling",
        Level.NOTE,
        {"learning_rate": 4e-4, "batch_size": 30, "sequence_length": 50},  # 1,500 tokens
        {"parameters": 213_000_000},
        {"learning_rate": 4e-4, "batch_size": 320, "sequence_length": 50},
    ),
}


@pytest.mark.parametrize("case", RECIPES)
def test_recipes(case: str):
    name, level, failing, facts, stable = RECIPES[case]
    edge = {"likely_edge": None, "do_not_exceed": None, "start_here": None}  # the lints alone
    assert found(healthy(recipe=failing, facts=facts, **edge))[name].level is level
    assert name not in found(healthy(recipe=stable, facts=facts, **edge))


def test_22_marins_rate_that_worked_is_only_noted():
    sizes = {"parameters": 8_000_000_000, "width": 4096, "depth": 32}
    seen = found(healthy(recipe={"learning_rate": 1e-3}, facts=sizes))
    assert seen["published-rate"].level is Level.NOTE


NOT_THE_CONFIGURATION = {
    "6 nanoGPT with flash attention": {
        "recipe": {"learning_rate": 6e-4, "warmup_steps": 2000, "max_steps": 600_000},
        "config": {"model_type": "gpt2", "n_embd": 768, "n_head": 12},
    },
    "7 nanoGPT fine-tuned": {
        "recipe": {
            "learning_rate": 3e-5,
            "warmup_steps": 0,
            "max_steps": 20,
            "batch_size": 32,
            "sequence_length": 1024,
        },
        "config": {"model_type": "gpt2", "n_embd": 768, "n_head": 12},
        "start": TUNED,
    },
    "34 Marin OLMoE at 125M active": {
        "recipe": {"learning_rate": 3e-4},
        "config": {"model_type": "olmoe", "hidden_size": 768, "num_experts": 64},
    },
    "36 Gemma 3 on one kernel path": {
        "recipe": {"learning_rate": 2e-5},
        "config": {"model_type": "gemma3_text", "hidden_size": 1152, "intermediate_size": 6912},
        "start": TUNED,
    },
}


@pytest.mark.parametrize("case", NOT_THE_CONFIGURATION)
def test_what_is_not_the_configuration_is_not_blamed_on_it(case: str):
    assert found(healthy(**NOT_THE_CONFIGURATION[case])) == {}


def test_6_the_real_small_gpt_2_under_nanogpts_recipe_is_clean():
    evidence = measured(
        tiny("gpt2"),
        token_batch(512),
        respond=True,
        learning_rate=6e-4,
        warmup_steps=2000,
        max_steps=600_000,
        batch_size=480,
        sequence_length=1024,
        weight_decay=0.1,
        adam_beta2=0.95,
    )
    assert [f.message for f in found(evidence).values() if f.level in BAD] == []
