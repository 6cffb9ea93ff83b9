"""Checks of values against number formats, and of parameters in low precision."""

from __future__ import annotations

from collections.abc import Iterator

from rksp.checks.check import Check, Observation
from rksp.checks.evidence import CheckEvidence, Need
from rksp.documents.finding import Level
from rksp.ground.flags import count
from rksp.ground.model import definite

_FP16_MAX = 65504.0
_FP16_ROOM = 8.0  # activations grow during training; the first step needs some room
_FP16_TINY = 2.0**-24  # smallest positive fp16
_FP8_MAX = 448.0  # E4M3
_ROUNDING = {"bf16-pure": 2.0**-9, "fp16-pure": 2.0**-12}  # half a unit in the last place of 1
_FP16_FAST = 2.1  # times GPT-3's rate; OPT-175B ended at 1.2e-4, twice GPT-3's
_FP16_LARGE = 100e9  # parameters: BigScience's 104B, GLM-130B and OPT-175B
_HEAVY_TAIL = 30.0  # kurtosis; Gaussian entries have 3


def _non_finite(evidence: CheckEvidence) -> Iterator[Observation]:
    if evidence.forward is not None and evidence.forward.non_finite is not None:
        yield Observation(
            message=(
                f"{evidence.forward.non_finite} is the first module whose output holds NaN or "
                "infinity."
            ),
            value=None,
            layer=evidence.forward.non_finite,
        )


def _fp16_range(evidence: CheckEvidence) -> Iterator[Observation]:
    largest = _largest(evidence)
    if largest is None or not evidence.in_fp16:
        return
    if largest > _FP16_MAX / _FP16_ROOM:
        name = definite(evidence.forward).activation_name
        yield Observation(
            level=Level.ERROR if largest > _FP16_MAX else Level.WARNING,
            message=(
                f"The output of {name} reaches {largest:.5g}. The largest fp16 number is "
                f"{_FP16_MAX:.0f}."
            ),
            value=largest,
            layer=definite(name),
        )


def _fp8_range(evidence: CheckEvidence) -> Iterator[Observation]:
    largest = _largest(evidence)
    if largest is not None and largest > _FP8_MAX:
        name = definite(evidence.forward).activation_name
        yield Observation(
            level=Level.WARNING if evidence.recipe.precision == "fp8" else Level.NOTE,
            message=(
                f"The output of {name} reaches {largest:.4g}. The largest fp8 number is "
                f"{_FP8_MAX:g} (E4M3)."
            ),
            value=largest,
            layer=definite(name),
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
            message=(
                f"Adam's epsilon {recipe.adam_epsilon:g} is zero in fp16, so the update of a "
                "parameter without a gradient is 0/0."
            ),
            value=recipe.adam_epsilon,
        )
    else:
        yield Observation(
            level=Level.WARNING if recipe.peft == "none" else Level.NOTE,
            message=(
                f"Trainable parameters are kept in {kind}, which rounds by "
                f"{_ROUNDING[recipe.precision]:.2g} of their size."
            ),
            value=_ROUNDING[recipe.precision],
            # Most published fine-tuning in 16 bits trains, though worse than in 32.
            is_cause=not evidence.is_fine_tuning,
        )


def _lost_updates(evidence: CheckEvidence) -> Iterator[Observation]:
    recipe, response, facts = evidence.recipe, evidence.response, evidence.facts
    if recipe.precision not in _ROUNDING or recipe.learning_rate is None:
        return
    if recipe.peft != "none":
        return  # adapters begin at zero or small, so that nothing is rounded off them
    if response is None or not response.update_rms or facts is None or not facts.input_std:
        return
    ratio = recipe.learning_rate * response.update_rms / facts.input_std
    rounding = _ROUNDING[recipe.precision]
    if ratio < rounding:
        yield Observation(
            message=(
                f"A step moves weights by {ratio:.2g} of their size. "
                f"{recipe.precision.removesuffix('-pure')} rounds by {rounding:.2g}, so most "
                "updates are lost."
            ),
            value=ratio,
        )


def _fp16_family(evidence: CheckEvidence) -> Iterator[Observation]:
    if not evidence.in_fp16 or not evidence.is_fine_tuning:
        return
    name, declared = evidence.settings.name, _declared_dtype(evidence)
    if "bfloat16" in declared:
        message = f"According to its configuration, this {name} model was trained in bf16."
    elif evidence.settings.family.overflows_fp16 and "float16" not in declared:
        message = f"Trained weights of {name} models are known to overflow in fp16."
    else:
        return
    yield Observation(message=message, value=None)


def _declared_dtype(evidence: CheckEvidence) -> str:
    """Return the type that the weights were saved in; empty where nothing says it."""
    return str(evidence.setting("dtype", "torch_dtype") or "")


def _fp16_training(evidence: CheckEvidence) -> Iterator[Observation]:
    if not evidence.in_fp16 or evidence.is_fine_tuning or any(_fp16_family(evidence)):
        return
    level, value = Level.NOTE, None
    message = "The run trains from scratch in fp16. The largest fp16 number is 65504."
    ratio, size = evidence.rate_over_published, evidence.active_parameters
    family, reads = evidence.settings.family, evidence.reads_tokens
    if reads and family.kind not in ("speech", "vision") and not family.post_norm and size:
        if size >= _FP16_LARGE:
            level, value = Level.WARNING, size
            large = count(_FP16_LARGE)
            message = f"Most known fp16 runs of {large} parameters or more diverged on the way."
        elif ratio is not None and ratio > _FP16_FAST:
            level, value = Level.WARNING, ratio
            message = (
                f"The run trains in fp16 at {ratio:.3g} times GPT-3's learning rate; known good "
                f"ones stayed below {_FP16_FAST:g} times."
            )
    yield Observation(level=level, message=message, value=value)


def _fp8_training(evidence: CheckEvidence) -> Iterator[Observation]:
    if evidence.recipe.precision != "fp8":
        return
    blocks = evidence.forward.blocks if evidence.forward is not None else ()
    heaviest = max((block.kurtosis or 0.0 for block in blocks), default=0.0)
    if heaviest > _HEAVY_TAIL:
        message = (
            f"Activations have a kurtosis of {heaviest:.3g}, but fp8 has one scale for all entries."
        )
    elif evidence.is_fine_tuning:
        message = "Trained weights have outliers, but fp8 has one scale for each tensor."
    else:
        message = "The run trains from scratch in fp8."
    is_risky = heaviest > _HEAVY_TAIL or evidence.is_fine_tuning
    yield Observation(
        level=Level.WARNING if is_risky else Level.NOTE,
        message=message,
        value=heaviest or None,
    )


CHECKS = (
    Check(
        code="RKSP301",
        name="non-finite-activation",
        level=Level.ERROR,
        title="The forward pass gives NaN or infinity",
        measures=(
            "The output of every module on the probe, in float32. The first module with a bad "
            "output is named."
        ),
        why="Training cannot start from such a model. Later modules only pass the bad values on.",
        source="arithmetic",
        healthy="every output is finite",
        fix=(
            "Check the named module: its scale, a division by zero, a logarithm or a root of zero."
        ),
        failing="the square root of a negative number in the first block",
        stable="the same block with the argument clamped above zero",
        look=_non_finite,
        reads="model",
        needs=(Need.FORWARD,),
        is_cause=True,
    ),
    Check(
        code="RKSP302",
        name="fp16-activation-range",
        level=Level.ERROR,
        title="Activations come close to the limit of fp16",
        measures=(
            f"The largest absolute module output against {_FP16_MAX:.0f}, if the recipe uses fp16."
        ),
        why=(
            "Loss scaling protects gradients, not activations. An output beyond 65504 becomes "
            "infinity, and the loss becomes NaN. T5-base overflows in a feed-forward output of "
            "66,246."
        ),
        source=(
            f"transformers #5651; unsloth-zoo PR 600; the margin of {_FP16_ROOM:g}× is our choice"
        ),
        healthy=f"at most {_FP16_MAX / _FP16_ROOM:.0f}; an error above {_FP16_MAX:.0f}",
        fix="Train in bf16 (--precision bf16), or keep the named module in float32.",
        failing="--precision fp16 with a feed-forward output of 66,246",
        stable="--precision bf16 with the same weights",
        look=_fp16_range,
        needs=(Need.FORWARD,),
        field="precision",
        is_cause=True,
        reads="recipe",
    ),
    Check(
        code="RKSP303",
        name="fp8-activation-range",
        level=Level.NOTE,
        title="Activations exceed the range of unscaled fp8",
        measures=(
            f"The largest absolute module output against {_FP8_MAX:g}, the largest number in E4M3."
        ),
        why=(
            "An unscaled cast to E4M3 saturates at 448. Scaling by tensor or by block avoids this "
            "but loses small entries. Delayed scaling reacts one step late."
        ),
        source="Micikevicius et al., 2022 (arXiv 2209.05433), Table 1",
        healthy=f"at most {_FP8_MAX:g}",
        fix="If you train in fp8, scale by block, or keep the named module in bf16.",
        failing="an output of 1,120 (Mamba at width 768 with initializer_range 0.1)",
        stable="an output of 5 (GPT-2 at its defaults)",
        look=_fp8_range,
        needs=(Need.FORWARD,),
        field="precision",
        reads="recipe",
    ),
    Check(
        code="RKSP304",
        name="low-precision-parameters",
        level=Level.ERROR,
        title="Trainable parameters are kept in 16 bits",
        measures="The recipe's precision. In fp16: also Adam's epsilon against 6e-8.",
        why=(
            "bf16 has 8 significant bits: an update smaller than 1/512 of its weight is rounded "
            "away, and the errors accumulate. Mamba-130M overflowed with parameters cast to bf16, "
            "and trained with float32 parameters under autocast. In fp16 Adam's usual epsilon is "
            "zero, and the update of an unused parameter is 0/0. Training all weights of a trained "
            "model in bf16 mostly works, but converges worse than in float32 (torchtune, NeMo-RL)."
        ),
        source=("state-spaces/mamba #6; torchtune #2254; NeMo-RL #246; IEEE 754 half precision"),
        healthy="float32 parameters (fp32, or bf16 and fp16 under autocast)",
        fix=(
            "Keep the parameters in float32 and use autocast for the arithmetic (--precision bf16)."
        ),
        failing="--precision fp16-pure --epsilon 1e-8",
        stable="--precision bf16",
        look=_low_precision_parameters,
        field="precision",
        is_cause=True,
        reads="recipe",
    ),
    Check(
        code="RKSP305",
        name="lost-updates",
        level=Level.WARNING,
        title="Updates are smaller than the rounding of the parameters",
        measures=(
            "The learning rate times the RMS of the first update, divided by the RMS of the "
            "weights, in -pure precision."
        ),
        why=(
            "Adding less than half a unit in the last place does not change a number. With "
            "rounding to nearest most weights then stop moving, and the rest take all of the "
            "movement."
        ),
        source="Zamirai et al., 2020 (arXiv 2010.06192): nearest rounding cancels small updates",
        healthy="at least 2^-9 in bf16, 2^-12 in fp16",
        fix="Keep the parameters in float32, or use stochastic rounding.",
        failing="--precision bf16-pure --lr 1e-5 with weights of 0.02: 5e-4",
        stable="--precision bf16 --lr 1e-5",
        look=_lost_updates,
        needs=(Need.RESPONSE, Need.WEIGHTS),
        field="precision",
    ),
    Check(
        code="RKSP306",
        name="fp16-family",
        level=Level.WARNING,
        title="Weights that were trained in bf16 run in fp16",
        measures=(
            "Trained weights in fp16: the dtype that their configuration declares and, where that "
            "is no type of 16 bits, the model type against those that are reported to overflow."
        ),
        why=(
            "These weights were trained with the range of bf16, and some of their values lie "
            "outside that of fp16. New weights of the same type have no such values yet. The "
            "overflow may occur only in the backward pass: the loss is finite and the gradient is "
            "NaN, although no activation exceeds 350. The logs then show a loss of 0 and a NaN "
            "gradient."
        ),
        source=(
            "transformers #5651 and #11076; unsloth-zoo PRs 600 and 866; QwenLM/Qwen3 #670, #868"
        ),
        healthy="bf16, new weights, or weights that were trained in fp16 or float32",
        fix="Train in bf16 (--precision bf16).",
        failing="trained weights of qwen2 --precision fp16",
        stable="trained weights of qwen2 --precision bf16",
        look=_fp16_family,
        needs=(Need.CONFIG,),
        field="precision",
        is_cause=True,
        reads="recipe",
    ),
    Check(
        code="RKSP307",
        name="fp16-training",
        level=Level.WARNING,
        title="Training from scratch in fp16",
        measures=(
            "The recipe's precision. It is a warning for language models that do not normalize "
            f"after the residual sum: from {count(_FP16_LARGE)} active parameters on, and above "
            f"{_FP16_FAST:g} times GPT-3's learning rate for the size."
        ),
        why=(
            "Weights and activations grow until one of them exceeds the range of fp16. This "
            "happens at high and at low learning rates: BLOOM's 104B at 6e-5, nanoGPT at 6e-4 on "
            "a V100, DeiT-B at 1e-3. GPT-3, OPT and Pythia completed training in fp16, some of "
            "them with dozens of restarts, at up to twice GPT-3's learning rates; so nothing but "
            "the precision tells nanoGPT's run from theirs. BigScience's first lesson was to use "
            "bf16."
        ),
        source=(
            "BigScience lessons learned; OPT (arXiv 2205.01068) and its chronicles; GLM-130B "
            "(arXiv 2210.02414); Pythia (arXiv 2304.01373); nanoGPT #136; deit #29; yanmtt #7; the "
            "levels are our choice"
        ),
        healthy="bf16 or fp32",
        fix="Train in bf16 if the device supports it (--precision bf16).",
        failing="--precision fp16",
        stable="--precision bf16",
        look=_fp16_training,
        field="precision",
        is_cause=True,
    ),
    Check(
        code="RKSP308",
        name="fp8-training",
        level=Level.WARNING,
        title="The run trains in fp8",
        measures=(
            "The recipe's precision. It is a warning for trained weights, and where the kurtosis "
            f"of the residual stream is above {_HEAVY_TAIL:g}."
        ),
        why=(
            "fp8 keeps 3 bits of a number and needs a scale for each tensor or block. One large "
            "entry rounds all others to zero. A 1B model that was pre-trained in fp8 did not "
            "converge, nor did its fine-tuning; in bf16 both did. Another run was NaN in its "
            "first batch, and its author found it very sensitive to the initialization. "
            "DeepSeek-V3 scales by blocks of 128 and keeps the embedding, the output layer, the "
            "norms and the router in higher precision."
        ),
        source="TransformerEngine #841, #962; DeepSeek-V3 (arXiv 2412.19437), section 3.3",
        healthy="bf16, or fp8 from scratch with scaling by block",
        fix=(
            "Scale by block, keep the first and last layers in bf16, and compare with a few "
            "hundred steps in bf16."
        ),
        failing="--precision fp8 on trained weights",
        stable="--precision bf16 on trained weights",
        look=_fp8_training,
        field="precision",
        is_cause=True,
        reads="recipe",
    ),
)
