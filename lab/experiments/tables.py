"""The tables of experiments, as Markdown; each function takes rows and the paper's results."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from scipy.stats import fisher_exact

from lab.experiments.rows import Cost, TrialRow
from rksp.confirm.arms import BASELINE
from rksp.own_runs.outcome import OutcomePolicy
from rksp.watch.registry import MONITORS

GRADIENT_NORM = "gradient-norm"  # the monitor that others must beat
ENERGY = "kss:form=energy,weight=3"
STABLE_SHARE = 0.2  # the paper calls a rate stable under this share of diverged trials
REFERENCE = "rate=0.1"  # a deep run stalled if it ends above this arm
FAULT_STEP, WARMUP = 160, 40
_RATE = f"large_rate:step={FAULT_STEP},factor=100"
_PRECISION = f"low_precision_attention:step={FAULT_STEP}"
FAULTS: Mapping[str, tuple[str, ...]] = {
    "none": (),
    "precision": (_PRECISION,),
    "rate": (_RATE,),
    "aux off": (f"aux_off:step={FAULT_STEP}",),
    "bit flip": (f"bitflip:step={FAULT_STEP},where=weights,bit=30",),
    "rate + precision": (_RATE, _PRECISION),
}
_NONE = "–"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]], *, texts: int = 1) -> str:
    """Return a Markdown table; the first `texts` columns are aligned to the left."""
    rule = "---|" * texts + "---:|" * (len(header) - texts)
    lines = [f"| {' | '.join(header)} |", f"|{rule}"]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows]) + "\n"


def divergence(rows: Sequence[TrialRow], paper: Mapping[str, float | str]) -> str:
    """Compare the share of diverged trials of every arm with the baseline's.

    Fisher's test takes the baseline on the arm's own trials; the loss is the median over the trials
    that ended. A trial that diverged by the published label did not fail if it ended within the
    margin of the best: its gradient norm spiked and did no harm.
    """
    by_arm = {arm: {(r.rate, r.seed): r for r in rows if r.arm == arm} for arm in _arms(rows)}
    ended = [row.final_loss for row in rows if row.final_loss is not None]
    bar = min(ended, default=0.0) + OutcomePolicy().margin
    cells = []
    for arm, own in by_arm.items():
        paired = [by_arm[BASELINE][key] for key in own if key in by_arm[BASELINE]]
        bad, base = _diverged(own.values()), _diverged(paired)
        p = relative = _NONE
        if arm != BASELINE and paired:
            p = _fisher((bad, len(own) - bad), (base, len(paired) - base))
            relative = f"{bad / base - 1:+.0%}" if base and len(paired) == len(own) else _NONE
        trained = sum(r.final_loss is not None and r.final_loss <= bar for r in own.values())
        counts = (f"{bad}/{len(own)}", f"{bad / len(own):.0%}", f"{len(own) - trained}/{len(own)}")
        shown = (p, relative, _median_loss(own.values()), _published(paper, arm))
        cells.append((f"`{arm}`", *counts, *shown))
    header = (
        *("arm", "diverged", "share", "failed", "Fisher p", "relative", "final loss", "paper"),
    )
    return markdown(header, cells)


def paired_divergence(rows: Sequence[TrialRow], paper: Mapping[str, float | str]) -> str:
    """Compare the arms at the rates that most arms share."""
    return divergence(_paired(rows), paper)


def learning(rows: Sequence[TrialRow], paper: Mapping[str, float | str], *, chance: float) -> str:
    """Compare how many trials of every arm failed to learn with the baseline's.

    A trial failed if it did not end below chance by the margin of the ladders' policy. A trial that
    diverged by the published label and did not fail had a harmless spike. Fisher's test and the
    median loss are those of `divergence`, with failed trials in the place of diverged ones.
    """
    rows = _paired(rows)
    by_arm = {arm: {(r.rate, r.seed): r for r in rows if r.arm == arm} for arm in _arms(rows)}
    bar = chance - OutcomePolicy().margin
    failed = {
        key: row.final_loss is None or row.final_loss > bar
        for arm, own in by_arm.items()
        for key, row in (((arm, *at), row) for at, row in own.items())
    }
    cells = []
    for arm, own in by_arm.items():
        paired = [at for at in own if at in by_arm[BASELINE]]
        bad = sum(failed[arm, *at] for at in own)
        base = sum(failed[BASELINE, *at] for at in paired)
        is_compared = arm != BASELINE and paired
        p = _fisher((bad, len(own) - bad), (base, len(paired) - base)) if is_compared else _NONE
        harmless = sum(row.has_diverged and not failed[arm, *at] for at, row in own.items())
        diverged = f"{_diverged(own.values())}/{len(own)}"
        counts = (diverged, f"{harmless}", f"{bad}/{len(own)}", f"{bad / len(own):.0%}")
        cells.append((f"`{arm}`", *counts, p, _median_loss(own.values()), _published(paper, arm)))
    header = ("arm", "diverged", "harmless", "failed", "share", "Fisher p", "final loss", "paper")
    return markdown(header, cells)


def stable_rates(rows: Sequence[TrialRow], paper: Mapping[str, float | str]) -> str:
    """Show the share of diverged trials at every rate, and the largest stable rate."""
    del paper
    rates = sorted({row.rate for row in rows})
    cells = []
    for arm in _arms(rows):
        shares = {rate: _share(rows, arm, rate) for rate in rates}
        shown = [_NONE if share is None else f"{share:.0%}" for share in shares.values()]
        cells.append((f"`{arm}`", *shown, _largest_stable(shares)))
    return markdown(("arm", *(f"{rate:g}" for rate in rates), "stable up to"), cells)


def above_reference(rows: Sequence[TrialRow], paper: Mapping[str, float | str]) -> str:
    """Count trials that end too far above their twin at a tenth of the rate."""
    twins = {row.seed: row.final_loss for row in rows if row.arm == REFERENCE}
    above = {
        arm: [_above(row, twins) for row in rows if row.arm == arm and row.seed in twins]
        for arm in _arms(rows)
    }
    margin = OutcomePolicy().margin
    counts = {arm: sum(far > margin for far in distances) for arm, distances in above.items()}
    cells = []
    for arm, distances in above.items():
        own, base = ((counts[name], len(above[name]) - counts[name]) for name in (arm, BASELINE))
        p = _NONE if arm == BASELINE else _fisher(own, base)
        median = f"{statistics.median(distances):+.2f}"
        failed = f"{counts[arm]}/{len(distances)}"
        cells.append((f"`{arm}`", failed, p, median, str(paper.get(arm, _NONE))))
    header = ("arm", "failed", "Fisher p", "nats above a tenth of the rate", "paper")
    return markdown(header, cells)


_LATER = {"output-change"}  # monitors that the stored trials do not have


def cross_talk(rows: Sequence[TrialRow], paper: Mapping[str, float | str]) -> str:
    """Show which monitor sees which fault.

    A cell holds the runs in which the monitor alarmed after the fault, and the median steps from
    fault to alarm, by which it led the loss, and by which it led the gradient norm's alarm.
    """
    del paper
    names = {lines: name for name, lines in FAULTS.items()}
    struck = {
        name: [row for row in rows if names[row.faults] == name]
        for name in FAULTS
        if name != "none"
    }
    healthy = [row for row in rows if not row.faults]
    steps = sum(row.steps - WARMUP for row in healthy)
    silent = set.intersection(*(set(row.silent) for row in rows)) if rows else set()
    shown = [name for name in MONITORS if name not in silent | _LATER]
    false = {name: sum(row.alarms.get(name, 0) for row in healthy) for name in shown}
    failed = [f"{sum(r.onset is not None for r in own)}/{len(own)}" for own in struck.values()]
    cells = [("*the loss fails in*", *failed, "")]
    cells += [
        (name, *(_seen(name, own) for own in struck.values()), _per_1000(false[name], steps))
        for name in shown
    ]
    cells += [("**all**", *("" for _ in struck), _per_1000(sum(false.values()), steps))]
    return markdown(("monitor", *struck, "false alarms per 1,000 healthy steps"), cells)


def cost(costs: Sequence[Cost]) -> str:
    """Show what an arm adds to a step."""
    header = ("experiment", "arm", "ms a bare step", "ms acting", "every", "share of time")
    cells = [
        (c.experiment, f"`{c.arm}`", f"{c.bare:.1f}", f"{c.acting:.1f}", f"{c.every}",
         f"{c.share:+.1%}")
        for c in costs
    ]  # fmt: skip
    return markdown(header, cells, texts=2)


def _arms(rows: Sequence[TrialRow]) -> list[str]:
    return list(dict.fromkeys(row.arm for row in rows))


def _diverged(rows: Iterable[TrialRow]) -> int:
    return sum(row.has_diverged for row in rows)


def _median_loss(rows: Iterable[TrialRow]) -> str:
    """Return the median final loss of the trials that ended."""
    finals = [row.final_loss for row in rows if row.final_loss is not None]
    return f"{statistics.median(finals):.3f}" if finals else _NONE


def _published(paper: Mapping[str, float | str], arm: str) -> str:
    theirs = paper.get(arm, _NONE)
    return f"{theirs:.1f} %" if isinstance(theirs, float) else theirs


def _fisher(first: tuple[int, int], second: tuple[int, int]) -> str:
    return f"{fisher_exact([first, second]).pvalue:.2g}"


def _paired(rows: Sequence[TrialRow]) -> list[TrialRow]:
    """Return the rows at rates at which more than one arm was tried."""
    arms = {rate: {row.arm for row in rows if row.rate == rate} for rate in {r.rate for r in rows}}
    return [row for row in rows if len(arms[row.rate]) > 1]


def _share(rows: Sequence[TrialRow], arm: str, rate: float) -> float | None:
    own = [row for row in rows if row.arm == arm and row.rate == rate]
    return _diverged(own) / len(own) if own else None


def _largest_stable(shares: Mapping[float, float | None]) -> str:
    """Name the largest rate below the first unstable one among those tried."""
    stable = None
    for rate, share in shares.items():
        if share is None:
            continue
        if share >= STABLE_SHARE:
            return f"under {rate:g}" if stable is None else f"{stable:g}"
        stable = rate
    return f"{stable:g} or more"


def _above(row: TrialRow, twins: Mapping[int, float | None]) -> float:
    """Return the nats above the twin; infinite for a trial that did not end."""
    twin = twins[row.seed]
    return float("inf") if row.final_loss is None or twin is None else row.final_loss - twin


def _seen(monitor: str, rows: Sequence[TrialRow]) -> str:
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
    return f"{statistics.median(values):+g}" if values else _NONE


def _per_1000(count: int, steps: int) -> str:
    return f"{1000 * count / steps:.2f}" if steps else _NONE
