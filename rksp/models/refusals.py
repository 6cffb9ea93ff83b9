"""Turn the errors of transformers for an inconsistent configuration into one sentence."""

from __future__ import annotations

import re
import sys
from typing import Any

from rksp.ground.errors import InputError, summary
from rksp.models.declared import setting

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
# What transformers puts before the sentence of a check of its own.
_STRICT = re.compile(
    r"StrictDataclass\w+: (Class v|V)alidation error for \w+ '\w+': ((Value|Type)Error: )?"
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


def refused(target: str, error: BaseException, config: Any = None) -> InputError:
    """Make one sentence from an error of transformers; a configuration may show what would work."""
    said = _STRICT.sub("", summary(error, 300))
    if isinstance(error, ImportError) and (library := _LIBRARY.search(said)):
        return InputError(
            f"{target} is built with the library {library[1]}, which is not installed; install it."
        )
    return InputError(
        f"{target} cannot be built ({said}); "
        f"{working_heads(config) or 'correct the configuration, or change it with --set.'}"
    )


def working_heads(config: Any) -> str:
    """Advise the nearest lower number of heads that divides the width; empty if all is well."""
    config = setting(config, "text_config") or config
    if setting(config, "head_dim") is not None:  # the width of a head is a setting of its own
        return ""
    width, heads = (setting(config, name) for name in ("hidden_size", "num_attention_heads"))
    if not isinstance(width, int) or not isinstance(heads, int) or heads < 1 or not width % heads:
        return ""
    name = getattr(config, "attribute_map", {}).get("num_attention_heads", "num_attention_heads")
    fits = next(count for count in range(heads, 0, -1) if width % count == 0)
    return f"{heads} heads do not divide the width {width}: try --set {name}={fits}."
