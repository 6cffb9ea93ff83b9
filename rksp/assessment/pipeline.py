"""Turn a target and a recipe into the evidence and the answer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rksp.assessment.evidence import Evidence, gather
from rksp.assessment.risk import assess, certain_failure, edge_inputs
from rksp.checks.coverage import uncovered
from rksp.checks.evidence import CheckEvidence
from rksp.checks.registry import NotRun, not_run, run_checks
from rksp.classifiers.edge_inputs import CLASSIFIER_VOCABULARY, Norm
from rksp.classifiers.edge_model import EdgeModel, load_edge_model
from rksp.datasets.probe import Probe
from rksp.documents.finding import Finding
from rksp.documents.score import AlternativeReport, RiskAssessment
from rksp.features import extract
from rksp.ground.errors import ArtifactError
from rksp.measure.forward import LOGITS_NOT_FINITE
from rksp.measure.response import GRADIENT_NOT_FINITE, ResponseProfile
from rksp.models.anatomy.equivalent import equivalent_shape
from rksp.models.source import ModelSource
from rksp.models.streaming.meter import Progress
from rksp.options import MeasureOptions
from rksp.recipe import Recipe
from rksp.spectra.model_profile import Profile

_VOCABULARY = 50_000  # for a model without classes
_SAME_SIZE = 1.002


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """All evidence for one seed of one target, and the resulting answer."""

    seed: int
    profile: Profile
    response: ResponseProfile | None
    risk: RiskAssessment | None
    risk_missing: str | None
    alternatives: tuple[AlternativeReport, ...] = ()
    findings: tuple[Finding, ...] = ()
    not_run: tuple[NotRun, ...] = ()
    weights: str = "in memory"
    seconds: Mapping[str, float] = field(default_factory=dict)


def evaluate(
    source: ModelSource,
    recipe: Recipe,
    options: MeasureOptions | None = None,
    *,
    threshold: float = 0.5,
    risk: float = 0.05,
    classifier: EdgeModel | None = None,
    alternatives: Sequence[tuple[str, Recipe]] = (),
    progress: Progress = lambda done, total, label: None,
) -> tuple[Evaluation, Probe]:
    """Gather the evidence for one target and recipe at one seed, and assess it.

    Args:
        source: The target.
        recipe: How it is to be trained.
        options: How it is measured, and at which seed.
        threshold: See `rksp.assessment.risk.assess`.
        risk: See `rksp.assessment.risk.assess`.
        classifier: Default the bundled one; without any, the risk is missing with a reason.
        alternatives: Other recipes to assess with the same evidence, each with its assumption.
        progress: Called at the start of each step and as it proceeds; see `Progress`.

    Returns:
        The evaluation and the probe.

    Raises:
        InputError: An option, the probe or the model cannot be used.
    """
    evidence = gather(source, options, progress=progress)
    evaluation = judge(
        evidence,
        recipe,
        threshold=threshold,
        risk=risk,
        classifier=classifier,
        alternatives=alternatives,
        progress=progress,
    )
    return evaluation, evidence.probe


def judge(
    evidence: Evidence,
    recipe: Recipe,
    *,
    threshold: float = 0.5,
    risk: float = 0.05,
    classifier: EdgeModel | None = None,
    alternatives: Sequence[tuple[str, Recipe]] = (),
    progress: Progress = lambda done, total, label: None,
) -> Evaluation:
    """Assess one recipe; measure only what no earlier recipe has measured.

    Args:
        evidence: From `rksp.assessment.evidence.gather`.
        recipe: How the model is to be trained.
        threshold: See `rksp.assessment.risk.assess`.
        risk: See `rksp.assessment.risk.assess`.
        classifier: Default the bundled one; without any, the risk is missing with a reason.
        alternatives: Other recipes to assess with the same evidence, each with its assumption.
        progress: Called at the start of each step and as it proceeds; see `Progress`.

    Returns:
        The evaluation.
    """
    response = evidence.response(recipe, progress)
    missing, assessment, others = None, None, []

    def answer(recipe: Recipe) -> RiskAssessment:
        return _assess(evidence, recipe, response, classifier, threshold=threshold, risk=risk)

    try:
        assessment = answer(recipe)
        others = [AlternativeReport.of(answer(r), assumption=text) for text, r in alternatives]
    except ArtifactError as error:
        missing = str(error)
    trusted = assessment if assessment is not None and not assessment.reasons else None
    checked = CheckEvidence(
        recipe=recipe,
        config=evidence.source.config,
        facts=evidence.facts,
        forward=evidence.profile.forward,
        response=response,
        start_here=trusted and trusted.start_here,
        do_not_exceed=trusted and trusted.do_not_exceed,
        likely_edge=trusted and trusted.likely_edge,
        is_pretrained=evidence.source.is_pretrained,
    )
    return Evaluation(
        seed=evidence.options.seed,
        profile=evidence.profile,
        response=response,
        risk=assessment,
        risk_missing=missing,
        alternatives=tuple(others),
        findings=run_checks(checked),
        not_run=not_run(checked),
        weights=evidence.weights,
        seconds=dict(evidence.seconds),
    )


def _assess(
    evidence: Evidence,
    recipe: Recipe,
    response: ResponseProfile | None,
    classifier: EdgeModel | None,
    **bars: float,
) -> RiskAssessment:
    """Return the edge model's answer, or a certain failure if numbers are not finite."""
    seen, rate = evidence.profile, recipe.learning_rate
    broken = _not_finite(seen, response)
    if broken is not None:
        return certain_failure(
            broken, evidence.tier, steps=recipe.max_steps, learning_rate=rate, **bars
        )
    width, depth = seen.width, sum(length for _, length in seen.chains)
    if not seen.chains:
        width, depth = equivalent_shape(evidence.model)
    return assess(
        extract(seen.forward, seen.spectra, response),
        edge_inputs(
            recipe,
            width=width,
            depth=depth,
            vocabulary=_vocabulary(evidence),
            norm=_norm(evidence),
        ),
        classifier or load_edge_model(),
        learning_rate=rate,
        **bars,
        doubts=_doubts(seen, response, recipe),
    )


def _vocabulary(evidence: Evidence) -> int:
    """Return the number of tokens that the model distinguishes."""
    loss = evidence.profile.forward.uniform_loss
    if evidence.source.task.endswith("classification"):
        return CLASSIFIER_VOCABULARY
    return _VOCABULARY if loss is None else max(2, round(math.exp(loss)))


def _norm(evidence: Evidence) -> Norm:
    """Tell where the blocks normalize: post-norm blocks all leave states of the same size."""
    if not evidence.facts.block_norms:
        return "none"
    sizes = [block.rms_out for block in evidence.profile.forward.blocks]
    is_post = len(sizes) > 1 and min(sizes) > 0 and max(sizes) < min(sizes) * _SAME_SIZE
    return "post" if is_post else "pre"


def _not_finite(seen: Profile, response: ResponseProfile | None) -> str | None:
    """Return what makes training impossible for any recipe, or None."""
    if seen.forward.not_measured.get("loss") == LOGITS_NOT_FINITE:
        return f"{LOGITS_NOT_FINITE} (first in {seen.forward.non_finite})"
    if response is not None and response.reason == GRADIENT_NOT_FINITE:
        return GRADIENT_NOT_FINITE
    return None


def _doubts(seen: Profile, response: ResponseProfile | None, recipe: Recipe) -> tuple[str, ...]:
    """Return the reasons why the evidence does not support an answer."""
    doubts = [] if seen.chains else ["the labelled runs all have a residual stream"]
    doubts += uncovered(recipe)
    if seen.forward.loss is not None and seen.forward.uniform_loss is None:
        doubts.append("the labelled runs all minimize a cross-entropy, not this loss")
    if response is not None and response.reason is not None:
        doubts.append(f"the response could not be measured: {response.reason}")
    if response is None and seen.spectra.reading == "indeterminate":
        doubts.append(f"the spectrum is degenerate: {seen.spectra.reason}")
    if response is None and seen.spectra.reading == "not measured":
        doubts.append(f"neither spectra nor the response could be measured: {seen.spectra.reason}")
    return tuple(doubts)
