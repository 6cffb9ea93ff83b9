"""The base of every document: a kind, a schema version, a verdict, an exit code, strict JSON."""

from __future__ import annotations

import json
import math
from typing import Annotated, Self

from pydantic import ConfigDict, Field

from rksp.ground.model import Strict
from rksp.recipe.start import Start

SCHEMA_VERSION = "5.0"
UNKNOWN = 4  # the exit code where rksp cannot tell and `--fail-on unknown` was given
MAJOR = SCHEMA_VERSION.partition(".")[0]  # fields that a later minor version adds have defaults


class Part(Strict):
    """Base of every part: frozen, and no field that the schema does not know."""

    model_config = ConfigDict(from_attributes=True)

    @classmethod
    def of(cls, *sources: object, **given: object) -> Self:
        """Build the record from the attributes that have the names of its fields.

        Args:
            sources: Measurements; the first one that has the attribute gives the field.
            given: Fields that no source has, or that must differ from it.
        """
        found = dict(given)
        for name in cls.model_fields.keys() - given.keys():
            for source in sources:
                if hasattr(source, name):
                    found[name] = getattr(source, name)
                    break
        return cls(**found)


class TargetReport(Part):
    """The model that a document is about.

    Attributes:
        name: As the user wrote it.
        kind: What the name was taken for; see `rksp.models.source.Kind`.
        task: What the model predicts.
        parameters: Their number; computed from the configuration within a few per cent where no
            model was built, and None where a factory cannot tell.
        start: The weights that the run starts from, and what shows it.
        shape_from: What gave the shape of a model whose files are not at hand; else empty.
        config_hash: SHA-256 of the configuration.
        notes: What was changed or dropped to read the model, and how its stream was read, a
            sentence each.
        model_type: The type in transformers; None for a model without a configuration.
    """

    name: str
    kind: str
    task: str
    model_type: str | None
    parameters: int | None
    start: Start
    shape_from: str = ""
    config_hash: str | None
    notes: list[str] = Field(default_factory=list)


class GateReport(Part):
    """The reason for the exit code: `failed` means 1 or 4, unless `--exit-zero` was given.

    Attributes:
        fail_on: As given; several bars are joined by commas.
        failed: True if anything fails.
        only_unknown: It fails only since rksp cannot tell, and `--fail-on unknown` was given.
        issues: Keys of the issues that fail.
        reasons: The clauses of the last line on stderr.
    """

    fail_on: str
    failed: bool
    only_unknown: bool = False
    issues: list[str]
    reasons: list[str]


class Document(Part):
    """Base of what `rksp score`, `rksp confirm`, `rksp grid` and `rksp diff` write.

    Attributes:
        kind: The command that made it.
        schema_version: The version of the schema that all kinds share.
        verdict: The answer in one word.
        gate: What decided the exit code.
        non_finite: Paths of numbers that were infinite or undefined. JSON cannot express them, so
            they are null.
    """

    kind: str
    schema_version: Annotated[str, Field(pattern=rf"^{MAJOR}\.\d+$")] = SCHEMA_VERSION
    verdict: str
    gate: GateReport | None = None
    non_finite: list[str] = Field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """0, 1 if the gate failed, or 4 if only for want of an answer; ignores `--exit-zero`."""
        if self.gate is None or not self.gate.failed:
            return 0
        return UNKNOWN if self.gate.only_unknown else 1

    def finite(self) -> Self:
        """Return the document as its JSON will be parsed: keys sorted, finite numbers only."""
        return type(self).model_validate(self._content())

    def to_json(self) -> str:
        """Write JSON with sorted keys and no NaN: the same bytes for the same numbers."""
        return json.dumps(self._content(), indent=1, allow_nan=False) + "\n"

    def _content(self) -> dict[str, object]:
        missing: list[str] = []
        dumped = sorted(self.model_dump(mode="python").items())
        content = {name: _finite(value, f"/{name}", missing) for name, value in dumped}
        content |= {"non_finite": sorted({*missing, *self.non_finite})}
        first = content.pop("summary", None)  # for who reads no further
        return {"summary": first, **content} if first else content


def _finite(value: object, path: str, missing: list[str]) -> object:
    """Return a value with keys in order, and None for a number that JSON cannot express."""
    if isinstance(value, dict):
        return {key: _finite(value[key], f"{path}/{key}", missing) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [_finite(part, f"{path}/{i}", missing) for i, part in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        missing.append(path)
        return None
    return value
