"""The default page of a score: what to do, in at most eight lines of 100 columns."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from rich.console import Group
from rich.text import Text

from rksp.documents.score import RiskAssessment, ScoreReport, SeedReport
from rksp.report import words
from rksp.report.issues import deciding
from rksp.report.terminal import LEVEL_STYLES, STYLES

_WIDTH = 100
_SCALE = 50  # characters of the drawn scale of rates
_MARGIN = 0.5  # decades beyond the outermost mark


def render(report: ScoreReport) -> Group:
    """Render verdict, rates on a scale, the main finding, assumptions and the next command."""
    seed = deciding(report)
    lines = [_verdict(report, seed)]
    if seed.risk is not None and seed.risk.start_here is not None:
        lines += [_rates(seed.risk), _scale(report, seed.risk)]
    lines += _finding(report)
    if report.assumed:
        decisive = words.decisive(seed)
        lines += [_cut(f"  {decisive}", "yellow")] if decisive else []
        lines.append(_cut(f"  {report.assumed}", "dim"))
    if report.baseline is None:
        lines.append(_next(report, seed))
    else:
        states = Counter(change.state for change in report.baseline.changes)
        lines.append(Text(f"  since the baseline: {words.states(states)}"))
    return Group(*lines)


def _verdict(report: ScoreReport, seed: SeedReport) -> Text:
    target, risk = report.target, seed.risk
    size = "" if target.parameters is None else f" ({words.count(target.parameters)})"
    if risk is None:
        return _cut(f"NOT ASSESSED  {target.name}{size}: {seed.risk_missing}", "bold yellow")
    title = (words.TITLES[risk.verdict], STYLES[risk.verdict])
    if risk.verdict == "cannot tell":
        return Text.assemble(title, f"  {target.name}{size}: {'; '.join(risk.reasons)}")
    rate = report.recipe.learning_rate
    if rate is None or risk.probability_failed is None:
        said = f"{target.name}{size} over {risk.horizon_steps} steps; no learning rate was given"
    else:
        said = (
            f"P(failed) {risk.probability_failed:.0%} "
            f"[{risk.probability_failed_low:.0%}, {risk.probability_failed_high:.0%}] for "
            f"{target.name}{size} at {rate:g} over {risk.horizon_steps} steps"
        )
    return Text.assemble(title, f"  {said}")


def _rates(risk: RiskAssessment) -> Text:
    """Say the three rates with their letters on the scale."""
    loss = "" if risk.start_excess is None else f" ({risk.start_excess:.2f} nats"
    fails = "" if risk.start_failed is None else f", {risk.start_failed:.0%} fail)"
    return Text(
        f"  start here (S) {words.rate(risk.start_here)}{loss}{fails} · likely edge (E) "
        f"{words.rate(risk.likely_edge)} · do not exceed (X) {words.rate(risk.do_not_exceed)}"
    )


def _scale(report: ScoreReport, risk: RiskAssessment) -> Text:
    """Draw the three rates and the recipe's on one logarithmic scale."""
    marks = {"S": risk.start_here, "X": risk.do_not_exceed, "E": risk.likely_edge}
    marks |= {"●": report.recipe.learning_rate}
    known = {mark: math.log10(rate) for mark, rate in marks.items() if rate}
    low, high = min(known.values()) - _MARGIN, max(known.values()) + _MARGIN
    line = ["─"] * _SCALE
    for mark, decade in known.items():
        line[round((decade - low) / (high - low) * (_SCALE - 1))] = mark
    own = "  ● yours" if "●" in known else ""
    return Text.assemble(
        f"  {10**low:.0e} ", ("".join(line), "bold"), f" {10**high:.0e}", (own, "dim")
    )


def _finding(report: ScoreReport) -> Iterator[Text]:
    """Yield the finding that matters most, its fix, and how many more there are."""
    if not report.findings:
        return
    first, *others = report.findings
    style = LEVEL_STYLES[first.level]
    yield _cut(f"  {first.level} {first.code} {first.message}", style)
    counted = Counter(finding.level.value for finding in others)
    more = ", ".join(f"{number} {level}{'s' * (number > 1)}" for level, number in counted.items())
    yield _cut(f"    {first.fix}{f' (also {more}: -v)' if more else ''}", "italic")


def _next(report: ScoreReport, seed: SeedReport) -> Text:
    target, rate = report.target, report.recipe.learning_rate
    if target.kind in ("factory", "module") or seed.risk is None:
        return Text("  next: rksp score -v prints every measurement", style="dim")
    start = seed.risk.start_here
    if rate is None:
        command = f"rksp score {target.name} --lr {words.rate(start)}" if start else "-v"
    elif seed.risk.verdict == "risk" and start is not None:
        command = f"rksp score {target.name} --lr {words.rate(start)}"
    else:
        command = f"rksp confirm {target.name} --shrink --lr {rate:g}"
    return _cut(f"  next: {command}   (-v prints every measurement)", "dim")


def _cut(text: str, style: str) -> Text:
    """Return one line that a hundred columns hold."""
    line = text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1].rstrip()}…"
    return Text(line, style=style, no_wrap=True, overflow="ellipsis")
