"""Turn the errors of transformers for an inconsistent configuration into one sentence."""

from __future__ import annotations

import re
import sys

from rksp.ground.errors import InputError

_REFUSALS = (
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    RuntimeError,
    ImportError,
    AssertionError,
    IndexError,
    ZeroDivisionError,
    OSError,
)
_LIBRARY = re.compile(r"requires the (\w+) library")


def refusals() -> tuple[type[Exception], ...]:
    """Return the errors that transformers raises for an inconsistent configuration.

    Its strict configurations have their own error, which is not a ValueError and exists only after
    the import.
    """
    errors = sys.modules.get("huggingface_hub.errors")
    strict: type[Exception] | None = getattr(errors, "StrictDataclassError", None)
    return (*_REFUSALS, strict) if strict else _REFUSALS


def refused(target: str, error: BaseException) -> InputError:
    """Make one sentence from an error of transformers."""
    text = " ".join(str(error).split())[:300] or "no message"
    if isinstance(error, ImportError) and (library := _LIBRARY.search(text)):
        return InputError(
            f"{target} is built with the library {library[1]}, which is not installed; install it."
        )
    return InputError(
        f"{target} cannot be built ({type(error).__name__}: {text}); "
        "correct the configuration, or change it with --set."
    )
