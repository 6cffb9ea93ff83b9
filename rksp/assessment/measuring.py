"""Build one initialization and measure what does not depend on the recipe."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import nn

from rksp.assessment.evidence import Built, Evidence
from rksp.assessment.measurement import Measurement
from rksp.checks.facts import read_facts
from rksp.datasets.batch import Batch
from rksp.datasets.own_data import own_probe, read_own_rows
from rksp.datasets.probe import Probe, make_probe
from rksp.documents.options import STATES, MeasureOptions
from rksp.documents.shown import ResponseProfile
from rksp.ground.allocator import return_freed_memory
from rksp.ground.errors import InputError
from rksp.ground.model import Progress, definite
from rksp.measure.response import (
    DRIFT_RATE,
    measure_drift,
    measure_gradient,
    measure_response,
    measure_streamed_gradient,
)
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
_OLD_SEQUENCES, _OLD_LENGTH = 4, 64  # of the text on which the drift is read
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
                kreiss=options.kreiss,
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
        stream.gradient_batch = _parts(probe.batch)[0] if evidence == "gradient" else None
    else:
        if is_there and evidence != "forward":
            check_whole(source, options.max_memory, evidence)
        tokens, limit = probe.num_tokens, options.max_memory
        check_pass(source.target, source.config, tokens=tokens, limit=limit)
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


def measured_response(evidence: Evidence, step: Recipe, progress: Progress) -> ResponseProfile:
    """Measure the gradient or the response to a first update, on disjoint parts of the probe.

    It is one of what the recipe trains: of its adapters, put on a copy of the model, or of the
    weights. With the response of trained weights the drift is measured too. A model of which only
    the measurement was kept is built again.

    Args:
        evidence: What is known of the initialization; the time is added to it.
        step: From `rksp.assessment.evidence.first_step`.
        progress: See `Progress`.
    """
    built = evidence.built or _built_again(evidence, progress)
    return_freed_memory()  # gradients do not fit into the holes that the forward pass left
    with _timed(evidence.seconds, evidence.options.evidence, progress):
        return _responded(built, evidence, step, progress)


def _responded(
    built: Built, evidence: Evidence, step: Recipe, progress: Progress
) -> ResponseProfile:
    """Measure the response of the model as the recipe trains it, with adapters if it has them."""
    same, fresh = _parts(built.probe.batch)
    model, share = built.model, same.count / (same.count + fresh.count)
    if step.peft != "none" and adapters_of(model) is None:
        if built.stream is not None:
            return ResponseProfile(reason=_STREAMED_ADAPTERS, forward_passes=0.0)
        try:
            model = copy.deepcopy(model)
            model = as_trained(model, step, built.source.task, seed=evidence.options.seed)
        except InputError as error:
            return ResponseProfile(reason=str(error).rstrip("."), forward_passes=0.0)
    if built.stream is not None:
        return measure_streamed_gradient(built.stream, same, share, progress)
    if evidence.tier < Tier.RESPONSE:
        return measure_gradient(model, same, share)
    found = measure_response(model, same, fresh, step)
    if found.reason is None and not evidence.start_of(Recipe()).is_scratch:
        found = replace(found, drift=_drift(model, built.source, same, step))
    return found


def _drift(model: nn.Module, source: ModelSource, same: Batch, step: Recipe) -> float | None:
    """Return the drift of a language model on the bundled text; None of any other."""
    if source.batch is not None or source.task not in ("causal-lm", "masked-lm", "seq2seq"):
        return None
    old = make_probe(source, num_sequences=_OLD_SEQUENCES, sequence_length=_OLD_LENGTH, seed=1)
    return measure_drift(model, same, step, old.batch, [DRIFT_RATE])[0]


def _built_again(evidence: Evidence, progress: Progress) -> Built:
    source, options = evidence.source, evidence.options
    with ExitStack() as stack, _timed(evidence.seconds, "build", progress):
        built = build(source, options, stack)
    if built.stream is None:
        return built
    return definite(measured(source, options, None, progress).built)  # one pass rehearses a stream


def _probe(source: ModelSource, options: MeasureOptions) -> Probe:
    """Return the model's inputs: the batch that came with it, or text or images."""
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


def _parts(batch: Batch) -> tuple[Batch, Batch]:
    """Return two disjoint batches from the probe: of the gradient, and of the passes after it.

    The second is half as large, because ten passes run over it and its loss only tells whether a
    step went too far. A batch that came with the model is used whole, because its owner chose its
    size.
    """
    size = max(1, batch.count // (2 if batch.objective is not None else _GRADIENT_SHARE))
    return batch.rows(0, size), batch.rows(size, size + max(1, size // 2))


@contextmanager
def _timed(seconds: dict[str, float], step: str, progress: Progress) -> Iterator[None]:
    """Announce a step and add its wall time."""
    progress(0, 0, step)
    start = time.perf_counter()
    yield
    seconds[step] = seconds.get(step, 0.0) + time.perf_counter() - start
