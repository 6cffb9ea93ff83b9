"""Interventions that add to the loss: Koopman Spectral Shaping (KSS) and z-loss.

The first half is the differentiable side of the spectral score: reduced operators of blocks, and
their penalties. Sources: arXiv 2602.22988, §4 (KSS); the energy gain is the quantity of its
Theorem 1. These functions take a batch of layers and return a value for each layer.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from rksp.ground.errors import NotCovered
from rksp.ground.model import definite
from rksp.models.anatomy.chains import block_paths, first_tensor
from rksp.models.anatomy.parts import Router, find_anatomy
from rksp.models.anatomy.weight_view import at_least_float
from rksp.watch.interventions.base import Intervention
from rksp.watch.moment import Moment

_WORST_CONDITION = 1e6  # of the eigenvectors; above it an eigenvalue's gradient is noise
_LOWER, _UPPER, _TEMPERATURE = 0.90, 1.05, 20.0  # of the published penalty
_AMPLIFICATION = 100.0  # largest ‖G‖_F over the moduli's gradient; it is 1 for a normal operator


def reduced_operator(
    x: Tensor,
    y: Tensor,
    *,
    basis: Tensor | None = None,
    epsilon: float = 1e-5,
    is_exact: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the whitened operator of each layer, A = V C_yx Vᵀ with V (C_xx + ε s² I) Vᵀ = I.

    V is the inverse Cholesky factor, and s² the mean variance. The symmetric root of the literature
    differs from V by a rotation, so eigenvalues and Frobenius norm are the same. ε shrinks
    eigenvalues: a direction of variance v counts as v / (v + ε s²). It is relative to s², because
    an absolute one would hide how a block amplifies states that have nearly collapsed.

    The gradient flows through both x and y, so that it is that of A in all weights before the
    block, too.

    With `is_exact` there is no ε, as in the published A = Ỹ X̃⁺, whose spectrum is that of Y X⁺.
    Whitening is then in float64, and directions that rounding cannot tell from zero are left out,
    as in a pseudo-inverse.

    Args:
        x: States that enter the block, `[layers, tokens, width]`.
        y: States that leave it, of the same shape.
        basis: Orthonormal columns `[layers, width, rank]` to which both are restricted; constant.
        epsilon: ε.
        is_exact: Whiten without ε.

    Returns:
        A, `[layers, rank, rank]`, and a bool `[layers]` that says whether the factorization
        succeeded. Where it did not, A is that of x in place of whitened states, without a gradient
        through x.
    """
    # y's mean times the rounding errors of x's column sums would not be small beside collapsed x.
    x, y = (part - part.mean(-2, keepdim=True) for part in (x, y))
    if basis is not None:
        x, y = x @ basis, y @ basis
    wide = x.double() if is_exact else x
    covariance = wide.mT @ wide / (x.shape[-2] - 1)
    unit = torch.eye(covariance.shape[-1], dtype=covariance.dtype, device=covariance.device)
    if is_exact:
        kept = _above_rounding(covariance.detach(), x)
        covariance = kept @ covariance @ kept + (unit - kept) * _mean_variance(covariance.detach())
    else:
        kept = unit.expand_as(covariance)
        covariance = covariance + epsilon * _mean_variance(covariance) * unit
    usable = torch.linalg.cholesky_ex(covariance.detach()).info == 0
    covariance = torch.where(usable[:, None, None], covariance, unit)
    factor = torch.linalg.cholesky(covariance)
    inverse = torch.linalg.solve_triangular(factor, kept, upper=False).to(x)
    return inverse @ (y.mT @ (x @ (inverse.mT / (x.shape[-2] - 1)))), usable


def _mean_variance(covariance: Tensor) -> Tensor:
    return covariance.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None]


@torch.no_grad()
def _above_rounding(covariance: Tensor, x: Tensor) -> Tensor:
    unit = torch.eye(covariance.shape[-1], dtype=covariance.dtype, device=covariance.device)
    finite = covariance.isfinite().all(-1).all(-1)
    variances, vectors = torch.linalg.eigh(torch.where(finite[:, None, None], covariance, unit))
    count = max(x.shape[-2:])
    # numpy's pinv tolerance for singular values, but not below the accuracy of their squares.
    least = max((count * torch.finfo(x.dtype).eps) ** 2, count * torch.finfo(torch.float64).eps)
    kept: Tensor = vectors * (variances > least * variances[:, -1:]).unsqueeze(-2) @ vectors.mT
    return kept


@torch.no_grad()
def refine_basis(x: Tensor, basis: Tensor) -> Tensor:
    """Do one subspace iteration towards the leading principal directions of x.

    Args:
        x: `[layers, tokens, width]`.
        basis: `[layers, width, rank]`, from the last call.
    """
    x = x - x.mean(-2, keepdim=True)
    basis, _ = torch.linalg.qr(x.mT @ (x @ basis))
    return basis


def energy_gain(operator: Tensor) -> Tensor:
    """Return ‖A‖_F² / r, the mean square gain of a whitened state, `[layers]`."""
    return operator.square().sum((-2, -1)) / operator.shape[-1]


def excess_energy(operator: Tensor, *, upper: float = _UPPER) -> Tensor:
    """Return relu(‖A‖_F²/r − τ²), `[layers]`; it is zero for layers that amplify no more than τ."""
    return F.relu(energy_gain(operator) - upper**2)


def shaping_loss(moduli: Tensor, *, target: float, beta: float = 1.0) -> Tensor:
    """Return the published penalty on the eigenvalues' moduli `[layers, rank]`, one per layer.

    The penalty is Σ_j σ(20 (a_j − τ_u)) softplus(a_j − τ_u)² + β (m − γ)², where m is the soft
    share of moduli between τ_l = 0.9 and τ_u = 1.05. The softplus has no temperature, as published:
    at a = τ_u a mode still costs 0.24. β is not published; rksp uses 1.
    """
    over = moduli - _UPPER
    unstable = (torch.sigmoid(_TEMPERATURE * over) * F.softplus(over).square()).sum(-1)
    inside = torch.sigmoid(_TEMPERATURE * (moduli - _LOWER)) * torch.sigmoid(-_TEMPERATURE * over)
    return unstable + beta * (inside.mean(-1) - target).square()


def eigenvalue_moduli(operator: Tensor) -> tuple[Tensor, Tensor]:
    """Return |λ| of each layer's operator, with a bounded gradient.

    It is computed in float64 on the CPU, where the solver is. |λ| is √(re² + im² + 1e-12), so that
    a zero eigenvalue has a gradient. The gradient is G = V⁻ᴴ diag(g) Vᴴ (Magnus, 1985), bounded to
    ‖G‖_F ≤ 100 ‖g‖. It is zero for a layer whose eigenvectors have a condition number above 1e6,
    because near a defective operator it is noise.

    Args:
        operator: `[layers, rank, rank]`, finite.

    Returns:
        Moduli `[layers, rank]`, and a bool `[layers]` that says whether the gradient can be used.
    """
    apply: Callable[[Tensor], tuple[Tensor, Tensor]] = _Moduli.apply
    return apply(operator)


class _Moduli(torch.autograd.Function):
    """The moduli of the eigenvalues and their bounded gradient; see `eigenvalue_moduli`."""

    @staticmethod
    def forward(ctx: Any, operator: Tensor) -> tuple[Tensor, Tensor]:
        dense = operator.detach().to("cpu", torch.float64)
        finite = dense.isfinite().all(-1).all(-1)
        dense = torch.where(finite[:, None, None], dense, torch.zeros_like(dense))
        values, vectors = torch.linalg.eig(dense)
        moduli = (values.real**2 + values.imag**2 + 1e-12).sqrt()
        singular = torch.linalg.svdvals(vectors)
        usable = finite & (singular[:, 0] <= _WORST_CONDITION * singular[:, -1])
        ctx.save_for_backward(values, vectors, moduli, usable)
        usable = usable.to(operator.device)
        ctx.mark_non_differentiable(usable)
        return moduli.to(operator), usable

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> Tensor:
        values, vectors, moduli, usable = ctx.saved_tensors
        sensitivity = grad.to("cpu", torch.float64) * values / moduli
        unit = torch.eye(vectors.shape[-1], dtype=vectors.dtype).expand_as(vectors)
        safe = torch.where(usable[:, None, None], vectors, unit)
        full = torch.linalg.solve(safe.mH, sensitivity.unsqueeze(-1) * safe.mH).real
        bound = _AMPLIFICATION * sensitivity.abs().square().sum(-1).sqrt()
        size = full.square().sum((-2, -1)).sqrt()
        factor = torch.where(usable, (bound / size.clamp(min=1e-300)).clamp(max=1.0), 0.0)
        bounded: Tensor = full * factor[:, None, None]
        return bounded.to(grad)


_FEWEST = 8  # token states that a penalty needs
_FIRST_REFINEMENTS = 4  # iterations of a new random basis

# The defaults of each form. The published row is the paper's (it gives weights 0.01 to 0.20, a
# random half of the layers, every 10 to 20 steps). The energy row kept all of 10 runs without norms
# stable (width 64, 4 blocks, rates 0.005 to 0.01); all 10 diverge without it. Weight 10 lost 3 of 6
# runs, half of the blocks 4 of 6, rank 32 on 128 tokens 5 of 6, every fourth step 3 of 4.
_DEFAULTS: dict[str, dict[str, float]] = {
    "energy": {"weight": 3.0, "every": 1, "rank": 256, "share": 1.0},
    "published": {"weight": 0.15, "every": 10, "rank": 32, "share": 0.5, "tokens": 2048},
}
_PER_DIRECTION = 4  # token states, where their number is not given


class _Penalty(Intervention):
    """Adds to the loss of a micro-batch what was captured in its forward pass."""

    what: str  # it did in a step

    def __post_init__(self) -> None:
        super().__post_init__()
        self._noted: list[Mapping[str, Tensor | float]] = []  # of every micro-batch of a step
        self._clear()

    @abstractmethod
    def _clear(self) -> None:
        """Forget what was captured."""

    def arm(self, moment: Moment) -> Sequence[RemovableHandle]:
        self._noted.clear()
        self._clear()
        # Activation checkpointing runs the blocks again in the backward pass. States captured
        # there must not reach the next micro-batch.
        return [moment.model.register_forward_pre_hook(lambda *_: self._clear())]

    def before_update(self, moment: Moment) -> None:
        """Record the means over micro-batches, now that the backward pass has waited for them."""
        if self._noted:
            count, names = len(self._noted), self._noted[0]
            means = {k: math.fsum(float(n[k]) for n in self._noted) / count for k in names}
            self.record(moment, self.what, moved_weights=False, **means)
        self._noted.clear()


@dataclass(eq=False)
class KSS(_Penalty):
    """Adds `weight` times the mean over the chosen blocks of a penalty on their operator A.

    A is fitted on a sub-sample of tokens of the step's own forward pass: the states that enter a
    block and those that leave it. The gradient flows through both; up to rksp 0.10 it left out the
    former, and was up to 1,500 times too large for the weights before the block.

    Runs that learn amplify states more than the penalty allows, so that it works against
    learning, and it acts through the same step of the optimizer that makes a run fail. Step clip
    bounds the step instead.

    Forms:
        energy: relu(‖A‖_F²/r − 1.05²), the quantity of Theorem 1 of arXiv 2602.22988. It needs no
            decomposition.
        published: That paper's penalty on the eigenvalues of A (`shaping_loss`), with A
            whitened exactly as in the paper; `energy` adds 1e-5 of the mean variance. Layers
            whose eigenvalue gradients cannot be trusted are left out of a step.

    If the energy form acts every n steps, its penalty is multiplied by n, so that `weight` is per
    step. The published weight is not multiplied. The caller divides the penalty by the
    number of micro-batches together with the loss.

    Args:
        form: `energy` or `published`.
        weight: α.
        every: Steps between two penalties.
        tokens: Token states per block and micro-batch; None means four per direction, or 2,048 for
            the published form.
        rank: Number of leading principal directions of the entering states: all of them up to this
            width, and never more than half the number of tokens.
        share: Share of the blocks, drawn anew each time.
        target: γ of the published form, the share of eigenvalues near the unit circle. The paper
            gives 0.3 to 0.5, which depends on rank and model.
        seed: Seed of the choice of blocks.
    """

    name = "kss"
    form: Literal["energy", "published"] = "energy"
    weight: NonNegativeFloat | None = None
    every: PositiveInt | None = None
    tokens: Annotated[int, Field(ge=_FEWEST)] | None = None
    rank: PositiveInt | None = None
    share: Annotated[float, Field(gt=0, le=1)] | None = None
    target: float = 0.4
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for option, usual in _DEFAULTS[self.form].items():
            if getattr(self, option) is None:
                setattr(self, option, usual)
        self._generator = torch.Generator().manual_seed(self.seed)
        self._blocks: list[nn.Module] = []
        self._bases: dict[int, Tensor] = {}
        self.what = f"added the {self.form} penalty to the loss"

    def bind(self, model: nn.Module, optimizer: Optimizer) -> None:
        self._blocks = [model.get_submodule(path) for path in block_paths(model)]
        if not self._blocks:
            raise NotCovered(
                "KSS needs a list of blocks, and this model has none; choose another intervention."
            )

    def arm(self, moment: Moment) -> Sequence[RemovableHandle]:
        hooks = [*super().arm(moment)]
        if moment.step % definite(self.every):
            return hooks
        count = max(1, round(definite(self.share) * len(self._blocks)))
        chosen = torch.randperm(len(self._blocks), generator=self._generator)[:count].tolist()
        for index in sorted(chosen):
            hook = partial(self._capture, index, moment.step)
            hooks.append(self._blocks[index].register_forward_hook(hook, with_kwargs=True))
        return hooks

    def _clear(self) -> None:
        self._pairs: dict[int, tuple[Tensor, Tensor]] = {}

    def _capture(
        self, index: int, step: int, module: nn.Module, args: object, kwargs: object, output: object
    ) -> None:
        x, y = first_tensor((args, kwargs)), first_tensor(output)
        if torch.is_grad_enabled() and x is not None and y is not None and x.shape == y.shape:
            self._pairs[index] = (self._sample(x, step), self._sample(y, step))

    def _sample(self, states: Tensor, step: int) -> Tensor:
        """Return evenly spaced rows, shifted at every step; an odd stride visits all positions."""
        rows = states.reshape(-1, states.shape[-1])
        tokens = self.tokens or _PER_DIRECTION * min(definite(self.rank), states.shape[-1])
        stride = max(1, len(rows) // tokens)
        stride -= stride % 2 == 0
        first = step % stride
        rows = rows[first : first + tokens * stride : stride]
        return at_least_float(rows)

    def penalty(self, moment: Moment) -> Tensor | None:
        if not self._pairs:
            return None
        layers = sorted(self._pairs)
        first = self._pairs[layers[0]][0].shape
        layers = [layer for layer in layers if self._pairs[layer][0].shape == first]
        x = torch.stack([self._pairs[layer][0] for layer in layers])
        y = torch.stack([self._pairs[layer][1] for layer in layers])
        self._pairs.clear()
        if x.shape[1] < _FEWEST:
            return None
        with torch.autocast(x.device.type, enabled=False):
            operator, usable = reduced_operator(
                x, y, basis=self._basis(x.detach(), layers), is_exact=self.form == "published"
            )
            if self.form == "energy":
                values = excess_energy(operator)
            else:
                moduli, steady = eigenvalue_moduli(operator)
                values, usable = shaping_loss(moduli, target=self.target), usable & steady
        count = usable.sum().clamp(min=1)
        mean = torch.where(usable, values, torch.zeros_like(values)).sum() / count
        scale = definite(self.weight) * (1 if self.form == "published" else definite(self.every))
        self._noted.append(
            {"penalty": mean.detach(), "energy_gain": energy_gain(operator.detach()).max()}
            | {"layers": count, "skipped": (~usable).sum()}
        )
        return scale * mean

    def _basis(self, x: Tensor, layers: list[int]) -> Tensor | None:
        width, rank = x.shape[-1], min(definite(self.rank), (x.shape[1] - 1) // 2)
        if width <= rank:
            return None
        rounds = 1
        for layer in layers:
            if layer not in self._bases or self._bases[layer].shape != (width, rank):
                fresh = torch.randn(width, rank, generator=self._generator, dtype=torch.float64)
                self._bases[layer] = fresh.to(x)
                rounds = _FIRST_REFINEMENTS
        basis = torch.stack([self._bases[layer] for layer in layers])
        for _ in range(rounds):
            basis = refine_basis(x, basis)
        self._bases.update(zip(layers, basis.unbind(), strict=True))
        return basis


@dataclass(eq=False)
class ZLoss(_Penalty):
    """Adds `output` · mean(log Z²) of the output logits and `router` times that of each router.

    Sources: output, 1e-4, PaLM (Chowdhery et al., 2022, §5); routers, 1e-3, ST-MoE (Zoph et al.,
    2022, eq. 5), the mean over each router's tokens summed over routers. log Z is taken over all
    positions, padding included, in float32. Router logits are recomputed from the states that enter
    the router's block, because the return values of routers change between releases. Routers with
    sigmoid scores have no log Z and are left out.

    The caller divides the penalty by the number of micro-batches together with the loss.

    Args:
        output: Coefficient of the output logits; 0 leaves them out.
        router: Coefficient of the routers; 0 leaves them out.
    """

    name, what = "z_loss", "added a penalty on log Z to the loss"
    output: NonNegativeFloat = 1e-4
    router: NonNegativeFloat = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        self._routers: list[Router] = []

    def bind(self, model: nn.Module, optimizer: Optimizer) -> None:
        routers = find_anatomy(model).routers if self.router else ()
        self._routers = [router for router in routers if not router.is_sigmoid]
        if not self.output and not self._routers:
            raise NotCovered(
                "z-loss needs a coefficient of the output, or one of the routers in a model that "
                f"has them, got output={self.output}, router={self.router}; give output=1e-4."
            )

    def arm(self, moment: Moment) -> Sequence[RemovableHandle]:
        hooks = [*super().arm(moment)]
        for router in self._routers:
            hook = partial(self._of_router, moment.model.get_submodule(router.path))
            hooks.append(router.block.register_forward_pre_hook(hook, with_kwargs=True))
        if self.output:
            hooks.append(moment.model.register_forward_hook(self._of_output))
        return hooks

    def _of_output(self, module: nn.Module, args: object, output: object) -> None:
        logits = getattr(output, "logits", None)
        logits = first_tensor(output) if logits is None else logits
        if torch.is_grad_enabled() and logits is not None:
            self._terms["output"].append(_mean_square_log_z(logits))

    def _of_router(self, router: Any, module: nn.Module, args: object, kwargs: object) -> None:
        x = first_tensor((args, kwargs))
        if not torch.is_grad_enabled() or x is None:
            return
        bias = getattr(router, "bias", None)
        bias = None if bias is None else at_least_float(bias)
        with torch.autocast(x.device.type, enabled=False):
            logits = F.linear(at_least_float(x), at_least_float(router.weight), bias)
        self._terms["router"].append(_mean_square_log_z(logits))

    def penalty(self, moment: Moment) -> Tensor | None:
        weights = {"output": self.output, "router": self.router}
        sums = {name: torch.stack(terms).sum() for name, terms in self._terms.items() if terms}
        self._clear()
        if not sums:
            return None
        self._noted.append({f"{name}_log_z_square": term.detach() for name, term in sums.items()})
        return torch.stack([weights[name] * term for name, term in sums.items()]).sum()

    def _clear(self) -> None:
        self._terms: dict[str, list[Tensor]] = {"output": [], "router": []}


def _mean_square_log_z(logits: Tensor) -> Tensor:
    return at_least_float(logits).logsumexp(-1).square().mean()
