"""What the modules of a built model say before anything runs through it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rksp.models.anatomy.norms import is_qk_norm

if TYPE_CHECKING:  # a list of checks must not load torch
    from torch import nn

_TRANSPOSED = "Conv1D"  # GPT-2's linear layer stores [in, out]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Shapes and scales of the weights.

    Attributes:
        parameters: Trainable numbers in all.
        depth: Blocks in all chains.
        width: Of the residual stream; 0 where there is none, and nothing is known of blocks.
        block_norms: Normalization modules inside the blocks.
        qk_norms: Those of them that normalize queries or keys, or the latents they come from.
        attentions: Attention modules inside the blocks.
        input_std: Median root mean square of the blocks' matrices that read the stream; None on
            the meta device or where the blocks have no such matrix.
        output_std: The same of the matrices that write to it.
        embedding_std: Root mean square of the input embedding; None without one.
        ties_embeddings: The output layer is the input embedding.
    """

    parameters: int
    depth: int
    width: int
    block_norms: int = 1
    qk_norms: int = 0
    attentions: int = 1
    input_std: float | None = None
    output_std: float | None = None
    embedding_std: float | None = None
    ties_embeddings: bool = False


def read_facts(model: nn.Module, chains: Sequence[tuple[str, int]], width: int) -> ModelFacts:
    """Reads a model's facts; nothing runs, and the meta device does (without scales).

    Args:
        model: Any module.
        chains: (path, number of blocks) of its residual stream.
        width: Of the stream.
    """
    if not chains:
        size = sum(p.numel() for p in model.parameters() if p.requires_grad)
        return ModelFacts(parameters=size, depth=0, width=0, attentions=0)
    blocks = [model.get_submodule(path) for path, _ in chains]
    names = [(name, type(m).__name__) for block in blocks for name, m in block.named_modules()]
    norms = [name for name, kind in names if "norm" in kind.lower()]
    matrices = [entry for block in blocks for entry in _matrices(block)]
    reading = [m for m, fan_in, fan_out in matrices if fan_in == width != fan_out]
    writing = [m for m, fan_in, fan_out in matrices if fan_out == width != fan_in]
    square = [m for m, fan_in, fan_out in matrices if fan_in == width == fan_out]
    embedding, output = _ends(model)
    return ModelFacts(
        parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
        depth=sum(count for _, count in chains),
        width=width,
        block_norms=len(norms),
        qk_norms=sum(is_qk_norm(name) for name in norms),
        attentions=sum("attention" in kind.lower() for _, kind in names),
        input_std=_median_rms(reading or square),
        output_std=_median_rms(writing or square),
        embedding_std=_median_rms([embedding] if embedding is not None else []),
        ties_embeddings=embedding is not None and embedding is output,
    )


def _matrices(block: nn.Module) -> Iterator[tuple[nn.Parameter, int, int]]:
    """Each matrix with the number of its inputs and outputs."""
    for module in block.modules():
        weight = getattr(module, "weight", None)
        if getattr(weight, "ndim", 0) == 2 and "Embedding" not in type(module).__name__:
            rows, columns = weight.shape
            is_transposed = type(module).__name__ == _TRANSPOSED
            yield (weight, rows, columns) if is_transposed else (weight, columns, rows)


def _ends(model: nn.Module) -> tuple[nn.Parameter | None, nn.Parameter | None]:
    """The weights of the token embedding and of the output layer."""

    def weight(getter: str) -> nn.Parameter | None:
        try:
            return getattr(getattr(model, getter)(), "weight", None)
        except (AttributeError, NotImplementedError):  # not every model has both
            return None

    return weight("get_input_embeddings"), weight("get_output_embeddings")


def _median_rms(weights: Sequence[nn.Parameter]) -> float | None:
    if not weights or any(weight.is_meta for weight in weights):
        return None
    return statistics.median(float(w.detach().float().square().mean().sqrt()) for w in weights)
