"""Each check trips on its failing setting and not on its stable twin."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from support.check_evidence import ATTENTION, BLOCK, RECIPE, ROUTER, found, healthy

from rksp.checks.evidence import CheckEvidence
from rksp.checks.registry import CHECKS, run_checks
from rksp.documents.finding import Level


def growing(factor: float, blocks: int = 8) -> dict[str, object]:
    """A residual stream that grows by a factor a block."""
    return {"blocks": tuple(replace(BLOCK, rms_out=factor**i) for i in range(1, blocks + 1))}


def attending(**more: float) -> dict[str, object]:
    return {"attention": (ATTENTION, replace(ATTENTION, **more))}


def routing(**more: float) -> dict[str, object]:
    return {"routers": (ROUTER, replace(ROUTER, **more))}


UNBOUNDED = {"parameters": 32_000_000_000, "depth": 64, "width": 5120}
UNMEASURED = dict.fromkeys(("loss", "grad_norm", "grad_rms", "grad_max", "update_rms"))

MIXTRAL = {"model_type": "mixtral", "num_local_experts": 8, "router_aux_loss_coef": 0.02}
TRAINED_SLOWLY = {"is_pretrained": True, "recipe": {"learning_rate": 1e-5}}
TUNED_IN_FP16 = {"is_pretrained": True, "recipe": {"learning_rate": 1e-5, "precision": "fp16"}}
REPEATED = {"rows": 500, "batch_size": 16, "max_steps": 1_000, "learning_rate": 2e-5}
UNANSWERED = dict.fromkeys(("start_here", "do_not_exceed", "likely_edge"))
ROTARY = {"max_position_embeddings": 131_072}
UNWARMED = {"warmup_steps": 0, "learning_rate": 9e-5}


def tuned(facts: dict[str, object], **recipe: object) -> dict[str, object]:
    """Trained weights that are trained on, with 16,384 tokens a step."""
    return {
        "facts": facts,
        "recipe": {"batch_size": 32, "sequence_length": 512} | recipe,
        "is_pretrained": True,
        **UNANSWERED,
    }


def unread(std: float) -> dict[str, dict[str, object]]:
    """A model whose weights were not read, with what its configuration declares."""
    return {
        "facts": {"input_std": None, "output_std": None, "width": 11_600},
        "config": {"hidden_size": 11_600, "initializer_range": std},
        "recipe": {"precision": "fp16"},
    }


def at_4_8_billion(**recipe: float) -> CheckEvidence:
    return healthy(
        facts={"parameters": 4_800_000_000, "qk_norms": 48},
        recipe=recipe,
        response={"grad_norm": 3.0, "grad_rms": 4e-5},
    )


# name → (what trips it, its level, the stable twin)
CASES = {
    "initial-loss": (
        healthy(forward={"loss": 110.0}),
        Level.ERROR,
        healthy(forward={"loss": 11.3}),
    ),
    "initial-loss, tied": (
        healthy(forward={"loss": 20.0, "copied": 0.0}),
        Level.WARNING,
        healthy(forward={"loss": 20.0, "copied": 9.0}),
    ),
    "initial-loss, untied": (
        healthy(forward={"loss": 20.0, "copied": 9.0}, facts={"ties_embeddings": False}),
        Level.WARNING,
        healthy(forward={"loss": 11.0, "copied": 0.0}, facts={"ties_embeddings": False}),
    ),
    "initial-loss, mildly": (
        healthy(forward={"loss": 14.0}),
        Level.WARNING,
        healthy(forward={"loss": 12.0}),
    ),
    "output-logit-scale": (
        healthy(forward={"logit_std": 27.7}),
        Level.ERROR,
        healthy(forward={"logit_std": 1.0}),
    ),
    "tied-embedding-scale": (
        healthy(facts={"embedding_std": 1.0}, forward={"logit_std": 27.7}),
        Level.WARNING,
        healthy(facts={"embedding_std": 1.0}, forward={"logit_std": 1.0}),  # scaled down, as in T5
    ),
    "attention-logit-scale": (
        healthy(forward=attending(logit_std=16.0)),
        Level.ERROR,
        healthy(forward=attending(logit_std=1.0)),
    ),
    "attention-logit-scale, trained": (
        healthy(forward=attending(max_logit=140.0), is_pretrained=True),
        Level.WARNING,
        healthy(forward=attending(max_logit=60.0), is_pretrained=True),
    ),
    "attention-entropy": (
        healthy(forward=attending(entropy=0.06)),
        Level.ERROR,
        healthy(forward=attending(entropy=0.88)),
    ),
    "missing-qk-norm": (
        healthy(facts=UNBOUNDED, recipe={"learning_rate": 7e-4}),
        Level.WARNING,
        healthy(facts=UNBOUNDED | {"qk_norms": 128}, recipe={"learning_rate": 7e-4}),
    ),
    "missing-qk-norm, 1B at a high rate": (
        healthy(facts={"parameters": 1_200_000_000}, recipe={"learning_rate": 6e-3}),
        Level.WARNING,
        healthy(facts=UNBOUNDED, recipe={"learning_rate": 1.5e-4}),  # size alone breaks nothing
    ),
    "missing-qk-norm, capped": (
        healthy(facts=UNBOUNDED, recipe={"learning_rate": 7e-4}),
        Level.WARNING,
        healthy(
            facts=UNBOUNDED,
            recipe={"learning_rate": 7e-4},
            config={"attn_logit_softcapping": 50.0},
        ),
    ),
    "position-limit": (
        healthy(config={"model_type": "gpt2", "n_positions": 1024}),
        Level.ERROR,
        healthy(config={"model_type": "llama", "max_position_embeddings": 1024}),
    ),
    "position-limit, trained weights": (
        healthy(config={"model_type": "llama", "max_position_embeddings": 1024}, **TRAINED_SLOWLY),
        Level.WARNING,
        healthy(config={"model_type": "llama", "max_position_embeddings": 2048}, **TRAINED_SLOWLY),
    ),
    "rope-base": (
        healthy(config=ROTARY | {"rope_theta": 1e4}, recipe={"sequence_length": 131_072}),
        Level.WARNING,
        healthy(config=ROTARY | {"rope_theta": 5e5}, recipe={"sequence_length": 131_072}),
    ),
    "rope-base, a little short": (
        healthy(config=ROTARY | {"rope_theta": 1e4}, recipe={"sequence_length": 80_000}),
        Level.WARNING,
        healthy(
            config={"rope_theta": 1e4, "max_position_embeddings": 65_536},
            recipe={"sequence_length": 65_536},
        ),
    ),
    "rope-base, never reached": (
        healthy(config=ROTARY | {"rope_parameters": {"rope_theta": 1e4}}),
        Level.NOTE,
        healthy(
            config={
                "rope_theta": 1e4,
                "rope_scaling": {"rope_type": "yarn", "factor": 40},
                "max_position_embeddings": 131_072,
            }
        ),
    ),
    "rope-precision": (
        healthy(
            config={"rope_theta": 5e5},
            recipe={"precision": "bf16-pure", "sequence_length": 65_536},
        ),
        Level.NOTE,
        healthy(config={"rope_theta": 5e5}, recipe={"sequence_length": 65_536}),
    ),
    "missing-z-loss": (
        healthy(facts={"parameters": 8_000_000_000}, recipe={"learning_rate": 1e-3}),
        Level.WARNING,
        healthy(
            facts={"parameters": 8_000_000_000}, recipe={"learning_rate": 1e-3, "z_loss": 1e-4}
        ),
    ),
    "head-dimension, of T5": (
        healthy(config={"hidden_size": 1024, "num_attention_heads": 8, "d_kv": 145}),
        Level.NOTE,
        healthy(config={"hidden_size": 1024, "num_attention_heads": 128, "d_kv": 128}),
    ),
    "head-dimension, by layer": (
        healthy(config={"hidden_size": 1160, "num_attention_heads": 8}),
        Level.NOTE,
        healthy(config={"hidden_size": 1160, "num_attention_heads": 8, "head_dim": [128, 256]}),
    ),
    "head-dimension": (
        healthy(config={"hidden_size": 11600, "num_attention_heads": 80}),
        Level.NOTE,
        healthy(config={"hidden_size": 11264, "num_attention_heads": 88}),
    ),
    "non-finite-activation": (
        healthy(forward={"non_finite": "h.0.mlp"}),
        Level.ERROR,
        healthy(),
    ),
    "fp16-activation-range": (
        healthy(forward={"activation_absmax": 66_246.0}, recipe={"precision": "fp16"}),
        Level.ERROR,
        healthy(forward={"activation_absmax": 66_246.0}, recipe={"precision": "bf16"}),
    ),
    "fp8-activation-range": (
        healthy(forward={"activation_absmax": 1120.0}),
        Level.NOTE,
        healthy(forward={"activation_absmax": 400.0}),
    ),
    "low-precision-parameters": (
        healthy(recipe={"precision": "fp16-pure"}),
        Level.ERROR,
        healthy(recipe={"precision": "fp16"}),
    ),
    "fp8-activation-range, in fp8": (
        healthy(forward={"activation_absmax": 1120.0}, recipe={"precision": "fp8"}),
        Level.WARNING,
        healthy(forward={"activation_absmax": 400.0}, recipe={"precision": "fp8"}),
    ),
    "low-precision-parameters, bf16": (
        healthy(recipe={"precision": "bf16-pure"}),
        Level.WARNING,
        healthy(recipe={"precision": "bf16"}),
    ),
    "lost-updates": (
        healthy(recipe={"precision": "bf16-pure", "learning_rate": 1e-5}),
        Level.WARNING,
        healthy(recipe={"precision": "bf16-pure", "learning_rate": 1e-4}),
    ),
    "fp16-family": (
        healthy(config={"model_type": "gemma3_text"}, **TUNED_IN_FP16),
        Level.WARNING,
        healthy(config={"model_type": "gemma3_text"}, recipe={"precision": "fp16"}),
    ),
    "fp16-family, by its dtype": (
        healthy(config={"model_type": "new", "dtype": "bfloat16"}, **TUNED_IN_FP16),
        Level.WARNING,
        healthy(config={"model_type": "new", "dtype": "float16"}, **TUNED_IN_FP16),
    ),
    "fp16-family, phi-1.5": (
        healthy(config={"model_type": "phi"}, **TUNED_IN_FP16),
        Level.WARNING,
        healthy(config={"model_type": "phi", "torch_dtype": "float16"}, **TUNED_IN_FP16),
    ),
    "fp16-training": (
        healthy(recipe={"precision": "fp16", "learning_rate": 6e-5}, facts={"parameters": 10**11}),
        Level.WARNING,
        healthy(recipe={"precision": "bf16", "learning_rate": 6e-5}, facts={"parameters": 10**11}),
    ),
    "fp8-training": (
        healthy(recipe={"precision": "fp8", "learning_rate": 1e-5}, is_pretrained=True),
        Level.WARNING,
        healthy(recipe={"learning_rate": 1e-5}, is_pretrained=True),
    ),
    "fp8-training, from scratch": (
        healthy(recipe={"precision": "fp8"}),
        Level.NOTE,
        healthy(),
    ),
    "fp8-training, outliers": (
        healthy(recipe={"precision": "fp8"}, forward={"blocks": (replace(BLOCK, kurtosis=90.0),)}),
        Level.WARNING,
        healthy(forward={"blocks": (replace(BLOCK, kurtosis=90.0),)}),
    ),
    "non-finite-gradient": (
        healthy(response=UNMEASURED | {"reason": "the gradient is not finite"}),
        Level.ERROR,
        healthy(response=UNMEASURED | {"reason": "the gradient is zero"}),
    ),
    "fp16-gradient-range": (
        healthy(response={"grad_max": 1e5}, recipe={"precision": "fp16"}),
        Level.ERROR,
        healthy(response={"grad_max": 1e5}, recipe={"precision": "bf16"}),
    ),
    "gradient-scale": (
        healthy(response={"grad_norm": 5000.0}, recipe={"max_grad_norm": None}),
        Level.ERROR,
        healthy(response={"grad_norm": 30.0}, recipe={"max_grad_norm": None}),
    ),
    "gradient-scale, clipped": (
        healthy(response={"grad_norm": 132.0}),
        Level.NOTE,
        healthy(response={"grad_norm": 90.0}),
    ),
    "no-clipping": (
        healthy(recipe={"max_grad_norm": None, "learning_rate": 3e-3}, likely_edge=1.0),
        Level.WARNING,
        healthy(recipe={"max_grad_norm": 1.0, "learning_rate": 3e-3}, likely_edge=1.0),
    ),
    "no-clipping, near the edge": (
        healthy(recipe={"max_grad_norm": None}, likely_edge=5e-4),
        Level.WARNING,
        healthy(recipe={"max_grad_norm": None}, likely_edge=5e-3),
    ),
    "no-clipping, large gradient": (
        healthy(recipe={"max_grad_norm": None}, response={"grad_norm": 400.0}),
        Level.WARNING,
        healthy(recipe={"max_grad_norm": None}),
    ),
    "optimizer-epsilon": (
        healthy(recipe={"adam_epsilon": 1e-2}),
        Level.WARNING,
        healthy(recipe={"adam_epsilon": 1e-2, "optimizer": "sgd"}),
    ),
    "optimizer-epsilon, zero": (
        healthy(recipe={"adam_epsilon": 0.0}),
        Level.ERROR,
        healthy(recipe={"adam_epsilon": 1e-15}),
    ),
    "optimizer-epsilon, huge and unmeasured": (
        CheckEvidence(recipe=RECIPE.model_copy(update={"adam_epsilon": 1e-2})),
        Level.ERROR,
        CheckEvidence(recipe=RECIPE.model_copy(update={"adam_epsilon": 1e-6})),
    ),
    "optimizer-epsilon, of 4.8B parameters at a rate of 0.3": (
        at_4_8_billion(learning_rate=0.3, adam_epsilon=1e-8),
        Level.WARNING,
        at_4_8_billion(learning_rate=0.3, adam_epsilon=1e-15),
    ),
    "clipping-bound": (
        healthy(recipe={"max_grad_norm": 1e-6}),
        Level.ERROR,
        healthy(recipe={"max_grad_norm": 0.01}),
    ),
    "clipping-bound, none": (
        healthy(recipe={"max_grad_norm": 1e4}),
        Level.WARNING,
        healthy(recipe={"max_grad_norm": None}),
    ),
    "adam-betas, slow": (
        healthy(recipe={"adam_beta1": 0.98}),
        Level.WARNING,
        healthy(recipe={"adam_beta1": 0.95}),
    ),
    "adam-betas": (
        healthy(recipe={"adam_beta1": 0.999}),
        Level.ERROR,
        healthy(recipe={"adam_beta1": 0.999, "optimizer": "sgd"}),
    ),
    "adam-betas, against each other": (
        healthy(recipe={"adam_beta2": 0.5}),
        Level.ERROR,
        healthy(recipe={"adam_beta2": 0.95}),
    ),
    "adam-betas, long": (
        healthy(recipe={"adam_beta2": 0.99999}),
        Level.WARNING,
        healthy(recipe={"adam_beta2": 0.999}),
    ),
    "adam-betas, quick": (
        healthy(recipe={"adam_beta1": 0.8, "optimizer": "cautious"}),
        Level.WARNING,
        healthy(recipe={"adam_beta1": 0.8, "optimizer": "mars"}),
    ),
    "batch-memory": (
        healthy(recipe={"batch_size": 2048, "learning_rate": 3.6e-3}),
        Level.WARNING,
        healthy(recipe={"batch_size": 2048, "learning_rate": 3.6e-3, "adam_beta2": 0.95}),
    ),
    "batch-memory, usual rate": (
        healthy(recipe={"batch_size": 2048}),
        Level.NOTE,
        healthy(recipe={"batch_size": 256}),
    ),
    "weight-decay, 5": (
        healthy(recipe={"weight_decay": 5.0}),
        Level.WARNING,
        healthy(recipe={"weight_decay": 5.0, "optimizer": "lion", "learning_rate": 1e-4}),
    ),
    "weight-decay": (
        healthy(recipe={"weight_decay": 10.0, "optimizer": "sgd", "learning_rate": 0.1}),
        Level.ERROR,
        healthy(recipe={"weight_decay": 1e-4, "optimizer": "sgd", "learning_rate": 0.1}),
    ),
    "learning-rate": (
        healthy(recipe={"learning_rate": 6e-2}),
        Level.ERROR,
        healthy(recipe={"learning_rate": 6e-4}),
    ),
    "learning-rate, under the edge": (
        healthy(recipe={"learning_rate": 5e-3}),
        Level.WARNING,
        healthy(recipe={"learning_rate": 9e-4}),
    ),
    "published-rate": (
        healthy(recipe={"learning_rate": 1e-2}),
        Level.WARNING,
        healthy(recipe={"learning_rate": 1e-3}),
    ),
    "warmup": (
        healthy(recipe={"warmup_steps": 0}),
        Level.WARNING,
        healthy(recipe={"warmup_steps": 0, "optimizer": "sgd"}),
    ),
    "warmup, too short": (
        healthy(recipe={"warmup_steps": 100}),
        Level.WARNING,
        healthy(recipe={"warmup_steps": 100, "max_steps": 3000}),
    ),
    "warmup, in tokens": (
        healthy(recipe={"warmup_steps": 100, "batch_size": 256}),
        Level.WARNING,
        healthy(recipe={"warmup_steps": 100, "batch_size": 1600, "adam_beta2": 0.95}),  # GPT-3 175B
    ),
    "warmup, near the edge": (
        healthy(recipe={"warmup_steps": 500, "max_steps": 20_480, "learning_rate": 8e-3}),
        Level.WARNING,
        healthy(recipe={"warmup_steps": 500, "max_steps": 20_480, "learning_rate": 6e-4}),
    ),
    "warmup, by optimizer": (
        healthy(recipe={"warmup_steps": 0}),
        Level.WARNING,
        healthy(recipe={"warmup_steps": 0, "optimizer": "muon"}),
    ),
    "warmup-length": (
        healthy(recipe={"warmup_steps": 2000, "max_steps": 1000}),
        Level.WARNING,
        healthy(recipe={"warmup_steps": 200, "max_steps": 1000}),
    ),
    "no-movement": (
        healthy(recipe={"learning_rate": 1e-12}),
        Level.ERROR,
        healthy(recipe={"learning_rate": 5e-7, "max_steps": 500}, is_pretrained=True),
    ),
    "optimizer-rate": (
        healthy(recipe={"learning_rate": 6e-4, "optimizer": "lion"}),
        Level.WARNING,
        healthy(recipe={"learning_rate": 1e-4, "optimizer": "lion"}),
    ),
    "optimizer-rate, muon": (
        healthy(recipe={"learning_rate": 0.1, "optimizer": "muon"}),
        Level.WARNING,
        healthy(recipe={"learning_rate": 0.02, "optimizer": "muon"}),
    ),
    "fine-tuning-rate": (
        healthy(
            facts={"parameters": 7_000_000_000}, recipe={"learning_rate": 1e-2}, is_pretrained=True
        ),
        Level.ERROR,
        healthy(
            facts={"parameters": 7_000_000_000}, recipe={"learning_rate": 2e-5}, is_pretrained=True
        ),
    ),
    "fine-tuning-rate, 7B at 1e-4": (
        healthy(**tuned({"parameters": 7_000_000_000}, learning_rate=1e-4)),
        Level.WARNING,
        healthy(**tuned({"parameters": 2_000_000_000}, learning_rate=1e-4)),
    ),
    "fine-tuning-rate, encoders": (
        healthy(**tuned({}, learning_rate=1e-4), config={"model_type": "roberta"}),
        Level.WARNING,
        healthy(**tuned({}, learning_rate=5e-5), config={"model_type": "roberta"}),
    ),
    "fine-tuning-rate, large encoders": (
        healthy(
            **tuned({}, learning_rate=5e-5), config={"model_type": "bert", "hidden_size": 1024}
        ),
        Level.WARNING,
        healthy(
            **tuned({}, learning_rate=3e-5), config={"model_type": "bert", "hidden_size": 1024}
        ),
    ),
    "fine-tuning-rate, adapters": (
        healthy(recipe={"learning_rate": 5e-3, "peft": "lora"}, **UNANSWERED),
        Level.WARNING,
        healthy(recipe={"learning_rate": 5e-3, "peft": "lora"}),  # its own model says its rates
    ),
    "fine-tuning-rate, preferences": (
        healthy(recipe={"learning_rate": 1e-4, "objective": "dpo"}, is_pretrained=True),
        Level.WARNING,
        healthy(recipe={"learning_rate": 5e-7, "objective": "dpo"}, is_pretrained=True),
    ),
    "fine-tuning-batch": (
        healthy(recipe={"learning_rate": 5e-5, "batch_size": 1}, is_pretrained=True),
        Level.WARNING,
        healthy(recipe={"learning_rate": 5e-5, "batch_size": 16}, is_pretrained=True),
    ),
    "adapter-scale": (
        healthy(recipe={"peft": "lora", "lora_rank": 8, "lora_alpha": 256.0}),
        Level.WARNING,
        healthy(recipe={"peft": "lora", "lora_rank": 16, "lora_alpha": 32.0}),
    ),
    "adapter-scale, a little": (
        healthy(recipe={"peft": "lora", "lora_rank": 16, "lora_alpha": 1.0}),
        Level.NOTE,
        healthy(recipe={"peft": "rslora", "lora_rank": 16, "lora_alpha": 256.0}),
    ),
    "adapter-rank": (
        healthy(recipe={"peft": "lora", "lora_rank": 1, "learning_rate": 5e-4}),
        Level.NOTE,
        healthy(recipe={"peft": "lora", "lora_rank": 1, "learning_rate": 1e-4}),
    ),
    "adapter-rank, a larger one": (
        healthy(recipe={"peft": "dora", "lora_rank": 1, "learning_rate": 5e-4}),
        Level.NOTE,
        healthy(recipe={"peft": "dora", "lora_rank": 16, "learning_rate": 5e-4}),
    ),
    "fine-tuning-epochs": (
        healthy(recipe=REPEATED, is_pretrained=True),
        Level.WARNING,
        healthy(recipe=REPEATED | {"rows": 16_000}, is_pretrained=True),
    ),
    "fine-tuning-epochs, some": (
        healthy(recipe=REPEATED | {"rows": 1_000}, is_pretrained=True),
        Level.NOTE,
        healthy(recipe=REPEATED),  # from random weights every example is new for long
    ),
    "lost-updates, adapters": (
        healthy(recipe={"precision": "bf16-pure", "learning_rate": 1e-5}, is_pretrained=True),
        Level.WARNING,
        healthy(recipe={"precision": "bf16-pure", "learning_rate": 1e-5, "peft": "lora"}),
    ),
    "loss-normalization": (
        healthy(
            config={"transformers_version": "4.40.1"}, recipe={"gradient_accumulation_steps": 8}
        ),
        Level.NOTE,
        healthy(
            config={"transformers_version": "4.46.0"}, recipe={"gradient_accumulation_steps": 8}
        ),
    ),
    "warmup, fine-tuning": (
        healthy(recipe={"warmup_steps": 0, "learning_rate": 1e-3}, is_pretrained=True),
        Level.WARNING,
        healthy(recipe={"warmup_steps": 0, "learning_rate": 2e-5}, is_pretrained=True),
    ),
    "warmup, at a low rate": (
        healthy(recipe={"warmup_steps": 0, "learning_rate": 3e-4}),
        Level.WARNING,
        healthy(recipe={"warmup_steps": 0, "learning_rate": 1e-4}),
    ),
    "warmup, at a low rate for a small model": (
        healthy(facts={"parameters": 7_000_000_000}, recipe=UNWARMED),
        Level.WARNING,
        healthy(recipe=UNWARMED),
    ),
    "batch-scaling": (
        healthy(recipe={"batch_size": 1, "sequence_length": 256, "learning_rate": 6e-4}),
        Level.WARNING,
        healthy(recipe={"batch_size": 64, "sequence_length": 256, "learning_rate": 6e-4}),
    ),
    "init-std": (
        healthy(facts={"width": 11600}, recipe={"precision": "fp16"}),
        Level.WARNING,
        healthy(facts={"width": 11600, "input_std": 0.006}, recipe={"precision": "fp16"}),
    ),
    "init-std, in bf16": (
        healthy(facts={"width": 16384}),  # Llama 3.1 405B as configured
        Level.NOTE,
        healthy(facts={"width": 8192}),
    ),
    "init-std, declared": (
        CheckEvidence(recipe=RECIPE, config={"hidden_size": 32_768, "initializer_range": 0.02}),
        Level.WARNING,
        CheckEvidence(recipe=RECIPE, config={"hidden_size": 8192, "initializer_range": 0.02}),
    ),
    "init-std, streamed": (
        healthy(**unread(0.02)),  # BLOOM's 104B, whose weights are never all in memory
        Level.WARNING,
        healthy(**unread(0.006)),
    ),
    "init-std, small": (
        healthy(facts={"width": 4096, "input_std": 0.006}),  # DeepSeek-LLM 7B
        Level.NOTE,
        healthy(facts={"width": 64, "input_std": 0.006}),  # narrow models keep the usual 0.02
    ),
    "init-std, too small": (
        healthy(facts={"width": 4096, "input_std": 0.002}),
        Level.WARNING,
        healthy(facts={"width": 4096, "input_std": 0.01}),
    ),
    "residual-scaling": (
        healthy(forward=growing(1.5)),
        Level.WARNING,
        healthy(forward=growing(1.1)),
    ),
    "residual-scaling, unscaled": (
        healthy(facts={"depth": 64, "output_std": 0.02}),
        Level.NOTE,
        healthy(facts={"depth": 64, "output_std": 0.02 / math.sqrt(128)}),
    ),
    "zero-init-branch": (
        healthy(forward={"blocks": (BLOCK, replace(BLOCK, update_ratio=0.0))}),
        Level.NOTE,
        healthy(forward={"blocks": (BLOCK, replace(BLOCK, update_ratio=None))}),
    ),
    "feed-forward-ratio": (
        healthy(config={"hidden_size": 16384, "intermediate_size": 20480}),
        Level.WARNING,
        healthy(config={"hidden_size": 16384, "intermediate_size": 65536}),
    ),
    "feed-forward-ratio, experts": (
        healthy(config={"hidden_size": 2048, "intermediate_size": 768}),
        Level.WARNING,
        healthy(config={"hidden_size": 2048, "intermediate_size": 768, "num_experts": 64}),
    ),
    "missing-normalization": (
        healthy(facts={"block_norms": 0}, recipe={"learning_rate": 5e-3}),
        Level.ERROR,
        healthy(facts={"block_norms": 12}, recipe={"learning_rate": 5e-3}),
    ),
    "width-depth-ratio": (
        healthy(facts={"width": 16384, "depth": 32}),
        Level.NOTE,
        healthy(facts={"width": 16384, "depth": 4}),  # cut down to be looked at
    ),
    "dropout": (
        healthy(config={"resid_pdrop": 0.9, "attn_pdrop": 0.1}),
        Level.ERROR,
        healthy(config={"resid_pdrop": 0.1, "attn_pdrop": 0.1}),
    ),
    "post-norm-depth": (
        healthy(config={"model_type": "marian", "encoder_layers": 12, "decoder_layers": 12}),
        Level.WARNING,
        healthy(config={"model_type": "marian", "encoder_layers": 6, "decoder_layers": 6}),
    ),
    "post-norm-depth, encoder": (
        healthy(config={"model_type": "bert"}, facts={"depth": 48}),
        Level.WARNING,
        healthy(config={"model_type": "bert"}, facts={"depth": 24}),
    ),
    "router-collapse": (
        healthy(forward=routing(entropy=0.02)),
        Level.ERROR,
        healthy(forward=routing(entropy=0.7)),
    ),
    "router-logit-scale": (
        healthy(forward=routing(logit_std=6.0)),
        Level.WARNING,
        healthy(forward=routing(logit_std=1.0)),
    ),
    "dead-experts": (
        healthy(forward=routing(dead_experts=7), config={"num_local_experts": 8}),
        Level.WARNING,
        healthy(forward=routing(dead_experts=7), config={"num_local_experts": 64}),
    ),
    "balance-loss-off": (
        healthy(config=MIXTRAL | {"output_router_logits": False}, **TRAINED_SLOWLY),
        Level.WARNING,
        healthy(config=MIXTRAL | {"output_router_logits": True}, **TRAINED_SLOWLY),
    ),
    "balance-loss-off, the default of a released mixture": (
        healthy(config=MIXTRAL | {"output_router_logits": False}),
        Level.NOTE,
        healthy(config=MIXTRAL | {"output_router_logits": True}),
    ),
    "balance-loss-off, a bias instead": (
        healthy(config=MIXTRAL | {"router_aux_loss_coef": 0.0}),
        Level.WARNING,
        healthy(config=MIXTRAL | {"router_aux_loss_coef": 0.0, "use_expert_bias": True}),
    ),
    "balance-loss-off, a bias in the modules": (
        healthy(config=MIXTRAL | {"router_aux_loss_coef": 0.0}),
        Level.WARNING,
        healthy(config=MIXTRAL | {"router_aux_loss_coef": 0.0}, facts={"balancing_biases": 2}),
    ),
    "balance-loss-off, coefficient": (
        healthy(config=MIXTRAL | {"router_aux_loss_coef": 0.0, "output_router_logits": True}),
        Level.WARNING,
        healthy(config={"model_type": "deepseek_v3", "n_routed_experts": 256, "aux_loss_alpha": 0}),
    ),
    "router-stability": (
        healthy(config={"num_experts": 8, "num_experts_per_tok": 1, "router_z_loss_coef": 0.0}),
        Level.WARNING,
        healthy(config={"num_experts": 8, "num_experts_per_tok": 1, "router_z_loss_coef": 1e-3}),
    ),
    "router-stability, precision": (
        healthy(config=MIXTRAL, recipe={"precision": "bf16-pure"}),
        Level.WARNING,
        healthy(config=MIXTRAL),
    ),
    "not-covered": (
        healthy(recipe={"optimizer": "lamb"}),
        Level.NOTE,
        healthy(),
    ),
}
NUMBERLESS = {
    "non-finite-activation",
    "fp16-family",
    "fp8-training",
    "non-finite-gradient",
    "missing-normalization",
}


@pytest.mark.parametrize("case", CASES)
def test_failing_setting_trips_it_and_the_stable_twin_does_not(case: str):
    failing, level, stable = CASES[case]
    name = case.split(",")[0]
    finding = found(failing)[name]
    assert finding.level is level
    assert (finding.value is None) == (name in NUMBERLESS) or case == "fp8-training, outliers"
    assert finding.fix.endswith(".")
    assert finding.message.endswith(".")
    assert name not in found(stable)


def test_every_check_has_a_case_at_its_worst_level():
    worst = {check.name: check.level for check in CHECKS}
    reached: dict[str, list[Level]] = {}
    for case, (_, level, _) in CASES.items():
        reached.setdefault(case.split(",")[0], []).append(level)
    assert set(reached) == set(worst)
    order = list(Level)
    milder = {n for n in worst if min(map(order.index, reached[n])) > order.index(worst[n])}
    assert milder == {"router-logit-scale"}  # the error is the next test's
    assert found(healthy(forward=routing(logit_std=20.0)))["router-logit-scale"].level == "error"


def test_a_healthy_run_has_no_findings():
    assert run_checks(healthy()) == ()


def test_what_is_not_known_is_not_judged():
    assert run_checks(CheckEvidence(recipe=RECIPE)) == ()
    nothing = dict.fromkeys(("loss", "logit_std", "activation_absmax"))
    bare = healthy(
        facts=dict.fromkeys(("input_std", "output_std", "embedding_std")),
        forward=nothing | {"attention": (), "routers": ()},
        response=UNMEASURED | {"reason": "the gradient is zero"},
        start_here=None,
        do_not_exceed=None,
        likely_edge=None,
    )
    assert run_checks(bare) == ()


def test_trained_weights_are_not_judged_as_initializations():
    evidence = healthy(
        facts={"input_std": 0.3, "embedding_std": 2.0},
        forward={"loss": 40.0, "logit_std": 30.0} | attending(logit_std=9.0, entropy=0.05),
        is_pretrained=True,
    )
    assert found(evidence) == {}
    assert len(found(replace(evidence, is_pretrained=False))) >= 5
