"""Step clip: no step may move the outputs of a matrix by more than a share of their size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from rksp.ground.errors import InputError, NotCovered
from rksp.watch.groups import sums_of_squares
from rksp.watch.interventions.base import Intervention
from rksp.watch.interventions.updates import Updates, told_of
from rksp.watch.moment import Moment
from rksp.watch.output_change import FLOOR, SHARES, OutputChange


@dataclass(eq=False)
class StepClip(Intervention):
    """Scales every matrix's update ΔW by min(1, δ ‖W x‖ / ‖ΔW x‖) after the optimizer's step.

    x are `tokens` inputs of the matrix in the step's own forward pass (`OutputChange`): of an
    embedding the rows of the sampled tokens, of experts their routed ones. Queries, keys and values
    that share a parameter are scaled apart. Any other tensor moves by at most δ of its own norm,
    which counts as at least that of entries of one, and a bias by at most δ of its outputs.

    What a step changes in the outputs was bounded or set before: by the change of representations
    (Kosson et al., arXiv 2410.23922), by relative updates of layers (Fromage, arXiv 2002.03432) or
    by norms of modules (arXiv 2405.14813, Scion 2502.07529), and for attention's logits alone
    (arXiv 2511.21377). New here is that it is one-sided, measured on `tokens` inputs, follows the
    schedule, goes around any optimizer, and that runs were counted with it and without. In longer
    runs the update bound saves more for less time.

    Biases and norms' gains move by no larger a share of their step than the matrices do in the
    geometric mean, and embeddings that a norm reads at once (BERT's) than the matrix scaled most.
    Where they ran ahead, what they add to all tokens alike drowned within 30 steps what tells them
    apart: BERT stayed at its labels' frequencies. Other embeddings start small beside what is added
    to them; held back, they harm runs that learn (OLMo 2).

    δ falls with the learning rate: by the rate over the largest so far. A bound that stays lets all
    outputs move by δ until the end of a schedule, where the optimizer alone would settle: with one,
    step clip did not save GPT-NeoX and OLMo 2. Where sizes counted as at least 0.01 instead of one,
    it held back what starts small beside what it is added to, and harmed runs that learn: the
    embeddings of OLMo 2, the queries and keys of BERT, the positions of ViT.

    A run in which nothing is scaled is bitwise that of the optimizer alone. What the optimizer
    keeps (moments) stays. Give it before interventions that change weights themselves.

    Args:
        delta: δ at the largest learning rate.
        tokens: Inputs sampled of every matrix.
    """

    name = "step_clip"
    delta: PositiveFloat = 0.05
    tokens: PositiveInt = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        self._outputs, self._updates = OutputChange(self.tokens), Updates()
        self._scaled: Counter[str] = Counter()
        self._steps, self._highest = 0, 0.0

    def bind(self, model: nn.Module, optimizer: Optimizer) -> None:
        self._outputs.bind(model)
        if not self._outputs.uses:
            raise NotCovered("Step clip needs a matrix that is trained, and this model has none.")
        self._updates.bind(optimizer)
        self._named = {p: name for name, p in model.named_parameters() if p.requires_grad}
        tables = [m.weight for m in model.modules() if isinstance(m, nn.Embedding)]
        self._matrices = {use.parameter for use in self._outputs.uses}.difference(tables)
        self._normed = {p for module in model.modules() for p in _normed_at_once(module)}
        self._partners: dict[nn.Parameter, nn.Parameter] = {}
        for module in model.modules():
            bias, weight = module._parameters.get("bias"), module._parameters.get("weight")
            if bias is not None and weight is not None:
                self._partners[bias] = weight

    def arm(self, moment: Moment) -> Sequence[RemovableHandle]:
        self._updates.forget()
        return self._outputs.arm(moment.step)

    def before_update(self, moment: Moment) -> None:
        seen = {use.parameter for use in self._outputs.uses if use.sampled}
        if not seen:
            raise InputError(
                "Step clip saw no input of any matrix; bind it before torch.compile, and call the "
                "model inside of the step."
            )
        self._updates.remember([p for p in self._named if p.grad is not None], measured=seen)

    @torch.no_grad()
    def after_update(self, moment: Moment) -> None:
        if not self._updates.moving:
            return
        self._steps += 1
        delta = self._bound(moment)
        factors = self._factors(moment, delta)
        found = [f.min() for p, f in factors.items() if p in self._matrices] or [torch.ones(())]
        lowest, mean = float(min(found)), float(torch.stack(found).log().mean().exp())
        least, scaled = 1.0, set()
        for parameter, factor in factors.items():
            if parameter in self._normed:
                factor = factor.clamp(max=lowest)
            elif parameter.dim() == 1:
                factor = factor.clamp(max=mean)
            if float(factor.min()) < 1.0:
                transposed = self._outputs.is_transposed(parameter)
                self._updates.scale(parameter, factor, is_transposed=transposed)
                scaled.add(parameter)
                least = min(least, float(factor.min()))
        if scaled:
            self._scaled.update(self._named[parameter] for parameter in scaled)
            what = "scaled updates that moved outputs too far"
            self.record(moment, what, scaled=float(len(scaled)), least=least, delta=delta)

    def _factors(self, moment: Moment, delta: float) -> dict[nn.Parameter, Tensor]:
        """Return by what each update is to be scaled, `[rows]` or `[1]` on the host."""
        self._outputs.measure()
        moment.shared[SHARES] = (self._outputs.names, self._outputs.shares(FLOOR))
        rows = self._outputs.of_parameters(self._outputs.shares())
        own = self._own_shares()
        parts = [*rows.items(), *own.items()]
        host = torch.cat([part for _, part in parts]).cpu()  # the one read of a step
        lengths = [len(part) for _, part in parts]
        factors: dict[nn.Parameter, Tensor] = {}
        for (parameter, _), part in zip(parts, torch.split(host, lengths), strict=True):
            known = part[part.isfinite()]
            if len(known):
                part = torch.where(part.isfinite(), part, known.max())
                factors.setdefault(parameter, torch.where(part > delta, delta / part, 1.0))
        return factors

    def _bound(self, moment: Moment) -> float:
        rate = moment.learning_rate
        if rate is None:
            return self.delta
        self._highest = max(self._highest, rate)
        return self.delta * rate / self._highest if self._highest > 0 else self.delta

    def _own_shares(self) -> dict[nn.Parameter, Tensor]:
        """Return ‖ΔW‖ over the size of W, of all tensors that no product measured."""
        seen = {use.parameter for use in self._outputs.uses if use.sampled}
        others = [p for p in self._updates.copies if p not in seen]
        if not others:
            return {}
        before = [self._updates.copies[p] for p in others]
        moved = sums_of_squares([[p.detach() - old] for p, old in zip(others, before, strict=True)])
        size = sums_of_squares([[old] for old in before])
        least = torch.tensor([float(p.numel()) for p in others]).to(size)
        partners = [self._partner(p) for p in others]
        for index, partner in enumerate(partners):
            if partner is not None:
                least[index] = torch.maximum(least[index], others[index].numel() * partner)
        found = (moved / torch.maximum(size, least)).sqrt()
        return {p: found[index : index + 1] for index, p in enumerate(others)}

    def _partner(self, parameter: nn.Parameter) -> Tensor | None:
        """Return the mean square of the outputs that a bias is added to, if it is one."""
        weight = self._partners.get(parameter)
        if weight is None:
            return None
        if weight.dim() == 1:
            return sums_of_squares([[self._updates.copies.get(weight, weight)]])[0] / weight.numel()
        return self._outputs.mean_square(weight)

    def closing(self) -> str:
        return told_of(self.name, self._scaled, self._steps)


def _normed_at_once(module: nn.Module) -> set[nn.Parameter]:
    parts = list(module.children())
    tables = {p for part in parts if isinstance(part, nn.Embedding) for p in part.parameters()}
    rest = {p for part in parts for p in part.parameters()} - tables
    return tables if rest and all(p.dim() == 1 for p in rest) else set()
