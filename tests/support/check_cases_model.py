"""Cases of the checks of a model's initialization, shape and routers."""

from __future__ import annotations

import math
from dataclasses import replace

from support.check_evidence import (
    BLOCK,
    RECIPE,
    TRAINED_SLOWLY,
    TUNED,
    healthy,
    routing,
)

from rksp.checks.evidence import CheckEvidence
from rksp.documents.finding import Level
from rksp.documents.shown import Placement


def growing(factor: float, blocks: int = 8) -> dict[str, object]:
    """A residual stream that grows by a factor a block."""
    return {"blocks": tuple(replace(BLOCK, rms_out=factor**i) for i in range(1, blocks + 1))}


MIXTRAL = {"model_type": "mixtral", "num_local_experts": 8, "router_aux_loss_coef": 0.02}


def unread(std: float) -> dict[str, dict[str, object]]:
    """A model whose weights were not read, with what its configuration declares."""
    return {
        "facts": {"input_std": None, "output_std": None, "width": 11_600},
        "config": {"hidden_size": 11_600, "initializer_range": std},
        "recipe": {"precision": "fp16"},
    }


GEMMA3 = {"model_type": "gemma3_text", "head_dim": 256, "query_pre_attn_scalar": 256}
GRANITE = {"model_type": "granite", "hidden_size": 2048, "head_dim": 64, "initializer_range": 0.05}
T5 = {"model_type": "t5", "d_model": 768}
READ = Placement(norm="pre", branch_norm=0, parallel=0, qk_norm=0, read=12, blocks=12)
# name → (what trips it, its level, the stable twin)
CASES = {
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
    "module-and-configuration": (
        healthy(config={"model_type": "olmo2"}, placement=READ),  # a fork without its norms
        Level.WARNING,
        healthy(config={"model_type": "olmo2"}, placement=replace(READ, branch_norm=1, qk_norm=1)),
    ),
    "module-and-configuration, after the sum": (
        healthy(config={"model_type": "gpt2"}, placement=replace(READ, norm="post")),
        Level.WARNING,
        healthy(config={"model_type": "bert"}, placement=replace(READ, norm="post")),
    ),
    "module-and-configuration, of no known type": (
        healthy(config={"model_type": "gpt2"}, placement=replace(READ, parallel=1)),
        Level.WARNING,
        healthy(config={"model_type": "a type of ours"}, placement=replace(READ, parallel=1)),
    ),
    "missing-normalization, read off the pass": (
        healthy(placement=replace(READ, norm="none")),  # norms that nothing calls
        Level.WARNING,
        healthy(facts={"block_norms": 0}, placement=READ),  # a norm in a function call
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
    "router-stability, no coefficient": (
        healthy(config={"num_experts": 8, "num_experts_per_tok": 1}),
        Level.WARNING,
        healthy(config={"num_experts": 8, "num_experts_per_tok": 2}),
    ),
    "router-stability, trained weights": (
        healthy(config={"num_experts": 8, "num_experts_per_tok": 1}),
        Level.WARNING,
        healthy(config={"num_experts": 8, "num_experts_per_tok": 1}, start=TUNED),
    ),
    "attention-logit-scale, gemma 4": (
        healthy(config={"model_type": "gemma4_text", "head_dim": 256}, forward=False),
        Level.ERROR,
        healthy(config=GEMMA3, forward=False),
    ),
    "attention-logit-scale, gemma 3 with another scalar": (
        healthy(config=GEMMA3 | {"query_pre_attn_scalar": 1.0}, forward=False),
        Level.ERROR,
        healthy(config=GEMMA3 | {"query_pre_attn_scalar": 1.0}, forward=False, start=TUNED),
    ),
    "attention-logit-scale, granite": (
        healthy(config=GRANITE | {"attention_multiplier": 1.0}, forward=False),
        Level.ERROR,
        healthy(config=GRANITE | {"attention_multiplier": 1 / 128}, forward=False),
    ),
    "output-logit-scale, an untied head of T5": (
        healthy(config=T5 | {"tie_word_embeddings": False}, forward=False),
        Level.ERROR,
        healthy(config=T5 | {"tie_word_embeddings": True}, forward=False),
    ),
    "output-logit-scale, its factor": (
        healthy(config=T5 | {"tie_word_embeddings": False}, forward=False),
        Level.ERROR,
        healthy(
            config=T5 | {"tie_word_embeddings": False, "initializer_factor": 0.05}, forward=False
        ),
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
