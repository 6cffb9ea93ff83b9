"""Which monitor sees which fault, how early, and how often without any.

A mixture-of-experts transformer of width 32 and depth 3 on bytes, 300 steps; faults strike at step
160, so that every monitor has a baseline. Monitors whose default cadence is sparser read every 5
steps (the alignment of Jacobians, which costs most, every 15): at 100 they would have a sample or
two before the fault. Seeds, initialization and batches of a faulty run are those of its healthy
twin.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rksp.confirm.experiments.plan import Trial
from rksp.confirm.experiments.rows import Row
from rksp.confirm.onset import GRADIENT_NORM
from rksp.monitors.registry import MONITORS
from rksp.recipe import Recipe

FAULT_STEP, STEPS = 160, 300
# Steps between two readings, else 5. Not the defaults: a trial must not change with them.
EVERY = {
    "loss": 1,
    "gradient-norm": 1,
    "non-finite": 1,
    "update-rms": 4,
    "jacobian-alignment": 15,
}
SEEDS, HEALTHY_SEEDS = range(5), range(10)
WARMUP = 40
_RATE = f"large_rate:step={FAULT_STEP},factor=100"
_PRECISION = f"low_precision_attention:step={FAULT_STEP}"
FAULTS: dict[str, tuple[str, ...]] = {
    "none": (),
    "precision": (_PRECISION,),
    "rate": (_RATE,),
    "aux off": (f"aux_off:step={FAULT_STEP}",),
    "bit flip": (f"bitflip:step={FAULT_STEP},where=weights,bit=30",),
    "rate + precision": (_RATE, _PRECISION),
}


def plan() -> list[Trial]:
    """All trials, every fault at one seed before the next seed."""
    faulty = [(name, seed) for seed in SEEDS for name in FAULTS]
    healthy = [("none", seed) for seed in HEALTHY_SEEDS if seed not in SEEDS]
    return [_trial(FAULTS[name], seed) for name, seed in faulty + healthy]


def table(rows: Sequence[Row]) -> str:
    """Monitor × fault, as Markdown.

    A cell holds the runs in which the monitor alarmed after the fault, and the median steps from
    fault to alarm, by which it led the loss, and by which it led the gradient norm's alarm.
    """
    names = {lines: name for name, lines in FAULTS.items()}
    faulty = [name for name in FAULTS if name != "none"]
    healthy = [row for row in rows if not row.faults]
    steps = sum(row.steps - WARMUP for row in healthy)
    lines = [
        "| monitor | " + " | ".join(faulty) + " | false alarms per 1,000 healthy steps |",
        "|---|" + "---:|" * (len(faulty) + 1),
    ]
    onsets = {fault: [row.onset for row in rows if names[row.faults] == fault] for fault in faulty}
    shown = [f"{sum(o is not None for o in onsets[f])}/{len(onsets[f])}" for f in faulty]
    lines.append("| *the loss fails in* | " + " | ".join(shown) + " | |")
    silent = set.intersection(*(set(row.silent) for row in rows)) if rows else set()
    total = 0
    for monitor in MONITORS:
        if monitor in silent:
            continue
        false = sum(row.alarms.get(monitor, 0) for row in healthy)
        total += false
        cells = [
            _cell(monitor, [row for row in rows if names[row.faults] == fault]) for fault in faulty
        ]
        lines.append(f"| {monitor} | " + " | ".join(cells) + f" | {_per_1000(false, steps)} |")
    lines.append(
        "| **all** | " + " | ".join("" for _ in faulty) + f" | {_per_1000(total, steps)} |"
    )
    return "\n".join(lines) + "\n"


def _cell(monitor: str, rows: Sequence[Row]) -> str:
    seen = [row for row in rows if monitor in row.first_alarms]
    if not seen:
        return f"0/{len(rows)}"
    at = {row.seed: row.first_alarms[monitor] for row in seen}
    delay = statistics.median(at[row.seed] - row.fault_step for row in seen)
    loss = [row.onset - at[row.seed] for row in seen if row.onset is not None]
    norm = [
        row.first_alarms[GRADIENT_NORM] - at[row.seed]
        for row in seen
        if GRADIENT_NORM in row.first_alarms
    ]
    return f"{len(seen)}/{len(rows)}, {delay:g} ({_median(loss)}, {_median(norm)})"


def _median(values: Sequence[int]) -> str:
    return f"{statistics.median(values):+g}" if values else "–"


def _per_1000(count: int, steps: int) -> str:
    return f"{1000 * count / steps:.2f}" if steps else "–"


def _trial(faults: tuple[str, ...], seed: int) -> Trial:
    return Trial(
        family="zoo_moe",
        shape={
            "hidden_size": 32,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "vocab_size": 256,
            "max_position_embeddings": 32,
            "num_experts": 4,
            "num_experts_per_tok": 2,
        },
        task="bytes",
        task_options={"length": 32},
        recipe=Recipe(
            learning_rate=1e-3,
            warmup_steps=WARMUP,
            max_steps=STEPS,
            schedule="constant",
            max_grad_norm=1.0,
            batch_size=8,
            sequence_length=32,
        ),
        seed=seed,
        faults=faults,
        monitors=tuple(f"{name}:every={EVERY.get(name, 5)}" for name in MONITORS),
        fault_step=FAULT_STEP if faults else 0,
    )
