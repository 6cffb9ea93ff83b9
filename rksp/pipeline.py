"""The main road: a target and a recipe in, the evidence and the answer out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rksp.checks.coverage import not_covered
from rksp.checks.evidence import CheckEvidence
from rksp.checks.registry import NotRun, not_run, run_checks
from rksp.classifiers.classifier import load_classifier
from rksp.classifiers.edge_inputs import Norm
from rksp.classifiers.edge_model import EdgeModel, load_edge_model
from rksp.datasets.probe import Probe
from rksp.documents.finding import Finding
from rksp.documents.score import AlternativeReport, RiskAssessment
from rksp.errors import ArtifactError
from rksp.evidence import Evidence, Progress, gather
from rksp.features import FEATURES, Tier, extract
from rksp.measure.forward import LOGITS_NOT_FINITE, ForwardStats
from rksp.measure.lr_range import RangeTest
from rksp.measure.response import GRADIENT_NOT_FINITE, ResponseProfile
from rksp.models.anatomy.equivalent import equivalent_shape
from rksp.models.source import ModelSource
from rksp.options import MeasureOptions
from rksp.recipe import Recipe
from rksp.risk import assess, certain_failure, edge_inputs
from rksp.spectra.model_profile import Profile

_VOCABULARY = 50_000  # of a model that has no classes
_SAME_SIZE = 1.002
_STRANGE = 3.0  # ranges of the labelled runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """All evidence for one seed of one target, and the answer it led to."""

    seed: int
    profile: Profile
    response: ResponseProfile | None
    range_test: RangeTest | None
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
    progress: Progress = lambda step: None,
) -> tuple[Evaluation, Probe]:
    """Gather the evidence for one target and recipe at one seed, and assess it.

    Args:
        source: The target.
        recipe: How it is to be trained.
        options: How it is measured, and at which seed.
        threshold, risk: See `rksp.risk.assess`.
        classifier: Default the shipped one; without any, the risk is missing with a reason.
        alternatives: Other recipes to answer for from the same evidence, each with its assumption.
        progress: Told what is about to happen.

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
    progress: Progress = lambda step: None,
) -> Evaluation:
    """Assess one recipe; measure only what no earlier recipe shared.

    Args:
        evidence: From `rksp.evidence.gather`.
        recipe: How the model is to be trained.
        threshold, risk: See `rksp.risk.assess`.
        classifier: Default the shipped one; without any, the risk is missing with a reason.
        alternatives: Other recipes to answer for from the same evidence, each with its assumption.
        progress: Told what is about to happen.
    """
    response = evidence.response(recipe, progress)
    rising = evidence.range_test(recipe, response, progress)
    missing, assessment, others = None, None, []

    def answer(recipe: Recipe) -> RiskAssessment:
        return _assess(
            evidence, recipe, response, rising, classifier, threshold=threshold, risk=risk
        )

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
        range_test=rising,
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
    rising: RangeTest | None,
    classifier: EdgeModel | None,
    **bars: float,
) -> RiskAssessment:
    """Return the answer of the model of the edge, or a certain failure without finite numbers."""
    seen, rate = evidence.profile, recipe.learning_rate
    broken = _not_finite(seen, response)
    if broken is not None:
        return certain_failure(
            broken, evidence.tier, steps=recipe.max_steps, learning_rate=rate, **bars
        )
    width, depth = seen.width, sum(length for _, length in seen.chains)
    if not seen.chains:
        width, depth = equivalent_shape(evidence.model)
    labelled = load_classifier()
    features = extract(
        recipe.model_copy(update={"learning_rate": rate or 1.0}),
        depth=depth,
        forward=seen.forward,
        spectra=seen.spectra,
        response=response,
        range_test=rising,
    )
    return assess(
        features,
        edge_inputs(
            recipe,
            width=width,
            depth=depth,
            vocabulary=_classes(seen.forward),
            norm=_norm(evidence),
        ),
        classifier or load_edge_model(),
        learning_rate=rate,
        diverged=rate and labelled.predict(features, "diverged").probability,
        **bars,
        doubts=(*_doubts(seen, response, recipe), *_strange(labelled.outside(features))),
    )


def _strange(outside: Mapping[str, float]) -> list[str]:
    """Why what was measured is like no labelled run, if it is not: in ranges of these runs."""
    measured = [f for f in FEATURES if f.tier > Tier.CONFIG]
    far = [(outside[f.name], f.meaning) for f in measured if outside.get(f.name, 0.0) > _STRANGE]
    return [
        f"{what} lies {by:.1f} ranges outside the labelled runs" for by, what in sorted(far)[-1:]
    ]


def _classes(forward: ForwardStats) -> int:
    """How many tokens or classes the model tells apart."""
    loss = forward.uniform_loss
    return _VOCABULARY if loss is None else max(2, round(math.exp(loss)))


def _norm(evidence: Evidence) -> Norm:
    """Where the blocks normalize: after the sum, every block leaves states of the same size."""
    if not evidence.facts.block_norms:
        return "none"
    sizes = [block.rms_out for block in evidence.profile.forward.blocks]
    is_post = len(sizes) > 1 and min(sizes) > 0 and max(sizes) < min(sizes) * _SAME_SIZE
    return "post" if is_post else "pre"


def _not_finite(seen: Profile, response: ResponseProfile | None) -> str | None:
    """What makes training impossible whatever the recipe, if anything does."""
    if seen.forward.not_measured.get("loss") == LOGITS_NOT_FINITE:
        return f"{LOGITS_NOT_FINITE} (first in {seen.forward.non_finite})"
    if response is not None and response.reason == GRADIENT_NOT_FINITE:
        return GRADIENT_NOT_FINITE
    return None


def _doubts(seen: Profile, response: ResponseProfile | None, recipe: Recipe) -> tuple[str, ...]:
    """Why the evidence does not carry an answer, if it does not."""
    unseen = not_covered(recipe)
    doubts = [] if seen.chains else ["the labelled runs all have a residual stream"]
    doubts += [f"the labelled runs hold no {', no '.join(unseen)}"] if unseen else []
    if seen.forward.loss is not None and seen.forward.uniform_loss is None:
        doubts.append("the labelled runs all minimize a cross-entropy, not this loss")
    if response is not None and response.reason is not None:
        doubts.append(f"the response could not be measured: {response.reason}")
    if response is None and seen.spectra.reading == "indeterminate":
        doubts.append(f"the spectrum is degenerate: {seen.spectra.reason}")
    if response is None and seen.spectra.reading == "not measured":
        doubts.append(f"neither spectra nor the response could be measured: {seen.spectra.reason}")
    return tuple(doubts)
