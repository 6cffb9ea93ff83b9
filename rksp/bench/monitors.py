"""What monitors and interventions cost, as a share of a training step."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.optim import Optimizer

from rksp.datasets.tasks import make_task
from rksp.errors import NotCovered
from rksp.interventions.registry import make_intervention
from rksp.models.zoo import build_member
from rksp.monitors.base import Moment
from rksp.monitors.registry import MONITORS, make_monitors
from rksp.monitors.watch import Watch
from rksp.recipe import Recipe
from rksp.training import Companion, train
from rksp.training.runner import Beside

# 25.5 million parameters. Monitors of weights cost the same at any batch, so 1,024 tokens a step
# make their share larger than it is in real training.
SHAPE = {
    "hidden_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "vocab_size": 256,
    "max_position_embeddings": 256,
}
BATCH, LENGTH = 4, 256
# Line → steps between two actions that its cost is spread over.
INTERVENTIONS = {
    "kss:every=1": 1,
    "kss:form=published,every=1": 10,
    "msign:every=1,scope=attention": 100,
    "msign:every=1,scope=all": 100,
    "qk_clip": 1,
    "clip": 1,
    "zclip": 1,
    "adagc": 1,
    "z_loss": 1,
}


@dataclass(slots=True, kw_only=True)
class _Case:
    """One kind of step: what goes along with it, and its times so far."""

    name: str
    kind: str
    every: int
    companion: Companion
    reason: str | None = None
    seconds: list[float] = field(default_factory=list)


class _Rotation(Companion):
    """Gives every step to the next case in turn, so that a slow minute slows all of them."""

    def __init__(self, cases: list[_Case]) -> None:
        self.cases = cases
        self._turn: list[_Case] = []
        self._case = cases[0]
        self._started = 0.0

    def bind(self, model: nn.Module, optimizer: Optimizer, recipe: Recipe) -> None:
        for case in self.cases:
            try:
                case.companion.bind(model, optimizer, recipe)
            except NotCovered as error:
                case.reason = str(error)
            if isinstance(case.companion, Beside):
                case.reason = next(iter(case.companion.watch.silent.values()), case.reason)
        self._turn = [case for case in self.cases if case.reason is None]

    def begin(self, moment: Moment) -> None:
        self._case = self._turn[moment.step % len(self._turn)]
        self._started = time.perf_counter()
        self._case.companion.begin(moment)

    def penalty(self, moment: Moment) -> Tensor | None:
        return self._case.companion.penalty(moment)

    def after_backward(self, moment: Moment) -> None:
        self._case.companion.after_backward(moment)

    def before_update(self, moment: Moment) -> bool:
        return self._case.companion.before_update(moment)

    def after_update(self, moment: Moment) -> None:
        self._case.companion.after_update(moment)
        if moment.step >= len(self._turn):  # the first round pays for warm starts
            self._case.seconds.append(time.perf_counter() - self._started)


def monitor_cost(
    shape: dict[str, object] | None = None,
    *,
    batch_size: int = BATCH,
    length: int = LENGTH,
    rounds: int = 3,
) -> list[dict[str, object]]:
    """Times training steps: bare, sampled by each monitor, and under each intervention.

    All in one run, a step of each kind in turn. Times are medians over `rounds`; a share is the
    time over the bare step's, spread over the cadence, and can be negative by noise.

    Returns:
        A row each: `name`, `kind` (step, monitor, intervention or sum), `every`, `step_ms`,
        `share`; or `reason` where it does not apply to this model.
    """
    cases = [_Case(name="bare step", kind="step", every=1, companion=Companion())]
    for name, monitor in MONITORS.items():
        beside = Beside(Watch(make_monitors([f"{name}:every=1"])), [], [], None)
        cases.append(
            _Case(name=name, kind="monitor", every=monitor.default_every, companion=beside)
        )
    for line, every in INTERVENTIONS.items():
        beside = Beside(Watch([]), [make_intervention(line)], [], None)
        cases.append(_Case(name=line, kind="intervention", every=every, companion=beside))

    recipe = Recipe(
        learning_rate=1e-4,
        max_steps=len(cases) * (rounds + 1),
        schedule="constant",
        batch_size=batch_size,
        sequence_length=length,
    )
    batch = make_task("bytes", length=length).batches(1, batch_size, seed=0)[0]
    model = build_member("zoo_pre_ln", shape or SHAPE, seed=0)
    train(model, [batch] * recipe.max_steps, recipe, companion=_Rotation(cases))

    bare = statistics.median(cases[0].seconds)
    rows = [_row(case, bare) for case in cases]
    monitors = [row["share"] for row in rows if row["kind"] == "monitor" and "share" in row]
    return [*rows, {"name": "all monitors", "kind": "sum", "share": sum(monitors)}]


def _row(case: _Case, bare: float) -> dict[str, object]:
    row: dict[str, object] = {"name": case.name, "kind": case.kind, "every": case.every}
    if case.reason is not None:
        return row | {"reason": case.reason}
    seconds = statistics.median(case.seconds)
    share = 1.0 if case.kind == "step" else (seconds / bare - 1) / case.every
    return row | {"step_ms": 1e3 * seconds, "share": share}
