"""The main road: a target and a recipe in, the evidence and the answer out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from rksp.checks.coverage import not_covered
from rksp.checks.evidence import CheckEvidence
from rksp.checks.facts import read_facts
from rksp.checks.finding import Finding
from rksp.checks.registry import run_checks
from rksp.classifiers.classifier import DivergenceClassifier, load_classifier
from rksp.datasets.probe import Probe, make_probe
from rksp.errors import ArtifactError, InputError
from rksp.features import Evidence, extract
from rksp.gathered import Gathered, Progress, as_batch, timed
from rksp.measure.forward import LOGITS_NOT_FINITE
from rksp.measure.lr_range import RangeTest
from rksp.measure.response import GRADIENT_NOT_FINITE, ResponseProfile
from rksp.models.resolve import ModelSource
from rksp.models.streaming.opening import (
    Streaming,
    open_stream,
    response_fits,
    should_stream,
)
from rksp.recipe import Recipe
from rksp.risk import RiskAssessment, assess, certain_failure
from rksp.spectra.model_profile import Profile, profile

STATES = 2048  # enough for a full-rank spectrum at width 768: 2.7 states a dimension


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """All evidence for one seed of one target, and the answer it led to."""

    seed: int
    profile: Profile
    response: ResponseProfile | None
    range_test: RangeTest | None
    risk: RiskAssessment | None
    risk_missing: str | None
    findings: tuple[Finding, ...] = ()
    weights: str = "in memory"
    seconds: Mapping[str, float] = field(default_factory=dict)


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
    streaming: Streaming = "auto",
    max_memory: int | None = None,
    threshold: float = 0.5,
    risk: float = 0.05,
    classifier: DivergenceClassifier | None = None,
    progress: Progress = lambda step: None,
) -> tuple[Evaluation, Probe]:
    """Gathers the evidence for one target and recipe at one seed, and assesses it.

    Args:
        evidence: How much to spend; a model without a loss of its own (a factory) stops at the
            forward tier.
        streaming, max_memory: See `gather`.
        threshold, risk: See `rksp.risk.assess`.
        classifier: Default the shipped one; without any, the risk is missing with a reason.
        progress: Told what is about to happen.

    Raises:
        InputError: An option, the probe or the model cannot be used.
    """
    gathered = gather(
        source,
        seed=seed,
        evidence=evidence,
        probe_file=probe_file,
        num_states=num_states,
        blocks=blocks,
        variant=variant,
        rank=rank,
        kreiss=kreiss,
        workers=workers,
        streaming=streaming,
        max_memory=max_memory,
        progress=progress,
    )
    evaluation = judge(
        gathered,
        recipe,
        threshold=threshold,
        risk=risk,
        classifier=classifier,
        progress=progress,
    )
    return evaluation, gathered.probe


def gather(
    source: ModelSource,
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
    streaming: Streaming = "auto",
    max_memory: int | None = None,
    progress: Progress = lambda step: None,
) -> Gathered:
    """Builds one initialization and profiles it: all that does not depend on the recipe.

    Args:
        evidence: What `judge` may add for a recipe.
        num_states: Token states per block.
        streaming: "always" draws or reads weights as they are used and drops them after, "never"
            holds the model in memory, "auto" streams what does not fit. The numbers are the same.
        max_memory: Bytes; default what is free. The response needs the model in memory six times
            over: where that is too much, the evidence ends at the forward tier.

    Raises:
        InputError: An option, the probe or the model cannot be used.
    """
    if source.kind == "factory":
        raise InputError(
            f"{source.target} is a factory, and rksp cannot know what to show it; "
            "call rksp.profile(model, inputs) from Python."
        )
    sequences = None if num_states == STATES else max(2, math.ceil(num_states / 128))
    probe = make_probe(source, num_sequences=sequences, text=probe_file)
    seconds: dict[str, float] = {}
    with ExitStack() as stack:
        with timed(seconds, "build", progress):
            stream = None
            if should_stream(source, streaming, max_memory):
                stream = stack.enter_context(
                    open_stream(source, seed, workers=workers, max_memory=max_memory)
                )
            model = source.build(seed) if stream is None else stream.model
        with timed(seconds, "forward and spectra", progress):
            seen = profile(
                model,
                as_batch(probe),
                variant=variant,
                rank=rank,
                kreiss=kreiss,
                num_states=num_states,
                blocks=blocks,
                workers=workers,
            )
        weights = "in memory" if stream is None else stream.describe()
    if evidence > Evidence.FORWARD and (stream or not response_fits(source, max_memory)):
        evidence = Evidence.FORWARD
        seen = _without_response(seen)
    return Gathered(
        source=source,
        seed=seed,
        evidence=evidence,
        model=model,
        probe=probe,
        probe_file=probe_file,
        profile=seen,
        facts=read_facts(model, seen.chains, seen.width),
        weights=weights,
        seconds=seconds,
    )


def _without_response(seen: Profile) -> Profile:
    """The profile with the reason why its evidence ends here."""
    reason = "it needs six copies of the weights in memory; the evidence is forward"
    missing = seen.forward.not_measured | {"response": reason}
    return replace(seen, forward=replace(seen.forward, not_measured=missing))


def judge(
    gathered: Gathered,
    recipe: Recipe,
    *,
    threshold: float = 0.5,
    risk: float = 0.05,
    classifier: DivergenceClassifier | None = None,
    progress: Progress = lambda step: None,
) -> Evaluation:
    """Assesses one recipe; measures only what no earlier recipe shared.

    Args:
        threshold, risk: See `rksp.risk.assess`.
        classifier: Default the shipped one; without any, the risk is missing with a reason.
    """
    seen = gathered.profile
    response = gathered.response(recipe, progress)
    rising = gathered.range_test(recipe, response, progress)
    missing, assessment = None, None
    bars = {"learning_rate": recipe.learning_rate, "threshold": threshold, "risk": risk}
    broken = _not_finite(seen, response)
    if broken is not None:
        assessment = certain_failure(broken, gathered.evidence, **bars)
    else:
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
                **bars,
                doubts=_doubts(seen, response, recipe),
            )
        except ArtifactError as error:
            missing = str(error)
    trusted = assessment if assessment is not None and not assessment.reasons else None
    return Evaluation(
        seed=gathered.seed,
        profile=seen,
        response=response,
        range_test=rising,
        risk=assessment,
        risk_missing=missing,
        findings=run_checks(
            CheckEvidence(
                recipe=recipe,
                config=gathered.source.config,
                facts=gathered.facts,
                forward=seen.forward,
                response=response,
                safe_learning_rate=trusted and trusted.safe_learning_rate,
                likely_edge=trusted and trusted.likely_edge,
                is_pretrained=gathered.source.is_pretrained,
            )
        ),
        weights=gathered.weights,
        seconds=dict(gathered.seconds),
    )


def _not_finite(seen: Profile, response: ResponseProfile | None) -> str | None:
    """What makes training impossible whatever the recipe, if anything does."""
    if seen.forward.not_measured.get("loss") == LOGITS_NOT_FINITE:
        return f"{LOGITS_NOT_FINITE} (first in {seen.forward.non_finite})"
    if response is not None and response.reason == GRADIENT_NOT_FINITE:
        return GRADIENT_NOT_FINITE
    return None


def _doubts(seen: Profile, response: ResponseProfile | None, recipe: Recipe) -> tuple[str, ...]:
    """Why the evidence does not carry an answer, if it does not."""
    unseen = not_covered(recipe)
    doubts = [f"the labelled runs hold no {', no '.join(unseen)}"] if unseen else []
    if response is not None and response.reason is not None:
        doubts.append(f"the response could not be measured: {response.reason}")
    if response is None and seen.spectra.reading == "indeterminate":
        doubts.append(f"the spectrum is degenerate: {seen.spectra.reason}")
    return tuple(doubts)
