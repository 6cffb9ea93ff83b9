"""What a typed name means where a file or folder of the working folder has the same name."""

from __future__ import annotations

from pathlib import Path

from rksp.ground.errors import InputError
from rksp.ground.factory import is_factory
from rksp.ground.files import with_home
from rksp.models.configuration import ALIASES, types_for
from rksp.models.hub import is_cached, is_hub_id
from rksp.models.published import published

FILES = (
    *(".json", ".safetensors", ".yaml", ".yml", ".toml", ".py", ".sh", ".ipynb", ".csv", ".jsonl"),
    *(".db", ".html", ".txt", ".parquet"),
)


def is_explicit(target: str) -> bool:
    """Tell whether a target can only be a path: it begins as one, or ends as a file does."""
    begins = target.startswith((".", "/", "~")) or "\\" in target
    return begins or Path(target).suffix.lower() in FILES


def is_type(target: str) -> bool:
    """Tell whether a target is the name of a model type."""
    return target in ALIASES or ("/" not in target and target in types_for(target))


def path_of(target: str, *, allow_hub: bool = False) -> Path | None:
    """Return the file or folder that a target means; None if it means none, or none is there.

    A folder of a stranger's repository may have the name of something else. So the name of a model
    type or of a factory is never a path, and a Hub model that is at hand, may be fetched, or has a
    published configuration is not replaced by a folder.

    Args:
        target: What was typed.
        allow_hub: The network may be used.

    Raises:
        InputError: The target may be a folder or a model of the Hub.
    """
    path = with_home(target)
    if is_factory(target) or not path.exists():
        return None
    if is_explicit(target) or not (is_hub_id(target) or path.name == target):
        return path
    if is_hub_id(target):
        if allow_hub or published(target) or is_cached(target):
            raise InputError(
                f"{target} is a folder here and may be a model of the Hub; write ./{target} for "
                "the folder, or remove it."
            )
        return path
    return None if is_type(target) else path


def said_of_namesake(target: str) -> tuple[str, ...]:
    """Say which of two meanings a name was given, where a file or folder has the same name."""
    if is_explicit(target) or not with_home(target).exists():
        return ()
    if path_of(target) is None:
        kind = "factory" if is_factory(target) else "model type"
        return (f"{target} is read as the {kind}; write ./{target} for the file or folder.",)
    is_plain = is_hub_id(target) or Path(target).name == target
    return (f"{target} is read as the path ./{target}.",) if is_plain else ()
