"""Read the residual stream block by block in one forward pass."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rksp.datasets.batch import Batch, Pass, call, tensors
from rksp.documents.shown import LOGITS_NOT_FINITE, BlockStats, Collected, ForwardStats
from rksp.ground.errors import InputError, NotCovered, RkspError, summary
from rksp.ground.model import definite
from rksp.ground.text import many
from rksp.measure.forward import ForwardWatch, block_stats
from rksp.models.anatomy.chains import Chain
from rksp.models.anatomy.graph import ForwardGraph
from rksp.models.anatomy.parts import equivalent_shape
from rksp.models.anatomy.placement import read_placement
from rksp.models.as_found import evaluating, random_state_kept
from rksp.models.configuration import refusals
from rksp.models.given import tokens_of
from rksp.models.streaming.stream import computing, locate_chains

Inputs = Batch | Tensor | dict[str, Tensor] | tuple[Tensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTransition:
    """The states of one token set before and after one block.

    Attributes:
        layer: Index of the block in its chain, from zero.
        name: The block's module path, such as `model.layers.3`.
        x: States entering the block, `[states, width]`, any float dtype.
        y: States leaving it, same shape; row i of `x` and `y` belong to the same token.
        of: Number of blocks of all chains; 0 if nobody counted.
    """

    layer: int
    name: str
    x: Tensor
    y: Tensor
    of: int = 0


def collect(
    model: nn.Module,
    batch: Inputs,
    *,
    consume: Callable[[LayerTransition], None],
    num_states: int | None = None,
    blocks: str | None = None,
    needs_chain: bool = True,
) -> Collected:
    """Run one forward pass and hand every block's transition to `consume` as soon as it is done.

    Never more than one block's states are held. The model, its mode, its hooks, its buffers and the
    random state are left bitwise unchanged. Several chains (encoder and decoder, the stages of a
    vision model) follow each other, and the layer count continues.

    Args:
        model: The model.
        batch: A tensor, positional arguments, keyword arguments (positions with a zero in
            `attention_mask` are left out), or a `Batch` of inputs and labels that line up with the
            logits.
        consume: Receives each transition.
        num_states: Use this many states of every block, evenly spaced; default all.
        blocks: Path of the list of blocks; default the one that is found.
        needs_chain: Whether to refuse a model without a chain of blocks. If false, `consume` gets
            nothing from such a model, and the result has only the statistics of the pass.

    Returns:
        What was read, with the statistics of the pass.

    Raises:
        InputError: There are fewer than two states, token ids lie outside the vocabulary, or the
            model cannot run on these inputs.
        NotCovered: The model has no chain of blocks of constant width.
    """
    if not isinstance(batch, Batch):
        batch = Batch(inputs=batch, labels=None)
    _check_tokens(model, batch)
    count = batch.count
    if not count:
        raise InputError("The probe is empty; give at least one sequence.")
    if num_states is not None and num_states < 2:
        raise InputError(f"{num_states} snapshots were asked for; at least 2 are needed.")
    with random_state_kept(model), evaluating(model), torch.no_grad():
        first = batch.rows(0, 1)
        tokens = max((t[0].numel() for t in tensors(batch.inputs) if t.dim()), default=0)
        states = min(count * tokens, num_states or count * tokens)
        graph = ForwardGraph()

        def run_first() -> object:
            with graph.recording(model):
                return _run_batch(model, first)

        try:
            chains = locate_chains(model, run_first, blocks, count, states)
        except NotCovered:
            if needs_chain or blocks is not None:
                raise
            chains = ()
        watch = ForwardWatch()
        blocks_in_all = sum(len(chain.blocks) for chain in chains)
        reader = _Reader(consume, watch, num_states, blocks_in_all)
        with ExitStack() as stack:
            offset = 0
            for chain in chains:
                for hook in reader.hooks(chain, offset, _mask(batch, chain)):
                    stack.callback(hook.remove)
                offset += len(chain.blocks)
            stack.enter_context(watch.watching(model))
            stack.enter_context(computing(model))
            output = _run_batch(model, batch, reader.failures)
        forward = _forward_stats(watch, reader.blocks, output, batch)
    return Collected(
        chains=tuple((chain.path, len(chain.blocks)) for chain in chains),
        width=reader.width,
        states=reader.states,
        forward=forward,
        forward_passes=1 + 1 / count,
        notes=_notes(chains) if chains else (_judged_as(model),),
        placement=read_placement(graph, chains),
    )


class _Reader:
    def __init__(
        self,
        consume: Callable[[LayerTransition], None],
        watch: ForwardWatch,
        num_states: int | None,
        of: int,
    ) -> None:
        self.consume, self.watch, self.num_states, self.of = consume, watch, num_states, of
        self.blocks: list[BlockStats] = []
        self.failures: list[BaseException] = []
        self.states = self.width = 0
        self._open: list[tuple[int, Tensor, Tensor | None]] = []  # layer, states entering it, rows

    def hooks(self, chain: Chain, offset: int, mask: Tensor | None) -> Iterator[RemovableHandle]:
        """Register the hooks of a chain and yield their handles."""
        turns: dict[nn.Module, list[int]] = {}
        for index, block in enumerate(chain.blocks):
            turns.setdefault(block, []).append(offset + index)
        for block, layers in turns.items():
            turn = itertools.chain(layers, itertools.repeat(layers[-1]))
            before = partial(self._before, chain, mask, turn)
            after = partial(self._after, chain, offset)
            yield block.register_forward_pre_hook(before, with_kwargs=True)
            yield block.register_forward_hook(after, with_kwargs=True)

    def _before(
        self, chain: Chain, mask: Tensor | None, turn: Iterator[int], block: Any, *given: Any
    ) -> None:
        """Copy the states entering a block, since some blocks add in place."""
        tensor = definite(chain.read_input(*given))
        rows = _choose(chain, tensor, mask, self.num_states)
        self.watch.block = next(turn)
        self._open.append((self.watch.block, _pick(chain, tensor, rows), rows))

    def _after(
        self, chain: Chain, offset: int, block: object, args: object, kwargs: object, output: object
    ) -> None:
        layer, x, rows = self._open.pop()
        y = _pick(chain, definite(chain.read_output(output)), rows)
        self.states, self.width = x.shape
        name = chain.names[layer - offset]
        self.blocks.append(block_stats(name, x, y))
        self.watch.block = None
        try:
            self.consume(LayerTransition(layer=layer, name=name, x=x, y=y, of=self.of))
        except BaseException as error:  # not the model's own: raised again as it is
            self.failures.append(error)
            raise


def _pick(chain: Chain, tensor: Tensor, rows: Tensor | None) -> Tensor:
    """Return a copy of states, because the next block may add into the tensor."""
    flat = chain.states(tensor).reshape(-1, chain.width)
    return flat.clone() if rows is None else flat[rows]


def _choose(
    chain: Chain, tensor: Tensor, mask: Tensor | None, num_states: int | None
) -> Tensor | None:
    lead, length = chain.states(tensor).shape[:2]
    rows = None
    if mask is not None and not bool(mask.bool().all()):
        per_token = mask.bool().cpu()
        if per_token.shape == (lead, length):
            keep = per_token
        elif per_token.T.shape == (lead, length):
            keep = per_token.T
        elif lead == len(per_token) and length % per_token.shape[-1] == 0 and mask.dim() == 2:
            keep = per_token.repeat_interleave(length // per_token.shape[1], dim=1)
        else:
            raise InputError(
                f"The padding of the inputs ({tuple(mask.shape)}) does not line up with the states "
                f"of {chain.path} ({tuple(tensor.shape)}); pass inputs without padding."
            )
        rows = keep.flatten().nonzero().squeeze(1)
    kept = lead * length if rows is None else len(rows)
    if num_states is not None and num_states < kept:
        even = torch.arange(num_states) * kept // num_states
        rows = even if rows is None else rows[even]
        kept = num_states
    if kept < 2:
        raise InputError(
            f"The probe gives {kept} state; at least two tokens are needed: use a longer probe."
        )
    return rows if rows is None else rows.to(tensor.device)


def _notes(chains: tuple[Chain, ...]) -> tuple[str, ...]:
    notes = []
    if any(chain.kind == "streams" for chain in chains):
        notes.append("Each of the parallel residual streams counts as a state of its own.")
    if any(chain.kind == "maps" for chain in chains):
        notes.append("The channel dimension comes first: every pixel of the maps is a state.")
    if len({chain.width for chain in chains}) > 1:
        notes.append(
            "The width changes between stages; blocks that change it are left out of the spectra."
        )
    if any(len(set(map(id, chain.blocks))) < len(chain.blocks) for chain in chains):
        notes.append("Blocks share their weights; every pass through a block counts as a layer.")
    return tuple(notes)


def _judged_as(model: nn.Module) -> str:
    width, depth = equivalent_shape(model)
    return (
        f"Without a chain of blocks the model is judged as a transformer of width {width} and "
        f"{many(depth, 'block')}, which has about the same matrices."
    )


def _forward_stats(
    watch: ForwardWatch, blocks: list[BlockStats], output: object, batch: Batch
) -> ForwardStats:
    """Return the statistics of a pass; the batch's own loss replaces the cross-entropy."""
    if not isinstance(output, Pass):
        return watch.finish(blocks, _logits(output), batch.labels, tokens_of(batch.inputs))
    found = watch.finish(blocks, output.logits, None)
    loss = float(output.loss)
    missing = {name: why for name, why in found.not_measured.items() if name != "loss"}
    if output.logits is None:
        unlike = "the output is not known to be logits; the labelled runs minimized "
        missing |= {"logit_std": f"{unlike}cross-entropies, in nats"}
    if not math.isfinite(loss):
        why = LOGITS_NOT_FINITE if found.non_finite else "the loss is not finite"
        missing |= {"loss": why}
    return replace(found, loss=loss if math.isfinite(loss) else None, not_measured=missing)


def _logits(output: object) -> Tensor | None:
    for name in ("logits", "prediction_logits"):
        found = getattr(output, name, None)
        if isinstance(found, Tensor):
            return found
    return output if isinstance(output, Tensor) and output.dim() >= 2 else None


def _check_tokens(model: nn.Module, batch: Batch) -> None:
    tokens = batch.inputs.get("input_ids") if isinstance(batch.inputs, dict) else None
    size = getattr(getattr(model, "config", None), "vocab_size", None)
    if tokens is None or not tokens.numel() or not isinstance(size, int):
        return
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= size:
        raise InputError(
            f"The probe holds token id {high if high >= size else low}, but the vocabulary has "
            f"{size} entries; use the tokenizer of this model."
        )


def _mask(batch: Batch, chain: Chain) -> Tensor | None:
    if not isinstance(batch.inputs, dict):
        return None
    is_decoder = "decoder_input_ids" in batch.inputs and "decoder" in chain.path
    return batch.inputs.get("decoder_attention_mask" if is_decoder else "attention_mask")


def _run_batch(model: nn.Module, batch: Batch, failures: Sequence[BaseException] = ()) -> object:
    """Return what a model returns, or the `Pass` of a batch's objective.

    `failures` are errors of hooks, which are raised as they are.
    """
    inputs = batch.inputs
    if batch.objective is not None:
        return _judged(model, batch, failures)
    try:
        return call(model, inputs)
    except refusals() as error:  # its configuration and the probe do not match
        if any(error is failure for failure in failures):
            raise
        if isinstance(inputs, dict) and (lacking := _lacking(model, inputs)):
            raise InputError(
                f"The model needs {' and '.join(lacking)}, and the probe holds only "
                f"{' and '.join(inputs)}; give a factory (package.module:function) that returns "
                "the model and a batch with all of them."
            ) from error
        raise InputError(
            f"The model cannot run on the probe ({summary(error)}); "
            "check its configuration, or give it another probe."
        ) from error


def _lacking(model: nn.Module, given: Mapping[str, object]) -> list[str]:
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(model.forward).parameters
    lacking = [
        name
        for name, parameter in parameters.items()
        if name not in given
        and parameter.default is inspect.Parameter.empty
        and parameter.kind not in variable
    ]
    main = getattr(model, "main_input_name", None)  # of a model of transformers
    is_main = isinstance(main, str) and main in parameters and main not in given
    return lacking or ([str(main)] if is_main else [])


def _judged(model: nn.Module, batch: Batch, failures: Sequence[BaseException]) -> Pass:
    try:
        return definite(batch.objective)(model, batch)
    except Exception as error:  # code of the user, which may raise anything
        if isinstance(error, RkspError) or any(error is failure for failure in failures):
            raise
        raise InputError(
            f"The model cannot run on the batch ({summary(error)}); give it a batch "
            "that its forward takes."
        ) from error
