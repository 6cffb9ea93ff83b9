"""Checks of values against number formats, and of parameters in low precision."""

from __future__ import annotations

from collections.abc import Iterator

from rksp.checks.check import Observation, check
from rksp.checks.evidence import CheckEvidence
from rksp.documents.finding import Level
from rksp.ground.flags import count
from rksp.ground.model import definite
from rksp.ground.text import short
from rksp.recipe.optimizers.table import optimizer_spec

FP16_MAX = 65504.0
_FP16_ROOM = 8.0  # activations grow during training; the first step needs some room
_FP16_SAFE = FP16_MAX / _FP16_ROOM
_FP16_TINY = 2.0**-24  # smallest positive fp16
_FP8_MAX = 448.0  # E4M3
_ROUNDING = {"bf16-pure": 2.0**-9, "fp16-pure": 2.0**-12}  # half a unit in the last place of 1
_FP16_FAST = 2.1  # times GPT-3's rate; OPT-175B ended at 1.2e-4, twice GPT-3's
_FP16_LARGE = 100e9  # parameters: BigScience's 104B, GLM-130B and OPT-175B
_HEAVY_TAIL = 30.0  # kurtosis; Gaussian entries have 3


@check("RKSP301")
def _non_finite(evidence: CheckEvidence) -> Iterator[Observation]:
    module = evidence.forward.non_finite
    if module is not None:
        yield Observation(
            f"{module} is the first module whose output holds NaN or infinity.", layer=module
        )


@check("RKSP302")
def _fp16_range(evidence: CheckEvidence) -> Iterator[Observation]:
    largest, name = evidence.forward.activation_absmax or 0.0, evidence.forward.activation_name
    if evidence.in_fp16 and largest > _FP16_SAFE:
        yield Observation(
            f"The output of {name} reaches {largest:.5g}. The largest fp16 number is "
            f"{FP16_MAX:.0f}.",
            largest,
            level=Level.ERROR if largest > FP16_MAX else Level.WARNING,
            layer=definite(name),
        )


@check("RKSP303")
def _fp8_range(evidence: CheckEvidence) -> Iterator[Observation]:
    largest, name = evidence.forward.activation_absmax or 0.0, evidence.forward.activation_name
    if largest > _FP8_MAX:
        yield Observation(
            f"The output of {name} reaches {largest:.4g}. The largest fp8 number is "
            f"{_FP8_MAX:g} (E4M3).",
            largest,
            level=Level.WARNING if evidence.recipe.precision == "fp8" else Level.NOTE,
            layer=definite(name),
        )


@check("RKSP304")
def _low_precision_parameters(evidence: CheckEvidence) -> Iterator[Observation]:
    recipe = evidence.recipe
    if recipe.precision not in _ROUNDING:
        return
    kind = recipe.precision.removesuffix("-pure")
    if kind == "fp16" and evidence.has_adam and recipe.adam_epsilon < _FP16_TINY / 2:
        yield Observation(
            f"Adam's epsilon {recipe.adam_epsilon:g} is zero in fp16, so the update of a "
            "parameter without a gradient is 0/0.",
            recipe.adam_epsilon,
        )
    else:
        yield Observation(
            f"Trainable parameters are kept in {kind}, which rounds by "
            f"{_ROUNDING[recipe.precision]:.2g} of their size.",
            _ROUNDING[recipe.precision],
            level=Level.WARNING if recipe.peft == "none" else Level.NOTE,
            # Most published fine-tuning in 16 bits trains, though worse than in 32.
            is_cause=evidence.start.is_scratch,
        )


@check("RKSP305")
def _lost_updates(evidence: CheckEvidence) -> Iterator[Observation]:
    recipe, facts = evidence.recipe, evidence.facts
    rate, rounding = recipe.learning_rate, _ROUNDING.get(recipe.precision)
    if rounding is None or rate is None or facts is None or not facts.input_std:
        return
    # The first update of Adam's kin moves every entry by the rate. Adapters begin at zero or small,
    # so that nothing is rounded off them.
    is_known = optimizer_spec(recipe.optimizer).is_adam_kin and recipe.peft == "none"
    ratio = rate / facts.input_std
    if is_known and ratio < rounding:
        yield Observation(
            f"A step moves weights by {ratio:.2g} of their size. "
            f"{recipe.precision.removesuffix('-pure')} rounds by {rounding:.2g}, so most "
            "updates are lost.",
            ratio,
        )


@check("RKSP306", weights="trained")
def _fp16_family(evidence: CheckEvidence) -> Iterator[Observation]:
    if not evidence.in_fp16:
        return
    name = evidence.settings.name
    declared = str(evidence.settings.get("dtype", "torch_dtype") or "")  # of the saved weights
    if "bfloat16" in declared:
        yield Observation(f"According to its configuration, this {name} model was trained in bf16.")
    elif evidence.settings.family.overflows_fp16 and "float16" not in declared:
        yield Observation(f"Trained weights of {name} models are known to overflow in fp16.")


@check("RKSP307", weights="random")
def _fp16_training(evidence: CheckEvidence) -> Iterator[Observation]:
    if not evidence.in_fp16:
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
                f"The run trains in fp16 at {short(ratio)} times GPT-3's learning rate; known good "
                f"ones stayed below {_FP16_FAST:g} times."
            )
    yield Observation(message, value, level=level)


@check("RKSP308")
def _fp8_training(evidence: CheckEvidence) -> Iterator[Observation]:
    if evidence.recipe.precision != "fp8":
        return
    heaviest = max((block.kurtosis or 0.0 for block in evidence.forward.blocks), default=0.0)
    level = Level.WARNING
    if heaviest > _HEAVY_TAIL:
        message = (
            f"Activations have a kurtosis of {heaviest:.3g}, but fp8 has one scale for all entries."
        )
    elif not evidence.start.is_scratch:
        message = "Trained weights have outliers, but fp8 has one scale for each tensor."
    else:
        level, message = Level.NOTE, "The run trains from scratch in fp8."
    yield Observation(message, heaviest or None, level=level)
