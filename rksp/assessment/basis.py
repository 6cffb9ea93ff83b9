"""What the answers of a recipe at all learning rates share: the estimate, and what covers it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rksp.assessment.risk import RATES, Terms
from rksp.classifiers.edge_inputs import MEANINGS, NO_WARMUP, OPTIMIZERS, EdgeInputs
from rksp.classifiers.edge_model import EdgePredictor
from rksp.classifiers.rates import EdgeEstimate, says_nothing
from rksp.documents.score import Contribution, LeverReport, RiskAssessment
from rksp.ground.text import short
from rksp.recipe.optimizers.table import optimizer_spec
from rksp.spectra.features import FEATURES, Features, Tier

_FAR = 0.7  # decades (or units of a flag) beyond the data at which rksp cannot tell
_STRANGE = 3.0  # ranges of the labelled runs beyond which a measured feature is like none of them
_CLEARLY_LOWER = 0.98  # of the recipe's rate: what lies nearer is no other rate to a reader
_COSTLY = 0.05  # nats; a smaller extra loss at a low rate is not mentioned
_LONG_STEPS = 1000  # beyond it, the sources have one ladder without normalization


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
        is_warmed: The run has a warm-up, or an optimizer for which none counts.
    """

    estimate: EdgeEstimate
    reasons: tuple[str, ...]
    tier: Tier
    steps: int
    digest: str
    levers: tuple[LeverReport, ...] = ()
    applied: tuple[str, ...] = ()
    is_warmed: bool = True

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
            is_warmed=inputs.warmup_steps > 0 or not optimizer_spec(inputs.optimizer).is_warmed,
        )

    def answer(
        self,
        learning_rate: float | None,
        *,
        with_curve: bool = True,
        with_advice: bool = True,
        **bars: float,
    ) -> RiskAssessment:
        """Return the three rates, and the risk at every rate and at the recipe's own if it has one.

        Args:
            learning_rate: The recipe's peak rate; None asks only for the three rates.
            with_curve: Compute the risk at every rate, which is most of the work, and what moves
                it.
            with_advice: Say which rate is better.
            **bars: `threshold` and `risk` of `Terms`.
        """
        estimate = self.estimate
        terms = Terms(learning_rate=learning_rate, steps=self.steps, tier=self.tier, **bars)
        known: dict[str, Any] = {"outside": estimate.outside, "classifier_data": self.digest}
        reasons = self.reasons
        # A team's own runs tell how far its edge is known, and a grid shows the rates beside it.
        is_alone = with_curve and estimate.learned is None
        if not reasons and learning_rate is not None and is_alone:
            reasons = tuple(open_at(estimate, learning_rate))
        if reasons:
            return terms.untold(reasons, **known)
        start, with_rate = estimate.start_here, learning_rate is not None
        rate_to_better = learning_rate if with_advice else None
        excess = None if learning_rate is None else estimate.expected_excess(learning_rate)
        return terms.told(
            estimate,
            RATES if with_curve else (),
            **known,
            start_excess=estimate.expected_excess(start),
            expected_excess=excess,
            contributions=self._contributions() if with_curve and with_rate else [],
            widened_by={name: round(by, 4) for name, by in estimate.unlike.items()},
            counterfactual=_advice(estimate, rate_to_better, start, terms.threshold),
            answered_by="random initializations",
            learned=estimate.learned,
            levers=self.levers,
            applied=self.applied,
        )

    def _contributions(self) -> list[Contribution]:
        """Return what moves the edge away from that of the average run, largest first."""
        named = MEANINGS | ({} if self.is_warmed else {"warmup": NO_WARMUP})
        parts = [
            Contribution(meaning=named[name], decades=decades, feature=name)
            for name, decades in self.estimate.contributions.items()
            if decades
        ]
        return sorted(parts, key=lambda part: (-abs(part.decades), part.feature))


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


def open_at(estimate: EdgeEstimate, rate: float) -> list[str]:
    """Return why rksp cannot tell at a rate near an edge that teams have far apart, as a clause."""
    if not says_nothing(*estimate.interval(rate)):
        return []
    edge = short(estimate.likely_edge, 2)
    return [
        "teams differ by more than this learning rate lies from the likely edge, "
        f"{edge}: in some of them nearly all such runs fail, in others hardly any"
    ]


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
