"""What a step of the optimizer did to each weight, from its state or from copies."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate
from torch.optim import Optimizer

from rksp.ground.errors import NotCovered
from rksp.models.anatomy.weight_view import at_least_float
from rksp.watch.groups import local
from rksp.watch.run_state import optimizer_parts

_ADAMS = (torch.optim.AdamW, torch.optim.Adam)
_SHARE = 16  # of all numbers are worked on at a time: two copies of these are an eighth
_LEAST = 2**20  # numbers at a time, of small models
# Who scales the steps of an optimizer. The state tells the update only until somebody scales it.
_SCALING: WeakKeyDictionary[Optimizer, ref[Updates]] = WeakKeyDictionary()
_ROUNDING = 1.01  # between the powers of two, and of the steps' own arithmetic


class Piece(NamedTuple):
    """Numbers of a parameter that this rank holds; all of them where `stop` is zero."""

    parameter: nn.Parameter
    start: int = 0
    stop: int = 0

    def of(self, tensor: Tensor) -> Tensor:
        """Return these numbers of a tensor that is laid out as the parameter is."""
        own = local(tensor)
        return own.view(-1)[self.start : self.stop] if self.stop else own


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamStep:
    """The last step of Adam or AdamW on one parameter, whose weight after it is W.

    With u = −η m̂ / (√v̂ + ε) and decay ηλ (Loshchilov and Hutter, 2019, algorithm 2), the update
    is (u − ηλ W) / (1 − ηλ) = −share · m / (√v + ε′) − decay · W.
    """

    share: float
    epsilon: float
    decay: float
    mean: Tensor
    square: Tensor

    @classmethod
    def of(cls, part: Optimizer, group: Mapping[str, Any], state: Mapping[str, Tensor]) -> AdamStep:
        """Read the step from a group and from the state of a parameter."""
        (beta1, beta2), rate, step = group["betas"], float(group["lr"]), float(state["step"])
        decay = decay_of(part, group)
        correction = math.sqrt(1 - beta2**step)
        return cls(
            share=rate * correction / ((1 - beta1**step) * (1 - decay)),
            epsilon=group["eps"] * correction,
            decay=decay / (1 - decay),
            mean=state["exp_avg"],
            square=state["max_exp_avg_sq" if group.get("amsgrad") else "exp_avg_sq"],
        )


class Updates:
    """Knows the updates of torch's Adam and AdamW from their state, and all others from copies.

    Attributes:
        moving: Parameters that the step has a gradient for.
        copies: Their values before the step, where the state will not tell them.
        known: Optimizer and group of the parameters whose update the state tells.
    """

    def bind(self, optimizer: Optimizer) -> None:
        """Find the parameters of optimizers whose step is known.

        Raises:
            NotCovered: The steps of the optimizer are scaled already.
        """
        if is_scaled(optimizer):
            raise NotCovered(
                "This optimizer's steps are bounded already, and a second bound would read them "
                "wrongly; take one of the two."
            )
        self._parts = optimizer_parts(optimizer)
        for part in self._parts:
            _SCALING[part] = ref(self)
        self.forget()

    def release(self) -> None:
        """Leave the optimizer to another."""
        for part in self._parts:
            _SCALING.pop(part, None)

    def forget(self) -> None:
        """Forget the last step."""
        self.moving: set[nn.Parameter] = set()
        self.copies: dict[nn.Parameter, Tensor] = {}
        self.known: dict[nn.Parameter, tuple[Optimizer, Mapping[str, object]]] = {}

    def remember(
        self, moving: Sequence[nn.Parameter], *, measured: Collection[nn.Parameter]
    ) -> None:
        """Note what will move, and copy what is not both measured and known."""
        self.moving = set(moving)
        self.known = {
            p: (part, group)
            for part in self._parts
            if type(part) in _ADAMS
            for group in part.param_groups
            for p in group["params"]
        }
        rest = [p for p in moving if p not in measured or p not in self.known]
        self.copies = {p: p.detach().clone() for p in rest}

    def pieces(self, parameters: Collection[nn.Parameter]) -> Iterator[list[Piece]]:
        """Yield the numbers of parameters in parts that together are few at a time."""
        most = max(_LEAST, sum(local(p).numel() for p in parameters) // _SHARE)
        found: list[Piece] = []
        left = most
        for parameter in parameters:
            own = local(parameter)
            count = own.numel()
            starts = range(0, count, most) if own.is_contiguous() and count > most else ()
            cut = [Piece(parameter, at, min(at + most, count)) for at in starts]
            for piece in cut or [Piece(parameter)]:
                size = (piece.stop - piece.start) or count
                if found and size > left:
                    yield found
                    found, left = [], most
                found.append(piece)
                left -= size
        if found:
            yield found

    def moved(self, pieces: Sequence[Piece]) -> list[Tensor]:
        """Return the update of each piece, at least float32, in tensors of their own."""
        read = [piece for piece in pieces if piece.parameter not in self.copies]
        steps = [self._step(piece.parameter) for piece in read]
        told = [at_least_float(piece.of(s.square)) for piece, s in zip(read, steps, strict=True)]
        means = [at_least_float(piece.of(s.mean)) for piece, s in zip(read, steps, strict=True)]
        if read:
            told = list(torch._foreach_sqrt(told))
            torch._foreach_add_(told, [step.epsilon for step in steps])
            told = list(torch._foreach_div(means, told))
            torch._foreach_mul_(told, [-step.share for step in steps])
        for piece, step, update in zip(read, steps, told, strict=True):
            if step.decay:
                update.sub_(at_least_float(piece.of(piece.parameter)), alpha=step.decay)
        found, updates = iter(told), []
        for piece in pieces:
            before = self.copies.get(piece.parameter)
            if before is None:
                updates.append(next(found))
            else:
                updates.append(at_least_float(piece.of(piece.parameter)) - piece.of(before))
        return updates

    def _step(self, parameter: nn.Parameter) -> AdamStep:
        part, group = self.known[parameter]
        return AdamStep.of(part, group, part.state[parameter])

    @torch.no_grad()
    def scale(self, parameter: nn.Parameter, factor: Tensor, *, is_transposed: bool) -> None:
        """Scale the update by factors on the host: `[1]`, or one for every row of outputs."""
        back: Tensor | float = 1.0 - float(factor[0])
        if len(factor) > 1:
            rows = 1.0 - factor.to(parameter.device, at_least_float(parameter).dtype)
            rows = rows.view(*parameter.shape[: parameter.dim() - 2], -1)
            back = rows.unsqueeze(-2 if is_transposed else -1)
        if isinstance(parameter, DTensor) and isinstance(back, Tensor):
            mesh = parameter.device_mesh
            back = DTensor.from_local(back, mesh, [Replicate()] * mesh.ndim, run_check=False)
        weight = at_least_float(parameter.detach())
        if parameter in self.copies:
            moved = weight - at_least_float(self.copies[parameter])
            weight.sub_(moved.mul_(back))
        else:
            step = self._step(parameter)
            share, root = step.share, at_least_float(step.square).sqrt().add_(step.epsilon)
            if step.decay:
                weight.mul_(1 + back * step.decay)
            if isinstance(back, float):  # one pass over the weights less
                share *= back
            else:
                root.div_(back)
            weight.addcdiv_(at_least_float(step.mean), root, value=share)
        if weight.dtype != parameter.dtype:
            parameter.copy_(weight)


def is_scaled(optimizer: Optimizer) -> bool:
    """Tell whether anything scales the steps of an optimizer, or of one of several."""
    owners = (_SCALING.get(part) for part in optimizer_parts(optimizer))
    return any(owner is not None and owner() is not None for owner in owners)


def furthest(part: Optimizer, group: Mapping[str, Any]) -> float:
    """Return what no entry's update without decay can exceed; infinite where that is unknown.

    Of Adam it is η times the largest |m̂| / √v̂, which Cauchy and Schwarz bound: the weights of both
    means are powers of β1 and β2, so that |m| ≤ (1 − β1) √(Σ qⁱ v / (1 − β2)) with q = β1² / β2.
    """
    if type(part) not in _ADAMS:
        return math.inf
    return float(group["lr"]) * _largest_ratio(*map(float, group["betas"]))


@lru_cache
def _largest_ratio(beta1: float, beta2: float) -> float:
    if not beta1**2 < beta2 < 1:
        return math.inf
    q, found = beta1**2 / beta2, 1.0
    for step in (2**k for k in range(40)):
        sums = math.sqrt((1 - q**step) / (1 - q) / (1 - beta2)) * (1 - beta1)
        found = max(found, sums * math.sqrt(1 - beta2**step) / (1 - beta1**step))
    return _ROUNDING * found


def decay_of(part: Optimizer, group: Mapping[str, Any]) -> float:
    """Return the share of itself that a step of Adam or AdamW takes from a weight."""
    is_apart = isinstance(part, torch.optim.AdamW) or bool(group.get("decoupled_weight_decay"))
    return float(group["lr"]) * group["weight_decay"] if is_apart else 0.0


def told_of(name: str, scaled: Counter[str], steps: int) -> str:
    """Say how many updates an intervention scaled, and where most."""
    if not scaled:
        return f"{name} scaled no update in {steps} steps."
    most = ", ".join(f"{where} ({count})" for where, count in scaled.most_common(3))
    return (
        f"{name} scaled {scaled.total()} updates of {len(scaled)} tensors in {steps} steps, most "
        f"of them of {most}."
    )
