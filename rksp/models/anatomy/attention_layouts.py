"""Find how attention layers lay out their queries, keys and values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeGuard, TypeVar

import torch
from torch import Tensor, nn

from rksp.models.anatomy.norms import qk_norm
from rksp.models.anatomy.weight_view import Matrix, at_least_float, gathered

_QueryKeyValue = tuple[Matrix, Matrix, Matrix]
_Number = TypeVar("_Number", int, float)

_SEPARATE = (
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
    ("q_lin", "k_lin", "v_lin"),
    ("to_q", "to_k", "to_v"),
    ("wq", "wk", "wv"),
    ("q", "k", "v"),
)
_OUTPUTS = ("o_proj", "out_proj", "out_lin", "c_proj", "dense", "out", "o", "proj", "wo", "Wo")
_FUSED = "query_key_value"  # in an order that depends on the kind of the module
_BLOCKS = ("c_attn", "qkv", "qkv_proj", "Wqkv")  # queries, then keys, then values
_PER_HEAD = ("GPTNeoX", "Bloom", "Persimmon")  # query, key and value of a head are adjacent
_MAYBE_ONE = ("Falcon", "GPTBigCode")  # likewise, unless all heads share one key
_HEAD_DIMS = ("head_dim", "attention_head_size", "head_size", "key_value_proj_dim")
_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head")
_KEY_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads")
_SCALES = ("scaling", "scale", "softmax_scale", "inv_norm_factor", "attention_scale")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionLayer:
    """One attention layer, split into its matrices.

    Logits of head h are `scale · (x W_q)(x W_k)ᵀ` before rotation and masks. For latent attention
    (DeepSeek), `query` and `key` are the up-projections of the half without position, `query_down`
    and `key_down` are the matrices before them, and the gains are those of the norms between.

    Attributes:
        path: Module path of the layer.
        module: The layer; its attention call runs inside of the module.
        heads: Number of query heads.
        kv_heads: Number of key and value heads.
        head_dim: Width of a query head (of its half without position).
        scale: Factor of the logits.
        query: Query matrix, split into heads.
        key: Key matrix, split into heads.
        value: Value matrix, split into heads.
        output: The matrix after attention, or None if it is elsewhere.
        query_down: Low-rank half `[rank, width]` of the queries, or None.
        key_down: Low-rank half `[rank, width]` of the keys, or None.
        query_gain: Gain of the norm between the query's halves, `[rank]`, or None.
        key_gain: Gain of the norm between the key's halves, `[rank]`, or None.
        query_rotary: Query outputs that carry the position (latent attention), or None.
        key_rotary: Key outputs that carry the position, shared by all heads, or None.
        query_norm: Module that normalizes the queries themselves, or None.
        key_norm: Module that normalizes the keys themselves, or None.
    """

    path: str
    module: nn.Module
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    query: Matrix
    key: Matrix
    value: Matrix
    output: Matrix | None
    query_down: Matrix | None = None
    key_down: Matrix | None = None
    query_gain: Tensor | None = None
    key_gain: Tensor | None = None
    query_rotary: Matrix | None = None
    key_rotary: Matrix | None = None
    query_norm: nn.Module | None = None
    key_norm: nn.Module | None = None

    @property
    def has_qk_norm(self) -> bool:
        """Whether queries or keys are normalized; then the scale of the weights has no effect."""
        return self.query_norm is not None or self.key_norm is not None

    @torch.no_grad()
    def query_factor(self) -> Tensor:
        """Return `W_qᵀ` of every head, `[heads, head_dim, width]`, at least float32."""
        return _factor(self.query, self.query_down, self.query_gain)

    @torch.no_grad()
    def key_factor(self) -> Tensor:
        """Return `W_kᵀ` of every key head, `[kv_heads, head_dim, width]`, at least float32."""
        return _factor(self.key, self.key_down, self.key_gain)

    def matrices(self) -> tuple[Matrix, ...]:
        """Return all matrices of the layer, each once."""
        parts = (
            *(self.query_down, self.key_down, self.query_rotary, self.key_rotary),
            *(self.query, self.key, self.value, self.output),
        )
        return tuple(part for part in parts if part is not None)


def _factor(up: Matrix, down: Matrix | None, gain: Tensor | None) -> Tensor:
    heads = at_least_float(up.read_heads())
    if gain is not None:
        heads = heads * at_least_float(gathered(gain))
    return heads if down is None else heads @ at_least_float(down.read())


def is_linear(module: object) -> TypeGuard[nn.Linear]:
    """Tell whether a module multiplies by a matrix `weight`: `nn.Linear`, or GPT-2's Conv1D."""
    weight = getattr(module, "weight", None)
    has_matrix = isinstance(weight, nn.Parameter) and weight.dim() == 2
    return has_matrix and (isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D")


def whole_matrix(
    name: str,
    module: Any,
    *,
    part: str = "",
    rows: tuple[int, int] | None = None,
    groups: int = 1,
    heads: int = 1,
) -> Matrix:
    """Return a linear module's matrix, or the outputs in `rows` of each of `groups` groups."""
    is_transposed = not isinstance(module, nn.Linear)
    outputs = module.weight.shape[1 if is_transposed else 0]
    start, stop = rows or (0, outputs // groups)
    return Matrix(
        name=f"{name}:{part}" if part else name,
        parameter=module.weight,
        bias=getattr(module, "bias", None),
        heads=heads,
        is_transposed=is_transposed,
        groups=groups,
        start=start,
        stop=stop,
    )


def attention_layer(model: nn.Module, path: str, module: nn.Module) -> AttentionLayer | None:
    """Return the attention layer that a module is, or None."""
    if is_linear(getattr(module, "kv_b_proj", None)):
        return _latent(path, module)
    parts = _separate(path, module) or _fused(path, module)
    if parts is None:
        return None
    query, key, value = parts
    dim = query.shape[0] // query.heads
    return AttentionLayer(
        path=path,
        module=module,
        heads=query.heads,
        kv_heads=key.heads,
        head_dim=dim,
        scale=first_positive(float, _SCALES, module) or dim**-0.5,
        query=query,
        key=key,
        value=value,
        output=_output(model, path, module),
        query_norm=qk_norm(module, "query"),
        key_norm=qk_norm(module, "key"),
    )


def _separate(path: str, module: Any) -> _QueryKeyValue | None:
    for names in _SEPARATE:
        linears: list[Any] = [getattr(module, name, None) for name in names]
        if not all(map(is_linear, linears)):
            continue
        q, k, v = (whole_matrix(_join(path, n), m) for n, m in zip(names, linears, strict=True))
        dim, heads = first_positive(int, _HEAD_DIMS, module), first_positive(int, _HEADS, module)
        dim = dim or (q.shape[0] // heads if heads else None)
        if not dim or q.shape[0] % dim or k.shape[0] % dim:
            return None
        kv_heads, heads = k.shape[0] // dim, heads or q.shape[0] // dim
        gate = q.shape[0] // (heads * dim)  # 2 if a head's outputs end in a gate (Qwen3-Next)
        if heads % kv_heads or v.shape[0] % kv_heads or gate not in (1, 2):
            return None
        q = (
            replace(q, heads=heads, groups=heads, stop=dim)
            if gate == 2
            else replace(q, heads=heads)
        )
        return q, replace(k, heads=kv_heads), replace(v, heads=kv_heads)
    return None


def _fused(path: str, module: nn.Module) -> _QueryKeyValue | None:
    names = (name for name in (_FUSED, *_BLOCKS) if is_linear(getattr(module, name, None)))
    name, heads = next(names, None), first_positive(int, _HEADS, module)
    if name is None or not heads:
        return None
    kind, is_multi_query = type(module).__name__, bool(getattr(module, "multi_query", False))
    kv_heads, groups = first_positive(int, _KEY_HEADS, module) or heads, 1
    if kind.startswith("Falcon") and getattr(module, "new_decoder_architecture", False):
        groups = kv_heads
    elif kind.startswith(_PER_HEAD) or (kind.startswith(_MAYBE_ONE) and not is_multi_query):
        kv_heads = groups = heads
    elif name == _FUSED and not kind.startswith(_MAYBE_ONE):
        return None
    elif is_multi_query:
        kv_heads = 1
    linear, whole = getattr(module, name), _join(path, name)
    if heads % kv_heads or whole_matrix(whole, linear).shape[0] % (heads + 2 * kv_heads):
        return None
    return _split(whole, linear, heads, kv_heads, groups)


def _split(name: str, linear: nn.Linear, heads: int, kv_heads: int, groups: int) -> _QueryKeyValue:
    """Split outputs that hold, group by group, the queries of the group, its keys and its values.

    One group: all queries, then all keys, then all values. A group per head: GPT-NeoX. A group per
    key head: Falcon, Megatron.
    """
    counts = (heads, kv_heads, kv_heads)
    dim = whole_matrix(name, linear).shape[0] // sum(counts)
    ends = [sum(counts[:i]) * dim // groups for i in range(4)]
    q, k, v = (
        whole_matrix(
            name, linear, part=part, rows=(ends[i], ends[i + 1]), groups=groups, heads=counts[i]
        )
        for i, part in enumerate(("query", "key", "value"))
    )
    return q, k, v


def _latent(path: str, module: Any) -> AttentionLayer | None:
    """Split DeepSeek's multi-head latent attention (V2, section 2.1): low-rank queries and keys."""
    nope, rope = getattr(module, "qk_nope_head_dim", None), getattr(module, "qk_rope_head_dim", 0)
    wide, rank = getattr(module, "v_head_dim", None), getattr(module, "kv_lora_rank", None)
    heads = first_positive(int, _HEADS, module)
    low = is_linear(getattr(module, "q_b_proj", None))
    query, query_name = (module.q_b_proj, "q_b_proj") if low else (module.q_proj, "q_proj")
    if nope is None or wide is None or rank is None or heads is None:
        return None
    if not is_linear(module.kv_a_proj_with_mqa):
        return None
    name, kv = _join(path, query_name), _join(path, "kv_b_proj")
    down = _join(path, "kv_a_proj_with_mqa")
    per_head: dict[str, Any] = {"groups": heads, "heads": heads}
    rotary: dict[str, Any] = {"part": "rotary", "rows": (nope, nope + rope)}
    return AttentionLayer(
        path=path,
        module=module,
        heads=heads,
        kv_heads=heads,
        head_dim=nope,
        scale=first_positive(float, _SCALES, module) or (nope + rope) ** -0.5,
        query=whole_matrix(name, query, part="query", rows=(0, nope), **per_head),
        query_rotary=whole_matrix(name, query, **rotary, **per_head) if rope else None,
        query_down=whole_matrix(_join(path, "q_a_proj"), module.q_a_proj) if low else None,
        query_gain=_gain(module, "q_a_layernorm") if low else None,
        key=whole_matrix(kv, module.kv_b_proj, part="key", rows=(0, nope), **per_head),
        value=whole_matrix(
            kv, module.kv_b_proj, part="value", rows=(nope, nope + wide), **per_head
        ),
        key_down=whole_matrix(down, module.kv_a_proj_with_mqa, part="key", rows=(0, rank)),
        key_rotary=whole_matrix(
            down, module.kv_a_proj_with_mqa, part="rotary", rows=(rank, rank + rope)
        )
        if rope
        else None,
        key_gain=_gain(module, "kv_a_layernorm"),
        output=whole_matrix(_join(path, "o_proj"), module.o_proj),
    )


def _gain(module: nn.Module, name: str) -> Tensor | None:
    return getattr(getattr(module, name, None), "weight", None)


def _output(model: nn.Module, path: str, module: nn.Module) -> Matrix | None:
    for name in _OUTPUTS:
        if is_linear(linear := getattr(module, name, None)):
            return whole_matrix(_join(path, name), linear)
    # BERT has it in a sibling module: attention.self and attention.output.dense.
    parent = path.rpartition(".")[0]
    beside = getattr(model.get_submodule(parent), "output", None) if path else None
    if is_linear(dense := getattr(beside, "dense", None)):
        return whole_matrix(_join(parent, "output.dense"), dense)
    return None


def first_positive(
    kind: type[_Number], names: Iterable[str], *modules: nn.Module
) -> _Number | None:
    """Return the first positive number of these names in modules, then in their configurations."""
    for place in (*modules, *(getattr(module, "config", None) for module in modules)):
        for name in names:
            value = getattr(place, name, None)
            if isinstance(value, int | kind) and not isinstance(value, bool) and value > 0:
                return kind(value)
    return None


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
