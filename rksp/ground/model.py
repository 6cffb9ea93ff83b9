"""The base of every frozen and strict record, and the narrowing of a value that must be there."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ConfigDict

_Value = TypeVar("_Value")


class Strict(BaseModel):
    """Base of frozen records: no field that the class does not know, no silent change."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Finite(Strict):
    """Base of recipes and options: no number in them is infinite or undefined."""

    model_config = ConfigDict(allow_inf_nan=False)


def definite(value: _Value | None) -> _Value:
    """Return a value that an earlier step has made sure of.

    Raises:
        TypeError: If it is None, which is a mistake of the caller.
    """
    if value is None:
        raise TypeError("a value that must be known here is None")
    return value
