"""What readers of past runs share: JSON of strangers, settings beside a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rksp.ground.budgets import PAST_RUN
from rksp.ground.errors import InputError
from rksp.ground.files import read_head, read_text
from rksp.recipe_files.parse.document import load_document
from rksp.recipe_files.parse.logged import is_logged, unwrapped

_HEAD = 2**16
_BESIDE = ("training_args.json", "args.json", "hparams.yaml", "arguments.json", "config.yaml")
_DEEPEST = 6  # of nested settings


def head_of(path: Path) -> bytes:
    """Return the beginning of a file; empty for what is no readable file."""
    try:
        return read_head(path, _HEAD)
    except InputError:
        return b""


def read_json(path: Path) -> Any:
    """Read a file of JSON.

    Raises:
        InputError: It cannot be read, or is not JSON.
    """
    try:
        return json.loads(read_text(path, PAST_RUN))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON ({error!s:.100}).") from None


def flat(settings: Mapping[Any, Any], prefix: str = "", depth: int = 0) -> dict[str, object]:
    """Return nested settings by dotted names; beyond six levels they are left out."""
    found: dict[str, object] = {}
    for name, value in settings.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            if depth < _DEEPEST:
                found |= flat(value, f"{key}.", depth + 1)
        elif value is not None:
            found[key] = value
    return found


def settings_beside(folder: Path) -> dict[str, object]:
    """Return the settings in a file beside a run: its arguments, and the model that it stores.

    A file that cannot be read says nothing: it is not what the user named.
    """
    found: dict[str, object] = {}
    for name in _BESIDE:
        path = folder / name
        if not path.is_file():
            continue
        try:
            data = load_document(path).data
        except InputError:
            continue
        found = flat(unwrapped(data) if is_logged(data) else data)
        break
    model = folder / "config.json"
    if "target" not in found and model.is_file() and b'"model_type"' in head_of(model):
        found["target"] = str(model)
    return found
