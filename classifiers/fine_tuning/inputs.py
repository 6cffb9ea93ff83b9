"""What the model of fine-tuning looks at, and the terms that each fact becomes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from rksp.ground.text import words

# Methods that train a low-rank update of each matrix; the rate means the same in all of them.
ADAPTERS = words("lora qlora dora rslora pissa milora sc-lora lora-null clora s-lora adalora")
# Methods that train a few vectors around frozen matrices, at rates a hundred times higher.
VECTORS = ("vera", "ia3", "prompt", "prefix")
OBJECTIVES = words(
    "next_token continued classification masked transcription preference orpo reward rl"
)
_LIKELIHOODS = words("next_token continued classification masked transcription")
# Rates that people start from, by `FineTuningInputs.practice`: LoRA and its variants (DoRA, MiLoRA,
# PiSSA and others), all weights of each kind (an encoder-decoder: the Trainer's default), Whisper.
USUAL = {"lora": 3e-4, "variant": 2e-4, "encoder": 5e-5, "decoder": 2e-5,
         "encoder_decoder": 5e-5, "whisper": 1e-5}  # fmt: skip
_LARGE_ENCODER = 2e8  # parameters; no ladder of the data compares rates of a larger one
# Sizes at which the stated constants hold, as decimal logarithms of the number of parameters.
_USUAL_SIZE = {"decoder": math.log10(7e9)}
_SMALL_SIZE = math.log10(8.6e7)
_SIZES = (math.log10(4e7), 12.0)  # sizes of the public data; the nearest one counts beyond them
_LAB_SIZES = (math.log10(7.9e4), math.log10(6e5))  # sizes of the lab's models
_TINY = (_LAB_SIZES[1] + _SIZES[0]) / 2  # below it the lab's models are the nearer ones
_USUAL_RANK = 16.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FineTuningInputs:
    """The facts of trained weights and of a recipe that a rate of fine-tuning may depend on.

    None is a fact that is not known.

    Attributes:
        method: `full` trains all weights; else a name of `ADAPTERS` or `VECTORS`, or any other.
        objective: One of `OBJECTIVES`, or any other; continued is pre-training on, classification
            is regression too, preference is DPO and its kin, rl is PPO and GRPO.
        kind: decoder, encoder, encoder_decoder, vision or speech.
        family: The configuration's `model_type`; "" where it is not known.
        parameters: Of the whole model, frozen ones and all experts too, but not the embeddings of
            tokens: a vocabulary of many languages does not make a model large.
        rank: Of the adapters.
        optimizer: adamw stands for Adam and its 8-bit and paged relatives.
        source: Whose runs these are; a name that was revealed, else "".
        model: Which checkpoint, a name of the fit or one that was revealed; else "", and its own
            offset is part of the spread.
    """

    method: str = "full"
    objective: str = "next_token"
    kind: str = "decoder"
    family: str = ""
    parameters: float | None = None
    rank: float | None = None
    optimizer: str = "adamw"
    source: str = ""
    model: str = ""

    @property
    def trained(self) -> str:
        """Which weights are trained: full, adapter, vector or other."""
        if self.method == "full":
            return "full"
        if self.method in ADAPTERS:
            return "adapter"
        return "vector" if self.method in VECTORS else "other"

    @property
    def is_tiny(self) -> bool:
        """Whether the lab's models are nearer in size than any checkpoint that people tune.

        Their rates lie one to two decades above, and the line of the public sizes misses them.
        """
        return bool(self.parameters) and math.log10(self.parameters or 1.0) < _TINY

    @property
    def scope(self) -> str:
        """What is trained, as most levels name it; tiny models have levels of their own."""
        return f"tiny-{self.trained}" if self.is_tiny else self.trained

    @property
    def practice(self) -> str:
        """Which usual rate people start with, one of `USUAL`; "" if none.

        It is a rate of AdamW for a likelihood; preferences and rewards have others, and so have
        large encoders.
        """
        if self.is_tiny or self.optimizer != "adamw" or self.objective not in _LIKELIHOODS:
            return ""
        if self.trained == "adapter":
            return "lora" if self.method in ("lora", "qlora") else "variant"
        kind = "whisper" if self.family == "whisper" else self.kind
        is_large = kind == "encoder" and (self.parameters or 0.0) > _LARGE_ENCODER
        return kind if self.trained == "full" and kind in USUAL and not is_large else ""


@dataclass(frozen=True, slots=True)
class Term:
    """One summand of a logarithm of a rate: a coefficient of this name, times a value.

    Attributes:
        factor: The kind of fact, such as `family`.
        level: Which one, such as `adapter/llama`.
        value: 1 for a name; the distance from the usual value for a number.
    """

    factor: str
    level: str
    value: float = 1.0

    @property
    def is_name(self) -> bool:
        """Whether the level is a name, which can be one that was never seen."""
        return "/" in self.level


def terms(inputs: FineTuningInputs) -> Iterator[Term]:
    """Yield every term that the inputs have; which of them count is the model's to say.

    What is trained is part of most levels: a family that wants low rates for all weights does not
    want them for adapters.
    """
    trained, scope = inputs.trained, inputs.scope
    yield Term("base", f"{scope}/{inputs.kind}" if trained == "full" else f"{scope}/any")
    if trained == "adapter":
        yield Term("kind", f"{scope}/{inputs.kind}")
    if trained != "full":
        yield Term("method", f"{scope}/{inputs.method}")
    listed = "listed" if inputs.objective in OBJECTIVES else "unlisted"
    if inputs.is_tiny and listed == "listed":
        listed = "tiny-listed"  # so that the lab's ladders move nothing of other sizes
    yield Term("objective", f"{listed}/{inputs.objective}")
    if inputs.family:
        yield Term("family", f"{scope}/{inputs.family}")
    yield Term("source", f"{scope}/{inputs.source}")
    yield Term("model", f"{scope}/{inputs.model}")
    if inputs.optimizer != "adamw":
        yield Term("optimizer", f"any/{inputs.optimizer}")
    yield from _numbers(inputs, scope)


def decades_outside(inputs: FineTuningInputs) -> float:
    """Return how far the size lies outside those of the data; 0 where it does not count."""
    if not inputs.parameters or not (inputs.is_tiny or inputs.trained == "full"):
        return 0.0
    size, (low, high) = math.log10(inputs.parameters), _sizes(inputs)
    return max(low - size, size - high, 0.0)


def _sizes(inputs: FineTuningInputs) -> tuple[float, float]:
    return _LAB_SIZES if inputs.is_tiny else _SIZES


def _numbers(inputs: FineTuningInputs, scope: str) -> Iterator[Term]:
    if not inputs.parameters:
        yield Term("no size", scope)
    elif not inputs.is_tiny:  # the lab's two widths show no slope
        usual = _USUAL_SIZE.get(inputs.kind, _SMALL_SIZE)
        low, high = _sizes(inputs)
        yield Term("size", scope, min(max(math.log10(inputs.parameters), low), high) - usual)
    if inputs.trained == "adapter" and inputs.rank:
        yield Term("rank", scope, math.log10(inputs.rank / _USUAL_RANK))
