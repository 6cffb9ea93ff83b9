"""The default page of a score: what to do, in at most eight lines of the terminal's width."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.text import Text

from rksp.documents.finding import Level
from rksp.documents.score import RiskAssessment, ScoreReport, SeedReport
from rksp.ground.sizes import count
from rksp.ground.text import one_line, short
from rksp.report import words
from rksp.report.issues import deciding
from rksp.report.score.terminal import LEVEL_STYLES, STYLES

_SCALE = 50  # characters of the drawn scale of rates
_MARGIN = 0.5  # decades beyond the outermost mark
_ALL = "prints every measurement"


@dataclass(frozen=True, slots=True)
class Line:
    """One line in several lengths; the longest that fits is printed, else the last one cut.

    Attributes:
        forms: The same line, the longest first.
    """

    forms: Sequence[Text]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Yield the form that the width holds."""
        fits = (form for form in self.forms if cell_len(form.plain) <= options.max_width)
        shown = next(fits, self.forms[-1]).copy()
        shown.truncate(options.max_width, overflow="ellipsis")
        yield shown


@dataclass(frozen=True, slots=True)
class Page:
    """The lines of a page; each takes one line of the terminal."""

    lines: Sequence[Line]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Line]:
        """Yield the lines."""
        yield from self.lines


def render(report: ScoreReport) -> Page:
    """Render verdict, rates on a scale, the main finding, assumptions and the next command."""
    seed = deciding(report)
    return Page([*_verdict(report, seed), *_rates(report, seed.risk), *_rest(report, seed)])


def _verdict(report: ScoreReport, seed: SeedReport) -> Iterator[Line]:
    """Yield the verdict with its probability, or with what is missing."""
    target, risk = report.target, seed.risk
    size = "" if target.parameters is None else f" ({count(target.parameters)})"
    style = STYLES.get(report.verdict, "bold yellow")
    title = (words.TITLES[report.verdict], style)
    if risk is None or risk.verdict == "cannot tell":
        first, *others = [seed.risk_missing] if risk is None else risk.reasons
        left = len(others) - 1
        more = f" (and {left} more reason{'s' * (left > 1)}: -v)" if left > 0 else ""
        yield _line(Text.assemble(title, f"  {target.name}{size}: {first}"))
        if others:
            yield _line(f"  {others[0]}{more}")
        return
    rate, steps = report.recipe.learning_rate, f"over {risk.horizon_steps} steps"
    if rate is None or risk.probability_failed is None:
        said = (f"{target.name}{size} {steps}; no learning rate was given",)
    else:
        low, high = risk.probability_failed_low, risk.probability_failed_high
        odds = f"P(failed) {_percent(risk.probability_failed)} [{_percent(low)}, {_percent(high)}]"
        at = f"at {short(rate, 6)} {steps}"
        said = (
            f"{odds} for {target.name}{size} {at}",
            f"{odds} for {target.name} {at}",
            f"{odds} {at} for {target.name}",
        )
    yield _line(*(Text.assemble(title, f"  {form}") for form in said))


def _rates(report: ScoreReport, risk: RiskAssessment | None) -> Iterator[Line]:
    """Yield the three rates with their letters, and the scale; they are faint if unreliable."""
    if risk is None or risk.start_here is None:
        return
    doubtful = risk.verdict == "cannot tell"
    start, edge, most = map(words.rate, (risk.start_here, risk.likely_edge, risk.do_not_exceed))
    excess = "" if risk.start_excess is None else f"{risk.start_excess:.2f} nats"
    fails = "" if risk.start_failed is None else f"{_percent(risk.start_failed)} fail"
    after = ", ".join(filter(None, (excess, fails)))
    rest = f" · likely edge (E) {edge} · do not exceed (X) {most}"
    head = "  not reliable here: start" if doubtful else "  start here"
    forms = (
        f"{head} (S) {start} ({after}){rest}",
        f"{head} (S) {start}{rest}",
        f"{head} {start} · edge {edge} · do not exceed {most}",
    )
    yield _line(*(Text(form, style="dim" if doubtful else "") for form in forms))
    if not doubtful:
        yield _line(_scale(report, risk))


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
        f"  {short(10**low, 1)} ", ("".join(line), "bold"), f" {short(10**high, 1)}", (own, "dim")
    )


def _rest(report: ScoreReport, seed: SeedReport) -> Iterator[Line]:
    """Yield the main finding, the assumptions, and what to do next."""
    yield from _finding(report)
    if report.assumed:
        decisive = words.decisive(seed)
        if decisive:
            yield _line(Text(f"  {decisive}", style="yellow"))
        yield _line(Text(f"  {report.assumed}", style="dim"))
    if report.baseline is None:
        yield _next(report, seed)
    else:
        states = Counter(change.state for change in report.baseline.changes)
        yield _line(f"  since the baseline: {words.states(states)}")


def _finding(report: ScoreReport) -> Iterator[Line]:
    """Yield the finding that matters most, its fix, and how many more there are."""
    if not report.findings:
        return
    first, *others = report.findings
    where = f" [{first.layer}]" if first.layer and first.layer not in first.message else ""
    said = f"  {first.level} {first.code} {first.message}"
    yield _line(*(Text(form, style=LEVEL_STYLES[first.level]) for form in (said + where, said)))
    counted = Counter(finding.level.value for finding in others)
    more = ", ".join(f"{number} {level}{'s' * (number > 1)}" for level, number in counted.items())
    forms = [f"    {first.fix} (also {more}: -v)"] if more else []
    yield _line(*(Text(form, style="italic") for form in (*forms, f"    {first.fix}")))


def _next(report: ScoreReport, seed: SeedReport) -> Line:
    """Return the next command: another rate, a short run, or the explanation of an error."""
    target, rate, risk = report.target, report.recipe.learning_rate, seed.risk
    if target.kind in ("factory", "module") or risk is None:
        is_unmeasured = risk is None and target.probe == "nothing"
        again = f"the same command with -v, which {_ALL}"
        after = "leave out --evidence config to measure it" if is_unmeasured else again
        return _line(Text(f"  next: {after}", style="dim"))
    start = risk.start_here
    first = report.findings[0] if report.findings else None
    command = "rksp score --help"
    if rate:
        command = f"rksp confirm {target.name} --shrink --lr {short(rate, 6)}"
    if start is not None and (rate is None or risk.verdict == "risk"):
        command = f"rksp score {target.name} --lr {words.rate(start)}"
    elif start is None and first is not None and first.level == Level.ERROR:
        command = f"rksp explain {first.code}"
    forms = (f"  next: {command}   (-v {_ALL})", f"  next: {command}   (-v: all)")
    return _line(*(Text(form, style="dim") for form in forms))


def _percent(share: float) -> str:
    """Format a probability without decimals; what is neither 0 nor 1 is not rounded to them."""
    if 0 < share < 0.005:
        return "<1%"
    return ">99%" if 0.995 <= share < 1 else f"{share:.0%}"


def _line(*forms: Text | str) -> Line:
    """Return a line of these forms; line ends in names from outside do not break it."""
    texts = [form if isinstance(form, Text) else Text(form) for form in forms]
    for text in texts:
        text.plain = one_line(text.plain)
    return Line(texts)
