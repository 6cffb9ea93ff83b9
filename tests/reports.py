"""Reports to render: one real one of a tiny model, and variations of it."""

from __future__ import annotations

import functools

from rksp.models.resolve import resolve
from rksp.options import MeasureOptions
from rksp.pipeline import evaluate
from rksp.recipe import Recipe
from rksp.report.build import build_report
from rksp.report.schema import FindingReport, Report

HOSTILE = '</script><b x="1">&|`%0A::error::*a*\n\x00'


@functools.cache
def scored(rate: float | None = 6e-4, initial_std: float = 0.02) -> Report:
    """A tiny GPT-2 at a rate."""
    tiny = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 512}
    tiny |= {"initializer_range": initial_std}
    source = resolve("gpt2", overrides={key: str(value) for key, value in tiny.items()})
    recipe = Recipe(learning_rate=rate)
    evaluation, shown = evaluate(source, recipe, MeasureOptions(states=256))
    return build_report(source, recipe, [evaluation], shown.description)


def finding(
    code: str = "RKSP101", level: str = "warning", layer: str = "", **more
) -> FindingReport:
    """A finding with no words of its own but those given."""
    words = {
        "message": f"{code} is off.",
        "healthy": "less",
        "fix": "Do less.",
        "source": "a paper",
    }
    content = {"code": code, "name": "initial-loss", "level": level, "layer": layer, "value": 1.5}
    return FindingReport(**(content | words | more))


def with_findings(*findings: FindingReport, rate: float | None = 6e-4) -> Report:
    """The real report with these findings in place of its own."""
    return scored(rate).model_copy(update={"findings": list(findings)})


def with_risk(report: Report, **risk: object) -> Report:
    """The same report with other fields of the answer; the verdict follows."""
    seed = report.seeds[0]
    changed = seed.risk.model_copy(update=risk)
    seeds = [seed.model_copy(update={"risk": changed}), *report.seeds[1:]]
    return report.model_copy(update={"seeds": seeds, "verdict": changed.verdict})


def hostile() -> Report:
    """Every text that comes from outside tries to break out of its place."""
    report = with_findings(finding(message=HOSTILE, layer=HOSTILE, fix=HOSTILE), rate=3.0)
    target = report.target.model_copy(update={"name": f"a{HOSTILE}", "kind": "config"})
    return report.model_copy(update={"target": target})
