"""Checks of the gradient and of its clipping."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rksp.checks.check import Check, Observation
from rksp.checks.evidence import CheckEvidence, Need
from rksp.checks.rate import NEAR_EDGE
from rksp.documents.finding import Level
from rksp.ground.model import definite
from rksp.measure.response_profile import GRADIENT_NOT_FINITE

_NORM, _WILD_NORM = 100.0, 1000.0
_FP16_MAX = 65504.0
_SKIPPED = 1024.0  # torch's loss scale starts at 65536 and halves with each overflow: ten steps
_USUAL_RATE = 2.0  # times the published rate
_STARVED = 5e-4  # epsilon over the bound of a clipped gradient's entries: 4.8B parameters at 1e-8
_FAST = 100.0  # 4.8B at 0.3 had 1,600; DCLM trained 7B at 12
_OVER_TYPICAL = 5.0  # Llama 2 70B trained with 2.6 times what clipping leaves
_LARGE_EPSILON, _HUGE_EPSILON = 1e-4, 1e-2


def _non_finite(evidence: CheckEvidence) -> Iterator[Observation]:
    response, forward = evidence.response, evidence.forward
    if definite(response).reason != GRADIENT_NOT_FINITE:
        return
    loss = forward.loss if forward is not None else None
    if loss is None:
        message = "The gradient holds NaN or infinity."
    else:
        message = f"The loss is {loss:.3g}, but its gradient holds NaN or infinity."
    yield Observation(message=message, value=None)


def _fp16_range(evidence: CheckEvidence) -> Iterator[Observation]:
    largest = evidence.response.grad_max if evidence.response is not None else None
    if largest is None or not evidence.in_fp16:
        return
    if largest > _SKIPPED:
        yield Observation(
            level=Level.ERROR if largest > _FP16_MAX else Level.WARNING,
            message=f"The largest gradient entry is {largest:.3g} before loss scaling.",
            value=largest,
        )


def _scale(evidence: CheckEvidence) -> Iterator[Observation]:
    norm = _norm(evidence)
    if norm is not None and norm > _NORM:
        is_clipped = evidence.is_clipped
        wild = Level.WARNING if is_clipped else Level.ERROR
        mild = Level.NOTE if is_clipped else Level.WARNING
        yield Observation(
            level=wild if norm > _WILD_NORM else mild,
            message=f"The first gradient has norm {norm:.3g}"
            + (f", clipped to {evidence.recipe.max_grad_norm:g}." if is_clipped else "."),
            value=norm,
        )


def _no_clipping(evidence: CheckEvidence) -> Iterator[Observation]:
    recipe = evidence.recipe
    if evidence.is_clipped:
        return
    edge = evidence.likely_edge
    reason, value = None, None
    ratio, norm, rate = evidence.rate_over_published, _norm(evidence), recipe.learning_rate
    if ratio is not None and ratio > _USUAL_RATE:
        reason, value = f"the learning rate is {ratio:.3g} times GPT-3's for this size", ratio
    elif rate is not None and edge is not None and rate > NEAR_EDGE * edge:
        reason, value = f"the learning rate is {rate / edge:.3g} times the likely edge", rate / edge
    elif norm is not None and norm > _NORM:
        reason, value = f"the first gradient has norm {norm:.3g}", norm
    if reason is not None:
        yield Observation(
            message=f"Gradients are not clipped, and {reason}.",
            value=value,
        )


def _epsilon(evidence: CheckEvidence) -> Iterator[Observation]:
    recipe = evidence.recipe
    if not evidence.has_adam:
        return
    epsilon = recipe.adam_epsilon
    if epsilon == 0:
        yield Observation(
            message="Adam's epsilon is 0, so the update of a parameter without a gradient is 0/0.",
            value=0.0,
            fix="Set epsilon to 1e-8.",
        )
        return
    typical = _typical_entry(evidence)
    if typical is None:
        yield from _epsilon_alone(evidence)
    elif epsilon > _OVER_TYPICAL * typical:
        yield Observation(
            level=Level.WARNING,
            message=(
                f"Adam's epsilon {epsilon:g} is larger than {_OVER_TYPICAL:g} times the typical "
                f"gradient entry {typical:.2g}."
            ),
            value=epsilon / typical,
            fix=f"Set epsilon to {typical / 100:.0e} or less.",
        )
    else:
        yield from _starving_epsilon(evidence)


def _typical_entry(evidence: CheckEvidence) -> float | None:
    """Return the RMS of the clipped gradient: measured, else the largest that clipping allows."""
    response, clip = evidence.response, evidence.recipe.max_grad_norm
    if response is not None and response.grad_rms is not None and response.grad_norm is not None:
        shrink = min(1.0, clip / response.grad_norm) if clip is not None else 1.0
        return response.grad_rms * shrink
    if clip is None or not evidence.parameters:
        return None
    return clip / math.sqrt(evidence.parameters)


def _epsilon_alone(evidence: CheckEvidence) -> Iterator[Observation]:
    epsilon = evidence.recipe.adam_epsilon
    if epsilon > _LARGE_EPSILON:
        yield Observation(
            level=Level.ERROR if epsilon >= _HUGE_EPSILON else Level.WARNING,
            message=f"Adam's epsilon is {epsilon:g}, which is larger than usual gradient entries.",
            value=epsilon,
        )


def _starving_epsilon(evidence: CheckEvidence) -> Iterator[Observation]:
    """Compare epsilon with gradients that shrink as a large model trains at a very high rate."""
    clip, epsilon = evidence.recipe.max_grad_norm, evidence.recipe.adam_epsilon
    ratio, size = evidence.rate_over_published, evidence.parameters
    if clip is None or ratio is None or ratio < _FAST or not size:
        return
    share = epsilon * math.sqrt(size) / clip
    if share > _STARVED:
        yield Observation(
            level=Level.WARNING,
            message=(
                f"Adam's epsilon {epsilon:g} is {share:.2g} of the largest typical gradient entry "
                f"at {size / 1e9:.3g}B parameters. Gradients shrink further at {ratio:.3g} times "
                "GPT-3's learning rate."
            ),
            value=share,
            fix="Set epsilon to 1e-15 (--epsilon 1e-15).",
        )


def _norm(evidence: CheckEvidence) -> float | None:
    return evidence.response.grad_norm if evidence.response is not None else None


_OF_GRADIENTS = (
    Check(
        code="RKSP401",
        name="non-finite-gradient",
        level=Level.ERROR,
        title="The gradient is NaN or infinite",
        measures="The gradient of the loss on the probe, in float32, and the loss itself.",
        why=(
            "A finite loss says nothing about the backward pass: a root at zero, a norm of zero "
            "or a masked infinity gives NaN only there. In fp16, Gemma-4 and MoE LoRA runs had a "
            "finite loss and a NaN gradient at the first step."
        ),
        source="unsloth-zoo PR 866; arithmetic",
        healthy="every entry is finite",
        fix=(
            "Keep the argument of the root, norm or division away from zero (add an epsilon "
            "inside)."
        ),
        failing="sqrt(x) at x = 0: the value is 0 and the derivative is infinite",
        stable="sqrt(x + 1e-6)",
        look=_non_finite,
        needs=(Need.GRADIENT,),
        reads="recipe",
    ),
    Check(
        code="RKSP402",
        name="fp16-gradient-range",
        level=Level.ERROR,
        title="Gradients do not fit into fp16",
        measures=(
            f"The largest absolute gradient entry against {_SKIPPED:g} and {_FP16_MAX:.0f}, in "
            "fp16."
        ),
        why=(
            "Loss scaling starts at 65536 and halves with every step that overflows. Those steps "
            "are skipped. An entry beyond 65504 overflows at any scale of one or more."
        ),
        source="torch.amp.GradScaler's defaults; IEEE 754 half precision",
        healthy=f"at most {_SKIPPED:g}; an error above {_FP16_MAX:.0f}",
        fix="Train in bf16 (--precision bf16), or average the loss instead of summing it.",
        failing="a loss summed over 100,000 tokens, in fp16",
        stable="the mean loss over the same tokens",
        look=_fp16_range,
        needs=(Need.GRADIENT,),
        field="precision",
        is_cause=True,
        reads="recipe",
    ),
    Check(
        code="RKSP403",
        name="gradient-scale",
        level=Level.ERROR,
        title="The first gradient is very large",
        measures=(
            f"The Euclidean norm of the gradient before the first step, against {_NORM:g} and "
            f"{_WILD_NORM:g}."
        ),
        why=(
            "Model families with their default settings measured 0.3 to 30. A much larger norm "
            "comes from wide logits or from a residual stream that grows with depth. Clipping "
            "hides the size of the gradient and keeps its direction."
        ),
        source="measured on the families that rksp tests; preflight-ml's limit of 1000",
        healthy=f"at most {_NORM:g}",
        fix="Look for the cause in the other findings, and clip gradients at 1 (--clip 1).",
        failing="a summed loss, or Mamba at width 768 with initializer_range 0.1: 132",
        stable="GPT-2 with its default settings: 29",
        look=_scale,
        needs=(Need.GRADIENT,),
        reads="recipe",
    ),
    Check(
        code="RKSP404",
        name="no-clipping",
        level=Level.WARNING,
        title="A risky run has no gradient clipping",
        measures=(
            "Clipping is off, and one of three numbers is high: the learning rate is above "
            f"{_USUAL_RATE:g} times GPT-3's, it is near the likely edge, or the first gradient has "
            f"a norm above {_NORM:g}."
        ),
        why=(
            "Clipping bounds the effect of one bad batch. RoPE-ViT was NaN at the end of warm-up: "
            "it ran under AdamW at a learning rate that was tuned for LAMB, which has a built-in "
            "bound. Clipping or a lower learning rate fixed it. A calm run does not need "
            "clipping."
        ),
        source="rope-vit #16; GPT-3, LLaMA and BLOOM clip at 1",
        healthy="--clip 1, or a usual learning rate and gradient",
        fix="Clip gradients at 1 (--clip 1).",
        failing="--clip 0 --lr 4e-3 on a ViT-B",
        stable="--clip 1 --lr 4e-3, or --clip 0 --lr 5e-4",
        look=_no_clipping,
        field="max_grad_norm",
    ),
    Check(
        code="RKSP405",
        name="optimizer-epsilon",
        level=Level.ERROR,
        title="Adam's epsilon does not fit the gradient",
        measures=(
            "Epsilon divided by the RMS of the entries of the clipped first gradient. Where the "
            "gradient is not measured, the RMS is the largest that clipping allows (the bound / "
            f"√parameters). An epsilon of zero is an error. Above {_FAST:g} times GPT-3's learning "
            f"rate the limit is {_STARVED:g} times the bound / √parameters."
        ),
        why=(
            "Adam divides by |g| + ε. If ε is larger than the gradient, it dominates the sum, "
            "updates shrink, and the learning rate loses its meaning. Gradients shrink as models "
            "grow and as training proceeds. At 4.8B parameters and a learning rate of 0.3, an "
            "epsilon of 1e-8 made updates too small, and 1e-15 worked better, although the first "
            "gradient was a thousand times larger."
        ),
        source="Wortsman et al., 2023 (arXiv 2309.14322); Molybog et al., 2023",
        healthy=f"above 0 and at most {_OVER_TYPICAL:g} times the gradient's RMS",
        fix="Set epsilon to 1e-8 or less.",
        failing="--epsilon 1e-2 with gradient entries of 1e-4",
        stable="--epsilon 1e-8 with gradient entries of 1e-4",
        look=_epsilon,
        field="adam_epsilon",
        is_cause=True,
    ),
)


_SMALL, _TINY = 1e-3, 1e-5  # PixArt-α clips at 0.01, and nothing published below
_LARGE = 1000.0


def _bound(evidence: CheckEvidence) -> Iterator[Observation]:
    bound = evidence.recipe.max_grad_norm
    if bound is None:
        return
    if bound < _SMALL:
        yield Observation(
            level=Level.ERROR if bound < _TINY else Level.WARNING,
            message=f"Gradients are clipped at {bound:g}, which is far below any published bound.",
            value=bound,
        )
    elif bound > _LARGE:
        yield Observation(
            level=Level.WARNING,
            message=f"Gradients are clipped at {bound:g}, which no healthy gradient reaches.",
            value=bound,
        )


_OF_CLIPPING = (
    Check(
        code="RKSP406",
        name="clipping-bound",
        level=Level.ERROR,
        title="The clipping bound is out of range",
        measures=f"The bound on the gradient's norm against {_SMALL:g} and {_LARGE:g}.",
        why=(
            "Over a hundred million parameters a bound of 1e-6 leaves entries of 1e-10, which are "
            "below Adam's epsilon, so nothing trains. A bound of 10,000 has no effect: only a run "
            "that has already failed has gradients that large."
        ),
        source="arithmetic; GPT-3, LLaMA and BLOOM clip at 1, Marin's 32B at 0.2, OPT at 0.3 to 1",
        healthy=f"{_SMALL:g} to {_LARGE:g} (1 is usual); an error below {_TINY:g}",
        fix="Clip gradients at 1 (--clip 1), or switch clipping off (--clip 0).",
        failing="--clip 1e-6",
        stable="--clip 1",
        look=_bound,
        field="max_grad_norm",
        reads="recipe",
    ),
)
CHECKS = (*_OF_GRADIENTS, *_OF_CLIPPING)
