"""Score from Python: take a model type, a file or any module, and return one flat result."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from rksp.assessment.applied import apply_levers
from rksp.assessment.pipeline import evaluate
from rksp.assessment.report import score_report
from rksp.assessment.store import MeasurementStore
from rksp.classifiers.edge_model import EdgePredictor
from rksp.documents.own_runs import HistoryReport
from rksp.ground.errors import InputError, check_kind
from rksp.ground.flags import checked, field_of
from rksp.models.as_found import left_as_found
from rksp.models.declared import Declared
from rksp.models.given import module_source
from rksp.models.given_loss import Loss
from rksp.models.resolve import resolve
from rksp.models.source import ModelSource
from rksp.options import MeasureOptions
from rksp.recipe import Recipe
from rksp.recipe_files.said.assumptions import alternatives, origins_of_flags
from rksp.recipe_files.said.heard import heard
from rksp.recipe_files.said.reported import with_origins
from rksp.report.score.result import Result
from rksp.report.summary import summarized


def score(
    target: str | Path | nn.Module | ModelSource,
    batch: Any = None,
    recipe: Recipe | Mapping[str, Any] | None = None,
    loss: Loss | None = None,
    *,
    lr: float | None = None,
    is_pretrained: bool | None = None,
    apply: Sequence[str] = (),
    options: MeasureOptions | None = None,
    cache: bool | str | Path = True,
    runs: str | Path | Sequence[str | Path] = (),
    **measure: Any,
) -> Result:
    """Predict how likely a run is to fail, why, and which learning rate to use.

    Args:
        target: A module, a model type, a path to a configuration or checkpoint,
            `package.module:factory`, or the result of `rksp.resolve`. A module is left bitwise
            unchanged.
        batch: Input for a module; a model of Hugging Face needs none. The first dimension of every
            tensor counts the examples, at least two. It is (inputs, …, target); a dict of keyword
            arguments with `labels`; or a tensor, such as token ids `[batch, length]` int64. Arrays
            of numpy count as tensors, and a `DataLoader` as its first batch.
        recipe: How the model is to be trained: fields of `rksp.Recipe`. A module and its batch, or
            a factory's, give those that it leaves out, as far as they show them: precision,
            adapters, sizes of the batch; the others have their defaults.
        loss: Returns a scalar tensor. It is called with the model's output, and with the target for
            a tuple or the whole batch otherwise. The default loss is: a Lightning module's own
            `training_step`; the loss that the model returns; cross-entropy for integer targets;
            the mean squared error for floating targets; next-token cross-entropy for token ids.
        lr: The learning rate, in place of the recipe's.
        is_pretrained: The module holds trained weights, which no labelled run has, and checks of
            the initialization are skipped; default what the weights and the loss show.
        apply: Levers to answer with, such as `["qk_norm", "warmup=500"]`.
        options: How it is measured.
        cache: Keep what is measured, and take it from there: True in the user's cache folder, or
            this folder; False measures anew and keeps nothing. A module, a factory and code that
            came with a model are always measured.
        runs: Files and folders of past runs to learn from; see `rksp runs --help`.
        **measure: Fields of `MeasureOptions` by name, in place of `options`.

    Returns:
        The answer; its fields have the names of the JSON report.

    Raises:
        InputError: Some input cannot be used; the message says what to do.
        NotCovered: A target without a batch has no residual stream of constant width.
    """
    _check(recipe, apply, options, cache, runs)
    recipe = _recipe(recipe, lr)
    typed = dict.fromkeys(recipe.model_fields_set, "given")
    if options is not None and measure:
        raise InputError(f"Give options or {', '.join(measure)}, not both.")
    for name in measure:
        if field_of(Recipe, name) not in Recipe.model_fields:
            continue
        short_way = " or lr=…" if field_of(Recipe, name) == "learning_rate" else ""
        raise InputError(f"{name} belongs to the recipe; give recipe={{{name!r}: …}}{short_way}.")
    if options is None:
        options = checked(MeasureOptions, measure, noun="option")
    if isinstance(target, nn.Module):
        source = module_source(target, batch, loss, is_pretrained=is_pretrained, seed=options.seed)
    elif isinstance(target, str | Path | ModelSource) and (batch is not None or loss is not None):
        raise InputError(f"Only a module takes a batch and a loss; {target!r} brings its own.")
    elif not isinstance(target, str | Path | ModelSource):
        raise InputError(
            f"rksp.score takes a torch module, a path or a model's name, not a "
            f"{type(target).__name__}; for a model of JAX give its config.json or its run file."
        )
    else:
        source = target if isinstance(target, ModelSource) else resolve(str(target), counts=False)
        source = source.at(options.seed)
    recipe, origins, notes = heard(
        recipe, origins_of_flags(recipe, typed), source.shown, source.shown_by
    )
    source = replace(source, notes=(*source.notes, *notes))
    classifier: EdgePredictor | None = None
    own_runs: HistoryReport | None = None
    if runs:
        from rksp.own_runs.learning import learn

        paths = [runs] if isinstance(runs, str | os.PathLike) else runs
        classifier, own_runs = learn([Path(path) for path in paths], source, recipe)
    if apply:
        declared, trained = Declared(source.config, source.task), source.holds_trained
        applied = apply_levers(apply, declared, recipe, is_pretrained=trained, model=classifier)
        recipe, classifier = applied.recipe, applied.model
        origins |= origins_of_flags(recipe, applied.said)
    with nullcontext() if source.model is None else left_as_found(source.model):
        evaluation = evaluate(
            source,
            recipe,
            options,
            classifier=classifier,
            alternatives=alternatives(recipe, origins),
            store=MeasurementStore.of(cache),
        )
    report = score_report(recipe, [evaluation]).model_copy(update={"own_runs": own_runs})
    return Result(summarized(with_origins(report, origins)))


def _check(recipe: object, apply: object, options: object, cache: object, runs: object) -> None:
    """Check the kinds of arguments that nothing else checks.

    Raises:
        InputError: One is of another kind.
    """
    paths = str | os.PathLike
    check_kind("recipe", recipe, Recipe | Mapping | None, "a Recipe or a mapping of its fields")
    check_kind("options", options, MeasureOptions | None, "MeasureOptions")
    check_kind("cache", cache, bool | paths, "True, False or a folder")
    levers = apply if isinstance(apply, list | tuple) else [None]
    for lever in levers:
        check_kind("apply", lever, str, "a list of levers")
    for path in [runs] if not isinstance(runs, list | tuple) else runs:
        check_kind("runs", path, paths, "a path or a list of paths")


def _recipe(recipe: Recipe | Mapping[str, Any] | None, lr: float | None) -> Recipe:
    fields = (
        recipe.model_dump(exclude_unset=True) if isinstance(recipe, Recipe) else dict(recipe or {})
    )
    return Recipe.parse(fields if lr is None else fields | {"learning_rate": lr})
