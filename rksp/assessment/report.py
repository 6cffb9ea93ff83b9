"""Write the document of a score: turn the evaluations of one target into a `ScoreReport`."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Sequence
from typing import Any

from rksp.assessment.evidence import NOTHING_RAN
from rksp.assessment.pipeline import Evaluation
from rksp.documents.score import (
    ForwardReport,
    LayerReport,
    NotRunReport,
    ScoredTarget,
    ScoreReport,
    SeedReport,
    SpectraReport,
)
from rksp.documents.verdict import combined, worst
from rksp.ground.model import definite
from rksp.ground.versions import version
from rksp.models.declared import Declared
from rksp.models.type_table import TableConfig, common
from rksp.recipe import Recipe


def score_report(recipe: Recipe, evaluations: Sequence[Evaluation]) -> ScoreReport:
    """Make the report of one or more seeds of a target and recipe, with finite numbers only."""
    first = evaluations[0]
    verdicts = [e.risk.verdict.value if e.risk else "not assessed" for e in evaluations]
    risk_verdict = prevailing(verdicts)
    decides = evaluations[verdicts.index(risk_verdict)]
    seeds = [_seed(evaluation) for evaluation in evaluations]
    return ScoreReport(
        target=_target(first),
        recipe=recipe,
        verdict=combined(risk_verdict, decides.findings),
        risk_verdict=risk_verdict,
        findings=list(decides.findings),
        not_run=[NotRunReport.of(check) for check in decides.not_run],
        seeds=seeds,
        spread=_spread(seeds),
        provenance=_provenance(first),
        timings={
            f"{step} (seed {evaluation.seed})": round(seconds, 3)
            for evaluation in evaluations
            for step, seconds in evaluation.seconds.items()
        },
    ).finite()


def _target(first: Evaluation) -> ScoredTarget:
    """Describe the model: as measured, or else as its configuration declares it."""
    source = first.source
    names = {"name": source.target, "model_type": getattr(source.config, "model_type", None)}
    if (seen := first.measurement) is not None:
        profile = definite(first.profile)
        notes = [*source.notes, *profile.notes]
        sizes = {"parameters": source.num_parameters, "blocks": profile.chains}
        return ScoredTarget.of(source, profile, seen, **names, **sizes, notes=notes)
    said = Declared(source.config, source.task)
    shape = said.shape
    computed = None if shape is None else round(shape.parameters)
    return ScoredTarget.of(
        source,
        **names,
        parameters=source.num_parameters or computed,
        blocks=[],
        width=said.width or 0,
        probe="nothing",
        notes=list(source.notes),
    )


def _provenance(first: Evaluation) -> dict[str, str | int | float | bool | None]:
    made: dict[str, Any] = {"rksp": version("rksp"), "transformers": version("transformers")}
    if (seen := first.measurement) is None:
        if isinstance(first.source.config, TableConfig):  # the table's release read it
            made["transformers"] = common().transformers
        return made | {"weights": "not built"}
    return made | {
        "weights": seen.weights,
        "torch": version("torch"),
        "python": platform.python_version(),
        "dtype": "float32",
        "states": seen.profile.states,
        "variant": seen.profile.spectra.variant,
    }


def prevailing(verdicts: Sequence[str]) -> str:
    """Return the most frequent verdict over the seeds; for ties, the worst of them."""
    return worst(*statistics.multimode(verdicts))


def _seed(evaluation: Evaluation) -> SeedReport:
    """Report one seed; a block's scales come from the forward pass, the rest from its spectrum."""
    if evaluation.profile is None:
        return _unmeasured(evaluation)
    spectra, forward = evaluation.profile.spectra, evaluation.profile.forward
    scales = {block.name: block for block in forward.blocks}
    layers = [
        LayerReport.of(layer, scales[layer.name], rank=layer.modes) for layer in spectra.layers
    ]
    return SeedReport.of(
        evaluation,
        spectra=SpectraReport.of(spectra, layers=layers),
        forward=ForwardReport.of(forward),
    )


def _unmeasured(evaluation: Evaluation) -> SeedReport:
    """Report an answer without a measurement."""
    spectra = SpectraReport(
        variant="none",
        reading="not measured",
        reason=NOTHING_RAN,
        coverage=0.0,
        published_score=None,
        aggregates={},
        layers=[],
    )
    empty = dict.fromkeys(ForwardReport.model_fields)
    missing = {"not_measured": {"forward": NOTHING_RAN, "gradient": NOTHING_RAN}}
    forward = ForwardReport(**empty | missing)
    return SeedReport.of(evaluation, spectra=spectra, forward=forward)


def _spread(seeds: Sequence[SeedReport]) -> dict[str, dict[str, float]]:
    if len(seeds) < 2:
        return {}
    values: dict[str, list[Any]] = {
        "published_score": [seed.spectra.published_score for seed in seeds]
    }
    for name in ("probability_failed", "start_here", "do_not_exceed", "likely_edge"):
        values[name] = [getattr(seed.risk, name, None) for seed in seeds]
    return {
        name: {
            "mean": statistics.fmean(found),
            "std": statistics.stdev(found),
            "low": min(found),
            "high": max(found),
        }
        for name, found in values.items()
        if None not in found
    }
