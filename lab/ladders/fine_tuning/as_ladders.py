"""Show the lab's ladders of fine-tuning to the fit of the model of fine-tuning, as one source."""

from __future__ import annotations

import math
from collections.abc import Iterable

from lab.fine_tuning_fit.ladder import FineTuningLadder, kind_of, ladder_of_runs
from lab.ladders.fine_tuning.base_model import has_learned
from lab.ladders.fine_tuning.run import FineTunedLadder
from lab.ladders.fine_tuning.summary import LadderSummary, summarize
from rksp.classifiers.fine_tuning.inputs import FineTuningInputs

SOURCE = "lab"
GAIN = 0.05  # nats on held-out data; a ladder that gains less had nothing to learn
_OBJECTIVES = {"classification": "classification", "mlm": "masked"}


def had_something_to_learn(summary: LadderSummary) -> bool:
    """Tell whether a ladder's base model had learned, and its best run learned more."""
    return has_learned(summary.ladder.base) and summary.gain >= GAIN


def as_ladder(ladder: FineTunedLadder) -> FineTuningLadder:
    """Return a ladder as the fit sees it.

    A run failed by the policy in training, or if its held-out loss lies above the ladder's lowest
    by the policy's margin at a rate above the best.
    """
    said, judged = summarize(ladder), ladder.judge()
    bound = math.inf if said.first_held_out_failed is None else said.first_held_out_failed
    runs = []
    for rate, outcome, after in zip(ladder.rates, judged.outcomes, ladder.after, strict=True):
        failed = outcome.is_failure or rate >= bound
        loss = after.new if math.isfinite(after.new) else None
        runs.append((math.log10(rate), loss, failed or loss is None))
    return ladder_of_runs(
        ladder.spec.id,
        inputs_of(ladder),
        runs,
        untrained=ladder.before.new,
        width=float(str(ladder.spec.base.shape["hidden_size"])),
    )


def inputs_of(ladder: FineTunedLadder) -> FineTuningInputs:
    """Return what the model of fine-tuning looks at."""
    spec, recipe = ladder.spec, ladder.spec.recipe
    shape = spec.base.shape
    family = spec.family.removesuffix("_classifier")
    tables = 1 if shape["tie_word_embeddings"] or spec.base.recipe.objective != "lm" else 2
    embedded = int(str(shape["vocab_size"])) * int(str(shape["hidden_size"])) * tables
    return FineTuningInputs(
        method="full" if recipe.peft == "none" else recipe.peft,
        objective=_OBJECTIVES.get(recipe.objective, "next_token"),
        kind=kind_of(family),
        family=family,
        parameters=float(ladder.base.parameters - (0 if family == "vit" else embedded)),
        rank=recipe.lora_rank,
        source=SOURCE,
    )


def as_ladders(ladders: Iterable[FineTunedLadder]) -> list[FineTuningLadder]:
    """Return all ladders that had something to learn, sorted by name."""
    found = [as_ladder(x) for x in ladders if had_something_to_learn(summarize(x))]
    return sorted(found, key=lambda ladder: ladder.name)
