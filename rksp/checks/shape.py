"""Checks of the model: its shape, the context it is trained on, and how its weights start."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rksp.checks.check import Observation, check
from rksp.checks.evidence import CheckEvidence
from rksp.documents.finding import Level
from rksp.models.declared import Declared

if TYPE_CHECKING:
    from rksp.documents.shown import BlockStats

_NARROW, _BROAD = 1.5, 12.0
_UNNORMALIZED_RATE = 2e-3
_DEEP = 12  # shallower models are toys or cut down to be looked at
_FLAT, _TALL = 300.0, 4.0
_MUCH, _MOST = 0.5, 0.8
_DROPOUTS = (
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "resid_pdrop", "embd_pdrop"),
    *("attn_pdrop", "hidden_dropout", "attention_dropout", "dropout", "dropout_rate"),
    *("activation_dropout", "residual_dropout", "emb_pdrop"),
)
_DEEPER = 24  # BERT-large and RoBERTa-large


@check("RKSP701")
def _feed_forward(evidence: CheckEvidence) -> Iterator[Observation]:
    width, inner = evidence.settings.width, evidence.settings.inner
    if (
        not width
        or not inner
        or evidence.settings.experts
        or evidence.settings.get("use_bottleneck")
    ):
        return
    ratio = inner / width
    if not _NARROW <= ratio <= _BROAD:
        yield Observation(
            message=(
                f"The feed-forward width {inner:g} is {ratio:.3g} times the model's width "
                f"{width:g}."
            ),
            value=ratio,
            fix=f"Set it to {4 * width:g} (4 times), or about {8 * width / 3:.0f} if it is gated.",
        )


@check("RKSP702")
def _normalization(evidence: CheckEvidence) -> Iterator[Observation]:
    facts, placed = evidence.facts, evidence.placement
    if facts is None:
        return
    if facts.block_norms if placed is None else placed.norm != "none":
        return
    rate = evidence.recipe.learning_rate
    yield Observation(
        level=Level.ERROR if rate is not None and rate > _UNNORMALIZED_RATE else Level.WARNING,
        message=f"None of the {facts.depth} blocks normalizes its stream or a branch.",
        value=None,
    )


@check("RKSP703")
def _proportions(evidence: CheckEvidence) -> Iterator[Observation]:
    facts = evidence.facts
    if facts is None or facts.depth < _DEEP:
        return
    ratio = facts.width / facts.depth
    if not _TALL <= ratio <= _FLAT:
        yield Observation(
            message=f"The width {facts.width} divided by {facts.depth} blocks is {ratio:.3g}.",
            value=ratio,
        )


@check("RKSP704")
def _dropout(evidence: CheckEvidence) -> Iterator[Observation]:
    shares = {name: evidence.settings.number(name) for name in _DROPOUTS}
    known = {name: share for name, share in shares.items() if share is not None}
    name = max(known, key=lambda name: known[name], default=None)
    if name is not None and known[name] > _MUCH:
        yield Observation(
            level=Level.ERROR if known[name] >= _MOST else Level.WARNING,
            message=f"{name} drops {known[name]:.0%} of the activations.",
            value=known[name],
        )


@check("RKSP705")
def _post_norm(evidence: CheckEvidence) -> Iterator[Observation]:
    settings = evidence.settings
    if not evidence.start.is_scratch or evidence.recipe.learning_rate is None:
        return
    if settings.norm != "post":
        return
    pair = settings.depths or (0, 0)
    depth, limit = (max(pair), _DEEP) if pair[1] else (evidence.depth or 0, _DEEPER + 1)
    if depth >= limit:
        yield Observation(
            message=f"{depth:g} blocks normalize after the residual sum (post-norm).",
            value=float(depth),
        )


_RESERVED = 2  # rows of a table of positions that positions skip
_LONG = 32_768
_OVERLAP = 1.1  # of the longest wavelength: 65,536 positions at base 10,000 are published


@check("RKSP205")
def _position_limit(evidence: CheckEvidence) -> Iterator[Observation]:
    settings, asked = evidence.settings, evidence.recipe.sequence_length
    limit = settings.positions
    if limit is None:
        return
    limit -= _RESERVED if settings.family.reserved_positions else 0
    if asked <= limit or settings.family.relative_positions:
        return
    if settings.family.learned_positions:
        yield Observation(
            message=(
                f"Sequences of {asked} tokens exceed the {limit:g} positions of {settings.name}, "
                "so step 0 ends with an index error."
            ),
            value=float(asked),
        )
    elif not evidence.start.is_scratch:
        yield Observation(
            level=Level.WARNING,
            message=(
                f"Sequences of {asked} tokens are longer than the {limit:g} tokens that these "
                "weights were trained on."
            ),
            value=float(asked),
        )


@check("RKSP206")
def _rope_base(evidence: CheckEvidence) -> Iterator[Observation]:
    settings = evidence.settings
    base, is_scaled = _rope(settings)
    if base is None or is_scaled or not settings.positions or settings.family.no_positions:
        return
    reached = evidence.recipe.sequence_length
    context = max(settings.positions, reached)
    if settings.positions >= 1e6:  # a sentinel, not a context
        context = reached
    longest = 2 * math.pi * base
    if context > _OVERLAP * longest:
        is_reached = reached > _OVERLAP * longest
        yield Observation(
            level=Level.WARNING if is_reached else Level.NOTE,
            message=(
                f"A rotary base of {base:g} repeats after {longest:,.0f} positions, but the "
                f"context has {context:,.0f}"
                + ("." if is_reached else f", of which this run reaches {reached:,}.")
            ),
            value=context / longest,
        )


@lru_cache(maxsize=8)
def _rope(settings: Declared) -> tuple[float | None, bool]:
    scaling = settings.get("rope_scaling")
    parameters = settings.get("rope_parameters")
    bases = [settings.number("rope_theta", "rotary_emb_base")]
    kinds = [_part(scaling, "rope_type") or _part(scaling, "type")]
    for part in (parameters, *_parts(parameters)):
        bases.append(_part(part, "rope_theta"))
        kinds.append(_part(part, "rope_type"))
    known = [base for base in bases if isinstance(base, int | float)]
    return max(known, default=None), any(kind not in (None, "default") for kind in kinds)


def _part(value: object, name: str) -> Any | None:
    return value.get(name) if isinstance(value, dict) else getattr(value, name, None)


def _parts(value: object) -> list[object]:
    inner = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    return [part for part in inner.values() if not isinstance(part, str | int | float)]


@check("RKSP207")
def _rope_precision(evidence: CheckEvidence) -> Iterator[Observation]:
    base, _ = _rope(evidence.settings)
    recipe = evidence.recipe
    if base is not None and recipe.precision == "bf16-pure" and recipe.sequence_length > _LONG:
        yield Observation(
            message=(
                "bf16 is exact up to position 256, but the sequences have "
                f"{recipe.sequence_length} rotary positions."
            ),
            value=float(recipe.sequence_length),
        )


# Times √(2/5d). BLOOM's 104B failed at 3.4 in fp16 (and GPT-3 is said to have trained there);
# Llama 3.1 405B is configured at 4.05. DeepSeek's 7B trained at 0.61 and OPT-1.3B at 0.43.
_LARGE, _LARGER = 3.0, 4.5
_SMALL, _SMALLER = 0.7, 0.3
_WIDE = 1024  # where √(2/5d) falls below the usual 0.02
_SECOND_HALF_GROWTH = 4.0  # a random walk grows by √2
_DEEP_CHAIN = 8
_DEEP_UNSCALED = 48
_UNSCALED = 0.9
_VANISHING = 1e-4


@check("RKSP601")
def _std(evidence: CheckEvidence) -> Iterator[Observation]:
    std, width = _drawn(evidence)
    if not std or not width or not evidence.start.is_scratch:
        return
    usual = math.sqrt(0.4 / width)
    ratio = std / usual
    is_small = ratio < _SMALL and width >= _WIDE
    if ratio <= _LARGE and not is_small:
        return
    is_wild = ratio > _LARGER or ratio < _SMALLER or (ratio > _LARGE and evidence.in_fp16)
    yield Observation(
        level=Level.WARNING if is_wild else Level.NOTE,
        message=(
            f"The weights have a standard deviation of {std:.2g}, which is {ratio:.3g} times the "
            f"{usual:.2g} that suits width {width:g}."
        ),
        value=ratio,
        fix=f"Set the standard deviation of the initialization to {usual:.1g} (√(2/5d)).",
    )


def _drawn(evidence: CheckEvidence) -> tuple[float | None, float | None]:
    facts = evidence.facts
    if facts is not None and facts.input_std is not None:
        return facts.input_std, facts.width
    # Of µP the declared one is that of the base width; of some types it is not that of the blocks.
    if evidence.settings.scales_rates_by_width or evidence.settings.family.own_scales:
        return None, None
    return evidence.settings.number("initializer_range", "init_std"), evidence.settings.width


@check("RKSP602")
def _residual(evidence: CheckEvidence) -> Iterator[Observation]:
    facts, forward = evidence.facts, evidence.forward
    if not evidence.start.is_scratch:
        return
    chain = lambda block: block.name.rpartition(".")[0]
    for path, blocks in groupby(forward.blocks if forward is not None else (), chain):
        growth = _second_half_growth(list(blocks))
        if growth > _SECOND_HALF_GROWTH:
            yield Observation(
                message=f"The residual stream grows {growth:.3g}-fold over its second half.",
                value=growth,
                layer=path,
            )
            return
    if facts is None or not facts.input_std or facts.output_std is None:
        return
    ratio = facts.output_std / facts.input_std
    if facts.depth >= _DEEP_UNSCALED and ratio > _UNSCALED:
        yield Observation(
            level=Level.NOTE,
            message=(
                "The matrices that write to the residual stream are about as large as those that "
                f"read it (ratio {ratio:.2g}), at {facts.depth} blocks."
            ),
            value=ratio,
            fix=(
                "Divide the initialization of the output projections by √(2L) = "
                f"{math.sqrt(2 * facts.depth):.3g}."
            ),
        )


def _second_half_growth(blocks: Sequence[BlockStats]) -> float:
    middle, last = blocks[len(blocks) // 2 - 1].rms_out, blocks[-1].rms_out
    is_known = len(blocks) >= _DEEP_CHAIN and middle > 0 and math.isfinite(last)
    return last / middle if is_known else 1.0


@check("RKSP603")
def _zero_branch(evidence: CheckEvidence) -> Iterator[Observation]:
    blocks = evidence.forward.blocks if evidence.forward is not None else ()
    still = [b for b in blocks if b.update_ratio is not None and b.update_ratio < _VANISHING]
    if still:
        yield Observation(
            message=f"{len(still)} of {len(blocks)} blocks return their input almost unchanged.",
            value=float(len(still)),
            layer=still[0].name,
        )


@check("RKSP706")
def _placement(evidence: CheckEvidence) -> Iterator[Observation]:
    said, placed = evidence.settings.placement, evidence.placement
    if said is None or placed is None or placed.norm is None:
        return
    if placed.norm != said.norm or not placed.kind.items() <= said.kind.items():
        yield Observation(
            message=(
                f"The configuration ({evidence.settings.name}) says {said}; the module has "
                f"{placed}."
            ),
            value=None,
        )
