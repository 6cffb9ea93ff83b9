"""Say what would raise the edge of a model and its recipe, and apply levers to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rksp.assessment.risk import choose_model, edge_inputs, rounded
from rksp.classifiers.edge_model import EdgeEstimate, EdgePredictor, load_edge_model
from rksp.classifiers.levers.catalogue import LEVERS, SHARED, Lever, find_lever, kind_of
from rksp.classifiers.levers.effects import LeverSize, ShiftedEdgeModel, load_lever_table
from rksp.documents.answer import LeverReport
from rksp.ground.errors import InputError
from rksp.ground.flags import flags_of
from rksp.ground.option_lines import split_line
from rksp.ground.text import short
from rksp.models.declared import Declared
from rksp.recipe import Recipe
from rksp.recipe.optimizers.table import optimizer_spec
from rksp.recipe.start import Start

Predict = Callable[[Recipe, Mapping[str, object]], EdgeEstimate]
_MOST = 3
_ACTING = {lever.name for lever in LEVERS if not (lever.field or lever.settings)}
_NOTICEABLE = 0.05  # decades; a smaller shift is not worth a change


def levers_of(
    declared: Declared, recipe: Recipe, model: EdgePredictor, predict: Predict
) -> tuple[LeverReport, ...]:
    """Return the levers that would raise the edge the most; none depends on the learning rate.

    They are those that the data cover, that are not on, and whose shift is noticeable. What a run
    can have without rksp comes first: a warm-up, an optimizer, a norm.

    Args:
        declared: The model.
        recipe: The recipe.
        model: The model of the edge that answers.
        predict: Returns its estimate for another recipe, and with other fields of `EdgeInputs`.
    """
    table, found = load_lever_table(), []
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
    most = sorted(found, key=lambda report: (-report.factor, report.name))[:_MOST]
    return tuple(sorted(most, key=lambda report: report.name in _ACTING))


def applied_in(model: EdgePredictor) -> tuple[str, ...]:
    """Return the levers that a model of the edge counts with, by name."""
    return model.levers if isinstance(model, ShiftedEdgeModel) else ()


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """Levers that were asked for, in a recipe and in a model of the edge.

    Attributes:
        recipe: The recipe with them.
        model: The model of the edge with the shifts of those that it has no column for.
        said: By changed field of the recipe, the lever as it was typed.
    """

    recipe: Recipe
    model: EdgePredictor
    said: dict[str, str]


def apply_levers(
    asked: Sequence[str],
    declared: Declared,
    recipe: Recipe,
    *,
    start: Start,
    model: EdgePredictor | None = None,
) -> Applied:
    """Apply levers in the order in which they were asked for.

    Args:
        asked: Names, or names with a value: `qk_norm`, `warmup=500`.
        declared: The model.
        recipe: The recipe.
        start: What the target holds.
        model: The model of the edge; default the shipped one.

    Raises:
        InputError: A lever is unknown, is on already, or has no measured size for this kind of
            model; a value cannot be used; or the run starts from trained weights.
    """
    if choose_model(recipe, start).model == "fine-tuning":
        raise InputError(
            "--apply needs a run from random weights: levers were not measured on trained ones; "
            "leave it out."
        )
    model = model or load_edge_model()
    sizes: list[LeverSize] = []
    said: dict[str, str] = {}
    names: list[str] = []
    inputs: dict[str, object] = {}
    for text in asked:
        name, options = split_line(text, noun="lever")
        lever, typed = find_lever(name), options.get("")
        if lever.name in names:
            raise InputError(f"--apply names {lever.name} twice; give it once.")
        names.append(lever.name)
        changed = _with_lever(lever, typed, declared, recipe)
        part = lever.changed(declared, recipe)
        if not part and _log_edge(model, changed) == _log_edge(model, recipe):
            sizes += _unmodelled(lever, typed, declared)
        inputs |= part
        if lever.field:
            said[lever.field] = f"--apply {text}"
        recipe = changed
    shifted = ShiftedEdgeModel(prior=model, levers=tuple(names), sizes=tuple(sizes), inputs=inputs)
    return Applied(recipe=recipe, model=shifted, said=said)


def _log_edge(model: EdgePredictor, recipe: Recipe) -> float:
    """Return the edge of some model: whether a change counts is the same for every one."""
    inputs = edge_inputs(recipe, width=512, depth=8, vocabulary=1024, norm="pre")
    return model.predict(inputs).log_edge


def _with_lever(lever: Lever, typed: str | None, declared: Declared, recipe: Recipe) -> Recipe:
    if typed is not None and not lever.field:
        raise InputError(f"The lever {lever.name} takes no value; write {lever.name}.")
    if typed is not None:
        fields = recipe.model_dump(exclude_unset=True) | {lever.field: typed}
        return Recipe.parse(fields, {lever.field: f"--apply {lever.name}"})
    if (reason := lever.blocked(declared, recipe)) is not None:
        raise InputError(f"The lever {lever.name} does not apply: {reason}.")
    return lever.applied(declared, recipe)


def _unmodelled(lever: Lever, typed: str | None, declared: Declared) -> list[LeverSize]:
    """Return the measured size of a lever that the model of the edge does not see.

    A lever that is held back changes the recipe alone, since its size is not to be relied on.
    """
    if lever.field and lever.held_back:
        return []
    if typed is not None:
        option = " ".join(flags_of(Recipe)[lever.field].typed(typed))
        raise InputError(
            f"The lever {lever.name} was measured at one value only; write --apply {lever.name}, "
            f"or change the recipe with {option}."
        )
    kind = kind_of(declared)
    size = load_lever_table().size(kind, lever.name)
    if size is None or size.low is None:
        raise InputError(
            f"The lever {lever.name} was not measured in enough families of this kind of model "
            f"({kind or declared.task or 'no known kind'})."
        )
    return [size]
