"""Arms: the variants of one run that are trained side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rksp.classifiers.edge_inputs import SHORT
from rksp.classifiers.levers.catalogue import LEVERS, SHARED
from rksp.ground.errors import InputError
from rksp.ground.model import definite
from rksp.ground.option_lines import known_name, split_line
from rksp.recipe import Recipe
from rksp.watch.interventions.base import Intervention
from rksp.watch.interventions.step_clip import StepClip
from rksp.watch.interventions.update_bound import BoundUpdates
from rksp.watch.registry import INTERVENTIONS, make_intervention

BASELINE = "baseline"
_RATE = "rate"
# Levers that are a field of the recipe; those that the arms of a run cannot differ in are left out.
_LEVERS = {
    lever.arm_name: lever
    for lever in LEVERS
    if lever.field not in ("", *SHARED) and lever.name not in INTERVENTIONS
}
_LOWER = 0.9  # of the recipe's rate; a start above it would train the baseline twice


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One variant.

    Attributes:
        label: As the user wrote it.
        rate: Factor on the recipe's learning rate.
        changes: Fields of the recipe that it sets, with their values.
        interventions: Lines for `make_intervention`, in the order in which they act.
    """

    label: str
    rate: float = 1.0
    changes: tuple[tuple[str, object], ...] = ()
    interventions: tuple[str, ...] = ()

    def make(self) -> list[Intervention]:
        """Make fresh interventions for one run."""
        return [make_intervention(line) for line in self.interventions]

    def recipe(self, recipe: Recipe) -> Recipe:
        """Return the recipe of this arm."""
        rate = definite(recipe.learning_rate) * self.rate
        return recipe.model_copy(update={"learning_rate": rate, **dict(self.changes)})


def parse_arm(text: str) -> Arm:
    """Parse the arm that a line describes.

    `baseline` changes nothing. `rate=0.3` multiplies the learning rate. A lever of the recipe takes
    its value (`warmup=60`, `optimizer=muon`). An intervention takes its options (`kss:weight=0.5`)
    or the value of its first option (`clip=0.5`). `+` combines parts.

    Raises:
        InputError: A part is not an intervention, or an option cannot be used.
    """
    rate = 1.0
    lines, changes = [], {}
    for part in (part.strip() for part in text.split("+")):
        typed, options = split_line(part, noun="arm")
        name = known_name([BASELINE, _RATE, *INTERVENTIONS, *_LEVERS], typed, noun="arm")
        if name == _RATE:
            rate *= _factor(text, options.get("", ""))
        elif name in _LEVERS:
            field = _LEVERS[name].field
            given = Recipe.parse({field: options.get("", "")}, {field: f"Arm {text!r}: {name}"})
            changes[field] = getattr(given, field)
        elif name != BASELINE:
            make_intervention(part)  # raises before anything is trained
            lines.append(part)
    changed = tuple(sorted(changes.items()))
    return Arm(label=text, rate=rate, changes=changed, interventions=tuple(lines))


def parse_arms(texts: Sequence[str]) -> list[Arm]:
    """Parse the arms and put the baseline first, because the others are compared with it.

    Raises:
        InputError: As in `parse_arm`, or an arm was given twice.
    """
    twice = sorted({text for text in texts if list(texts).count(text) > 1})
    if twice:
        raise InputError(f"Arm {twice[0]!r} was given twice; give each once.")
    others = [text for text in texts if text != BASELINE]
    return [parse_arm(text) for text in (BASELINE, *others)]


def default_arms(recipe: Recipe, start_here: float | None) -> list[Arm]:
    """Return the baseline, the same run at a lower rate, and the run with its steps bounded.

    The lower rate is the one to start with, or 0.3 of the recipe's: only beside it is seen whether
    the baseline fails. The update bound does best over the length of most runs that are meant,
    which the runs to train may stand for; in short runs step clip is better with some models.

    Args:
        recipe: The recipe that is meant, at its own length.
        start_here: The predicted rate to start with, if there is one.
    """
    share = 1.0 if start_here is None else start_here / definite(recipe.learning_rate)
    lower = f"{_RATE}={share:.2g}" if share < _LOWER else f"{_RATE}=0.3"
    bounds = [BoundUpdates.name, *([StepClip.name] if recipe.max_steps <= SHORT else [])]
    return parse_arms([lower, *bounds])


def _factor(text: str, value: str) -> float:
    try:
        factor = float(value)
    except ValueError:
        factor = 0.0
    if not 0 < factor < float("inf"):
        raise InputError(f"Arm {text!r}: rate must be a factor above zero, got {value!r}.")
    return factor
