"""The document of a grid: from the results in its store and a gate to `GridReport`."""

from __future__ import annotations

from collections.abc import Sequence

from rksp.documents.base import GateReport
from rksp.documents.grid import FAILED, GridReport
from rksp.grid.run import GridResult
from rksp.grid.table import Record, best_safe, heat_map, pareto, where
from rksp.ground.text import short
from rksp.report.gate import Gate


def grid_report(
    result: GridResult, gate: Gate, *, conditions: Sequence[str] = (), top: int | None = None
) -> GridReport:
    """Judge every cell of a grid, and show the selected ones.

    Args:
        result: What the store holds.
        gate: Decides which cells fail; its bar decides their verdicts.
        conditions: Show only the cells that meet them, such as `lr<=1e-3`.
        top: Show only so many of those.

    Raises:
        InputError: A condition cannot be read, or names no column.
    """
    everything = result.records(gate.bar)
    shown = where(everything, conditions)[:top]
    positions = {record["position"] for record in shown}
    failing = [record for record in everything if gate.fails(record)]
    missing = _missing(everything)
    verdict = _verdict(everything) or ("risk" if failing else "ok")
    unknown = [record for record in everything if gate.stops(str(record["verdict"]))]
    only_unknown = verdict == "ok" and bool(unknown)
    reasons = missing or [_worst(failing, len(everything), gate)] if missing or failing else []
    if only_unknown:
        reasons = [f"rksp cannot tell of {len(unknown)} of {len(everything)} cells"]
    return GridReport(
        verdict=verdict,
        gate=GateReport(
            fail_on=gate.fail_on,
            failed=verdict != "ok" or only_unknown,
            only_unknown=only_unknown,
            issues=[],
            reasons=reasons,
        ),
        cells=shown,
        cells_in_grid=len(everything),
        axes=result.axes(),
        best_safe=best_safe(everything),
        pareto=pareto(everything),
        failing=[record["position"] for record in failing if record["position"] in positions],
        profiles_made=len(result.profiles),
        made_by=dict(result.made_by),
        assumed=dict(result.assumed),
        risk_map=heat_map(everything, result.axes()),
        hidden=[record for record in everything if record["position"] not in positions],
    )


def _verdict(everything: Sequence[Record]) -> str | None:
    """Return the verdict where a cell has no result; None where all have one."""
    broken = [record for record in everything if record["verdict"] == FAILED]
    if broken and len(broken) == len(everything):
        return "unusable" if all(r["failure"] == "invalid" for r in broken) else "incomplete"
    return "incomplete" if broken or _undone(everything) else None


def _undone(everything: Sequence[Record]) -> int:
    """Count the cells without a result, whose state stands for a verdict."""
    answered = ("ok", "caution", "risk", "cannot tell", "not assessed", FAILED)
    return sum(record["verdict"] not in answered for record in everything)


def _missing(everything: Sequence[Record]) -> list[str]:
    """Say which cells have no result, and why."""
    reasons, count, undone = [], len(everything), _undone(everything)
    broken = sorted(
        (record for record in everything if record["verdict"] == FAILED),
        key=lambda record: record["position"],
    )
    if broken:
        why = str(broken[0]["message"])
        reasons.append(f"{len(broken)} of {count} cells could not run; the first error: {why}")
        if "no such setting" in why:
            reasons.append("use --ignore NAME for an axis that sets neither recipe nor model")
    if undone:
        reasons.append(f"{undone} of {count} cells are not done; run the same command to resume")
    return reasons


def _worst(failing: Sequence[Record], count: int, gate: Gate) -> str:
    """Say how many cells fail; they are ranked, so the worst is the last."""
    worst = failing[-1]
    rate = worst["learning_rate"]
    at = f" (worst: {worst['model']}{f' at {short(rate)}' if rate else ''})"
    return f"{len(failing)} of {count} cells fail --fail-on {gate.fail_on}{at}"
