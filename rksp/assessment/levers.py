"""Say what would raise the edge of a model and its recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rksp.classifiers.edge_estimate import EdgeEstimate
from rksp.classifiers.edge_model import EdgePredictor
from rksp.classifiers.levers.catalogue import LEVERS
from rksp.classifiers.levers.effects import LeverSize, LeverTable, load_lever_table
from rksp.classifiers.levers.lever import SHARED, Lever, kind_of
from rksp.classifiers.levers.shifted import ShiftedEdgeModel
from rksp.documents.score import LeverReport
from rksp.ground.flags import flags_of
from rksp.ground.text import short
from rksp.models.declared import Declared
from rksp.optimizers.table import optimizer_spec
from rksp.recipe import Recipe

Predict = Callable[[Recipe, Mapping[str, Any]], EdgeEstimate]
_MOST = 3
_NOTICEABLE = 0.05  # decades; a smaller shift is not worth a change


def levers_of(
    declared: Declared,
    recipe: Recipe,
    model: EdgePredictor,
    predict: Predict,
    table: LeverTable | None = None,
) -> tuple[LeverReport, ...]:
    """Return the levers that would raise the edge the most; none depends on the learning rate.

    They are those that the data cover, that are not on, and whose shift is noticeable.

    Args:
        declared: The model.
        recipe: The recipe.
        model: The model of the edge that answers.
        predict: Returns its estimate for another recipe, and with other fields of `EdgeInputs`.
        table: Sizes of the levers; default the shipped ones.
    """
    table, found = table or load_lever_table(), []
    if not optimizer_spec(recipe.optimizer).is_adam_kin:
        return ()  # every pair was trained with AdamW
    for lever in LEVERS:
        size = table.size(kind_of(declared), lever.name)
        if size is None or not size.is_sound or lever.name in applied_in(model):
            continue
        if lever.withheld(declared, recipe) or lever.blocked(declared, recipe) is not None:
            continue
        known = _modelled(lever, declared, recipe, predict)
        shift = size.shift if known is None else known
        if shift >= _NOTICEABLE:
            found.append(_report(lever, size, declared, recipe, shift))
    return tuple(sorted(found, key=lambda report: (-report.factor, report.name))[:_MOST])


def applied_in(model: EdgePredictor) -> tuple[str, ...]:
    """Return the levers that a model of the edge counts with, by name."""
    return model.shift.levers if isinstance(model, ShiftedEdgeModel) else ()


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
        factor=_ratio(shift),
        low=_ratio(share * (size.low or 0.0)),
        high=_ratio(share * (size.high or 0.0)),
        loss=size.loss or 0.0,
        cost=size.cost,
        pairs=size.pairs,
        families=len(size.families),
        arm=_arm(lever, declared, recipe),
    )


def _ratio(decades: float) -> float:
    return float(f"{10**decades:.3g}")


def shown(value: object) -> str:
    """Format a value of a lever."""
    return short(value) if isinstance(value, float) else str(value)


def _change(lever: Lever, declared: Declared, recipe: Recipe) -> str:
    """Say how the lever is pulled, in brackets that a run file's own words can replace."""
    value = lever.value_for(declared, recipe)
    if lever.field:
        return f"({flags_of(Recipe)[lever.field].name} {shown(value)})"
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
