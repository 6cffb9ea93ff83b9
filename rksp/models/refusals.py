"""What transformers raises for a configuration that does not hold together, and our sentence."""

from __future__ import annotations

import sys

from rksp.errors import InputError

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


def refusals() -> tuple[type[Exception], ...]:
    """What transformers raises for a configuration that does not hold together.

    Its strict configurations have an error of their own, which is no ValueError and is to be had
    only after the import.
    """
    errors = sys.modules.get("huggingface_hub.errors")
    strict = getattr(errors, "StrictDataclassError", None)
    return (*_REFUSALS, strict) if strict else _REFUSALS


def refused(target: str, error: BaseException) -> InputError:
    """One sentence from whatever transformers raised."""
    text = " ".join(str(error).split())[:300] or "no message"
    return InputError(
        f"{target} cannot be built ({type(error).__name__}: {text}); "
        "correct the configuration, or change it with --set."
    )
