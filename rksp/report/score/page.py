"""The default page of a score: what to do, about ten lines that wrap where the width ends."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group
from rich.text import Text

from rksp.documents.answer import Answer, Estimate, FromEdge, FromFineTuning, FromPublished, Untold
from rksp.documents.score import ScoreReport, SeedReport
from rksp.ground.flags import count
from rksp.ground.text import many, one_line, percent, short
from rksp.question import said as phrases
from rksp.question.gate import deciding
from rksp.report import words
from rksp.report.score.measured import change
from rksp.report.terminal import DOUBTFUL, LEVEL_STYLES, STYLES, Line

_SCALES = (50, 40, 30)  # characters of the drawn scale of rates, where there is room
_MARGIN = 0.5  # decades beyond the outermost mark
_ALL = "prints every measurement"


@dataclass(frozen=True, slots=True)
class Scale:
    """The scale of rates in several lengths; the longest that fits is drawn."""

    forms: Sequence[Text]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        fits = (form for form in self.forms if cell_len(form.plain) <= options.max_width)
        yield next(fits, self.forms[-1])


def render(report: ScoreReport) -> Group:
    """Render verdict, rates on a scale, the main finding, assumptions and the next command."""
    seed = deciding(report)
    more = _notes(
        words.carried(report), words.learned(seed), *words.trained(report, seed), change(seed)
    )
    return Group(*_verdict(report, seed), *_rates(report, seed.risk), *more, *_rest(report, seed))


def _verdict(report: ScoreReport, seed: SeedReport) -> Iterator[Line]:
    target, risk, leading = report.target, seed.risk, words.leading(report)
    size = "" if target.parameters is None else f" ({count(target.parameters)})"
    title = (report.verdict.upper(), STYLES.get(report.verdict, DOUBTFUL))
    trained = words.training(report, f"{target.name}{size}")
    start = f"  {leading}; " if leading else "  "
    if isinstance(risk, Untold):
        first, *others = risk.reasons
        of_risk = f"{report.risk_verdict}: {first}"
        said = f"  {leading} for {trained}; otherwise {of_risk}"
        yield _line(Text.assemble(title, said if leading else f"  {trained}: {first}"))
        left = len(others) - 1
        more = f" (and {many(left, 'more reason')}: -v)" if left > 0 else ""
        yield from _notes(*(f"{one}{more}" for one in others[:1]), style="")
        yield from _notes(words.open_gate(report))
        return
    rate, steps = report.recipe.learning_rate, f"over {risk.horizon_steps:,} steps"
    if isinstance(risk, FromPublished):
        said = f"{trained}: {phrases.published(report, risk)}"
    elif rate is None:
        said = f"{trained} {steps}; no learning rate was given"
    else:
        diverging = phrases.diverging(risk) if risk.verdict == "risk" else ""
        said = f"{phrases.odds(risk)}{diverging} for {trained} at {short(rate, 6)} {steps}"
    yield _line(Text.assemble(title, f"{start}{said}"))


def _rates(report: ScoreReport, risk: Answer) -> Iterator[Line | Scale]:
    if isinstance(risk, FromPublished):
        yield _line(
            f"  start here {phrases.rate(risk.start_here)}, the middle of the published runs"
        )
    if not isinstance(risk, Estimate):
        return
    start, edge, most = map(phrases.rate, (risk.start_here, risk.likely_edge, risk.do_not_exceed))
    excess = f"+{risk.start_excess:.2f} nats, " if isinstance(risk, FromEdge) else ""
    after = f"{excess}{percent(risk.start_failed)} fail"
    yield _line(
        f"  start here (S) {start} ({after}) · do not exceed (X) {most} · likely edge (E) {edge}"
    )
    yield Scale([_scale(report, risk, length) for length in _SCALES])
    yield from _notes(words.crossed(risk))
    is_calm = report.verdict == "ok" and report.recipe.learning_rate is not None
    if isinstance(risk, FromEdge) and risk.levers and not is_calm:
        yield from _notes(words.levers(risk), style="")


def _scale(report: ScoreReport, risk: FromEdge | FromFineTuning, length: int) -> Text:
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


def _rest(report: ScoreReport, seed: SeedReport) -> Iterator[Line]:
    yield from _finding(report)
    decisive = words.decisive(report, seed) if report.assumed else ""
    yield from _notes(words.noise(report), words.unread(report), decisive, style="")
    yield from _notes(report.assumed)
    if report.baseline is None:
        command = report.next_command
        said = f"{command}   (-v {_ALL})" if command else f"the same command with -v   ({_ALL})"
        yield Line(Text(f"  next: {said}", style="dim"), is_command=bool(command))
    else:
        is_open = report.verdict == "risk" and report.exit_code == 0
        passes = "; nothing is new or worse, so exit 0" * is_open
        yield _line(f"  since the baseline: {words.states(report.baseline.changes)}{passes}")


def _finding(report: ScoreReport) -> Iterator[Line]:
    if not report.findings:
        return
    first, *others = words.ordered(report)
    where = f" [{first.layer}]" if first.layer and first.layer not in first.message else ""
    level = (f"  {first.level}", LEVEL_STYLES[first.level])
    yield _line(Text.assemble(level, f" {first.code} {first.message}{where}"))
    counted = Counter(finding.level.value for finding in others)
    more = ", ".join(many(number, level) for level, number in counted.items())
    also = f" (also {more}: -v)" if more else ""
    yield _line(f"    {first.fix}{also}")


def _notes(*said: str, style: str = "dim") -> Iterator[Line]:
    return (_line(Text(f"  {one}", style=style)) for one in said if one)


def _line(form: Text | str) -> Line:
    text = form if isinstance(form, Text) else Text(form)
    text.plain = one_line(text.plain)
    return Line(text)
