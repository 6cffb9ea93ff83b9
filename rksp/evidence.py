"""The evidence of one initialization, and what recipes share of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import nn

from rksp.batch import Batch
from rksp.checks.facts import ModelFacts, read_facts
from rksp.datasets.probe import Probe, make_probe
from rksp.errors import InputError
from rksp.features import Tier
from rksp.measure.lr_range import STEPS, RangeTest, range_test
from rksp.measure.response import ResponseProfile
from rksp.measure.streamed_response import respond
from rksp.models.given import given_probe
from rksp.models.source import ModelSource
from rksp.models.streaming.memory import check_pass
from rksp.models.streaming.opening import open_stream, response_fits, should_stream
from rksp.models.streaming.stream import Stream
from rksp.optimizers.table import optimizer_spec
from rksp.options import STATES, MeasureOptions
from rksp.recipe import Recipe
from rksp.spectra.model_profile import Profile, profile

_THREE_COPIES = (
    "it holds three copies of the weights in memory, for which there is no room; "
    "the evidence is forward; use --stream auto"
)
_IN_MEMORY_ONLY = "it trains the model, which a streamed model cannot be"
_RESPONSE_SHARE = 4  # the response looks at a quarter of the probe's sequences

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What one initialization showed; any number of recipes can be judged by it.

    Attributes:
        source: The target.
        options: How it was measured; `seed` is that of the initialization.
        tier: How much may be spent on a recipe, at most what the options allow.
        model: As initialized; every measurement leaves it so.
        probe: What the model was shown.
        profile: Spectra and forward statistics.
        facts: What the checks read off the model.
        weights: How the weights were held, a sentence.
        seconds: Cost by step.
        stream: What fed the model, closed, if it was streamed.
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
    _range_tests: dict[Recipe, RangeTest] = field(default_factory=dict)

    def response(self, recipe: Recipe, progress: Progress) -> ResponseProfile | None:
        """Return the response to the recipe's first update, measured once for all that share it."""
        batch = self.probe.batch
        if self.tier < Tier.RESPONSE or not batch.is_judged:
            return None
        if optimizer_spec(recipe.optimizer).make is None:
            return None  # rksp can check this recipe, but not take its steps
        step = first_step(recipe)
        if step not in self._responses:
            same, fresh = _halves(batch)
            with _timed(self.seconds, "response", progress):
                self._responses[step] = respond(self.model, self.stream, same, fresh, step)
        return self._responses[step]

    def range_test(
        self, recipe: Recipe, response: ResponseProfile | None, progress: Progress
    ) -> RangeTest | None:
        """Return the range test of the recipe's optimizer, run once for all that share it."""
        if self.tier < Tier.MICRO or response is None or not response.update_rms:
            return None
        shared = _micro_recipe(recipe)
        if shared not in self._range_tests:
            batches = _micro_batches(self.source, shared, self.options.probe)
            with _timed(self.seconds, "range test", progress):
                self._range_tests[shared] = range_test(
                    self.model, batches, shared, update_rms=response.update_rms
                )
        return self._range_tests[shared]


def gather(
    source: ModelSource,
    options: MeasureOptions | None = None,
    *,
    progress: Progress = lambda step: None,
) -> Evidence:
    """Build one initialization and profile it: all that does not depend on the recipe.

    Args:
        source: The target.
        options: How to measure it.
        progress: Told what is about to happen.

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
            )
        weights = "in memory" if stream is None else stream.describe()
    if stream is not None and tier > Tier.RESPONSE:
        tier, seen = Tier.RESPONSE, _without(seen, "range test", _IN_MEMORY_ONLY)
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
    """Return what the model is shown: the batch that came with it, or text or images."""
    if source.batch is not None:
        if options.probe is not None:
            raise InputError(f"{source.target} comes with a batch; --probe has no use.")
        return given_probe(source.batch)
    if source.model is not None and source.config is None:
        raise InputError(
            f"{source.target} comes without a batch, and rksp cannot know what to show it; a "
            "factory returns (model, batch), and rksp.score takes the batch after the model."
        )
    sequences = None if options.states == STATES else max(2, math.ceil(options.states / 128))
    return make_probe(source, num_sequences=sequences, text=options.probe)


def first_step(recipe: Recipe) -> Recipe:
    """Reduce a recipe to what its first update depends on, all else at the default.

    Recipes that agree here share one `ResponseProfile`: its algebra is linear in the rate, and
    the schedule, the batch and the run's length come later.
    """
    names = ("optimizer", *optimizer_spec(recipe.optimizer).first_step)
    return Recipe(**{name: getattr(recipe, name) for name in names})


def _micro_recipe(recipe: Recipe) -> Recipe:
    """Reduce a recipe to what its range test depends on."""
    return recipe.model_copy(
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


def _micro_batches(source: ModelSource, recipe: Recipe, file: Path | None) -> list[Batch]:
    """Return forty batches of at most two sequences: what a CPU can train on in minutes."""
    size = min(2, recipe.batch_size)
    batch = source.batch
    if batch is None:
        batch = make_probe(source, num_sequences=STEPS * size, seed=1, text=file).batch
    count = batch.count
    starts = [(step * size) % max(1, count - size + 1) for step in range(STEPS)]
    return [batch.rows(start, start + size) for start in starts]


def _without(seen: Profile, name: str, reason: str) -> Profile:
    """Return the profile with the reason why something is not measured."""
    missing = seen.forward.not_measured | {name: reason}
    return replace(seen, forward=replace(seen.forward, not_measured=missing))


def _halves(batch: Batch) -> tuple[Batch, Batch]:
    """Return two disjoint batches from the probe, together a quarter of its sequences.

    A batch that came with the model is used whole: it is as large as its owner found right.
    """
    share = 1 if batch.objective is not None else _RESPONSE_SHARE
    size = max(1, batch.count // (2 * share))
    return batch.rows(0, size), batch.rows(size, 2 * size)


@contextmanager
def _timed(seconds: dict[str, float], step: str, progress: Progress) -> Iterator[None]:
    """Say what is about to happen, and add what it cost."""
    progress(step)
    start = time.perf_counter()
    yield
    seconds[step] = seconds.get(step, 0.0) + time.perf_counter() - start
