"""Monitors of single numbers: loss, gradient norm, log Z, activations, what is not finite."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rksp.ground.errors import NotCovered
from rksp.ground.model import definite
from rksp.kernels.wide_output import Unmade
from rksp.models.anatomy.attention_layouts import is_linear
from rksp.models.anatomy.chains import block_paths, first_tensor, float_tensors
from rksp.watch.groups import gradient_norms, parameter_groups, sums_of_squares
from rksp.watch.moment import Moment
from rksp.watch.monitors.base import Monitor, Reading, Rule, Severity

SMOOTHING = 0.98


class LossSpike(Monitor):
    """Reads the training loss.

    `loss` is the raw value in nats. `loss_excess` is the rise of the exponential mean (0.98,
    started at the first loss) above its running minimum. Lead times refer to 0.5 nats for 100 steps
    as the definition of divergence. A loss that is not finite is left to `non-finite`.
    """

    name = "loss"
    default_every = 1
    quantities: ClassVar = {
        "loss": Rule(floor=0.05, advice="backoff"),
        "loss_excess": Rule(direction=None, warn=0.5, advice="backoff"),
    }
    source = "rksp"

    def reset(self) -> None:
        self._mean: float | None = None
        self._lowest = math.inf

    def read(self, moment: Moment) -> list[Reading]:
        loss = moment.loss
        if loss is None or not math.isfinite(loss):
            return []
        mean = loss if self._mean is None else SMOOTHING * self._mean + (1 - SMOOTHING) * loss
        self._mean, self._lowest = mean, min(self._lowest, mean)
        return [
            self.reading("loss", moment.step, loss),
            self.reading("loss_excess", moment.step, mean - self._lowest, mean=mean),
        ]


class GradientNorm(Monitor):
    """Euclidean norm of the gradients before clipping, of the model and of every block.

    The quantities are `gradient_norm` and `block_gradient_norm`.

    Sharded gradients count as whole: squares are summed per shard and over the ranks that hold
    them. The model's norm carries the largest block's share of the square as `top_share`. A norm
    that is not finite is left to `non-finite`, because under fp16 the loss scaler provokes them.
    The rules are a robust z of the logarithm, and ten times the median for three steps. A block's
    norm must leave its baseline further, because blocks take turns in learning.
    """

    name = "gradient-norm"
    default_every = 1
    quantities: ClassVar = {
        "gradient_norm": Rule(
            transform="log",
            floor=0.35,
            ratio=10.0,
            ratio_severity=Severity.CRITICAL,
            advice="zclip",
        ),
        "block_gradient_norm": Rule(transform="log", floor=0.5, advice="adagc"),
    }
    source = "ZClip, arXiv 2504.02507"
    find, missing = parameter_groups, "no parameter is trained"

    def read(self, moment: Moment) -> list[Reading]:
        groups = {
            name: grads
            for name, params in self.found.items()
            if (grads := [p.grad for p in params if p.grad is not None])
        }
        if not groups:
            return []
        squares = sums_of_squares(list(groups.values()), gradient_norms(moment)).tolist()
        total, step = sum(squares), moment.step
        top = max(squares) / total if 0 < total < math.inf else 1.0
        readings = [
            self.reading("gradient_norm", step, math.sqrt(total), top_share=top),
            *(
                self.reading("block_gradient_norm", step, math.sqrt(square), layer=name)
                for name, square in zip(groups, squares, strict=True)
            ),
        ]
        return [reading for reading in readings if math.isfinite(reading.value)]


@dataclass(eq=False)
class OutputLogZ(Monitor):
    """Mean of log Z = log Σ exp(logits) over tokens, in nats: `output_log_z`.

    Cross-entropy does not change when all logits move together, so they may drift until low
    precision fails. The z-loss 1e-4 log²Z keeps them near zero (PaLM, Chowdhery et al., 2022;
    Wortsman et al., 2023, arXiv 2309.14322, section 3.1.2). `p99` is the 99th percentile of |log
    Z|. Padding tokens count like others.

    Args:
        positions: Positions of the first micro-batch, evenly spread.
    """

    name = "output-log-z"
    default_every = 10
    quantities: ClassVar = {"output_log_z": Rule(direction="both", floor=0.25, advice="z_loss")}
    source = "PaLM, arXiv 2204.02311; arXiv 2309.14322"

    positions: PositiveInt = 512

    def arm(self, model: nn.Module) -> Sequence[RemovableHandle]:
        return [model.register_forward_hook(self._after)]

    def read(self, moment: Moment) -> list[Reading]:
        log_z = self.seen.get("")
        if log_z is None:
            return []
        mean, p99 = torch.stack([log_z.mean(), log_z.abs().quantile(0.99)]).tolist()
        return [self.reading("output_log_z", moment.step, mean, p99=p99)]

    def _after(self, module: nn.Module, args: object, output: object) -> None:
        logits = getattr(output, "logits", output)
        if isinstance(logits, tuple):  # with a loss, as in nanoGPT, or with a state
            logits = next((x for x in logits if isinstance(x, Tensor) and x.dim() > 1), None)
        if not isinstance(logits, Tensor) or logits.dim() < 2:
            raise NotCovered("the model returns no logits (as with a fused loss)")
        rows = logits.detach().flatten(0, -2)
        stride = -(-len(rows) // self.positions)
        self.seen[""] = rows[::stride].float().logsumexp(-1)


class ActivationRange(Monitor):
    """Largest magnitude among the outputs of a block and of its linear layers, per block.

    `activation_max` is that magnitude, and `activation_share` its share of the maximum of the type
    in use (of the worst one, since autocast mixes types). `activation_growth` of the whole model is
    λ = ln(rms last / rms first) / blocks over the outputs of the blocks (OLMo 2, 2025: near zero in
    stable models).
    """

    name = "activation-range"
    default_every = 20
    quantities: ClassVar = {
        "activation_max": Rule(transform="log", floor=0.1, advice="backoff"),
        "activation_share": Rule(direction=None, warn=0.25, critical=1.0),
        "activation_growth": Rule(floor=0.02, advice="backoff"),
    }
    source = "OLMo 2, arXiv 2501.00656"
    find, missing = block_paths, "no list of blocks was found"

    def arm(self, model: nn.Module) -> Sequence[RemovableHandle]:
        return [
            module.register_forward_hook(partial(self._after, path, module is block))
            for path in self.found
            for block in [model.get_submodule(path)]
            for module in block.modules()
            if module is block or is_linear(module)
        ]

    def read(self, moment: Moment) -> list[Reading]:
        readings, step = [], moment.step
        for path, seen in self.seen.items():
            values = torch.stack([extreme.float() for extreme, _ in seen]).tolist()
            share = max(v / limit for v, (_, limit) in zip(values, seen, strict=True))
            readings.append(self.reading("activation_max", step, max(values), layer=path))
            readings.append(self.reading("activation_share", step, share, layer=path))
        if len(self._energies) > 1:
            energies = torch.stack(self._energies).tolist()
            if min(energies) > 0 and math.isfinite(max(energies)):
                growth = 0.5 * math.log(energies[-1] / energies[0]) / (len(energies) - 1)
                readings.append(self.reading("activation_growth", step, growth))
        return readings

    def forget(self) -> None:
        super().forget()
        self._energies: list[Tensor] = []

    def _after(
        self, path: str, is_block: bool, module: nn.Module, args: object, output: object
    ) -> None:
        for place, (_, tensor) in enumerate(float_tensors(output)):
            tensor = tensor.detach()
            if not tensor.numel() or (place and is_block):
                continue  # a block's later outputs are caches and attention weights
            low, high = torch.aminmax(tensor)
            extreme = torch.maximum(low.abs(), high.abs())
            self.seen.setdefault(path, []).append((extreme, torch.finfo(tensor.dtype).max))
            if is_block:
                self._energies.append(tensor.square().mean(dtype=torch.float32))


_NEVER = Rule(direction=None, critical=1.0, advice="backoff")


class NonFinite(Monitor):
    """Names the first module whose output is not finite, and the gradients that are not.

    - `non_finite_loss`: 1 if the loss is NaN or infinite, else 0.
    - `non_finite_modules`: number of modules without children whose output is not finite; `layer`
      is the first in forward order. Infinities that do not reach the loss (a mask inside a router)
      are not counted.
    - `non_finite_gradients`: number of parameters whose gradient is not finite; `layer` is the last
      in registration order, which backward reaches first. Under float16 the loss scaler provokes
      overflows and skips the step; they are then called `overflowed_gradients`.

    The test is one sum per tensor, in float32 at least. It is NaN or infinite exactly if an entry
    is (or if the sum itself overflows, beyond 3e38). On a CPU the inside of a block is not tested
    if the block's output is finite, because infinities inside it then do not reach the loss. On a
    GPU, where this test would wait for the device, all parts of a block are summed in one call.
    """

    name = "non-finite"
    default_every = 1
    quantities: ClassVar = {
        "non_finite_loss": _NEVER,
        "non_finite_modules": _NEVER,
        "non_finite_gradients": _NEVER,
        "overflowed_gradients": replace(_NEVER, patience=10),
    }
    source = "rksp"

    def bind(self, model: nn.Module) -> str | None:
        self._params = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        blocks = block_paths(model)
        self._blocks = [model.get_submodule(path) for path in blocks]
        self._leaves = [
            (name, leaf, any(name.startswith(f"{path}.") for path in blocks))
            for name, leaf in model.named_modules()
            if name and not any(leaf.children())
        ]
        return super().bind(model)

    def arm(self, model: nn.Module) -> Sequence[RemovableHandle]:
        after_block = lambda module, args, output: self._flush(first_tensor(output))
        return [
            *(
                leaf.register_forward_hook(partial(self._after_leaf, name, is_inner))
                for name, leaf, is_inner in self._leaves
            ),
            *(block.register_forward_hook(after_block) for block in self._blocks),
        ]

    def read(self, moment: Moment) -> list[Reading]:
        norms = gradient_norms(moment)
        held = {name: p.grad for name, p in self._params if p.grad is not None}
        gradients = _not_finite(list(held), [norms[grad] for grad in held.values()])
        is_bad_loss = moment.loss is not None and not math.isfinite(moment.loss)
        modules: list[str] = []
        if is_bad_loss or gradients:
            self._flush(None)
            modules = _not_finite(self._names, self._sums)
        name = "overflowed_gradients" if self._is_half else "non_finite_gradients"
        first, last = "".join(modules[:1]), "".join(gradients[-1:])
        counts = [("non_finite_loss", int(is_bad_loss), first)] if moment.loss is not None else []
        counts += [("non_finite_modules", len(modules), first), (name, len(gradients), last)]
        return [self.reading(n, moment.step, float(count), layer=at) for n, count, at in counts]

    def forget(self) -> None:
        self._names: list[str] = []
        self._sums: list[Tensor] = []
        self._pending: list[tuple[str, Tensor]] = []
        self._is_half = False

    def _after_leaf(
        self, name: str, is_inner: bool, module: nn.Module, args: object, output: object
    ) -> None:
        tensor = first_tensor(output)
        if tensor is not None:
            self._is_half |= tensor.dtype is torch.float16
            self._pending.append((name, tensor.detach()))
            # What is not made yet waits for the loss, which shows it without making it.
            if not is_inner and not isinstance(tensor, Unmade):
                self._flush(tensor.detach())

    def _flush(self, result: Tensor | None) -> None:
        """Sum the pending outputs, unless the result computed from them is finite."""
        pending, self._pending = self._pending, []
        is_asked = result is not None and not result.is_cuda
        if not (is_asked and math.isfinite(float(_totals([definite(result).detach()])[0]))):
            self._names += [name for name, _ in pending]
            self._sums += _totals([tensor for _, tensor in pending])


def _totals(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return a number for each tensor that is not finite if an entry is not."""
    if tensors and all(t.is_cuda and t.dtype is not torch.float64 for t in tensors):
        return list(torch._foreach_norm(list(tensors), 1, dtype=torch.float32))
    # The fused norm is seventeen times slower than a sum on a CPU.
    return [
        t.sum(dtype=torch.float64 if t.dtype is torch.float64 else torch.float32) for t in tensors
    ]


def _not_finite(names: list[str], totals: list[Tensor]) -> list[str]:
    if not totals:
        return []
    finite = torch.stack([total.double() for total in totals]).isfinite().tolist()
    return [name for name, good in zip(names, finite, strict=True) if not good]
