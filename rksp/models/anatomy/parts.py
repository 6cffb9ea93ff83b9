"""Find the parts of a model: attention by head, feed-forward matrices, routers, head."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from rksp.ground.model import definite
from rksp.models.anatomy.attention_layouts import (
    AttentionLayer,
    attention_layer,
    first_positive,
    is_linear,
    whole_matrix,
)
from rksp.models.anatomy.chains import block_paths
from rksp.models.anatomy.weight_view import Matrix, at_least_float, gathered

_ROUTER_NAMES = ("gate", "router", "wg")  # but not `gate_proj` of a gated feed-forward layer
_TOP_K = ("top_k", "num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_k", "k")
_SIGMOID_TYPES = ("Llama4", "DeepseekV3", "Glm4Moe", "Dots1")
_BLOCK = 12  # weights of a transformer's block in squares of its width (Kaplan et al., 2020, §2.1)
_HEAD_NAMES = ("head", "lm_head", "embed_out", "classifier", "score")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Router:
    """A mixture-of-experts layer's router.

    The states that it scores are the first tensor of the block's call. It is best to recompute the
    logits from them in float32, because the output of routers differs between models and releases.

    Attributes:
        path: Path of the module that holds the weight.
        block: That layer.
        weight: `[experts, width]`.
        bias: Bias of the logits, `[experts]`, or None.
        top_k: Experts chosen per token.
        is_sigmoid: Whether scores are sigmoids instead of a softmax (DeepSeek-V3, Llama 4).
        correction: Buffer added to scores only for the choice (auxiliary-loss-free balance), or
            None.
    """

    path: str
    block: nn.Module
    weight: nn.Parameter
    bias: nn.Parameter | None
    top_k: int
    is_sigmoid: bool
    correction: Tensor | None = None

    @torch.no_grad()
    def logits(self, states: Tensor) -> Tensor:
        """Compute logits `[tokens, experts]` of states `[..., width]`, at least float32."""
        rows = at_least_float(states.detach().flatten(0, -2))
        bias = None if self.bias is None else gathered(self.bias).to(rows.dtype)
        return nn.functional.linear(rows, self.rows().to(rows.dtype), bias)

    def rows(self) -> Tensor:
        """Return the weight `[experts, width]`, detached, at least float32, from all shards."""
        return at_least_float(gathered(self.weight))


def find_routers(model: nn.Module) -> Iterator[Router]:
    """Yield the routers of a model, recognized by their names and by the experts beside them."""
    for path, block in model.named_modules():
        experts = _expert_count(block)
        for name in _ROUTER_NAMES if experts else ():
            child = getattr(block, name, None)
            for inner, holder in child.named_modules() if isinstance(child, nn.Module) else ():
                weight = getattr(holder, "weight", None)
                if not isinstance(weight, nn.Parameter) or weight.dim() != 2:
                    continue
                if len(weight) != experts:
                    continue
                yield Router(
                    path=".".join(filter(None, (path, name, inner))),
                    block=block,
                    weight=weight,
                    bias=getattr(holder, "bias", None),
                    top_k=min(first_positive(int, _TOP_K, definite(child), block) or 1, experts),
                    is_sigmoid=_is_sigmoid(definite(child), block),
                    correction=_correction(definite(child), block),
                )
                break


def _expert_count(block: nn.Module) -> int:
    for name, child in block.named_children():
        if name in _ROUTER_NAMES:
            continue
        if isinstance(child, nn.ModuleList | nn.ModuleDict) and "expert" in name:
            return len(child)
        counts = {p.shape[0] for p in child.parameters(recurse=False) if p.dim() == 3}
        if len(counts) == 1:
            return counts.pop()
        if "expert" in name and isinstance(count := getattr(child, "num_experts", None), int):
            return count  # DBRX stores all experts in one matrix
    return 0


def _is_sigmoid(*places: nn.Module) -> bool:
    named = (*places, *(getattr(place, "config", None) for place in places))
    return any(
        type(place).__name__.startswith(_SIGMOID_TYPES)
        or getattr(place, "scoring_func", None) == "sigmoid"
        for place in named
    )


def _correction(*places: nn.Module) -> Tensor | None:
    found = (getattr(place, "e_score_correction_bias", None) for place in places)
    return next((value for value in found if isinstance(value, Tensor)), None)


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
    outputs = matrix.shape[0]
    if "gate_up_proj" not in matrix.name or outputs % 2:
        yield matrix
        return
    halves = ((0, outputs // 2, "gate"), (outputs // 2, outputs, "up"))
    for start, stop, part in halves:
        yield replace(matrix, name=f"{matrix.name}:{part}", start=start, stop=stop)


def equivalent_shape(model: nn.Module) -> tuple[int, int]:
    """Return the width and number of blocks of a transformer with about the same matrices.

    The width is the median of the smaller side of each matrix; a convolution's filters are rows.
    The number of blocks is the total number of weights over twelve squares of the width. Embeddings
    do not count.
    """
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    matrices = [p for p in model.parameters() if p.dim() > 1 and id(p) not in embeddings]
    sides = [min(len(p), p[0].numel()) for p in matrices if len(p)]
    width = max(1, round(statistics.median(sides or [1])))
    return width, max(1, round(sum(p.numel() for p in matrices) / (_BLOCK * width**2)))
