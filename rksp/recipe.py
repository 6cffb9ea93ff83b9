"""The recipe: everything about a training run that is not the model or the data."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rksp.errors import InputError, nearest

Optimizer = Literal["adamw", "sgd", "lion", "adafactor", "muon"]
Schedule = Literal[
    "constant", "linear", "cosine", "wsd", "inverse_sqrt", "polynomial", "exponential", "step"
]
Precision = Literal["fp32", "bf16", "fp16", "bf16-pure", "fp16-pure"]
DecayShape = Literal["linear", "cosine", "sqrt", "exponential"]
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
    decay_steps: int | None = Field(
        default=None,
        ge=1,
        description="Steps of the fall: the last ones of a wsd schedule, those after the warm-up "
        "of a cosine, linear, polynomial or exponential one; the time scale of inverse_sqrt.",
    )
    decay_shape: DecayShape = Field(
        default="linear", description="Shape of the fall at the end of a wsd schedule."
    )
    decay_power: float = Field(
        default=1.0, gt=0, description="Exponent of a polynomial schedule; 1 is linear."
    )
    decay_milestones: tuple[int, ...] = Field(
        default=(), description="Steps at which a step schedule multiplies the rate."
    )
    decay_factor: float = Field(
        default=0.1, gt=0, le=1, description="Factor of a step schedule at each milestone."
    )
    batch_ramp: tuple[tuple[int, int], ...] = Field(
        default=(),
        description="A ramp of the batch: (first step, sequences) in order, the full one last.",
    )
    peft: Peft = Field(
        default="none", description="Adapters that are trained in place of the weights."
    )
    lora_rank: int | None = Field(default=None, ge=1, description="Rank of the LoRA adapters.")
    lora_alpha: float | None = Field(
        default=None,
        gt=0,
        description="LoRA's scale: the update is alpha / rank times the product.",
    )
    lora_targets: tuple[str, ...] = Field(
        default=(), description="Modules that carry adapters; none named: the trainer's choice."
    )
    objective: Objective = Field(default="lm", description="What the run minimizes.")

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
        warm-up of n steps trains at 1/n of the peak, never at zero. What follows is
        `share_after_warmup`.
        """
        assert self.learning_rate is not None, "a recipe without a rate has no schedule"
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        return self.learning_rate * self.share_after_warmup(step)

    def share_after_warmup(self, step: int) -> float:
        """The rate of a step after the warm-up, as a share of the peak.

        With r = `min_lr_ratio`, w = `warmup_steps`, T = `max_steps`, D = `decay_steps` and
        x the finished share of the fall, from 0 to 1:

        - linear, cosine: r + (1-r)(1-x) and r + (1-r)(1+cos πx)/2 over D steps (default T-w);
        - polynomial: r + (1-r)(1-x)^p; exponential: r^x, or e^(-x) where r is zero;
        - wsd (Hu et al., 2024): the peak until T-D (default T/10), then `decay_shape` down to r;
          its `sqrt` is r + (1-r)(1-√x) (Hägele et al., 2024);
        - inverse_sqrt (Vaswani et al., 2017): √(τ/(τ+step-w)), not below r; τ is D (default w);
        - step: `decay_factor` to the power of the milestones passed, not below r.
        """
        least, elapsed = self.min_lr_ratio, step - self.warmup_steps
        if self.schedule == "constant":
            return 1.0
        if self.schedule == "step":
            passed = sum(step >= milestone for milestone in self.decay_milestones)
            return max(least, self.decay_factor**passed)
        if self.schedule == "inverse_sqrt":
            scale = self.decay_steps or max(1, self.warmup_steps)
            return max(least, math.sqrt(scale / (scale + elapsed)))
        if self.schedule == "wsd":
            span = self.decay_steps or max(1, self.max_steps // 10)
            done = 1 - (self.max_steps - step) / span
        else:
            done = elapsed / (self.decay_steps or max(1, self.max_steps - self.warmup_steps))
        done = min(1.0, max(0.0, done))
        shape = self.decay_shape if self.schedule == "wsd" else self.schedule
        if shape == "exponential":
            return least**done if least else math.exp(-done)
        falls = {
            "linear": 1 - done,
            "cosine": 0.5 * (1 + math.cos(math.pi * done)),
            "sqrt": 1 - math.sqrt(done),
            "polynomial": (1 - done) ** self.decay_power,
        }
        return least + (1 - least) * falls[shape]

    @property
    def final_share(self) -> float:
        """The rate of the last step as a share of the peak."""
        return self.share_after_warmup(max(self.warmup_steps, self.max_steps))

    def batch_size_at(self, step: int) -> int:
        """Sequences of optimizer step `step`, counted from zero, with the ramp."""
        current = [size for start, size in self.batch_ramp if start <= step]
        return current[-1] if current else self.batch_size
