"""Checks of the architecture's proportions and of parts that are missing."""

from __future__ import annotations

from collections.abc import Iterator

from rksp.checks.check import Check, Observation
from rksp.checks.evidence import CheckEvidence
from rksp.documents.finding import Level

_NARROW, _BROAD = 1.5, 12.0
_UNNORMALIZED_RATE = 2e-3
_DEEP = 12  # shallower models are toys or cut down to be looked at
_FLAT, _TALL = 300.0, 4.0


def _feed_forward(evidence: CheckEvidence) -> Iterator[Observation]:
    width = evidence.declared_width
    inner = evidence.number("intermediate_size", "n_inner", "ffn_dim", "d_ff", "ffn_hidden_size")
    if not width or not inner or evidence.experts or evidence.setting("use_bottleneck"):
        return
    ratio = inner / width
    if not _NARROW <= ratio <= _BROAD:
        yield Observation(
            level=Level.WARNING,
            message=f"The feed-forward width {inner:g} is {ratio:.3g} times the width {width:g}.",
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
        message=f"None of the {facts.depth} blocks normalizes anything.",
        value=None,
    )


def _proportions(evidence: CheckEvidence) -> Iterator[Observation]:
    facts = evidence.facts
    if facts is None or facts.depth < _DEEP:
        return
    ratio = facts.width / facts.depth
    if not _TALL <= ratio <= _FLAT:
        yield Observation(
            level=Level.NOTE,
            message=f"Width {facts.width} over {facts.depth} blocks is {ratio:.3g}.",
            value=ratio,
        )


CHECKS = (
    Check(
        code="RKSP701",
        name="feed-forward-ratio",
        level=Level.WARNING,
        title="The feed-forward width does not fit the model's",
        measures="Inner width of the dense feed-forward layers over the model's width.",
        why=(
            "Usually a setting left over from another model. BigScience's first 104B runs had "
            "16,384 wide layers with the previous model's 20,480 (1.25), and so were a 58B. "
            "Correcting it did not cure the divergence, but ten experiments were read as those of "
            "another model."
        ),
        source="BigScience tr8-104B chronicle; published models use 2 to 8",
        healthy=f"{_NARROW:g} to {_BROAD:g} (4 is usual, 8/3 if gated)",
        fix="Set it to 4 times the width, or 8/3 if it is gated.",
        failing="hidden_size=16384, intermediate_size=20480",
        stable="hidden_size=16384, intermediate_size=65536",
        look=_feed_forward,
    ),
    Check(
        code="RKSP702",
        name="missing-normalization",
        level=Level.ERROR,
        title="The blocks normalize nothing",
        measures=(
            "Normalization modules inside the blocks; an error above a rate of "
            f"{_UNNORMALIZED_RATE:g}."
        ),
        why=(
            "Of the 84 runs without normalization in arXiv 2602.22988 81 diverged, and of the 130 "
            "with it none. Their largest stable rate was 0.002. It can be done with care (Fixup, "
            "small rates); a module that normalizes by a function call is not seen."
        ),
        source="arXiv 2602.22988, Tables 1 and 5",
        healthy="at least one normalization in each block",
        fix="Normalize the input of every branch (pre-norm).",
        failing="x + f(x)",
        stable="x + f(norm(x))",
        look=_normalization,
    ),
    Check(
        code="RKSP703",
        name="width-depth-ratio",
        level=Level.NOTE,
        title="Unusual proportions of width and depth",
        measures=f"Width over number of blocks, from {_DEEP} blocks.",
        why=(
            "Depth raises the sensitivity to the learning rate faster than width does; very wide "
            "and shallow models waste parameters. BigScience's first 104B attempts had 512 for "
            "GPT-3's 128, and MSign's deliberately unstable NanoGPT has 2."
        ),
        source="Wortsman et al., 2023; BigScience tr8-104B chronicle; arXiv 2602.01734 (MSign)",
        healthy=f"{_TALL:g} to {_FLAT:g} (published models: 20 to 200)",
        fix="Move parameters between width and depth until the ratio is near 100.",
        failing="hidden_size=16384, num_hidden_layers=32: 512",
        stable="hidden_size=12288, num_hidden_layers=96: 128",
        look=_proportions,
    ),
)
