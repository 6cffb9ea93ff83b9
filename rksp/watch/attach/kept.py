"""What is kept of a run so that a step can be repeated: its newest inputs, and earlier weights."""

from __future__ import annotations

import contextlib
import math
import operator
import statistics
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.utils._pytree import keystr, tree_leaves, tree_leaves_with_path, tree_map

from rksp.watch.attach.targets import Criterion
from rksp.watch.groups import local

BATCHES = 12  # newest steps whose inputs are kept
_SEEN = 0.01  # of how far the last output moves
SPARSEST = 50  # steps between two copies of the weights; fewer early, when they move fast


@dataclass(slots=True, kw_only=True, eq=False)
class Pass:
    """A forward pass of the script: references to its inputs, and what it takes to repeat it.

    Attributes:
        args, kwargs: The inputs.
        versions: How often each of their tensors had been written to.
        size: Their bytes.
        random: State of torch's generators: of the CPU, and of the model's GPU if there is one.
        low: The type of autocast; None where it is off.
        criterion: What the script compared the output with; None where that is unknown.
    """

    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    versions: tuple[int, ...]
    size: int
    random: tuple[Tensor, ...]
    low: torch.dtype | None
    criterion: Criterion | None = None

    @property
    def words(self) -> int:
        """How many targets count; 0 where they are unknown."""
        return 0 if self.criterion is None else int(self.criterion.number)

    @property
    def is_whole(self) -> bool:
        """Whether the script has not written to the inputs since."""
        return self.versions == tuple(one._version for one in _tensors(self.args, self.kwargs))

    @property
    def not_a_number(self) -> str:
        """Which of the inputs has a NaN (`args[0]`, `kwargs['x']`); empty where none has."""
        for name, part in (("args", self.args), ("kwargs", dict(self.kwargs))):
            for at, x in tree_leaves_with_path(part):
                if isinstance(x, Tensor) and bool(x.isnan().any()):
                    return f"{name}{keystr(at)}"
        return ""

    def run(self, module: nn.Module) -> tuple[Tensor | None, Tensor | None]:
        """Run the pass again; return its loss in nats and the first tensor of its output.

        The loss is the first scalar that the module returns, or else what the script's criterion
        makes of its output; None if nothing tells what it is.
        """
        device = next(module.parameters()).device
        torch.set_rng_state(self.random[0])
        if len(self.random) > 1:
            torch.cuda.set_rng_state(self.random[1], device)
        with torch.autocast(device.type, self.low, enabled=self.low is not None):
            output = module(*self.args, **self.kwargs)
        leaves = [one for one in tree_leaves(output) if isinstance(one, Tensor)]
        floats = [one for one in leaves if one.is_floating_point()]
        loss = next((one for one in floats if one.dim() == 0), None)
        logits = next((one for one in floats if one.dim() >= 2), None)
        if loss is None and logits is not None and self.criterion is not None:
            loss = self.criterion.again(logits)
        return loss, logits


@dataclass(slots=True, eq=False)
class Step:
    """The passes of a step, and the loss that the script had; None until it is known."""

    number: int
    passes: list[Pass] = field(default_factory=list)
    loss: float | None = None

    def repeated(self, module: nn.Module) -> list[float]:
        """Return the mean loss of every pass with the present weights; NaN where it is unknown."""
        with torch.no_grad():
            losses = [one.run(module)[0] if one.is_whole else None for one in self.passes]
        return [math.nan if loss is None else float(loss) for loss in losses]


class Kept:
    """Keeps the newest inputs by reference, and copies of the trained weights.

    A copy of the weights is made before a step that is an eighth later than the last one, at most
    50 steps later. The older copy is thus from before most faults that an alarm tells of. The
    first one is kept where a third fits; where two would not fit, no copy is made.

    Args:
        model: What is trained.
        memory: Bytes that the copies may take, in host memory, and all inputs by themselves.
        is_compiled: Whether the script compiles the model; a repetition does not.
    """

    def __init__(self, model: nn.Module, memory: float, *, is_compiled: bool) -> None:
        self.model, self.memory, self.is_compiled = model, memory, is_compiled
        self.steps: deque[Step] = deque(maxlen=BATCHES)
        self.parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        size = sum(local(p).nbytes for p in self.parameters.values())
        self._copies: deque[dict[str, Tensor]] = deque()
        self._next = 0 if 2 * size <= memory else math.inf
        self.first: Mapping[str, Tensor] = {}
        self._keeps_first = 3 * size <= memory

    @torch.no_grad()
    def begin(self, step: int) -> None:
        """Begin a step, and copy the weights if it is time."""
        self.steps.append(Step(step))
        if step < self._next:
            return
        self._next = step + min(max(step // 8, 1), SPARSEST)
        if len(self._copies) < 2:
            copy = {n: local(p).to("cpu", copy=True) for n, p in self.parameters.items()}
        else:
            copy = self._copies.popleft()
            for name, kept in copy.items():
                kept.copy_(local(self.parameters[name]))
        if not self.first and self._keeps_first:
            self.first = {name: kept.clone() for name, kept in copy.items()}
        self._copies.append(copy)

    def add(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """Keep the inputs of a forward pass that begins."""
        device = next(self.model.parameters()).device
        random = [torch.get_rng_state()]
        if device.type == "cuda":
            random.append(torch.cuda.get_rng_state(device))
        is_low = torch.is_autocast_enabled(device.type)
        low = torch.get_autocast_dtype(device.type) if is_low else None
        tensors = _tensors(args, kwargs)
        self.steps[-1].passes.append(
            Pass(
                args=args,
                kwargs=kwargs,
                versions=tuple(one._version for one in tensors),
                size=sum(one.nbytes for one in tensors),
                random=tuple(random),
                low=low,
            )
        )
        size = sum(one.size for step in self.steps for one in step.passes)
        while len(self.steps) > 1 and size > self.memory:
            size -= sum(one.size for one in self.steps.popleft().passes)

    def add_criterion(self, found: Sequence[Criterion]) -> None:
        """Keep what the output of the newest pass is compared with; of several, nothing tells."""
        passes = self.steps[-1].passes if self.steps else []
        if passes and passes[-1].criterion is None and len(found) == 1:
            passes[-1].criterion = found[0]

    @property
    def earlier(self) -> Mapping[str, Tensor]:
        """The older copy of the weights by name; empty without one."""
        return self._copies[0] if self._copies else {}

    @contextlib.contextmanager
    def repeating(self) -> Iterator[None]:
        """Let the block run the model; afterwards buffers are as they were, to the bit."""
        buffers = {buffer: buffer.clone() for buffer in self.model.buffers()}
        devices = {p.device.index for p in self.model.parameters() if p.device.type == "cuda"}
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices=sorted(devices)))
            if self.is_compiled:
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            try:
                yield
            finally:
                with torch.no_grad():
                    for buffer, before in buffers.items():
                        buffer.copy_(before)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Let the block write to the weights; afterwards they are as they were, to the bit."""
        present = {name: local(p).clone() for name, p in self.parameters.items()}
        try:
            yield
        finally:
            with torch.no_grad():
                for name, p in self.parameters.items():
                    local(p).copy_(present[name])

    @contextlib.contextmanager
    def between(self, share: float) -> Iterator[None]:
        """Put the weights, in the block, this share of the way from the older copy to now."""
        copy = self._copies[0]
        with self.held():
            with torch.no_grad():
                for name, p in self.parameters.items():
                    start = copy[name].to(local(p))
                    local(p).copy_(start if share == 0 else start.lerp(local(p), share))
            yield

    @torch.no_grad()
    def begin_again(self) -> None:
        """Put the weights at what they were before the first step."""
        for name, p in self.parameters.items():
            local(p).copy_(self.first[name])


@torch.no_grad()
def looks_ahead(step: Step, module: nn.Module) -> bool:
    """Tell whether a model's first outputs depend on its last token, from two repetitions."""
    last = step.passes[-1]
    plain = last.run(module)[1] if last.is_whole else None
    if plain is None or plain.dim() < 3 or plain.shape[1] < 4:
        return False
    for words in _tensors(last.args, last.kwargs):  # the targets may be among them
        if words.dtype != torch.int64 or words.shape != plain.shape[:2]:
            continue
        other = words.clone()
        other[:, -1] = words[:, 0].where(words[:, 0] != words[:, -1], words[:, 1])

        def put(part: object, old: Tensor = words, new: Tensor = other) -> object:
            return new if part is old else part

        args, kwargs = tree_map(put, last.args), tree_map(put, dict(last.kwargs))
        changed = replace(last, args=args, kwargs=kwargs).run(module)[1]
        if changed is not None:
            moved = (plain - changed).float().abs().flatten(2).amax((0, 2))  # of each token
            if bool(moved[: len(moved) // 2].max() > _SEEN * moved[-1]):
                return True
    return False


def losses_of(steps: Sequence[Step], module: nn.Module) -> list[float]:
    """Return the losses of steps with the present weights, in the unit of the script's own.

    A script calls backward on the mean of a step's passes, on their sum, or on the sum over their
    words, which it divides by later; the one that fits the losses that it had is its unit.
    """
    repeated = [step.repeated(module) for step in steps]
    weights = [
        [[1.0 / len(step.passes)] * len(step.passes) for step in steps],
        [[1.0] * len(step.passes) for step in steps],
        [[float(one.words) for one in step.passes] for step in steps],
    ]
    units = [
        [sum(map(operator.mul, *pair)) for pair in zip(repeated, of, strict=True)] for of in weights
    ]
    return min(units, key=lambda losses: _distance(steps, losses))


def _distance(steps: Sequence[Step], losses: Sequence[float]) -> float:
    """Return how far losses are from the script's own, as the logarithm of a factor."""
    factors = [
        math.log(abs(step.loss / loss))
        for step, loss in zip(steps, losses, strict=True)
        if step.loss and math.isfinite(step.loss) and loss and math.isfinite(loss)
    ]
    return abs(statistics.median(factors)) if factors else math.inf


def _tensors(args: tuple[object, ...], kwargs: Mapping[str, object]) -> list[Tensor]:
    leaves = tree_leaves((args, dict(kwargs)))
    return [one for one in leaves if isinstance(one, Tensor) and not one.is_inference()]
