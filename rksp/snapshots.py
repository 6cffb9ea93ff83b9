"""The residual stream, block by block: what a forward pass hands to the spectra."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rksp.datasets.tasks import Batch
from rksp.errors import InputError, NotCovered
from rksp.forward import BlockStats, ForwardStats, ForwardWatch
from rksp.models.blocks import Chain, find_chains, first_tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTransition:
    """The states of one token set before and after one block.

    Attributes:
        layer: Position of the block in its chain, from zero.
        name: The block's module path, such as `model.layers.3`.
        x: States entering the block, `[states, width]`, any float dtype.
        y: States leaving it, same shape; row i of `x` and `y` belong to the same token.
        sequence: Index of the sequence each state came from, `[states]` int64.
    """

    layer: int
    name: str
    x: Tensor
    y: Tensor
    sequence: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What one pass gave.

    Attributes:
        chains: (path, number of blocks) of every chain that was read.
        width: Width of the residual stream.
        states: States handed over per block.
        forward: Statistics of the same pass.
        forward_passes: Cost in passes over the probe, the detection on one sequence included.
    """

    chains: tuple[tuple[str, int], ...]
    width: int
    states: int
    forward: ForwardStats
    forward_passes: float


def collect(
    model: nn.Module,
    batch: Batch,
    *,
    consume: Callable[[LayerTransition], None],
    num_states: int | None = None,
    blocks: str | None = None,
) -> Collected:
    """Runs one forward pass and hands every block's transition to `consume` as it is done.

    Nothing holds more than one block's states. The model, its mode, its hooks, its buffers and
    the random state are left bitwise as found. An encoder–decoder's two chains follow each other,
    layers counted on.

    Args:
        batch: Inputs (a tensor, or keyword arguments with an optional `attention_mask`, whose
            zeros are left out) and labels.
        num_states: Use this many states, evenly chosen; default all.
        blocks: Path of the list of blocks; default the one that is found.

    Raises:
        InputError: Fewer than two states.
        NotCovered: The model has no chain of blocks of constant width.
    """
    with _as_found(model), torch.no_grad():
        first = _take(batch, 1)
        chains = find_chains(model, lambda: _run(model, first), path=blocks)
        count = _batch_size(batch)
        blocks_seen: list[BlockStats] = []
        seen = {"states": 0, "width": 0}
        watch = ForwardWatch()
        with ExitStack() as stack:
            for chain, offset in _offsets(chains):
                mask = _mask(batch, chain)
                for index, block in enumerate(chain.blocks):
                    hook = _hand_over(
                        consume, blocks_seen, seen, mask, num_states, offset + index, chain.names[index]
                    )
                    stack.callback(block.register_forward_hook(hook, with_kwargs=True).remove)
            stack.enter_context(watch.watching(model))
            output = _run(model, batch)
        logits = getattr(output, "logits", output if isinstance(output, Tensor) else None)
        forward = watch.finish(blocks_seen, logits, batch.labels)
    return Collected(
        chains=tuple((chain.path, len(chain.blocks)) for chain in chains),
        width=seen["width"],
        states=seen["states"],
        forward=forward,
        forward_passes=1 + 1 / count,
    )


def _hand_over(consume, blocks_seen, seen, mask, num_states, layer, name):
    def hook(module: nn.Module, args: tuple, kwargs: dict, output: object) -> None:
        before = first_tensor(args) if args else first_tensor(kwargs)
        after = first_tensor(output)
        if before.dim() > 3 and before.shape[1:-1] != (mask.shape[1:] if mask is not None else None):
            # Several parallel streams: each token's streams are states of their own.
            before, after = before.flatten(1, -2), after.flatten(1, -2)
        sequence = torch.arange(before.shape[0]).unsqueeze(1).expand(before.shape[:2])
        x, y, sequence = before.flatten(0, 1), after.flatten(0, 1), sequence.flatten()
        if mask is not None and mask.shape[:2] == before.shape[:2]:
            keep = mask.flatten().bool().to(x.device)
            x, y, sequence = x[keep], y[keep], sequence[keep.cpu()]
        if num_states is not None and num_states < len(x):
            chosen = torch.linspace(0, len(x) - 1, num_states).round().long()
            x, y, sequence = x[chosen], y[chosen], sequence[chosen]
        if len(x) < 2:
            raise InputError(
                f"The probe gives {len(x)} state; at least two tokens are needed. Use a longer probe."
            )
        seen["states"], seen["width"] = len(x), x.shape[-1]
        rms_in, rms_out = _rms(x), _rms(y)
        blocks_seen.append(
            BlockStats(
                name=name,
                rms_in=rms_in,
                rms_out=rms_out,
                update_ratio=_rms(y.float() - x.float()) / rms_in if rms_in else float("nan"),
                absmax=float(y.abs().max()),
            )
        )
        consume(LayerTransition(layer=layer, name=name, x=x, y=y, sequence=sequence))

    return hook


def _rms(x: Tensor) -> float:
    return float(x.float().square().mean().sqrt())


def _offsets(chains: tuple[Chain, ...]):
    offset = 0
    for chain in chains:
        yield chain, offset
        offset += len(chain.blocks)


def _run(model: nn.Module, batch: Batch) -> object:
    if isinstance(batch.inputs, Tensor):
        return model(batch.inputs)
    extra = {"use_cache": False} if hasattr(getattr(model, "config", None), "use_cache") else {}
    return model(**batch.inputs, **extra)


def _take(batch: Batch, count: int) -> Batch:
    inputs = batch.inputs
    if isinstance(inputs, Tensor):
        return Batch(inputs=inputs[:count], labels=batch.labels)
    return Batch(inputs={k: v[:count] for k, v in inputs.items()}, labels=batch.labels)


def _batch_size(batch: Batch) -> int:
    inputs = batch.inputs
    return len(inputs if isinstance(inputs, Tensor) else next(iter(inputs.values())))


def _mask(batch: Batch, chain: Chain) -> Tensor | None:
    if isinstance(batch.inputs, Tensor):
        return None
    name = "decoder_attention_mask" if "decoder" in chain.path else "attention_mask"
    return batch.inputs.get(name)


@contextmanager
def _as_found(model: nn.Module):
    """Evaluation mode inside; modes, buffers and the random state restored afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    with torch.random.fork_rng(devices=[]):
        try:
            model.eval()
            yield
        finally:
            for module, mode in modes:
                module.training = mode
            with torch.no_grad():
                for buffer, value in buffers:
                    buffer.copy_(value)
