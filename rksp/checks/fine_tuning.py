"""Checks of fine-tuning, full or through adapters: learning rates and batches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rksp.checks.check import Look, Observation, check
from rksp.checks.evidence import CheckEvidence
from rksp.documents.finding import Level
from rksp.ground.text import many, short
from rksp.recipe import LOW_RANK, PREFERENCES, REINFORCED, USUAL_RANK
from rksp.recipe.optimizers.table import optimizer_spec

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
_ASKED = {"model", "peft", "optimizer", "objective", "batch_size"}  # which a usual rate is of
_REPLICAS = 64  # that a run may well have which does not say how many
_PREFERENCE_LOSSES = (*PREFERENCES, *REINFORCED)
_BETAS = (0.01, 10.0)  # searched for DPO and KTO, and what SimPO's authors suggest
_KL, _WILD_KL = 0.2, 2.0  # Ziegler et al. began there; ten times that
_GROUP = (4, 128)  # answers to a prompt; published runs of GRPO have 4 to 64
_CLIP = (3e-4, 0.5)  # that of GSPO's mean over a sequence; beyond DAPO's 0.28 few clip anything


@check("RKSP508")
def _rate(evidence: CheckEvidence) -> Iterator[Observation]:
    rate, limit = evidence.recipe.learning_rate or 0.0, _limit(evidence)
    if rate <= limit:
        return
    peft = evidence.recipe.peft
    how = {"none": "full fine-tuning", "lora": "LoRA", "qlora": "QLoRA"}.get(peft, "adapters")
    which = f"the highest usual one for {how} at this size and batch"
    if evidence.highest_published is not None:
        which = "the highest of the published runs of this kind"
    yield Observation(
        f"The learning rate {short(rate, 6)} is {short(rate / limit)} times {short(limit, 2)}, "
        f"{which}.",
        rate / limit,
        level=Level.ERROR if rate > _ERROR * limit else Level.WARNING,
        rate=limit,
    )


def _limit(evidence: CheckEvidence) -> float:
    recipe, kind = evidence.recipe, evidence.settings.family.kind
    if evidence.highest_published is not None:
        return evidence.highest_published
    family = optimizer_spec(recipe.optimizer).family
    is_known = family in ("adaptive", "sign-like") and recipe.optimizer != "adafactor"
    is_answered = evidence.do_not_exceed is not None
    if evidence.unknown & _ASKED:
        return math.inf
    is_tiny = (evidence.block_parameters or math.inf) < _LADDERS_BELOW
    if is_answered and (is_tiny or kind == "encoder" or recipe.peft != "none"):
        is_known = False  # the model of fine-tuning saw these fail: RKSP501 says its rates
    if evidence.start.is_scratch or not is_known or recipe.peft == "other":
        return math.inf  # some kinds of adapters are trained at 0.3
    is_preference = recipe.objective in _PREFERENCE_LOSSES
    if recipe.peft != "none":
        limit = _PREFERENCE_ADAPTERS if is_preference else _ADAPTERS
    elif kind == "vision":
        limit = _IMAGES
    else:
        limit = _PREFERENCE if is_preference else _whole(evidence)
        copies = _REPLICAS if "devices" in evidence.unknown else 1
        limit *= max(1.0, math.sqrt(copies * evidence.tokens / _BATCH_TOKENS))
    return limit / 3 if family == "sign-like" else limit


def _whole(evidence: CheckEvidence) -> float:
    is_encoder = evidence.settings.family.kind == "encoder"
    size = evidence.settings.width or 0.0 if is_encoder else evidence.parameters or 0.0
    table = _ENCODERS if is_encoder else _DECODERS
    return next(limit for largest, limit in table if size <= largest)


@check("RKSP509", weights="trained")
def _batch(evidence: CheckEvidence) -> Iterator[Observation]:
    recipe, rate = evidence.recipe, evidence.recipe.learning_rate
    if rate is None or recipe.batch_size > _FEW or recipe.objective in _PREFERENCE_LOSSES:
        return
    if "devices" in evidence.unknown:
        return
    is_whole = recipe.peft == "none"
    yield Observation(
        f"Each step sees {many(recipe.batch_size, 'sequence')}, at a learning rate of "
        f"{short(rate, 6)}.",
        float(recipe.batch_size),
        level=Level.WARNING if is_whole and rate > _GENTLE else Level.NOTE,
    )


@check("RKSP511")
def _scale(evidence: CheckEvidence) -> Iterator[Observation]:
    recipe = evidence.recipe
    if recipe.peft not in LOW_RANK or not recipe.lora_alpha:
        return
    rank, is_root = recipe.lora_rank or USUAL_RANK, recipe.peft == "rslora"
    scale = recipe.lora_alpha / (math.sqrt(rank) if is_root else rank)
    least, most = _WILD_SCALES if is_root else _SCALES  # its authors have 8 at rank 4
    if least <= scale <= most:
        return
    is_wild = not _WILD_SCALES[0] <= scale <= _WILD_SCALES[1]
    toys = " On toys, four times the alpha lowered the edge of DPO and GRPO 2 to 4 times."
    yield Observation(
        f"Alpha {short(recipe.lora_alpha, 4)} over {'the root of ' * is_root}rank {rank} "
        f"scales the adapters by {short(scale, 3)}; public recipes have {_SCALES[0]:g} to "
        f"{_SCALES[1]:g}.{toys * (recipe.objective in _PREFERENCE_LOSSES)}",
        scale,
        level=Level.WARNING if is_wild else Level.NOTE,
    )


@check("RKSP513", weights="trained")
def _epochs(evidence: CheckEvidence) -> Iterator[Observation]:
    recipe = evidence.recipe
    epochs = recipe.max_steps * recipe.batch_size / (recipe.rows or math.inf)
    if epochs > _EPOCHS:
        yield Observation(
            f"The run sees each of its {recipe.rows:,} examples {short(epochs)} times; 95 % of "
            f"public recipes stop at {_EPOCHS:g}.",
            epochs,
            level=Level.WARNING if epochs > _MOST_EPOCHS else Level.NOTE,
        )


def _within(field: str, objectives: Sequence[str], said: str, least: float, most: float) -> Look:
    def look(evidence: CheckEvidence) -> Iterator[Observation]:
        recipe, value = evidence.recipe, getattr(evidence.recipe, field)
        if recipe.objective not in objectives or value is None or least <= value <= most:
            return
        broken = _BROKEN.get((recipe.objective, field, value), "")
        is_wild = bool(broken) or (field == "kl_coefficient" and value > _WILD_KL)
        yield Observation(
            f"{said} {value:g}; published runs have {least:g} to {most:g}{broken}.",
            float(value),
            level=Level.WARNING if is_wild else Level.NOTE,
            is_cause=bool(broken),
        )

    return look


_CONSTANT = ", and at 0 the loss is constant: nothing trains"
_ALONE = ", and a lone answer is its own mean: its advantage is zero, or the bare reward"
_BROKEN = {("dpo", "preference_beta", 0): _CONSTANT, ("kto", "preference_beta", 0): _CONSTANT,
           ("grpo", "generations", 1): _ALONE}  # fmt: skip
_beta = check("RKSP514")(_within("preference_beta", PREFERENCES, "β is", *_BETAS))
_kl = check("RKSP515")(_within("kl_coefficient", REINFORCED, "The KL penalty has weight", 0.0, _KL))
_group = check("RKSP516")(
    _within("generations", ("grpo",), "The answers to each prompt are", *_GROUP)
)
_clip = check("RKSP517")(_within("clip_range", REINFORCED, "The clip range is", *_CLIP))
