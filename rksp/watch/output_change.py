"""How far a step of the optimizer moves the outputs of every matrix, on tokens of that step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from rksp.ground.model import definite
from rksp.models.anatomy.chains import first_tensor
from rksp.models.anatomy.parts import find_anatomy
from rksp.models.anatomy.weight_view import at_least_float, gathered
from rksp.watch.groups import local, world_size
from rksp.watch.moment import Moment, Phase
from rksp.watch.monitors.base import Monitor, Reading, Rule

SHARES = "shares of outputs"  # the key of the last measurement in a moment
FLOOR = 0.01  # of the size at which features are learned: less counts as that much in the monitor
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NATIVE = {kind.forward for kind in (nn.Linear, nn.Embedding, *_CONVOLUTIONS)}


@dataclass(slots=True, kw_only=True, eq=False)
class Use:
    """A module's use of a weight, and what was sampled of it in one step.

    Attributes:
        path: Path of the module, with the parameter's name if it holds a stack of experts.
        module: The module.
        parameter: The weight.
        is_transposed: Whether the weight is `[…, inputs, outputs]`.
        is_head: Whether its outputs are logits.
        owners: Part of every row of outputs, `[rows]` or `[experts, rows]`; all zero if undivided.
        names: Names of the parts.
        sampled: (expert or None, inputs, outputs without the bias), before the step.
    """

    path: str
    module: nn.Module
    parameter: nn.Parameter
    is_transposed: bool = False
    is_head: bool = False
    owners: Tensor
    names: list[str]
    sampled: list[tuple[int | None, Tensor, Tensor]] = field(default_factory=list)

    def product(self, weight: Tensor, x: Tensor) -> Tensor:
        """Return the outputs of inputs x without the bias; x of an embedding are tokens."""
        if isinstance(self.module, nn.Embedding):
            return F.embedding(x, weight)
        if isinstance(self.module, _CONVOLUTIONS):
            found: Tensor = self.module._conv_forward(x.to(weight), weight, None)
            return found
        return F.linear(x.to(weight), weight.mT if self.is_transposed else weight)


class OutputChange:
    """Samples inputs and outputs in a step's forward pass, and measures after its update.

    The share of a matrix W is ‖ΔW x‖ / ‖W x‖ over the sampled inputs x; W x is what the forward
    pass computed, so that the only product is that of the moved weight. Features are learned at any
    width where outputs are of the size that a matrix of variance 1/inputs gives, RMS(x), and of one
    in embeddings (Yang et al., 2023, arXiv 2310.17813, condition 1). Smaller ones count as a given
    part of that, or a matrix that starts small could not leave it in time; logits count as at least
    one each. Under `torch.distributed` squares are summed over all ranks.

    Args:
        tokens: Sampled inputs of every matrix and rank; of a convolution, whole examples.
    """

    def __init__(self, tokens: int = 64) -> None:
        self.tokens, self._step = tokens, 0
        self.uses: list[Use] = []

    def bind(self, model: nn.Module) -> None:
        """Find the weights that multiply: linear maps, embeddings, convolutions and experts."""
        anatomy = find_anatomy(model)
        matrices = [*anatomy.attention_matrices(), *anatomy.feed_forward]
        head = None if anatomy.head is None else anatomy.head.name
        for path, module in model.named_modules():
            for name, parameter in module._parameters.items():
                if (
                    parameter is None
                    or not parameter.requires_grad
                    or not _multiplies(module, name)
                ):
                    continue
                of = [m for m in matrices if m.parameter is parameter]
                whole = f"{path}.{name}" if parameter.dim() == 3 else path
                transposed = type(module).__name__ == "Conv1D" or any(m.is_transposed for m in of)
                shape = parameter.mT.shape if transposed else parameter.shape
                rows = shape[:2] if name != "weight" else shape[:1]
                if isinstance(module, nn.Embedding):
                    rows = shape[-1:]
                owners, names = torch.zeros(rows, dtype=torch.long), [whole]
                if sum(m.shape[0] for m in of) == owners.numel() and len(of) > 1:
                    names = [matrix.name for matrix in of]
                    for index, m in enumerate(of):
                        part = owners if m.expert is None else owners[m.expert]
                        torch.unflatten(part, -1, (m.groups, -1))[..., m.start : m.stop] = index
                self.uses.append(
                    Use(
                        path=whole,
                        module=module,
                        parameter=parameter,
                        is_transposed=transposed,
                        is_head=path == head,
                        owners=owners.flatten().to(parameter.device),
                        names=names,
                    )
                )

    @property
    def names(self) -> list[str]:
        """Names of all parts, in the order of `shares`."""
        return [name for use in self.uses for name in use.names]

    def arm(self, step: int) -> list[RemovableHandle]:
        """Forget the last step's samples, and return the hooks of this step's forward pass."""
        self._step, handles = step, []
        owners: dict[nn.Module, list[Use]] = {}
        for use in self.uses:
            use.sampled.clear()
            owners.setdefault(use.module, []).append(use)
        for module, uses in owners.items():
            sample = (
                partial(self._experts, uses) if len(uses) > 1 else partial(self._capture, uses[0])
            )
            handles.append(module.register_forward_hook(sample, with_kwargs=True))
        return handles

    def _spaced(self, rows: Tensor, count: int) -> Tensor:
        """Return at most `count` evenly spaced rows, shifted at every step, as a copy."""
        stride = max(1, len(rows) // count)
        return rows[self._step % stride :: stride][:count].clone()

    @torch.no_grad()
    def _capture(
        self, use: Use, module: nn.Module, args: object, kwargs: object, output: object
    ) -> None:
        x, y = next(_tensors((args, kwargs)), None), first_tensor(output)
        left = self.tokens - sum(len(x) for _, x, _ in use.sampled)
        width: tuple[int, ...] = ()
        shape: tuple[int, ...] = (-1,)
        if x is None or y is None or left <= 0 or x.numel() == 0:
            return
        if isinstance(module, _CONVOLUTIONS):
            examples = -(-left // max(1, y[0, 0].numel()))
            x, y = self._spaced(x, examples), self._spaced(y, examples)
            x, shape = at_least_float(x), (-1, *[1] * (y.dim() - 2))
        else:
            is_table = isinstance(module, nn.Embedding)
            width = () if is_table else tuple(x.shape[-1:])
            x, y = x.reshape(-1, *width), y.reshape(-1, y.shape[-1])
            if len(x) != len(y) and (is_table or type(module).forward in _NATIVE):
                return
            x, y = self._spaced(x, left), self._spaced(y, left)
        if type(module).forward in _NATIVE or type(module).__name__ == "Conv1D":
            y = at_least_float(y)
            if (bias := getattr(module, "bias", None)) is not None:
                whole = gathered(bias)
                split = len(whole) != y.shape[-1] and not isinstance(module, _CONVOLUTIONS)
                y = y - (local(bias) if split else whole).to(y).view(shape)
        else:
            with torch.autocast(x.device.type, enabled=False):
                weight = at_least_float(gathered(use.parameter))
                if width and width[0] != weight.shape[-2 if use.is_transposed else -1]:
                    return
                if is_table and not _are_rows(weight, x, y):
                    return
                y = use.product(weight, x)
        use.sampled.append((None, x, y))

    @torch.no_grad()
    def _experts(
        self, uses: Sequence[Use], module: nn.Module, args: object, kwargs: object, output: object
    ) -> None:
        """Sample a stack of experts: every expert gets its routed tokens."""
        first, last = uses
        whole = (t for t in _tensors((args, kwargs)) if not t.is_floating_point() and t.dim() >= 2)
        x, chosen = first_tensor((args, kwargs)), next(whole, None)  # experts, [tokens, k]
        if x is None or chosen is None or first.sampled:
            return
        x, chosen = x.reshape(-1, x.shape[-1]), chosen.reshape(-1, chosen.shape[-1])
        x, chosen = self._spaced(x, self.tokens), self._spaced(chosen, self.tokens)
        with torch.autocast(x.device.type, enabled=False):
            wide = [at_least_float(gathered(use.parameter)) for use in uses]
            for expert in sorted(set(chosen.flatten().tolist()))[: len(wide[0])]:
                routed = at_least_float(x[(chosen == expert).any(-1)])
                inner = first.product(wide[0][expert], routed)
                first.sampled.append((expert, routed, inner))
                gate, up = inner.chunk(2, -1)
                act = getattr(module, "act_fn", F.silu)
                own = getattr(module, "_apply_gate", None)
                inner = act(gate) * up if own is None else own(inner)
                last.sampled.append((expert, inner, last.product(wide[1][expert], inner)))

    @torch.no_grad()
    def measure(self) -> None:
        """Measure how far the update moved the outputs, for `shares` and `mean_square`."""
        sums = [self._sums(use) for use in self.uses]
        kind = max((part.dtype for part in sums), key=lambda dtype: dtype.itemsize)
        total = torch.cat([part.to(kind) for part in sums], dim=1)
        if world_size() > 1:
            torch.distributed.all_reduce(total)
        self._total = total

    def shares(self, floor: float = 1.0) -> Tensor:
        """Return the share of every part, `[parts]`; NaN where no input was seen.

        Args:
            floor: The part of the size at which features are learned that an output counts as.
        """
        moved, size, least, _ = self._total.unbind()
        is_head = torch.tensor([use.is_head for use in self.uses for _ in use.names])
        least = torch.where(is_head.to(least.device), least, floor**2 * least)
        return (moved / torch.maximum(size, least)).sqrt()

    def _sums(self, use: Use) -> Tensor:
        """Return squares of change, outputs and least size, and their number, `[4, parts]`."""
        device = use.owners.device
        if not use.sampled:
            return torch.zeros(4, len(use.names), device=device)
        weight = gathered(use.parameter)
        inputs, outputs = weight.shape[-1], len(use.owners)
        if use.is_transposed:
            inputs = weight.shape[-2]
        found: list[Tensor] = []
        for expert, x, y in use.sampled:
            x, y = _whole(x, inputs, use.parameter), _whole(y, outputs, use.parameter)
            part = at_least_float(weight if expert is None else weight[expert])
            moved = (use.product(part, x) - y).square()
            size = y.square()
            if moved.dim() > 2:  # a convolution: [examples, outputs, …]
                moved, size = moved.transpose(0, 1).flatten(1).T, size.transpose(0, 1).flatten(1).T
            entries = size.new_tensor(float(len(size))).expand(size.shape[1])
            is_unit = use.is_head or not x.is_floating_point()
            least = entries if is_unit else entries * x.square().mean()
            found.append(torch.stack([moved.sum(0), size.sum(0), least, entries]))
        if use.sampled[0][0] is None:
            rows = torch.stack(found).sum(0)
        else:
            rows = found[0].new_zeros(len(weight), 4, found[0].shape[1])
            for (expert, _, _), part in zip(use.sampled, found, strict=True):
                rows[expert] += part
            rows = rows.transpose(0, 1).flatten(1)
        if len(use.names) == 1:
            return rows.sum(1, keepdim=True)
        return rows.new_zeros(4, len(use.names)).index_add_(1, use.owners, rows)

    def _parted(self, values: Tensor) -> tuple[Tensor, ...]:
        return torch.split(values, [len(use.names) for use in self.uses])

    def is_transposed(self, parameter: nn.Parameter) -> bool:
        """Return whether a parameter is `[…, inputs, outputs]`."""
        return any(use.is_transposed for use in self.uses if use.parameter is parameter)

    def mean_square(self, parameter: nn.Parameter) -> Tensor | None:
        """Return the mean square of a parameter's outputs at the last `measure`; None if unseen."""
        parts = self._parted(self._total[1] / self._total[3])
        found = [
            part.mean()
            for use, part in zip(self.uses, parts, strict=True)
            if use.parameter is parameter and use.sampled
        ]
        return found[0] if found else None

    def of_parameters(self, shares: Tensor) -> dict[nn.Parameter, Tensor]:
        """Return the largest share of every parameter's rows over its uses, `[rows]` or `[1]`."""
        found: dict[nn.Parameter, Tensor] = {}
        for use, part in zip(self.uses, self._parted(shares), strict=True):
            rows = part if len(part) == 1 else part[use.owners]
            before = found.get(use.parameter)
            found[use.parameter] = rows if before is None else torch.fmax(before, rows)
        return found


def _are_rows(weight: Tensor, x: Tensor, y: Tensor) -> bool:
    """Tell whether y are the rows of tokens x, scaled or not; tables of positions count them."""
    if x.is_floating_point() or int(x.max()) >= len(weight):
        return False
    rows, seen = F.normalize(weight[x]), F.normalize(at_least_float(y))
    return torch.allclose(rows, seen.to(rows), atol=0.01)


def _multiplies(module: nn.Module, name: str) -> bool:
    if name == "weight":
        is_known = isinstance(module, (nn.Embedding, *_CONVOLUTIONS))
        return is_known or definite(module._parameters[name]).dim() == 2
    stacks = ("gate_up_proj", "down_proj")
    both = [module._parameters.get(stack) for stack in stacks]
    return name in stacks and all(p is not None and p.dim() == 3 for p in both)


def _tensors(value: object) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor))


def _whole(sample: Tensor, size: int, weight: Tensor) -> Tensor:
    """Return a sample whose last dimension tensor parallelism may have split, gathered."""
    if isinstance(sample, DTensor):
        return sample.full_tensor()
    if not isinstance(weight, DTensor) or not sample.is_floating_point() or sample.dim() != 2:
        return sample
    if sample.shape[-1] == size:
        return sample
    return DTensor.from_local(sample, weight.device_mesh, [Shard(1)]).full_tensor()


@dataclass(eq=False)
class OutputChangeMonitor(Monitor):
    """‖ΔW x‖ / ‖W x‖ of the step, on `tokens` inputs x of every matrix (`OutputChange`).

    `output_change` is a matrix's share; `median_output_change` that of the whole model, the median
    over its matrices. It is the aligned response of the score, read in the run. With step clip it
    is the share before the clip, and costs nothing more.
    """

    name = "output-change"
    phase = Phase.UPDATE
    default_every = 1
    # Runs that learn move the median matrix's outputs by 0.1 to 0.5 in single early steps.
    quantities: ClassVar = {
        name: Rule(direction=None, warn=limit, from_start=True, patience=2, advice="update_bound")
        for name, limit in (("output_change", 1.0), ("median_output_change", 0.4))
    }
    source = "arXiv 2410.23922, of matrices"

    tokens: PositiveInt = 64

    def bind(self, model: nn.Module) -> str | None:
        """Find the weights that multiply."""
        self._outputs = OutputChange(self.tokens)
        self._outputs.bind(model)
        self._step = -1
        return None if self._outputs.uses else "no matrix is trained"

    def arm(self, model: nn.Module) -> Sequence[RemovableHandle]:
        """Sample inputs and outputs of the forward pass."""
        self._step += definite(self.every)
        return self._outputs.arm(self._step)

    def read(self, moment: Moment) -> list[Reading]:
        """Return the share of every matrix that was used, and their median."""
        if SHARES not in moment.shared:
            self._outputs.measure()
            moment.shared[SHARES] = (self._outputs.names, self._outputs.shares(FLOOR))
        names, shares = moment.shared[SHARES]
        pairs = zip(names, shares.tolist(), strict=True)
        found = {name: share for name, share in pairs if not math.isnan(share)}
        if not found:
            return []
        middle = sorted(found.values())[len(found) // 2]
        return [
            *(self.reading("output_change", moment.step, v, layer=k) for k, v in found.items()),
            self.reading("median_output_change", moment.step, middle),
        ]
