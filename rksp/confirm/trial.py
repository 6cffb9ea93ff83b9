"""A trial: one arm trained at one seed, on data that all arms share, and what it came to."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rksp.confirm.arms import Arm
from rksp.datasets.batch import IGNORED, Batch, mean_loss
from rksp.datasets.own_data import OwnRows, own_probe
from rksp.datasets.probe import make_probe
from rksp.documents.confirm import PROFILED, Curve, TrialReport
from rksp.ground.errors import InputError
from rksp.ground.files import digest
from rksp.ground.model import definite
from rksp.models.adapters import as_trained
from rksp.models.given import one_batch
from rksp.models.names import identity
from rksp.models.source import ModelSource
from rksp.own_runs.outcome import Curves, Ended, Outcome, OutcomePolicy
from rksp.own_runs.record import Row, Shape, row_of, shape_of
from rksp.recipe import Recipe
from rksp.recipe.optimizers.table import make_optimizer
from rksp.watch.monitors.base import Alarm, Reading
from rksp.watch.monitors.rules import Rules
from rksp.watch.monitors.sinks import Sink
from rksp.watch.monitors.watch import Watch
from rksp.watch.registry import make_fault, make_monitors
from rksp.watch.run_state import Checkpoints
from rksp.watch.training.loop import Progress, RunRecord, run, without

_POOL = 4096  # sequences in memory; longer runs see them again in another order
_HIDDEN_SHARE = 0.15  # of a masked language model's tokens (Devlin et al., 2019)
_HELD_OUT = 64  # examples that judge a run of trained weights and are never trained on
_BETWEEN = 16  # sequences beside them that are left out: of a short text, neighbors overlap
_JUDGED = 16  # examples a pass
_HELD_SHARE = 5  # a fifth of the user's own examples, where they are few

CURVE_POINTS = 200
_WINDOWED = "qk_delta2_rank"  # is read over several windows
# Called with what is done, the training steps done so far, and the steps of all runs.
TrainingProgress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingData:
    """The data of the runs at one seed.

    Attributes:
        batches: One for every micro-step.
        held_out: Batches that no run trains on; none where nothing is held out.
    """

    batches: list[Batch]
    held_out: list[Batch]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainee:
    """A model that is trained several times, each time from its start.

    Attributes:
        source: The model, or its tiny twin.
        recipe: As it is trained; an arm changes it.
        data: The user's examples, instead of a text.
        device: Where it trains.
    """

    source: ModelSource
    recipe: Recipe
    data: OwnRows | None = None
    device: str = "cpu"

    def identity(self) -> dict[str, object]:
        """Return what all of its runs depend on."""
        return {
            "target": [
                self.source.target,
                self.source.config_hash,
                identity(self.source.folder or self.source.target),
            ],
            "recipe": self.recipe.model_dump(mode="json"),
            "data": None if self.data is None else digest(repr(self.data), length=64),
            "device": self.device,
        }

    @property
    def entropy(self) -> float | None:
        """The loss, in nats, of answering with the frequencies of the labels that classes have.

        None of language models, whose tokens have several nats, and where no labels are at hand.
        """
        if self.data is not None and self.data.labels:
            places = {label: n for n, label in enumerate(self.data.classes)}
            return label_entropy(torch.tensor([places[label] for label in self.data.labels]))
        return None if self.source.batch is None else trivial_loss([self.source.batch])

    def data_of(self, seed: int) -> TrainingData:
        """Draw the data of the runs at one seed, by the seed alone.

        The data are the model's own batches where it brings some, or the user's examples. Otherwise
        sequences are places of the probe text in random order; each occurs once before any repeats.
        Where the weights are trained, some examples are held out.

        Raises:
            InputError: The model has no loss to train, or the text cannot be used.
        """
        source, recipe, holds_out = self.source, self.recipe, self.source.start.is_stored
        generator = torch.Generator().manual_seed(seed)
        steps = recipe.max_steps * recipe.gradient_accumulation_steps
        size = max(1, recipe.batch_size // recipe.gradient_accumulation_steps)
        if source.loader is not None:
            return _of_loader(source.at(seed), steps, seed, holds_out, self.device)
        spare = _HELD_OUT + 2 * _BETWEEN if holds_out else 0
        pool = self._pool(min(_POOL, steps * size) + spare, seed, generator)
        if pool.is_whole:
            return TrainingData(batches=[pool.to(self.device)] * steps, held_out=[])
        if source.batch is None and self.data is None:  # in the order of the text: places overlap
            places = torch.arange(pool.count)
            _, held, _, free = places.tensor_split([_BETWEEN, _BETWEEN + _HELD_OUT, spare])
            held, free = (held, free) if holds_out else (places[:0], places)
        else:
            first = min(_HELD_OUT, pool.count // _HELD_SHARE) if holds_out else 0
            held, free = torch.randperm(pool.count, generator=generator).tensor_split([first])
        rounds = -(-steps * size // len(free))
        order = [free[torch.randperm(len(free), generator=generator)] for _ in range(rounds)]
        return TrainingData(
            batches=_parts(pool, torch.cat(order)[: steps * size], size, self.device),
            held_out=_parts(pool, held, _JUDGED, self.device),
        )

    def _pool(self, count: int, seed: int, generator: torch.Generator) -> Batch:
        source, data = self.source, self.data
        if source.batch is not None:
            return definite(source.at(seed).batch)
        if source.task == "text-classification" and data is None:
            raise InputError(
                f"{source.target} classifies texts, and rksp has no labelled ones of its own to "
                "train it on; give --data FILE with the columns text and label."
            )
        made = make_probe if data is None else partial(own_probe, data=data)
        length = self.recipe.sequence_length
        pool = made(source, num_sequences=count, sequence_length=length, seed=seed)
        if pool.labels is None:
            raise InputError(
                f"rksp has no labels for what {source.target} predicts, so it cannot train it; "
                "give a language model, a classifier of images of at least ten classes, or one of "
                "texts with --task text-classification and --data."
            )
        inputs, labels = dict(pool.inputs), pool.labels
        if source.task == "masked-lm":
            inputs["input_ids"], labels = _hidden(inputs["input_ids"], source.config, generator)
        return Batch(inputs=inputs, labels=labels)

    def model(self, seed: int) -> nn.Module:
        """Return the model as its run at this seed starts, on its device and in training mode.

        It has the recipe's adapters and precision.

        Raises:
            InputError: The adapters cannot be built.
        """
        model = as_trained(self.source.build(seed), self.recipe, self.source.task, seed=seed)
        kinds = {"bf16-pure": torch.bfloat16, "fp16-pure": torch.float16}  # of the weights too
        return model.to(self.device, kinds.get(self.recipe.precision)).train()

    def rehearse(self, arms: Sequence[Arm], faults: Sequence[str]) -> None:
        """Bind interventions and faults to the model once, before an hour is spent on training."""
        for arm in arms:
            model = self.model(self.source.seed)
            for line in faults:
                make_fault(line).bind(model, seed=0)
            if arm.interventions:
                optimizer = make_optimizer(model, self.recipe)
                for intervention in arm.make():
                    intervention.bind(model, optimizer)

    def trial(
        self,
        arm: Arm,
        seed: int,
        data: TrainingData,
        *,
        fault_step: int = 0,
        **watched: Any,
    ) -> TrialReport:
        """Train one arm, and judge it by what it did not see, where something was held out.

        Args:
            arm: The variant.
            seed: Of initialization, dropout and faults.
            data: From `data_of`.
            fault_step: Alarms from this step on count as having seen the trouble.
            **watched: As for `train_arm`.
        """
        model, held = self.model(seed), data.held_out
        before = mean_loss(model, held) if held else 0.0
        record = train_arm(model, data.batches, self.recipe, arm, seed=seed, **watched)
        return sum_up(
            record,
            arm.label,
            seed,
            fault_step=fault_step,
            trivial_loss=trivial_loss(data.batches),
            held_out=(before, mean_loss(model, held)) if held else None,
        )


def _parts(pool: Batch, order: Tensor, size: int, device: str) -> list[Batch]:
    return [pool.at(rows).to(device) for rows in torch.split(order, size)] if len(order) else []


def _of_loader(
    source: ModelSource, steps: int, seed: int, holds_out: bool, device: str
) -> TrainingData:
    """Take a loader's batches of one pass, as it orders them under the seed; they repeat."""
    model, objective = definite(source.model), definite(definite(source.batch).objective)
    loader: Iterable[object] = definite(source.loader)
    most = -(-_HELD_OUT // max(1, definite(source.batch).count)) if holds_out else 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        found = [one_batch(model, given, objective) for given in islice(loader, steps + most)]
    first = min(most, len(found) // _HELD_SHARE) or min(most, len(found) - 1)
    return TrainingData(
        batches=[batch.to(device) for batch in islice(cycle(found[first:]), steps)],
        held_out=[batch.to(device) for batch in found[:first]],
    )


def _hidden(tokens: Tensor, config: Any, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    mask = getattr(config, "mask_token_id", None)
    mask = config.vocab_size - 1 if mask is None else mask
    hidden = torch.rand(tokens.shape, generator=generator) < _HIDDEN_SHARE
    hidden[:, 0] |= ~hidden.any(-1)
    return tokens.masked_fill(hidden, mask), tokens.masked_fill(~hidden, IGNORED)


def trivial_loss(batches: Sequence[Batch]) -> float | None:
    """Return the loss, in nats, of always predicting the frequencies of the batches' labels.

    None where the labels are no classes, or the loss is the user's own.
    """
    labels = [batch.labels for batch in batches]
    known = [part.flatten() for part in labels if part is not None and not part.is_floating_point()]
    is_named = any(getattr(batch.objective, "loss", None) is not None for batch in batches)
    if is_named or len(known) < len(batches):
        return None
    classes = torch.cat(known)
    return label_entropy(classes[classes != IGNORED])


def label_entropy(labels: Tensor) -> float:
    """Return the loss, in nats, of always answering with the frequencies of these labels."""
    counts = labels.bincount().double()
    share = counts[counts > 0] / counts.sum()
    return float(-(share * share.log()).sum())


def step_progress(
    progress: TrainingProgress, name: str, steps: int, done: int, total: int
) -> Progress:
    """Return the progress of the steps of one run, after `done` steps of earlier ones."""
    return lambda step, loss: progress(
        f"{name}: step {step + 1}/{steps}, loss {loss:.4g}", done + step + 1, total
    )


def check_trainable(source: ModelSource) -> None:
    """Refuse what cannot be trained.

    Raises:
        InputError: It is too large, or neither a model of transformers nor with a batch of its own.
    """
    source.check_size()
    if source.config is None and source.batch is None:
        raise InputError(
            f"{source.target} comes without a batch, and rksp has only text and images of its own "
            "to train on; return (model, batches) from the factory."
        )


def trial_row(
    trainee: Trainee, arm: Arm, trial: TrialReport, shape: Shape | None = None, **more: object
) -> Row:
    """Return the record of a run without interventions: with one it is none of its recipe.

    Args:
        trainee: The model and the recipe that the arm changes.
        arm: What the run changed.
        trial: What it left behind.
        shape: Of the model; default what its configuration declares.
        **more: Further columns.
    """
    trained, source = arm.recipe(trainee.recipe), trainee.source
    judged = trial.final_loss if trial.untrained_loss is None else trial.held_out_loss
    final = math.nan if judged is None else judged
    state: Ended = "diverged" if trial.outcome == Outcome.DIVERGED else "finished"
    declared = shape_of(source.config, source.task, trained, start=source.start)
    known = shape or declared
    if known is not None and (entropy := trainee.entropy) is not None:
        known = replace(known, entropy=entropy)
    name = f"{source.target} {arm.label} seed {trial.seed}"
    row = row_of(name, trained, known, final_loss=final, state=state, seed=trial.seed)
    return row | more


def train_arm(
    model: nn.Module,
    batches: Sequence[Batch],
    recipe: Recipe,
    arm: Arm,
    *,
    seed: int,
    faults: Sequence[str] = (),
    monitors: Sequence[str] = (),
    sinks: Sequence[Sink] = (),
    checkpoints: Checkpoints | None = None,
    progress: Progress = lambda step, loss: None,
) -> RunRecord:
    """Train one arm with its monitors; make all parts afresh from their lines.

    Raises:
        InputError: A line cannot be used, or it finds nothing in this model.
    """
    recipe = arm.recipe(recipe)
    watch = Watch(make_monitors(monitors) if monitors else [], alarm_rules(recipe), sinks)
    return run(
        model.train(),
        batches,
        recipe,
        watch=watch,
        interventions=arm.make(),
        faults=[make_fault(line) for line in faults],
        seed=seed,
        checkpoints=checkpoints,
        progress=progress,
    )


def alarm_rules(recipe: Recipe) -> Rules:
    """Return the rules that judge the readings of a run of this recipe."""
    return Rules(warmup_steps=recipe.warmup_steps)


def seen(alarms: Sequence[Alarm], start: int | None, *, since: int) -> dict[str, dict[str, int]]:
    """Return the fields of a report that tell which monitor saw what, and how long before `start`.

    Alarms from step `since` on count as having seen the trouble. `alarms` counts episodes. A lead
    is negative if the monitor came after.
    """
    first: dict[str, int] = {}
    for alarm in alarms:
        if alarm.step >= since:
            first[alarm.monitor] = min(alarm.step, first.get(alarm.monitor, alarm.step))
    return {
        "first_alarms": first,
        "leads": {} if start is None else {name: start - first[name] for name in sorted(first)},
        "alarms": dict(Counter(alarm.monitor for alarm in alarms if not alarm.is_escalation)),
    }


def sum_up(
    record: RunRecord,
    arm: str,
    seed: int,
    *,
    fault_step: int = 0,
    trivial_loss: float | None = None,
    held_out: tuple[float, float] | None = None,
) -> TrialReport:
    """Return the report of a run; alarms from `fault_step` on count as having seen the trouble.

    `held_out` is the mean loss, in nats, on examples that no run trained on, before the first step
    and at the end, where it may be infinite or undefined.
    """
    before, after = held_out or (None, math.nan)
    policy = OutcomePolicy()
    counted = without(record.curves, record.undone)
    final = policy.final_loss(counted)
    start = onset(record.curves, policy)
    return TrialReport(
        arm=arm,
        seed=seed,
        outcome=record.outcome.value,
        final_loss=final if math.isfinite(final) else None,
        steps=len(record.curves.loss),
        undone=len(record.curves.loss) - len(counted.loss),
        onset=start,
        **seen(record.alarms, start, since=fault_step),
        silent=dict(record.silent),
        actions=dict(Counter(action.intervention for action in record.actions)),
        action_seconds=record.action_seconds,
        monitor_seconds=sum(record.monitor_seconds.values()),
        seconds=record.seconds,
        step_seconds=record.step_seconds,
        loss=_points(record.curves, "loss"),
        grad_norm=_points(record.curves, "grad_norm"),
        profiles=profile_curves(record.readings),
        checkpoint=record.checkpoint,
        trivial_loss=trivial_loss,
        untrained_loss=before,
        held_out_loss=after if math.isfinite(after) else None,
    )


def _points(curves: Curves, name: str) -> list[tuple[int, float | None]]:
    values = getattr(curves, name)
    count = min(CURVE_POINTS, len(values))
    chosen = np.unique(np.linspace(0, len(values) - 1, count).round().astype(int))
    return [(int(i), float(values[i]) if np.isfinite(values[i]) else None) for i in chosen]


def onset(curves: Curves, policy: OutcomePolicy) -> int | None:
    """Return the step at which the loss first shows that the run fails; None if it never does.

    It is the earlier of two steps: the first step that is not finite or exceeds the published
    thresholds, and the step at which the smoothed loss left its running minimum by the margin for
    good, if it later reached the spike height. The protocol of long runs (0.5 nats above the
    minimum for 100 steps) is applied to short runs with a window of a tenth of the planned steps.
    """
    loss, norm = curves.loss.astype(np.float64), curves.grad_norm.astype(np.float64)
    bad = ~np.isfinite(loss) | ~np.isfinite(norm)
    bad |= (loss > policy.max_loss) | (norm > policy.max_grad_norm)
    steps = np.flatnonzero(bad)[:1].tolist()
    finite = loss[np.isfinite(loss)]
    window = max(1, round(policy.final_share * curves.planned_steps))
    if len(finite) >= 2 * window:
        smooth = np.convolve(finite, np.full(window, 1 / window), "valid")
        excess = smooth - np.minimum.accumulate(smooth)
        left = int(np.flatnonzero(excess <= policy.margin)[-1]) + 1  # the minimum is always one
        if (excess[left:] > policy.spike_height).any():
            steps.append(left + window - 1)
    return min(steps, default=None)


def profile_curves(readings: Sequence[Reading]) -> dict[str, Curve]:
    """Return (step, value) of every quantity of `PROFILED` that was read, in the order of steps.

    Of the windows of `qk_delta2_rank` it takes the shortest. Values that are not finite are left
    out.
    """
    windows = [r.quantity for r in readings if r.quantity.rpartition("_")[0] == _WINDOWED]
    shortest = min(windows, key=lambda name: int(name.rpartition("_")[2]), default="")
    found: dict[str, dict[int, list[float]]] = {}
    for reading in readings:
        name = _WINDOWED if reading.quantity == shortest else reading.quantity
        is_mean = name == "near_unit_mass" and reading.layer
        if name in PROFILED and not is_mean and math.isfinite(reading.value):
            found.setdefault(name, {}).setdefault(reading.step, []).append(reading.value)
    return {
        name: [(step, _mean(name, values)) for step, values in sorted(found[name].items())]
        for name in PROFILED
        if name in found
    }


def _mean(name: str, values: Sequence[float]) -> float:
    is_geometric = name == "stable_rank" and min(values) > 0
    return statistics.geometric_mean(values) if is_geometric else statistics.fmean(values)
