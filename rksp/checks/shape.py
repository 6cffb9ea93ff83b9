"""Checks of the model: its shape, the context it is trained on, and how its weights start."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from rksp.checks.check import Observation, check
from rksp.checks.evidence import CheckEvidence
from rksp.documents.finding import Level
from rksp.ground.text import short
from rksp.models.declared import Declared, setting

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
    settings, width, inner = evidence.settings, evidence.settings.width, evidence.settings.inner
    if not width or not inner or settings.experts or settings.get("use_bottleneck"):
        return
    ratio = inner / width
    if not _NARROW <= ratio <= _BROAD:
        yield Observation(
            f"The feed-forward width {inner:g} is {short(ratio)} times the model's width "
            f"{width:g}.",
            ratio,
            fix=f"Set it to {4 * width:g} (4 times), or about {8 * width / 3:.0f} if it is gated.",
        )


@check("RKSP702")
def _normalization(evidence: CheckEvidence) -> Iterator[Observation]:
    facts, placed = evidence.facts, evidence.placement
    if facts is None or (facts.block_norms if placed is None else placed.norm != "none"):
        return
    rate = evidence.recipe.learning_rate or 0.0
    yield Observation(
        f"None of the {facts.depth} blocks normalizes its stream or a branch.",
        level=Level.ERROR if rate > _UNNORMALIZED_RATE else Level.WARNING,
    )


@check("RKSP703")
def _proportions(evidence: CheckEvidence) -> Iterator[Observation]:
    facts = evidence.facts
    if facts is None or facts.depth < _DEEP:
        return
    ratio = facts.width / facts.depth
    if not _TALL <= ratio <= _FLAT:
        said = f"The width {facts.width} divided by {facts.depth} blocks is {ratio:.3g}."
        yield Observation(said, ratio)


@check("RKSP704")
def _dropout(evidence: CheckEvidence) -> Iterator[Observation]:
    shares = [(evidence.settings.number(name) or 0.0, name) for name in _DROPOUTS]
    share, name = max(shares, key=itemgetter(0))
    if share > _MUCH:
        yield Observation(
            f"{name} drops {share:.0%} of the activations.",
            share,
            level=Level.ERROR if share >= _MOST else Level.WARNING,
        )


@check("RKSP705", weights="random")
def _post_norm(evidence: CheckEvidence) -> Iterator[Observation]:
    if evidence.recipe.learning_rate is None or evidence.settings.norm != "post":
        return
    pair = evidence.settings.depths or (0, 0)
    depth, limit = (max(pair), _DEEP) if pair[1] else (evidence.depth or 0, _DEEPER + 1)
    if depth >= limit:
        said = f"{depth:g} blocks normalize after the residual sum (post-norm)."
        yield Observation(said, float(depth))


_RESERVED = 2  # rows of a table of positions that positions skip
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
            f"Sequences of {asked} tokens exceed the {limit:g} positions of {settings.name}, "
            "so step 0 ends with an index error.",
            float(asked),
        )
    elif not evidence.start.is_scratch:
        yield Observation(
            f"Sequences of {asked} tokens are longer than the {limit:g} tokens that these "
            "weights were trained on.",
            float(asked),
            level=Level.WARNING,
        )


@check("RKSP206")
def _rope_base(evidence: CheckEvidence) -> Iterator[Observation]:
    settings = evidence.settings
    base, is_scaled = _rope(settings)
    if base is None or is_scaled or not settings.positions or settings.family.no_positions:
        return
    reached, declared = evidence.recipe.sequence_length, settings.positions
    context = reached if declared >= 1e6 else max(declared, reached)  # a sentinel is no context
    longest = 2 * math.pi * base
    if context > _OVERLAP * longest:
        is_reached = reached > _OVERLAP * longest
        said = "" if is_reached else f", of which this run reaches {reached:,}"
        yield Observation(
            f"A rotary base of {base:g} repeats after {longest:,.0f} positions, but the context "
            f"has {context:,.0f}{said}.",
            context / longest,
            level=Level.WARNING if is_reached else Level.NOTE,
        )


@lru_cache(maxsize=8)
def _rope(settings: Declared) -> tuple[float | None, bool]:
    scaling, parameters = settings.get("rope_scaling"), settings.get("rope_parameters")
    inner = parameters if isinstance(parameters, dict) else getattr(parameters, "__dict__", {})
    parts = [parameters, *(x for x in inner.values() if not isinstance(x, str | int | float))]
    bases: list[object] = [settings.number("rope_theta", "rotary_emb_base")]
    bases += [setting(part, "rope_theta") for part in parts]
    kinds = [setting(scaling, "rope_type") or setting(scaling, "type")]
    kinds += [setting(part, "rope_type") for part in parts]
    known = [base for base in bases if isinstance(base, int | float)]
    return max(known, default=None), any(kind not in (None, "default") for kind in kinds)


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


@check("RKSP601", weights="random")
def _std(evidence: CheckEvidence) -> Iterator[Observation]:
    std, width = _drawn(evidence)
    if not std or not width:
        return
    usual = math.sqrt(0.4 / width)
    ratio = std / usual
    is_small = ratio < _SMALL and width >= _WIDE
    if ratio <= _LARGE and not is_small:
        return
    is_wild = ratio > _LARGER or ratio < _SMALLER or (ratio > _LARGE and evidence.in_fp16)
    yield Observation(
        f"The weights have a standard deviation of {std:.2g}, which is {short(ratio)} times "
        f"the {usual:.2g} that suits width {width:g}.",
        ratio,
        level=Level.WARNING if is_wild else Level.NOTE,
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


@check("RKSP602", weights="random")
def _residual(evidence: CheckEvidence) -> Iterator[Observation]:
    facts = evidence.facts
    for path, blocks in groupby(evidence.forward.blocks, lambda b: b.name.rpartition(".")[0]):
        growth = _second_half_growth(list(blocks))
        if growth > _SECOND_HALF_GROWTH:
            said = f"The residual stream grows {growth:.3g}-fold over its second half."
            yield Observation(said, growth, layer=path)
            return
    if facts is None or not facts.input_std or facts.output_std is None:
        return
    ratio = facts.output_std / facts.input_std
    if facts.depth >= _DEEP_UNSCALED and ratio > _UNSCALED:
        yield Observation(
            "The matrices that write to the residual stream are about as large as those that "
            f"read it (ratio {ratio:.2g}), at {facts.depth} blocks.",
            ratio,
            level=Level.NOTE,
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
    blocks = evidence.forward.blocks
    still = [b for b in blocks if b.update_ratio is not None and b.update_ratio < _VANISHING]
    if still:
        yield Observation(
            f"{len(still)} of {len(blocks)} blocks return their input almost unchanged.",
            float(len(still)),
            layer=still[0].name,
        )


@check("RKSP706")
def _placement(evidence: CheckEvidence) -> Iterator[Observation]:
    said, placed = evidence.settings.placement, evidence.placement
    if said is None or placed is None or placed.norm is None:
        return
    if placed.norm != said.norm or not placed.kind.items() <= said.kind.items():
        yield Observation(
            f"The configuration ({evidence.settings.name}) says {said}; the module has {placed}."
        )
