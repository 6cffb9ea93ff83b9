"""Score from the configuration and the recipe alone; no model is built and nothing is run."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

from rksp.assessment.configured import configured_inputs
from rksp.assessment.risk import assess
from rksp.checks.coverage import uncovered
from rksp.checks.registry import recipe_findings
from rksp.classifiers.edge_model import EdgeModel, load_edge_model
from rksp.documents.score import (
    AlternativeReport,
    ForwardReport,
    NotRunReport,
    RiskAssessment,
    ScoredTarget,
    ScoreReport,
    SeedReport,
    SpectraReport,
)
from rksp.documents.verdict import combined
from rksp.features import extract
from rksp.ground.errors import ArtifactError, InputError
from rksp.models.declared import Declared
from rksp.models.source import ModelSource
from rksp.recipe import Recipe

_WHY = "the evidence is the configuration; nothing was run"


def score_configuration(
    source: ModelSource,
    recipe: Recipe,
    *,
    threshold: float = 0.5,
    risk: float = 0.05,
    classifier: EdgeModel | None = None,
    alternatives: Sequence[tuple[str, Recipe]] = (),
) -> ScoreReport:
    """Score a target whose model is not built.

    Args:
        source: The target; a module or a factory has no configuration.
        recipe: How the model is to be trained.
        threshold: See `rksp.assessment.risk.assess`.
        risk: See `rksp.assessment.risk.assess`.
        classifier: The model of the edge; default the bundled one.
        alternatives: See `rksp.assessment.pipeline.evaluate`.

    Returns:
        The report.

    Raises:
        InputError: The target has no configuration.
    """
    if source.config is None:
        raise InputError(
            f"{source.target} has no configuration; leave out --evidence config to measure it."
        )
    bars = {"threshold": threshold, "risk": risk}
    answer, missing = _assessed(source, recipe, classifier, **bars)
    said = Declared(source.config, source.task)
    checked = recipe_findings(
        recipe,
        source.config,
        task=source.task,
        is_pretrained=source.is_pretrained,
        answer=answer if answer is not None and not answer.reasons else None,
    )
    answers = (
        (text, _assessed(source, other, classifier, **bars)[0]) for text, other in alternatives
    )
    others = [AlternativeReport.of(other, assumption=text) for text, other in answers if other]
    risk_verdict = "not assessed" if answer is None else answer.verdict.value
    return ScoreReport(
        target=ScoredTarget.of(
            source,
            name=source.target,
            model_type=getattr(source.config, "model_type", None),
            parameters=_parameters(source, said),
            blocks=[],
            width=said.width or 0,
            probe="nothing",
            notes=list(source.notes),
        ),
        recipe=recipe,
        verdict=combined(risk_verdict, checked.findings),
        risk_verdict=risk_verdict,
        findings=list(checked.findings),
        not_run=[NotRunReport.of(check) for check in checked.not_run],
        seeds=[_unmeasured(risk=answer, risk_missing=missing, alternatives=others)],
        spread={},
        provenance={
            "rksp": version("rksp"),
            "transformers": version("transformers"),
            "weights": "not built",
        },
        kernels=[],
        timings={},
    ).finite()


def _unmeasured(**answer: object) -> SeedReport:
    """Return the report of a seed with an answer and without a measurement."""
    spectra = SpectraReport(
        variant="none",
        reading="not measured",
        reason=_WHY,
        coverage=0.0,
        published_score=None,
        aggregates={},
        layers=[],
    )
    empty = dict.fromkeys(ForwardReport.model_fields)
    missing = {"not_measured": {"forward": _WHY, "response": _WHY}}
    forward = ForwardReport(**empty | missing)
    return SeedReport(seed=0, spectra=spectra, forward=forward, response=None, **answer)


def _assessed(
    source: ModelSource, recipe: Recipe, classifier: EdgeModel | None, **bars: float
) -> tuple[RiskAssessment | None, str | None]:
    """Return the answer, or the reason why there is none."""
    rate = recipe.learning_rate
    try:
        inputs = configured_inputs(source.config, recipe, source.task)
        doubts = tuple(uncovered(recipe))
        model = classifier or load_edge_model()
        return assess(extract(), inputs, model, learning_rate=rate, doubts=doubts, **bars), None
    except (ArtifactError, InputError) as error:
        return None, str(error)


def _parameters(source: ModelSource, said: Declared) -> int | None:
    """Return the number of parameters; one that was not counted is computed."""
    shape = said.shape()
    return source.num_parameters or (None if shape is None else round(shape.parameters))
