"""The base of every strict record, the narrowing of a value, and the type of a progress report."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pydantic import BaseModel, ConfigDict

_Value = TypeVar("_Value")
# Called with the work done, the total work in the same unit (0: unknown), and a label.
Progress = Callable[[float, float, str], None]


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
