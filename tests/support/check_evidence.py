"""Evidence for the checks: a healthy run with replaceable parts, and measured models."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Literal

import torch
from torch import nn

from rksp.checks.evidence import CheckEvidence
from rksp.checks.facts import ModelFacts, read_facts
from rksp.checks.registry import run_checks
from rksp.datasets.batch import Batch
from rksp.documents.finding import Finding, Level
from rksp.documents.shown import (
    NO_GRADIENT,
    NO_PASS,
    AttentionStats,
    BlockStats,
    ForwardStats,
    GradientProfile,
    RouterStats,
)
from rksp.measure.gradient import measure_gradient
from rksp.measure.snapshots import collect
from rksp.models.resolve import resolve_tiny
from rksp.recipe import Recipe
from rksp.recipe.start import SCRATCH, Start, decide_start

BAD = (Level.ERROR, Level.WARNING)

RECIPE = Recipe(
    learning_rate=3e-4,
    warmup_steps=2000,
    max_steps=100_000,
    batch_size=256,
    sequence_length=2048,
    precision="bf16",
)
FACTS = ModelFacts(
    parameters=125_000_000,
    depth=12,
    width=768,
    block_norms=24,
    qk_norms=0,
    attentions=12,
    input_std=0.02,
    output_std=0.004,
    embedding_std=0.02,
    ties_embeddings=True,
)
ATTENTION = AttentionStats(logit_std=0.3, max_logit=1.5, entropy=0.98, collapsed_heads=0, block=0)
ROUTER = RouterStats(
    name="mlp.gate", entropy=0.99, logit_std=0.2, max_violation=0.9, dead_experts=0
)
BLOCK = BlockStats(name="h.0", rms_in=0.1, rms_out=0.12, update_ratio=0.5, absmax=1.0)
FORWARD = ForwardStats(
    loss=10.9,
    uniform_loss=10.8,
    logit_std=0.55,
    blocks=(BLOCK,) * 12,
    attention=(ATTENTION,),
    routers=(ROUTER,),
    activation_absmax=5.0,
    activation_name="h.0.mlp",
    aligned_response=50.0,
    not_measured={},
)
GRADIENT = GradientProfile(grad_norm=3.0, grad_rms=3e-4, grad_max=0.5)
UNMEASURED = dict.fromkeys(("grad_norm", "grad_rms", "grad_max"))
TUNED = Start(kind="stored", because="the test says so")
TRAINED_SLOWLY = {"start": TUNED, "recipe": {"learning_rate": 1e-5}}


def healthy(
    *,
    recipe: dict[str, object] | None = None,
    facts: dict[str, object] | None = None,
    forward: dict[str, object] | Literal[False] | None = None,
    gradient: dict[str, object] | None = None,
    config: dict[str, object] | None = None,
    **more: object,
) -> CheckEvidence:
    """Return a run without findings, some parts replaced; without a forward pass if it is False."""
    chosen = RECIPE.model_copy(update=recipe or {})
    more |= {"start": decide_start(more.get("start", SCRATCH), recipe=chosen)}
    return CheckEvidence(
        recipe=chosen,
        facts=replace(FACTS, **facts or {}),
        forward=NO_PASS if forward is False else replace(FORWARD, **forward or {}),
        gradient=replace(GRADIENT, **gradient or {}),
        config=SimpleNamespace(**config or {}),
        **{"start_here": 1e-3, "do_not_exceed": 2e-3, "likely_edge": 1e-2} | more,
    )


def measured(
    model: nn.Module,
    batch: Batch,
    *,
    respond: bool = False,
    config: object = None,
    **recipe: object,
) -> CheckEvidence:
    """Measure a small model under a healthy recipe with some fields replaced."""
    chosen = RECIPE.model_copy(update=recipe)
    seen = collect(model, batch, consume=lambda transition: None)
    return CheckEvidence(
        recipe=chosen,
        config=config,
        facts=read_facts(model, seen.chains, seen.width),
        forward=seen.forward,
        gradient=measure_gradient(model, batch) if respond else NO_GRADIENT,
    )


def on_meta(build, config: object, chains: tuple[tuple[str, int], ...], width: int) -> ModelFacts:
    """Return the facts of a model too large for memory, from its skeleton."""
    with torch.device("meta"):
        return read_facts(build(config), chains, width)


def token_batch(vocabulary: int, *, sequences: int = 2, length: int = 32, seed: int = 0) -> Batch:
    """Return random tokens with the next token as label."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(vocabulary, (sequences, length + 1), generator=generator)
    return Batch(inputs=tokens[:, :-1].contiguous(), labels=tokens[:, 1:].contiguous())


def found(evidence: CheckEvidence) -> dict[str, Finding]:
    """Return the findings by name."""
    return {finding.name: finding for finding in run_checks(evidence)}


def tiny(name: str) -> nn.Module:
    return resolve_tiny(name).build(0)


def attending(**more: float) -> dict[str, object]:
    return {"attention": (ATTENTION, replace(ATTENTION, **more))}


def routing(**more: float) -> dict[str, object]:
    return {"routers": (ROUTER, replace(ROUTER, **more))}
