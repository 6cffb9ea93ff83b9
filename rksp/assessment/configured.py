"""Reads what the model of the edge needs off a configuration, without building the model."""

from __future__ import annotations

from rksp.assessment.risk import edge_inputs
from rksp.classifiers.edge_inputs import CLASSIFIER_VOCABULARY, EdgeInputs
from rksp.ground.errors import InputError
from rksp.models.declared import Declared
from rksp.recipe import Recipe


def configured_inputs(config: object, recipe: Recipe, task: str | None = None) -> EdgeInputs:
    """Return the inputs of the edge model from a configuration, without building the model.

    Args:
        config: Of Hugging Face, or the mapping of a `config.json`.
        recipe: How the model is to be trained.
        task: What the model predicts, as in `rksp.models.source.Task`.

    Raises:
        InputError: The configuration states no width or depth.
    """
    said = Declared(config, task)
    if not said.width or not said.depth:
        raise InputError("the configuration states no width or depth")
    vocabulary = said.vocabulary or CLASSIFIER_VOCABULARY
    return edge_inputs(
        recipe, width=said.width, depth=said.depth, vocabulary=vocabulary, norm=said.norm
    )
