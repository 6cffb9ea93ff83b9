"""The recipe: everything about a training run that is not the model or the data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from rksp.flags import Flag, checked
from rksp.optimizers.table import OPTIMIZERS

Optimizer = Literal[tuple(spec.name for spec in OPTIMIZERS)]
Schedule = Literal["constant", "linear", "cosine"]
Precision = Literal["fp32", "bf16", "fp16", "bf16-pure", "fp16-pure"]


class Recipe(BaseModel):
    """One point of a sweep, in the words of Hugging Face's `TrainingArguments`.

    `learning_rate` is the peak rate and may be absent: then rksp answers which rate is safe.
    Rates are per optimizer step; `warmup_steps` and `max_steps` count optimizer steps;
    `batch_size` counts sequences per optimizer step over all devices, `sequence_length` tokens.
    `precision` names the arithmetic of the forward and backward pass; with `-pure` the trainable
    parameters themselves are kept in that type. Every field carries the option that sets it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    optimizer: Annotated[Optimizer, Flag("--optimizer", "What turns gradients into updates.")] = (
        "adamw"
    )
    learning_rate: Annotated[
        float | None,
        Flag(
            "--lr",
            "Peak learning rate; without it, rksp says which rate is safe.",
            aliases=("--learning-rate",),
            unit="rate",
        ),
    ] = Field(default=None, gt=0)
    schedule: Annotated[Schedule, Flag("--schedule", "Shape of the rate after the warm-up.")] = (
        "cosine"
    )
    warmup_steps: Annotated[
        int, Flag("--warmup-steps", "Optimizer steps of linear warm-up.", unit="steps")
    ] = Field(default=0, ge=0)
    max_steps: Annotated[
        int, Flag("--max-steps", "Optimizer steps of the whole run.", unit="steps")
    ] = Field(default=1000, ge=1)
    min_lr_ratio: Annotated[
        float, Flag("--min-lr-ratio", "Last rate of the schedule over the peak.", unit="ratio")
    ] = Field(default=0.1, ge=0, le=1)
    adam_beta1: Annotated[
        float, Flag("--beta1", "Decay of the first moment (Adam, Lion).", unit="decay")
    ] = Field(default=0.9, ge=0, lt=1)
    adam_beta2: Annotated[
        float, Flag("--beta2", "Decay of the second moment (Adam, Lion).", unit="decay")
    ] = Field(default=0.999, ge=0, lt=1)
    adam_epsilon: Annotated[
        float, Flag("--epsilon", "Added to the root of Adam's second moment.", unit="size")
    ] = Field(default=1e-8, ge=0)
    momentum: Annotated[float, Flag("--momentum", "Momentum of SGD.", unit="decay")] = Field(
        default=0.9, ge=0, lt=1
    )
    weight_decay: Annotated[
        float, Flag("--weight-decay", "Decoupled where the optimizer has it.", unit="decay")
    ] = Field(default=0.0, ge=0)
    max_grad_norm: Annotated[
        float | None,
        Flag("--clip", "Gradient norm to clip at; 0 is off.", unit="norm", zero_is_off=True),
    ] = Field(default=1.0, gt=0)
    batch_size: Annotated[
        int, Flag("--batch-size", "Sequences per optimizer step.", unit="sequences")
    ] = Field(default=32, ge=1)
    sequence_length: Annotated[
        int, Flag("--sequence-length", "Tokens per sequence.", unit="tokens")
    ] = Field(default=256, ge=2)
    gradient_accumulation_steps: Annotated[
        int, Flag("--accumulate", "Micro-batches per optimizer step.", unit="batches")
    ] = Field(default=1, ge=1)
    precision: Annotated[
        Precision, Flag("--precision", "Arithmetic; -pure also keeps the parameters in it.")
    ] = "fp32"

    @classmethod
    def parse(
        cls, fields: Mapping[str, object], sources: Mapping[str, str] | None = None
    ) -> Recipe:
        """Build a recipe from untrusted fields.

        Args:
            fields: Values by name.
            sources: How the user said a field, for messages: `--clip`, or `run.yaml:3, clip`.

        Raises:
            InputError: A field is unknown (the nearest known one is named) or out of range.
        """
        return checked(cls, fields, noun="recipe", sources=sources)

    def learning_rate_at(self, step: int) -> float:
        """The learning rate of optimizer step `step`, counted from zero.

        Warm-up is linear and reaches the peak at step `warmup_steps`; the first step of a
        warm-up of n steps trains at 1/n of the peak, never at zero. A cosine or linear schedule
        falls from the peak to `min_lr_ratio` of it at `max_steps`.
        """
        assert self.learning_rate is not None, "a recipe without a rate has no schedule"
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        if self.schedule == "constant":
            return self.learning_rate
        span = max(1, self.max_steps - self.warmup_steps)
        done = min(1.0, (step - self.warmup_steps) / span)
        shape = 0.5 * (1 + math.cos(math.pi * done)) if self.schedule == "cosine" else 1 - done
        return self.learning_rate * (self.min_lr_ratio + (1 - self.min_lr_ratio) * shape)
