"""Fitted models in their files: what is read, and the sentence when it cannot be."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from rksp.ground.errors import ArtifactError, InputError
from rksp.ground.files import read_text

Model = TypeVar("Model")
_LARGEST = 2_000_000  # bytes; ours are a tenth of it or less
SENSELESS = 20.0  # decades; the edges of the data lie between 1e-4 and 1e2
Number = Annotated[float, Field(allow_inf_nan=False)]
Decades = Annotated[float, Field(gt=-SENSELESS, lt=SENSELESS, allow_inf_nan=False)]
Deviation = Annotated[float, Field(gt=0, lt=SENSELESS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact(Generic[Model]):
    """One kind of fitted model.

    Attributes:
        noun: What messages call it.
        schema: What the field `schema` of its file says.
        file: Name of the shipped one.
        command: What fits another one.
        build: Makes a model of what its JSON holds; it may raise any error for a wrong value.
    """

    noun: str
    schema: str
    file: str
    command: str
    build: Callable[[Any], Model]

    def load(self, path: Path | None = None) -> Model:
        """Load the model of a file, once; `path` None is the shipped one.

        Raises:
            ArtifactError: There is no such file, or it is not such a model.
        """
        found: Model = _loaded(self, path)
        return found

    def parse(self, text: str) -> Model:
        """Build a model from its JSON.

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
            if not isinstance(stored.get("card", stored)["digest"], str):
                raise TypeError("the digest of the data is not a text")
            return self.build(stored)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise ArtifactError(
                f"The {self.noun} is damaged: {where}: {first['msg']:.200}."
            ) from None
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise ArtifactError(f"The {self.noun} is damaged: {error!r:.200}.") from error


@cache
def _loaded(artifact: Artifact[Any], path: Path | None) -> Any:
    path = path or Path(str(files("rksp.classifiers") / "fitted" / artifact.file))
    try:
        return artifact.parse(read_text(path, _LARGEST))
    except InputError as error:
        raise ArtifactError(f"The {artifact.noun} cannot be read: {error}") from None


def of_stored(kind: type[Model], stored: object) -> Model:
    """Return an object of a dataclass from its stored fields, each of its type.

    Raises:
        ValidationError: A field is missing, or a value is none of its type.
    """
    return TypeAdapter(kind).validate_python(stored)
