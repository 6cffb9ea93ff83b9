"""Find the parts of a model: attention by head, feed-forward matrices, routers, head."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from rksp.models.anatomy.attention_layouts import (
    AttentionLayer,
    attention_layer,
    is_linear,
    whole_matrix,
)
from rksp.models.anatomy.chains import block_paths
from rksp.models.anatomy.routers import Router, find_routers
from rksp.models.anatomy.weight_view import Matrix

_HEAD_NAMES = ("head", "lm_head", "embed_out", "classifier", "score")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Anatomy:
    """The parts that were found in a model; missing parts are empty.

    Attributes:
        attention: Attention layers in the order of the modules.
        feed_forward: Every other matrix of the blocks, but no embedding, router or convolution.
            Experts are listed one by one, and gate and up of a fused layer separately.
        routers: Routers of mixtures of experts.
        head: The matrix that computes logits, or None.
        blocks: Paths of the blocks.
    """

    attention: tuple[AttentionLayer, ...]
    feed_forward: tuple[Matrix, ...]
    routers: tuple[Router, ...]
    head: Matrix | None
    blocks: tuple[str, ...]

    def attention_matrices(self) -> tuple[Matrix, ...]:
        """Return every layer's query, key, value and output matrices, with low-rank halves."""
        return tuple(matrix for layer in self.attention for matrix in layer.matrices())


def find_anatomy(model: nn.Module) -> Anatomy:
    """Inspect the names and shapes of a model's modules; nothing is run.

    An unknown layout is left out rather than guessed, because a wrong slice would give plausible
    but meaningless numbers.
    """
    blocks = block_paths(model)
    attention = tuple(
        layer
        for path, module in model.named_modules()
        if (layer := attention_layer(model, path, module)) is not None
    )
    routers = tuple(find_routers(model))
    head = _head(model)
    taken = {id(matrix.parameter) for layer in attention for matrix in layer.matrices()}
    taken |= {id(router.weight) for router in routers}
    taken |= {id(head.parameter)} if head is not None else set()
    return Anatomy(
        attention=attention,
        feed_forward=tuple(_other_matrices(model, blocks, taken)),
        routers=routers,
        head=head,
        blocks=blocks,
    )


def _head(model: nn.Module) -> Matrix | None:
    candidates = {name: module for name, module in model.named_modules() if is_linear(module)}
    getter = getattr(model, "get_output_embeddings", None)
    owner = getter() if callable(getter) else None
    for name, module in candidates.items():
        if module is owner or (owner is None and name in _HEAD_NAMES):
            return whole_matrix(name, module)
    return None


def _other_matrices(model: nn.Module, blocks: tuple[str, ...], taken: set[int]) -> Iterator[Matrix]:
    for block in blocks:
        for inner, module in model.get_submodule(block).named_modules():
            path = f"{block}.{inner}" if inner else block
            if is_linear(module) and id(module.weight) not in taken:
                taken.add(id(module.weight))
                if min(module.weight.shape) > 1:  # a gate of one output has no spectrum
                    yield from _gate_and_up(whole_matrix(path, module))
            for name, parameter in module.named_parameters(recurse=False):
                if parameter.dim() == 3 and "expert" in path and id(parameter) not in taken:
                    taken.add(id(parameter))
                    yield from _experts(f"{path}.{name}", module, parameter)


def _experts(name: str, module: nn.Module, parameter: nn.Parameter) -> Iterator[Matrix]:
    """Yield the experts in one parameter `[experts, outputs, inputs]`, or its transpose.

    The module tells if the parameter is transposed; Llama 4's is, but does not tell.
    """
    is_transposed = getattr(module, "is_transposed", type(module).__name__.startswith("Llama4"))
    outputs = parameter.shape[2 if is_transposed else 1]
    for expert in range(len(parameter)):
        whole = Matrix(
            name=f"{name}:{expert}",
            parameter=parameter,
            is_transposed=is_transposed,
            stop=outputs,
            expert=expert,
        )
        if type(module).__name__.startswith("GptOss"):
            yield whole  # its gate and up rows alternate
        else:
            yield from _gate_and_up(whole)


def _gate_and_up(matrix: Matrix) -> Iterator[Matrix]:
    """Yield the two halves of a fused gate and up projection; any other matrix unchanged."""
    outputs = matrix.shape[0]
    if "gate_up_proj" not in matrix.name or outputs % 2:
        yield matrix
        return
    halves = ((0, outputs // 2, "gate"), (outputs // 2, outputs, "up"))
    for start, stop, part in halves:
        yield Matrix(
            name=f"{matrix.name}:{part}",
            parameter=matrix.parameter,
            bias=matrix.bias,
            is_transposed=matrix.is_transposed,
            start=start,
            stop=stop,
            expert=matrix.expert,
        )
