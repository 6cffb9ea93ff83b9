"""Checks of the learning rate: against the model's edge, its optimizer and its schedule."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rksp.checks.check import Check, Observation
from rksp.checks.evidence import CheckEvidence, Need, published_rate, swept_edge
from rksp.documents.finding import Level
from rksp.documents.verdict import exceeds
from rksp.ground.model import definite
from rksp.ground.sizes import count
from rksp.ground.text import short
from rksp.optimizers.table import optimizer_spec

NEAR_EDGE = 1 / 3  # half a decade under it, which is how well the edge is known
_HIGH_RATIO = 5.0
_BOUNDED = 3.0  # QK-norm raised the highest stable rate at least this much
_WARMUP_SHARE, _WARMUP_STEPS, _WARMUP_TOKENS = 0.03, 300, 300e6
_FAST, _FAST_STEPS, _FAST_SHARE = 0.25, 1000, 0.2
_GENTLE_RATE, _ADAPTER_RATE = 1e-4, 5e-4
_GENTLE_SHARE = 0.02  # of a public edge; MPT's 125M and 1B broke at 0.03 of it, DiT held at 0.01
_REFERENCE_BATCH = 0.5e6  # tokens; Brown et al., 2020, Table 2.1, 125M to 760M parameters
_BATCH_RATIO, _WILD_BATCH_RATIO = 10.0, 30.0


def _rate_over_edge(evidence: CheckEvidence) -> Iterator[Observation]:
    rate, edge = evidence.recipe.learning_rate, evidence.likely_edge
    ceiling = evidence.do_not_exceed
    if rate is None or edge is None or ceiling is None:
        return
    start = ceiling if evidence.start_here is None else evidence.start_here
    is_over = rate > edge
    if not is_over and not exceeds(rate, start_here=start, do_not_exceed=ceiling):
        return
    bound, name, rest = ceiling, "learning rate not to exceed,", ""
    if is_over:
        bound, name = edge, "likely edge"
    elif start > ceiling:
        bound, name = start, "learning rate to start with,"
        rest = f", which is above the one not to exceed, {short(ceiling, 2)}, already"
    level = Level.ERROR if is_over else Level.WARNING if evidence.is_doubtful else Level.NOTE
    yield Observation(
        level=level,
        message=(
            f"The learning rate {short(rate, 6)} is {rate / bound:.3g} times "
            f"the {name} {short(bound, 2)}{rest}."
        ),
        value=rate / edge,
        rate=min(edge, max(start, ceiling)),
    )


def _published_rate(evidence: CheckEvidence) -> Iterator[Observation]:
    ratio, edge = evidence.rate_over_published, evidence.public_edge
    rate, size = evidence.recipe.learning_rate, evidence.active_parameters
    if ratio is None or edge is None:
        return
    limit = edge / 2 * (_BOUNDED if evidence.bounds_attention else 1.0)
    if definite(rate) > limit:
        yield Observation(
            message=(
                (
                    f"The learning rate {short(definite(rate), 6)} is above {short(limit, 2)}, "
                    f"which is half of the one at which public runs of {count(definite(size))} "
                    "active parameters began to fail"
                )
                + (
                    " (times 3, because attention is bounded)."
                    if evidence.bounds_attention
                    else "."
                )
            ),
            value=ratio,
            rate=limit,
        )
    elif ratio > _HIGH_RATIO:
        usual = published_rate(definite(size))
        yield Observation(
            level=Level.NOTE,
            message=(
                f"The learning rate is {ratio:.3g} times the {usual:.2g} of GPT-3's recipe for "
                f"{count(definite(size))} active parameters."
            ),
            value=ratio,
            rate=_HIGH_RATIO * usual,
        )


def _warmup(evidence: CheckEvidence) -> Iterator[Observation]:
    recipe, wanted = evidence.recipe, _wanted_warmup(evidence)
    if recipe.warmup_steps >= wanted:
        return
    yield Observation(
        message=(
            f"The warm-up takes {recipe.warmup_steps} of {recipe.max_steps} steps."
            if recipe.warmup_steps
            else f"There is no warm-up in {recipe.max_steps} steps."
        ),
        value=float(recipe.warmup_steps),
        fix=f"Warm up for {wanted} steps (--warmup-steps {wanted}).",
    )


def _wanted_warmup(evidence: CheckEvidence) -> int:
    """Return the warm-up steps that this recipe should have; 0 where it needs none."""
    recipe = evidence.recipe
    rate = recipe.learning_rate
    if rate is None or not optimizer_spec(recipe.optimizer).needs_warmup:
        return 0
    gentle = _GENTLE_RATE if recipe.peft == "none" else _ADAPTER_RATE
    if evidence.is_fine_tuning and rate <= gentle:
        return 0
    if recipe.warmup_steps * evidence.tokens >= _WARMUP_TOKENS:
        return 0
    size = evidence.block_parameters
    own = swept_edge(recipe.optimizer, size) if size else None
    edge = min((e for e in (evidence.public_edge, own) if e is not None), default=None)
    if edge is not None and rate <= min(_GENTLE_RATE, _GENTLE_SHARE * edge):
        return 0
    if edge is not None and not evidence.is_fine_tuning and rate > _FAST * edge:
        return min(_FAST_STEPS, math.ceil(_FAST_SHARE * recipe.max_steps))
    return min(_WARMUP_STEPS, math.ceil(_WARMUP_SHARE * recipe.max_steps))


def _batch(evidence: CheckEvidence) -> Iterator[Observation]:
    ratio, tokens = evidence.rate_over_published, evidence.tokens
    if ratio is None or tokens >= _REFERENCE_BATCH:
        return
    scaled = ratio * math.sqrt(_REFERENCE_BATCH / tokens)
    times = f"{scaled:,.0f}" if scaled >= 100 else f"{scaled:.3g}"
    if scaled > _BATCH_RATIO:
        yield Observation(
            level=Level.WARNING if scaled > _WILD_BATCH_RATIO else Level.NOTE,
            message=(
                f"With {tokens:,} tokens a step the learning rate is {times} times GPT-3's, "
                "scaled by the square root of the batch."
            ),
            value=scaled,
            rate=definite(evidence.recipe.learning_rate) * _BATCH_RATIO / scaled,
        )


_OF_RATES = (
    Check(
        code="RKSP501",
        name="learning-rate",
        level=Level.ERROR,
        title="The learning rate is too high for this model",
        measures=(
            "The peak learning rate against the likely edge, where failure is as likely as "
            "success, and against the learning rate not to exceed, below which 5 % of the edges "
            "lie, or the one to start with where that is higher."
        ),
        why=(
            "Above the edge training fails, or a lower learning rate trains better. Both numbers "
            "come from the model of the edge, or of fine-tuning where the weights are trained; its "
            "card states how accurate it is. The other "
            "checks do not depend on it."
        ),
        source="measured on our runs (datasets/README.md) and on public ladders of learning rates",
        healthy=(
            "at most the learning rate not to exceed or the one to start with, whichever is "
            "higher; a note above it, a warning where P(failed) reaches two fifths of the bar, an "
            "error above the edge"
        ),
        fix="Lower the learning rate to the one to start with.",
        failing="rksp score gpt2 --lr 6e-2",
        stable="rksp score gpt2 --lr 6e-4",
        look=_rate_over_edge,
        needs=(Need.ANSWER,),
        field="learning_rate",
    ),
    Check(
        code="RKSP502",
        name="published-rate",
        level=Level.WARNING,
        title="The learning rate is higher than public runs of this size could take",
        measures=(
            "The peak learning rate of AdamW and similar optimizers against half of 10^1.52 · "
            "N^-0.39 · B^-0.02, the edge of public ladders (N active parameters without "
            f"embeddings, B tokens a step), times {_BOUNDED:g} if attention is bounded. It is a "
            f"note above {_HIGH_RATIO:g} times GPT-3's learning rate. The check is silent for "
            "fine-tuning and under μP."
        ),
        why=(
            "The highest learning rate that trains falls with size. Marin's 8B ran well at 1e-3 "
            "and badly at 2e-3. DCLM's 7B, with QK-norm and z-loss, ran at 2e-3. Under μP the "
            "learning rate belongs to a small base model, so this check does not apply."
        ),
        source=(
            "our fit to Step Law's ladders (arXiv 2503.04715); Marin PR 1236; Rybakov et al., "
            "2024 (arXiv 2410.16682) for QK-norm; Brown et al., 2020, Table 2.1"
        ),
        healthy=(
            f"at most half of the public edge, and at most {_HIGH_RATIO:g} times GPT-3's learning "
            "rate"
        ),
        fix="Lower the learning rate.",
        failing="an 8B Llama at 2e-3",
        stable="an 8B Llama at 1e-3",
        look=_published_rate,
        needs=(Need.SIZE,),
        field="learning_rate",
    ),
    Check(
        code="RKSP503",
        name="warmup",
        level=Level.WARNING,
        title="Warm-up is missing or too short",
        measures=(
            f"The warm-up against the least of {_WARMUP_SHARE:.0%} of the run, {_WARMUP_STEPS} "
            f"steps and {_WARMUP_TOKENS / 1e6:g}M tokens. Where the learning rate is above "
            f"{_FAST:g} of a public edge, the limit is {_FAST_SHARE:.0%} of the run, {_FAST_STEPS} "
            "steps or those tokens. The check is silent for SGD, Adafactor, Muon and Scion, and "
            f"for fine-tuning at {short(_GENTLE_RATE)} or less "
            f"({short(_ADAPTER_RATE)} with adapters), and from scratch at as little where that is "
            f"at most {_GENTLE_SHARE:g} of a public edge."
        ),
        why=(
            "The first gradients point in the directions of highest curvature, and Adam's second "
            "moment is not yet an average. Warm-up moves the model to flatter regions before the "
            "learning rate reaches its peak. MPT-125M with 100 warm-up steps (52M tokens) "
            "diverged; GPT-3 and OPT warm up over 375M tokens. Near the edge a longer warm-up is "
            "needed. In the Marin sweep, Adam-like and Lion runs at a third to two thirds of "
            "their edge failed in 14 of 26 cases with 500 warm-up steps instead of 2000 or 4000, "
            "and in 9 of 26 with 1000. Muon and Scion trained without warm-up."
        ),
        source=(
            "the Marin optimizer sweep (arXiv 2509.02046), our count; llm-foundry #232, #759 and "
            "PR 330; Gilmer et al., 2021; Xiong et al., 2020"
        ),
        healthy=(
            f"at least {_WARMUP_SHARE:.0%} of the run, {_WARMUP_STEPS} steps or "
            f"{_WARMUP_TOKENS / 1e6:g}M tokens"
        ),
        fix=f"Warm up for {_WARMUP_SHARE:.0%} of the run.",
        failing="--warmup-steps 100 --max-steps 100000 with 0.5M tokens a step",
        stable="--warmup-steps 750 --max-steps 600000 with 0.5M tokens a step (GPT-3 125M)",
        look=_warmup,
        field="warmup_steps",
    ),
    Check(
        code="RKSP504",
        name="batch-scaling",
        level=Level.WARNING,
        title="The learning rate is too high for the small batch",
        measures=(
            "The learning rate divided by GPT-3's for the size, scaled by √(0.5M / tokens per "
            "step). The check applies only below 0.5M tokens."
        ),
        why=(
            "A small batch gives a noisier gradient, and a normalized update follows noise as far "
            "as signal. For Adam-like optimizers the usable learning rate is about proportional "
            "to the square root of the batch. Tensor2Tensor's big model on one GPU, with 1,500 "
            "tokens a step, diverged until the batch was enlarged."
        ),
        source="Malladi et al., 2022 (arXiv 2205.10287); tensor2tensor #529; levels are our choice",
        healthy=f"at most {_BATCH_RATIO:g} times; a warning above {_WILD_BATCH_RATIO:g} times",
        fix="Lower the learning rate, or enlarge the batch (accumulate gradients).",
        failing="213M parameters, learning rate 4e-4, 1,500 tokens a step: 14",
        stable="213M parameters, learning rate 4e-4, 16,384 tokens a step: 4.4",
        look=_batch,
        needs=(Need.SIZE,),
        field="batch_size",
    ),
)


_OF_EDGE = 0.75
_OVER_PUBLISHED = 2.0  # times the top of what was published


def _own_rate(evidence: CheckEvidence) -> Iterator[Observation]:
    recipe, size = evidence.recipe, evidence.active_parameters
    rate, known = recipe.learning_rate, optimizer_spec(recipe.optimizer)
    if rate is None or not size or evidence.is_fine_tuning or recipe.optimizer == "adamw":
        return
    if evidence.scales_rates_by_width:
        return
    edge = swept_edge(recipe.optimizer, evidence.block_parameters or size)
    limits = [_OF_EDGE * edge] if edge is not None else []
    if known.rates.over_adamw is not None and known.family in ("sign-like", "layerwise"):
        limits.append(_OVER_PUBLISHED * known.rates.over_adamw * published_rate(size))
    limit = min(limits, default=None)
    if limit is not None and rate > limit:
        yield Observation(
            message=(
                f"The learning rate {short(rate, 6)} is above {short(limit, 2)}, the highest that "
                f"is known to work with {recipe.optimizer} at {size / 1e6:,.0f}M active parameters."
            ),
            value=rate / limit,
            rate=limit,
        )


_OF_OPTIMIZERS = (
    Check(
        code="RKSP507",
        name="optimizer-rate",
        level=Level.WARNING,
        title="The learning rate is not usual for this optimizer",
        measures=(
            "The peak learning rate of an optimizer other than AdamW. It is compared with "
            f"{_OF_EDGE:g} of the edge that the optimizer had in the Marin sweep, extrapolated to "
            f"the model's size as AdamW's edge is, and for Lion and LAMB with {_OVER_PUBLISHED:g} "
            "times the published learning rates. The check is silent for fine-tuning and under "
            "μP."
        ),
        why=(
            "The same learning rate has a different effect under each optimizer. Lion moves every "
            "weight by the whole learning rate and needs a third to a tenth of AdamW's. Muon and "
            "Scion have a scale of their own. A learning rate that was taken over from another "
            "optimizer is a usual cause of failure: RoPE-ViT with LAMB's learning rate under "
            "AdamW was NaN at the end of warm-up."
        ),
        source=(
            "Chen et al., 2023 (arXiv 2302.06675); You et al., 2020 (arXiv 1904.00962); the Marin "
            "optimizer sweep (arXiv 2509.02046), our reading; rope-vit #16"
        ),
        healthy=f"at most {_OF_EDGE:g} of the optimizer's own edge, or its published range",
        fix="Use a learning rate that was published for this optimizer.",
        failing="--optimizer lion --lr 6e-4 on a GPT-2",
        stable="--optimizer lion --lr 1e-4 on a GPT-2",
        look=_own_rate,
        needs=(Need.SIZE,),
        field="learning_rate",
    ),
)


_TRAVEL, _NO_TRAVEL = 1e-5, 1e-6  # fine-tuning by reinforcement travels 1e-4
_LOST_IN_FP32 = 1e-9  # half a unit in the last place of a weight of 0.02


def _warmup_length(evidence: CheckEvidence) -> Iterator[Observation]:
    recipe = evidence.recipe
    if recipe.warmup_steps >= recipe.max_steps and recipe.warmup_steps > 1:
        share = recipe.max_steps / recipe.warmup_steps
        yield Observation(
            message=(
                f"The warm-up of {recipe.warmup_steps} steps lasts for the whole run of "
                f"{recipe.max_steps} steps: the learning rate only rises, to {share:.0%} of its "
                "peak."
            ),
            value=1 / share,
            fix=f"Warm up for {max(1, recipe.max_steps // 10)} steps, or train for longer.",
        )


def _travel(evidence: CheckEvidence) -> Iterator[Observation]:
    recipe = evidence.recipe
    rate = recipe.learning_rate
    if rate is None or optimizer_spec(recipe.optimizer).family in ("plain", "layerwise"):
        return
    farthest = rate * recipe.max_steps
    if farthest < _TRAVEL or rate < _LOST_IN_FP32:
        is_still = farthest < _NO_TRAVEL or rate < _LOST_IN_FP32
        yield Observation(
            level=Level.ERROR if is_still else Level.WARNING,
            message=(
                f"A learning rate of {short(rate, 6)} over {recipe.max_steps} steps moves a weight "
                f"by at most {farthest:.1g}, so nothing is learned."
            ),
            value=farthest,
        )


_OF_SCHEDULES = (
    Check(
        code="RKSP505",
        name="warmup-length",
        level=Level.WARNING,
        title="The warm-up lasts for the whole run",
        measures="The warm-up steps against the steps of the run.",
        why=(
            "The learning rate only rises: it reaches its peak at the last step or never, and it "
            "never decays. Usually the setting is left over from a longer run. The run trains, "
            "but not by the recipe that was intended."
        ),
        source="arithmetic; nanoGPT-mup runs 1,000 steps with a warm-up of 2,000",
        healthy="a warm-up that is shorter than the run",
        fix="Shorten the warm-up to a tenth of the run.",
        failing="--warmup-steps 2000 --max-steps 1000",
        stable="--warmup-steps 100 --max-steps 1000",
        look=_warmup_length,
        field="warmup_steps",
        reads="recipe",
    ),
    Check(
        code="RKSP506",
        name="no-movement",
        level=Level.ERROR,
        title="The learning rate is too small to move a weight",
        measures=(
            "The peak learning rate times the steps of the run, which bounds how far a normalized "
            f"update moves a weight, and the learning rate against {_LOST_IN_FP32:g}."
        ),
        why=(
            "Weights are about 0.02. A step of Adam or a similar optimizer moves each weight by "
            "at most about the learning rate. Below 1e-9 a float32 weight of that size does not "
            "change at all. Usually an exponent was mistyped."
        ),
        source="arithmetic (IEEE 754 single precision); Kingma and Ba, 2015, section 2.1",
        healthy=f"a product of at least {_TRAVEL:g}; an error under {_NO_TRAVEL:g}",
        fix=(
            "Check the exponent for a typing error: pre-training uses 1e-4 to 1e-3, fine-tuning "
            "1e-5."
        ),
        failing="--lr 1e-12 --max-steps 1000",
        stable="--lr 5e-7 --max-steps 500 (preference tuning)",
        look=_travel,
        field="learning_rate",
    ),
)
CHECKS = (*_OF_RATES, *_OF_OPTIMIZERS, *_OF_SCHEDULES)
