"""Facts about the modules of a built model, before anything runs through it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rksp.models.anatomy.norms import is_qk_norm

if TYPE_CHECKING:  # a list of checks must not load torch
    from torch import nn

    from rksp.models.streaming.weights import Scales

_BALANCING_BIASES = ("score_correction_bias", "expert_bias")  # DeepSeek-V3's and LFM2's names
_TRANSPOSED = "Conv1D"  # GPT-2's linear layer stores [in, out]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Shapes and scales of the weights.

    Attributes:
        parameters: Number of trainable parameters.
        depth: Number of blocks in all chains.
        width: Width of the residual stream; 0 without one, and then there are no facts on blocks.
        block_norms: Normalization modules inside the blocks.
        qk_norms: Those that normalize queries or keys, or the latents they are made from.
        attentions: Attention modules inside the blocks.
        input_std: Median root mean square of the blocks' matrices that read the stream; None
            where the weights have no values or the blocks have no such matrix.
        output_std: The same for the matrices that write to the stream.
        embedding_std: Root mean square of the input embedding; None without one.
        ties_embeddings: True if the output layer is the input embedding.
        balancing_biases: Number of biases that correct the routers' scores to balance the load.
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
    balancing_biases: int = 0


def read_facts(
    model: nn.Module, chains: Sequence[tuple[str, int]], width: int, scales: Scales | None = None
) -> ModelFacts:
    """Read a model's facts without running it; a model on the meta device is enough.

    Args:
        model: Any module.
        chains: (path, number of blocks) of its residual stream.
        width: Width of the stream.
        scales: Scales of a streamed model's weights, recorded while they were loaded.
    """
    if not chains:
        size = sum(p.numel() for p in model.parameters() if p.requires_grad)
        return ModelFacts(parameters=size, depth=0, width=0, attentions=0)
    sizes = _Sizes(model, scales)
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
        input_std=sizes.median(reading or square),
        output_std=sizes.median(writing or square),
        embedding_std=sizes.median([embedding] if embedding is not None else []),
        ties_embeddings=embedding is not None and embedding is output,
        balancing_biases=sum(
            name.rpartition(".")[2].endswith(_BALANCING_BIASES)
            for name, _ in (*model.named_parameters(), *model.named_buffers())
        ),
    )


def _matrices(block: nn.Module) -> Iterator[tuple[nn.Parameter, int, int]]:
    for module in block.modules():
        weight: Any = getattr(module, "weight", None)
        if getattr(weight, "ndim", 0) == 2 and "Embedding" not in type(module).__name__:
            rows, columns = weight.shape
            is_transposed = type(module).__name__ == _TRANSPOSED
            yield (weight, rows, columns) if is_transposed else (weight, columns, rows)


def _ends(model: nn.Module) -> tuple[nn.Parameter | None, nn.Parameter | None]:
    def weight(getter: str) -> nn.Parameter | None:
        try:
            return getattr(getattr(model, getter)(), "weight", None)
        except (AttributeError, NotImplementedError):  # not every model has both
            return None

    return weight("get_input_embeddings"), weight("get_output_embeddings")


class _Sizes:
    """Root mean squares of weights, from their values or as recorded while streaming."""

    def __init__(self, model: nn.Module, scales: Scales | None) -> None:
        self.scales = scales
        self.names = {id(parameter): name for name, parameter in model.named_parameters()}

    def median(self, weights: Sequence[nn.Parameter]) -> float | None:
        """Return the median RMS of weights; None if any is unknown, or there are none."""
        sizes = [self._one(weight) for weight in weights]
        given = [size for size in sizes if size is not None]
        return statistics.median(given) if given and len(given) == len(sizes) else None

    def _one(self, weight: nn.Parameter) -> float | None:
        from rksp.models.streaming.weights import root_mean_square  # loads torch

        if not weight.is_meta:
            return root_mean_square(weight)
        return None if self.scales is None else self.scales.rms(self.names[id(weight)])
