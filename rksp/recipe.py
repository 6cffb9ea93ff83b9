"""The recipe: everything about a training run that is not the model or the data."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rksp.errors import InputError, nearest

Optimizer = Literal[
    "adamw",
    "sgd",
    "lion",
    "adafactor",
    "muon",
    "nadamw",
    "cautious",
    "mars",
    "sophia",
    "soap",
    "kron",
    "scion",
    "lamb",
]
Schedule = Literal["constant", "linear", "cosine"]
Precision = Literal["fp32", "bf16", "fp16", "fp8", "bf16-pure", "fp16-pure"]
Peft = Literal["none", "lora", "qlora", "other"]
Objective = Literal[
    "lm",
    "mlm",
    "seq2seq",
    "classification",
    "dpo",
    "kto",
    "orpo",
    "reward",
    "ppo",
    "grpo",
    "distillation",
    "other",
]


class Recipe(BaseModel):
    """One point of a sweep, in the words of Hugging Face's `TrainingArguments`.

    `learning_rate` is the peak rate and may be absent: then rksp answers which rate is safe.
    Rates are per optimizer step; `warmup_steps` and `max_steps` count optimizer steps;
    `batch_size` counts sequences per optimizer step over all devices, `sequence_length` tokens.
    `precision` names the arithmetic of the forward and backward pass; with `-pure` the trainable
    parameters themselves are kept in that type.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    optimizer: Optimizer = "adamw"
    learning_rate: float | None = Field(default=None, gt=0)
    schedule: Schedule = "cosine"
    warmup_steps: int = Field(default=0, ge=0)
    max_steps: int = Field(default=1000, ge=1)
    min_lr_ratio: float = Field(default=0.1, ge=0, le=1)
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    adam_beta2: float = Field(default=0.999, ge=0, lt=1)
    adam_epsilon: float = Field(default=1e-8, ge=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float | None = Field(default=1.0, gt=0)
    batch_size: int = Field(default=32, ge=1)
    sequence_length: int = Field(default=256, ge=2)
    gradient_accumulation_steps: int = Field(default=1, ge=1)
    precision: Precision = "fp32"
    batch_ramp: tuple[tuple[int, int], ...] = Field(
        default=(),
        description="Smaller batches before the full one: (step from which, sequences).",
    )
    peft: Peft = Field(
        default="none", description="Adapters that are trained in place of the weights."
    )
    lora_rank: int | None = Field(default=None, ge=1, description="Rank of the LoRA adapters.")
    lora_alpha: float | None = Field(
        default=None, gt=0, description="LoRA's scale: alpha / rank times the product is added."
    )
    objective: Objective = Field(default="lm", description="What the run minimizes.")
    z_loss: float | None = Field(
        default=None, ge=0, description="Coefficient of log²Z in the loss; None: nobody said."
    )

    @classmethod
    def parse(cls, fields: dict[str, object]) -> Recipe:
        """Builds a recipe from untrusted fields.

        Raises:
            InputError: A field is unknown (the nearest known one is named) or out of range.
        """
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(str(part) for part in first["loc"])
            if first["type"] == "extra_forbidden":
                known = nearest(name, cls.model_fields)
                raise InputError(f"The recipe has no field {name!r}{known}") from None
            raise InputError(
                f"Recipe field {name!r}: {first['msg'].lower()}, got {first['input']!r}."
            ) from None

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
