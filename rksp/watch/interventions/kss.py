"""Koopman Spectral Shaping: a penalty on how much blocks amplify their states."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from rksp.ground.errors import InputError, NotCovered
from rksp.models.anatomy.chains import block_paths, first_tensor
from rksp.models.anatomy.weight_view import at_least_float
from rksp.watch.interventions.base import Intervention
from rksp.watch.interventions.koopman import (
    eigenvalue_moduli,
    energy_gain,
    excess_energy,
    reduced_operator,
    refine_basis,
    shaping_loss,
)
from rksp.watch.interventions.ledger import record_means
from rksp.watch.moment import Moment

Form = Literal["energy", "published", "random"]
_FEWEST = 8  # token states that a penalty needs
_FIRST_REFINEMENTS = 4  # iterations of a new random basis

# The defaults of each form. The published row is the paper's (it gives weights 0.01 to 0.20, a
# random half of the layers, every 10 to 20 steps). The energy row kept all of 10 runs without norms
# stable (width 64, 4 blocks, rates 0.005 to 0.01); all 10 diverge without it. Weight 10 lost 3 of 6
# runs, half of the blocks 4 of 6, rank 32 on 128 tokens 5 of 6, every fourth step 3 of 4.
_DEFAULTS: dict[str, dict[str, float]] = {
    "energy": {"weight": 3.0, "every": 1, "rank": 256, "share": 1.0},
    "published": {"weight": 0.15, "every": 10, "rank": 32, "share": 0.5},
}
_DEFAULTS["random"] = _DEFAULTS["energy"]
_TOKENS = {"published": 2048}  # other forms take four per direction
_PER_DIRECTION = 4


class KSS(Intervention):
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
        published: That paper's penalty on the eigenvalues of A (`koopman.shaping_loss`), with A
            whitened exactly as in the paper; the other forms add 1e-5 of the mean variance. Layers
            whose eigenvalue gradients cannot be trusted are left out of a step.
        random: The negative control, with the states, the operator, the cost and the gradient size
            on A of `energy`, but in a random direction.

    If an energy or random form acts every n steps, its penalty is multiplied by n, so that `weight`
    is per step. The published weight is not multiplied. The caller divides the penalty by the
    number of micro-batches together with the loss.

    Args:
        form: `energy`, `published` or `random`.
        weight: α.
        every: Steps between two penalties.
        tokens: Token states per block and micro-batch; None means four per direction, or 2,048 for
            the published form.
        rank: Number of leading principal directions of the entering states: all of them up to this
            width, and never more than half the number of tokens.
        share: Share of the blocks, drawn anew each time.
        target: γ of the published form, the share of eigenvalues near the unit circle. The paper
            gives 0.3 to 0.5, which depends on rank and model.
        seed: Seed of the choice of blocks and of the random form.
    """

    name = "kss"

    def __init__(
        self,
        form: Form = "energy",
        weight: float | None = None,
        every: int | None = None,
        tokens: int | None = None,
        rank: int | None = None,
        share: float | None = None,
        target: float = 0.4,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if form not in _DEFAULTS:
            raise InputError(f"KSS has the forms {', '.join(_DEFAULTS)}, got form={form!r}.")
        usual = _DEFAULTS[form]
        self.form, self.target = form, target
        self.weight = usual["weight"] if weight is None else weight
        self.every = int(usual["every"]) if every is None else every
        self.tokens = _TOKENS.get(form) if tokens is None else tokens
        self.rank = int(usual["rank"]) if rank is None else rank
        self.share = usual["share"] if share is None else share
        if self.weight < 0 or self.every < 1 or self.rank < 1 or not 0 < self.share <= 1:
            raise InputError(
                "KSS needs weight >= 0, every >= 1, rank >= 1 and 0 < share <= 1, got "
                f"weight={self.weight}, every={self.every}, rank={self.rank}, share={self.share}."
            )
        if self.tokens is not None and self.tokens < _FEWEST:
            raise InputError(f"KSS needs tokens >= {_FEWEST}, got tokens={self.tokens}.")
        self._generator = torch.Generator().manual_seed(seed)
        self._blocks: list[nn.Module] = []
        self._pairs: dict[int, tuple[Tensor, Tensor]] = {}
        self._bases: dict[int, Tensor] = {}
        self._noted: list[Mapping[str, Tensor | float]] = []
        self._seconds = 0.0

    def bind(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Find the model's blocks.

        Raises:
            NotCovered: The model has no list of blocks.
        """
        self._blocks = [model.get_submodule(path) for path in block_paths(model)]
        if not self._blocks:
            raise NotCovered(
                "KSS needs a list of blocks, and this model has none; choose another intervention."
            )

    def arm(self, moment: Moment) -> Sequence[RemovableHandle]:
        """Capture the states of the chosen blocks, at every `every`-th step."""
        self._forget()
        if moment.step % self.every:
            return ()
        count = max(1, round(self.share * len(self._blocks)))
        chosen = torch.randperm(len(self._blocks), generator=self._generator)[:count].tolist()
        # Activation checkpointing runs the blocks again in the backward pass. States captured
        # there must not reach the next micro-batch.
        fresh = moment.model.register_forward_pre_hook(lambda *_: self._pairs.clear())
        return [
            fresh,
            *(
                self._blocks[index].register_forward_hook(
                    self._capture(index, moment.step), with_kwargs=True
                )
                for index in sorted(chosen)
            ),
        ]

    def _forget(self) -> None:
        self._pairs.clear()
        self._noted.clear()
        self._seconds = 0.0

    def _capture(self, index: int, step: int):
        def hook(module: nn.Module, args: tuple, kwargs: dict, output: object) -> None:
            x, y = first_tensor((args, kwargs)), first_tensor(output)
            if torch.is_grad_enabled() and x is not None and y is not None and x.shape == y.shape:
                self._pairs[index] = (self._sample(x, step), self._sample(y, step))

        return hook

    def _sample(self, states: Tensor, step: int) -> Tensor:
        """Return evenly spaced rows, shifted at every step; an odd stride visits all positions."""
        rows = states.reshape(-1, states.shape[-1])
        tokens = self.tokens or _PER_DIRECTION * min(self.rank, states.shape[-1])
        stride = max(1, len(rows) // tokens)
        stride -= stride % 2 == 0
        first = step % stride
        rows = rows[first : first + tokens * stride : stride]
        return at_least_float(rows)

    def penalty(self, moment: Moment) -> Tensor | None:
        """Return the weighted penalty of the captured states, or None."""
        if not self._pairs:
            return None
        start = time.perf_counter()
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
            values, usable = self._values(operator, usable)
        count = usable.sum().clamp(min=1)
        mean = torch.where(usable, values, torch.zeros_like(values)).sum() / count
        scale = self.weight * (1 if self.form == "published" else self.every)
        self._noted.append(
            {"penalty": mean.detach(), "energy_gain": energy_gain(operator.detach()).max()}
            | {"layers": count, "skipped": (~usable).sum()}
        )
        self._seconds += time.perf_counter() - start
        return scale * mean

    def _basis(self, x: Tensor, layers: list[int]) -> Tensor | None:
        """Return the leading directions of each layer, refined by one more iteration."""
        width, rank = x.shape[-1], min(self.rank, (x.shape[1] - 1) // 2)
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

    def _values(self, operator: Tensor, usable: Tensor) -> tuple[Tensor, Tensor]:
        """Return the form's penalty of every layer, and which layers count."""
        if self.form == "energy":
            return excess_energy(operator), usable
        if self.form == "published":
            moduli, steady = eigenvalue_moduli(operator)
            return shaping_loss(moduli, target=self.target), usable & steady
        with torch.no_grad():
            pull = torch.randn(operator.shape, generator=self._generator).to(operator)
            pull /= pull.square().sum((-2, -1), keepdim=True).sqrt()
            strength = 2 / operator.shape[-1] * operator.square().sum((-2, -1)).sqrt()
            strength = torch.where(excess_energy(operator) > 0, strength, 0.0)
        return strength * (pull * operator).sum((-2, -1)), usable

    def before_update(self, moment: Moment) -> None:
        """Record the step's action, now that the backward pass has waited for the numbers."""
        what = f"added the {self.form} penalty to the loss"
        record_means(self, moment, what, self._noted, spent=self._seconds)
        self._forget()
