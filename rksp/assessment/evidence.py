"""Gather the evidence of one initialization, which several recipes can share."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

from torch import nn

from rksp.batch import Batch
from rksp.checks.facts import ModelFacts, read_facts
from rksp.datasets.probe import Probe, make_probe
from rksp.features import Tier
from rksp.ground.errors import InputError
from rksp.measure.response import ResponseProfile
from rksp.measure.streamed_response import respond
from rksp.models.given import given_probe
from rksp.models.source import ModelSource
from rksp.models.streaming.memory import check_pass
from rksp.models.streaming.meter import Progress
from rksp.models.streaming.opening import open_stream, response_fits, should_stream
from rksp.models.streaming.stream import Stream
from rksp.optimizers.table import optimizer_spec
from rksp.options import STATES, MeasureOptions
from rksp.recipe import Recipe
from rksp.spectra.model_profile import Profile, profile

_THREE_COPIES = (
    "it needs three copies of the weights in memory, and they do not fit; "
    "the evidence is forward; use --stream auto"
)
_RESPONSE_SHARE = 4  # the response uses a quarter of the probe's sequences


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The measurements of one initialization; they can judge any number of recipes.

    Attributes:
        source: The target.
        options: How it was measured; `seed` is that of the initialization.
        tier: The most evidence that a recipe may use, at most what the options allow.
        model: The model as initialized; every measurement leaves it unchanged.
        probe: The model's inputs.
        profile: Spectra and forward statistics.
        facts: What the checks read off the model.
        weights: How the weights were held, as a sentence.
        seconds: Wall time of each step.
        stream: The stream that fed the model, now closed, if it was streamed.
    """

    source: ModelSource
    options: MeasureOptions
    tier: Tier
    model: nn.Module
    probe: Probe
    profile: Profile
    facts: ModelFacts
    weights: str
    seconds: dict[str, float]
    stream: Stream | None = None
    _responses: dict[Recipe, ResponseProfile] = field(default_factory=dict)

    def response(self, recipe: Recipe, progress: Progress) -> ResponseProfile | None:
        """Return the response to the recipe's first update; recipes that agree on it share it."""
        batch = self.probe.batch
        if self.tier < Tier.RESPONSE or not batch.is_judged:
            return None
        if optimizer_spec(recipe.optimizer).make is None:
            return None  # rksp can check this recipe, but not take its steps
        step = first_step(recipe)
        if step not in self._responses:
            same, fresh = _halves(batch)
            with _timed(self.seconds, "response", progress):
                self._responses[step] = respond(
                    self.model, self.stream, same, fresh, step, progress
                )
        return self._responses[step]


def gather(
    source: ModelSource,
    options: MeasureOptions | None = None,
    *,
    progress: Progress = lambda done, total, label: None,
) -> Evidence:
    """Build one initialization and measure everything that does not depend on the recipe.

    Args:
        source: The target.
        options: How to measure it.
        progress: Called at the start of each step and as it proceeds; see `Progress`.

    Returns:
        The evidence.

    Raises:
        InputError: An option, the probe or the model cannot be used.
    """
    options = options or MeasureOptions()
    if options.evidence == "config":
        raise InputError("--evidence config builds no model, so only rksp score takes it.")
    source = source.at(options.seed)
    probe = _probe(source, options)
    seconds: dict[str, float] = {}
    tier = Tier.parse(options.evidence)
    responds = tier > Tier.FORWARD
    with ExitStack() as stack:
        with _timed(seconds, "build", progress):
            stream = None
            is_there = source.model is not None and options.streaming != "always"
            if not is_there and should_stream(
                source, options.streaming, options.max_memory, with_response=responds
            ):
                stream = stack.enter_context(
                    open_stream(
                        source,
                        options.seed,
                        workers=options.workers,
                        max_memory=options.max_memory,
                    )
                )
            else:
                tokens, limit = probe.num_tokens, options.max_memory
                check_pass(source.target, source.config, tokens=tokens, limit=limit)
            model = source.model if stream is None else stream.model
            model = source.build(options.seed) if model is None else model
        with _timed(seconds, "forward and spectra", progress):
            seen = profile(
                model,
                probe.batch,
                variant=options.variant,
                rank=options.rank,
                kreiss=options.kreiss,
                num_states=options.states,
                blocks=options.blocks,
                workers=options.workers,
                needs_chain=source.batch is None,
                progress=progress,
            )
        weights = "in memory" if stream is None else stream.describe()
    if responds and stream is None and not response_fits(source, options.max_memory):
        tier, seen = Tier.FORWARD, _without(seen, "response", _THREE_COPIES)
    return Evidence(
        source=source,
        options=options,
        tier=tier,
        model=model,
        probe=probe,
        profile=seen,
        facts=read_facts(model, seen.chains, seen.width, stream and stream.supply.scales),
        stream=stream,
        weights=weights,
        seconds=seconds,
    )


def _probe(source: ModelSource, options: MeasureOptions) -> Probe:
    """Return the model's inputs: the batch that came with it, or text or images."""
    if source.batch is not None:
        if options.probe is not None:
            raise InputError(f"{source.target} comes with a batch; leave out --probe.")
        return given_probe(source.batch)
    if source.model is not None and source.config is None:
        raise InputError(
            f"{source.target} comes without a batch, and rksp cannot guess its inputs; a "
            "factory returns (model, batch), and rksp.score takes the batch after the model."
        )
    sequences = None if options.states == STATES else max(2, math.ceil(options.states / 128))
    return make_probe(source, num_sequences=sequences, text=options.probe)


def first_step(recipe: Recipe) -> Recipe:
    """Reduce a recipe to what its first update depends on; everything else is the default.

    Recipes that agree here share one `ResponseProfile`. Its algebra is linear in the rate, and the
    schedule, the batch and the length of the run matter only later.
    """
    names = ("optimizer", *optimizer_spec(recipe.optimizer).first_step)
    return Recipe(**{name: getattr(recipe, name) for name in names})


def _without(seen: Profile, name: str, reason: str) -> Profile:
    """Return the profile with the reason why `name` is not measured."""
    missing = seen.forward.not_measured | {name: reason}
    return replace(seen, forward=replace(seen.forward, not_measured=missing))


def _halves(batch: Batch) -> tuple[Batch, Batch]:
    """Return two disjoint batches from the probe, together a quarter of its sequences.

    A batch that came with the model is used whole, because its owner chose its size.
    """
    share = 1 if batch.objective is not None else _RESPONSE_SHARE
    size = max(1, batch.count // (2 * share))
    return batch.rows(0, size), batch.rows(size, 2 * size)


@contextmanager
def _timed(seconds: dict[str, float], step: str, progress: Progress) -> Iterator[None]:
    """Announce a step and add its wall time."""
    progress(0, 0, step)
    start = time.perf_counter()
    yield
    seconds[step] = seconds.get(step, 0.0) + time.perf_counter() - start
