"""Fitted models in their files: what is read, and the sentence when it cannot be."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from rksp.ground.errors import ArtifactError, InputError
from rksp.ground.files import read_text

Model = TypeVar("Model")
_LARGEST = 2_000_000  # bytes; ours are a tenth of it or less


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """One kind of fitted model.

    Attributes:
        noun: What messages call it.
        schema: What the field `schema` of its file says.
        file: Name of the shipped one.
        command: What fits another one.
    """

    noun: str
    schema: str
    file: str
    command: str

    def load(self, path: Path | None, read: Callable[[str], Model]) -> Model:
        """Load a model from a file; `path` None is the shipped one.

        Raises:
            ArtifactError: There is no such file, or it is not such a model.
        """
        path = path or Path(str(files("rksp.classifiers") / "fitted" / self.file))
        try:
            return read(read_text(path, _LARGEST))
        except InputError as error:
            raise ArtifactError(f"The {self.noun} cannot be read: {error}") from None

    def parse(self, text: str, build: Callable[[Any], Model]) -> Model:
        """Build a model from its JSON; `build` may raise any error for a value that is wrong.

        Raises:
            ArtifactError: The text is not an artifact of this schema, or it is damaged.
        """
        try:
            stored = json.loads(text)
            if stored["schema"] != self.schema:
                raise ArtifactError(
                    f"The {self.noun} has schema {stored['schema']!r}, not {self.schema!r}; "
                    f"fit it again with {self.command}."
                )
            if not isinstance(stored["card"]["digest"], str):
                raise TypeError("the digest of the card is not a text")
            return build(stored)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise ArtifactError(f"The {self.noun} is damaged: {error!r:.200}.") from error


def number(value: Any) -> float:
    """Return a finite number.

    Raises:
        ValueError: It is none.
    """
    found = float(value)
    if not math.isfinite(found):
        raise ValueError("a number is not finite")
    return found
