"""One initialization's evidence, and what recipes share of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

from rksp.batch import Batch
from rksp.checks.facts import ModelFacts
from rksp.datasets.probe import Probe, make_probe
from rksp.features import Evidence
from rksp.measure.lr_range import STEPS, RangeTest, range_test
from rksp.measure.response import ResponseProfile, measure_response
from rksp.models.source import ModelSource
from rksp.recipe import Recipe
from rksp.spectra.model_profile import Profile

_RESPONSE_SHARE = 4  # the response looks at a quarter of the probe's sequences

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """What one initialization showed; any number of recipes can be judged by it.

    Attributes:
        source: The target.
        seed: Of the initialization.
        evidence: How much may be spent on a recipe.
        model: As initialized; every measurement leaves it so.
        probe: What it was shown, and the same as a batch.
        profile: Spectra and forward statistics.
        facts: What the checks read off the model.
        weights: How the weights were held, a sentence.
        seconds: Cost by step.
    """

    source: ModelSource
    seed: int
    evidence: Evidence
    model: nn.Module
    probe: Probe
    probe_file: Path | None
    profile: Profile
    facts: ModelFacts
    weights: str
    seconds: dict[str, float]
    _responses: dict[Recipe, ResponseProfile] = field(default_factory=dict)
    _range_tests: dict[Recipe, RangeTest] = field(default_factory=dict)

    def response(self, recipe: Recipe, progress: Progress) -> ResponseProfile | None:
        """The response to the recipe's first update, measured once for all that share it."""
        batch = as_batch(self.probe)
        if self.evidence < Evidence.RESPONSE or batch.labels is None:
            return None
        if recipe.optimizer not in _FIRST_STEP:
            return None  # a name that rksp can check, but not a step that it can take
        step = first_step(recipe)
        if step not in self._responses:
            same, fresh = _halves(batch)
            with timed(self.seconds, "response", progress):
                self._responses[step] = measure_response(self.model, same, fresh, step)
        return self._responses[step]

    def range_test(
        self, recipe: Recipe, response: ResponseProfile | None, progress: Progress
    ) -> RangeTest | None:
        """The range test of the recipe's optimizer, run once for all that share it."""
        if self.evidence < Evidence.MICRO or response is None or not response.update_rms:
            return None
        shared = recipe.model_copy(
            update={
                "learning_rate": None,
                "warmup_steps": 0,
                "max_steps": 1,
                "schedule": "constant",
                "min_lr_ratio": 0.0,
                "batch_size": min(2, recipe.batch_size),
                "sequence_length": 2,
                "gradient_accumulation_steps": 1,
                "precision": "fp32",
            }
        )
        if shared not in self._range_tests:
            batches = _micro_batches(self.source, shared, self.probe_file)
            with timed(self.seconds, "range test", progress):
                self._range_tests[shared] = range_test(
                    self.model, batches, shared, update_rms=response.update_rms
                )
        return self._range_tests[shared]


# What an optimizer's first step depends on besides the rate. The betas cancel in Adam's bias
# correction, and a momentum buffer starts as the gradient itself.
_FIRST_STEP = {
    "adamw": ("adam_epsilon", "max_grad_norm", "weight_decay"),
    "sgd": ("max_grad_norm", "weight_decay"),
    "lion": ("weight_decay",),
    "adafactor": ("max_grad_norm", "weight_decay"),
    "muon": ("max_grad_norm", "weight_decay"),
}


def first_step(recipe: Recipe) -> Recipe:
    """The recipe reduced to what its first update depends on, all else at the default.

    Recipes that agree here share one `ResponseProfile`: its algebra is linear in the rate, and
    the schedule, the batch and the run's length come later.
    """
    names = ("optimizer", *_FIRST_STEP[recipe.optimizer])
    return Recipe(**{name: getattr(recipe, name) for name in names})


@contextmanager
def timed(seconds: dict[str, float], step: str, progress: Progress) -> Iterator[None]:
    """Says what is about to happen, and adds what it cost."""
    progress(step)
    start = time.perf_counter()
    yield
    seconds[step] = seconds.get(step, 0.0) + time.perf_counter() - start


def as_batch(probe: Probe) -> Batch:
    return Batch(inputs=probe.inputs, labels=probe.labels)


def _halves(batch: Batch) -> tuple[Batch, Batch]:
    """Two disjoint batches from the probe, together a quarter of its sequences."""
    count = len(batch.labels)
    size = max(1, count // (2 * _RESPONSE_SHARE))
    return _rows(batch, 0, size), _rows(batch, size, 2 * size)


def _rows(batch: Batch, start: int, stop: int) -> Batch:
    return Batch(
        inputs={key: value[start:stop] for key, value in batch.inputs.items()},
        labels=batch.labels[start:stop],
    )


def _micro_batches(source: ModelSource, recipe: Recipe, file: Path | None) -> list[Batch]:
    """Forty batches of at most two sequences: what a CPU can train on in minutes."""
    size = min(2, recipe.batch_size)
    batch = as_batch(make_probe(source, num_sequences=STEPS * size, seed=1, text=file))
    count = len(batch.labels)
    starts = [(step * size) % max(1, count - size + 1) for step in range(STEPS)]
    return [_rows(batch, start, start + size) for start in starts]
