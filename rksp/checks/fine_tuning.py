"""Checks of fine-tuning, full or through adapters: learning rates and batches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rksp.checks.check import Check, Observation
from rksp.checks.evidence import CheckEvidence
from rksp.documents.finding import Level
from rksp.ground.text import short
from rksp.optimizers.table import optimizer_spec
from rksp.recipe import LOW_RANK, USUAL_RANK

# Up to so many parameters: the highest usual rate of training all weights of a decoder. SmolLM's
# were tuned at 3e-4 and 1e-3, decoders of 1 to 4B at 2e-5 to 2e-4; of 97 recipes from 4B on, half
# have at most 2e-5 and nine in ten at most 1e-4, all that state an outcome at most 2e-5: three
# times that is the limit, which Code Llama's 3e-4 at 4M tokens a step just meets.
_DECODERS = ((1e9, 5e-4), (4e9, 1e-4), (math.inf, 6e-5))
# Of an encoder up to this width: 95 % of 1,170 model cards lie at or below the first; RoBERTa-base
# failed from 1e-4 on, BERT-base from 5e-4. Large ones collapse at 3e-5 to 1e-4 on few examples.
_ENCODERS = ((1023, 5e-5), (math.inf, 3e-5))
_ADAPTERS = 5e-4
_PREFERENCE, _PREFERENCE_ADAPTERS = 1e-5, 1e-4
_IMAGES = 3e-3  # with layer-wise decay, as in MAE and BEiT
_BATCH_TOKENS = 128 * 1024  # 64 sequences of 2,048 tokens
_ERROR = 10.0
_FEW = 2
_GENTLE = 1e-5
_LADDERS_BELOW = 4.9e6  # parameters; there the lab's ladders answer, and all weights fail in them
# All of 356 public recipes of LoRA have alpha / rank from the first to the second.
_SCALES = (0.25, 4.0)
_WILD_SCALES = (0.1, 8.0)  # beyond these it is a cause: no public recipe is near
# Of 594 public recipes three in four take one epoch and 95 % at most the first; of 171 that are
# known to have trained, most of them small classification tasks, 95 % take at most the second.
_EPOCHS, _MOST_EPOCHS = 10.0, 20.0
_SCALED = tuple(name for name in LOW_RANK if name != "rslora")  # which divides by the root
_RANK_ONE = 1e-4
_PREFERENCE_LOSSES = ("dpo", "kto", "orpo", "ppo", "grpo")


def _rate(evidence: CheckEvidence) -> Iterator[Observation]:
    rate, limit = evidence.recipe.learning_rate, _limit(evidence)
    if rate is None or limit is None or rate <= limit:
        return
    peft = evidence.recipe.peft
    how = {"none": "full fine-tuning", "lora": "LoRA", "qlora": "QLoRA"}.get(peft, "adapters")
    yield Observation(
        level=Level.ERROR if rate > _ERROR * limit else Level.WARNING,
        message=(
            f"The learning rate {short(rate, 6)} is {rate / limit:.3g} times {short(limit, 2)}, "
            f"the highest usual one for {how} at this size and batch."
        ),
        value=rate / limit,
        rate=limit,
    )


def _limit(evidence: CheckEvidence) -> float | None:
    """Return the highest usual learning rate of fine-tuning; None where none is known."""
    recipe = evidence.recipe
    family = optimizer_spec(recipe.optimizer).family
    if not evidence.is_fine_tuning or family not in ("adaptive", "sign-like"):
        return None
    if recipe.optimizer == "adafactor":
        return None
    is_answered = evidence.do_not_exceed is not None
    is_tiny = (evidence.block_parameters or math.inf) < _LADDERS_BELOW
    is_encoder = evidence.settings.family.kind == "encoder"
    if is_answered and (is_tiny or is_encoder or recipe.peft != "none"):
        return None  # the model of fine-tuning saw ladders of these fail: RKSP501 says its rates
    is_preference = recipe.objective in _PREFERENCE_LOSSES
    if recipe.peft != "none":
        limit = _PREFERENCE_ADAPTERS if is_preference else _ADAPTERS
    elif evidence.settings.family.kind == "vision":
        limit = _IMAGES
    else:
        limit = _PREFERENCE if is_preference else _whole(evidence)
        limit *= max(1.0, math.sqrt(evidence.tokens / _BATCH_TOKENS))
    return limit / 3 if family == "sign-like" else limit


def _whole(evidence: CheckEvidence) -> float:
    """Return the highest usual rate of training all weights, by kind and size."""
    if evidence.settings.family.kind == "encoder":
        table: Sequence[tuple[float, float]] = _ENCODERS
        size = evidence.declared_width or 0.0
    else:
        table = _DECODERS
        size = evidence.parameters or _DECODERS[0][0]
    return next(limit for largest, limit in table if size <= largest)


def _batch(evidence: CheckEvidence) -> Iterator[Observation]:
    recipe = evidence.recipe
    rate = recipe.learning_rate
    if not evidence.is_fine_tuning or rate is None or recipe.batch_size > _FEW:
        return
    if recipe.objective in _PREFERENCE_LOSSES:
        return
    is_whole = recipe.peft == "none"
    count = "1 sequence" if recipe.batch_size == 1 else f"{recipe.batch_size} sequences"
    yield Observation(
        level=Level.WARNING if is_whole and rate > _GENTLE else Level.NOTE,
        message=f"Each step sees {count}, at a learning rate of {short(rate, 6)}.",
        value=float(recipe.batch_size),
    )


def _scale(evidence: CheckEvidence) -> Iterator[Observation]:
    recipe = evidence.recipe
    if recipe.peft not in _SCALED or not recipe.lora_alpha:
        return
    rank = recipe.lora_rank or USUAL_RANK
    scale = recipe.lora_alpha / rank
    least, most = _SCALES
    if least <= scale <= most:
        return
    is_wild = not _WILD_SCALES[0] <= scale <= _WILD_SCALES[1]
    yield Observation(
        level=Level.WARNING if is_wild else Level.NOTE,
        message=(
            f"Alpha {short(recipe.lora_alpha, 4)} over rank {rank} scales the adapters "
            f"by {short(scale, 3)}; public recipes have {least:g} to {most:g}."
        ),
        value=scale,
    )


def _rank(evidence: CheckEvidence) -> Iterator[Observation]:
    recipe, rate = evidence.recipe, evidence.recipe.learning_rate
    if recipe.peft not in LOW_RANK or recipe.lora_rank != 1 or rate is None or rate <= _RANK_ONE:
        return
    yield Observation(
        message=(
            f"Adapters of rank 1 train at {short(rate, 6)}; in 10 of 23 public ladders of rank 1 "
            f"the best rate was {_RANK_ONE:g}."
        ),
        value=float(recipe.lora_rank),
    )


def _epochs(evidence: CheckEvidence) -> Iterator[Observation]:
    recipe = evidence.recipe
    if not evidence.is_fine_tuning or recipe.rows is None:
        return
    epochs = recipe.max_steps * recipe.batch_size / recipe.rows
    if epochs <= _EPOCHS:
        return
    yield Observation(
        level=Level.WARNING if epochs > _MOST_EPOCHS else Level.NOTE,
        message=(
            f"The run sees each of its {recipe.rows:,} examples {epochs:.3g} times; 95 % of public "
            f"recipes stop at {_EPOCHS:g}."
        ),
        value=epochs,
    )


CHECKS = (
    Check(
        code="RKSP508",
        name="fine-tuning-rate",
        level=Level.ERROR,
        title="The learning rate is too high for fine-tuning",
        measures=(
            "The learning rate of training on trained weights. The limit of a decoder is "
            + ", ".join(f"{limit:g} up to {size / 1e9:g}B" for size, limit in _DECODERS[:-1])
            + f" parameters and {_DECODERS[-1][1]:g} above; of an encoder, {_ENCODERS[0][1]:g} "
            f"below width 1,024 and {_ENCODERS[1][1]:g} from there; and {_ADAPTERS:g} for "
            "adapters. For preference "
            f"and reward losses it is {_PREFERENCE:g}, or {_PREFERENCE_ADAPTERS:g} for adapters. "
            f"Full fine-tuning multiplies it by √(tokens a step / {_BATCH_TOKENS:,}) above that "
            "batch. Lion's limit is a third. Where the model of fine-tuning answers, RKSP501 "
            "judges adapters and encoders by its rates instead: its ladders show them fail. They "
            "show no failure of other weights, so there the limit stands, also below the model's "
            "ceiling."
        ),
        why=(
            "Trained weights lie in a minimum. A large step leaves it, and the model forgets "
            "before it learns. Published recipes fine-tune all weights of 7B models at 1e-6 to "
            "2e-5, encoders at 1e-5 to 5e-5, and LoRA adapters at 1e-4 to 3e-4. RoBERTa-base "
            "failed at 1e-4 and BERT-base at 5e-4, two and ten times their best. A LoRA run of "
            "Llama 2 at 5e-2 had a loss of 0 and a NaN gradient."
        ),
        source=(
            "LlamaFactory #2810; Hu et al., 2021 (LoRA); Dettmers et al., 2023 (QLoRA); Rafailov "
            "et al., 2023 (DPO); Rozière et al., 2023 (continued training at 4M tokens); Devlin et "
            "al., 2019 (encoders: 2e-5 to 5e-5); Liu et al., 2019 (RoBERTa: 1e-5 to 3e-5); 618 "
            "public recipes and 2,033 model cards, our count"
        ),
        healthy=f"at most the limit; an error above {_ERROR:g} times the limit",
        fix="Lower the learning rate to 2e-5, or 2e-4 for adapters.",
        failing="full fine-tuning of a trained 7B at 1e-2",
        stable="full fine-tuning of a trained 7B at 2e-5, or LoRA at 2e-4",
        look=_rate,
        field="learning_rate",
    ),
    Check(
        code="RKSP509",
        name="fine-tuning-batch",
        level=Level.WARNING,
        title="A step of fine-tuning sees one or two sequences",
        measures=(
            f"The sequences of an optimizer step, up to {_FEW}. It is a warning for full "
            f"fine-tuning above a learning rate of {_GENTLE:g}."
        ),
        why=(
            "Single sequences differ more than their averages do, and Adam takes a full step "
            "after each of them. The loss jumps, and one unusual example undoes what others "
            "taught."
        ),
        source="LlamaFactory #5261; the levels are our choice",
        healthy=f"more than {_FEW} sequences, 16 to 128 in published recipes",
        fix="Accumulate gradients over 16 sequences (--accumulate 16 --batch-size 16).",
        failing="--batch-size 1 --lr 5e-5 on trained weights",
        stable="--batch-size 16 --lr 5e-5 on trained weights",
        look=_batch,
        field="batch_size",
    ),
    Check(
        code="RKSP511",
        name="adapter-scale",
        level=Level.WARNING,
        title="Alpha lies far from the rank of the adapters",
        measures=(
            "Alpha over the rank, which multiplies the adapters' product and so their learning "
            "rate; not of rsLoRA, which divides by the root of the rank."
        ),
        why=(
            "The product of the adapters is scaled by alpha over rank. A scale far from the usual "
            "moves the learning rate that trains by as much: at a sixteenth the adapters hardly "
            "learn, at sixteen times they fail at a rate that is usual elsewhere."
        ),
        source="Hu et al., 2021 (LoRA); 356 public recipes, our count: all lie from 0.25 to 4",
        healthy=(
            f"from {_SCALES[0]:g} to {_SCALES[1]:g}; a warning below {_WILD_SCALES[0]:g} and above "
            f"{_WILD_SCALES[1]:g}"
        ),
        fix="Set alpha to the rank or twice the rank (--lora-alpha 32 for --lora-rank 16).",
        failing="--peft lora --lora-rank 8 --lora-alpha 256",
        stable="--peft lora --lora-rank 16 --lora-alpha 32",
        look=_scale,
        field="lora_alpha",
        is_cause=True,
        reads="recipe",
    ),
    Check(
        code="RKSP512",
        name="adapter-rank",
        level=Level.NOTE,
        title="Adapters of rank 1 have a learning rate for larger ranks",
        measures=f"The learning rate of adapters of rank 1, above {_RANK_ONE:g}.",
        why=(
            "Ten times the rank raise the best rate of LoRA by a factor of 1.6. Rank 1 was best at "
            "1e-4 in 10 of 23 public ladders, where ranks of 16 and more were at 3e-4."
        ),
        source="125 public ladders of LoRA, ranks 1 to 128, our count",
        healthy=f"at most {_RANK_ONE:g} at rank 1, or a larger rank",
        fix="Take rank 8 or 16 (--lora-rank 16), or lower the learning rate to 1e-4.",
        failing="--peft lora --lora-rank 1 --lr 5e-4",
        stable="--peft lora --lora-rank 1 --lr 1e-4",
        look=_rank,
        field="lora_rank",
    ),
    Check(
        code="RKSP513",
        name="fine-tuning-epochs",
        level=Level.WARNING,
        title="Fine-tuning repeats its examples many times",
        measures=(
            "Optimizer steps times sequences a step over the examples of the data set, where the "
            f"run file or --rows says how many they are; a warning above {_MOST_EPOCHS:g}."
        ),
        why=(
            "Trained weights fit a small data set within a few epochs. Then the training loss "
            "falls on and the loss on other examples rises, and each further epoch forgets more."
        ),
        source=(
            "594 public recipes, our count: three in four take one epoch; classification of a few "
            "thousand examples takes up to 30"
        ),
        healthy=f"at most {_EPOCHS:g} epochs",
        fix="Train for 1 to 4 epochs, and compare the loss on held-out examples (rksp confirm).",
        failing="500 examples, batch 16 and 1,000 steps on trained weights: 32 epochs",
        stable="16,000 examples, batch 16 and 1,000 steps: 1 epoch",
        look=_epochs,
        field="max_steps",
        reads="recipe",
    ),
)
