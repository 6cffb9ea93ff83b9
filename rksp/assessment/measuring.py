"""Build one initialization and measure what does not depend on the recipe."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from rksp.assessment.evidence import Built, Evidence
from rksp.assessment.measurement import Measurement
from rksp.checks.facts import read_facts
from rksp.datasets.batch import Batch
from rksp.datasets.own_data import own_probe, read_own_rows
from rksp.datasets.probe import Probe, make_probe
from rksp.documents.options import STATES, MeasureOptions
from rksp.documents.shown import GradientProfile
from rksp.ground.allocator import return_freed_memory
from rksp.ground.errors import InputError
from rksp.ground.model import Progress, definite
from rksp.measure.gradient import measure_gradient, measure_streamed_gradient
from rksp.models.adapters import adapters_of, as_trained
from rksp.models.anatomy.parts import equivalent_shape
from rksp.models.given import given_probe
from rksp.models.source import ModelSource
from rksp.models.streaming.memory import check_pass, check_whole, should_stream
from rksp.models.streaming.stream import open_stream
from rksp.recipe import Recipe
from rksp.spectra.features import Tier
from rksp.spectra.model_profile import Profile, profile

if TYPE_CHECKING:
    from rksp.assessment.store import MeasurementStore

NOT_YOURS = "The trained weights were measured on other text than yours; --data FILE gives yours."
_STREAMED_ADAPTERS = "adapters are built only on a model in memory"
_GRADIENT_SHARE = 8  # the first gradient is that of an eighth of the probe's sequences


def measured(
    source: ModelSource, options: MeasureOptions, store: MeasurementStore | None, progress: Progress
) -> Evidence:
    """Build and measure one initialization; see `rksp.assessment.pipeline.gather`."""
    seconds: dict[str, float] = {}
    tier = Tier.parse(options.evidence)
    with ExitStack() as stack:
        with _timed(seconds, "build", progress):
            built = build(source, options, stack)
        with _timed(seconds, "forward and spectra", progress):
            seen = profile(
                built.model,
                built.probe.batch,
                variant=options.variant,
                rank=options.rank,
                fitted=options.spectra,
                num_states=options.states,
                blocks=options.blocks,
                workers=options.workers,
                needs_chain=source.batch is None,
                progress=progress,
            )
        weights = "in memory" if built.stream is None else built.stream.describe()
        is_ours = source.batch is None and options.data is None and options.probe is None
    if source.start.is_stored and is_ours:
        seen = replace(seen, notes=(*seen.notes, NOT_YOURS))
    return Evidence(
        source=built.source,
        options=options,
        tier=tier,
        measurement=_measurement(built, tier, seen, weights),
        built=built,
        store=store,
        seconds=seconds,
    )


def build(source: ModelSource, options: MeasureOptions, stack: ExitStack) -> Built:
    """Build an initialization, or open a stream of its weights, which `stack` closes."""
    source = source.at(options.seed).whole()
    probe = _probe(source, options)
    evidence = options.evidence if probe.batch.is_judged else "forward"
    stream = None
    is_there = source.model is not None and options.streaming != "always"
    if not is_there and should_stream(source, options.streaming, options.max_memory, evidence):
        stream = stack.enter_context(
            open_stream(
                source, options.seed, workers=options.workers, max_memory=options.max_memory
            )
        )
        stream.gradient_batch = _part(probe.batch) if evidence == "gradient" else None
    else:
        if is_there and evidence != "forward":
            check_whole(source, options.max_memory, evidence)
        tokens, limit = probe.num_tokens, options.max_memory
        check_pass(source, tokens, limit)
    model = source.model if stream is None else stream.model
    model = source.build(options.seed) if model is None else model
    return Built(source=source, model=model, probe=probe, stream=stream)


def _measurement(built: Built, tier: Tier, seen: Profile, weights: str) -> Measurement:
    scales = None if built.stream is None else built.stream.supply.scales
    source = built.source
    return Measurement(
        tier=tier,
        profile=seen,
        facts=read_facts(built.model, seen.chains, seen.width, scales),
        source={name: getattr(source, name) for name in ("num_parameters", "model_class")},
        probe=built.probe.description,
        is_judged=built.probe.batch.is_judged,
        stands_for=None if seen.chains else equivalent_shape(built.model),
        weights=weights,
    )


def measured_gradient(evidence: Evidence, recipe: Recipe, progress: Progress) -> GradientProfile:
    """Measure the first gradient of what a recipe trains, on a part of the probe.

    That is the model, or adapters put on a copy of it. A model of which only the measurement was
    kept is built again.

    Args:
        evidence: What is known of the initialization; the time is added to it.
        recipe: From `rksp.assessment.evidence.trained_part`.
        progress: See `Progress`.
    """
    built = evidence.built or _built_again(evidence, progress)
    return_freed_memory()  # gradients do not fit into the holes that the forward pass left
    with _timed(evidence.seconds, evidence.options.evidence, progress):
        return _gradient(built, evidence, recipe, progress)


def _gradient(
    built: Built, evidence: Evidence, recipe: Recipe, progress: Progress
) -> GradientProfile:
    batch, model = _part(built.probe.batch), built.model
    if recipe.peft != "none" and adapters_of(model) is None:
        if built.stream is not None:
            return GradientProfile(reason=_STREAMED_ADAPTERS)
        try:
            model = copy.deepcopy(model)
            model = as_trained(model, recipe, built.source.task, seed=evidence.options.seed)
        except InputError as error:
            return GradientProfile(reason=str(error).rstrip("."))
    if built.stream is not None:
        return measure_streamed_gradient(built.stream, batch, progress)
    return measure_gradient(model, batch)


def _built_again(evidence: Evidence, progress: Progress) -> Built:
    source, options = evidence.source, evidence.options
    with ExitStack() as stack, _timed(evidence.seconds, "build", progress):
        built = build(source, options, stack)
    if built.stream is None:
        return built
    return definite(measured(source, options, None, progress).built)  # one pass rehearses a stream


def _probe(source: ModelSource, options: MeasureOptions) -> Probe:
    if source.batch is not None:
        for name, given in (("--probe", options.probe), ("--data", options.data)):
            if given is not None:
                raise InputError(f"{source.target} comes with a batch; leave out {name}.")
        return given_probe(source.batch)
    if source.model is not None and source.config is None:
        raise InputError(
            f"{source.target} comes without a batch, and rksp cannot guess its inputs; a "
            "factory returns (model, batch), and rksp.score takes the batch after the model."
        )
    sequences = None if options.states == STATES else max(2, math.ceil(options.states / 128))
    if options.data is not None:
        if options.probe is not None:
            raise InputError("Give --probe or --data, not both.")
        return own_probe(source, read_own_rows(options.data), num_sequences=sequences)
    return make_probe(source, num_sequences=sequences, text=options.probe)


def _part(batch: Batch) -> Batch:
    """Return what the gradient is taken on: an eighth of the probe, or half of your own batch."""
    share = 2 if batch.objective is not None else _GRADIENT_SHARE
    return batch.rows(0, max(1, batch.count // share))


@contextmanager
def _timed(seconds: dict[str, float], step: str, progress: Progress) -> Iterator[None]:
    progress(0, 0, step)
    start = time.perf_counter()
    yield
    seconds[step] = seconds.get(step, 0.0) + time.perf_counter() - start
