"""MSign where training stalls: a deep, narrow Pre-LN transformer at a rate that is too high.

Depth 12 and width 48 on bytes at rate 0.03: the loss stays finite, and ends far above that of a
tenth of the rate. A trial failed if it ended more than 0.25 nats above its twin at that rate.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from scipy.stats import fisher_exact

from rksp.confirm.arms import BASELINE
from rksp.confirm.experiments.plan import Trial
from rksp.confirm.experiments.rows import Row
from rksp.outcome import OutcomePolicy
from rksp.recipe import Recipe

SEEDS = range(6)
REFERENCE = "rate=0.1"
ARMS = (
    BASELINE,
    REFERENCE,
    "msign:every=20,scope=attention",
    "msign:every=20,scope=mlp",
    "msign:every=20,scope=all",
    "msign:every=100,scope=attention",
    "msign:every=100,scope=mlp",
    "msign:every=100,scope=all",
)
PAPER = {  # Table 5: whether NanoGPT and Sigma-40M trained, at P = 100
    BASELINE: "failed",
    "msign:every=100,scope=attention": "trained",
    "msign:every=100,scope=mlp": "failed",
    "msign:every=100,scope=all": "trained",
}
_MARGIN = OutcomePolicy().margin


def plan() -> list[Trial]:
    """All trials, every arm at one seed before the next seed."""
    return [_trial(arm, seed) for seed in SEEDS for arm in ARMS]


def table(rows: Sequence[Row]) -> str:
    """Failures of every arm and Fisher's test against the baseline, as Markdown."""
    reference = {row.seed: row.final_loss for row in rows if row.arm == REFERENCE}
    arms = list(dict.fromkeys(row.arm for row in rows))
    above = {
        arm: [_above(row, reference) for row in rows if row.arm == arm and row.seed in reference]
        for arm in arms
    }
    lines = [
        "| arm | failed | Fisher p | nats above a tenth of the rate | paper |",
        "|---|---:|---:|---:|---:|",
    ]
    base = _counts(above[BASELINE])
    for arm, distances in above.items():
        bad, good = _counts(distances)
        p = "–" if arm == BASELINE else f"{fisher_exact([(bad, good), base]).pvalue:.2g}"
        median = statistics.median(distances)
        lines.append(
            f"| `{arm}` | {bad}/{bad + good} | {p} | {median:+.2f} | {PAPER.get(arm, '–')} |"
        )
    return "\n".join(lines) + "\n"


def _above(row: Row, reference: dict[int, float | None]) -> float:
    """Nats above the twin; infinite for a trial that did not end."""
    twin = reference[row.seed]
    return float("inf") if row.final_loss is None or twin is None else row.final_loss - twin


def _counts(distances: Sequence[float]) -> tuple[int, int]:
    bad = sum(distance > _MARGIN for distance in distances)
    return bad, len(distances) - bad


def _trial(arm: str, seed: int) -> Trial:
    return Trial(
        family="zoo_pre_ln",
        shape={
            "hidden_size": 48,
            "num_hidden_layers": 12,
            "num_attention_heads": 4,
            "vocab_size": 256,
            "max_position_embeddings": 32,
        },
        task="bytes",
        task_options={"length": 32},
        recipe=Recipe(
            learning_rate=0.03,
            warmup_steps=50,
            max_steps=300,
            schedule="constant",
            max_grad_norm=None,
            batch_size=16,
            sequence_length=32,
        ),
        seed=seed,
        arm=arm,
    )
