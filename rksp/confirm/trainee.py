"""The model that confirm and calibrate train: its start, one run of it, and that run's record."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rksp.confirm.arms import Arm
from rksp.confirm.data import TrainingData, label_entropy, training_data, trivial_loss
from rksp.confirm.trial import HeldOut, in_precision, train_arm
from rksp.datasets.batch import mean_loss
from rksp.datasets.own_rows import OwnRows
from rksp.documents.confirm import TrialReport
from rksp.ground.errors import InputError
from rksp.ground.files import digest
from rksp.models.adapters import as_trained
from rksp.models.names import identity
from rksp.models.source import ModelSource
from rksp.own_runs.outcome import Ended, Outcome
from rksp.own_runs.record import Row, Shape, row_of, shape_of
from rksp.recipe import Recipe
from rksp.recipe.optimizers.table import make_optimizer
from rksp.watch.faults.registry import make_fault
from rksp.watch.training.runner import RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainee:
    """A model that is trained several times, each time from its start.

    Attributes:
        source: The model, or its tiny twin.
        recipe: As it is trained; an arm changes it.
        text: A file to train on instead of the bundled text.
        data: The user's examples, instead of a text.
        device: Where it trains.
    """

    source: ModelSource
    recipe: Recipe
    text: Path | None = None
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
            "text": None if self.text is None else digest(self.text.read_bytes(), length=64),
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
        """Return the data of the runs at one seed; see `training_data`."""
        return training_data(
            self.source,
            self.recipe,
            seed=seed,
            text=self.text,
            data=self.data,
            device=self.device,
            holds_out=self.source.is_pretrained,
        )

    def model(self, seed: int) -> nn.Module:
        """Return the model as its run at this seed starts, on its device."""
        return starting_model(self.source, self.recipe, seed).to(self.device)

    def run(
        self, arm: Arm, seed: int, data: TrainingData, **watched: Any
    ) -> tuple[RunRecord, HeldOut | None]:
        """Train one arm, and judge it by what it did not see, where something was held out.

        Args:
            arm: The variant.
            seed: Of initialization, dropout and faults.
            data: From `data_of`.
            **watched: As for `train_arm`.
        """
        model, held = self.model(seed), data.held_out
        before = mean_loss(model, held) if held else 0.0
        record = train_arm(model, data.batches, self.recipe, arm, seed=seed, **watched)
        return record, HeldOut(before=before, after=mean_loss(model, held)) if held else None


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


def starting_model(source: ModelSource, recipe: Recipe, seed: int) -> nn.Module:
    """Build a model as its run starts: with the recipe's adapters and precision, in training mode.

    Raises:
        InputError: The adapters cannot be built.
    """
    model = as_trained(source.build(seed), recipe, source.task, seed=seed)
    return in_precision(model, recipe).train()


def rehearse(
    source: ModelSource, recipe: Recipe, arms: Sequence[Arm], faults: Sequence[str]
) -> None:
    """Bind every intervention and fault to the model once, before an hour is spent on training."""
    for arm in arms:
        model = starting_model(source, recipe, source.seed)
        for line in faults:
            make_fault(line).bind(model, seed=0)
        if arm.interventions:
            optimizer = make_optimizer(model, recipe)
            for intervention in arm.make():
                intervention.bind(model, optimizer)


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
    declared = shape_of(source.config, source.task, trained, is_trained=source.holds_trained)
    known = shape or declared
    if known is not None and (entropy := trainee.entropy) is not None:
        known = replace(known, entropy=entropy)
    name = f"{source.target} {arm.label} seed {trial.seed}"
    return row_of(name, trained, known, final_loss=final, state=state, seed=trial.seed, **more)
