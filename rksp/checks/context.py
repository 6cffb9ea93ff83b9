"""Checks of positions: their limit, the rotary base, and their rounding."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from rksp.checks.check import Check, Observation
from rksp.checks.evidence import CheckEvidence, Need
from rksp.documents.finding import Level
from rksp.models.declared import Declared

_RESERVED = 2  # rows of a table of positions that positions skip
_LONG = 32_768
_OVERLAP = 1.1  # of the longest wavelength: 65,536 positions at base 10,000 are published


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
    elif evidence.is_pretrained:
        yield Observation(
            level=Level.WARNING,
            message=(
                f"Sequences of {asked} tokens are longer than the {limit:g} tokens that these "
                "weights were trained on."
            ),
            value=float(asked),
        )


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
    """Return the largest rotary base, and True if positions are scaled."""
    scaling = settings.get("rope_scaling")
    parameters = settings.get("rope_parameters")
    bases = [settings.number("rope_theta", "rotary_emb_base")]
    kinds = [_part(scaling, "rope_type") or _part(scaling, "type")]
    for part in (parameters, *_parts(parameters)):
        bases.append(_part(part, "rope_theta"))
        kinds.append(_part(part, "rope_type"))
    known = [base for base in bases if isinstance(base, int | float)]
    return max(known, default=None), any(kind not in (None, "default") for kind in kinds)


def _part(value: Any, name: str) -> Any | None:
    return value.get(name) if isinstance(value, dict) else getattr(value, name, None)


def _parts(value: Any) -> list[Any]:
    """Return the parts of settings that differ by kind of layer."""
    inner = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    return [part for part in inner.values() if not isinstance(part, str | int | float)]


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


CHECKS = (
    Check(
        code="RKSP205",
        name="position-limit",
        level=Level.ERROR,
        title="Sequences are longer than the model's positions",
        measures=(
            "The tokens of a sequence against the position limit: an error in families that look "
            "positions up in a table, a warning for trained weights of other families."
        ),
        why=(
            "A table of learned positions has no row beyond its end, so the first step stops with "
            "an index error (on a GPU, with a device-side assertion that names nothing). Rotary "
            "positions have no such end, but trained weights have never seen longer ones."
        ),
        source="arithmetic",
        healthy="sequences within the position limit",
        fix="Shorten the sequences to the limit (--sequence-length), or raise the limit.",
        failing="gpt2 --sequence-length 2048",
        stable="gpt2 --sequence-length 1024",
        look=_position_limit,
        needs=(Need.CONFIG,),
        field="sequence_length",
        settings=("max_position_embeddings", "n_positions"),
        reads="recipe",
    ),
    Check(
        code="RKSP206",
        name="rope-base",
        level=Level.WARNING,
        title="The rotary base is too small for the context",
        measures=(
            "The longest wavelength of the rotary positions, 2πθ, against the sequences of the "
            "run; a note where only the declared context is longer."
        ),
        why=(
            "Beyond the longest wavelength every rotary angle repeats, so the model cannot "
            "distinguish far positions from near ones. Models with contexts of 128k use a base of "
            "5e5 or more, or they scale positions."
        ),
        source="Su et al., 2021, section 3.3; Men et al., 2024 (arXiv 2405.14591)",
        healthy=f"sequences of at most {_OVERLAP:g} times 2πθ, or scaled positions",
        fix="Raise rope_theta to 500000 or more.",
        failing="rope_theta=10000 --sequence-length 131072: 62,832 positions",
        stable="rope_theta=500000 --sequence-length 131072",
        look=_rope_base,
        needs=(Need.CONFIG,),
        settings=("rope_theta", "rope_parameters"),
        is_cause=True,
        reads="recipe",
    ),
    Check(
        code="RKSP207",
        name="rope-precision",
        level=Level.NOTE,
        title="Long rotary positions are computed in bf16",
        measures=f"Sequences longer than {_LONG:,} tokens in bf16-pure.",
        why=(
            "bf16 has 8 significant bits, so it rounds positions near 32k to multiples of 128, "
            "and rotary attention is no longer relative. The error grows with the context."
        ),
        source="Wang et al., 2024 (arXiv 2411.13476)",
        healthy=f"at most {_LONG:,} tokens, or rotary angles in float32",
        fix="Compute rotary angles in float32 (--precision bf16).",
        failing="--precision bf16-pure --sequence-length 65536",
        stable="--precision bf16 --sequence-length 65536",
        look=_rope_precision,
        needs=(Need.CONFIG,),
        field="precision",
        reads="recipe",
    ),
)
