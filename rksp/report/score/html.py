"""HTML: one file that needs no network, no script and no font of its own."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from rksp.documents.score import RiskAssessment, ScoreReport
from rksp.ground.model import definite
from rksp.ground.sizes import count
from rksp.ground.text import short
from rksp.recipe_files.said.table_text import shown
from rksp.report import words
from rksp.report.issues import deciding
from rksp.report.own_runs.terminal import notes as own_notes
from rksp.report.score import figures
from rksp.report.score.measured import COLUMNS, RANGE_NOTE, measured, usual
from rksp.spectra.spectrum import VARIANTS

_SHOWN_CIRCLES = 24
PERCENT = "percent"  # the form of a probability
# Mastrandrea et al. (2010), guidance note on uncertainties of the IPCC: upper end and words.
LIKELIHOOD = (
    (0.01, "exceptionally unlikely"),
    (0.1, "very unlikely"),
    (0.33, "unlikely"),
    (0.66, "about as likely as not"),
    (0.9, "likely"),
    (0.99, "very likely"),
    (1.0, "virtually certain"),
)


class Numbers:
    """Writes numbers of a document with where they stand in it.

    `{{ n("seeds/0/risk/likely_edge") }}` becomes `<data value="0.00373" data-path="...">0.00373`:
    what a reader sees is short, what a machine reads is the document's own number.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document

    def __call__(self, path: str, form: str = "", digits: int = 3) -> Markup:
        """Return the number at a path of the document, marked with that path."""
        value: Any = self._document
        for part in path.split("/"):
            value = value[int(part)] if isinstance(value, list) else value[part]
        if value is None:
            return Markup('<span class="none">–</span>')
        if form == PERCENT:
            shown = words.percent(value)
        else:
            shown = format(value, form) if form else short(value, digits)
        return Markup('<data value="{!r}" data-path="{}">{}</data>').format(value, path, shown)


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


def page(template: str, document: dict[str, Any], **content: Any) -> str:
    """Fill a template; escape everything but `Markup`, as configurations may be hostile."""
    environment = Environment(
        loader=PackageLoader("rksp.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "n": Numbers(document),
        "words": words,
        "short": short,
        "shown": shown,
        "count": count,
    }
    environment.filters["likelihood"] = likelihood
    return environment.get_template(template).render(embedded=_embedded(document), **content)


def likelihood(probability: float) -> str:
    """Return a probability in the words of the IPCC's guidance note."""
    return next(name for end, name in LIKELIHOOD if probability <= end)


def _headline(report: ScoreReport, risk: RiskAssessment | None) -> str:
    finding = words.reason(report)
    if finding is not None:
        return f"{words.sentence(finding.level)} {finding.code}: {finding.message}"
    if risk is None:
        return "The risk was not assessed"
    if words.can_not_tell(risk):
        return "rksp cannot tell"
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


def _embedded(document: dict[str, Any]) -> Markup:
    """Return JSON for a script element, with "<" escaped so that the element cannot end early."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))
