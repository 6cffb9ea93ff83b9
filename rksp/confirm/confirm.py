"""The confirmation: predict, train every arm at every seed, compare."""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from rksp.assessment.pipeline import Evaluation
from rksp.confirm.arms import Arm, default_arms, parse_arms
from rksp.confirm.compare import compare, conclude, limit, prediction_held, verdict, why_failed
from rksp.confirm.options import TrialOptions
from rksp.confirm.trial import (
    Trainee,
    TrainingData,
    TrainingProgress,
    check_trainable,
    step_progress,
    trial_row,
)
from rksp.datasets.own_data import fit_head, read_own_rows
from rksp.documents.answer import FromEdge, Untold
from rksp.documents.base import GateReport, TargetReport
from rksp.documents.confirm import ConfirmReport, PredictionReport, TrialReport
from rksp.documents.options import MeasureOptions
from rksp.documents.verdict import worst
from rksp.ground.allocator import freed_memory_kept
from rksp.ground.errors import InputError
from rksp.ground.files import ResultFolder, digest
from rksp.ground.model import Strict, definite
from rksp.ground.text import short
from rksp.ground.versions import version
from rksp.models.source import ModelSource
from rksp.own_runs.record import append_row
from rksp.question.question import Question
from rksp.question.run import Run
from rksp.recipe import Recipe
from rksp.recipe.start import decide_start
from rksp.watch.monitors.base import Alarm, Reading, Severity
from rksp.watch.monitors.sinks import JsonLines, Sink, sentence
from rksp.watch.registry import make_fault, make_monitors
from rksp.watch.run_state import Checkpoints

_NOT_YOURS = "The runs trained on data of rksp; --data FILE trains on yours."
_UNQUANTIZED = "The adapters were trained on the unquantized base: rksp does not quantize."
_RANDOM = "These runs started from random weights, but the run itself starts from trained ones."


def confirm(
    source: ModelSource,
    recipe: Recipe,
    options: TrialOptions | None = None,
    *,
    measure: MeasureOptions | None = None,
    cache: bool | Path = False,
    progress: TrainingProgress = lambda what, done, total: None,
) -> ConfirmReport:
    """Train all arms from the same initializations on the same batches, and compare them.

    Args:
        source: The model that would be trained.
        recipe: How it would be trained; it needs a learning rate.
        options: Which runs are trained, and what is kept of them: every finished run, the
            monitors' readings (JSON Lines) and, for runs with a critical alarm, a checkpoint from
            before it. The same call with the same folder reuses the finished runs and trains the
            rest.
        measure: How the prediction measures, from the first seed on. Its data are also those that
            the runs train on.
        cache: Where the prediction's measurements are kept; see `Question.keeping`.
        progress: Called with the progress.

    Raises:
        InputError: Something cannot be used; raised before anything is trained.
        NotCovered: An intervention or fault finds nothing to act on in this model.
    """
    options, measure = options or TrialOptions(), measure or MeasureOptions()
    faults, arms = options.faults, parse_arms(options.arms)
    if recipe.learning_rate is None:
        raise InputError("A confirmation trains, so it needs a learning rate; give --lr.")
    check_trainable(source)
    arms = arms if options.arms else default_arms(recipe, None)
    lacks_weights = decide_start(source.start, recipe=recipe).kind == "elsewhere"
    if options.record is not None and (lacks_weights or faults):
        raise InputError(
            "A record holds runs from the weights that the recipe means, without a planted fault; "
            "leave out --record."
        )
    data = None if measure.data is None else read_own_rows(measure.data)
    if data is not None:
        if source.batch is not None:
            raise InputError(
                f"The runs train on --data or on the batches of {source.target}, not on both."
            )
        fit_head(source, data)
    fault_step = min((getattr(make_fault(line), "step", 0) for line in faults), default=0)
    trained = recipe.shortened(options.steps)
    runs = _Runs(
        trainee=Trainee(source=source, recipe=trained, data=data, device=options.device),
        arms=arms,
        seeds=range(measure.seed, measure.seed + options.seeds),
        options=options,
        progress=progress,
    )
    make_monitors(runs.monitors)
    runs.trainee.rehearse(arms, faults)
    run = Run(target=source.target, recipe=trained)
    question = Question(run=run, source=source)
    question = question.learning(options.runs).keeping(cache)
    finished = None if options.keep is None else ResultFolder(options.keep)
    with nullcontext() if finished is None else finished.alone(), freed_memory_kept():
        started = time.perf_counter()
        prediction = runs.prediction(measure, question)
        if not options.arms:
            arms = default_arms(recipe, prediction.start_here)
            runs = replace(runs, arms=arms)
        predicted = time.perf_counter()
        trials = runs.train(finished, fault_step)
    timings = {"predict": predicted - started, "train": time.perf_counter() - predicted}
    return runs.report(recipe, prediction, trials, timings)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runs:
    trainee: Trainee
    arms: Sequence[Arm]
    seeds: Sequence[int]
    options: TrialOptions
    progress: TrainingProgress

    @property
    def monitors(self) -> list[str]:
        """Lines for the registry of monitors; all of them where none is named."""
        return self.options.monitors or ["all"]

    @property
    def total(self) -> int:
        """The steps of all runs together."""
        return len(self.seeds) * len(self.arms) * self.trainee.recipe.max_steps

    def settings(self) -> str:
        """Return a digest of everything that each run depends on."""
        asked = {"faults": self.options.faults, "monitors": self.monitors}
        return digest(json.dumps(self.trainee.identity() | asked, sort_keys=True, default=str))

    def prediction(self, options: MeasureOptions, question: Question) -> PredictionReport:
        """Return the mean prediction over the seeds."""
        evaluations: list[Evaluation] = []
        for seed in self.seeds:
            if evaluations and options.evidence == "config":  # a configuration has no seed
                evaluations.append(evaluations[0])
                continue
            self.progress(f"predicting seed {seed}", 0, self.total)
            at_seed = options.model_copy(update={"seed": seed})
            evaluations.append(question.evaluated(at_seed))
        return mean_prediction(evaluations, question.terms.gate.bar)

    def train(self, finished: ResultFolder | None, fault_step: int) -> list[TrialReport]:
        """Train every arm at every seed, except the finished runs of the same settings."""
        trials: list[TrialReport] = []
        data: dict[int, TrainingData] = {}  # holds the current seed
        runs = [(seed, arm) for seed in self.seeds for arm in self.arms]
        steps, settings = self.trainee.recipe.max_steps, self.settings()
        for number, (seed, arm) in enumerate(runs):
            name = f"run {number + 1} of {len(runs)}, {arm.label} seed {seed}"
            done = number * steps
            safe = "".join(c if c.isalnum() or c in "-._" else "-" for c in arm.label)
            file = f"{safe}-seed-{seed}"
            stored = None if finished is None else _stored(finished.read(file), settings)
            if stored is not None:
                trials.append(stored)
                self.progress(f"{name}: {_ended(stored)}, already finished", done, self.total)
                continue
            if seed not in data:
                data = {seed: self.trainee.data_of(seed)}
            sinks: list[Sink] = [_Critical(name, done, self.total, self.progress)]
            if finished is not None:
                sinks.append(JsonLines(finished.path(file, ".jsonl"), from_step=0))
            trial = self.trainee.trial(
                arm,
                seed,
                data[seed],
                fault_step=fault_step,
                faults=self.options.faults,
                monitors=self.monitors,
                sinks=sinks,
                checkpoints=None if finished is None else Checkpoints(finished.path(file, "")),
                progress=step_progress(self.progress, name, steps, done, self.total),
            )
            trials.append(trial)
            if finished is not None:
                whole = _File(settings=settings, trial=trial)
                finished.write(file, whole.model_dump_json(indent=1, exclude_none=False))
            if self.options.record is not None and not arm.interventions:
                append_row(self.options.record, trial_row(self.trainee, arm, trial))
            self.progress(f"{name}: {_ended(trial)}", done + steps, self.total)
        return trials

    def report(
        self,
        asked: Recipe,
        prediction: PredictionReport,
        trials: Sequence[TrialReport],
        timings: dict[str, float],
    ) -> ConfirmReport:
        """Return the document; `asked` is the user's own recipe."""
        source, trained = self.trainee.source, self.trainee.recipe
        faults = self.options.faults
        reports = compare(trials)
        found, reason = verdict(reports), why_failed(trials)
        said = [reason] * bool(reason) + conclude(prediction, reports, faults)
        if source.start.kind == "elsewhere":
            said.append(_RANDOM)
        if source.start.is_stored and source.batch is None and self.trainee.data is None:
            said.append(_NOT_YOURS)
        if trained.peft == "qlora":
            said.append(_UNQUANTIZED)
        is_failed, baseline = found == "failed", reports[0]
        counted = f"{baseline.failed} of {baseline.runs} runs of the baseline failed"
        packages = {name: version(name) for name in ("rksp", "torch", "transformers", "numpy")}
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
            gate=GateReport(
                fail_on="failed", failed=is_failed, issues=[], reasons=[counted] * is_failed
            ),
            conclusions=said,
            limit=limit(trials),
            arms=reports,
            trials=list(trials),
            provenance={
                **packages,
                "device": self.trainee.device,
                "python": platform.python_version(),
            },
            timings=timings,
        )


class _File(Strict):
    settings: str
    trial: TrialReport


def _stored(content: bytes | None, settings: str) -> TrialReport | None:
    try:
        found = None if content is None else _File.model_validate_json(content)
    except ValidationError:  # written by an older rksp
        return None
    return found.trial if found is not None and found.settings == settings else None


def mean_prediction(evaluations: Sequence[Evaluation], threshold: float) -> PredictionReport:
    """Average the predictions over the seeds; give a verdict only if every seed has one."""
    risks = [evaluation.risk for evaluation in evaluations]
    untold = [risk for risk in risks if isinstance(risk, Untold)]
    reasons = sorted({reason for risk in untold for reason in risk.reasons})
    told = [risk for risk in risks if risk.number("probability_failed") is not None]
    if len(told) < len(risks):
        verdict = worst("cannot tell", *(risk.verdict for risk in untold))
        return PredictionReport(verdict=verdict, reasons=reasons, threshold=threshold)

    def mean(name: str) -> float:
        return statistics.fmean(definite(risk.number(name)) for risk in told)

    probability = mean("probability_failed")
    is_sure = all(risk.verdict in ("ok", "risk") for risk in told)
    verdict = "risk" if probability >= threshold else "ok" if is_sure else "caution"
    return PredictionReport(
        probability_failed=probability,
        low=mean("probability_failed_low"),
        high=mean("probability_failed_high"),
        verdict=verdict,
        reasons=[],
        start_here=_least([risk.number("start_here") for risk in told]),
        do_not_exceed=_least([risk.number("do_not_exceed") for risk in told]),
        threshold=threshold,
        levers=told[0].levers if isinstance(told[0], FromEdge) else [],
    )


def _least(rates: Sequence[float | None]) -> float | None:
    given = [rate for rate in rates if rate is not None]
    return min(given) if len(given) == len(rates) else None


def _ended(trial: TrialReport) -> str:
    """Say how a run ended; that it failed beside its control is known when all have ended."""
    if trial.outcome != "healthy" or trial.final_loss is None:
        return trial.outcome
    return f"ended at a loss of {short(trial.final_loss)}"


class _Critical(Sink):
    def __init__(self, name: str, done: int, total: int, progress: TrainingProgress) -> None:
        self.name, self.done, self.total, self.progress = name, done, total, progress
        self._heard: set[str] = set()

    def write(self, readings: Sequence[Reading], alarms: Sequence[Alarm]) -> None:
        """Report the critical alarms of monitors that have not raised one before."""
        for alarm in alarms:
            if alarm.severity is Severity.CRITICAL and alarm.monitor not in self._heard:
                self._heard.add(alarm.monitor)
                what = f"{self.name}: alarm at step {alarm.step}, {sentence(alarm)}"
                self.progress(what, self.done + alarm.step, self.total)
