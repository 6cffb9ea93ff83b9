"""Checks of a forward pass: what comes out of the model, and its attention."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rksp.checks.check import Observation, check
from rksp.checks.evidence import CheckEvidence, Need
from rksp.documents.finding import Level
from rksp.ground.model import definite
from rksp.ground.text import short

_EXCESS = 2.0  # nats above ln V, what Gaussian logits of standard deviation 2 cost
_SPREAD, _WILD_SPREAD = 2.0, 8.0
_TIED_SPREAD = 4.0
_FAST, _LARGE = 5.0, 7e9


@check("RKSP101", weights="random")
def _initial_loss(evidence: CheckEvidence) -> Iterator[Observation]:
    loss, uniform = evidence.forward.loss, evidence.forward.uniform_loss
    if loss is None or uniform is None:
        return
    is_tied = evidence.facts is not None and evidence.facts.ties_embeddings
    copied = (evidence.forward.copied or 0.0) if is_tied else 0.0
    if loss - copied - uniform > _EXCESS:
        more = f" The tied output layer explains {copied:.3g} more." if copied > 0.1 else ""
        yield Observation(
            f"The initial loss is {loss:.3g} nats. A uniform guess has a loss of {uniform:.3g}."
            f"{more}",
            loss,
            level=Level.ERROR if loss - copied > 2 * uniform else Level.WARNING,
        )


@check("RKSP102", weights="random")
def _output_logits(evidence: CheckEvidence) -> Iterator[Observation]:
    is_seen = Need.FORWARD in evidence.held
    spread = evidence.forward.logit_std if is_seen else _declared_spread(evidence)
    if spread is not None and spread > _SPREAD:
        yield Observation(
            f"The output logits have a standard deviation of {spread:.3g} over classes"
            f"{'' if is_seen else ', by the configuration'}.",
            spread,
            level=Level.ERROR if spread > _WILD_SPREAD else Level.WARNING,
            fix=f"Divide the standard deviation of the output layer's weights by {spread:.2g}.",
        )


def _declared_spread(evidence: CheckEvidence) -> float | None:
    """Return the deviation of the logits that the code of a type draws; None where it is unknown.

    Its last norm leaves a deviation of one, and an untied head of T5 one of its factor.
    """
    settings, width = evidence.settings, evidence.settings.width
    is_untied = settings.get("tie_word_embeddings") is False
    if not settings.family.unit_head or not is_untied or not width:
        return None
    return float(settings.number("initializer_factor") or 1.0) * math.sqrt(width)


@check("RKSP103", weights="random")
def _tied_embedding(evidence: CheckEvidence) -> Iterator[Observation]:
    facts, measured = evidence.facts, evidence.forward.logit_std
    if facts is None or not facts.ties_embeddings or facts.embedding_std is None:
        return
    if measured is not None and measured <= _SPREAD:
        return  # scaled down on its way to the logits, as T5 does
    spread = facts.embedding_std * math.sqrt(facts.width)
    if spread > _TIED_SPREAD:
        yield Observation(
            "The output layer shares its weights with the embedding. Their standard deviation "
            f"{facts.embedding_std:.3g} at width {facts.width} gives logits of standard "
            f"deviation {spread:.3g}.",
            spread,
            fix=f"Initialize the embedding with standard deviation {facts.width**-0.5:.2g} (1/√d).",
        )


@check("RKSP104")
def _z_loss(evidence: CheckEvidence) -> Iterator[Observation]:
    ratio, size = evidence.rate_over_published, evidence.active_parameters
    if ratio is None or ratio <= _FAST or definite(size) < _LARGE or evidence.recipe.z_loss:
        return
    if evidence.settings.get("final_logit_softcapping") is not None:
        return
    said = "is off" if evidence.recipe.z_loss == 0 else "is not in the recipe"
    yield Observation(
        f"The learning rate is {short(ratio)} times GPT-3's for {definite(size) / 1e9:.3g}B "
        f"active parameters, and the z-loss {said}.",
        ratio,
    )


_LOGIT_SPREAD, _SATURATED_SPREAD = 4.0, 8.0
_CLIPPED_LOGIT = 100.0  # τ of Kimi K2's QK-clip
_UNUSUAL = 2.0  # times 1/√head_dim, below which a declared scale is none of its own
_ENTROPY, _COLLAPSED_ENTROPY = 0.3, 0.1
_BIG = 1e9  # active parameters; smaller models bear every published rate without it
_OF_EDGE = 1 / 3  # Marin's 32B broke at 0.37 of the public edge, its 8B held at 0.3
_HEAD = (32, 512)
_HEAD_SIZES = ("head_dim", "global_head_dim", "d_kv")
_TILE = 8  # elements: 16 bytes of fp16, the unit of tensor cores
_WIDE = 512  # narrower models have small heads by necessity


@check("RKSP201")
def _logit_scale(evidence: CheckEvidence) -> Iterator[Observation]:
    attention = evidence.forward.attention
    if not attention:
        yield from _declared_scale(evidence)
    elif not evidence.start.is_scratch:
        largest = max(attention, key=lambda a: a.max_logit)
        if largest.max_logit > _CLIPPED_LOGIT:
            yield Observation(
                f"The largest attention logit is {largest.max_logit:.3g}{_where(largest.block)}.",
                largest.max_logit,
                level=Level.WARNING,
                fix="Continue training with QK-clip at 100, or lower the learning rate.",
            )
    else:
        widest = max(attention, key=lambda a: a.logit_std)
        said = f"have a standard deviation of {widest.logit_std:.3g} before training"
        yield from _spread(f"Attention logits {said}{_where(widest.block)}.", widest.logit_std)


def _spread(message: str, spread: float) -> Iterator[Observation]:
    if spread > _LOGIT_SPREAD:
        level = Level.ERROR if spread > _SATURATED_SPREAD else Level.WARNING
        yield Observation(message, spread, level=level)


def _declared_scale(evidence: CheckEvidence) -> Iterator[Observation]:
    """Judge the scale that a configuration declares by arithmetic, where nothing was measured.

    The product of two vectors of d independent entries of deviation s has a deviation of s² √d. The
    norm of queries and keys makes s one; otherwise a matrix of deviation σ reads a stream of width
    w and deviation one, so that s² is σ² w.
    """
    settings = evidence.settings
    sizes = filter(None, map(settings.number, _HEAD_SIZES))
    size = max(sizes, default=None) or settings.head_dim
    is_read = Need.FORWARD not in evidence.held and evidence.start.is_scratch
    if not is_read or not size or settings.soft_cap:
        return
    declared = settings.number("attention_multiplier")
    scalar = settings.number("query_pre_attn_scalar")
    if settings.family.unscaled_attention:
        declared = 1.0
    elif scalar is not None and scalar > 0:
        declared = scalar**-0.5
    if declared is None or declared * math.sqrt(size) <= _UNUSUAL:
        return
    drawn = 1.0
    if not settings.normalizes_qk:
        drawn = (settings.init_std or 0.0) ** 2 * (settings.width or 0.0)
    spread = declared * drawn * math.sqrt(size)
    yield from _spread(
        f"The configuration scales attention by {declared:.3g} at heads of {size:g} dimensions, so "
        f"its logits have a standard deviation of about {spread:.3g} before training.",
        spread,
    )


@check("RKSP202", weights="random")
def _entropy(evidence: CheckEvidence) -> Iterator[Observation]:
    worst = min(evidence.forward.attention, key=lambda a: a.entropy, default=None)
    if worst is not None and worst.entropy < _ENTROPY:
        yield Observation(
            f"Attention has {worst.entropy:.1%} of its maximum entropy before "
            f"training{_where(worst.block)}.",
            worst.entropy,
            level=Level.ERROR if worst.entropy < _COLLAPSED_ENTROPY else Level.WARNING,
        )


@check("RKSP203")
def _qk_norm(evidence: CheckEvidence) -> Iterator[Observation]:
    edge, size = evidence.public_edge, evidence.active_parameters or 0.0
    has_attention = evidence.facts is None or evidence.facts.attentions > 0
    if edge is None or size < _BIG or not has_attention or evidence.bounds_attention:
        return
    share = (evidence.recipe.learning_rate or 0.0) / edge
    if share > _OF_EDGE:
        yield Observation(
            f"Nothing bounds the attention logits of this model ({size / 1e9:,.4g}B active "
            f"parameters). Its learning rate is {share:.2g} of the one at which public runs of "
            "this size failed.",
            share,
            fix="Normalize queries and keys per head (the qwen3 or olmo2 model type)",
            rate=_OF_EDGE * edge,
        )


@check("RKSP204")
def _head_dimension(evidence: CheckEvidence) -> Iterator[Observation]:
    settings, width = evidence.settings, evidence.settings.width
    heads = settings.number("num_attention_heads", "n_head")
    if not width or not heads or width < _WIDE:
        return
    declared = filter(settings.declares, _HEAD_SIZES)
    sizes = list(map(settings.number, declared)) or [width / heads]
    for size in dict.fromkeys(sizes):
        if size is None:  # it differs by layer, so width over heads is that of none
            continue
        said = f"The heads have {size:g} dimensions"
        if size % _TILE:
            yield Observation(f"{said}, which is not a multiple of {_TILE}.", size)
        elif not _HEAD[0] <= size <= _HEAD[1]:
            yield Observation(f"{said}. Usual heads have {_HEAD[0]} to {_HEAD[1]}.", size)


def _where(block: int | None) -> str:
    return "" if block is None else f" in block {block}"
