"""Faults of computation: flipped bits, wrong products, replicas that differ, too few bits."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rksp.ground.errors import InputError, NotCovered
from rksp.ground.model import definite
from rksp.models.anatomy.attention_calls import (
    AttentionCall,
    AttentionTap,
    fused_attention,
    visible_logits,
)
from rksp.models.anatomy.chains import first_tensor
from rksp.models.anatomy.weight_view import at_least_float
from rksp.watch.faults.base import Fault
from rksp.watch.groups import local, world_size
from rksp.watch.moment import Handle, Moment

Bit = Annotated[int, Field(ge=0, lt=64)]
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class _Struck(Fault, ABC):
    """Strikes one tensor of a run: the output of a module, a gradient, or a weight."""

    where: str  # `activations`, `gradients` or `weights`
    part: str  # of the path of the module or parameter
    path: str = ""  # that was found
    steps: range  # at which it strikes
    _draws: Sequence[float] = ()

    def bind(self, model: nn.Module, *, seed: int) -> None:
        """Draw the place, and two more numbers in [0, 1) for what is struck there."""
        generator = torch.Generator().manual_seed(seed)
        self._draws = torch.rand(3, generator=generator, dtype=torch.float64).tolist()
        found = self.places(model)
        self.path = found[int(self._draws[0] * len(found))]

    def _is_on(self, step: int) -> bool:
        return step in self.steps

    @abstractmethod
    def _changed(self, tensor: Tensor) -> Tensor:
        """Return the tensor as the fault makes it; the gradient of an output passes through."""

    def places(self, model: nn.Module) -> list[str]:
        """Return the paths that contain `part`.

        These are paths of trainable parameters or, for activations, of modules that own parameters.

        Raises:
            NotCovered: No path contains `part`.
        """
        paths = [path for path, p in model.named_parameters() if p.requires_grad]
        if self.where == "activations":
            paths = [p for p, m in model.named_modules() if list(m.parameters(recurse=False))]
        return self._containing(paths, self.where)

    def _containing(self, paths: Iterable[str], noun: str) -> list[str]:
        found = [path for path in paths if self.part in path]
        if not found:
            raise NotCovered(
                f"Fault {self.name!r} found no {noun} whose path contains {self.part!r}; "
                "give a part of a path that the model has."
            )
        return found

    def arm(self, moment: Moment) -> Sequence[RemovableHandle]:
        if self.where != "activations" or not self._is_on(moment.step):
            return ()
        module = moment.model.get_submodule(self.path)
        return [module.register_forward_hook(self._after)]

    def _after(self, module: nn.Module, args: object, output: object) -> object:
        found = first_tensor(output)
        if found is None:
            return None
        changed = self._changed(found)
        if isinstance(output, tuple):
            return tuple(changed if item is found else item for item in output)
        return changed

    def after_backward(self, moment: Moment) -> None:
        if self.where == "gradients" and self._is_on(moment.step):
            gradient = moment.model.get_parameter(self.path).grad
            if gradient is not None:
                self._strike(gradient)

    def after_update(self, moment: Moment) -> None:
        if self.where == "weights" and self._is_on(moment.step):
            self._strike(moment.model.get_parameter(self.path))

    @torch.no_grad()
    def _strike(self, tensor: Tensor) -> None:
        held = local(tensor)
        held.copy_(self._changed(held))


class BitFlip(_Struck):
    """Flips one bit of one number at one step, as a faulty multiplier or memory cell does.

    Tensor, element and bit are drawn from the seed, unless given. Weights flip after the update of
    the step and gradients after its backward pass. Activations flip in its first forward pass, in
    the output of a module that has weights of its own; the gradient passes through unchanged. In a
    sharded tensor the local part is struck, on every rank.

    Args:
        step: The step of the flip.
        where: `weights`, `gradients` or `activations`.
        bit: Counted from the least significant. In float32, 22 is the highest of the mantissa, 30
            the highest of the exponent and 31 the sign; in bfloat16 these are 6, 14 and 15.
        name: Part of the path of the parameter or module.
        element: Position in the flattened tensor.
    """

    name = "bitflip"

    def __init__(
        self,
        step: NonNegativeInt = 10,
        where: Literal["weights", "gradients", "activations"] = "weights",
        bit: Bit | None = None,
        name: str = "",
        element: NonNegativeInt | None = None,
    ) -> None:
        self.step, self.where, self.bit, self.part, self.element = step, where, bit, name, element
        self.struck = ""

    def _is_on(self, step: int) -> bool:
        return step == self.step and not self.struck

    def _changed(self, tensor: Tensor) -> Tensor:
        copied = tensor.clone()
        if not self.struck:
            bits, held = 8 * tensor.element_size(), local(copied)
            bit = int(self._draws[2] * bits) if self.bit is None else self.bit
            index = int(self._draws[1] * held.numel()) if self.element is None else self.element
            flip_bit(held, index, bit)
            self.struck = f"{self.path}[{index}] bit {bit}"
        return copied


def steps_of(first: int, count: int | None) -> range:
    """Return the steps from the first on: so many, or the rest of the run."""
    return range(first, sys.maxsize if count is None else first + count)


@torch.no_grad()
def flip_bit(tensor: Tensor, index: int, bit: int) -> None:
    """Flip a bit of one element in place; a second flip restores it.

    Args:
        tensor: A floating-point tensor of any strides.
        index: Position in the flattened tensor.
        bit: Counted from the least significant.

    Raises:
        InputError: The tensor has no such element, or its type has no such bit.
    """
    bits = 8 * tensor.element_size()
    if not 0 <= index < tensor.numel() or not 0 <= bit < bits:
        raise InputError(
            f"A tensor of {tensor.numel()} elements of {bits} bits has no bit {bit} of element "
            f"{index}."
        )
    place = tensor[np.unravel_index(index, tensor.shape)]
    place.copy_(_flipped(place, bit))


def _flipped(numbers: Tensor, bit: int) -> Tensor:
    mask = 1 << bit if bit < 8 * numbers.element_size() - 1 else -(1 << bit)
    whole = numbers.contiguous().view(INTEGERS[numbers.element_size()])
    return whole.bitwise_xor(mask).view(numbers.dtype)


class MatmulCorruption(_Struck):
    """Flips one bit of every number in one column of a product of a linear layer, from a step on.

    The defect of a multiplier persists, unlike the single flip of `bitflip`. A linear layer has
    three products a step: its output, and the gradients of its input and of its weight in the
    backward pass. The gradients were found to be more sensitive (Altenbernd et al., 2026, arXiv
    2604.00726). Layer and column are drawn from the seed. In a sharded weight's gradient the local
    part is struck, on every rank.

    Args:
        step: The first step.
        steps: The number of steps; None means the rest of the run.
        product: `output`, `input_gradient` or `weight_gradient`.
        bit: Counted from the least significant. None means the fourth bit of the exponent (26 in
            float32), which makes a number 256 times larger or smaller.
        name: Part of the path of the layer.
    """

    name = "matmul"

    def __init__(
        self,
        step: NonNegativeInt = 10,
        steps: PositiveInt | None = None,
        product: Literal["output", "input_gradient", "weight_gradient"] = "output",
        bit: Bit | None = None,
        name: str = "",
    ) -> None:
        self.steps = steps_of(step, steps)
        self.product, self.bit, self.part = product, bit, name
        known = {"output": "activations", "weight_gradient": "gradients"}
        self.where = known.get(product, "inputs")

    def places(self, model: nn.Module) -> list[str]:
        layers = (path for path, m in model.named_modules() if isinstance(m, nn.Linear))
        suffix = ".weight" if self.where == "gradients" else ""
        return [path + suffix for path in self._containing(layers, "linear layer")]

    def arm(self, moment: Moment) -> Sequence[RemovableHandle]:
        if self.where != "inputs" or not self._is_on(moment.step):
            return super().arm(moment)

        def enter(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
            if not (torch.is_grad_enabled() and args[0].requires_grad):
                return None
            x = args[0].view_as(args[0])  # a view, so that only this use's gradient is struck
            x.register_hook(self._changed)
            return (x, *args[1:])

        return [moment.model.get_submodule(self.path).register_forward_pre_hook(enter)]

    def _changed(self, tensor: Tensor) -> Tensor:
        """Return the product with the bit flipped in its column; gradients pass unchanged."""
        mantissa = round(-math.log2(torch.finfo(tensor.dtype).eps))
        last = 8 * tensor.element_size() - 1
        bit = mantissa + 3 if self.bit is None else min(self.bit, last)
        column = int(self._draws[1] * tensor.shape[-1])
        part = tensor.detach()[..., column : column + 1]
        change = torch.zeros_like(tensor)
        change[..., column : column + 1] = _flipped(part, bit) - part
        return tensor + change


class ReplicaCorruption(_Struck):
    """Multiplies numbers of one rank by 1 + scale·n, with n standard normal, from a step on.

    Activations are corrupted as they leave one module: the all-reduce spreads the error to every
    rank's gradient, and the replicas stay equal. Gradients are corrupted after the all-reduce: the
    loss looks the same and the replicas drift apart.

    Args:
        rank: The faulty rank.
        step: The first step.
        steps: The number of steps; None means the rest of the run.
        where: `activations` or `gradients`.
        scale: Size of the error relative to each number.
        name: Part of the path of the module or parameter; the fault strikes the first match. Of a
            module it strikes the first floating-point tensor in the output.
    """

    name = "replica"

    def __init__(
        self,
        rank: NonNegativeInt = 1,
        step: NonNegativeInt = 10,
        steps: PositiveInt | None = None,
        where: Literal["activations", "gradients"] = "activations",
        scale: PositiveFloat = 0.5,
        name: str = "",
    ) -> None:
        self.steps = steps_of(step, steps)
        self.rank, self.where, self.scale, self.part = rank, where, scale, name
        self._is_faulty = False
        self._generator = torch.Generator()

    def bind(self, model: nn.Module, *, seed: int) -> None:
        size = world_size()
        if size < 2 or self.rank >= size:
            raise NotCovered(
                f"Fault 'replica' corrupts rank {self.rank}, and the run has {size} of them; "
                "start it under torchrun with more processes."
            )
        self._is_faulty = torch.distributed.get_rank() == self.rank
        self._generator.manual_seed(seed)
        self.path = self.places(model)[0]

    def _is_on(self, step: int) -> bool:
        return self._is_faulty and super()._is_on(step)

    def _changed(self, tensor: Tensor) -> Tensor:
        noise = torch.randn(tensor.shape, generator=self._generator)
        return tensor * (1 + self.scale * noise).to(tensor)


@dataclass(eq=False)
class LowPrecisionAttention(Fault):
    """Corrupts δ = rowsum(dO ∘ O) in the backward pass of attention; the forward pass is untouched.

    Kinds:
        truncate: O and dO are taken in bfloat16 with their lowest `bits` bits cleared, the
            injection of arXiv 2606.28116. The bias is large, because truncation only shrinks.
        round: The same bits are lost by rounding to nearest, which has no bias.
        bf16: O is recomputed with unnormalized probabilities exp(s − max), values and sums in
            bfloat16, the natural failure of arXiv 2510.04212: rows with several maximal keys
            round to one side. `bits` is not used. Blocks of keys are summed in float32 and
            rounded once, so the error is smaller than that of a kernel that rounds every block.

    The fault affects every attention call through `scaled_dot_product_attention`: those of rksp's
    own zoo, and those of transformers with `attn_implementation="sdpa"`, the default. A torch
    function mode replaces the calls between `arm` and the removal of the handle. Dropout must be
    off.

    Args:
        bits: How many of bfloat16's lowest bits are lost; 7 is the whole mantissa.
        kind: `truncate`, `round` or `bf16`.
        step: The first step.
    """

    name = "low_precision_attention"
    bits: Annotated[int, Field(ge=0, le=8)] = 7
    kind: Literal["truncate", "round", "bf16"] = "truncate"
    step: NonNegativeInt = 0
    _calls: int | None = field(init=False, default=None)  # of the step; None before `step`

    def bind(self, model: nn.Module, *, seed: int) -> None:
        config = getattr(model, "config", None)
        written = getattr(config, "_attn_implementation", None)
        if written not in (None, "sdpa"):
            raise NotCovered(
                "Fault 'low_precision_attention' acts on scaled_dot_product_attention, and this "
                f"model uses {written!r}; build it with attn_implementation='sdpa'."
            )

    def arm(self, moment: Moment) -> Sequence[Handle]:
        if moment.step < self.step:
            return ()
        self._calls = 0
        return [AttentionTap(self._strike).open()]

    def after_backward(self, moment: Moment) -> None:
        """Check that the step made an attention call.

        Raises:
            NotCovered: It made none.
        """
        calls, self._calls = self._calls, None
        if calls == 0:
            raise NotCovered(
                "Fault 'low_precision_attention' acts on scaled_dot_product_attention, and this "
                "model never calls it; choose another fault."
            )

    def _strike(self, call: AttentionCall) -> Tensor:
        self._calls = definite(self._calls) + 1
        if call.dropout:
            raise NotCovered(
                "Fault 'low_precision_attention' recomputes attention and cannot repeat its "
                f"dropout of {call.dropout}; set attention dropout to 0."
            )
        attend: Callable[..., Tensor] = _Attention.apply
        return attend(call.query, call.key, call.value, call, self)

    def spoil(self, tensor: Tensor) -> Tensor:
        """Return the tensor in float32 without its low bits."""
        raw = tensor.to(torch.bfloat16).view(torch.int16)
        if self.kind == "round" and self.bits:
            raw = raw + (1 << (self.bits - 1))  # sign and magnitude: away from zero at a tie
        return (raw & (-1 << self.bits)).view(torch.bfloat16).float()


class _Attention(torch.autograd.Function):
    """Attention with torch's own forward pass and a corrupted FlashAttention backward pass.

    dV = Pᵀ dO;  dS = P ∘ (dO Vᵀ − δ);  dQ = scale dS K;  dK = scale dSᵀ Q (Dao et al., 2022,
    algorithm 4), in float32 (or float64 for float64 inputs) except for δ.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, call: AttentionCall, fault: LowPrecisionAttention
    ) -> Tensor:
        output = fused_attention(replace(call, query=q, key=k, value=v))
        ctx.save_for_backward(q, k, v, call.mask, output)
        ctx.is_causal, ctx.scale, ctx.fault = call.is_causal, call.scale, fault
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, mask, output = ctx.saved_tensors
        q, k, v, g = map(at_least_float, (query, key, value, grad))
        groups = q.shape[-3] // k.shape[-3]
        k, v = (part.repeat_interleave(groups, dim=-3) for part in (k, v))
        call = AttentionCall(query=q, key=k, mask=mask, is_causal=ctx.is_causal, scale=ctx.scale)
        scores, visible = visible_logits(call)
        p = scores.softmax(-1).where(visible.any(-1, keepdim=True), 0.0)
        fault = ctx.fault
        if fault.kind == "bf16":
            low, spoiled = _low_precision_output(scores, v), g
        else:
            low, spoiled = fault.spoil(output), fault.spoil(g)
        delta = (low.to(g) * spoiled.to(g)).sum(-1, keepdim=True)
        dv = p.mT @ g
        ds = p * (g @ v.mT - delta) * call.factor
        dq, dk = ds @ k, ds.mT @ q
        # Query heads that share a key head add up in it.
        dk, dv = (torch.unflatten(part, -3, (-1, groups)).sum(-3) for part in (dk, dv))
        return dq.to(query), dk.to(key), dv.to(value), None, None


def _low_precision_output(scores: Tensor, v: Tensor) -> Tensor:
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    total = weights.sum(-1, keepdim=True)
    return (weights.bfloat16() @ v.bfloat16()).to(scores) / total
