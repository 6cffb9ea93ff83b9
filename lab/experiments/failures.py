"""Public failures replayed small, as data: each beside a healthy twin and what may save it.

A trial *failed* if its own curve says so, or if it ended above its twin of the same seed by the
margin of the ladders' policy. A twin is judged in the same way beside itself at a tenth of its
rate; one that fails is not healthy, and its alarms are not false. A trial's *onset* is that of
`rksp.confirm.trial.onset`, or else the step from which its smoothed loss stays above its twin's by
the margin.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lab.experiments.rows import TrialRow, to_rows
from lab.experiments.tables import REFERENCE, markdown
from lab.experiments.trials import DENSE, Trial, small_trial
from rksp.confirm.arms import BASELINE
from rksp.confirm.compare import LOSS
from rksp.own_runs.outcome import OutcomePolicy

STEPS, WARMUP, STRUCK = 160, 20, 60
# Slow signals have nothing to say in so few steps (see the cross-talk), and are dear.
_SLOW = ("near-unit-mass", "qk-entropy", "spectral-alignment", "stable-rank")
_WATCHED = tuple(line for line in DENSE if not line.startswith(_SLOW))
_BACKOFF = "backoff"  # the one response that needs alarms
_NONE = "–"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failure.

    Attributes:
        name, source: What it is called, and where it is described.
        setting: The trial that fails.
        twin: The same trial without the cause.
        responses: Arms of the failing trial.
    """

    name: str
    source: str
    setting: Trial
    twin: Trial
    responses: Sequence[str]

    def trials(self, seed: int) -> list[Trial]:
        """Return the failing trial, its twin, the twin at a lower rate, and the responses."""
        watched = {"monitors": _WATCHED, "seed": seed, "case": self.name}
        failing = self.setting.model_copy(update=watched)
        twin = self.twin.model_copy(update=watched | {"is_twin": True})
        slower = [] if twin.faults else [{"arm": REFERENCE, "monitors": ()}]
        unwatched = {arm: {} if arm == _BACKOFF else {"monitors": ()} for arm in self.responses}
        arms = [failing.model_copy(update={"arm": a} | more) for a, more in unwatched.items()]
        return [failing, twin, *(twin.model_copy(update=more) for more in slower), *arms]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """All failures at some seeds; an experiment as those of the catalog."""

    failures: Sequence[Failure]
    seeds: Sequence[int]
    row_type = TrialRow
    rows = staticmethod(to_rows)

    def plan(self) -> list[Trial]:
        """Return all trials, those of every failure at one seed before the next seed."""
        return [trial for seed in self.seeds for f in self.failures for trial in f.trials(seed)]

    def table(self, rows: Sequence[TrialRow]) -> str:
        """Return both tables, as Markdown: which monitor alarmed first, and what saved the run."""
        false, steps = _false_alarms([r for f in self.failures for r in _healthy(f, rows)])
        rate = f"{1000 * false / steps:.2f}" if steps else _NONE
        total = f"Alarms in all healthy twins: {false} in {steps:,} steps, {rate} per 1,000.\n"
        return f"{_spoke(self.failures, rows)}\n{total}\n{_saved(self.failures, rows)}"


def _failure(
    name: str,
    source: str,
    responses: Sequence[str],
    *,
    failing: Mapping[str, object],
    healthy: Mapping[str, object] | None = None,
    family: str = "zoo_pre_ln",
    rate: float = 1e-2,
    clip: float | None = 1.0,
) -> Failure:
    """Return a failure of a model of width 32 and depth 2 on bytes; both take trial fields."""
    usual = small_trial(
        *(family, "bytes"), width=32, depth=2, length=32, batch=8, rate=rate,
        warmup=WARMUP, clip=clip, task_options={"length": 32},
    )  # fmt: skip
    usual = _with(usual, {"recipe": {"max_steps": STEPS}})
    return Failure(
        name=name,
        source=source,
        setting=_with(usual, failing),
        twin=_with(usual, healthy or {}),
        responses=responses,
    )


def _with(trial: Trial, changes: Mapping[str, object]) -> Trial:
    fields = dict(changes)
    recipe = trial.recipe.model_copy(update=fields.pop("recipe", {}))
    shape = trial.shape | fields.pop("shape", {})
    fault_step = STRUCK if f"step={STRUCK}" in str(fields.get("faults", "")) else 0
    return trial.model_copy(
        update=fields | {"recipe": recipe, "shape": shape, "fault_step": fault_step}
    )


_DEEPER = {"num_hidden_layers": 4}
_ROUTED = {"num_experts": 4, "num_experts_per_tok": 1}
_BOUNDED = {"qk_norm": True}
_GATED = _BOUNDED | {"activation": "swiglu"}
_LONGER = {"max_steps": 2 * STEPS}
_SHIFT = (f"bad_batches:step={STRUCK},steps=20,kind=repeated",)

FAILURES = (
    _failure(
        "low-precision attention",
        "arXiv 2510.04212",
        (_BACKOFF, "qk_clip:tau=10", "qk_norm"),
        failing={
            "faults": (f"low_precision_attention:step={STRUCK},bits=7",),
            "recipe": _LONGER,
        },
        healthy={"recipe": _LONGER},
    ),
    _failure(
        "logit growth, no QK-norm",
        "arXiv 2309.14322",
        (_BACKOFF, "qk_clip:tau=10", "rate=0.1"),
        rate=0.1,
        failing={},
        healthy={"shape": _BOUNDED},
    ),
    _failure(
        "growth without norms",
        "arXiv 2602.22988",
        (_BACKOFF, "kss", "clip=1.0"),
        rate=2.5e-2,
        clip=None,
        failing={"family": "zoo_no_norm", "shape": _DEEPER},
        healthy={"shape": _DEEPER | _BOUNDED},
    ),
    _failure(
        "no balance loss",
        "arXiv 2101.03961",
        (),
        family="zoo_moe",
        failing={"faults": ("aux_off",), "shape": _ROUTED},
        healthy={"shape": _ROUTED},
    ),
    _failure(
        "Adam ε starvation",
        "arXiv 2309.14322",
        ("rate=10",),
        rate=3e-3,
        failing={"recipe": {"adam_epsilon": 0.1}},
    ),
    _failure(
        "β₂ spike after a shift",
        "arXiv 2304.13013",
        (_BACKOFF, "zclip", "clip=0.1"),
        clip=None,
        failing={"faults": _SHIFT, "recipe": {"adam_beta2": 0.999}},
        healthy={"faults": _SHIFT, "recipe": {"adam_beta2": 0.9}},
    ),
    _failure(
        "fp16 overflow",
        "arXiv 1710.03740",
        (_BACKOFF, "rate=0.3"),
        rate=0.2,
        failing={"recipe": {"precision": "fp16"}, "shape": _GATED},
        healthy={"shape": _GATED},
    ),
    _failure(
        "bad batches",
        "arXiv 2204.02311",
        (_BACKOFF, "zclip", "clip=0.1"),
        rate=3e-3,
        clip=None,
        failing={"faults": (f"bad_batches:step={STRUCK},steps=40,kind=repeated",)},
    ),
)


def has_failed(row: TrialRow, twins: Mapping[int, TrialRow]) -> bool:
    """Say whether a trial failed by itself, or ended above its twin by the margin."""
    if row.final_loss is None or row.outcome in ("diverged", "failed"):
        return True
    twin = twins[row.seed].final_loss if row.seed in twins else None
    return twin is not None and row.final_loss > twin + OutcomePolicy().margin


def _spoke(failures: Sequence[Failure], rows: Sequence[TrialRow]) -> str:
    """Show which monitor alarmed first in the failing trials, and which alarmed in the twins."""
    cells = []
    for failure in failures:
        failing, twins, _ = _of(failure, rows)
        if not failing:
            continue
        failed = [row for row in failing if has_failed(row, twins)]
        slower = _twins(failure, rows, REFERENCE)
        bad = [row for row in twins.values() if has_failed(row, slower)]
        first = _first(failing)
        false, steps = _false_alarms(_healthy(failure, rows))
        cells.append(
            (
                failure.name,
                failure.source,
                f"{len(failed)}/{len(failing)}",
                f"{len(bad)}/{len(twins)}",
                _above(failing, twins),
                _NONE if first is None else f"{first}: {_lead(first, failing)}",
                _lead(LOSS, failing),
                f"{1000 * false / steps:.2f}" if steps else _NONE,
            )
        )
    header = ("failure", "source", "fails", "twin fails", "nats above the twin", "first monitor",
              "loss monitor", "false alarms per 1,000 healthy steps")  # fmt: skip
    return markdown(header, cells, texts=2)


def _saved(failures: Sequence[Failure], rows: Sequence[TrialRow]) -> str:
    """Show how many of the failed trials each response saved."""
    cells = []
    for failure in failures:
        failing, twins, arms = _of(failure, rows)
        failed = {row.seed for row in failing if has_failed(row, twins)}
        for arm in failure.responses:
            own = [row for row in arms if row.arm == arm and row.seed in failed]
            if own:
                saved = sum(not has_failed(row, twins) for row in own)
                above = _above(own, twins)
                cells.append((failure.name, f"`{arm}`", f"{saved}/{len(own)}", above))
    return markdown(("failure", "response", "saved", "nats above the twin"), cells, texts=2)


def _of(
    failure: Failure, rows: Sequence[TrialRow]
) -> tuple[list[TrialRow], dict[int, TrialRow], list[TrialRow]]:
    """Return the failing trials, the twins by seed, and the trials with a response."""
    own = [row for row in rows if row.case == failure.name]
    twins = _twins(failure, rows, BASELINE)
    others = [row for row in own if not row.is_twin and row.seed in twins]
    failing = [row for row in others if row.arm == BASELINE]
    return failing, twins, [row for row in others if row.arm != BASELINE]


def _twins(failure: Failure, rows: Sequence[TrialRow], arm: str) -> dict[int, TrialRow]:
    """Return the twins of a failure under an arm, by seed."""
    return {r.seed: r for r in rows if r.case == failure.name and r.is_twin and r.arm == arm}


def _healthy(failure: Failure, rows: Sequence[TrialRow]) -> list[TrialRow]:
    """Return the twins that do not fail; none if the twin's own data shift."""
    slower = _twins(failure, rows, REFERENCE)
    twins = _twins(failure, rows, BASELINE).values()
    return [] if failure.twin.faults else [row for row in twins if not has_failed(row, slower)]


def _false_alarms(healthy: Sequence[TrialRow]) -> tuple[int, int]:
    """Return the alarms and the steps after the warm-up."""
    alarms = sum(sum(row.alarms.values()) for row in healthy)
    return alarms, sum(row.steps - WARMUP for row in healthy)


def _above(rows: Sequence[TrialRow], twins: Mapping[int, TrialRow]) -> str:
    """Return the median distance to the twins; infinite for trials that did not end."""
    distances = [
        math.inf if row.final_loss is None else row.final_loss - twins[row.seed].final_loss
        for row in rows
    ]
    return f"{statistics.median(distances):+.2f}"


def _first(rows: Sequence[TrialRow]) -> str | None:
    """Name the monitor that alarmed in most trials, and of these the earliest."""
    steps: dict[str, list[int]] = {}
    for row in rows:
        for name, step in row.first_alarms.items():
            steps.setdefault(name, []).append(step)
    key = {name: (-len(found), statistics.median(found), name) for name, found in steps.items()}
    return min(key, key=key.__getitem__, default=None)


def _lead(monitor: str, rows: Sequence[TrialRow]) -> str:
    """Return in how many trials a monitor alarmed, and the median lead over the loss."""
    seen = [row for row in rows if monitor in row.first_alarms]
    leads = [row.onset - row.first_alarms[monitor] for row in seen if row.onset is not None]
    lead = f", {statistics.median(leads):+g}" if leads else ""
    return f"{len(seen)}/{len(rows)}{lead}"
