"""The pages of runs: past ones by their ladders, with how well rksp predicts them; watched ones."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from rksp.documents.confirm import WatchReport
from rksp.documents.own_runs import (
    HistoryReport,
    PastLadderReport,
    RateReport,
    RunsReport,
    ScorecardReport,
)
from rksp.ground.flags import count
from rksp.ground.text import many, one_line, short, tally
from rksp.report import blocks as page
from rksp.report import courses
from rksp.report.confirm import cut, loss_curves, profile, side_by_side, silences
from rksp.report.score import figures

_MOST_ROWS = 200  # runs of a table; JSON holds all of them
_MOST_NAMED = 5
_MOST_ALARMS = 100  # JSON holds all of them
_HEADLINES = {
    "failed": "The run failed",
    "alarmed": "The run raised alarms",
    "quiet": "The run raised no alarm",
    "crashed": "The script crashed",
}
_LOSS = (
    "Dashed lines mark the first alarm of each monitor. A ring marks the step at which the loss "
    "begins to show a failure."
)
_BAND = " The band is where earlier runs of the same command were after as many targets."


def past(report: RunsReport) -> list[page.Block]:
    """Return the blocks of the page of past runs: the course of one, or the sweeps of many."""
    number = page.Numbers(report)
    found = [*_head(report, number)]
    if len(report.courses) == 1:
        found += courses.of_run(report.courses[0])
    elif report.courses:
        rows = [_course_row(report, i, number) for i in range(len(report.courses))]
        head = ("Became", "Went wrong at", "Best", "Ended at", "Run")
        found.append(page.Section("Courses", [page.Table(head, rows[:_MOST_ROWS])]))
    if report.rate is not None:
        found += _rate(report.rate, number)
    if report.differences:
        said = "{0} failed with {2} {3}, {1} trained with {4}"
        lines = [one_line(said.format(*row), 300) for row in report.differences]
        found.append(page.Section("What differs", [page.Notes(lines)]))
    if report.history is not None:
        found += courses.of_sweeps(report.history.ladders)
        blocks = history_blocks(report.history, page.Numbers(report, "history/"))
        found.append(page.Section("Runs", blocks))
    if report.scorecard is not None:
        title = "How well rksp, which saw none of these runs, would have predicted them"
        found.append(page.Section(title, [page.Sentence(line) for line in _card(report.scorecard)]))
    if command := report.provenance.get("command"):
        found.append(page.Section("Provenance", [page.Command(str(command))], is_record=True))
    return found


def _head(report: RunsReport, number: page.Numbers) -> Iterator[page.Block]:
    history = report.history
    if len(report.courses) == 1 and history is None:
        one = report.courses[0]
        about = (f"{one.metric}, ", number("courses/0/records", ",d"), f" values of {one.file}")
        yield page.Title(eyebrow="rksp why", name=one.name or one.file, about=about)
        said: list[page.Block] = [page.Sentence(line) for line in one.told]
        said += [page.Sentence(line, "advice") for line in report.advice]
        headline = _BECAME[one.outcome]
        yield page.Verdict(verdict=report.verdict, headline=headline, blocks=said)
        return
    yield page.Title(eyebrow="rksp why", name=report.target or "past runs", about="")
    doubt = []
    if history is not None and history.doubt:
        doubt = [page.Sentence(f"Nothing is learned: {history.doubt}.", "advice")]
    headline = summary(history) if history is not None else ""
    if report.courses:
        fates = tally(one.outcome.replace("_", " ") for one in report.courses)
        headline = f"{many(len(report.courses), 'run')}: {fates}"
    yield page.Verdict(verdict=report.verdict, headline=headline, blocks=doubt)


_BECAME = {
    "fine": "Nothing went wrong",
    "spike_recovered": "It spiked and recovered",
    "diverged": "It diverged",
    "nan": "Its loss is no number any more",
    "spike_unrecovered": "It blew up and did not recover",
    "never_learned": "It never learned",
    "collapsed": "Its reward collapsed",
    "overfit": "It overfitted",
    "cannot_tell": "Too few values to tell",
    "alarmed": "Its loss did not fail, and the watch raised an alarm",
    "crashed": _HEADLINES["crashed"],
}


def _course_row(report: RunsReport, i: int, number: page.Numbers) -> list[page.Words]:
    one, at = report.courses[i], f"courses/{i}"
    return [
        *(one.outcome.replace("_", " "), number(f"{at}/onset_step", ",g")),
        *(number(f"{at}/best_value", digits=4), number(f"{at}/ended", digits=4)),
        one_line(one.name, 60),
    ]


def _rate(rate: RateReport, number: page.Numbers) -> Iterator[page.Block]:
    names = (
        ("Its learning rate", "learning_rate", "", f"recipe: {one_line(rate.recipe_from, 100)}"),
        ("Start here", "start_here", "", "S"),
        ("Do not exceed", "do_not_exceed", "", "X"),
        ("Likely edge", "likely_edge", "", "E"),
        ("P(failed)", "probability_failed", page.PERCENT, "at its rate, before it ran"),
    )
    rows = [[title, number(f"rate/{n}", form, digits=2), note] for title, n, form, note in names]
    blocks: list[page.Block] = [page.Table(("", "Value", "Meaning"), rows, look="figures")]
    blocks += [page.Notes([one_line(said, 300) for said in rate.findings])] * bool(rate.findings)
    yield page.Section("The rate against its recipe", blocks)


def summary(history: HistoryReport) -> str:
    """Say how many runs were read, and how they ended: `14 runs (2 sweeps): 9 healthy, …`."""
    runs = [run for ladder in history.ladders for run in ladder.runs]
    ladders = sum(_is_ladder(ladder) for ladder in history.ladders)
    ends = tally(run.label for run in runs)
    return f"{many(len(runs), 'run')} ({many(ladders, 'sweep')}): {ends}"


def history_blocks(history: HistoryReport, number: page.Numbers) -> list[page.Block]:
    """Return a row for every run (its rate and loss, what rksp says, what happened), and notes."""
    rows: page.Rows = []
    for i, ladder in enumerate(history.ladders):
        for j, run in enumerate(ladder.runs):
            at = f"ladders/{i}/runs/{j}"
            rows.append(
                [
                    *(str(i + 1), number(f"{at}/learning_rate"), number(f"{at}/final_loss", ".3f")),
                    *(number(f"{at}/excess", ".2f"), number(f"{at}/said", page.PERCENT)),
                    *(run.label, one_line(run.name, 60)),
                ]
            )
    head = ("Sweep", "Rate", "Final loss", "Above best", "Predicted P(failed)", "Label", "Run")
    notes = list(_notes(history))
    table = page.Table(head, rows[:_MOST_ROWS])
    return [table, page.Notes(notes)] if notes else [table]


def _notes(history: HistoryReport) -> Iterator[str]:
    for number, ladder in enumerate(history.ladders, start=1):
        is_told = ladder.likely_edge is not None or ladder.untold
        found = [_edge(ladder)] if _is_ladder(ladder) and is_told else []
        found += ["from trained weights"] if ladder.is_of_tuning else []
        found += [f"not used, {ladder.unused}"] if ladder.unused else []
        found += [ladder.surprise] if ladder.surprise else []
        if found and (_is_ladder(ladder) or ladder.surprise):
            yield f"sweep {number} ({one_line(ladder.name, 100)}): {'; '.join(found)}"
    hidden = sum(len(ladder.runs) for ladder in history.ladders) - _MOST_ROWS
    if hidden > 0:
        yield f"{hidden:,} more runs: --format json lists all"
    assumed = sorted({name for ladder in history.ladders for name in ladder.assumed})
    if assumed:
        yield f"unknown of some runs, so assumed: {', '.join(assumed)}"
    if history.ignored:
        columns = one_line(", ".join(history.ignored), 300)
        yield f"ignored columns (neither recipe nor settings of the model): {columns}"
    left_out: dict[str, list[str]] = {}
    for one in history.left_out:
        left_out.setdefault(one.reason, []).append(one.name)
    for reason, names in left_out.items():
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        yield one_line(f"left out, {reason}: {', '.join(names[:_MOST_NAMED])}{more}", 400)


def _card(found: ScorecardReport) -> Iterator[str]:
    ranked = "" if found.auroc is None else f"; AUROC {found.auroc:.2f}"
    missed = "" if found.ece is None else f"; calibration error {found.ece:.2f}"
    expected = f"{found.said * found.runs:.1f}"
    yield (
        f"{found.failed} of {many(found.runs, 'run')} failed; rksp expected {expected} failures"
        f"{ranked}{missed}"
    )
    if found.edge_error is not None:
        count, share = found.ladders, found.covered
        inside = (
            "" if share is None else f"; {round(share * count)} of {count} inside the 90 % range"
        )
        missed = f"missed by {found.edge_error:.2f} decades in the median"
        yield f"edges of {many(count, 'sweep')}: {missed}{inside}"
    if found.best_error is not None:
        yield f"best rates: missed by {found.best_error:.2f} decades in the median"
    if found.edge_error_with_others is not None:
        yield (
            f"edges where rksp knows the other sweeps: missed by "
            f"{found.edge_error_with_others:.2f} decades"
        )


def _edge(ladder: PastLadderReport) -> str:
    low, high = ladder.edge
    if low is None and high is None:
        seen = "no edge"
    elif high is None:
        seen = f"edge above {short(low or 0.0)}"
    elif low is None:
        seen = f"edge below {short(high)}"
    else:
        seen = f"edge between {short(low)} and {short(high)}"
    best = "" if ladder.best_rate is None else f", best rate {short(ladder.best_rate)}"
    if ladder.untold or ladder.likely_edge is None:
        return f"{seen}{best}; rksp cannot tell ({ladder.untold})"
    predicted = f"rksp predicted edge {short(ladder.likely_edge, 2)}"
    rate = "" if ladder.best_said is None else f", best rate {short(ladder.best_said, 2)}"
    return f"{seen}{best}; {predicted}{rate}"


def _is_ladder(ladder: PastLadderReport) -> bool:
    return len({run.learning_rate for run in ladder.runs}) > 1


def watched(report: WatchReport) -> list[page.Block]:
    """Return the blocks of the page of a watched run."""
    number = page.Numbers(report)
    size = f"{count(report.parameters)} parameters; " if report.parameters else ""
    ranks = f" on {report.ranks} ranks" if report.ranks > 1 else ""
    about = (size, number("trial/steps", ",d"), f" steps{ranks}; {report.ended}")
    return [
        page.Title(eyebrow="rksp watch", name=report.model, about=about),
        page.Verdict(
            verdict=report.verdict,
            headline=_HEADLINES["crashed" if "raised" in report.ended else report.verdict],
            blocks=[page.Sentence(said) for said in report.conclusions],
        ),
        _loss(report),
        *_alarms(report, number),
        *_quantities(report, number),
        page.Section("Provenance", [page.Command(report.command)], is_record=True),
    ]


def _alarms(report: WatchReport, number: page.Numbers) -> Iterator[page.Block]:
    rows: page.Rows = [
        [
            number(f"alarms/{i}/step", ",d"),
            page.Code(one.monitor),
            page.Code(one.layer or "–"),
            one.text,
        ]
        for i, one in enumerate(report.alarms[:_MOST_ALARMS])
    ]
    if rows:
        head = ("Step", "Monitor", "Module", "Alarm")
        yield page.Section("Alarms", [page.Table(head, rows)])
    looked = [
        [number(f"causes/{i}/step", ",d"), one.cause, page.Code(one.module or "–"), one.text]
        for i, one in enumerate(report.causes)
    ]
    if looked:
        head = ("Step", "Cause", "Module", "What was found")
        yield page.Section("Causes", [page.Table(head, looked)])
    if report.forecast is not None:
        yield page.Section(
            "Forecast",
            [page.Sentence(line.strip().replace("_", " ")) for line in report.forecast.text],
        )


def _loss(report: WatchReport) -> page.Block:
    curves = partial(loss_curves, [report.trial], {report.trial.arm: 0}, band=report.band)
    hint = _LOSS + (_BAND if report.band else "") + cut([report.trial])
    return page.Figure(title="Loss", hint=hint, drawing=figures.panel(curves, 340, 290))


def _quantities(report: WatchReport, number: page.Numbers) -> Iterator[page.Block]:
    first = report.trial.first_alarms
    rows: page.Rows = [
        [
            page.Code(name),
            number(f"trial/first_alarms/{name}", ",d") if name in first else "–",
            purpose,
        ]
        for name, purpose in report.monitors.items()
    ]
    if rows:
        head = ("Monitor", "First alarm", "What it measures")
        table = page.Table(head, rows)
        yield page.Section("Monitors", [table], folds="page", is_record=not first)
    curves = {name: curve for name, curve in report.trial.profiles.items() if len(curve) > 1}
    still = [name for name, curve in curves.items() if len({value for _, value in curve}) == 1]
    moved = [(name, curve) for name, curve in curves.items() if name not in still]
    parts = [(name, profile(name, [("", curve)], {"": 0})) for name, curve in moved]
    hint = "Of the whole model, or of its worst layer at each step."
    hint += f" Constant: {', '.join(still)}." * bool(still)
    yield page.Figure(title="All quantities", hint=hint, drawing=side_by_side(parts))
    if silent := silences(report.trial.silent):
        yield page.Notes(silent)
