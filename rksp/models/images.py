"""What a model of images shows of a recipe: an image is a sequence of patches."""

from __future__ import annotations

from typing import Any

from rksp.models.declared import Declared


def shown_of_images(config: Any, task: str) -> dict[str, int | None]:
    """Return what the configuration of an image classifier shows, as `ModelSource.shown`.

    Its patches are the tokens of a sequence. Without them, and without a stream of declared width
    and depth, the model has no sequence, and the field is None.
    """
    if task != "image-classification":
        return {}
    declared = Declared(config, task)
    if declared.patches is not None:
        return {"sequence_length": max(2, declared.patches)}
    has_stream = declared.width is not None and declared.depth is not None
    return {} if has_stream else {"sequence_length": None}
