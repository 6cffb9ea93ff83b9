"""The confirmation: predict, train every arm at every seed, compare."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from rksp.confirm.arms import Arm
from rksp.confirm.compare import compare, conclude, prediction_held
from rksp.confirm.data import training_batches
from rksp.confirm.schema import ConfirmReport, PredictionReport
from rksp.confirm.trial import TrialReport, in_precision, sum_up, train_arm
from rksp.errors import InputError
from rksp.faults.registry import make_fault
from rksp.features import Evidence
from rksp.models.source import ModelSource
from rksp.monitors.registry import make_monitors
from rksp.monitors.sinks import JsonLines
from rksp.optimizers import make_optimizer
from rksp.pipeline import Evaluation, evaluate
from rksp.recipe import Recipe
from rksp.training.checkpoints import Checkpoints

STEPS = 200  # the longest horizon that the shipped classifier knows

Say = Callable[[str], None]


def shortened(recipe: Recipe, steps: int) -> Recipe:
    """The recipe in `steps` steps: the whole schedule, warm-up in proportion."""
    steps = min(steps, recipe.max_steps)
    warmup = round(recipe.warmup_steps * steps / recipe.max_steps)
    return recipe.model_copy(update={"max_steps": steps, "warmup_steps": warmup})


def confirm(
    source: ModelSource,
    recipe: Recipe,
    arms: Sequence[Arm],
    *,
    steps: int = STEPS,
    seeds: Sequence[int] = (0, 1, 2),
    faults: Sequence[str] = (),
    monitors: Sequence[str] = ("all",),
    evidence: Evidence = Evidence.RESPONSE,
    threshold: float = 0.5,
    text: Path | None = None,
    device: str = "cpu",
    folder: Path | None = None,
    say: Say = lambda line: None,
) -> ConfirmReport:
    """Trains all arms from the same initializations on the same batches, and compares them.

    Args:
        source, recipe: What would be trained; the recipe needs a learning rate.
        arms: The baseline first.
        steps: Of every run; see `shortened`.
        seeds: Of initialization, data order, dropout and faults.
        faults, monitors: Lines for their registries.
        evidence, threshold: Of the prediction; see `rksp.pipeline.evaluate`.
        text: A file to train on instead of the bundled text.
        device: Where to train; the prediction is made on the CPU.
        folder: Keep the monitors' readings (JSON Lines) and, of runs with a critical alarm, a
            checkpoint from before it.
        say: Told what is going on.

    Raises:
        InputError: Something cannot be used, said before anything is trained.
        NotCovered: An intervention or fault finds nothing to act on in this model.
    """
    if recipe.learning_rate is None:
        raise InputError("A confirmation trains, so it needs a learning rate; give --lr.")
    source.check_size()
    fault_step = min((getattr(make_fault(line), "step", 0) for line in faults), default=0)
    if monitors:
        make_monitors(monitors)
    trained = shortened(recipe, steps)
    _rehearse(source, trained, arms, faults)
    started = time.perf_counter()
    evaluations = []
    for seed in seeds:
        say(f"predicting seed {seed}")
        evaluations.append(
            evaluate(
                source, trained, seed=seed, evidence=evidence, probe_file=text, threshold=threshold
            )[0]
        )
    predicted = time.perf_counter()
    prediction = _prediction(evaluations, threshold)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)

    trials: list[TrialReport] = []
    for seed in seeds:
        batches = training_batches(source, trained, seed=seed, text=text, device=device)
        for arm in arms:
            number = f"run {len(trials) + 1} of {len(arms) * len(seeds)}, {arm.label} seed {seed}"
            place = None if folder is None else folder / f"{_slug(arm.label)}-seed-{seed}"
            record = train_arm(
                in_precision(source.build(seed), trained).to(device),
                batches,
                trained,
                arm,
                seed=seed,
                faults=faults,
                monitors=monitors,
                sinks=[] if place is None else [JsonLines(place.with_suffix(".jsonl"))],
                checkpoints=None if place is None else Checkpoints(place),
                progress=lambda step, loss, number=number: say(
                    f"{number}: step {step + 1}/{trained.max_steps}, loss {loss:.4g}"
                ),
            )
            trials.append(sum_up(record, arm.label, seed, fault_step=fault_step))
            say(f"{number}: {trials[-1].outcome}")
    reports = compare(trials)
    return ConfirmReport(
        target=_target(source),
        asked=recipe,
        trained=trained,
        faults=list(faults),
        prediction=prediction,
        prediction_held=prediction_held(prediction, reports[0]),
        verdict="failed" if reports[0].failed else "trained",
        conclusions=conclude(prediction, reports, faults),
        arms=reports,
        trials=trials,
        provenance=_provenance(device),
        timings={"predict": predicted - started, "train": time.perf_counter() - predicted},
    )


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


def _prediction(evaluations: Sequence[Evaluation], threshold: float) -> PredictionReport:
    """Means over the seeds; the verdict is that of the mean where every seed has one."""
    risks = [evaluation.risk for evaluation in evaluations]
    reasons = sorted(
        {e.risk_missing for e in evaluations if e.risk_missing}
        | {reason for risk in risks if risk for reason in risk.reasons}
    )
    failed = [risk.failed for risk in risks if risk is not None and risk.failed is not None]
    if len(failed) < len(evaluations):
        is_missing = any(risk is None for risk in risks)
        return PredictionReport(
            probability_failed=None,
            low=None,
            high=None,
            verdict="not assessed" if is_missing else "indeterminate",
            reasons=reasons,
            safe_learning_rate=None,
            threshold=threshold,
        )
    probability = statistics.fmean(p.probability for p in failed)
    verdict = "risk" if probability >= threshold else "ok"
    safe = [risk.safe_learning_rate for risk in risks if risk.safe_learning_rate is not None]
    return PredictionReport(
        probability_failed=probability,
        low=statistics.fmean(p.low for p in failed),
        high=statistics.fmean(p.high for p in failed),
        verdict="indeterminate" if reasons else verdict,
        reasons=reasons,
        safe_learning_rate=min(safe) if len(safe) == len(risks) else None,
        threshold=threshold,
    )


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


def _slug(label: str) -> str:
    return "".join(c if c.isalnum() or c in "-._" else "-" for c in label)
