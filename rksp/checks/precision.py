"""Checks of ranges against number formats, and of what is kept in few bits."""

from __future__ import annotations

from collections.abc import Iterator

from rksp.checks.check import Check, Observation
from rksp.checks.evidence import CheckEvidence
from rksp.documents.finding import Level

_FP16_MAX = 65504.0
_FP16_ROOM = 8.0  # activations grow during training; the first step needs some room
_FP16_TINY = 2.0**-24  # smallest positive fp16
_FP8_MAX = 448.0  # E4M3
_ROUNDING = {"bf16-pure": 2.0**-9, "fp16-pure": 2.0**-12}  # half a unit in the last place of 1
_FP16_RATE = 5e-4
# Named in unsloth-zoo PRs 600 and 866 and in transformers #5651.
_OVERFLOWING = ("t5", "mt5", "umt5", "gemma2", "gemma3", "gemma4", "qwen3_moe", "glm4_moe")


def _non_finite(evidence: CheckEvidence) -> Iterator[Observation]:
    if evidence.forward is not None and evidence.forward.non_finite is not None:
        yield Observation(
            level=Level.ERROR,
            message=f"{evidence.forward.non_finite} is the first module to give NaN or infinity.",
            value=None,
            layer=evidence.forward.non_finite,
        )


def _fp16_range(evidence: CheckEvidence) -> Iterator[Observation]:
    largest = _largest(evidence)
    if largest is None or not evidence.in_fp16:
        return
    if largest > _FP16_MAX / _FP16_ROOM:
        name = evidence.forward.activation_name
        yield Observation(
            level=Level.ERROR if largest > _FP16_MAX else Level.WARNING,
            message=f"{name} gives {largest:.5g}, and fp16 ends at {_FP16_MAX:.0f}.",
            value=largest,
            layer=name,
        )


def _fp8_range(evidence: CheckEvidence) -> Iterator[Observation]:
    largest = _largest(evidence)
    if largest is not None and largest > _FP8_MAX:
        name = evidence.forward.activation_name
        yield Observation(
            level=Level.NOTE,
            message=f"{name} gives {largest:.4g}, beyond the {_FP8_MAX:g} of fp8 (E4M3).",
            value=largest,
            layer=name,
        )


def _largest(evidence: CheckEvidence) -> float | None:
    return evidence.forward.activation_absmax if evidence.forward is not None else None


def _low_precision_parameters(evidence: CheckEvidence) -> Iterator[Observation]:
    recipe = evidence.recipe
    if recipe.precision not in _ROUNDING:
        return
    kind = recipe.precision.removesuffix("-pure")
    loses_epsilon = kind == "fp16" and evidence.has_adam and recipe.adam_epsilon < _FP16_TINY / 2
    if loses_epsilon:
        yield Observation(
            level=Level.ERROR,
            message=(
                f"Adam's epsilon {recipe.adam_epsilon:g} is zero in fp16, so a parameter without "
                "gradient becomes 0/0."
            ),
            value=recipe.adam_epsilon,
        )
    else:
        yield Observation(
            level=Level.WARNING,
            message=f"Trainable parameters are kept in {kind}, with a rounding of "
            f"{_ROUNDING[recipe.precision]:.2g} of their size.",
            value=_ROUNDING[recipe.precision],
        )


def _lost_updates(evidence: CheckEvidence) -> Iterator[Observation]:
    recipe, response, facts = evidence.recipe, evidence.response, evidence.facts
    if recipe.precision not in _ROUNDING or recipe.learning_rate is None:
        return
    if response is None or not response.update_rms or facts is None or not facts.input_std:
        return
    ratio = recipe.learning_rate * response.update_rms / facts.input_std
    rounding = _ROUNDING[recipe.precision]
    if ratio < rounding:
        yield Observation(
            level=Level.WARNING,
            message=(
                f"A step moves weights by {ratio:.2g} of their size, less than the rounding "
                f"{rounding:.2g} of {recipe.precision.removesuffix('-pure')}: most updates are "
                "lost."
            ),
            value=ratio,
        )


def _fp16_family(evidence: CheckEvidence) -> Iterator[Observation]:
    if not evidence.in_fp16:
        return
    name = str(evidence.setting("model_type") or "").removesuffix("_text")
    if name in _OVERFLOWING:
        yield Observation(
            level=Level.WARNING,
            message=f"{name} models were trained in bf16 and are known to overflow in fp16.",
            value=None,
        )


def _fp16_rate(evidence: CheckEvidence) -> Iterator[Observation]:
    rate = evidence.recipe.learning_rate
    if rate is None or not evidence.in_fp16 or not evidence.has_adam:
        return
    if rate > _FP16_RATE:
        yield Observation(
            level=Level.WARNING,
            message=f"The peak rate is {rate:g} in fp16.",
            value=rate,
        )


CHECKS = (
    Check(
        code="RKSP301",
        name="non-finite-activation",
        level=Level.ERROR,
        title="The forward pass gives NaN or infinity",
        measures="Every module's output on the probe, in float32; the first bad one is named.",
        why="Nothing can be trained from here; later modules only pass the damage on.",
        source="arithmetic",
        healthy="every output is finite",
        fix="Look at the named module: its scale, a division by zero, a logarithm or root at zero.",
        failing="a root of a negative number in the first block",
        stable="the same with its argument clamped above zero",
        look=_non_finite,
    ),
    Check(
        code="RKSP302",
        name="fp16-activation-range",
        level=Level.ERROR,
        title="Activations come near the end of fp16",
        measures=f"Largest absolute module output against {_FP16_MAX:.0f}, if the recipe is fp16.",
        why=(
            "Loss scaling protects gradients, not activations: one output beyond 65504 is "
            "infinity, and the loss NaN. T5-base overflows in a feed-forward output of 66,246."
        ),
        source=f"transformers #5651; unsloth-zoo PR 600; room of {_FP16_ROOM:g}× is our choice",
        healthy=f"at most {_FP16_MAX / _FP16_ROOM:.0f}; an error above {_FP16_MAX:.0f}",
        fix="Train in bf16 (--precision bf16), or keep the named module in float32.",
        failing="--precision fp16 with a feed-forward output of 66,246",
        stable="--precision bf16 with the same weights",
        look=_fp16_range,
    ),
    Check(
        code="RKSP303",
        name="fp8-activation-range",
        level=Level.NOTE,
        title="Activations exceed fp8 without scaling",
        measures=f"Largest absolute module output against {_FP8_MAX:g}, the end of E4M3.",
        why=(
            "An unscaled cast to E4M3 saturates at 448. Scaling by tensor or by block avoids it at "
            "the price of the small entries; delayed scaling reacts a step late."
        ),
        source="Micikevicius et al., 2022 (arXiv 2209.05433), Table 1",
        healthy=f"at most {_FP8_MAX:g}",
        fix="If you train in fp8, scale by block, or keep the named module in bf16.",
        failing="an output of 1,120 (Mamba at width 768 with initializer_range 0.1)",
        stable="an output of 5 (GPT-2 at its defaults)",
        look=_fp8_range,
    ),
    Check(
        code="RKSP304",
        name="low-precision-parameters",
        level=Level.ERROR,
        title="Trainable parameters are kept in 16 bits",
        measures="The recipe's precision; in fp16 also Adam's epsilon against 6e-8.",
        why=(
            "bf16 keeps 8 significant bits: an update smaller than 1/512 of its weight is rounded "
            "away, and errors pile up over steps. Mamba-130M with parameters cast to bf16 "
            "overflowed and trained with float32 parameters under autocast. In fp16 Adam's usual "
            "epsilon is zero and the update of an unused parameter is 0/0."
        ),
        source="state-spaces/mamba #6; IEEE 754 half precision",
        healthy="float32 parameters (fp32, or bf16 and fp16 as autocast)",
        fix="Keep parameters in float32 and autocast the arithmetic (--precision bf16).",
        failing="--precision fp16-pure --epsilon 1e-8",
        stable="--precision bf16",
        look=_low_precision_parameters,
    ),
    Check(
        code="RKSP305",
        name="lost-updates",
        level=Level.WARNING,
        title="Updates are smaller than the rounding of the parameters",
        measures=(
            "Learning rate times the first update's RMS over the weights' RMS, in -pure precision."
        ),
        why=(
            "Adding less than half a unit in the last place changes nothing. Rounding to nearest "
            "then freezes most weights, while the rest take all of the movement."
        ),
        source="Zamirai et al., 2020 (arXiv 2010.06192): nearest rounding cancels small updates",
        healthy="at least 2^-9 in bf16, 2^-12 in fp16",
        fix="Keep parameters in float32, or use stochastic rounding.",
        failing="--precision bf16-pure --lr 1e-5 with weights of 0.02: 5e-4",
        stable="--precision bf16 --lr 1e-5",
        look=_lost_updates,
    ),
    Check(
        code="RKSP306",
        name="fp16-family",
        level=Level.WARNING,
        title="A family known to overflow in fp16",
        measures="The model type against those reported to overflow, if the recipe is fp16.",
        why=(
            "These models were trained with bf16's range. Overflow may sit in the backward pass "
            "only: a finite loss with a NaN gradient, while no activation exceeds 350."
        ),
        source="transformers #5651; unsloth-zoo PRs 600 and 866",
        healthy=f"bf16, or a type other than {', '.join(_OVERFLOWING)}",
        fix="Train in bf16 (--precision bf16).",
        failing="gemma4 --precision fp16",
        stable="gemma4 --precision bf16",
        look=_fp16_family,
    ),
    Check(
        code="RKSP307",
        name="fp16-rate",
        level=Level.WARNING,
        title="A high learning rate in fp16",
        measures=f"AdamW's peak rate against {_FP16_RATE:g}, if the recipe is fp16.",
        why=(
            "Weights trained at a high rate grow until something leaves fp16's range, often when "
            "warm-up ends: nanoGPT at 6e-4 on a V100 after 2,000 steps, DeiT-B at 1e-3, BART at "
            "1e-3. In each a lower rate or float32 attention helped."
        ),
        source="nanoGPT #136, deit #29, yanmtt #7; the level lies under the lowest of the three",
        healthy=f"at most {_FP16_RATE:g} in fp16",
        fix=f"Train in bf16 (--precision bf16), or lower the rate to {_FP16_RATE:g}.",
        failing="--precision fp16 --lr 6e-4",
        stable="--precision bf16 --lr 6e-4",
        look=_fp16_rate,
    ),
)
