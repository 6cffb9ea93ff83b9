"""A batch: what a model is shown and the labels that judge it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

IGNORED = -100  # the label of a position that does not count, as in torch's cross-entropy


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Model inputs (tokens `[batch, length]` int64, or images `[batch, 1, 8, 8]`) and labels.

    Inputs may also be the keyword arguments of a Hugging Face model. Labels line up with the
    logits they judge: already shifted for a language model.
    """

    inputs: Tensor | dict[str, Tensor]
    labels: Tensor
