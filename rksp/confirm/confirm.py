"""The confirmation: predict, train every arm at every seed, compare."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rksp.assessment.pipeline import Evaluation
from rksp.confirm.arms import Arm, default_arms
from rksp.confirm.compare import compare, conclude, prediction_held, verdict
from rksp.confirm.data import TrainingData, trivial_loss
from rksp.confirm.finished import FinishedRuns
from rksp.confirm.prediction import mean_prediction
from rksp.confirm.trainee import Trainee, check_trainable, rehearse, trial_row
from rksp.confirm.trial import sum_up
from rksp.datasets.own_probe import fit_head
from rksp.datasets.own_rows import read_own_rows
from rksp.documents.base import GateReport, TargetReport
from rksp.documents.confirm import ConfirmReport, PredictionReport, TrialReport
from rksp.documents.options import MeasureOptions
from rksp.ground.allocator import freed_memory_kept
from rksp.ground.errors import InputError
from rksp.ground.files import digest
from rksp.ground.versions import version
from rksp.models.source import ModelSource
from rksp.own_runs.record import append_row
from rksp.recipe import Recipe
from rksp.run import Question, Run
from rksp.watch.faults.registry import make_fault
from rksp.watch.monitors.base import Alarm, Reading, Severity
from rksp.watch.monitors.registry import make_monitors
from rksp.watch.monitors.sinks import Sink, sentence

STEPS = 200  # the longest horizon that the shipped classifier knows

# Takes a message, the training steps done so far, and the training steps of all runs.
ConfirmProgress = Callable[[str, int, int], None]

_NOT_YOURS = "The runs trained on data of rksp; --data FILE trains on yours."
_UNQUANTIZED = "The adapters were trained on the unquantized base: rksp does not quantize."
_RANDOM = "These runs started from random weights, but the run itself starts from trained ones."


def confirm(
    source: ModelSource,
    recipe: Recipe,
    arms: Sequence[Arm] | None = None,
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
    past_runs: Sequence[Path] = (),
    record: Path | None = None,
    cache: bool | Path = False,
    progress: ConfirmProgress = lambda what, done, total: None,
) -> ConfirmReport:
    """Train all arms from the same initializations on the same batches, and compare them.

    Args:
        source: The model that would be trained.
        recipe: How it would be trained; it needs a learning rate.
        arms: The arms, the baseline first; default `default_arms`.
        steps: The length of every run; see `Recipe.shortened`.
        seeds: Seeds of initialization, data order, dropout and faults.
        faults: Lines for the registry of faults.
        monitors: Lines for the registry of monitors.
        options: How the prediction measures; its seed and probe follow `seeds` and `text`. Its
            data are also those that the runs train on.
        threshold: The threshold of the prediction; see `rksp.assessment.risk.Terms`.
        text: A file to train on instead of the bundled text.
        device: Where to train; the prediction is made on the CPU.
        folder: Keep every finished run, the monitors' readings (JSON Lines) and, for runs with a
            critical alarm, a checkpoint from before it. The same call with the same folder reuses
            the finished runs and trains the rest.
        past_runs: Files and folders of past runs that the prediction learns from.
        record: A file of runs to append every run to that differs from the recipe in the rate
            alone, for `past_runs` of a later call.
        cache: Where the prediction's measurements are kept; see `Question.keeping`.
        progress: Called with the progress.

    Raises:
        InputError: Something cannot be used; raised before anything is trained.
        NotCovered: An intervention or fault finds nothing to act on in this model.
    """
    if recipe.learning_rate is None:
        raise InputError("A confirmation trains, so it needs a learning rate; give --lr.")
    check_trainable(source)
    options = options or MeasureOptions()
    if text is not None and not text.is_file():
        raise InputError(f"There is no file {text} to train on.")
    lacks_weights = not source.is_pretrained and (source.starts_trained or recipe.starts_trained)
    if record is not None and (lacks_weights or faults):
        raise InputError(
            "A record holds runs from the weights that the recipe means, without a planted fault; "
            "leave out --record."
        )
    data = None if options.data is None else read_own_rows(options.data)
    if data is not None:
        if text is not None or source.batch is not None:
            other = "--text" if text is not None else f"the batches of {source.target}"
            raise InputError(f"The runs train on --data or on {other}, not on both.")
        fit_head(source, data)
    fault_step = min((getattr(make_fault(line), "step", 0) for line in faults), default=0)
    if monitors:
        make_monitors(monitors)
    trained = recipe.shortened(steps)
    usual = arms or default_arms(recipe.learning_rate, None)
    rehearse(source, trained, usual, faults)
    runs = _Runs(
        trainee=Trainee(source=source, recipe=trained, text=text, data=data, device=device),
        arms=usual,
        seeds=seeds,
        faults=faults,
        monitors=monitors,
        record=record,
        progress=progress,
    )
    settings = runs.settings()
    judged: dict[str, object] = {"of": _identity(options, threshold, seeds)}
    run = Run(target=source.target, recipe=trained)
    question = Question(run=run, source=source, bars={"threshold": threshold})
    question = question.learning(past_runs).keeping(cache)
    if question.own_runs is not None:
        judged["runs"] = digest(question.own_runs.model_dump_json())
    finished = FinishedRuns(folder, settings)
    with finished.alone(), freed_memory_kept():
        started = time.perf_counter()
        predictions = FinishedRuns(folder, settings | judged)
        prediction = runs.prediction(predictions, options, question)
        if arms is None:
            usual = default_arms(recipe.learning_rate, prediction.start_here)
            runs = replace(runs, arms=usual)
        predicted = time.perf_counter()
        trials = runs.train(finished, fault_step)
    timings = {"predict": predicted - started, "train": time.perf_counter() - predicted}
    return _report(
        source,
        recipe,
        trained,
        faults,
        prediction,
        trials,
        device,
        timings,
        is_given=text is not None or data is not None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runs:
    """The runs of a confirmation: their common settings, their prediction and their training."""

    trainee: Trainee
    arms: Sequence[Arm]
    seeds: Sequence[int]
    faults: Sequence[str]
    monitors: Sequence[str]
    record: Path | None
    progress: ConfirmProgress

    @property
    def total(self) -> int:
        """The steps of all runs together."""
        return len(self.seeds) * len(self.arms) * self.trainee.recipe.max_steps

    def settings(self) -> dict[str, object]:
        """Return everything that each run depends on."""
        return self.trainee.identity() | {
            "faults": list(self.faults),
            "monitors": list(self.monitors),
        }

    def prediction(
        self, finished: FinishedRuns, options: MeasureOptions, question: Question
    ) -> PredictionReport:
        """Return the mean prediction over the seeds; reuse a stored one."""
        prediction = finished.prediction()
        if prediction is not None:
            return prediction
        evaluations: list[Evaluation] = []
        for seed in self.seeds:
            if evaluations and options.evidence == "config":  # a configuration has no seed
                evaluations.append(evaluations[0])
                continue
            self.progress(f"predicting seed {seed}", 0, self.total)
            at_seed = options.model_copy(update={"seed": seed, "probe": self.trainee.text})
            evaluations.append(question.evaluated(at_seed))
        prediction = mean_prediction(evaluations, question.bars["threshold"])
        finished.keep_prediction(prediction)
        return prediction

    def train(self, finished: FinishedRuns, fault_step: int) -> list[TrialReport]:
        """Train every arm at every seed, except the finished runs."""
        trials: list[TrialReport] = []
        data: dict[int, TrainingData] = {}  # holds the current seed
        runs = [(seed, arm) for seed in self.seeds for arm in self.arms]
        steps = self.trainee.recipe.max_steps
        for number, (seed, arm) in enumerate(runs):
            name = f"run {number + 1} of {len(runs)}, {arm.label} seed {seed}"
            done = number * steps
            trial = finished.trial(arm.label, seed)
            if trial is not None:
                self.progress(f"{name}: {trial.outcome}, already finished", done, self.total)
                trials.append(trial)
                continue
            if seed not in data:
                data = {seed: self.trainee.data_of(seed)}
            record, judged = self.trainee.run(
                arm,
                seed,
                data[seed],
                faults=self.faults,
                monitors=self.monitors,
                sinks=[
                    *finished.sinks(arm.label, seed),
                    _Critical(name, done, self.total, self.progress),
                ],
                checkpoints=finished.checkpoints(arm.label, seed),
                progress=partial(self._told, name, done),
            )
            trial = sum_up(
                record,
                arm.label,
                seed,
                fault_step=fault_step,
                trivial_loss=trivial_loss(data[seed].batches),
                held_out=judged,
            )
            trials.append(trial)
            finished.keep_trial(trial)
            if self.record is not None and not arm.interventions:
                append_row(self.record, trial_row(self.trainee, arm, trial))
            self.progress(f"{name}: {trial.outcome}", done + steps, self.total)
        return trials

    def _told(self, name: str, done: int, step: int, loss: float) -> None:
        said = f"{name}: step {step + 1}/{self.trainee.recipe.max_steps}, loss {loss:.4g}"
        self.progress(said, done + step + 1, self.total)


def _report(
    source: ModelSource,
    asked: Recipe,
    trained: Recipe,
    faults: Sequence[str],
    prediction: PredictionReport,
    trials: Sequence[TrialReport],
    device: str,
    timings: dict[str, float],
    *,
    is_given: bool,
) -> ConfirmReport:
    reports = compare(trials)
    found, said = verdict(reports), conclude(prediction, reports, faults)
    if source.starts_trained and not source.is_pretrained:
        said.append(_RANDOM)
    if source.is_pretrained and source.batch is None and not is_given:
        said.append(_NOT_YOURS)
    if trained.peft == "qlora":
        said.append(_UNQUANTIZED)
    is_failed, baseline = found == "failed", reports[0]
    reason = f"{baseline.failed} of {baseline.runs} runs of the baseline failed"
    gate = GateReport(
        fail_on="failed", failed=is_failed, issues=[], reasons=[reason] if is_failed else []
    )
    return ConfirmReport(
        target=TargetReport.of(
            source,
            name=source.target,
            model_type=getattr(source.config, "model_type", None),
            parameters=source.num_parameters,
        ),
        asked=asked,
        trained=trained,
        faults=list(faults),
        prediction=prediction,
        prediction_held=prediction_held(prediction, reports, faults),
        verdict=found,
        gate=gate,
        conclusions=said,
        arms=reports,
        trials=list(trials),
        provenance=_provenance(device),
        timings=timings,
    )


class _Critical(Sink):
    """Reports a monitor's first critical alarm of a run as it comes."""

    def __init__(self, name: str, done: int, total: int, progress: ConfirmProgress) -> None:
        self.name, self.done, self.total, self.progress = name, done, total, progress
        self._heard: set[str] = set()

    def write(self, readings: Sequence[Reading], alarms: Sequence[Alarm]) -> None:
        """Report the critical alarms of monitors that have not raised one before."""
        for alarm in alarms:
            if alarm.severity is Severity.CRITICAL and alarm.monitor not in self._heard:
                self._heard.add(alarm.monitor)
                what = f"{self.name}: alarm at step {alarm.step}, {sentence(alarm)}"
                self.progress(what, self.done + alarm.step, self.total)


def _identity(options: MeasureOptions, threshold: float, seeds: Sequence[int]) -> list[object]:
    """Return what a stored prediction depends on besides the runs themselves."""
    rest = options.model_dump(
        mode="json", exclude={"evidence", "seed", "probe", "threads"}, exclude_defaults=True
    )
    return [options.evidence.upper(), threshold, list(seeds), *([rest] if rest else [])]


def _provenance(device: str) -> dict[str, str | int | float | bool | None]:
    packages: dict[str, Any] = {
        name: version(name) for name in ("rksp", "torch", "transformers", "numpy")
    }
    return packages | {"device": device, "python": platform.python_version()}
