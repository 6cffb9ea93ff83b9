"""Every product of a repeated step, compared with the same product in more digits."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rksp.ground.model import definite
from rksp.models.anatomy.attention_calls import (
    AttentionCall,
    AttentionTap,
    fused_attention,
    visible_logits,
)
from rksp.models.anatomy.attention_layouts import is_linear
from rksp.models.anatomy.chains import first_tensor
from rksp.models.anatomy.weight_view import at_least_float

_ROWS = 256  # rows of a product that are compared, evenly spaced
_Before = Callable[[nn.Module, tuple[object, ...]], tuple[object, ...] | None]
_After = Callable[[nn.Module, tuple[object, ...], object], object]
_EPS = torch.finfo(torch.float32).eps
_ALLOWED = 10.0  # times the rounding of single products, as a root of the mean square


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """A product that is not what its factors give.

    Attributes:
        module: Path of the module.
        what: `output`, `input gradient` or `weight gradient` of a module, or `attention`.
        error: In units of what rounding may do; infinite where the product is not finite, and the
            right one lies within the numbers of its type.
    """

    module: str
    what: str
    error: float


def audited(model: nn.Module, step: Callable[[], Tensor | None]) -> list[Defect]:
    """Return the defects of a forward and a backward pass, in the order of execution.

    Linear maps and fused attention are recomputed in float64 (those of 16 bits in float32) from
    their own factors, so that a defect shows where it is and nowhere else. Gradients of the model
    are left as they are.

    Args:
        model: The model.
        step: Runs the forward pass and returns the number to differentiate; None ends the audit.
    """
    audit = _Audit(model)
    with audit.watching():
        loss = step()
        if loss is not None and loss.requires_grad:
            trained = [p for p in model.parameters() if p.requires_grad]
            grads = torch.autograd.grad(loss, trained, allow_unused=True)
            for parameter, grad in zip(trained, grads, strict=True):
                audit.end(parameter, grad)
    return audit.found


class _Use(NamedTuple):
    """A call of a module: its inputs `[tokens, inputs]` and the gradient `[tokens, outputs]`.

    Those of an embedding are words `[tokens]`, which stand for rows of zeros with a one each.
    """

    path: str
    module: nn.Module
    inputs: Tensor
    grads: Tensor

    def factors(self, which: Tensor) -> tuple[Tensor, Tensor]:
        """Return what gives these rows of the weight's gradient, `[tokens, rows]` and the rest."""
        if self.inputs.is_floating_point():
            return self.grads[:, which], self.inputs
        is_one = self.inputs[:, None] == which
        if self.module.padding_idx is not None:
            is_one &= which != self.module.padding_idx
        return is_one.to(self.grads), self.grads


class _Audit:
    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.found: list[Defect] = []
        self._inside: list[tuple[str, list[Tensor]]] = []  # the calls that are running
        owners: dict[nn.Parameter, list[nn.Module]] = {}
        for module in model.modules():
            for parameter in module.parameters(recurse=False):
                owners.setdefault(parameter, []).append(module)
        self._owners = {
            p: set(of)
            for p, of in owners.items()
            if any(map(is_linear, of)) and all(is_linear(one) or _is_table(one) for one in of)
        }
        self._uses: dict[nn.Parameter, list[_Use]] = {}

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Hang the hooks, for a block that runs the passes."""
        with contextlib.ExitStack() as stack:
            for path, module in self.model.named_modules():
                before = module.register_forward_pre_hook(self._enter(path), prepend=True)
                after = module.register_forward_hook(self._leave(path), always_call=True)
                stack.callback(before.remove)
                stack.callback(after.remove)
            stack.enter_context(AttentionTap(self._attend))
            yield

    def end(self, parameter: nn.Parameter, grad: Tensor | None) -> None:
        """Compare the gradient of a weight with the sum of the products of its uses."""
        uses = self._uses.get(parameter, [])
        if grad is None or {one.module for one in uses} != self._owners.get(parameter):
            return  # as where a fused loss reads the weight of a head that is tied
        whole = grad.mT if type(uses[0].module).__name__ == "Conv1D" else grad
        which = torch.arange(0, len(whole), -(-len(whole) // _ROWS), device=whole.device)
        factors = zip(*[one.factors(which) for one in uses], strict=True)
        left, right = (torch.cat(parts) for parts in factors)
        kind = _worst(one.grads for one in uses)
        self._compare(uses[0].path, "weight gradient", whole[which], left.mT, right, kind)

    def _enter(self, path: str) -> _Before:
        def before(module: nn.Module, args: tuple[object, ...]) -> tuple[object, ...] | None:
            factors: list[Tensor] = []  # of this call: its input, later its output's gradient
            self._inside.append((path, factors))
            first = args[0] if args else None
            if not isinstance(first, Tensor):
                return None
            if _is_table(module):
                factors.append(first)
            if not is_linear(module):
                return None
            x = first.view_as(first)  # a view, whose gradient is that of this use alone
            factors.append(x.detach())
            if x.requires_grad:
                _hook(x, lambda grad: self._input_gradient(path, module, factors, grad))
            return (x, *args[1:])

        return before

    def _leave(self, path: str) -> _After:
        def after(module: nn.Module, args: tuple[object, ...], output: object) -> object:
            _, factors = self._inside.pop()
            y = first_tensor(output)
            if y is None or any(module.children()):
                return None
            if factors and is_linear(module):
                bias = getattr(module, "bias", None)
                # The bias too is rounded: it counts as one more pair of factors.
                left, right = factors[0], matrix_of(module).mT
                if bias is not None:
                    left = torch.cat([left, left.new_ones((*left.shape[:-1], 1))], -1)
                    right = torch.cat([right, bias.detach()[None].to(right)])
                self._compare(path, "output", at_least_float(y.detach()), left, right, y.dtype)
            if not (factors and y is output and y.requires_grad):
                return None
            y = y.view_as(y)
            _hook(y, lambda grad: self._output_gradient(path, module, factors, grad))
            return y

        return after

    def _output_gradient(self, path: str, module: Any, factors: list[Tensor], grad: Tensor) -> None:
        rows = grad.detach().reshape(-1, grad.shape[-1])
        factors.append(rows)
        if module.weight in self._owners and bool(rows.isfinite().all()):
            use = _Use(path, module, factors[0].flatten(0, grad.dim() - 2), rows)
            self._uses.setdefault(module.weight, []).append(use)

    def _input_gradient(
        self, path: str, module: nn.Module, factors: list[Tensor], grad: Tensor
    ) -> None:
        if len(factors) > 1:
            rows = factors[1]
            self._compare(path, "input gradient", grad, rows, matrix_of(module), rows.dtype)

    def _attend(self, call: AttentionCall) -> Tensor | None:
        if call.query is None or call.dropout or not torch.is_grad_enabled():
            return None
        path = next((path for path, _ in reversed(self._inside) if path), "")
        own = [one.view_as(one) for one in (call.query, definite(call.key), definite(call.value))]
        output = fused_attention(replace(call, query=own[0], key=own[1], value=own[2]))
        with torch.autocast(output.device.type, enabled=False):
            exact = _Attention(call)
            known = exact.output()
        kind = _worst((*own, output))
        self._judge(path, "attention", _first(output.detach()), *known, kind)
        if not output.requires_grad:
            return output
        expected: list[tuple[Tensor, Tensor]] = []
        output = output.view_as(output)
        _hook(output, lambda grad: expected.extend(exact.gradients(_first(grad))))

        def judge(place: int, grad: Tensor) -> None:
            self._judge(path, "attention", _first(grad), *expected[place], kind)

        for place, tensor in enumerate(own):
            if tensor.requires_grad:
                _hook(tensor, functools.partial(judge, place))
        return output

    def _compare(
        self, path: str, what: str, product: Tensor, left: Tensor, right: Tensor, kind: torch.dtype
    ) -> None:
        """Compare rows of a product `[…, m]` with left `[…, k]` times right `[k, m]`."""
        rows, factor = (one.detach().reshape(-1, one.shape[-1]) for one in (product, left))
        stride = -(-len(rows) // _ROWS)
        wide = _wide(kind)
        rows, factor, right = rows[::stride].to(wide), factor[::stride].to(wide), right.to(wide)
        if not bool(factor.isfinite().all() and right.isfinite().all()):
            return  # something before it is at fault
        with torch.autocast(rows.device.type, enabled=False):
            exact = factor @ right
            size = (factor.square() @ right.square() + exact.square()).sqrt()
        # Sums of k terms in float32 also round in the worst type of the factors.
        rounding = _rounding(kind, rows.device) + math.sqrt(len(right)) / 8 * _EPS
        self._judge(path, what, rows, exact, size, kind, rounding)

    def _judge(
        self,
        path: str,
        what: str,
        seen: Tensor,
        exact: Tensor,
        size: Tensor,
        kind: torch.dtype,
        rounding: float | None = None,
    ) -> None:
        """Add a defect if the root mean square over a row or a column of the error is too large."""
        if not bool(seen.isfinite().all()):
            if float(exact.abs().max()) <= torch.finfo(kind).max:
                self._add(path, what, math.inf)
            return  # it is large because of its factors
        unit = _rounding(kind, seen.device) if rounding is None else rounding
        # A processor may flush what is below the normal numbers, and rounds it coarsely if not.
        least = torch.finfo(kind).tiny * (torch.finfo(kind).eps if kind == torch.float16 else 1.0)
        error, size = (seen - exact).double().square(), (unit * size + least).double().square()
        worst = max(float((error.mean(dim) / size.mean(dim)).max()) for dim in (-1, -2)) ** 0.5
        if worst > _ALLOWED:
            self._add(path, what, worst)

    def _add(self, path: str, what: str, error: float) -> None:
        self.found.append(Defect(module=path, what=what, error=error))


class _Attention:
    """Attention on the first sequence of a call and its gradients, each with its size.

    The size is that of the terms whose sum the number is. It is what rounding is relative to. The
    gradients are those of FlashAttention (Dao et al., 2022, algorithm 4).
    """

    def __init__(self, call: AttentionCall) -> None:
        wide = _wide(definite(call.query).dtype)
        one = call.kept(1)
        self.q = definite(one.query).to(wide)
        heads = self.q.shape[-3]
        self.k, self.v = (
            _first(definite(part).detach()).to(wide).repeat_interleave(heads // part.shape[-3], -3)
            for part in (definite(call.key), definite(call.value))
        )
        self.groups = heads // definite(call.key).shape[-3]
        scores, visible = visible_logits(replace(one, query=self.q, key=self.k))
        self.p = scores.softmax(-1).where(visible.any(-1, keepdim=True), 0.0)
        self.factor = one.factor
        # A rounding of logits moves all probabilities of the row.
        terms = (self.q.square() @ self.k.square().mT).sqrt() * self.factor + scores.abs()
        self.size = self.p * (1 + terms.where(visible, 0.0).amax(-1, keepdim=True))

    def output(self) -> tuple[Tensor, Tensor]:
        """Return the output and its size, `[1, heads, queries, dim]`."""
        return self.p @ self.v, self.size @ self.v.abs()

    def gradients(self, grad: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return the gradients of query, key and value, each with its size."""
        g, p, size = grad.detach().to(self.q), self.p, self.size
        dp, delta = g @ self.v.mT, (g * (p @ self.v)).sum(-1, keepdim=True)
        terms = (g.square() @ self.v.square().mT).sqrt() + dp.abs() + delta.abs()
        ds, size_s = p * (dp - delta) * self.factor, size * terms * self.factor
        return [
            (ds @ self.k, size_s @ self.k.abs()),
            (self._folded(ds.mT @ self.q), self._folded(size_s.mT @ self.q.abs())),
            (self._folded(p.mT @ g), self._folded(size.mT @ g.abs())),
        ]

    def _folded(self, gradient: Tensor) -> Tensor:
        heads = gradient.shape[-3] // self.groups
        return gradient.reshape(-1, heads, self.groups, *gradient.shape[-2:]).sum(-3)


def matrix_of(module: nn.Module) -> Tensor:
    """Return the matrix of a linear module, `[outputs, inputs]`."""
    weight: Tensor = definite(getattr(module, "weight", None)).detach()
    return weight if isinstance(module, nn.Linear) else weight.mT


def _is_table(module: nn.Module) -> bool:
    """Tell whether a module is an embedding whose gradient is a plain sum."""
    return type(module) is nn.Embedding and not (module.sparse or module.scale_grad_by_freq)


def _worst(tensors: Iterable[Tensor]) -> torch.dtype:
    return max((one.dtype for one in tensors), key=lambda kind: torch.finfo(kind).eps)


def _hook(tensor: Tensor, call: Callable[[Tensor], None]) -> None:
    """Call with the gradient of a tensor, which stays as it is."""
    tensor.register_hook(call)  # type: ignore[no-untyped-call]  # torch's own


def _first(tensor: Tensor) -> Tensor:
    return tensor[:1] if tensor.dim() == 4 else tensor[None]


def _wide(kind: torch.dtype) -> torch.dtype:
    return torch.float32 if kind.itemsize < 4 else torch.float64


def _rounding(kind: torch.dtype, device: torch.device) -> float:
    is_tf32 = kind == torch.float32 and device.type == "cuda"
    if is_tf32 and torch.backends.cuda.matmul.allow_tf32:
        return 2.0**-10
    return torch.finfo(kind).eps
