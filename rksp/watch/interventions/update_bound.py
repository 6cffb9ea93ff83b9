"""The update bound: no step may move a matrix by more than a share of its own size."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from pydantic import PositiveFloat
from torch import Tensor, nn
from torch.optim import Optimizer

from rksp.ground.errors import InputError, NotCovered
from rksp.recipe.optimizers.groups import parameters_of
from rksp.watch.groups import sums_of_squares
from rksp.watch.interventions.base import Intervention
from rksp.watch.interventions.updates import Updates, decay_of, furthest, told_of

# Keys of a group beside its options: its largest rate, and how many steps it has taken.
PEAK, STEPS = "peak_lr", "steps_taken"
# Steps with the whole δ, and those from which on it falls no more: where it was measured.
_WHOLE, _LAST = 160, 2400
_LEAST = 0.1  # of 1/√inputs: as that much counts the RMS of what starts at zero, or very small
_EVERY = 8  # steps between two looks at the sizes of matrices that no step can move too far


class UpdateBound:
    """Scales every matrix's update ΔW to ‖ΔW‖ ≤ δ · rate/peak · ‖W‖, whatever optimizer made it.

    From step 160 on δ falls as √(160/steps), so that what the steps can add up to at random does
    not grow with the run, and from step 2,400 on, where its measurement ends, no more.

        bound = rksp.UpdateBound(optimizer, model)

    acts from then on inside of `optimizer.step()`: with a closure, a scheduler, GradScaler (steps
    that it skips are none), DDP, FSDP2 and compiled models. Its only state, in
    `optimizer.state_dict()`, is the largest rate so far of every group (`peak_lr`) and its steps
    (`steps_taken`).

    A weight counts as having an RMS of at least 0.1/√inputs, the larger side being the inputs, so
    that what starts at zero can start. Biases, gains and embeddings move by the share of their step
    that is the matrices' geometric mean. A run in which nothing is scaled is bitwise that of the
    optimizer alone, and costs next to nothing under Adam and AdamW: matrices that no step can move
    so far are not measured. Their updates are read from the optimizer's state; under any other
    optimizer a copy of the weights is held during the step. Moments stay as they are.

    It is a one-sided LARS (You et al., 2017): LAMB's norms (arXiv 1904.00962) as a bound, with the
    schedule in it. Relative updates go back to Fromage (arXiv 2002.03432).

    Args:
        optimizer: A torch optimizer.
        model: What it trains, unwrapped or not; only names and embeddings are read.
        delta: δ, the share at the largest learning rate in the first 160 steps.

    Attributes:
        steps: Steps of the optimizer so far.
        scaled: How often the updates of each parameter were scaled.

    Raises:
        InputError: `optimizer` is no torch optimizer, its steps are bounded already, or δ is not
            above zero.
    """

    is_awake = True

    def __init__(self, optimizer: Optimizer, model: nn.Module, *, delta: float = 0.05) -> None:
        if not isinstance(optimizer, Optimizer) or not hasattr(optimizer, "register_step_pre_hook"):
            raise InputError(
                f"An update bound needs a torch.optim.Optimizer, got {type(optimizer).__name__}; "
                "give it the torch optimizer inside of a trainer's wrapper."
            )
        if not (delta > 0 and math.isfinite(delta)):
            raise InputError(f"An update bound needs a share above zero, got delta={delta}.")
        self.delta, self.steps = delta, 0
        self.scaled: Counter[str] = Counter()
        self._names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
        self._tables = {m.weight for m in model.modules() if isinstance(m, nn.Embedding)}
        self._updates = Updates()
        self._updates.bind(optimizer)
        self._sizes: dict[nn.Parameter, float] = {}
        self._looked = -_EVERY
        self._handles = (
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        )

    def remove(self) -> None:
        """Leave the optimizer as it was."""
        for handle in self._handles:
            handle.remove()
        self._updates.release()

    def _before(self, optimizer: Optimizer, args: tuple[object, ...], kwargs: object) -> None:
        """Find what may be moved too far, and copy what no state will tell."""
        for group in optimizer.param_groups:
            group[PEAK] = max(float(group.get(PEAK, 0.0)), float(group["lr"]))
            group[STEPS] = group.get(STEPS, 0) + 1
        self._updates.forget()
        if not self.is_awake:
            return
        has_closure = len(args) > 1 or bool(kwargs)  # which makes the gradients
        trained = [p for p in parameters_of(optimizer) if p.requires_grad]
        moving = [p for p in trained if has_closure or p.grad is not None]
        self._updates.remember(moving, measured=set(moving))

    @torch.no_grad()
    def _after(self, optimizer: Optimizer, *_: object) -> None:
        skipped = getattr(optimizer, "found_inf", None)  # GradScaler tells a fused optimizer
        if self._updates.moving and (skipped is None or float(skipped) == 0):
            self.steps += 1
            self._bound_step(optimizer)
        self._updates.forget()  # and so free the copies

    def _bound_step(self, optimizer: Optimizer) -> None:
        bounds = self._bounds(optimizer)
        matrices = [p for p in bounds if self._is_matrix(p)]
        factors = self._factors({p: bounds[p] for p in matrices if self._may_exceed(p, bounds[p])})
        total = sum(math.log(factor) for factor in factors.values())
        mean = math.exp(total / len(matrices)) if matrices else 1.0
        for parameter in bounds:
            if not self._is_matrix(parameter) and mean < 1.0:
                factors[parameter] = mean
        self._scale({p: factor for p, factor in factors.items() if factor < 1.0})
        self._look(matrices)

    def _bounds(self, optimizer: Optimizer) -> dict[nn.Parameter, float]:
        return {
            p: self.delta * _share_of_delta(group)
            for group in optimizer.param_groups
            for p in group["params"]
            if p in self._updates.moving and p.grad is not None
        }

    def _is_matrix(self, parameter: nn.Parameter) -> bool:
        return parameter.dim() > 1 and parameter not in self._tables

    def _may_exceed(self, parameter: nn.Parameter, delta: float) -> bool:
        """Tell whether a step can have moved a matrix too far; its size may be some steps old."""
        if parameter not in self._updates.known or parameter not in self._sizes:
            return True
        age = self.steps - self._looked
        size = self._sizes[parameter] * (1 - min(self.delta, 1.0)) ** age
        part, group = self._updates.known[parameter]
        reach = furthest(part, group) * math.sqrt(parameter.numel())
        return reach + decay_of(part, group) * size > delta * max(size, _least_size(parameter))

    def _look(self, matrices: list[nn.Parameter]) -> None:
        """Note the sizes of matrices now and then; the one read of a step that scales nothing."""
        if self.steps - self._looked >= _EVERY and any(p in self._updates.known for p in matrices):
            self._looked = self.steps
            sizes = sums_of_squares([[p.detach()] for p in matrices]).sqrt().tolist()
            self._sizes = dict(zip(matrices, sizes, strict=True))

    def _factors(self, bounds: Mapping[nn.Parameter, float]) -> dict[nn.Parameter, float]:
        """Return min(1, δ ‖W‖ / ‖ΔW‖) of matrices; 1 where that is no number."""
        if not bounds:
            return {}
        squares: dict[nn.Parameter, list[Tensor]] = {p: [] for p in bounds}
        for pieces in self._updates.pieces(bounds):
            updates = self._updates.moved(pieces)
            for piece, update in zip(pieces, updates, strict=True):
                moved = torch.linalg.vector_norm(update)
                before = torch.sub(piece.of(piece.parameter), update, out=update)
                pair = torch.stack([moved, torch.linalg.vector_norm(before)]).square()
                squares[piece.parameter].append(pair)
        own = {p: torch.stack(found).sum(0).sqrt() for p, found in squares.items()}
        totals = [
            sums_of_squares([[p] for p in bounds], {p: own[p][index] for p in bounds})
            for index in range(2)
        ]
        found = torch.stack(totals).sqrt().T.tolist()
        factors = {}
        for (parameter, delta), (moved, size) in zip(bounds.items(), found, strict=True):
            limit = delta * max(size, _least_size(parameter))
            is_over = math.isfinite(moved) and moved > limit > 0
            factors[parameter] = limit / moved if is_over else 1.0
        return factors

    def _scale(self, factors: Mapping[nn.Parameter, float]) -> None:
        for pieces in self._updates.pieces(factors):
            for piece, update in zip(pieces, self._updates.moved(pieces), strict=True):
                own = piece.of(piece.parameter)
                own.copy_(torch.sub(own, update, alpha=1 - factors[piece.parameter], out=update))
        self.scaled.update(self._names.get(p, "an unnamed parameter") for p in factors)


def _share_of_delta(group: Mapping[str, float]) -> float:
    steps = min(max(group[STEPS], _WHOLE), _LAST)
    rate = float(group["lr"]) / group[PEAK] if group[PEAK] > 0 else 1.0
    return math.sqrt(_WHOLE / steps) * rate


def _least_size(parameter: nn.Parameter) -> float:
    return _LEAST * math.sqrt(parameter.numel() / max(parameter.shape[-2:]))


@dataclass(eq=False)
class BoundUpdates(Intervention):
    """Scales every matrix's update ΔW to ‖ΔW‖ ≤ δ · rate/peak · ‖W‖: `rksp.UpdateBound`.

    Args:
        delta: δ at the largest learning rate, in the first 160 steps.
    """

    name = "update_bound"
    delta: PositiveFloat = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        self.bounds: list[UpdateBound] = []

    def bind(self, model: nn.Module, optimizer: Optimizer) -> None:
        parts = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer.parts)
        if not any(p.dim() > 1 for p in parameters_of(*parts) if p.requires_grad):
            raise NotCovered("An update bound needs a matrix that is trained; this model has none.")
        self.bounds = [UpdateBound(part, model, delta=self.delta) for part in parts]

    def closing(self) -> str:
        scaled: Counter[str] = sum((bound.scaled for bound in self.bounds), Counter())
        steps = max((bound.steps for bound in self.bounds), default=0)
        for bound in self.bounds:
            bound.remove()
        return told_of(self.name, scaled, steps)
