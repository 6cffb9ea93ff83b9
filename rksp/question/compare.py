"""The comparison of two reports: what became of each issue."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from rksp.documents.answer import Estimate
from rksp.documents.finding import Finding
from rksp.documents.score import ChangeReport, ComparisonReport, ScoreReport
from rksp.ground.errors import InputError
from rksp.ground.model import definite
from rksp.ground.text import short
from rksp.question.gate import RISK, deciding, issues

Figures = dict[str, float | None]
_ANSWER = {
    "P(failed)": "probability_failed",
    "start here": "start_here",
    "likely edge": "likely_edge",
    "do not exceed": "do_not_exceed",
}
RATES = ("start here", "likely edge", "do not exceed")
STATES = ("new", "worse", "unchanged", "better", "fixed")
RISE = 0.1  # P(failed) of the same initialization moves by less between machines and versions


def compare(old: ScoreReport, new: ScoreReport, *, strict: bool = False) -> ComparisonReport:
    """Return what changed from `old` to `new`.

    Two issues are the same if their code and module are equal; the wording may differ. An issue is
    worse (better) if its level rose (fell). The verdict is worse (better) if P(failed) rose (fell)
    by more than `RISE`.

    Args:
        old: The earlier report.
        new: The later report.
        strict: Refuse reports whose probabilities mean different things.

    Raises:
        InputError: `strict` is set, and the reports come from different classifiers.
    """
    notes = _doubts(old, new)
    if strict and notes:
        raise InputError(f"The baseline cannot be compared because {notes[0]}; score it again.")
    before = {issue.key: issue for issue in issues(old)}
    after = {issue.key: issue for issue in issues(new)}
    earlier, later = _compared(old), _compared(new)
    chances = earlier["P(failed)"], later["P(failed)"]
    moved = 0.0 if None in chances else definite(chances[1]) - definite(chances[0])
    changes = [_change(before.get(key), issue, moved) for key, issue in after.items()]
    changes += [
        ChangeReport.of(issue, state="fixed", was=issue.level)
        for key, issue in before.items()
        if key not in after
    ]
    was, now = _settings(old), _settings(new)
    settings = {
        name: (_text(was.get(name)), _text(now[name])) for name in now if was.get(name) != now[name]
    }
    numbers = {name: (number, later[name]) for name, number in earlier.items()}
    return ComparisonReport(
        target=(old.target.name, new.target.name),
        verdict=(old.verdict, new.verdict),
        changes=sorted(changes, key=lambda change: STATES.index(change.state)),
        settings=settings,
        places=_places(old, new, settings),
        numbers={n: pair for n, pair in numbers.items() if pair != (None, None)},
        notes=notes,
    )


def _change(was: Finding | None, issue: Finding, moved: float) -> ChangeReport:
    if was is None:
        state = "new"
    else:
        step = issue.severity - was.severity
        if issue.code == RISK and abs(moved) > RISE:
            step = 1 if moved > 0 else -1
        state = "worse" if step > 0 else "better" if step < 0 else "unchanged"
    return ChangeReport.of(issue, state=state, was=was.level if was else None)


def _doubts(old: ScoreReport, new: ScoreReport) -> list[str]:
    found = []
    before, after = deciding(old).risk, deciding(new).risk
    asked = {before.classifier_data, after.classifier_data} - {None}  # None: none was needed
    if len(asked) > 1:
        found.append("the two reports come from classifiers fitted on different data")
    if before.evidence != after.evidence:
        found.append(
            f"the evidence is {before.evidence} in the old report and {after.evidence} in the "
            "new one"
        )
    variants = [report.seeds[0].spectra.variant for report in (old, new)]
    modes = [_modes_kept(report) for report in (old, new)]
    for verb, (one, other) in (("are defined as", variants), ("keep", modes)):
        if one and other and one != other:
            found.append(f"the spectra {verb} {one} in the old report and {other} in the new one")
    return found


def _modes_kept(report: ScoreReport) -> str | None:
    """Say how far the spectra are reduced; masses with unequal modes per state do not compare.

    None where no block has a spectrum, as where the forward pass overflows.
    """
    measured = [layer for layer in report.seeds[0].spectra.layers if layer.rank and layer.states]
    shares = [layer.rank / layer.states for layer in measured if layer.rank < report.target.width]
    if not measured:
        return None
    if len(shares) < len(measured):
        return "every direction"
    return f"one mode per {round(1 / statistics.median(shares))} states"


def _settings(report: ScoreReport) -> dict[str, object]:
    target, risk = report.target, deciding(report).risk
    learned = risk.learned if isinstance(risk, Estimate) else None
    return report.recipe.model_dump() | {
        "target": target.name,
        "blocks": target.blocks,
        "config": target.config_hash,
        "width": target.width,
        "own runs": learned and f"{learned.runs} ({learned.ladders} sweeps)",
    }


def _places(
    old: ScoreReport, new: ScoreReport, settings: Iterable[str]
) -> dict[str, tuple[str | None, str | None]]:
    stands = [
        {name: f"{file}:{line}" for name, (file, line) in report.recipe_places.items()}
        for report in (old, new)
    ]
    found = {name: (stands[0].get(name), stands[1].get(name)) for name in settings}
    return {name: pair for name, pair in found.items() if any(pair)}


def _text(value: object) -> str | None:
    return None if value is None else short(value, 6) if isinstance(value, float) else str(value)


def figures_of(report: ScoreReport) -> Figures:
    """Return the answer in numbers: P(failed), and the rates S, E and X."""
    risk = deciding(report).risk
    return {said: risk.number(name) for said, name in _ANSWER.items()}


def _compared(report: ScoreReport) -> Figures:
    seed = deciding(report)
    return figures_of(report) | {
        "near-unit mass": seed.spectra.published_score,
        "initial loss": seed.forward.loss,
        "gradient norm": seed.gradient.grad_norm if seed.gradient else None,
    }
