"""Reports to render: a real one of a tiny model, and variations of it."""

from __future__ import annotations

import functools

from pydantic import TypeAdapter

from rksp.assessment.pipeline import evaluate, score_report
from rksp.documents.answer import Answer, Untold
from rksp.documents.finding import Finding
from rksp.documents.options import MeasureOptions
from rksp.documents.score import ScoreReport
from rksp.documents.verdict import combined
from rksp.models.resolve import resolve
from rksp.recipe import Recipe

HOSTILE = '</script><b x="1">&|`%0A::error::*a*\n\x00'


@functools.cache
def scored(rate: float | None = 6e-4, initial_std: float = 0.02) -> ScoreReport:
    """Score a tiny GPT-2 at a rate."""
    tiny = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 512}
    tiny |= {"initializer_range": initial_std}
    source = resolve("gpt2", overrides={key: str(value) for key, value in tiny.items()})
    recipe = Recipe(learning_rate=rate)
    return score_report(recipe, [evaluate(source, recipe, MeasureOptions(states=256))])


def finding(code: str = "RKSP101", level: str = "warning", layer: str = "", **more) -> Finding:
    """Return a finding whose only words are the given ones."""
    words = {
        "message": f"{code} is off.",
        "healthy": "less",
        "fix": "Do less.",
        "source": "a paper",
    }
    content = {"code": code, "name": "initial-loss", "level": level, "layer": layer, "value": 1.5}
    return Finding(**(content | words | more))


def with_findings(*findings: Finding, rate: float | None = 6e-4) -> ScoreReport:
    """Return the real report with these findings instead of its own."""
    return judged(scored(rate).model_copy(update={"findings": list(findings)}))


def with_risk(report: ScoreReport, **risk: object) -> ScoreReport:
    """Return the same report with other fields of the answer; the verdict follows from them."""
    seed = report.seeds[0]
    said = seed.risk.model_dump() | risk
    if risk.get("verdict") in ("cannot tell", "not assessed"):
        said = {n: said[n] for n in Untold.model_fields if n in said} | {"kind": "untold"}
    changed = TypeAdapter(Answer).validate_python(said)
    seeds = [seed.model_copy(update={"risk": changed}), *report.seeds[1:]]
    return judged(report.model_copy(update={"seeds": seeds, "risk_verdict": changed.verdict.value}))


def judged(report: ScoreReport) -> ScoreReport:
    """Return the report with the verdict that its parts have together."""
    verdict = combined(report.risk_verdict, report.findings)
    return report.model_copy(update={"verdict": verdict})


def hostile() -> ScoreReport:
    """Return a report in which every outside text tries to break out of its place."""
    report = with_findings(finding(message=HOSTILE, layer=HOSTILE, fix=HOSTILE), rate=3.0)
    target = report.target.model_copy(update={"name": f"a{HOSTILE}", "kind": "config"})
    return report.model_copy(update={"target": target})
