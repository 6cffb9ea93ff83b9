"""Checks of the model's shape and of the context it is trained on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from rksp.checks.check import Check, Observation
from rksp.checks.evidence import CheckEvidence, Need
from rksp.documents.finding import Level
from rksp.models.declared import Declared

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


def _feed_forward(evidence: CheckEvidence) -> Iterator[Observation]:
    width, inner = evidence.declared_width, evidence.settings.inner
    if not width or not inner or evidence.experts or evidence.setting("use_bottleneck"):
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


def _normalization(evidence: CheckEvidence) -> Iterator[Observation]:
    facts = evidence.facts
    if facts is None or facts.block_norms:
        return
    rate = evidence.recipe.learning_rate
    yield Observation(
        level=Level.ERROR if rate is not None and rate > _UNNORMALIZED_RATE else Level.WARNING,
        message=f"None of the {facts.depth} blocks contains a normalization module.",
        value=None,
    )


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


def _dropout(evidence: CheckEvidence) -> Iterator[Observation]:
    shares = {name: evidence.number(name) for name in _DROPOUTS}
    known = {name: share for name, share in shares.items() if share is not None}
    name = max(known, key=lambda name: known[name], default=None)
    if name is not None and known[name] > _MUCH:
        yield Observation(
            level=Level.ERROR if known[name] >= _MOST else Level.WARNING,
            message=f"{name} drops {known[name]:.0%} of the activations.",
            value=known[name],
        )


def _post_norm(evidence: CheckEvidence) -> Iterator[Observation]:
    settings = evidence.settings
    if evidence.is_pretrained or evidence.recipe.learning_rate is None:
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


_OF_SHAPES = (
    Check(
        code="RKSP701",
        name="feed-forward-ratio",
        level=Level.WARNING,
        title="The feed-forward width does not fit the model's width",
        measures="The inner width of the dense feed-forward layers divided by the model's width.",
        why=(
            "Usually the setting is left over from another model. BigScience's first 104B runs "
            "had layers of width 16,384 with the previous model's feed-forward width of 20,480 "
            "(1.25 times), and so had a 58B. The correction did not cure the divergence, but "
            "until then ten experiments were mistaken for those of another model."
        ),
        source="BigScience tr8-104B chronicle; published models use 2 to 8",
        healthy=f"{_NARROW:g} to {_BROAD:g} (4 is usual, 8/3 if gated)",
        fix="Set it to 4 times the width, or to 8/3 of it if it is gated.",
        failing="hidden_size=16384, intermediate_size=20480",
        stable="hidden_size=16384, intermediate_size=65536",
        look=_feed_forward,
        reads="model",
        needs=(Need.CONFIG,),
        settings=("intermediate_size", "n_inner", "ffn_dim"),
        is_cause=True,
    ),
    Check(
        code="RKSP702",
        name="missing-normalization",
        level=Level.ERROR,
        title="The blocks have no normalization",
        measures=(
            "The normalization modules inside the blocks. None is an error above a learning rate "
            f"of {_UNNORMALIZED_RATE:g}, else a warning."
        ),
        why=(
            "In arXiv 2602.22988, 81 of 84 runs without normalization diverged, and none of the "
            "130 runs with it. The largest stable learning rate without it was 0.002. Training "
            "without normalization is possible with care (Fixup, small learning rates). The check "
            "does not see normalization by a function call."
        ),
        source="arXiv 2602.22988, Tables 1 and 5",
        healthy="at least one normalization in each block",
        fix="Normalize the input of every branch (pre-norm).",
        failing="x + f(x)",
        stable="x + f(norm(x))",
        look=_normalization,
        needs=(Need.MODULES,),
        is_cause=True,
    ),
    Check(
        code="RKSP703",
        name="width-depth-ratio",
        level=Level.NOTE,
        title="The proportions of width and depth are unusual",
        measures=f"The width divided by the number of blocks, from {_DEEP} blocks.",
        why=(
            "Depth raises the sensitivity to the learning rate faster than width does. Very wide "
            "and shallow models waste parameters. BigScience's first 104B attempts had a ratio of "
            "512, and GPT-3 has 128. MSign's deliberately unstable NanoGPT has 2."
        ),
        source="Wortsman et al., 2023; BigScience tr8-104B chronicle; arXiv 2602.01734 (MSign)",
        healthy=f"{_TALL:g} to {_FLAT:g} (published models: 20 to 200)",
        fix="Change width and depth until the ratio is near 100.",
        failing="hidden_size=16384, num_hidden_layers=32: 512",
        stable="hidden_size=12288, num_hidden_layers=96: 128",
        look=_proportions,
        reads="model",
        needs=(Need.MODULES,),
        settings=("num_hidden_layers", "n_layer"),
    ),
    Check(
        code="RKSP704",
        name="dropout",
        level=Level.ERROR,
        title="Dropout is very large",
        measures="The largest dropout probability in the configuration.",
        why=(
            "If nine of ten activations are dropped, the remaining signal is smaller than the "
            "noise of dropping. Transformers use 0 to 0.3, and 0.1 is usual. A larger value was "
            "often meant as the share to keep."
        ),
        source="Srivastava et al., 2014; Vaswani et al., 2017, Table 3; the levels are our choice",
        healthy=f"at most {_MUCH:g}; an error at {_MOST:g}",
        fix="Set dropout to 0.1 or 0.",
        failing="resid_pdrop=0.9",
        stable="resid_pdrop=0.1",
        look=_dropout,
        reads="model",
        needs=(Need.CONFIG,),
        settings=_DROPOUTS,
    ),
    Check(
        code="RKSP705",
        name="post-norm-depth",
        level=Level.WARNING,
        title="A deep model normalizes after the residual sum",
        measures=(
            f"The number of blocks in families with post-norm: from {_DEEP} in an encoder with a "
            f"decoder, above {_DEEPER} in an encoder alone."
        ),
        why=(
            "Post-norm blocks depend on their branch more than on the residual stream, so small "
            "changes are amplified with depth. A translation model with 6 encoder and 6 decoder "
            "blocks trains with warm-up; models with 12 and 12 or 18 and 18 fail. Admin and "
            "DeepNorm rescale the stream, and pre-norm does not need this. BERT-large, an "
            "encoder, trains with 24 blocks."
        ),
        source="Liu et al., 2020 (arXiv 2004.08249); Wang et al., 2022 (arXiv 2203.00555)",
        healthy=(
            f"under {_DEEP} blocks in an encoder with a decoder, at most {_DEEPER} in an encoder "
            "alone"
        ),
        fix="Normalize before each branch (pre-norm), or initialize with Admin or DeepNorm.",
        failing="marian with 12 encoder and 12 decoder layers",
        stable="marian with 6 encoder and 6 decoder layers",
        look=_post_norm,
        needs=(Need.CONFIG,),
        settings=("encoder_layers", "decoder_layers"),
        is_cause=True,
    ),
)


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


_OF_CONTEXTS = (
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
CHECKS = (*_OF_SHAPES, *_OF_CONTEXTS)
