"""HTML: one file that needs no network, no script and no font of its own."""

from __future__ import annotations

import json
from collections import Counter

from markupsafe import Markup

from rksp.documents.score import RiskAssessment, ScoreReport
from rksp.ground.model import definite
from rksp.ground.text import short
from rksp.report import words
from rksp.report.issues import deciding
from rksp.report.own_runs.terminal import notes as own_notes
from rksp.report.pages import likelihood, page
from rksp.report.score import figures
from rksp.report.score.measured import COLUMNS, RANGE_NOTE, measured, usual
from rksp.spectra.spectrum import VARIANTS

_SHOWN_CIRCLES = 24


def render(report: ScoreReport) -> str:
    """Render the page of a score report, with the report's JSON inside."""
    document = json.loads(report.to_json())
    seed = deciding(report)
    layers = seed.spectra.layers
    variant = VARIANTS.get(seed.spectra.variant)
    frame = figures.frame(layers)
    circles = figures.circles(layers, frame, variant.near_unit if variant else None)
    step = max(1, -(-len(circles) // _SHOWN_CIRCLES))
    return page(
        "score.html.j2",
        document,
        words=words,
        report=report,
        seed=seed,
        at=f"seeds/{report.seeds.index(seed)}",
        version=report.provenance.get("rksp", ""),
        headline=_headline(report, seed.risk),
        gauge=_gauge(seed.risk),
        doubtful=seed.risk is not None and words.can_not_tell(seed.risk),
        deciding=words.reason(report),
        curves=_curves(report, seed.risk),
        variant=variant,
        frame=frame,
        has_far=any('class="eigen far"' in circle.drawing for circle in circles),
        circles=circles[::step],
        more_circles=circles if step > 1 else [],
        heat=figures.heat_map(layers),
        columns=COLUMNS,
        usual=usual,
        measured=measured(seed),
        range_note=RANGE_NOTE,
        reasons=_reasons(report, seed.risk),
        changes=Counter(c.state for c in report.baseline.changes) if report.baseline else None,
        notes=words.notes(report, seed),
        own_notes=list(own_notes(report.own_runs)) if report.own_runs else [],
    )


def framed(report: ScoreReport) -> str:
    """Render the page in a frame for notebooks: its styles stay inside, and no script runs."""
    return str(
        Markup(
            '<iframe sandbox="" title="rksp: {}" srcdoc="{}" '
            'style="width: 100%; height: 680px; border: 0"></iframe>'
        ).format(report.target.name, str(render(report)))
    )


def _headline(report: ScoreReport, risk: RiskAssessment | None) -> str:
    finding = words.reason(report)
    if finding is not None:
        return f"{words.sentence(finding.level)} {finding.code}: {finding.message}"
    if risk is None:
        return "The risk was not assessed"
    if words.can_not_tell(risk):
        return "rksp cannot tell"
    if said := words.published(report, risk):
        return words.sentence(said)
    if report.recipe.learning_rate is None or risk.probability_failed is None:
        if risk.start_here is None:
            return "No learning rate trains this model"
        return f"Start at a learning rate of {short(risk.start_here, 2)}"
    return f"{likelihood(risk.probability_failed).capitalize()} to fail"


def _gauge(risk: RiskAssessment | None) -> Markup | None:
    if risk is None or risk.probability_failed is None or words.can_not_tell(risk):
        return None
    low, high = risk.probability_failed_low, risk.probability_failed_high
    return figures.gauge(risk.probability_failed, definite(low), definite(high), risk.threshold)


def _curves(report: ScoreReport, risk: RiskAssessment | None) -> list[tuple[str, Markup]]:
    """Draw the curve twice, for wide and narrow screens, so that text does not shrink."""
    if risk is None or not risk.curve or words.can_not_tell(risk):
        return []
    rate, past = report.recipe.learning_rate, _past(report, risk)
    return [
        ("wide", figures.risk_curve(risk, rate, width=920, height=360, past=past)),
        ("narrow", figures.risk_curve(risk, rate, width=350, height=320, past=past)),
    ]


def _past(report: ScoreReport, risk: RiskAssessment) -> list[tuple[float, bool]]:
    """Return the rates of past runs that count, and whether they failed.

    Those of another model stand where the shipped model, which saw none of them, would put the same
    distance from the edge.
    """
    if report.own_runs is None or risk.learned is None or risk.likely_edge is None:
        return []
    expected = risk.likely_edge / 10**risk.learned.edge_shift
    is_tuned = risk.answered_by == "fine-tuning"
    return [
        (run.learning_rate * expected / ladder.likely_edge, run.label in ("failed", "diverged"))
        for ladder in report.own_runs.ladders
        if ladder.likely_edge is not None
        and not ladder.unused
        and ladder.starts_trained == is_tuned
        for run in ladder.runs
        if run.label not in ("unknown", "unfinished")
    ]


def _reasons(
    report: ScoreReport, risk: RiskAssessment | None
) -> list[tuple[int, str, float, float]]:
    """Return index, meaning, decades and relative bar length of each reason that matters."""
    if not words.has_reasons(report, risk):
        return []
    longest = max((abs(c.decades) for c in definite(risk).contributions), default=0.0)
    return [
        (index, c.meaning, c.decades, abs(c.decades) / longest)
        for index, c in enumerate(definite(risk).contributions)
        if abs(c.decades) >= 0.05
    ][:12]
