"""KSS against its alternatives: No-Norm, high learning rates, associative recall, paired trials.

Setting of arXiv 2602.22988 §5.3 as far as it is published (No-Norm, learning rate 0.005 to 0.01,
24 trials, associative recall of sequence 64, vocabulary 256, 4 pairs, batch 32, 100 warm-up steps,
AdamW, no clipping), at width 64 and depth 4 for 300 steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from rksp.confirm.experiments.plan import Trial
from rksp.confirm.experiments.rows import Cost, Row, divergence_table, shipped_rows
from rksp.recipe import Recipe

RATES = (0.005, 0.0075, 0.01)  # of the 24 trials
SEEDS = range(8)
ENERGY, PUBLISHED = "kss:form=energy,weight=3", "kss:form=published"
RANDOM = "kss:form=random,weight=3"  # the same cost, and a pull of the same size
MAIN_ARMS = ("baseline", ENERGY, PUBLISHED, "clip=1.0", RANDOM)
SPARSER = (2, 4)  # steps between two penalties; the default acts at every one
FURTHER = (("baseline", 0.003), (ENERGY, 0.015))  # to find the largest stable rate
STABLE_SHARE = 0.2  # the paper calls a rate stable under this share of diverged trials
PAPER = {"baseline": 66.7, "clip=1.0": 58.3, PUBLISHED: 12.5}  # diverged percent of 24 trials


def plan() -> list[Trial]:
    """All trials, the most telling first."""
    grid = [(arm, rate) for arm in MAIN_ARMS for rate in RATES]
    trials = [make_trial(arm, rate, seed) for arm, rate in (*grid, *FURTHER) for seed in SEEDS]
    sparser = [(f"{ENERGY},every={every}", rate) for every in SPARSER for rate in RATES]
    return trials + [make_trial(arm, rate, seed) for seed in SEEDS[:4] for arm, rate in sparser]


def table(rows: Sequence[Row]) -> str:
    """The 24 paired trials beside the paper's, divergence at every rate, and the cadence."""
    paired = [row for row in rows if row.rate in RATES]
    lines = [
        "",
        "| arm | " + " | ".join(f"{rate:g}" for rate in _rates(rows)) + " | stable up to |",
    ]
    lines.append("|---|" + "---:|" * (len(_rates(rows)) + 1))
    for arm in dict.fromkeys(row.arm for row in rows):
        shares = {rate: _share(rows, arm, rate) for rate in _rates(rows)}
        cells = ["–" if share is None else f"{share:.0%}" for share in shares.values()]
        lines.append(f"| `{arm}` | " + " | ".join(cells) + f" | {_largest_stable(shares)} |")
    return divergence_table(paired, PAPER) + "\n".join([*lines, *_trade_off(paired)]) + "\n"


def _trade_off(paired: Sequence[Row]) -> list[str]:
    """Lines of a table: what a cadence of the penalty keeps of its effect, and what it costs."""
    lines = [
        "",
        "| steps between two penalties | diverged | share of time | paper |",
        "|---:|---:|---:|---:|",
    ]
    costs = {cost.arm: cost for cost in shipped_rows("cost", Cost) if cost.experiment == "kss"}
    for every in (1, *SPARSER):
        arm = ENERGY if every == 1 else f"{ENERGY},every={every}"
        own = [row for row in paired if row.arm == arm]
        if own:
            bad = sum(row.has_diverged for row in own)
            share = costs[ENERGY].share / every
            paper = "8 to 12 %" if every == 1 else "–"
            lines.append(f"| {every} | {bad}/{len(own)} | {share:.1%} | {paper} |")
    return lines


def _rates(rows: Sequence[Row]) -> list[float]:
    return sorted({row.rate for row in rows})


def _share(rows: Sequence[Row], arm: str, rate: float) -> float | None:
    own = [row for row in rows if row.arm == arm and row.rate == rate]
    return sum(row.has_diverged for row in own) / len(own) if own else None


def _largest_stable(shares: dict[float, float | None]) -> str:
    """The largest rate below the first unstable one among those tried."""
    stable = None
    for rate, share in shares.items():
        if share is None:
            continue
        if share >= STABLE_SHARE:
            return f"under {rate:g}" if stable is None else f"{stable:g}"
        stable = rate
    return f"{stable:g} or more"


def make_trial(arm: str, rate: float, seed: int, *, batch_size: int = 32) -> Trial:
    """One run of the setting above."""
    return Trial(
        family="zoo_no_norm",
        shape={
            "hidden_size": 64,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "vocab_size": 256,
            "max_position_embeddings": 64,
        },
        task="recall",
        recipe=Recipe(
            learning_rate=rate,
            warmup_steps=100,
            max_steps=300,
            schedule="constant",
            max_grad_norm=None,
            batch_size=batch_size,
            sequence_length=64,
        ),
        seed=seed,
        arm=arm,
    )
