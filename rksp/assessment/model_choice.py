"""Choose the fitted model that answers, by what the weights are and what the run minimizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rksp.checks.coverage import SEEN_OBJECTIVES, uncovered
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
        doubts: What the runs of random initializations do not cover, clauses.
    """

    model: Answers
    reasons: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


def choose_model(recipe: Recipe, *, is_pretrained: bool) -> Choice:
    """Choose the model that answers a recipe.

    The model of fine-tuning says itself what its runs do not cover.

    Args:
        recipe: How the model is to be trained.
        is_pretrained: The weights were trained before.
    """
    doubts = tuple(uncovered(recipe))
    if is_pretrained or recipe.starts_trained:
        return Choice(model="fine-tuning")
    if recipe.objective not in SEEN_OBJECTIVES:
        unseen = f"the labelled runs include no objective {recipe.objective}"
        return Choice(model="none", reasons=(unseen,))
    return Choice(model="random initializations", doubts=doubts)


def uncarried(recipe: Recipe, *, is_pretrained: bool) -> tuple[str, ...]:
    """Return why a rate of this run cannot be carried to another model, clauses; mostly none.

    Args:
        recipe: How the model is to be trained.
        is_pretrained: The weights were trained before.
    """
    choice = choose_model(recipe, is_pretrained=is_pretrained)
    return (TRAINED,) if choice.model == "fine-tuning" else choice.reasons


def shown_beside(recipe: Recipe) -> tuple[tuple[str, Recipe], ...]:
    """Return LoRA as an alternative where someone asks only for the rate of trained weights."""
    if recipe.learning_rate is not None or recipe.peft != "none":
        return ()
    return ((ADAPTERS_BESIDE, recipe.model_copy(update={"peft": "lora", "lora_rank": USUAL_RANK})),)
