"""Answer for weights that are trained already: ask the model of fine-tuning, or say why not.

Nothing that is measured enters: the public runs that the model was fitted on were not measured,
and in the lab's ladders, which were, no measurement of the trained weights lowers the error of the
best rate or of the edge for certain. So every tier of evidence gives the same rates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rksp.assessment.risk import FAR, About, largest_first, rounded, start_lower
from rksp.classifiers.fine_tuning.inputs import FineTuningInputs, decades_outside
from rksp.classifiers.fine_tuning.model import FineTuningEstimate, FineTuningPredictor
from rksp.classifiers.fine_tuning.published import LEAST, lookup, published_runs, sort_of
from rksp.classifiers.levers.catalogue import kind_of
from rksp.documents.answer import (
    Contribution,
    FromFineTuning,
    FromPublished,
    PublishedReport,
    Untold,
)
from rksp.documents.verdict import word_at
from rksp.ground.text import short
from rksp.models.declared import Declared
from rksp.models.families import lineage_of
from rksp.recipe import LOW_RANK, Recipe
from rksp.recipe.optimizers.table import optimizer_spec

_OBJECTIVES = {
    "mlm": "masked",
    "classification": "classification",
    "dpo": "preference",
    "kto": "preference",
    "orpo": "orpo",
    "reward": "reward",
    "ppo": "rl",
    "grpo": "rl",
}
_LIKELIHOODS = ("lm", "seq2seq")
_OWN_BY_KIND = {"speech": "transcription", "encoder": "masked", "vision": "classification"}
# Recipes bound these from one side; no ladder of rates and no failed run shows where they fail.
_RECIPES_ONLY = ("preference", "orpo")
_NEARBY = ("tiny-full/encoder",)
_WIDEST = 2.0  # decades between the 5 % and the 95 % quantile of the edge
_BREAKS = 10.0  # times the highest published rate, above which a run is at risk
_CLEARLY = 1 + 1e-9  # so that a rate that is the highest one is not above it
_NAMES = {"base": "kind of model", "kind": "kind of model with adapters"}
_MEANINGS = {
    "size": "the number of parameters",
    "no size": "the unknown number of parameters",
    "rank": "the rank of the adapters",
}
_LEVELS = {"objective": "the {} objective", "method": "training with {}"}
_TAKEN_AS_USUAL = ("base", "source", "model")  # the level itself, and what is not known of a run


def fine_tuning_inputs(
    config: object, task: str, counted: int | None, recipe: Recipe
) -> FineTuningInputs:
    """Return the inputs of the model of fine-tuning for a configuration and a recipe.

    Args:
        config: A configuration, or None.
        task: What the model predicts, as in `rksp.models.source.Task`.
        counted: Parameters of a model whose configuration does not tell its size.
        recipe: How the weights are trained further.
    """
    return tuned_inputs(recipe, task, **tuned_facts(Declared(config, task), counted))


def tuned_facts(declared: Declared, counted: int | None) -> dict[str, Any]:
    """Return what a configuration declares, as fields of `FineTuningInputs`.

    Args:
        declared: The configuration.
        counted: Parameters of a model whose configuration does not tell its size.
    """
    shape = declared.shape
    return {
        "kind": declared.family.kind or (kind_of(declared) or "other").replace("-", "_"),
        "family": lineage_of(declared.name),
        "parameters": counted if shape is None else round(shape.block_parameters),
    }


def tuned_inputs(recipe: Recipe, task: str, *, kind: str, **facts: Any) -> FineTuningInputs:
    """Return the inputs of the model of fine-tuning for a recipe and facts of a model.

    Args:
        recipe: How the weights are trained further.
        task: What the model predicts.
        kind: Of the model.
        **facts: The other ones of `tuned_facts`.
    """
    spec = optimizer_spec(recipe.optimizer)
    return FineTuningInputs(
        method="full" if recipe.peft == "none" else recipe.peft,
        objective=_objective(recipe, task, kind),
        kind=kind,
        rank=recipe.lora_rank if recipe.peft in LOW_RANK else None,
        optimizer=spec.counts_as or spec.name,
        **facts,
    )


def _objective(recipe: Recipe, task: str, kind: str) -> str:
    if recipe.objective not in _LIKELIHOODS:
        return _OBJECTIVES.get(recipe.objective, recipe.objective)
    if task.endswith("classification"):
        return "classification"
    return _OWN_BY_KIND.get(kind, "next_token")


def assess_fine_tuning(
    inputs: FineTuningInputs,
    model: FineTuningPredictor,
    about: About,
    *,
    doubts: Sequence[str] = (),
    objective: str = "",
) -> FromFineTuning | FromPublished | Untold:
    """Compute the three rates, and the risk at every rate and at the recipe's own if it has one.

    The expected excess is None: the rows of one sweep alone have nats.

    Args:
        inputs: The model and the recipe.
        model: The model of fine-tuning.
        about: What the answer is about.
        doubts: Reasons from the evidence to answer "cannot tell".
        objective: The recipe's own, which published runs are sorted by.
    """
    said, rate = model.predict(inputs), about.learning_rate
    outside = decades_outside(inputs)
    reasons = [*beyond_tuning(said, inputs), *doubts]
    over = {"parameters": outside} if outside else {}
    digest = str(model.card["digest"])
    is_covered = said.learned is not None and said.learned.covers
    if reasons and not is_covered:
        # Published runs were all of AdamW, and of models far larger than the lab's.
        is_like = inputs.optimizer == "adamw" and not inputs.is_tiny and outside <= FAR
        is_asked = is_like and not doubts
        known = lookup(published_runs(), inputs, objective) if is_asked else None
        if known is not None and known.runs >= LEAST:
            return _by_published(known, about)
        if known is not None:
            reasons.append(
                f"rksp answers by published runs from {LEAST} on, and has {known.runs} of "
                f"{sort_of(known.objective, known.method)}"
            )
        reasons[0] = f"trained weights: {reasons[0]}"
        return about.cannot_tell(reasons, outside=over, classifier_data=digest)
    advice, bar, start = None, about.terms.gate.bar, said.start_here
    if rate is not None and start < rate and said.failed(start) < bar <= said.failed(rate):
        advice = start_lower(said, rate)
    return FromFineTuning(
        **about.of_estimate(said),
        contributions=_contributions(said) if rate is not None else [],
        outside=over,
        counterfactual=advice,
        classifier_data=digest,
        forgets_from=None if said.forgetting is None else rounded(said.forgetting.quantile(0.5)),
        usual=said.usual,
    )


def _by_published(known: PublishedReport, about: About) -> FromPublished:
    """Return what published runs say of a rate: no probability, but their range and its middle."""
    advice, rate, highest = None, about.learning_rate, known.highest * _CLEARLY
    verdict = word_at(rate, highest, is_risk=rate is not None and rate > _BREAKS * highest)
    if rate is not None and rate > highest:
        advice = f"Start at {short(known.middle, 2)}, {short(rate / known.middle)} times lower."
    return FromPublished(
        **about.stated,
        verdict=verdict,
        start_here=known.middle,
        counterfactual=advice,
        published=known,
    )


def beyond_tuning(said: FineTuningEstimate, inputs: FineTuningInputs) -> list[str]:
    """Return the reasons why the rows of fine-tuning do not cover a run, as clauses.

    A family that no row holds only widens the answer, and so does an encoder among the lab's sizes,
    whose other kinds are near each other; another name decides what is answered.
    """
    unseen = [(factor, level.split("/")[-1], level) for factor, level in said.unseen]
    is_other = any(factor == "method" for factor, *_ in unseen)  # than any adapters, of any model
    found = [
        f"no fine-tuning run in the data used has the {_NAMES.get(factor, factor)} "
        f"{name}{' below 5M parameters' * level.startswith('tiny')}"
        for factor, name, level in unseen
        if factor != "family" and level not in _NEARBY and not (is_other and name == "any")
    ]
    if inputs.objective in _RECIPES_ONLY:
        found.append(
            f"no fine-tuning run in the data used failed with the objective {inputs.objective}"
        )
    width = said.edge.quantile(0.95) / said.edge.quantile(0.05)
    if not found and width > 10**_WIDEST:
        found.append(f"nine in ten edges lie between rates that differ by a factor of {width:.0f}")
    if (outside := decades_outside(inputs)) > FAR:
        found.append(
            f"the number of parameters lies a factor of {10**outside:.3g} beyond the runs of "
            "fine-tuning"
        )
    return found


def _contributions(said: FineTuningEstimate) -> list[Contribution]:
    parts = []
    for name, decades in said.contributions.items():
        factor, _, level = name.rpartition(" ")
        if factor in _TAKEN_AS_USUAL:
            continue
        named = level.split("/")[-1].replace("_", "-")
        meaning = _MEANINGS.get(factor) or _LEVELS.get(factor, "the {} {}").format(named, factor)
        parts.append(Contribution(meaning=meaning, decades=decades, feature=name))
    return largest_first(parts)
