"""What a lever is: one change of the recipe or of the model, measured in pairs of ladders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rksp.models.declared import Declared
from rksp.recipe import Recipe

Kind = Literal["decoder", "encoder", "encoder-decoder", "vision"]
_KINDS: dict[str, Kind] = {
    "causal-lm": "decoder",
    "masked-lm": "encoder",
    "seq2seq": "encoder-decoder",
    "image-classification": "vision",
}
SHARED = ("batch_size",)  # fields that all runs of a comparison have in common


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Where a lever was measured.

    Attributes:
        plan: Name of the plan of pairs in `datasets/plans`.
        lever: Name of the lever there.
        is_inverted: The plan takes away what the lever adds.
    """

    plan: str
    lever: str
    is_inverted: bool = False


def _never(declared: Declared, recipe: Recipe) -> str | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """One lever.

    Attributes:
        name: Its name in `--apply`, in the arms of `rksp confirm` and in documents.
        title: What it adds, with `{value}` where it has one: `{value} steps of warm-up`.
        sentence: What it does, one or two plain sentences.
        measured: The pairs that show its size.
        field: The field of the recipe that it sets; empty where it changes the model.
        value: The value of the field, or of the setting, that it was measured at.
        part: The field of `EdgeInputs` that it sets, where the model of the edge may know it.
        settings: Names that a model's configuration may give it.
        intervention: The line that applies it in a run; empty where only a new run can have it.
        blocked: Says why it is on already or does not apply, a clause; None where it applies.
        is_sequential: Only pairs of models whose blocks are not parallel count, and pages of them
            name it: parallel blocks gain nothing by it.
        longest: Steps of the longest run for which a page names it; None for any.
        held_back: Why no page names it, whatever the pairs say.
    """

    name: str
    title: str
    sentence: str
    measured: tuple[Measured, ...]
    field: str = ""
    value: Callable[[Declared, Recipe], object] | None = None
    part: str = ""
    settings: tuple[str, ...] = ()
    intervention: str = ""
    blocked: Callable[[Declared, Recipe], str | None] = _never
    is_sequential: bool = False
    longest: int | None = None
    held_back: str = ""

    @property
    def arm_name(self) -> str:
        """Its name in an arm that sets its field: `warmup=60`, `optimizer=muon`."""
        return self.field if self.field == "optimizer" else self.name

    def value_for(self, declared: Declared, recipe: Recipe) -> object:
        """Return the value that the lever has for this model and recipe; None without one."""
        return None if self.value is None else self.value(declared, recipe)

    def withheld(self, declared: Declared, recipe: Recipe) -> str:
        """Say why no page of this model and recipe names it; empty where one may."""
        if self.is_sequential and declared.is_parallel:
            return "parallel blocks gain nothing by it"
        if self.longest is not None and recipe.max_steps > self.longest:
            return f"no data show it in runs of more than {self.longest} steps"
        return self.held_back

    def applied(self, declared: Declared, recipe: Recipe) -> Recipe:
        """Return the recipe with the lever; one that changes the model leaves it as it is."""
        if not self.field:
            return recipe
        return recipe.model_copy(update={self.field: self.value_for(declared, recipe)})

    def changed(self, declared: Declared, recipe: Recipe) -> dict[str, object]:
        """Return what it sets in the inputs of the model of the edge besides the recipe's."""
        return {self.part: self.value_for(declared, recipe)} if self.part else {}


def kind_of(declared: Declared) -> Kind | None:
    """Return the kind of model that a lever's size is known for; None for any other."""
    return _KINDS.get(declared.task)
