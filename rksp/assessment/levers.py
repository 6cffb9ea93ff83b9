"""Say what would raise the edge of a model and its recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rksp.assessment.risk import rounded
from rksp.classifiers.edge_model import EdgeEstimate
from rksp.classifiers.levers.catalogue import LEVERS, SHARED, Lever, kind_of
from rksp.classifiers.levers.effects import LeverSize, load_lever_table
from rksp.documents.answer import LeverReport
from rksp.ground.flags import flags_of
from rksp.ground.text import short
from rksp.models.declared import Declared
from rksp.recipe import Recipe
from rksp.recipe.optimizers.table import optimizer_spec

Predict = Callable[[Recipe, Mapping[str, object]], EdgeEstimate]
_MOST = 3
_ACTING = {lever.name for lever in LEVERS if not (lever.field or lever.settings)}
_NOTICEABLE = 0.05  # decades; a smaller shift is not worth a change


def levers_of(declared: Declared, recipe: Recipe, predict: Predict) -> tuple[LeverReport, ...]:
    """Return the levers that would raise the edge the most; none depends on the learning rate.

    They are those that the data cover, that are not on, and whose shift is noticeable. What a run
    can have without rksp comes first: a warm-up, an optimizer, a norm.

    Args:
        declared: The model.
        recipe: The recipe.
        predict: Returns its estimate for another recipe, and with other fields of `EdgeInputs`.
    """
    table, found = load_lever_table(), []
    if not optimizer_spec(recipe.optimizer).is_adam_kin:
        return ()  # every pair was trained with AdamW
    for lever in LEVERS:
        size = table.size(kind_of(declared), lever.name)
        if size is None or not size.is_sound or not lever.may_be_named(declared, recipe):
            continue
        known = _modelled(lever, declared, recipe, predict)
        shift = size.shift if known is None else known
        if shift >= _NOTICEABLE:
            found.append(_report(lever, size, declared, recipe, shift))
    most = sorted(found, key=lambda report: (-report.factor, report.name))[:_MOST]
    return tuple(sorted(most, key=lambda report: report.name in _ACTING))


def _modelled(lever: Lever, declared: Declared, recipe: Recipe, predict: Predict) -> float | None:
    """Return the shift by the model of the edge itself, in decades; None if it sees no change.

    Where it does, its figure is the one that the recipe with the lever will be answered with. A
    part of the model that it knows counts as it says, be it nothing.
    """
    changed = lever.changed(declared, recipe)
    if not lever.field and not changed:
        return None
    shift = predict(lever.applied(declared, recipe), changed).log_edge
    shift -= predict(recipe, {}).log_edge
    return shift if changed else shift or None


def _report(
    lever: Lever, size: LeverSize, declared: Declared, recipe: Recipe, shift: float
) -> LeverReport:
    share = shift / size.shift  # the interval keeps its width in proportion
    return LeverReport(
        name=lever.name,
        title=lever.title.format(value=shown(lever.value_for(declared, recipe))),
        change=_change(lever, declared, recipe),
        factor=rounded(10**shift),
        low=rounded(10 ** (share * (size.low or 0.0))),
        high=rounded(10 ** (share * (size.high or 0.0))),
        loss=size.loss or 0.0,
        cost=size.cost,
        pairs=size.pairs,
        families=len(size.families),
        arm=_arm(lever, declared, recipe),
    )


def shown(value: object) -> str:
    """Format a value of a lever."""
    return short(value) if isinstance(value, float) else str(value)


def _change(lever: Lever, declared: Declared, recipe: Recipe) -> str:
    """Say how the lever is pulled, in brackets that a run file's own words can replace."""
    value = lever.value_for(declared, recipe)
    if lever.field:
        return f"({' '.join(flags_of(Recipe)[lever.field].typed(shown(value)))})"
    key = next((name for name in lever.settings if declared.declares(name)), None)
    if key is not None:
        return f"({key}: {str(value).lower()} in the model's configuration)"
    if lever.settings:
        return "(in the model's code)"
    return f"(rksp.watch: {lever.intervention})"


def _arm(lever: Lever, declared: Declared, recipe: Recipe) -> str:
    if lever.intervention:
        return lever.intervention
    if lever.field in ("", *SHARED):
        return ""
    first = next(one for one in LEVERS if one.field == lever.field)  # any value goes by its name
    return f"{first.arm_name}={shown(lever.value_for(declared, recipe))}"
