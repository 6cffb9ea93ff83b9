"""Cases of the checks of a forward pass: its loss, its attention, its positions."""

from __future__ import annotations

from support.check_evidence import (
    TRAINED_SLOWLY,
    TUNED,
    attending,
    healthy,
)

from rksp.documents.finding import Level

UNBOUNDED = {"parameters": 32_000_000_000, "depth": 64, "width": 5120}
ROTARY = {"max_position_embeddings": 131_072}


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
        healthy(forward=attending(max_logit=140.0), start=TUNED),
        Level.WARNING,
        healthy(forward=attending(max_logit=60.0), start=TUNED),
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
}
