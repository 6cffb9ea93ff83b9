"""Checks of the initialization: width, depth, branches that start at zero."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from rksp.checks.check import Check, Observation
from rksp.checks.evidence import CheckEvidence, Need
from rksp.documents.finding import Level

if TYPE_CHECKING:
    from rksp.measure.forward_stats import BlockStats

# Times √(2/5d). BLOOM's 104B failed at 3.4 in fp16 (and GPT-3 is said to have trained there);
# Llama 3.1 405B is configured at 4.05. DeepSeek's 7B trained at 0.61 and OPT-1.3B at 0.43.
_LARGE, _LARGER = 3.0, 4.5
_SMALL, _SMALLER = 0.7, 0.3
_WIDE = 1024  # where √(2/5d) falls below the usual 0.02
_SECOND_HALF_GROWTH = 4.0  # a random walk grows by √2
_DEEP = 8
_DEEP_UNSCALED = 48
_UNSCALED = 0.9
_VANISHING = 1e-4


def _std(evidence: CheckEvidence) -> Iterator[Observation]:
    std, width = _drawn(evidence)
    if not std or not width or evidence.is_pretrained:
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
    """Return standard deviation and width, measured if possible, else as declared."""
    facts = evidence.facts
    if facts is not None and facts.input_std is not None:
        return facts.input_std, facts.width
    # Of µP the declared one is that of the base width; of some types it is not that of the blocks.
    if evidence.scales_rates_by_width or evidence.settings.family.own_scales:
        return None, None
    return evidence.number("initializer_range", "init_std"), evidence.declared_width


def _residual(evidence: CheckEvidence) -> Iterator[Observation]:
    facts, forward = evidence.facts, evidence.forward
    if evidence.is_pretrained:
        return
    for path, blocks in groupby(forward.blocks if forward is not None else (), _chain):
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


def _chain(block: BlockStats) -> str:
    return block.name.rpartition(".")[0]


def _second_half_growth(blocks: Sequence[BlockStats]) -> float:
    """Return the growth of one chain's RMS; 1 if it is too short, empty or not finite."""
    middle, last = blocks[len(blocks) // 2 - 1].rms_out, blocks[-1].rms_out
    is_known = len(blocks) >= _DEEP and middle > 0 and math.isfinite(last)
    return last / middle if is_known else 1.0


def _zero_branch(evidence: CheckEvidence) -> Iterator[Observation]:
    blocks = evidence.forward.blocks if evidence.forward is not None else ()
    still = [b for b in blocks if b.update_ratio is not None and b.update_ratio < _VANISHING]
    if still:
        yield Observation(
            message=f"{len(still)} of {len(blocks)} blocks return their input almost unchanged.",
            value=float(len(still)),
            layer=still[0].name,
        )


CHECKS = (
    Check(
        code="RKSP601",
        name="init-std",
        level=Level.WARNING,
        title="The initialization does not fit the width",
        measures=(
            "The median RMS of those matrices in the blocks that read the residual stream, or the "
            "configuration's initializer_range where the type draws them with it, divided by "
            f"√(2/5d). Small values count only from width {_WIDE}."
        ),
        why=(
            "A sum of d terms grows with √d, so the standard deviation must fall with width. "
            "BigScience's 104B with 0.02 at width 11,600 (3.4 times) diverged near step 7,000 at "
            "every learning rate; with 0.006 it passed that step. bf16 tolerates more than fp16. "
            "A small standard deviation can cause spikes as well, because normalization turns a "
            "small stream into large gradients: an OLMo spiked at 0.006 and not at 0.02. But "
            "DeepSeek's 7B trained at 0.006 and OPT at less, so moderately small values are only "
            "a note. transformers draws the input projections of Mamba with its default of 0.1, "
            "where mamba_ssm draws them with 1/√(3d), which is 0.013 at width 2048: an untrained "
            "Mamba of transformers is as large as this check says."
        ),
        source="BigScience tr8-104B chronicle; OLMo PR 285; Nguyen and Salazar, 2019 (√(2/5d))",
        healthy=(
            f"{_SMALL:g} to {_LARGE:g} times √(2/5d); a warning under {_SMALLER:g}, above "
            f"{_LARGER:g}, and in fp16 above {_LARGE:g}"
        ),
        fix="Set the standard deviation of the initialization to √(2/5d).",
        failing="initializer_range=0.02 at width 11600 in fp16: 3.4",
        stable="initializer_range=0.006 at width 11600: 1.0",
        look=_std,
        settings=("initializer_range",),
        is_cause=True,
        reads="recipe",
    ),
    Check(
        code="RKSP602",
        name="residual-scaling",
        level=Level.WARNING,
        title="The residual stream grows too fast with depth",
        measures=(
            "The RMS of the residual stream after the last block divided by that after the middle "
            f"block, from {_DEEP} blocks. Unscaled output projections are a note from "
            f"{_DEEP_UNSCALED} blocks."
        ),
        why=(
            "Normalized branches of equal size add up like a random walk, which grows by √2 over "
            "the second half. Faster growth means that every block multiplies its input. The "
            "later blocks then drown the early ones, and gradients grow backward in the same way. "
            "To prevent this, GPT-2 divides the matrices that write to the stream by √(2L)."
        ),
        source="Radford et al., 2019; OLMo 2's growth exponent; the level is our choice",
        healthy=f"at most {_SECOND_HALF_GROWTH:g} (a random walk has 1.4)",
        fix="Normalize the input of each branch, and divide the output projections by √(2L).",
        failing="x + f(x) without normalization, gain 1.5 per block, 8 blocks: 5",
        stable="x + f(norm(x)), 8 blocks: 1.4",
        look=_residual,
        reads="model",
        needs=(Need.MODULES,),
        is_cause=True,
    ),
    Check(
        code="RKSP603",
        name="zero-init-branch",
        level=Level.NOTE,
        title="Blocks return their input unchanged",
        measures=f"The blocks whose update is smaller than {_VANISHING:g} of their input.",
        why=(
            "Zero-initialized output projections (nanochat, ReZero, Fixup, adaLN-zero) are a "
            "healthy recipe. But no measurement at initialization can see such a block: its "
            "spectrum is that of the identity, and near-unit mass alone would call it risky."
        ),
        source="arXiv 2602.22988, section on zero-initialization; nanochat",
        healthy="every block changes its input",
        fix="Change nothing. For a fuller answer, score a checkpoint after a few steps.",
        failing="output projections initialized to zero",
        stable="output projections N(0, 0.02²/2L)",
        look=_zero_branch,
        reads="model",
        needs=(Need.FORWARD,),
    ),
)
