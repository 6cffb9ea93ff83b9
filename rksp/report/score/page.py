"""The default page of a score: what to do, in at most ten lines of the terminal's width.

Two of them say what was measured and what that changed. There is one line more where a run is so
short that S lies above X, and where the next command is longer than the width.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group
from rich.text import Text

from rksp.documents.answer import Answer, Estimate, FromEdge, FromFineTuning, FromPublished, Untold
from rksp.documents.score import ScoreReport, SeedReport
from rksp.ground.flags import count
from rksp.ground.text import one_line, short
from rksp.report import words
from rksp.report.gate import deciding
from rksp.report.score.measured import change
from rksp.report.terminal import DOUBTFUL, LEVEL_STYLES, STYLES

_SCALES = (50, 40, 30)  # characters of the drawn scale of rates, where there is room
_MARGIN = 0.5  # decades beyond the outermost mark
_ALL = "prints every measurement"
_MOST = 10  # lines


@dataclass(frozen=True, slots=True)
class Line:
    """One line in several lengths; the longest that fits is printed, else the last one cut.

    Attributes:
        forms: The same line, the longest first.
        goes_on: Instead of being cut it goes on: a command after a backslash, a sentence indented.
    """

    forms: Sequence[Text]
    goes_on: Literal["", "command", "sentence"] = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Yield the form that the width holds."""
        fits = (form for form in self.forms if cell_len(form.plain) <= options.max_width)
        shown = next(fits, None)
        if shown is None and self.goes_on == "command":
            yield from _continued(self.forms[-1], options.max_width)
            return
        if shown is None and self.goes_on == "sentence":
            for number, part in enumerate(self.forms[-1].wrap(console, options.max_width - 4)):
                part.rstrip()
                yield Text.assemble("    " * (number > 0), part)
            return
        shown = (shown or self.forms[-1]).copy()
        shown.truncate(options.max_width, overflow="ellipsis")
        yield shown


def _continued(line: Text, width: int) -> Iterator[Text]:
    """Break a command as a shell reads it on: before an option, after a backslash."""
    shown = ""
    for part in re.split(r" (?=--)", line.plain.partition("   (")[0]):
        if shown and cell_len(f"{shown} {part} \\") > width:
            yield Text(f"{shown} \\", style=line.style, no_wrap=True, overflow="ignore")
            shown = f"    {part}"
        else:
            shown = f"{shown} {part}" if shown else part
    yield Text(shown, style=line.style, no_wrap=True, overflow="ignore")


def render(report: ScoreReport) -> Group:
    """Render verdict, rates on a scale, the main finding, assumptions and the next command."""
    seed = deciding(report)
    forms = [words.learned(seed), words.learned(seed, is_brief=True)]
    own = [_line(*(Text(f"  {form}", style="dim") for form in forms))] if forms[0] else []
    more = _notes(*words.trained(report, seed), change(seed))
    lines = [*_verdict(report, seed), *_rates(report, seed.risk), *own, *more]
    rest = list(_rest(report, seed))
    if len(lines) + len(rest) > _MOST:
        rest = list(_rest(report, seed, is_brief=True))
    return Group(*lines, *rest)


def _verdict(report: ScoreReport, seed: SeedReport) -> Iterator[Line]:
    """Yield the verdict with its reason and its probability, or with what is missing."""
    target, risk, leading = report.target, seed.risk, words.leading(report)
    size = "" if target.parameters is None else f" ({count(target.parameters)})"
    style = STYLES.get(report.verdict, DOUBTFUL)
    title = (report.verdict.upper(), style)
    because = f"  {leading}" if leading else ""
    if isinstance(risk, Untold):
        first, *others = risk.reasons
        left = len(others) - 1
        more = f" (and {left} more reason{'s' * (left > 1)}: -v)" if left > 0 else ""
        of_risk = f"{report.risk_verdict}: {first}"
        whole = words.training(report, f"{target.name}{size}")
        said = f"{because} for {whole}; otherwise {of_risk}"
        yield _sentence(Text.assemble(title, said if because else f"  {whole}: {first}"))
        if others:
            yield _sentence(f"  {others[0]}{more}")
        yield from _notes(words.open_gate(report), style="yellow")
        return
    name = target.name
    names = (f"{name}{size}", name, name.rpartition("/")[2])  # without its organization, at last
    whole, brief, least = (words.training(report, said) for said in names)
    rate, steps = report.recipe.learning_rate, f"over {risk.horizon_steps} steps"
    start = f"{because}; " if because else "  "
    if isinstance(risk, FromPublished):
        beside = words.beside_published(report, risk.published)
        forms = tuple(f"{title}: {beside}" for title in (whole, brief, least))
    elif rate is None:
        forms = (f"{whole} {steps}; no learning rate was given",)
    else:
        odds, at = words.odds(risk), f"at {short(rate, 6)} {steps}"
        diverging = words.diverging(risk) if risk.verdict == "risk" else ""
        forms = (
            f"{odds}{diverging} for {whole} {at}",
            f"{odds}{diverging} for {brief} {at}",
            f"{odds} for {whole} {at}",
            f"{odds} for {brief} {at}",
            f"{odds} for {least} {at}",
            f"{odds} for {least} at {short(rate, 6)}",
            f"{odds} for {words.training(report, 'it')}",
        )
    yield _line(*(Text.assemble(title, f"{start}{form}") for form in forms))


def _rates(report: ScoreReport, risk: Answer) -> Iterator[Line]:
    """Yield the three rates with their letters, and the scale; nothing that is unreliable."""
    if isinstance(risk, FromPublished):
        start = words.rate(risk.start_here)
        yield _line(f"  start here {start}, the middle of the published runs")
    if not isinstance(risk, Estimate):
        return
    start, edge, most = map(words.rate, (risk.start_here, risk.likely_edge, risk.do_not_exceed))
    excess = f"+{risk.start_excess:.2f} nats, " if isinstance(risk, FromEdge) else ""
    after = f"{excess}{words.percent(risk.start_failed)} fail"
    rest = f" · likely edge (E) {edge} · do not exceed (X) {most}"
    yield _line(
        f"  start here (S) {start} ({after}){rest}",
        f"  start here (S) {start}{rest}",
        f"  start here {start} · edge {edge} · do not exceed {most}",
        f"  S {start} · E {edge} · X {most}",
    )
    yield _line(*(_scale(report, risk, length) for length in _SCALES))
    yield from _notes(words.crossed(risk), words.applied(risk))
    if isinstance(risk, FromEdge):
        yield from _levers(report, risk)


def _levers(report: ScoreReport, risk: FromEdge) -> Iterator[Line]:
    """Yield what would raise the edge; nothing where the recipe's rate is well below it."""
    if not risk.levers or (report.verdict == "ok" and report.recipe.learning_rate is not None):
        return
    forms = [words.levers(risk)]
    forms += [words.levers(risk, most=most, brief=True) for most in (3, 2, 1)]
    yield _line(*(f"  {form}" for form in dict.fromkeys(forms)))


def _scale(report: ScoreReport, risk: FromEdge | FromFineTuning, length: int) -> Text:
    """Draw the three rates and the recipe's on one logarithmic scale; none hides another."""
    rates = risk.start_here, risk.do_not_exceed, risk.likely_edge, report.recipe.learning_rate
    marks = dict(zip("SXE●", rates, strict=True))
    known = {mark: math.log10(rate) for mark, rate in marks.items() if rate}
    low, high = min(known.values()) - _MARGIN, max(known.values()) + _MARGIN
    line = ["─"] * length
    last = -1
    for done, (mark, decade) in enumerate(sorted(known.items(), key=lambda item: item[1])):
        last = max(last + 1, round((decade - low) / (high - low) * (length - 1)))
        last = min(last, length - len(known) + done)  # those to come need a place too
        line[last] = mark
    cost = words.cost(report, risk)
    own = "" if "●" not in known else f"  ● yours: {cost}" if cost else "  ● yours"
    return Text.assemble(
        f"  {short(10**low, 1)} ", ("".join(line), "bold"), f" {short(10**high, 1)}", (own, "dim")
    )


def _rest(report: ScoreReport, seed: SeedReport, *, is_brief: bool = False) -> Iterator[Line]:
    """Yield the main finding, the assumptions or just those that decide, and what to do next."""
    yield from _finding(report)
    decisive = words.decisive(report, seed) if report.assumed else ""
    yield from _notes(words.noise(report), words.unread(report), decisive, style="yellow")
    yield from _notes("" if decisive and is_brief else report.assumed)
    if report.baseline is None:
        yield from _next(report)
    else:
        states = Counter(change.state for change in report.baseline.changes)
        yield _line(f"  since the baseline: {words.states(states)}")


def _finding(report: ScoreReport) -> Iterator[Line]:
    """Yield the finding that matters most, its fix, and how many more there are."""
    if not report.findings:
        return
    first, *others = words.ordered(report)
    where = f" [{first.layer}]" if first.layer and first.layer not in first.message else ""
    said = f"  {first.level} {first.code} {first.message}"
    yield _line(*(Text(form, style=LEVEL_STYLES[first.level]) for form in (said + where, said)))
    counted = Counter(finding.level.value for finding in others)
    more = ", ".join(f"{number} {level}{'s' * (number > 1)}" for level, number in counted.items())
    # What is cut is the end of a line, and the number of the others never is.
    forms = [f"    {first.fix} (also {more}: -v)", f"    (also {more}: -v) {first.fix}"]
    yield _line(*(Text(form, style="italic") for form in (forms if more else [f"    {first.fix}"])))


def _next(report: ScoreReport) -> Iterator[Line]:
    """Yield the next command, whole: a line that is cut could not be run."""
    command = report.next_command
    forms = [f"  next: {command}   (-v {_ALL})", f"  next: {command}   (-v: all)"]
    forms = forms if command else [f"  next: the same command with -v   ({_ALL})"]
    yield Line([Text(form, style="dim") for form in forms], "command")


def _notes(*said: str, style: str = "dim") -> Iterator[Line]:
    """Yield a line of each that is not empty."""
    return (_line(Text(f"  {one}", style=style)) for one in said if one)


def _sentence(form: Text | str) -> Line:
    """Return a line that goes on where the width ends."""
    return Line(_line(form).forms, "sentence")


def _line(*forms: Text | str) -> Line:
    """Return a line of these forms; line ends in names from outside do not break it."""
    texts = [form if isinstance(form, Text) else Text(form) for form in forms]
    for text in texts:
        text.plain = one_line(text.plain)
    return Line(texts)
