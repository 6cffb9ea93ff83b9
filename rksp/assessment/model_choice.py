"""Choose the fitted model that answers, by what the weights are and what the run minimizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rksp.checks.coverage import unseen_objective
from rksp.documents.score import ADAPTERS_BESIDE
from rksp.recipe import USUAL_RANK, Recipe

TRAINED = "trained weights: rates are carried between random initializations only"
Answers = Literal["random initializations", "fine-tuning", "none"]


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

    The model of fine-tuning says itself what its runs do not cover.

    Args:
        recipe: How the model is to be trained.
        is_pretrained: The weights were trained before.
    """
    if is_pretrained or recipe.starts_trained:
        return Choice(model="fine-tuning")
    if (objective := unseen_objective(recipe)) is not None:
        return Choice(model="none", reasons=(f"the labelled runs include no {objective}",))
    return Choice(model="random initializations")


def uncarried(recipe: Recipe, *, is_pretrained: bool) -> tuple[str, ...]:
    """Return why a rate of this run cannot be carried to another model, clauses; mostly none.

    Args:
        recipe: How the model is to be trained.
        is_pretrained: The weights were trained before.
    """
    choice = choose_model(recipe, is_pretrained=is_pretrained)
    return (TRAINED,) if choice.model == "fine-tuning" else choice.reasons


def shown_beside(recipe: Recipe, *, is_pretrained: bool) -> tuple[tuple[str, Recipe], ...]:
    """Return LoRA as an alternative where someone asks only for the rate of trained weights.

    Args:
        recipe: How the model is to be trained.
        is_pretrained: The weights were trained before.
    """
    is_asked = is_pretrained and recipe.learning_rate is None and recipe.peft == "none"
    if not is_asked:
        return ()
    return ((ADAPTERS_BESIDE, recipe.model_copy(update={"peft": "lora", "lora_rank": USUAL_RANK})),)
