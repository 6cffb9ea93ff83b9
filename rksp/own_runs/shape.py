"""What a record of rksp says of the model, so that it can be read without the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast, get_args

from rksp.assessment.risk import declared_inputs, edge_inputs
from rksp.classifiers.edge_inputs import EdgeInputs, Norm
from rksp.ground.errors import InputError, NotCovered
from rksp.models.declared import Declared
from rksp.recipe import Recipe

PREFIX = "rksp."  # of the columns of a record that hold the shape
_SIZES = ("width", "depth", "vocabulary")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The facts of a model that its edge depends on.

    Attributes:
        family: The model type; empty for an own module.
        width, depth, vocabulary, norm: See `EdgeInputs`.
    """

    family: str
    width: int
    depth: int
    vocabulary: int
    norm: Norm

    @classmethod
    def of(cls, family: str, inputs: EdgeInputs) -> Shape:
        """Return the shape of a model that is judged."""
        sizes = {name: getattr(inputs, name) for name in (*_SIZES, "norm")}
        return cls(family=family, **sizes)

    @classmethod
    def read(cls, said: Mapping[str, object]) -> Shape | None:
        """Return the shape in a record; None if it holds none.

        Raises:
            InputError: It is damaged.
        """
        if f"{PREFIX}width" not in said:
            return None
        sizes = [said.get(f"{PREFIX}{name}") for name in _SIZES]
        norm, family = said.get(f"{PREFIX}norm", "pre"), said.get(f"{PREFIX}family", "")
        if norm not in get_args(Norm) or not all(
            isinstance(size, int) and not isinstance(size, bool) and 0 < size < 2**40
            for size in sizes
        ):
            raise InputError("its columns rksp.* do not describe a model")
        width, depth, vocabulary = cast(list[int], sizes)
        return cls(
            family=str(family),
            width=width,
            depth=depth,
            vocabulary=vocabulary,
            norm=cast(Norm, norm),
        )

    def columns(self) -> dict[str, object]:
        """Return the columns of a record."""
        return {f"{PREFIX}{name}": getattr(self, name) for name in ("family", *_SIZES, "norm")}

    def inputs(self, recipe: Recipe) -> EdgeInputs:
        """Return the inputs of the model of the edge."""
        return edge_inputs(
            recipe,
            width=self.width,
            depth=self.depth,
            vocabulary=self.vocabulary,
            norm=self.norm,
        )


def shape_of(config: object, task: str | None, recipe: Recipe) -> Shape | None:
    """Return the shape that a configuration declares; None where it does not."""
    declared = Declared(config, task)
    try:
        return Shape.of(declared.name, declared_inputs(declared, recipe))
    except NotCovered:
        return None
