"""Define the recipe: everything about a training run that is not the model or the data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from rksp.ground.errors import InputError
from rksp.ground.flags import COUNT, Flag, checked, field_of, whole
from rksp.ground.model import Finite
from rksp.recipe.optimizers.groups import groups_of
from rksp.recipe.optimizers.makers import MuonScale as MuonScale
from rksp.recipe.optimizers.table import OPTIMIZERS, optimizer_of_class, optimizer_spec

if TYPE_CHECKING:
    import torch

    Optimizer = str  # a checker of types cannot read the table
else:
    Optimizer = Literal[tuple(spec.name for spec in OPTIMIZERS)]
Schedule = Literal[
    "constant", "linear", "cosine", "wsd", "inverse_sqrt", "polynomial", "exponential", "step"
]
Precision = Literal["fp32", "bf16", "fp16", "fp8", "bf16-pure", "fp16-pure"]
DecayShape = Literal["linear", "cosine", "sqrt", "exponential"]
# Adapters of low rank by their names in the peft library, the plain ones first.
LOW_RANK = ("lora", "qlora", "dora", "rslora", "pissa")
Peft = Literal["none", "lora", "qlora", "dora", "rslora", "pissa", "other"]
USUAL_RANK = 16  # of adapters where none is said; their alpha is then the rank
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

_HIGHEST = 100.0  # learning rate
_LATE = 0.1  # of the run: what the final loss is averaged over (`rksp.own_runs.outcome`)
_SCHEDULE = (
    *("schedule", "max_steps", "warmup_steps", "min_lr_ratio", "decay_steps", "decay_shape"),
    *("decay_power", "decay_milestones", "decay_factor"),
)
_LATE_POINTS = 1000  # of the last tenth that are looked at


def _counted(most: float, said: str) -> BeforeValidator:
    """Return what reads a count, and says what it counts if a text is of more: it means tokens."""

    def read(value: object) -> object:
        number = whole(value)
        if isinstance(value, str) and isinstance(number, int) and number > most:
            raise ValueError(said)
        return number

    return BeforeValidator(read)


_SEQUENCES = _counted(1.3e5, "it counts sequences; divide tokens by the sequence length")
_STEPS = _counted(1e9, "it counts optimizer steps; divide tokens by batch size × sequence length")
_LENGTH = _counted(1e8, "it counts tokens of one sequence; for those of the run give --max-steps")


def _optimizer(value: object) -> object:
    if isinstance(value, str) and any(spec.name == value.lower() for spec in OPTIMIZERS):
        return value.lower()
    if not isinstance(value, type):
        return value
    spec = optimizer_of_class(value)
    return value.__name__ if spec is None else spec.name


def in_steps(warmup: object, run: object) -> object:
    """Return a warm-up in steps; between 0 and 1 it is a share of the run, as with Hugging Face."""
    if isinstance(warmup, float) and 0 < warmup < 1 and isinstance(run, int | float):
        return round(warmup * run)
    return warmup


def _sane_rate(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool) and value > _HIGHEST:
        nearby = f"{value:.0e}".replace("e+0", "e-").replace("e+", "e-")
        raise ValueError(f"no optimizer trains above {_HIGHEST:g}; did you mean {nearby}?")
    return value


def _entries(value: object) -> object:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return () if value is None else value


def _ramp(value: object) -> object:
    if isinstance(value, str):
        parts = (part.strip() for part in value.split(",") if part.strip())
        return tuple(tuple(part.split(":", 1)) for part in parts)
    return () if value is None else value


PREFERENCES, REINFORCED = ("dpo", "kto", "orpo"), ("ppo", "grpo")
AFTER_TRAINING = (*PREFERENCES, "reward", *REINFORCED)  # objectives of trained models


class Recipe(Finite):
    """One point of a sweep; names follow Hugging Face's `TrainingArguments`.

    `learning_rate` is the peak rate. It may be absent; then rksp answers which rate is safe. Rates
    are per optimizer step. `warmup_steps` and `max_steps` count optimizer steps. `batch_size`
    counts sequences per optimizer step over all devices, and `sequence_length` counts tokens.
    `precision` is the arithmetic of the forward and backward pass; with `-pure` the trainable
    parameters themselves have that type. Every field carries the option that sets it.
    """

    optimizer: Annotated[
        Optimizer,
        BeforeValidator(_optimizer),
        Flag("--optimizer", "Optimizer.", names="optim"),
    ] = "adamw"
    learning_rate: Annotated[
        float | None,
        AfterValidator(_sane_rate),
        Flag(
            "--lr",
            "Peak learning rate; without it, rksp says which rate is safe.",
            aliases=("--learning-rate",),
            unit="rate",
            names="lr peak_lr max_lr learn_rate",
        ),
    ] = Field(default=None, gt=0)
    schedule: Annotated[
        Schedule,
        Flag(
            "--schedule",
            "Shape of the rate after the warm-up.",
            names="lr_scheduler lr_scheduler_type",
        ),
    ] = "cosine"
    warmup_steps: Annotated[
        int,
        COUNT,
        Flag(
            "--warmup-steps",
            "Optimizer steps of linear warm-up.",
            unit="steps",
            names="warmup warmup_iters warmup_ratio num_warmup_steps",
        ),
    ] = Field(default=0, ge=0)
    max_steps: Annotated[
        int,
        _STEPS,
        Flag(
            "--max-steps",
            "Optimizer steps of the whole run.",
            unit="steps",
            names="steps max_iters train_steps",
            also="duration max_duration updates",
        ),
    ] = Field(default=1000, ge=1)
    min_lr_ratio: Annotated[
        float, Flag("--min-lr-ratio", "Last rate of the schedule over the peak.", unit="ratio")
    ] = Field(default=0.1, ge=0, le=1)
    adam_beta1: Annotated[
        float,
        Flag("--beta1", "Decay of the first moment (Adam, Lion).", unit="decay", names="beta1"),
    ] = Field(default=0.9, ge=0, lt=1)
    adam_beta2: Annotated[
        float,
        Flag("--beta2", "Decay of the second moment (Adam, Lion).", unit="decay", names="beta2"),
    ] = Field(default=0.999, ge=0, lt=1)
    adam_epsilon: Annotated[
        float,
        Flag(
            "--epsilon",
            "Added to the root of Adam's second moment.",
            unit="size",
            names="eps epsilon",
        ),
    ] = Field(default=1e-8, ge=0)
    momentum: Annotated[float, Flag("--set momentum=", "Momentum of SGD.", unit="decay")] = Field(
        default=0.9, ge=0, lt=1
    )
    weight_decay: Annotated[
        float,
        Flag(
            "--weight-decay",
            "Weight decay, decoupled if the optimizer supports it.",
            unit="decay",
            names="wd",
        ),
    ] = Field(default=0.0, ge=0)
    max_grad_norm: Annotated[
        float | None,
        Flag(
            "--clip",
            "Gradient norm to clip at; 0 is off.",
            unit="norm",
            zero_is_off=True,
            names="clip grad_clip",
        ),
    ] = Field(default=1.0, gt=0)
    batch_size: Annotated[
        int,
        _SEQUENCES,
        Flag(
            "--batch-size",
            "Sequences per optimizer step.",
            unit="sequences",
            names="batch bs global_batch_size train_batch_size global_train_batch_size",
        ),
    ] = Field(default=32, ge=1, le=10**10)
    sequence_length: Annotated[
        int,
        _LENGTH,
        Flag(
            "--sequence-length",
            "Tokens per sequence.",
            unit="tokens",
            names="seq_len seq_length block_size",
        ),
    ] = Field(default=256, ge=2)
    gradient_accumulation_steps: Annotated[
        int, COUNT, Flag("--accumulate", "Micro-batches per optimizer step.", unit="batches")
    ] = Field(default=1, ge=1)
    rows: Annotated[
        int | None,
        COUNT,
        Flag(
            "--rows",
            "Examples of the data set: makes steps of a run file's epochs.",
            aliases=("--examples",),
            unit="rows",
        ),
    ] = Field(default=None, ge=1)
    precision: Annotated[
        Precision,
        Flag("--precision", "Precision; -pure also stores the weights in it.", names="dtype"),
    ] = "fp32"
    muon_scale: Annotated[
        MuonScale,
        Flag(
            "--set muon_scale=",
            "Muon's update: match_rms_adamw is 0.2 √max(rows, columns), original √max(1, "
            "rows/columns), spectral √max(rows, columns).",
        ),
    ] = "match_rms_adamw"

    decay_steps: Annotated[
        int | None,
        COUNT,
        Flag(
            "--set decay_steps=",
            "Steps of the decay: the last ones of wsd, else those after the warm-up; the time "
            "scale of inverse_sqrt.",
            unit="steps",
        ),
    ] = Field(default=None, ge=1)
    decay_shape: Annotated[
        DecayShape, Flag("--set decay_shape=", "Shape of the decay at the end of a wsd schedule.")
    ] = "linear"
    decay_power: Annotated[
        float,
        Flag("--set decay_power=", "Exponent of a polynomial schedule; 1 is linear.", unit="power"),
    ] = Field(default=1.0, gt=0)
    decay_milestones: Annotated[
        tuple[Annotated[int, COUNT], ...],
        BeforeValidator(_entries),
        Flag(
            "--set decay_milestones=",
            "Steps at which a step schedule multiplies the rate: 1000,2000.",
            unit="steps",
            is_text=True,
        ),
    ] = ()
    decay_factor: Annotated[
        float,
        Flag("--set decay_factor=", "Factor of a step schedule at each milestone.", unit="ratio"),
    ] = Field(default=0.1, gt=0, le=1)
    batch_ramp: Annotated[
        tuple[tuple[Annotated[int, COUNT], Annotated[int, COUNT]], ...],
        BeforeValidator(_ramp),
        Flag(
            "--set batch_ramp=",
            "Batch ramp as first step:sequences, with the full batch last: 0:16,1000:32.",
            unit="ramp",
            is_text=True,
        ),
    ] = ()
    peft: Annotated[Peft, Flag("--peft", "Adapters that are trained instead of the weights.")] = (
        "none"
    )
    lora_rank: Annotated[
        int | None, COUNT, Flag("--lora-rank", "Rank of the LoRA adapters.", unit="rank")
    ] = Field(default=None, ge=1)
    lora_alpha: Annotated[
        float | None,
        Flag("--lora-alpha", "LoRA's scale: alpha / rank times the product.", unit="scale"),
    ] = Field(default=None, gt=0)
    lora_targets: Annotated[
        tuple[str, ...],
        BeforeValidator(_entries),
        Flag(
            "--set lora_targets=",
            "Modules that carry adapters: q_proj,v_proj; default the trainer's choice.",
            unit="names",
            is_text=True,
        ),
    ] = ()
    objective: Annotated[Objective, Flag("--objective", "What the run minimizes.")] = "lm"
    preference_beta: Annotated[
        float | None,
        Flag("--set preference_beta=", "β of a preference loss (DPO, KTO, ORPO).", unit="weight"),
    ] = Field(default=None, ge=0)
    kl_coefficient: Annotated[
        float | None,
        Flag("--set kl_coefficient=", "Weight of the KL penalty of PPO and GRPO.", unit="weight"),
    ] = Field(default=None, ge=0)
    generations: Annotated[
        int | None,
        COUNT,
        Flag("--set generations=", "Answers to each prompt in RL.", unit="answers"),
    ] = Field(default=None, ge=1)
    clip_range: Annotated[
        float | None,
        Flag("--set clip_range=", "By how much PPO and GRPO let a ratio leave 1.", unit="ratio"),
    ] = Field(default=None, ge=0)
    z_loss: Annotated[
        float | None,
        Flag("--set z_loss=", "Coefficient of log²Z of the output in the loss.", unit="weight"),
    ] = Field(default=None, ge=0)

    @classmethod
    def parse(
        cls, fields: Mapping[str, object], sources: Mapping[str, str] | None = None
    ) -> Recipe:
        """Build a recipe from untrusted fields.

        Args:
            fields: Values by name, or by what people call a field: `wd`, `batch`, `steps`. A
                warm-up between 0 and 1 is a share of the run.
            sources: Where the user gave a field, for messages: `--clip`, or `run.yaml:3, clip`.

        Returns:
            The recipe.

        Raises:
            InputError: A field is unknown (the message names the nearest), out of range, or there
                twice.
        """
        known: dict[str, Any] = {}
        for name, value in fields.items():
            field = field_of(cls, name)
            if field in known:
                raise InputError(f"The recipe names {field} twice; leave out {name!r}.")
            known[field] = value
        if (warmup := known.get("warmup_steps")) is not None:
            run = known.get("max_steps", cls.model_fields["max_steps"].default)
            known |= {"warmup_steps": in_steps(warmup, run)}
        return checked(cls, known, noun="recipe", sources=sources)

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of optimizer step `step`, counted from zero.

        Warm-up is linear and reaches the peak at step `warmup_steps`. The first step of a warm-up
        of n steps trains at 1/n of the peak, never at zero. Later steps follow
        `share_after_warmup`.
        """
        assert self.learning_rate is not None, "a recipe without a rate has no schedule"
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        return self.learning_rate * self.share_after_warmup(step)

    def share_after_warmup(self, step: float) -> float:
        """Return the rate of a step after the warm-up, as a share of the peak.

        With r = `min_lr_ratio`, w = `warmup_steps`, T = `max_steps`, D = `decay_steps` and
        x the finished share of the decay, from 0 to 1:

        - linear, cosine: r + (1-r)(1-x) and r + (1-r)(1+cos πx)/2 over D steps (default T-w);
        - polynomial: r + (1-r)(1-x)^p; exponential: r^x, or e^(-x) if r is zero;
        - wsd (Hu et al., 2024): the peak until T-D (default T/10), then `decay_shape` down to r;
          its `sqrt` is r + (1-r)(1-√x) (Hägele et al., 2024);
        - inverse_sqrt (Vaswani et al., 2017): √(τ/(τ+step-w)), not below r; τ is D (default w);
        - step: `decay_factor` to the power of the number of passed milestones, not below r.
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
        if shape == "cosine":
            left = 0.5 * (1 + math.cos(math.pi * done))
        elif shape == "sqrt":
            left = 1 - math.sqrt(done)
        elif shape == "polynomial":
            left = (1 - done) ** self.decay_power
        else:
            left = 1 - done
        return least + (1 - least) * left

    def shortened(self, steps: int) -> Recipe:
        """Return the recipe of at most `steps` steps, its schedule and batch ramp in proportion."""
        steps = min(steps, self.max_steps)
        share = steps / self.max_steps
        fall = self.decay_steps
        return self.model_copy(
            update={
                "max_steps": steps,
                "warmup_steps": round(self.warmup_steps * share),
                "decay_steps": None if fall is None else max(1, round(fall * share)),
                "decay_milestones": tuple(round(step * share) for step in self.decay_milestones),
                "batch_ramp": tuple((round(at * share), size) for at, size in self.batch_ramp),
            }
        )

    @property
    def weights_needed_by(self) -> str:
        """What trains trained weights alone: adapters, preferences, rewards; empty if nothing."""
        if self.objective in AFTER_TRAINING:
            return f"the objective {self.objective}"
        return "" if self.peft == "none" else f"training with {self.peft}"

    @property
    def but_for_rate(self) -> tuple[object, ...]:
        """All settings but the peak learning rate, in a form that recipes can be compared by."""
        return tuple((self.__dict__ | {"learning_rate": None}).values())

    @property
    def can_be_stepped(self) -> bool:
        """True if rksp can take a step of the optimizer, as trials do."""
        return optimizer_spec(self.optimizer).make is not None

    @property
    def late_share(self) -> float:
        """Mean rate over the last tenth of what follows the warm-up, as a share of the peak.

        A longer warm-up, up to half of the run, leaves it as it is.
        1 for a constant schedule, 0.1 for a cosine that falls to a tenth, 0.55 for a wsd that falls
        to it over the last tenth. It changes little where the decay changes by a few steps.
        """
        return _late_share(tuple((name, getattr(self, name)) for name in _SCHEDULE))


@lru_cache(maxsize=4096)
def _late_share(schedule: tuple[tuple[str, Any], ...]) -> float:
    """Compute `Recipe.late_share`; recipes of a grid that differ in their rates share it."""
    recipe = Recipe.model_construct(**dict(schedule))
    after_warmup = max(recipe.max_steps - recipe.warmup_steps, recipe.max_steps / 2)
    span = after_warmup * _LATE
    count = min(math.ceil(span), _LATE_POINTS)
    steps = (recipe.max_steps - span * (i + 0.5) / count for i in range(count))
    warmup = recipe.warmup_steps
    reached = min(1.0, recipe.max_steps / warmup) if warmup else 1.0
    after = recipe.share_after_warmup
    shares = (step / warmup if step < warmup else after(step) for step in steps)
    return sum(shares) / count / reached


def fields_of(optimizer: torch.optim.Optimizer) -> dict[str, object]:
    """Return the fields of a recipe that an optimizer of torch shows in its first group."""
    group, spec = next(groups_of(optimizer)), optimizer_of_class(type(optimizer))
    betas = group.betas or (None, None)
    fields = {
        "optimizer": None if spec is None else spec.name,
        "adam_beta1": betas[0],
        "adam_beta2": betas[1],
        "weight_decay": group.weight_decay,
        "momentum": group.momentum,
    }
    return {name: value for name, value in fields.items() if value is not None}
