"""Choose the fitted model that answers, by what the weights are and what the run minimizes.

A model of fine-tuning plugs in here: another value of `Answers`, chosen in `choose_model` and asked
in `rksp.assessment.pipeline`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rksp.checks.coverage import unseen_objective
from rksp.recipe import Recipe

Answers = Literal["random initializations", "none"]
TRAINED = "trained weights: the labelled runs hold no fine-tuning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The fitted model that answers.

    Attributes:
        model: The runs that it was fitted on; "none" if no model covers the run.
        reasons: Why no model does, clauses; empty if one does.
    """

    model: Answers
    reasons: tuple[str, ...] = ()


def choose_model(recipe: Recipe, *, is_pretrained: bool) -> Choice:
    """Choose the model that answers a recipe.

    Args:
        recipe: How the model is to be trained.
        is_pretrained: The weights were trained before.
    """
    reasons = [TRAINED] if is_pretrained or recipe.starts_trained else []
    if (objective := unseen_objective(recipe)) is not None:
        reasons.append(f"the labelled runs include no {objective}")
    return Choice(model="none" if reasons else "random initializations", reasons=tuple(reasons))
