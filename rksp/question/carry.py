"""A learning rate that was tuned on a small model, carried to the question about a larger one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rksp.documents.score import CarriedReport
from rksp.ground.errors import InputError
from rksp.ground.text import short
from rksp.recipe_files.said.origin import Origin, OriginKind

if TYPE_CHECKING:
    from rksp.classifiers.edge_inputs import EdgeInputs
    from rksp.question.question import Question

TRAINED = (
    "rates of trained weights are not carried over; if you train from scratch, type --from-scratch"
)
_DIGITS = 3  # of a carried rate: its error is some tenths of a decade


def carried(question: Question, small: Question, rate: float | None) -> Question:
    """Return the question at the rate that keeps the small run's distance from the edge.

    It has no rate where the data do not cover one of the two; the report says why.

    Args:
        question: About the larger model.
        small: About the run whose rate was tuned.
        rate: That rate; None stands for the rate of its recipe.

    Raises:
        InputError: There is no rate, or a configuration gives no sizes.
    """
    from rksp.assessment.risk import beyond, choose_model
    from rksp.classifiers.edge_model import CONFIGURED, load_edge_model, shifts

    name = small.run.target if small.run.is_typed else small.run.named
    rate = rate or small.run.recipe.learning_rate
    if rate is None:
        raise InputError(f"{name} states no learning rate; write --tuned {name}=RATE.")
    edges, inputs = question.classifier or load_edge_model(), [_inputs(small), _inputs(question)]
    doubts = {text for one in inputs for text in beyond(edges.predict(one), one)}
    for one in (small, question):
        choice = choose_model(one.run.recipe, one.source.start)
        doubts |= {TRAINED} if choice.model == "fine-tuning" else {*choice.reasons}
    moved = shifts(edges, *inputs)
    rules = {rule: float(short(rate * 10**by, _DIGITS)) for rule, by in moved.items()}
    errors = dict(edges.card.get("transfer", {}))
    errors["rksp"] = errors.pop(CONFIGURED, {})
    report = CarriedReport(
        small=name,
        small_rate=rate,
        rate=None if doubts else rules["rksp"],
        edge_shift=None if doubts else moved["rksp"],
        rules={rule: found for rule, found in rules.items() if rule != "rksp" or not doubts},
        errors=errors,
        reasons=sorted(doubts),
    )
    origin = Origin(kind=OriginKind.FLAG, text=f"--tuned {name}={short(rate, 6)}")
    run = replace(
        question.run,
        recipe=question.run.recipe.model_copy(update={"learning_rate": report.rate}),
        origins={**question.run.origins, "learning_rate": origin},
    )
    return replace(question, run=run, carried=report)


def _inputs(asked: Question) -> EdgeInputs:
    from rksp.assessment.risk import declared_inputs
    from rksp.models.declared import Declared

    declared = Declared(asked.source.config, asked.source.task)
    try:
        return declared_inputs(declared, asked.run.recipe)
    except InputError as error:
        raise InputError(f"{asked.run.target}: {error}; a rate cannot be carried to it.") from None
