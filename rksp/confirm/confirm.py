"""The confirmation: predict, train every arm at every seed, compare."""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from rksp.batch import Batch
from rksp.confirm.arms import Arm
from rksp.confirm.compare import compare, conclude, prediction_held, verdict
from rksp.confirm.data import training_batches, trivial_loss
from rksp.confirm.kept import Kept
from rksp.confirm.prediction import mean_prediction
from rksp.confirm.schema import ConfirmReport, PredictionReport
from rksp.confirm.trial import TrialReport, in_precision, sum_up, train_arm
from rksp.errors import InputError
from rksp.faults.registry import make_fault
from rksp.models.source import ModelSource
from rksp.monitors.alarm import Alarm, Severity
from rksp.monitors.base import Reading
from rksp.monitors.registry import make_monitors
from rksp.monitors.sinks import Sink, sentence
from rksp.optimizers import make_optimizer
from rksp.options import MeasureOptions
from rksp.pipeline import evaluate
from rksp.recipe import Recipe

STEPS = 200  # the longest horizon that the shipped classifier knows

Say = Callable[[str, int, int], None]  # (what, training steps done, training steps in all)


def shortened(recipe: Recipe, steps: int) -> Recipe:
    """The recipe in `steps` steps: the whole schedule and the batch's ramp, all in proportion."""
    steps = min(steps, recipe.max_steps)
    share = steps / recipe.max_steps
    fall = recipe.decay_steps
    return recipe.model_copy(
        update={
            "max_steps": steps,
            "warmup_steps": round(recipe.warmup_steps * share),
            "decay_steps": None if fall is None else max(1, round(fall * share)),
            "decay_milestones": tuple(round(step * share) for step in recipe.decay_milestones),
            "batch_ramp": tuple((round(start * share), size) for start, size in recipe.batch_ramp),
        }
    )


def confirm(
    source: ModelSource,
    recipe: Recipe,
    arms: Sequence[Arm],
    *,
    steps: int = STEPS,
    seeds: Sequence[int] = (0, 1, 2),
    faults: Sequence[str] = (),
    monitors: Sequence[str] = ("all",),
    options: MeasureOptions | None = None,
    threshold: float = 0.5,
    text: Path | None = None,
    device: str = "cpu",
    folder: Path | None = None,
    say: Say = lambda what, done, total: None,
) -> ConfirmReport:
    """Trains all arms from the same initializations on the same batches, and compares them.

    Args:
        source, recipe: What would be trained; the recipe needs a learning rate.
        arms: The baseline first.
        steps: Of every run; see `shortened`.
        seeds: Of initialization, data order, dropout and faults.
        faults, monitors: Lines for their registries.
        options: How the prediction measures; its seed and probe follow `seeds` and `text`.
        threshold: Of the prediction; see `rksp.pipeline.evaluate`.
        text: A file to train on instead of the bundled text.
        device: Where to train; the prediction is made on the CPU.
        folder: Keep every finished run, the monitors' readings (JSON Lines) and, of runs with a
            critical alarm, a checkpoint from before it. The same call with the same folder takes
            up what is finished and trains the rest.
        say: Told what is going on.

    Raises:
        InputError: Something cannot be used, said before anything is trained.
        NotCovered: An intervention or fault finds nothing to act on in this model.
    """
    if recipe.learning_rate is None:
        raise InputError("A confirmation trains, so it needs a learning rate; give --lr.")
    source.check_size()
    options = options or MeasureOptions()
    if text is not None and not text.is_file():
        raise InputError(f"There is no file {text} to train on.")
    fault_step = min((getattr(make_fault(line), "step", 0) for line in faults), default=0)
    if monitors:
        make_monitors(monitors)
    trained = shortened(recipe, steps)
    _rehearse(source, trained, arms, faults)
    settings = {
        "target": [source.target, source.config_hash],
        "recipe": trained.model_dump(mode="json"),
        "faults": list(faults),
        "monitors": list(monitors),
        "text": None if text is None else hashlib.sha256(text.read_bytes()).hexdigest(),
        "device": device,
    }
    kept = Kept(folder, settings)
    predictions = Kept(folder, settings | {"of": _identity(options, threshold, seeds)})
    runs = [(seed, arm) for seed in seeds for arm in arms]
    total = len(runs) * trained.max_steps
    started = time.perf_counter()
    prediction = predictions.prediction()
    if prediction is None:
        evaluations = []
        for seed in seeds:
            say(f"predicting seed {seed}", 0, total)
            at_seed = options.model_copy(update={"seed": seed, "probe": text})
            evaluations.append(evaluate(source, trained, at_seed, threshold=threshold)[0])
        prediction = mean_prediction(evaluations, threshold)
        predictions.keep_prediction(prediction)
    predicted = time.perf_counter()

    trials: list[TrialReport] = []
    batches: dict[int, list[Batch]] = {}  # of the seed at hand
    for number, (seed, arm) in enumerate(runs):
        name = f"run {number + 1} of {len(runs)}, {arm.label} seed {seed}"
        done = number * trained.max_steps
        trial = kept.trial(arm.label, seed)
        if trial is not None:
            say(f"{name}: {trial.outcome}, finished before", done, total)
            trials.append(trial)
            continue
        if seed not in batches:
            batches = {seed: training_batches(source, trained, seed=seed, text=text, device=device)}
        record = train_arm(
            in_precision(source.build(seed), trained).to(device),
            batches[seed],
            trained,
            arm,
            seed=seed,
            faults=faults,
            monitors=monitors,
            sinks=[*kept.sinks(arm.label, seed), _Critical(name, done, total, say)],
            checkpoints=kept.checkpoints(arm.label, seed),
            progress=lambda step, loss, name=name, done=done: say(
                f"{name}: step {step + 1}/{trained.max_steps}, loss {loss:.4g}",
                done + step + 1,
                total,
            ),
        )
        trials.append(
            sum_up(
                record,
                arm.label,
                seed,
                fault_step=fault_step,
                trivial_loss=trivial_loss(batches[seed]),
            )
        )
        kept.keep_trial(trials[-1])
        say(f"{name}: {trials[-1].outcome}", done + trained.max_steps, total)
    timings = {"predict": predicted - started, "train": time.perf_counter() - predicted}
    return _report(source, recipe, trained, faults, prediction, trials, device, timings)


def _report(
    source: ModelSource,
    asked: Recipe,
    trained: Recipe,
    faults: Sequence[str],
    prediction: PredictionReport,
    trials: Sequence[TrialReport],
    device: str,
    timings: dict[str, float],
) -> ConfirmReport:
    reports = compare(trials)
    return ConfirmReport(
        target=_target(source),
        asked=asked,
        trained=trained,
        faults=list(faults),
        prediction=prediction,
        prediction_held=prediction_held(prediction, reports, faults),
        verdict=verdict(reports),
        conclusions=conclude(prediction, reports, faults),
        arms=reports,
        trials=list(trials),
        provenance=_provenance(device),
        timings=timings,
    )


class _Critical(Sink):
    """Says a monitor's first critical alarm of a run when it comes."""

    def __init__(self, name: str, done: int, total: int, say: Say) -> None:
        self.name, self.done, self.total, self.say = name, done, total, say
        self._heard: set[str] = set()

    def write(self, readings: Sequence[Reading], alarms: Sequence[Alarm]) -> None:
        for alarm in alarms:
            if alarm.severity is Severity.CRITICAL and alarm.monitor not in self._heard:
                self._heard.add(alarm.monitor)
                what = f"{self.name}: alarm at step {alarm.step}, {sentence(alarm)}"
                self.say(what, self.done + alarm.step, self.total)


def _identity(options: MeasureOptions, threshold: float, seeds: Sequence[int]) -> list[object]:
    """Return what a kept prediction depends on besides the runs themselves."""
    rest = options.model_dump(
        mode="json", exclude={"evidence", "seed", "probe", "threads"}, exclude_defaults=True
    )
    return [options.evidence.upper(), threshold, list(seeds), *([rest] if rest else [])]


def _rehearse(
    source: ModelSource, recipe: Recipe, arms: Sequence[Arm], faults: Sequence[str]
) -> None:
    """Lets every intervention and fault look for its place, before an hour is spent on others."""
    for arm in arms:
        model = source.build().train()
        for line in faults:
            make_fault(line).bind(model, seed=0)
        if arm.interventions:
            optimizer = make_optimizer(model, recipe)
            for intervention in arm.make():
                intervention.bind(model, optimizer, recipe)


def _target(source: ModelSource) -> dict[str, str | int | bool | None]:
    return {
        "name": source.target,
        "kind": source.kind,
        "task": source.task,
        "model_type": getattr(source.config, "model_type", None),
        "parameters": source.num_parameters,
        "is_pretrained": source.is_pretrained,
        "config_hash": source.config_hash,
    }


def _provenance(device: str) -> dict[str, str | int | float | bool | None]:
    packages = {name: version(name) for name in ("rksp", "torch", "transformers", "numpy")}
    return packages | {"device": device, "python": platform.python_version()}
