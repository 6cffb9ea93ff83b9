"""The main road: a target and a recipe in, the evidence and the answer out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from rksp.classifiers.classifier import DivergenceClassifier, load_classifier
from rksp.datasets.probe import Probe, make_probe
from rksp.datasets.tasks import Batch
from rksp.dmd import VARIANTS
from rksp.errors import ArtifactError, InputError
from rksp.features import Evidence, extract
from rksp.forward import ForwardStats
from rksp.models.resolve import ModelSource
from rksp.range_test import STEPS, RangeTest, range_test
from rksp.recipe import Recipe
from rksp.response import ResponseProfile, measure_response
from rksp.risk import RiskAssessment, assess
from rksp.snapshots import Collected, collect
from rksp.spectral_profile import SpectralAccumulator, SpectralProfile

STATES = 2048  # enough for a full-rank spectrum at width 768: 2.7 states a dimension
_RESPONSE_SHARE = 4  # the response looks at a quarter of the probe's sequences

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What one forward pass showed of one model.

    Attributes:
        spectra: One spectrum per block, and their aggregates.
        forward: Statistics of the same pass.
        chains: (path, number of blocks) of the residual stream.
        width: Width of the residual stream.
        states: States per block before duplicates were removed.
        forward_passes: Cost in passes over the probe.
    """

    spectra: SpectralProfile
    forward: ForwardStats
    chains: tuple[tuple[str, int], ...]
    width: int
    states: int
    forward_passes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """All evidence for one seed of one target, and the answer it led to."""

    seed: int
    profile: Profile
    response: ResponseProfile | None
    range_test: RangeTest | None
    risk: RiskAssessment | None
    risk_missing: str | None
    seconds: Mapping[str, float] = field(default_factory=dict)


def profile(
    model: nn.Module,
    inputs: torch.Tensor | dict[str, torch.Tensor] | Batch,
    *,
    variant: str = "rksp-1",
    rank: int | None = None,
    kreiss: bool = False,
    num_states: int | None = None,
    blocks: str | None = None,
    workers: int = 1,
) -> Profile:
    """Profiles a model that you already have: one forward pass, every block's spectrum.

    Args:
        model: Any `nn.Module` with a chain of blocks; left bitwise as found.
        inputs: What the model is called with: a tensor, keyword arguments, or a `Batch` with
            labels for the initial loss. `attention_mask` zeros are left out.
        variant: A name in `rksp.dmd.VARIANTS`; the published definitions are there by name.
        rank: Keep this many principal directions; default decided from the data.
        kreiss: Also the Kreiss constant of each block (slow).
        num_states: Use this many token states; default all.
        blocks: Module path of the list of blocks; default the one that is found.
        workers: Threads for the eigenproblems; the result does not depend on it.

    Raises:
        InputError: An option or the inputs cannot be used.
        NotCovered: The model has no residual stream of constant width.
    """
    if variant not in VARIANTS:
        raise InputError(f"No variant is called {variant!r}; there are {', '.join(VARIANTS)}.")
    batch = inputs if isinstance(inputs, Batch) else Batch(inputs=inputs, labels=None)
    with SpectralAccumulator(
        variant=VARIANTS[variant], rank=rank, kreiss=kreiss, workers=workers
    ) as spectra:
        seen: Collected = collect(
            model, batch, consume=spectra.consume, num_states=num_states, blocks=blocks
        )
        return Profile(
            spectra=spectra.finish(),
            forward=seen.forward,
            chains=seen.chains,
            width=seen.width,
            states=seen.states,
            forward_passes=seen.forward_passes,
        )


def evaluate(
    source: ModelSource,
    recipe: Recipe,
    *,
    seed: int = 0,
    evidence: Evidence = Evidence.RESPONSE,
    probe_file: Path | None = None,
    num_states: int = STATES,
    blocks: str | None = None,
    variant: str = "rksp-1",
    rank: int | None = None,
    kreiss: bool = False,
    workers: int = 1,
    threshold: float = 0.5,
    risk: float = 0.05,
    classifier: DivergenceClassifier | None = None,
    progress: Progress = lambda step: None,
) -> tuple[Evaluation, Probe]:
    """Gathers the evidence for one target and recipe at one seed, and assesses it.

    Args:
        evidence: How much to spend; a model without a loss of its own (a factory) stops at the
            forward tier.
        threshold, risk: See `rksp.risk.assess`.
        classifier: Default the shipped one; without any, the risk is missing with a reason.
        progress: Told what is about to happen.

    Raises:
        InputError: An option, the probe or the model cannot be used.
    """
    seconds: dict[str, float] = {}

    def timed(step: str, action):
        progress(step)
        start = time.perf_counter()
        result = action()
        seconds[step] = time.perf_counter() - start
        return result

    if source.kind == "factory":
        raise InputError(
            f"{source.target} is a factory, and rksp cannot know what to show it; "
            "call rksp.profile(model, inputs) from Python."
        )
    sequences = None if num_states == STATES else max(2, math.ceil(num_states / 128))
    probe = make_probe(source, num_sequences=sequences, text=probe_file)
    batch = _as_batch(probe)
    model = timed("build", lambda: source.build(seed))
    seen = timed(
        "forward and spectra",
        lambda: profile(
            model,
            batch,
            variant=variant,
            rank=rank,
            kreiss=kreiss,
            num_states=num_states,
            blocks=blocks,
            workers=workers,
        ),
    )
    response = rising = None
    if evidence >= Evidence.RESPONSE and batch.labels is not None:
        same, fresh = _halves(batch)
        response = timed("response", lambda: measure_response(model, same, fresh, recipe))
    if evidence >= Evidence.MICRO and response is not None and response.update_rms:
        batches = _micro_batches(source, recipe, probe_file)
        rising = timed(
            "range test",
            lambda: range_test(model, batches, recipe, update_rms=response.update_rms),
        )
    missing, assessment = None, None
    try:
        assessment = assess(
            extract(
                recipe.model_copy(update={"learning_rate": recipe.learning_rate or 1.0}),
                depth=sum(length for _, length in seen.chains),
                forward=seen.forward,
                spectra=seen.spectra,
                response=response,
                range_test=rising,
            ),
            classifier or load_classifier(),
            learning_rate=recipe.learning_rate,
            threshold=threshold,
            risk=risk,
            doubts=_doubts(seen, response),
        )
    except ArtifactError as error:
        missing = str(error)
    return (
        Evaluation(
            seed=seed,
            profile=seen,
            response=response,
            range_test=rising,
            risk=assessment,
            risk_missing=missing,
            seconds=seconds,
        ),
        probe,
    )


def _as_batch(probe: Probe) -> Batch:
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
    batch = _as_batch(make_probe(source, num_sequences=STEPS * size, seed=1, text=file))
    count = len(batch.labels)
    starts = [(step * size) % max(1, count - size + 1) for step in range(STEPS)]
    return [_rows(batch, start, start + size) for start in starts]


def _doubts(seen: Profile, response: ResponseProfile | None) -> tuple[str, ...]:
    """Why the evidence does not carry an answer, if it does not."""
    doubts = []
    if response is not None and response.reason is not None:
        doubts.append(f"the response could not be measured: {response.reason}")
    if response is None and seen.spectra.reading == "indeterminate":
        doubts.append(f"the spectrum is degenerate: {seen.spectra.reason}")
    return tuple(doubts)
