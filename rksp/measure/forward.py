"""Measure losses, scales, attention, routers and aligned response in one forward pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rksp.documents.shown import (
    LOGITS_NOT_FINITE,
    AttentionStats,
    BlockStats,
    ForwardStats,
    RouterStats,
)
from rksp.ground.model import definite
from rksp.kernels.wide_output import Unmade, part_of, row_buffer
from rksp.models.anatomy.attention_calls import (
    AttentionCall,
    attention_entropies,
    logit_deviations,
    visible_logits,
    watching_attention,
)
from rksp.models.anatomy.chains import first_tensor
from rksp.models.anatomy.parts import find_routers
from rksp.models.declared import Declared

_QUERIES = 128  # query positions sampled per attention layer
_SEQUENCES = 2
_COLLAPSED = 0.05  # normalized entropy below which a head attends to one key


@torch.no_grad()
def attention_stats(call: AttentionCall, *, block: int | None = None) -> AttentionStats | None:
    """Compute the statistics of a call's softmax at 128 evenly spaced queries.

    Returns:
        The statistics; None if no query sees two keys, because entropy is then undefined.
    """
    call = call.kept(_SEQUENCES)
    length = call.rows.shape[-2]
    count = min(length, _QUERIES)
    rows = torch.arange(count, device=call.rows.device) * length // count
    logits, visible = visible_logits(call, rows)
    usable = visible.sum(-1) > 1
    if not bool(usable.any()):
        return None
    entropy = attention_entropies(logits, visible)
    per_head = torch.where(usable, entropy, torch.nan).nanmean(dim=(0, 2))
    return AttentionStats(
        logit_std=float(logit_deviations(logits, visible)[usable].mean()),
        max_logit=float(logits.masked_fill(~visible, 0.0).abs().max()),
        entropy=float(per_head.mean()),
        collapsed_heads=int((per_head < _COLLAPSED).sum()),
        block=block,
    )


_ROWS = 256  # token rows sampled per linear layer
_CHUNK = 32  # rows of logits in float32 at a time: 6 MB at a vocabulary of 50,000, near the cache
_MOST = 0.5  # share of one token beyond which the others' is summed
_DEAD = 0.1  # share of the mean load
_ENOUGH = 20  # mean choices per expert; with fewer, an expert may be idle by chance


def _chosen(rows: Tensor) -> Tensor:
    count = min(len(rows), _ROWS)
    return torch.arange(count, device=rows.device) * len(rows) // count


class _Unread:
    """A wide output `[..., columns]` of an input x that is read once, some rows at a time."""

    def __init__(self, name: str, x: Tensor, out: Unmade) -> None:
        self.name, self.x, self.out = name, x.reshape(-1, x.shape[-1]), out
        self.chosen = _chosen(self.x)
        self._found: list[tuple[float, Tensor, Tensor]] = []

    def parts(self) -> Iterator[Tensor]:
        """Yield the rows of the output in order, some at a time, and remember what they show.

        Each part takes the memory of the one before.
        """
        states, weight, bias = (None if t is None else t.detach() for t in self.out.factors)
        states = definite(states).flatten(0, -2)
        buffer = row_buffer(states, self.out.shape[-1])
        for start in range(0, len(states), len(buffer)):
            part = part_of(states[start : start + len(buffer)], definite(weight), bias, buffer)
            here = self.chosen[(self.chosen >= start) & (self.chosen < start + len(buffer))] - start
            square = float(_squares(part[here]).sum(dtype=torch.float64))
            self._found.append((square, *torch.aminmax(part)))
            yield part

    def read(self) -> tuple[float, Tensor, Tensor]:
        """Return the mean square of the chosen rows, and the extremes of all."""
        if not self._found:
            all(True for _ in self.parts())
        squares, low, high = zip(*self._found, strict=True)
        entries = len(self.chosen) * self.out.shape[-1]
        return math.fsum(squares) / entries, torch.stack(low).min(), torch.stack(high).max()


def _squares(values: Tensor) -> Tensor:
    return values.float().square()


@dataclass(slots=True)
class ForwardWatch:
    """Collects the statistics while a forward pass runs inside `watching`.

    Attributes:
        block: Index of the running block; the code that hooks the blocks sets it.
    """

    block: int | None = None
    attention: list[AttentionStats] = field(default_factory=list)
    routers: list[RouterStats] = field(default_factory=list)
    aligned: dict[str, float] = field(default_factory=dict)
    choices: Mapping[str, int] = field(default_factory=dict)
    has_experts: bool = False
    unread: list[_Unread] = field(default_factory=list)
    absmax: float = 0.0
    absmax_name: str | None = None
    non_finite: str | None = None

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[ForwardWatch]:
        """Watch every leaf module and every attention call; remove the hooks afterwards."""
        self.has_experts = Declared(getattr(model, "config", None)).experts is not None
        self.choices = {router.path: router.top_k for router in find_routers(model)}
        with ExitStack() as stack:
            for name, module in model.named_modules():
                if name in self.choices or not any(True for _ in module.children()):
                    hook = module.register_forward_hook(self._leaf(name), with_kwargs=True)
                    stack.callback(hook.remove)
            stack.enter_context(watching_attention(model, self._attend))
            yield self

    def _attend(self, call: AttentionCall) -> None:
        stats = attention_stats(call, block=self.block)
        if stats is not None and math.isfinite(stats.logit_std):
            self.attention.append(stats)

    def _leaf(self, name: str) -> Callable[..., None]:
        def look(
            module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], output: object
        ) -> None:
            out, x = first_tensor(output), first_tensor((args, kwargs))
            if out is None or out.numel() == 0 or out.device.type == "meta":
                return
            if x is not None and isinstance(out, Unmade) and not out.is_made:
                self.unread.append(_Unread(name, x, out))  # mostly the logits
            elif self._bounded(name, *torch.aminmax(out)):
                see(module, x, out)

        def see(module: nn.Module, x: Tensor | None, out: Tensor) -> None:
            weight = getattr(module, "weight", None)
            if not isinstance(weight, Tensor) or weight.dim() != 2 or x is None or x.dim() < 2:
                return
            if isinstance(module, nn.Embedding) or x.shape[-1] not in weight.shape:
                return
            if name in self.choices:
                self.routers.append(router_stats(name, x, module, self.choices[name]))
            elif out.shape[:-1] == x.shape[:-1] and out.shape[-1] in weight.shape:
                rows, result = x.reshape(-1, x.shape[-1]), out.reshape(-1, out.shape[-1])
                chosen = _chosen(rows)
                self._respond(name, rows[chosen], float(_squares(result[chosen]).mean()))

        return look

    def _bounded(self, name: str, low: Tensor, high: Tensor) -> bool:
        largest = max(-float(low), float(high))
        if not math.isfinite(largest):
            self.non_finite = self.non_finite or name
            return False
        if largest > self.absmax or self.absmax_name is None:
            self.absmax, self.absmax_name = largest, name
        return True

    def _respond(self, name: str, rows: Tensor, square: float) -> None:
        size = math.sqrt(square) if square >= 0 else math.nan
        value = float(rows.float().abs().sum(-1).mean()) / size if size > 0 else 0.0
        if value > 0 and math.isfinite(value):
            self.aligned[name] = value

    def finish(
        self,
        blocks: list[BlockStats],
        logits: Tensor | None,
        labels: Tensor | None,
        tokens: Tensor | None = None,
    ) -> ForwardStats:
        """Return the statistics of the pass.

        Args:
            blocks: Scales of every block.
            logits: `[..., classes]`.
            labels: One for each row of the logits.
            tokens: The input token of each row of the logits, if tokens went in.
        """
        missing: dict[str, str] = {}
        output = _output_stats(logits, labels, tokens, missing, self.unread)
        for unread in self.unread:
            square, low, high = unread.read()
            if self._bounded(unread.name, low, high):
                self._respond(unread.name, unread.x[unread.chosen], square)
        has = "no router was recognized among the modules"
        why = {
            "attention": (self.attention, "the model computes no attention that rksp can read"),
            "routers": (self.routers, has if self.has_experts else "the model has no experts"),
            "aligned_response": (self.aligned, "no linear layer took part"),
        }
        missing |= {name: said for name, (found, said) in why.items() if not found}
        logs = list(map(math.log, self.aligned.values()))
        return ForwardStats(
            **output,
            blocks=tuple(blocks),
            attention=tuple(self.attention),
            routers=tuple(self.routers),
            activation_absmax=self.absmax if self.absmax_name else None,
            activation_name=self.absmax_name,
            aligned_response=math.exp(sum(logs) / len(logs)) if logs else None,
            not_measured=missing,
            non_finite=self.non_finite,
        )


def block_stats(name: str, x: Tensor, y: Tensor) -> BlockStats:
    """Compute the scales of one block from the states `[states, width]` entering and leaving it."""
    x, y = x.float(), y.float()
    rms_in = float(x.square().mean().sqrt())
    square = y.square()
    mean_square = float(square.mean())
    fourth = float(square.square().mean())
    change = float((y - x).square().mean().sqrt())
    absmax = float(y.abs().max())
    kurtosis = fourth / mean_square**2 if mean_square > 0 else math.nan
    return BlockStats(
        name=name,
        rms_in=rms_in,
        rms_out=math.sqrt(mean_square) if mean_square >= 0 else math.nan,
        update_ratio=_finite(change / rms_in) if rms_in > 0 else None,
        absmax=_finite(absmax),
        kurtosis=_finite(kurtosis),
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _output_stats(
    logits: Tensor | None,
    labels: Tensor | None,
    tokens: Tensor | None,
    missing: dict[str, str],
    unread: Sequence[_Unread] = (),
) -> dict[str, float | None]:
    names = ("loss", "uniform_loss", "logit_std", "copied")
    if logits is None or logits.dim() < 2 or logits.shape[-1] < 2:
        missing |= dict.fromkeys(("loss", "logit_std"), "the model returns no logits")
        return dict.fromkeys(names)
    flat = logits.reshape(-1, logits.shape[-1])
    target = own = None
    if why := _no_loss(labels, flat):
        missing |= {"loss": why}
    else:
        target = definite(labels).flatten().to(flat.device)
        own = _own_tokens(flat, tokens)
    spread = loss = cost = 0.0
    counted = 0
    whole = next((one.parts() for one in unread if one.out is logits), iter([flat]))
    for start, part in _chunks(whole):
        spread += float(_spread(part).sum(dtype=torch.float64))
        if target is not None:
            rows = slice(start, start + len(part))
            here = target[rows]
            keep, total = here >= 0, part.logsumexp(-1)
            chosen = part.gather(1, here.clamp(min=0).unsqueeze(1)).squeeze(1)
            loss += float((total - chosen)[keep].sum(dtype=torch.float64))
            counted += int(keep.sum())
            if own is not None:
                cost += float(_copied(part, total, own[rows, None])[keep].sum())
    mean = _finite(loss / counted) if counted else None
    if counted and mean is None:
        missing |= {"loss": LOGITS_NOT_FINITE}
    copied = None if mean is None or own is None else _finite(cost / counted)
    found = (mean, math.log(flat.shape[-1]), _finite(spread / len(flat)), copied)
    return dict(zip(names, found, strict=True))


def _no_loss(labels: Tensor | None, logits: Tensor) -> str:
    if labels is None:
        return "the probe has no labels"
    if labels.numel() != len(logits):
        return "the labels do not line up with the logits"
    is_outside = int(labels.max()) >= logits.shape[-1]
    return "a label lies outside of the logits' classes" if is_outside else ""


def _chunks(whole: Iterable[Tensor]) -> Iterator[tuple[int, Tensor]]:
    start = 0
    for rows in whole:
        for part in torch.split(rows, _CHUNK):
            yield start, part.float()
            start += len(part)


def _own_tokens(flat: Tensor, tokens: Tensor | None) -> Tensor | None:
    if tokens is None or tokens.is_floating_point() or tokens.numel() != len(flat):
        return None
    own = tokens.flatten().to(flat.device)
    return own if int(own.min()) >= 0 and int(own.max()) < flat.shape[-1] else None


def _copied(part: Tensor, total: Tensor, own: Tensor) -> Tensor:
    """Return the nats that the input tokens' `own` logits cost, `[rows]`, as in `ForwardStats`."""
    share = (part.gather(1, own).squeeze(1) - total).double().exp()
    without = -torch.log1p(-share)
    if bool((most := share > _MOST).any()):  # the rest is round-off of the share
        rest = part[most].scatter(1, own[most], -math.inf).logsumexp(-1)
        without[most] = (total[most] - rest).double()
    return without


def _spread(rows: Tensor) -> Tensor:
    """Return the standard deviation of each row in two reads; torch.std is far slower."""
    count = rows.shape[-1]
    square: Tensor = torch.linalg.vector_norm(rows, dim=-1).square()
    return ((square - count * rows.mean(-1).square()) / (count - 1)).clamp(min=0).sqrt()


@torch.no_grad()
def router_stats(name: str, x: Tensor, router: Any, choices: int = 1) -> RouterStats:
    """Compute statistics of the softmax over all experts from the router's input.

    The logits are recomputed in float32, because the return value of routers differs between
    releases of transformers.

    Args:
        name: Module path.
        x: Input of the router, `[..., width]`.
        router: The router, with a weight `[experts, width]`.
        choices: Experts that each token goes to.

    Returns:
        The statistics.
    """
    bias = getattr(router, "bias", None)
    logits = F.linear(x.reshape(-1, x.shape[-1]).float(), router.weight.float())
    if isinstance(bias, Tensor):
        logits = logits + bias.float()
    experts = logits.shape[-1]
    p = logits.softmax(-1)
    load = torch.bincount(logits.argmax(-1), minlength=experts).float() / len(logits)
    chosen = logits.topk(min(choices, experts)).indices.flatten()
    asked = torch.bincount(chosen, minlength=experts)
    mean = len(chosen) / experts
    return RouterStats(
        name=name,
        entropy=float(torch.special.entr(p).sum(-1).mean()) / math.log(experts),
        logit_std=float(logits.std(-1).mean()),
        max_violation=float(load.max() * experts - 1),
        dead_experts=int((asked < _DEAD * mean).sum()) if mean >= _ENOUGH else None,
    )
