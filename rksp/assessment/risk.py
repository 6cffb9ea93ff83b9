"""Turn evidence into an answer: three rates, the risk of failure, its causes and its cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rksp.classifiers.edge_inputs import (
    CLASSIFIER_VOCABULARY,
    EdgeInputs,
    Norm,
)
from rksp.classifiers.rates import EdgeEstimate
from rksp.documents.score import CurvePoint, RiskAssessment
from rksp.documents.verdict import Verdict, verdict_at
from rksp.ground.errors import NotCovered
from rksp.models.declared import Declared
from rksp.recipe import Recipe
from rksp.recipe.optimizers.table import optimizer_spec
from rksp.spectra.features import Tier

if TYPE_CHECKING:  # loaded for trained weights alone
    from rksp.classifiers.fine_tuning.estimate import FineTuningEstimate

# Rates to evaluate; a twentieth of a decade is 12 %.
RATES = tuple(float(f"{10**decade:.4g}") for decade in np.arange(-7.0, 1.0001, 0.05))


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
class Terms:
    """What an answer is about, whichever model gives it.

    Attributes:
        learning_rate: The recipe's peak rate; None asks only for the three rates.
        steps: Steps of the run.
        tier: How much evidence was gathered.
        threshold: Probability at which the verdict becomes `RISK`.
        risk: Share of the edges that may lie below `do_not_exceed`.
    """

    learning_rate: float | None
    steps: int
    tier: Tier
    threshold: float = 0.5
    risk: float = 0.05

    def answer(self, verdict: Verdict, **known: Any) -> RiskAssessment:
        """Return the answer of which only these fields are known."""
        return RiskAssessment(
            verdict=verdict,
            evidence=str(self.tier),
            horizon_steps=self.steps,
            risk=self.risk,
            threshold=self.threshold,
            **known,
        )

    def untold(self, reasons: Sequence[str], **known: Any) -> RiskAssessment:
        """Return the answer "cannot tell", which has no numbers: they would be no answer.

        Args:
            reasons: Why rksp cannot tell, clauses; at least one.
            **known: The fields that say what the data lack, and which data.
        """
        return self.answer(Verdict.CANNOT_TELL, reasons=list(reasons), **known)

    def failing(self, cause: str) -> RiskAssessment:
        """Return the answer that needs no model: values are not finite before the first step.

        Args:
            cause: What is not finite, a clause.
        """
        here = None if self.learning_rate is None else 1.0
        return self.answer(
            Verdict.RISK,
            probability_failed=here,
            probability_failed_low=here,
            probability_failed_high=here,
            probability_diverged=here,
            curve=[
                CurvePoint(learning_rate=rate, probability=1.0, low=1.0, high=1.0) for rate in RATES
            ],
            counterfactual=f"Before the first step {cause}: no learning rate trains this model.",
        )

    def told(
        self,
        estimate: EdgeEstimate | FineTuningEstimate,
        rates: Sequence[float] = RATES,
        **more: Any,
    ) -> RiskAssessment:
        """Return the answer with the rates and the risks of an estimate.

        Args:
            estimate: What the model that was asked says.
            rates: Where the curve of the risk is wanted.
            **more: The fields that only one of the models knows.
        """
        start, ceiling = rounded(estimate.start_here), rounded(estimate.do_not_exceed(self.risk))
        here: dict[str, float | None] = {}
        verdict, rate = Verdict.OK, self.learning_rate
        if rate is not None:
            failed, (low, high) = estimate.failed(rate), estimate.interval(rate)
            here = {
                "probability_failed": failed,
                "probability_failed_low": low,
                "probability_failed_high": high,
                "probability_diverged": estimate.diverged(rate),
            }
            # By the rounded rates, as the checks and grids see them.
            verdict = verdict_at(self.threshold, failed, rate, start, ceiling)
        return self.answer(
            verdict,
            **here,
            start_here=start,
            start_failed=estimate.failed(estimate.start_here),
            likely_edge=rounded(estimate.likely_edge),
            do_not_exceed=ceiling,
            curve=[
                CurvePoint(
                    learning_rate=one, probability=estimate.failed(one), low=left, high=right
                )
                for one in rates
                for left, right in (estimate.interval(one),)
            ],
            **more,
        )


def rounded(rate: float) -> float:
    """Round to three digits, which is more than the accuracy."""
    return float(f"{rate:.3g}") if math.isfinite(rate) else rate
