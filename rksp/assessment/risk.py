"""Turn evidence into an answer: three rates, the risk of failure, its causes and its cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rksp.classifiers.edge_estimate import EdgeEstimate
from rksp.classifiers.edge_inputs import (
    CLASSIFIER_VOCABULARY,
    MEANINGS,
    OPTIMIZERS,
    EdgeInputs,
    Norm,
)
from rksp.classifiers.edge_model import EdgePredictor
from rksp.documents.score import Contribution, CurvePoint, LeverReport, RiskAssessment
from rksp.documents.verdict import Verdict, verdict_at
from rksp.ground.errors import NotCovered
from rksp.ground.text import short
from rksp.models.declared import Declared
from rksp.optimizers.table import optimizer_spec
from rksp.recipe import Recipe
from rksp.spectra.features import FEATURES, Features, Tier

if TYPE_CHECKING:  # loaded for trained weights alone
    from rksp.classifiers.fine_tuning.estimate import FineTuningEstimate

# Rates to evaluate; a twentieth of a decade is 12 %.
RATES = tuple(float(f"{10**decade:.4g}") for decade in np.arange(-7.0, 1.0001, 0.05))
_FAR = 0.7  # decades (or units of a flag) beyond the data at which rksp cannot tell
_STRANGE = 3.0  # ranges of the labelled runs beyond which a measured feature is like none of them
_CLEARLY_LOWER = 0.98  # of the recipe's rate: what lies nearer is no other rate to a reader
_COSTLY = 0.05  # nats; a smaller extra loss at a low rate is not mentioned
_LONG_STEPS = 1000  # beyond it, the sources have one ladder without normalization


def edge_inputs(
    recipe: Recipe, *, width: int, depth: int, vocabulary: int, norm: Norm, **kind: Any
) -> EdgeInputs:
    """Return the inputs of the edge model for a recipe and a model; `kind` as `kind_of` has it."""
    spec = optimizer_spec(recipe.optimizer)
    return EdgeInputs(
        width=width,
        depth=depth,
        vocabulary=vocabulary,
        sequence_length=recipe.sequence_length,
        batch_tokens=recipe.batch_size * recipe.sequence_length,
        steps=recipe.max_steps,
        warmup_steps=recipe.warmup_steps,
        optimizer=spec.counts_as or spec.name,
        muon_scale=recipe.muon_scale if spec.name == "muon" else "original",
        late_share=recipe.late_share,
        beta1=recipe.adam_beta1,
        beta2=recipe.adam_beta2,
        norm=norm,
        **kind,
    )


def kind_of(declared: Declared) -> dict[str, Any]:
    """Return what a configuration declares of the kind of model, as fields of `EdgeInputs`."""
    return {
        "family": declared.name,
        "is_parallel": declared.is_parallel,
        "normalizes_branches": declared.family.branch_norm,
        "init_std": declared.init_std,
        "predicts_next": declared.family.kind in (None, "decoder")
        and declared.task in ("", "causal-lm"),
    }


def declared_inputs(declared: Declared, recipe: Recipe) -> EdgeInputs:
    """Return the inputs of the edge model for a recipe and a model that was not built.

    Raises:
        NotCovered: The configuration states no width or depth.
    """
    if not declared.width or not declared.depth:
        raise NotCovered("the configuration states no width or depth")
    return edge_inputs(
        recipe,
        width=declared.width,
        depth=declared.depth,
        vocabulary=declared.vocabulary or CLASSIFIER_VOCABULARY,
        norm=declared.norm,
        **kind_of(declared),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """What the answers share that a recipe has at all learning rates.

    Attributes:
        estimate: What the model of the edge says.
        reasons: Why rksp cannot tell, clauses; empty if it can.
        tier: How much evidence was gathered.
        steps: Steps of the run.
        digest: Of the data that the model was fitted on.
        levers: What would raise the edge, the largest first.
        applied: Levers that the answers count with, by name.
    """

    estimate: EdgeEstimate
    reasons: tuple[str, ...]
    tier: Tier
    steps: int
    digest: str
    levers: tuple[LeverReport, ...] = ()
    applied: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        features: Features,
        inputs: EdgeInputs,
        model: EdgePredictor,
        doubts: Sequence[str] = (),
    ) -> Basis:
        """Ask the model of the edge, and whether its data cover the run.

        Args:
            features: Measurements of the model.
            inputs: The configuration.
            model: The model of the edge.
            doubts: Reasons from the evidence to answer "cannot tell".
        """
        estimate = model.predict(inputs, features.values)
        is_covered = estimate.learned is not None and estimate.learned.covers
        reasons = [*doubts, *_strange(model, features), *beyond(estimate, inputs)]
        return cls(
            estimate=estimate,
            reasons=() if is_covered else tuple(reasons),
            tier=features.tier,
            steps=inputs.steps,
            digest=str(model.card["digest"]),
        )

    def answer(
        self,
        learning_rate: float | None,
        *,
        threshold: float = 0.5,
        risk: float = 0.05,
        with_curve: bool = True,
    ) -> RiskAssessment:
        """Return the answer at a rate, with the arguments of `assess`."""
        estimate = self.estimate
        known: dict[str, Any] = {
            "outside": dict(estimate.outside),
            "classifier_data": self.digest,
        }
        bars = {"steps": self.steps, "threshold": threshold, "risk": risk}
        if self.reasons:
            return untold(self.reasons, self.tier, **bars, **known)
        start, with_rate = estimate.start_here, learning_rate is not None
        excess = None if learning_rate is None else estimate.expected_excess(learning_rate)
        return told(
            estimate,
            self.tier,
            learning_rate=learning_rate,
            **bars,
            **known,
            rates=RATES if with_curve else (),
            start_excess=estimate.expected_excess(start),
            expected_excess=excess,
            contributions=_contributions(estimate) if with_curve and with_rate else [],
            widened_by={name: round(by, 4) for name, by in estimate.unlike.items()},
            counterfactual=_advice(estimate, learning_rate, start, threshold),
            answered_by="random initializations",
            learned=estimate.learned,
            levers=list(self.levers),
            applied=list(self.applied),
        )


def assess(
    features: Features,
    inputs: EdgeInputs,
    model: EdgePredictor,
    *,
    learning_rate: float | None,
    threshold: float = 0.5,
    risk: float = 0.05,
    doubts: Sequence[str] = (),
    with_curve: bool = True,
) -> RiskAssessment:
    """Compute the three rates, and the risk at every rate and at the recipe's own if it has one.

    Args:
        features: Measurements of the model.
        inputs: The configuration.
        model: The model of the edge.
        learning_rate: The recipe's peak rate; None asks only for the three rates.
        threshold: Probability at which the verdict becomes `RISK`.
        risk: Share of the edges that may lie below `do_not_exceed`.
        doubts: Reasons from the evidence to answer "cannot tell".
        with_curve: Compute the risk at every rate, which is most of the work, and what moves it.

    Returns:
        The answer.
    """
    basis = Basis.of(features, inputs, model, doubts)
    return basis.answer(learning_rate, threshold=threshold, risk=risk, with_curve=with_curve)


def told(
    estimate: EdgeEstimate | FineTuningEstimate,
    tier: Tier,
    *,
    steps: int,
    learning_rate: float | None,
    threshold: float,
    risk: float,
    rates: Sequence[float] = RATES,
    **more: Any,
) -> RiskAssessment:
    """Return the answer with the rates and the risks of an estimate.

    Args:
        estimate: What the model that was asked says.
        tier: How much evidence was gathered.
        steps: Steps of the run.
        learning_rate: See `assess`.
        threshold: See `assess`.
        risk: See `assess`.
        rates: Where the curve of the risk is wanted.
        more: The fields that only one of the models knows.

    Returns:
        The answer.
    """
    start, ceiling = rounded(estimate.start_here), rounded(estimate.do_not_exceed(risk))
    failed = low = high = None
    verdict = Verdict.OK
    if learning_rate is not None:
        failed = estimate.failed(learning_rate)
        low, high = estimate.interval(learning_rate)
        # By the rounded rates, as the checks and grids see them.
        verdict = verdict_at(threshold, failed, high, learning_rate, start, ceiling)
    return RiskAssessment(
        verdict=verdict,
        reasons=[],
        evidence=str(tier),
        horizon_steps=steps,
        probability_failed=failed,
        probability_failed_low=low,
        probability_failed_high=high,
        start_here=start,
        start_failed=estimate.failed(estimate.start_here),
        likely_edge=rounded(estimate.likely_edge),
        do_not_exceed=ceiling,
        risk=risk,
        threshold=threshold,
        curve=[
            CurvePoint(learning_rate=rate, probability=estimate.failed(rate), low=left, high=right)
            for rate in rates
            for left, right in (estimate.interval(rate),)
        ],
        **more,
    )


def certain_failure(
    cause: str,
    tier: Tier,
    *,
    steps: int,
    learning_rate: float | None,
    threshold: float = 0.5,
    risk: float = 0.05,
) -> RiskAssessment:
    """Return the answer that needs no model: values are not finite before the first step.

    Args:
        cause: What is not finite, a clause.
        tier: How much evidence was gathered.
        steps: Steps of the run.
        learning_rate: The recipe's rate, if it has one.
        threshold: See `assess`.
        risk: See `assess`.

    Returns:
        The answer.
    """
    here = None if learning_rate is None else 1.0
    return _without_rates(
        verdict=Verdict.RISK,
        evidence=str(tier),
        horizon_steps=steps,
        probability_failed=here,
        probability_failed_low=here,
        probability_failed_high=here,
        risk=risk,
        threshold=threshold,
        curve=[
            CurvePoint(learning_rate=rate, probability=1.0, low=1.0, high=1.0) for rate in RATES
        ],
        counterfactual=f"Before the first step {cause}: no learning rate trains this model.",
    )


def untold(
    reasons: Sequence[str],
    tier: Tier,
    *,
    steps: int,
    threshold: float = 0.5,
    risk: float = 0.05,
    outside: Mapping[str, float] | None = None,
    classifier_data: str | None = None,
) -> RiskAssessment:
    """Return the answer "cannot tell", which has no numbers: they would be no answer.

    Args:
        reasons: Why rksp cannot tell, clauses; at least one.
        tier: How much evidence was gathered.
        steps: Steps of the run.
        threshold: See `assess`.
        risk: See `assess`.
        outside: Facts outside the range of the labelled runs, in decades.
        classifier_data: Digest of the data of the model that was asked, if one was.

    Returns:
        The answer.
    """
    return _without_rates(
        verdict=Verdict.CANNOT_TELL,
        reasons=list(reasons),
        evidence=str(tier),
        horizon_steps=steps,
        risk=risk,
        threshold=threshold,
        outside=outside or {},
        classifier_data=classifier_data,
    )


def _without_rates(**known: object) -> RiskAssessment:
    """Return an answer of which only these fields are known."""
    unknown = dict.fromkeys(RiskAssessment.model_fields)
    empty = ("reasons", "curve", "contributions", "measuring_adds", "levers", "applied")
    lists: dict[str, object] = {name: [] for name in empty}
    unknown |= {**lists, "outside": {}, "widened_by": {}}
    return RiskAssessment(**unknown | known)


def _strange(model: EdgePredictor, features: Features) -> list[str]:
    """Say which measured feature is the least like those of the labelled runs, if one is far."""
    far = [
        (by, FEATURES[name])
        for name, by in model.strangeness(features.values).items()
        if by > _STRANGE
    ]
    return [
        f"{what} lies {by:.1f} ranges outside the labelled runs" for by, what in sorted(far)[-1:]
    ]


def beyond(estimate: EdgeEstimate, inputs: EdgeInputs) -> list[str]:
    """Return the reasons why the data do not cover a model and a recipe, as clauses."""
    found = [
        f"{MEANINGS[name]} lies a factor of {10**over:.3g} beyond the labelled runs"
        for name, over in estimate.outside.items()
        if over > _FAR and name not in OPTIMIZERS
    ]
    if inputs.optimizer not in ("adamw", *OPTIMIZERS):
        found.append(f"no labelled run has the optimizer {inputs.optimizer!r}")
    if inputs.norm == "none" and inputs.steps > _LONG_STEPS:
        found.append(
            "the blocks have no normalization, and all labelled runs without it but one ladder are "
            f"shorter than {_LONG_STEPS} steps"
        )
    return found


def _contributions(estimate: EdgeEstimate) -> list[Contribution]:
    """Return what moves the edge away from that of the average run, largest first."""
    parts = [
        Contribution(meaning=MEANINGS[name], decades=decades, feature=name)
        for name, decades in estimate.contributions.items()
    ]
    return sorted(parts, key=lambda part: (-abs(part.decades), part.feature))


def _advice(
    estimate: EdgeEstimate, rate: float | None, start: float, threshold: float
) -> str | None:
    """Suggest the rate to start with and its benefit; None if the recipe's rate is as good."""
    if rate is None:
        return None
    lost, least = estimate.expected_excess(rate), estimate.expected_excess(start)
    if estimate.failed(rate) >= threshold:
        if estimate.failed(start) >= threshold or start > _CLEARLY_LOWER * rate:
            bar = estimate.rate_of(threshold)
            below = "at no learning rate" if bar is None else f"only below {short(bar, 2)}"
            return f"P(failed) is under the bar of {threshold:.2g} {below}."
        return (
            f"Start at {short(start, 2)}, {rate / start:.1f} times lower: "
            f"P(failed) is {estimate.failed(start):.1%} there."
        )
    if lost - least < _COSTLY:
        return None
    side = "lower" if rate < start else "higher"
    factor = start / rate if rate < start else rate / start
    return (
        f"The rate is {factor:.1f} times {side} than the one to start with, {short(start, 2)}, "
        f"and is expected to cost {lost - least:.2f} nats more."
    )


def rounded(rate: float) -> float:
    """Round to three digits, which is more than the accuracy."""
    return float(f"{rate:.3g}") if math.isfinite(rate) else rate
