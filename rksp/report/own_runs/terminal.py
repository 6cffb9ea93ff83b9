"""Past runs for a person at a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich.console import Group
from rich.table import Table
from rich.text import Text

from rksp.documents.own_runs import (
    HistoryReport,
    PastLadderReport,
    RunsReport,
    ScorecardReport,
)
from rksp.ground.text import one_line, short
from rksp.report import words

_STYLES = {"diverged": "red", "failed": "red", "healthy": "green", "spiked": "yellow"}
_MOST_ROWS = 200  # runs of a table; JSON holds all of them
_MOST_NAMED = 5


def render(report: RunsReport) -> Group:
    """Render what was read, every run by its ladder, and the scorecard."""
    history = report.history
    lines = [Text(summary(history), style="bold")]
    if history.doubt:
        lines.append(Text(f"  nothing is learned: {history.doubt}", style="yellow"))
    parts: list[Text | Table] = [*lines, Text(), table(history)]
    parts += [Text(f"· {note}", style="dim") for note in notes(history)]
    if report.scorecard is not None:
        parts += [Text(), *(Text(line) for line in card(report.scorecard))]
    return Group(*parts)


def summary(history: HistoryReport) -> str:
    """Say how many runs were read, and how they ended: `14 runs (2 ladders): 9 healthy, …`."""
    runs = [run for ladder in history.ladders for run in ladder.runs]
    ladders = sum(_is_ladder(ladder) for ladder in history.ladders)
    counted = Counter(run.label for run in runs)
    ends = ", ".join(f"{count} {label}" for label, count in counted.most_common())
    return f"{_many(len(runs), 'run')} ({_many(ladders, 'ladder')}): {ends}"


def table(history: HistoryReport) -> Table:
    """Return a row for every run: its rate and loss, what rksp says, what happened."""
    made = Table(box=None, pad_edge=False, padding=(0, 2), header_style="bold")
    for title in ("ladder", "rate", "final loss", "above best", "P(failed) said"):
        made.add_column(title, justify="right", no_wrap=True)
    made.add_column("label", no_wrap=True)
    made.add_column("run", no_wrap=True, overflow="ellipsis")
    rows = [(n, run) for n, ladder in enumerate(history.ladders, 1) for run in ladder.runs]
    for number, run in rows[:_MOST_ROWS]:
        made.add_row(
            str(number),
            short(run.learning_rate),
            "–" if run.final_loss is None else f"{run.final_loss:.3f}",
            "–" if run.excess is None else f"{run.excess:.2f}",
            "–" if run.said is None else words.percent(run.said),
            Text(run.label, style=_STYLES.get(run.label, "")),
            Text(one_line(run.name, 60)),
        )
    return made


def notes(history: HistoryReport) -> Iterator[str]:
    """Yield what each ladder shows, what contradicts what, and what was left out."""
    for number, ladder in enumerate(history.ladders, start=1):
        found = [_edge(ladder)] if _is_ladder(ladder) and (_says(ladder) or ladder.untold) else []
        found += ["from trained weights"] if ladder.starts_trained else []
        found += [f"not used, {ladder.unused}"] if ladder.unused else []
        found += [ladder.surprise] if ladder.surprise else []
        if found and (_is_ladder(ladder) or ladder.surprise):
            yield f"ladder {number} ({one_line(ladder.name, 100)}): {'; '.join(found)}"
    hidden = sum(len(ladder.runs) for ladder in history.ladders) - _MOST_ROWS
    if hidden > 0:
        yield f"{hidden:,} more runs: --format json lists all"
    assumed = sorted({name for ladder in history.ladders for name in ladder.assumed})
    if assumed:
        yield f"not said by every run, so taken from the recipe in question: {', '.join(assumed)}"
    if history.ignored:
        columns = one_line(", ".join(history.ignored), 300)
        yield f"ignored columns (neither recipe nor settings of the model): {columns}"
    for reason, names in _reasons(history).items():
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        yield one_line(f"left out, {reason}: {', '.join(names[:_MOST_NAMED])}{more}", 400)


def card(found: ScorecardReport) -> Iterator[str]:
    """Yield the scorecard: ranking, calibration, and how far the edges were missed."""
    yield "How well rksp, which saw none of these runs, would have predicted them:"
    ranked = "" if found.auroc is None else f"AUROC {found.auroc:.2f}; "
    missed = "" if found.ece is None else f" (calibration error {found.ece:.2f})"
    yield (
        f"  {found.runs} runs, {found.failed} failed: {ranked}it expected "
        f"{found.said * found.runs:.1f}{missed}"
    )
    if found.edge_error is not None:
        inside = "" if found.covered is None else f", {found.covered:.0%} in its 90 % range"
        yield (
            f"  {_many(found.ladders, 'ladder')} with an edge: missed by {found.edge_error:.2f} "
            f"decades in the median{inside}"
        )
    if found.best_error is not None:
        yield f"  best rates: missed by {found.best_error:.2f} decades in the median"
    if found.edge_error_with_others is not None:
        yield (
            f"  edges when it knows the other ladders: missed by "
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
    if ladder.untold:
        return f"{seen}{best}; rksp cannot tell ({ladder.untold})"
    said = words.rate(ladder.likely_edge), words.rate(ladder.best_said)
    return f"{seen}{best}; rksp said {said[0]} and {said[1]}"


def _says(ladder: PastLadderReport) -> bool:
    return ladder.likely_edge is not None


def _reasons(history: HistoryReport) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in history.left_out:
        found.setdefault(one.reason, []).append(one.name)
    return found


def _is_ladder(ladder: PastLadderReport) -> bool:
    return len({run.learning_rate for run in ladder.runs}) > 1


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
