"""The settings of a target's configuration by name, without a model: what a sweep may vary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rksp.ground.errors import InputError
from rksp.models.config_guard import acts, read_config
from rksp.models.configuration import (
    declared_config,
    known_settings,
    known_type,
    make_config,
    other_names,
)
from rksp.models.hub import hub_folder, is_cached, is_hub_id
from rksp.models.names import is_type, path_of
from rksp.models.overrides import close, dropouts, is_setting
from rksp.models.published import published, published_like
from rksp.models.refusals import refusals

# Stored in a configuration, and no part of the model's shape.
_NOT_SHAPE = ("model_type", "architectures", "transformers_version", "id2label", "label2id")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """What can be set about a target.

    Attributes:
        known: Value by name, nested.
        renamed: Other name → name.
        has_weights: The target has stored weights, which fit its own settings only.
    """

    known: Mapping[str, object]
    renamed: Mapping[str, str]
    has_weights: bool

    def __contains__(self, name: str) -> bool:
        is_group = name == "dropout" and bool(self.dropouts)
        return is_group or is_setting(name, self.known, self.renamed)

    @property
    def dropouts(self) -> tuple[str, ...]:
        """The settings that `dropout` means; none where it is a setting itself."""
        return dropouts(self.known, self.renamed)

    def close(self, name: str) -> str:
        """Return `; did you mean a, b?`, or a full stop."""
        group = {"dropout": None} if self.dropouts else {}
        return close(name, {**self.known, **group}, self.renamed)

    def value(self, name: str) -> object:
        """Return the target's own value of a setting; None for one that has none."""
        found: object = self.known
        for part in self.renamed.get(name, name).split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        return found


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
    known = known_settings(config).items()
    return ModelSettings(
        known={name: value for name, value in known if name not in _NOT_SHAPE and not acts(name)},
        renamed=other_names(config),
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
