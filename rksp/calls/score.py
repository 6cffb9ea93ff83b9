"""Score from Python: take a model type, a file or any module, and return one flat result."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from rksp.documents.options import MeasureOptions
from rksp.documents.terms import Gate, Terms
from rksp.ground.errors import InputError, check_kind
from rksp.ground.flags import checked, field_of
from rksp.models.resolve import resolve
from rksp.models.source import ModelSource
from rksp.question.question import Question
from rksp.question.run import Run
from rksp.recipe import Recipe
from rksp.report.score.result import Result

if TYPE_CHECKING:  # a configuration is judged without torch
    from torch import nn

    from rksp.documents.score import ScoreReport
    from rksp.models.given import Loss


def score(
    target: str | Path | nn.Module | ModelSource,
    batch: object = None,
    recipe: Recipe | Mapping[str, object] | str | Path | None = None,
    loss: Loss | None = None,
    *,
    lr: float | None = None,
    is_pretrained: bool | None = None,
    options: MeasureOptions | None = None,
    cache: bool | str | Path = True,
    runs: str | Path | Sequence[str | Path] = (),
    devices: int | None = None,
    trainer: str | None = None,
    seeds: int = 1,
    baseline: Result | ScoreReport | None = None,
    bar: float | None = None,
    **more: object,
) -> Result:
    """Predict how likely a run is to fail, why, and which learning rate to use.

        >>> import rksp
        >>> answer = rksp.score("gpt2", lr=3e-1, evidence="config")
        >>> answer.verdict, answer.do_not_exceed < 0.01
        ('risk', True)

    Args:
        target: A module, a model type, a path to a configuration or checkpoint, a trainer's run
            file that describes its model, `package.module:factory`, or the result of
            `rksp.resolve`. A module is left bitwise unchanged.
        batch: Input for a module; a model of Hugging Face needs none. The first dimension of every
            tensor counts the examples, at least two. It is (inputs, …, target); a dict of keyword
            arguments with `labels`; or a tensor, such as token ids `[batch, length]` int64. Arrays
            of numpy count as tensors, and a `DataLoader` as its first batch.
        recipe: How the model is to be trained: fields of `rksp.Recipe`, which override those of a
            run file, or the path of a run file. A module and its batch, or a factory's, give those
            that it leaves out, as far as they show them: precision, adapters, sizes of the batch;
            the others have their defaults.
        loss: Returns a scalar tensor. It is called with the model's output, and with the target for
            a tuple or the whole batch otherwise. The default loss is: a Lightning module's own
            `training_step`; the loss that the model returns; cross-entropy for integer targets;
            the mean squared error for floating targets; next-token cross-entropy for token ids.
        lr: The learning rate, in place of the recipe's.
        is_pretrained: The run starts from trained weights (fine-tuning), or from random ones
            (from scratch); default what the target, the run file, the weights and the loss show.
        options: How it is measured.
        cache: Keep what is measured, and take it from there: True in the user's cache folder, or
            this folder; False measures anew and keeps nothing. A module, a factory and code that
            came with a model are always measured.
        runs: Files and folders of past runs to learn from; see `rksp why --help`.
        devices: Number of devices, where a run file gives the batch per device.
        trainer: Whose run file it is; by default the trainer is recognized.
        seeds: Number of initializations to score, beginning with the options' seed.
        baseline: An older answer to compare with; only what is new or worse fails the gate.
        bar: P(failed) from which the word is risk, in place of a probability in `fail_on`.
        **more: By name, fields of `Terms` (`fail_on`, `risk`, `select`, `ignore`, `levels`, `env`,
            `gpu`), and fields of `MeasureOptions` in place of `options`.

    Returns:
        The answer; its fields have the names of the JSON report.

    Raises:
        InputError: Some input cannot be used; the message says what to do.
        NotCovered: A target without a batch has no residual stream of constant width.
    """
    fields, file = _given(recipe)
    if lr is not None:
        fields["learning_rate"] = lr
    _check(options, cache, runs)
    terms, measure = _terms(bar, more)
    if options is not None and measure:
        raise InputError(f"Give options or {', '.join(measure)}, not both.")
    if options is None:
        options = checked(MeasureOptions, measure, noun="option")
    if not _is_module(target) and (batch is not None or loss is not None):
        raise InputError(f"Only a module takes a batch and a loss; {target!r} brings its own.")
    read = partial(Run.read, fields=fields, file=file, devices=devices, trainer=trainer)
    if _is_module(target):
        from rksp.models.given import module_source

        source = module_source(target, batch, loss, is_pretrained=is_pretrained, seed=options.seed)
        run = read(source.target)
    elif isinstance(target, ModelSource):
        source, run = target, read(target.target)
    elif isinstance(target, str | os.PathLike):
        run = read(str(target), needs_model=False)
        source = run.sourced(lambda: resolve(run.target, overrides=run.overrides, counts=False))
    else:
        raise InputError(
            f"rksp.score takes a torch module, a path or a model's name, not a "
            f"{type(target).__name__}; for a model of JAX give its config.json or its run file."
        )
    if is_pretrained is not None:
        run = run.starting(is_pretrained=is_pretrained)
    paths = [runs] if isinstance(runs, str | os.PathLike) else runs
    question = Question.of(run, source.at(options.seed), terms).learning(
        [Path(path) for path in paths]
    )
    question = question.audited()[0].keeping(cache)
    as_found: AbstractContextManager[None] = nullcontext()
    if source.model is not None:  # then torch is loaded
        from rksp.models.as_found import left_as_found

        as_found = left_as_found(source.model)
    with as_found:
        older = baseline.report if isinstance(baseline, Result) else baseline
        return Result(question.answer(options.at_seeds(seeds), older))


def _given(recipe: object) -> tuple[dict[str, object], Path | None]:
    if isinstance(recipe, Recipe):
        return recipe.model_dump(exclude_unset=True), None
    if isinstance(recipe, Mapping):
        return dict(recipe), None
    if recipe is not None and not isinstance(recipe, str | os.PathLike):
        raise InputError(
            f"recipe is of type {type(recipe).__name__}; it should be a Recipe, a mapping of its "
            "fields, or the path of a run file."
        )
    return {}, None if recipe is None else Path(recipe)


def _terms(bar: float | None, more: Mapping[str, Any]) -> tuple[Terms, dict[str, Any]]:
    told = {name: value for name, value in more.items() if name in Terms.model_fields}
    rest = {name: value for name, value in more.items() if name not in told}
    for name in ("fail_on", "select", "ignore", "levels"):
        if isinstance(told.get(name), str):
            told[name] = [told[name]]
    if bar is not None:
        told["fail_on"] = [str(bar), *told.get("fail_on", [])]
    terms = checked(Terms, told, noun="term")
    Gate.parse(terms.fail_on)  # refuses what contradicts itself before anything is measured
    for name in rest:
        if (field := field_of(Recipe, name)) in Recipe.model_fields:
            way = " or lr=…" if field == "learning_rate" else ""
            raise InputError(f"{name} belongs to the recipe; give recipe={{{name!r}: …}}{way}.")
    return terms, rest


def _is_module(target: object) -> TypeGuard[nn.Module]:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(target, torch.nn.Module)


def _check(options: object, cache: object, runs: object) -> None:
    paths = (str, os.PathLike)
    check_kind("options", options, MeasureOptions | None, "MeasureOptions")
    check_kind("cache", cache, (bool, *paths), "True, False or a folder")
    for path in [runs] if not isinstance(runs, list | tuple) else runs:
        check_kind("runs", path, paths, "a path or a list of paths")
