"""What a script sets: of its optimizers, its modules and its steps, and when that changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn
from torch.optim import Optimizer

from rksp.recipe.optimizers.groups import highest_rate

_OF_GROUPS = ("weight_decay", "momentum", "betas", "eps", "maximize", "nesterov", "amsgrad")
_EVERY, _EARLY = 5, 200  # steps between two looks at modules, ten times as many after the first
_FACTOR = 2.5  # by which a rate changes at once, and no schedule's does
_NOT_LATER = 60  # steps in which a change counts as new


@dataclass(frozen=True, slots=True)
class Change:
    """A setting that is not what it was."""

    step: int
    name: str
    before: object
    now: object

    def __str__(self) -> str:
        before, now = self.before, self.now
        if self.name == "learning rate" and isinstance(now, float) and isinstance(before, float):
            return f"the learning rate × {now / before:.3g} at step {self.step}"
        return f"{self.name} from {_said(before)} to {_said(now)} at step {self.step}"

    @property
    def rises(self) -> bool:
        """Whether it is a number, and larger than it was."""
        before, now = self.before, self.now
        return isinstance(before, int | float) and isinstance(now, int | float) and now > before


@dataclass(slots=True)
class Settings:
    """Follows the settings of a run."""

    model: nn.Module
    changes: list[Change] = field(default_factory=list)
    _known: dict[str, object] = field(default_factory=dict)
    _peak: float = 0.0

    def note(
        self,
        step: int,
        optimizers: Sequence[Optimizer],
        passing: Mapping[str, object],
        *,
        rate: bool,
    ) -> None:
        """Note the settings of a step.

        Args:
            step: Its number.
            optimizers: Those of the run.
            passing: What is seen of the step itself (`passes`, `rows`, `clip`).
            rate: Whether a change of the learning rate is no warm-up.
        """
        now = dict(passing)
        groups = [group for one in optimizers for group in one.param_groups]
        for name in _OF_GROUPS:
            values = [group[name] for group in groups if name in group]
            if values:
                now[name.replace("_", " ")] = max(values)
        peak = highest_rate(*optimizers)
        now["learning rate"] = peak
        if step % (_EVERY if step < _EARLY else 10 * _EVERY) == 0:
            now |= self._of_modules()
        for name, value in now.items():
            before = self._known.get(name, value)
            if value == before:
                continue
            # A schedule that restarts comes back to where it was.
            if name != "learning rate" or (rate and _jumps(before, peak, self._peak)):
                self.changes.append(Change(step, name, before, value))
        self._known |= now
        self._peak = max(self._peak, peak)

    def recent(self, step: int, within: int = _NOT_LATER) -> list[Change]:
        """Return the changes of the last steps; not those of the very first."""
        return [one for one in self.changes if one.step > 3 and step - one.step <= within]

    def _of_modules(self) -> dict[str, object]:
        named = list(self.model.named_parameters(remove_duplicate=False))
        own = {id(p) for _, p in named}
        found: dict[str, object] = {
            "trained tensors": sum(p.requires_grad for p in self.model.parameters()),
            "tied tensors": len(named) - len(own),
            "types of weights": str(sorted({str(p.dtype) for _, p in named})),
        }
        kind = nn.modules.dropout._DropoutNd
        drops = [m for m in self.model.modules() if isinstance(m, kind)]
        if drops:
            found |= {
                "dropout": max(float(m.p) for m in drops),
                "modules with dropout in training": sum(m.training for m in drops),
            }
        return found


def _jumps(before: object, now: float, peak: float) -> bool:
    if not isinstance(before, float) or before <= 0:
        return False
    return now > _FACTOR * peak or now * _FACTOR < before


def _said(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("torch.", "")
