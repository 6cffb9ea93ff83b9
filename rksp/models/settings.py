"""The settings of a target's configuration by name, without a model: what a sweep may vary."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rksp.ground.errors import InputError
from rksp.models.config_guard import acts, read_config
from rksp.models.configuration import declared_config, known_type, make_config, settable
from rksp.models.hub import hub_folder, is_cached, is_hub_id
from rksp.models.names import is_type, path_of
from rksp.models.overrides import ModelSettings
from rksp.models.published import published, published_like
from rksp.models.refusals import refusals

# Stored in a configuration, and no part of the model's shape.
_NOT_SHAPE = ("model_type", "architectures", "transformers_version", "id2label", "label2id")


def settings_of(target: str, *, allow_hub: bool = False) -> ModelSettings | None:
    """Read the settings that a target has; transformers is imported, and no model is built.

    Args:
        target: As for `rksp.models.resolve.resolve`.
        allow_hub: Fetch a Hub model that the cache lacks.

    Returns:
        The settings; None for a target without a configuration, or whose configuration cannot be
        read: `resolve` says why.
    """
    try:
        settings, folder = stored_settings(target, allow_hub)
        if settings is None:
            return None
        settings, _ = known_type(target, settings, needs_code=False)
        config = declared_config(settings) or make_config(target, settings)
    except (InputError, *refusals()):  # type: ignore[misc]  # an unpacked tuple of classes
        return None
    found = settable(config)
    return replace(
        found,
        known={k: v for k, v in found.known.items() if k not in _NOT_SHAPE and not acts(k)},
        has_weights=folder is not None and any(folder.glob("*.safetensors")),
    )


def stored_settings(
    target: str, allow_hub: bool = False
) -> tuple[dict[str, object] | None, Path | None]:
    """Return the stored settings of a target, and the folder that may hold its weights.

    Raises:
        InputError: The Hub's model is not here, or its file cannot be read.
    """
    path = path_of(target, allow_hub=allow_hub)
    if path is None and is_hub_id(target) and (allow_hub or is_cached(target)):
        path = hub_folder(target, allow_hub)
    if path is None:
        if is_type(target):
            return {"model_type": target}, None
        known = published(target) or published_like(target)
        return (None if known is None else known.settings), None
    if path.suffix == ".safetensors":
        path = path.parent
    if path.is_dir():
        return read_config(path / "config.json")[0], path
    return read_config(path)[0], None
