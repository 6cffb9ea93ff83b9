"""Turn evidence into an answer: which model answers, three rates, the risk, and why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rksp.classifiers.edge_inputs import (
    CLASSIFIER_VOCABULARY,
    MEANINGS,
    NO_WARMUP,
    OPTIMIZERS,
    EdgeInputs,
    Norm,
)
from rksp.classifiers.edge_model import EdgeEstimate, EdgePredictor
from rksp.classifiers.rates import says_nothing
from rksp.documents.answer import (
    CertainFailure,
    Contribution,
    CurvePoint,
    FromEdge,
    LeverReport,
    Untold,
)
from rksp.documents.terms import Terms
from rksp.documents.verdict import word_at
from rksp.ground.errors import NotCovered
from rksp.ground.text import CLEARLY_LOWER, percent, rounded_down, short
from rksp.models.declared import Declared
from rksp.recipe import Recipe
from rksp.recipe.coverage import SEEN_OBJECTIVES, uncovered
from rksp.recipe.optimizers.table import optimizer_spec
from rksp.recipe.start import Start, decide_start
from rksp.spectra.features import FEATURES, Features, Tier

if TYPE_CHECKING:
    from rksp.classifiers.fine_tuning.model import FineTuningEstimate


Answers = Literal["random initializations", "fine-tuning", "none"]
# How much of an answer is wanted: its word and rates, all numbers at its rate, or the curve too.
Detail = Literal["brief", "cell", "page"]
# Rates to evaluate; a twentieth of a decade is 12 %.
RATES = tuple(float(f"{10**decade:.4g}") for decade in np.arange(-7.0, 1.0001, 0.05))
FAR = 0.7  # decades (or units of a flag) beyond the data at which rksp cannot tell
_STRANGE = 3.0  # ranges of the labelled runs beyond which a measured feature is like none of them
_COSTLY = 0.05  # nats; a smaller extra loss at a low rate is not mentioned
_LONG_STEPS = 1000  # beyond it, the sources have one ladder without normalization


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The fitted model that answers.

    Attributes:
        model: The runs that it was fitted on; "none" if no model covers the run.
        reasons: Why no model does, clauses; empty if one does.
        doubts: What the runs of random initializations do not cover, clauses.
    """

    model: Answers
    reasons: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


def choose_model(recipe: Recipe, start: Start) -> Choice:
    """Choose the model that answers a recipe.

    The model of fine-tuning says itself what its runs do not cover.

    Args:
        recipe: How the model is to be trained.
        start: What the target holds, or what was decided of it.
    """
    doubts = tuple(uncovered(recipe))
    if not decide_start(start, recipe=recipe).is_scratch:
        return Choice(model="fine-tuning")
    if recipe.objective not in SEEN_OBJECTIVES:
        unseen = f"the labelled runs include no objective {recipe.objective}"
        return Choice(model="none", reasons=(unseen,))
    return Choice(model="random initializations", doubts=doubts)


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
        in_fp8=recipe.precision == "fp8",
        norm=norm,
        **kind,
    )


def kind_of(declared: Declared) -> dict[str, object]:
    """Return what a configuration declares of the kind of model, as fields of `EdgeInputs`."""
    return {
        "family": declared.design,
        "is_parallel": declared.is_parallel,
        "normalizes_branches": declared.family.branch_norm,
        "normalizes_qk": declared.normalizes_qk,
        "init_std": declared.init_std,
        "predicts_next": declared.family.kind in (None, "decoder")
        and declared.task in ("", "causal-lm"),
        "masks": declared.family.kind == "encoder" and declared.task in ("", "masked-lm"),
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
class About:
    """What an answer is about, whichever model gives it.

    Attributes:
        learning_rate: The recipe's peak rate; None asks only for the three rates.
        steps: Steps of the run.
        tier: How much evidence was gathered.
        terms: What it is judged by.
    """

    learning_rate: float | None = None
    steps: int
    tier: Tier
    terms: Terms = field(default_factory=Terms)

    @property
    def stated(self) -> dict[str, object]:
        """What every answer states."""
        return {
            "evidence": str(self.tier),
            "horizon_steps": self.steps,
            "risk": self.terms.risk,
            "threshold": self.terms.gate.bar,
        }

    def cannot_tell(self, reasons: Sequence[str], **known: object) -> Untold:
        """Return the answer "cannot tell", which has no numbers: they would be no answer.

        Args:
            reasons: Why rksp cannot tell, clauses; at least one.
            **known: The fields that say what the data lack, and which data.
        """
        return Untold(**self.stated, reasons=list(dict.fromkeys(reasons)), **known)

    def certain_failure(self, cause: str) -> CertainFailure:
        """Return the answer that needs no model: values are not finite before the first step.

        Args:
            cause: What is not finite, a clause.
        """
        here = None if self.learning_rate is None else 1.0
        return CertainFailure(
            **self.stated,
            probability_failed=here,
            probability_failed_low=here,
            probability_failed_high=here,
            probability_diverged=here,
            curve=[CurvePoint(rate, 1.0, 1.0, 1.0) for rate in RATES],
            counterfactual=f"Before the first step {cause}: no learning rate trains this model.",
        )

    def of_estimate(
        self, estimate: EdgeEstimate | FineTuningEstimate, detail: Detail = "page"
    ) -> dict[str, object]:
        """Return the fields of `Estimate`, what the model that was asked says: rates and risks."""
        bar, rate = self.terms.gate.bar, self.learning_rate
        ceiling = rounded_down(estimate.rate_at(min(self.terms.risk, bar)))
        failed = None if rate is None else estimate.failed(rate)
        low = high = diverged = None
        if rate is not None and detail != "brief":
            (low, high), diverged = estimate.interval(rate), estimate.diverged(rate)
        rates = RATES if detail == "page" else ()
        return {
            **self.stated,
            "probability_failed": failed,
            "probability_failed_low": low,
            "probability_failed_high": high,
            "probability_diverged": diverged,
            # By the rate that is printed, as the checks and grids see it.
            "verdict": word_at(rate, ceiling, is_risk=failed is not None and failed >= bar),
            "start_here": rounded(estimate.start_here),
            "start_failed": estimate.failed(estimate.start_here),
            "likely_edge": rounded(estimate.likely_edge),
            "do_not_exceed": ceiling,
            "curve": [CurvePoint(x, estimate.failed(x), *estimate.interval(x)) for x in rates],
            "learned": estimate.learned,
        }


def rounded(rate: float) -> float:
    """Round to three digits, which is more than the accuracy."""
    return float(f"{rate:.3g}") if math.isfinite(rate) else rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """What the answers share that a recipe has at all learning rates.

    Attributes:
        estimate: What the model of the edge says.
        reasons: Why rksp cannot tell, clauses; empty if it can.
        digest: Of the data that the model was fitted on.
        levers: What would raise the edge, the largest first.
        is_warmed: The run has a warm-up, or an optimizer for which none counts.
    """

    estimate: EdgeEstimate
    reasons: tuple[str, ...]
    digest: str
    levers: tuple[LeverReport, ...] = ()
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
            digest=str(model.card["digest"]),
            is_warmed=inputs.warmup_steps > 0 or not optimizer_spec(inputs.optimizer).has_memories,
        )

    def answer(self, about: About, detail: Detail = "page") -> FromEdge | Untold:
        """Return the three rates, and the risk at every rate and at the recipe's own if it has one.

        Args:
            about: The rate and the terms; None for the rate asks only for the three rates.
            detail: How much is wanted; the risk at every rate is most of the work.
        """
        estimate, rate = self.estimate, about.learning_rate
        known: dict[str, object] = {"outside": estimate.outside, "classifier_data": self.digest}
        reasons, is_page = list(self.reasons), detail == "page"
        # A team's own runs tell how far its edge is known, and a grid shows the rates beside it.
        if is_page and not reasons and rate is not None and estimate.learned is None:
            reasons = open_at(*estimate.interval(rate), estimate.likely_edge)
        if reasons:
            return about.cannot_tell(reasons, **known)
        excess = advice = None
        if rate is not None and detail != "brief":
            excess = estimate.expected_excess(rate)
            advice = _advice(estimate, rate, about.terms.gate.bar) if is_page else None
        return FromEdge(
            **about.of_estimate(estimate, detail),
            **known,
            start_excess=estimate.expected_excess(estimate.start_here),
            expected_excess=excess,
            contributions=self._contributions() if is_page and rate is not None else [],
            widened_by={name: round(by, 4) for name, by in estimate.unlike.items()},
            counterfactual=advice,
            levers=list(self.levers),
        )

    def _contributions(self) -> list[Contribution]:
        named = MEANINGS | ({} if self.is_warmed else {"warmup": NO_WARMUP})
        parts = [
            Contribution(meaning=named[name], decades=decades, feature=name)
            for name, decades in self.estimate.contributions.items()
            if decades
        ]
        return largest_first(parts)


def largest_first(parts: list[Contribution]) -> list[Contribution]:
    """Return what moves an edge, the largest shift first."""
    return sorted(parts, key=lambda part: (-abs(part.decades), part.feature))


def start_lower(estimate: EdgeEstimate | FineTuningEstimate, rate: float) -> str:
    """Return the advice to start at the estimate's rate, which is lower, and what it brings."""
    start = estimate.start_here
    return (
        f"Start at {short(start, 2)}, {short(rate / start)} times lower: "
        f"P(failed) is {percent(estimate.failed(start))} there."
    )


def _strange(model: EdgePredictor, features: Features) -> list[str]:
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
        if over > FAR and name not in OPTIMIZERS
    ]
    if inputs.optimizer not in ("adamw", *OPTIMIZERS):
        found.append(f"the labelled runs include no optimizer {inputs.optimizer}")
    if inputs.norm == "none" and inputs.steps > _LONG_STEPS:
        found.append(
            "the blocks have no normalization, and all labelled runs without it but one sweep are "
            f"shorter than {_LONG_STEPS} steps"
        )
    return found


def open_at(low: float, high: float, edge: float) -> list[str]:
    """Return why rksp cannot tell at a rate near an edge that teams have far apart, as a clause."""
    if not says_nothing(low, high):
        return []
    return [
        "teams differ by more than this learning rate lies from the likely edge, "
        f"{short(edge, 2)}: in some of them nearly all such runs fail, in others hardly any"
    ]


def _advice(estimate: EdgeEstimate, rate: float, threshold: float) -> str | None:
    start = estimate.start_here
    lost, least = estimate.expected_excess(rate), estimate.expected_excess(start)
    if estimate.failed(rate) >= threshold:
        if estimate.failed(start) >= threshold or start > CLEARLY_LOWER * rate:
            bar = short(estimate.rate_at(threshold), 2)
            return f"P(failed) is under the bar of {threshold:.2g} only below {bar}."
        return start_lower(estimate, rate)
    if lost - least < _COSTLY:
        return None
    side = "lower" if rate < start else "higher"
    factor = start / rate if rate < start else rate / start
    return (
        f"The rate is {factor:.1f} times {side} than the one to start with: expect "
        f"{lost - least:.2f} nats more than at {short(start, 2)}."
    )
