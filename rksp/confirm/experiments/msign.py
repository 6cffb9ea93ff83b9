"""MSign on a recipe whose baseline fails: attention, feed-forward layers, or both.

The question of arXiv 2602.01734, Table 5, at small size: No-Norm, width 64, depth 4, associative
recall of sequence 16, learning rate 0.005 without clipping. Runs fail within 300 steps, so the
sign is taken every 20 steps as well as every 100.
"""

from __future__ import annotations

from collections.abc import Sequence

from rksp.confirm.experiments.plan import Trial
from rksp.confirm.experiments.rows import Row, divergence_table
from rksp.recipe import Recipe

SEEDS = range(12)
ARMS = (
    "baseline",
    "msign:every=20,scope=attention",
    "msign:every=20,scope=mlp",
    "msign:every=20,scope=all",
    "msign:every=100,scope=attention",
    "msign:every=100,scope=all",
)
PAPER = {  # test outcome of AdamW, MLP-only, attention-only, all 2-D at P = 100
    "baseline": "failed",
    "msign:every=100,scope=attention": "trained",
    "msign:every=100,scope=all": "trained",
}


def plan() -> list[Trial]:
    """All trials, every arm at one seed before the next seed."""
    return [_trial(arm, seed) for seed in SEEDS for arm in ARMS]


def table(rows: Sequence[Row]) -> str:
    """Divergence of every arm beside the paper's finding, as Markdown."""
    return divergence_table(rows, PAPER)


def _trial(arm: str, seed: int) -> Trial:
    return Trial(
        family="zoo_no_norm",
        shape={
            "hidden_size": 64,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "vocab_size": 256,
            "max_position_embeddings": 16,
        },
        task="recall",
        task_options={"length": 16},
        recipe=Recipe(
            learning_rate=0.005,
            warmup_steps=100,
            max_steps=300,
            schedule="constant",
            max_grad_norm=None,
            batch_size=32,
            sequence_length=16,
        ),
        seed=seed,
        arm=arm,
    )
