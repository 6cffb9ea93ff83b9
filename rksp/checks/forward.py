"""Checks of a forward pass: what comes out of the model, and its attention."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rksp.checks.check import Check, Observation
from rksp.checks.evidence import CheckEvidence, Need
from rksp.documents.finding import Level
from rksp.ground.model import definite

_EXCESS = 2.0  # nats above ln V, what Gaussian logits of standard deviation 2 cost
_SPREAD, _WILD_SPREAD = 2.0, 8.0
_TIED_SPREAD = 4.0
_FAST, _LARGE = 5.0, 7e9


def _initial_loss(evidence: CheckEvidence) -> Iterator[Observation]:
    forward = evidence.forward
    if forward is None or evidence.is_pretrained:
        return
    loss, uniform = forward.loss, forward.uniform_loss
    if loss is None or uniform is None:
        return
    is_tied = evidence.facts is not None and evidence.facts.ties_embeddings
    copied = (forward.copied or 0.0) if is_tied else 0.0
    if loss - copied - uniform > _EXCESS:
        yield Observation(
            level=Level.ERROR if loss - copied > 2 * uniform else Level.WARNING,
            message=(
                f"The initial loss is {loss:.3g} nats. A uniform guess has a loss of {uniform:.3g}."
                + (f" The tied output layer explains {copied:.3g} more." if copied > 0.1 else "")
            ),
            value=loss,
        )


def _output_logits(evidence: CheckEvidence) -> Iterator[Observation]:
    forward = evidence.forward
    if evidence.is_pretrained:
        return
    spread = _declared_spread(evidence) if forward is None else forward.logit_std
    if spread is None:
        return
    if spread > _SPREAD:
        yield Observation(
            level=Level.ERROR if spread > _WILD_SPREAD else Level.WARNING,
            message=(
                f"The output logits have a standard deviation of {spread:.3g} over classes"
                f"{'' if forward is not None else ', by the configuration'}."
            ),
            value=spread,
            fix=f"Divide the standard deviation of the output layer's weights by {spread:.2g}.",
        )


def _declared_spread(evidence: CheckEvidence) -> float | None:
    """Return the deviation of the logits that the code of a type draws; None where it is unknown.

    Its last norm leaves a deviation of one, and an untied head of T5 one of its factor.
    """
    settings, width = evidence.settings, evidence.declared_width
    is_untied = settings.get("tie_word_embeddings") is False
    if not settings.family.unit_head or not is_untied or evidence.is_fine_tuning or not width:
        return None
    return float(evidence.number("initializer_factor") or 1.0) * math.sqrt(width)


def _tied_embedding(evidence: CheckEvidence) -> Iterator[Observation]:
    facts, forward = evidence.facts, evidence.forward
    if facts is None or evidence.is_pretrained or not facts.ties_embeddings:
        return
    if facts.embedding_std is None:
        return
    measured = forward.logit_std if forward is not None else None
    if measured is not None and measured <= _SPREAD:
        return  # scaled down on its way to the logits, as T5 does
    spread = facts.embedding_std * math.sqrt(facts.width)
    if spread > _TIED_SPREAD:
        yield Observation(
            message=(
                "The output layer shares its weights with the embedding. Their standard deviation "
                f"{facts.embedding_std:.3g} at width {facts.width} gives logits of standard "
                f"deviation {spread:.3g}."
            ),
            value=spread,
            fix=f"Initialize the embedding with standard deviation {facts.width**-0.5:.2g} (1/√d).",
        )


def _z_loss(evidence: CheckEvidence) -> Iterator[Observation]:
    ratio, size = evidence.rate_over_published, evidence.active_parameters
    if ratio is None or ratio <= _FAST or definite(size) < _LARGE or evidence.recipe.z_loss:
        return
    if evidence.setting("final_logit_softcapping") is not None:
        return
    said = "is off" if evidence.recipe.z_loss == 0 else "is not in the recipe"
    yield Observation(
        message=(
            f"The learning rate is {ratio:.3g} times GPT-3's for {definite(size) / 1e9:.3g}B "
            f"active parameters, and the z-loss {said}."
        ),
        value=ratio,
    )


_OF_OUTPUTS = (
    Check(
        code="RKSP101",
        name="initial-loss",
        level=Level.ERROR,
        title="The initial loss is far above that of a uniform guess",
        measures=(
            "The cross-entropy on the probe before training against ln V, where V is the number "
            "of classes. A tied output layer finds its input token in the stream; what the logit "
            "of that one token costs is allowed for."
        ),
        why=(
            "An untrained model should give every class about the same probability. For Gaussian "
            "logits of standard deviation σ the loss is about ln V + σ²/2. Any excess is "
            "confidence that training must first undo, and the gradients differ from those that "
            "the recipe was made for. A T5 that was built from scratch with an output layer of "
            "unit variance started at a loss of 110 instead of 11. A model whose output layer is "
            "its embedding, and whose stream carries that embedding at full size (BLOOM, which "
            "normalizes it; a few blocks of Gemma, which scales it), predicts its input token "
            "instead. It starts several nats above ln V and is healthy: that one logit is soon "
            "unlearned."
        ),
        source="transformers PR 26441 (T5 from scratch); ln V + σ²/2, our own measurement",
        healthy=(
            f"at most ln V + {_EXCESS:g} nats without the logit of the input token; an error "
            "above 2 ln V"
        ),
        fix=(
            "Initialize the output layer with standard deviation 1/√d or with zeros, and untie it."
        ),
        failing="vocabulary 32,128, width 768, output layer N(0, 1): loss 108 against ln V = 10.4",
        stable="the same model with N(0, 1/768): loss 11.0",
        look=_initial_loss,
        reads="model",
        needs=(Need.FORWARD,),
        is_cause=True,
    ),
    Check(
        code="RKSP102",
        name="output-logit-scale",
        level=Level.ERROR,
        title="The output logits are spread too widely at initialization",
        measures=(
            "The standard deviation of the output logits over classes, averaged over positions. "
            "Without a forward pass: what an untied head of T5's kind is drawn with."
        ),
        why=(
            "The gradient of the cross-entropy is large only where the softmax is undecided. "
            "Logits of standard deviation 8 cost 32 nats and give most of the probability to a "
            "few classes. The divergence of output logits also starts from wide logits."
        ),
        source="Wortsman et al., 2023 (arXiv 2309.14322); levels from ln V + σ²/2",
        healthy=f"at most {_SPREAD:g}; an error above {_WILD_SPREAD:g}",
        fix="Scale the output layer's initialization down.",
        failing="output layer N(0, 1) at width 768: logits of standard deviation 27.7",
        stable="output layer N(0, 0.02²) at width 768: 0.55",
        look=_output_logits,
        settings=("initializer_factor", "tie_word_embeddings"),
        reads="recipe",
        is_cause=True,
    ),
    Check(
        code="RKSP103",
        name="tied-embedding-scale",
        level=Level.WARNING,
        title="A tied embedding is too large to be an output layer",
        measures=(
            "The standard deviation of the shared embedding times √width. The check is silent "
            "where the measured logits are small."
        ),
        why=(
            "An embedding works well with unit variance. An output layer needs a standard "
            "deviation of 1/√d. If they are tied, they are one matrix. After the last "
            "normalization the states have unit variance, so the logits have the embedding's "
            "standard deviation times √d. Models that keep a large shared embedding divide the "
            "states or the logits before the softmax (T5 by √d)."
        ),
        source="transformers PR 26441; Raffel et al., 2020 (T5's d^-1/2 on tied logits)",
        healthy=f"std · √d at most {_TIED_SPREAD:g}, or measured logits at most {_SPREAD:g}",
        fix="Initialize the embedding with standard deviation 1/√d, or untie it.",
        failing="tie_word_embeddings=true, initializer_range=1.0, width 64: 8",
        stable="tie_word_embeddings=true, initializer_range=0.02, width 64: 0.16",
        look=_tied_embedding,
        reads="model",
        needs=(Need.WEIGHTS,),
        settings=(
            "initializer_range",
            "tie_word_embeddings",
        ),
        is_cause=True,
    ),
    Check(
        code="RKSP104",
        name="missing-z-loss",
        level=Level.WARNING,
        title="A large model has a high learning rate and no z-loss",
        measures=(
            "The coefficient of the z-loss, or a cap on the output logits. The check applies from "
            f"{_LARGE / 1e9:g}B active parameters at more than {_FAST:g} times GPT-3's learning "
            "rate."
        ),
        why=(
            "At high learning rates the output logits drift to large values. This happens late in "
            "training, and mostly without weight decay. A penalty on log²Z in the loss keeps them "
            "small. PaLM, DCLM and OLMo 2 use it. Marin's 8B ran at 1e-3 without it, and its loss "
            "rose when the learning rate decayed."
        ),
        source=(
            "Chowdhery et al., 2022 (arXiv 2204.02311); Wortsman et al., 2023 (arXiv 2309.14322); "
            "Marin PR 1236"
        ),
        healthy=f"a z-loss of 1e-4, a soft cap, or at most {_FAST:g} times GPT-3's learning rate",
        fix="Add a z-loss of 1e-4.",
        failing="an 8B Llama at 1e-3 without z-loss",
        stable="an 8B Llama at 1e-3 with a z-loss of 1e-4",
        look=_z_loss,
        needs=(Need.SIZE,),
        field="z_loss",
    ),
)


_LOGIT_SPREAD, _SATURATED_SPREAD = 4.0, 8.0
_CLIPPED_LOGIT = 100.0  # τ of Kimi K2's QK-clip
_UNUSUAL = 2.0  # times 1/√head_dim, below which a declared scale is none of its own
_ENTROPY, _COLLAPSED_ENTROPY = 0.3, 0.1
_BIG = 1e9  # active parameters; smaller models bear every published rate without it
_OF_EDGE = 1 / 3  # Marin's 32B broke at 0.37 of the public edge, its 8B held at 0.3
_HEAD = (32, 512)
_HEAD_SIZES = ("head_dim", "global_head_dim", "d_kv")
_TILE = 8  # elements: 16 bytes of fp16, the unit of tensor cores
_WIDE = 512  # narrower models have small heads by necessity


def _logit_scale(evidence: CheckEvidence) -> Iterator[Observation]:
    attention = evidence.forward.attention if evidence.forward is not None else ()
    if not attention:
        yield from _declared_scale(evidence)
        return
    if evidence.is_pretrained:
        worst = max(attention, key=lambda a: a.max_logit)
        if worst.max_logit > _CLIPPED_LOGIT:
            yield Observation(
                level=Level.WARNING,
                message=(
                    f"The largest attention logit is {worst.max_logit:.3g}{_where(worst.block)}."
                ),
                value=worst.max_logit,
                fix="Continue training with QK-clip at 100, or lower the learning rate.",
            )
        return
    worst = max(attention, key=lambda a: a.logit_std)
    spread = worst.logit_std
    if spread > _LOGIT_SPREAD:
        yield Observation(
            level=Level.ERROR if spread > _SATURATED_SPREAD else Level.WARNING,
            message=(
                f"Attention logits have a standard deviation of {spread:.3g} before training"
                f"{_where(worst.block)}."
            ),
            value=spread,
        )


def _declared_scale(evidence: CheckEvidence) -> Iterator[Observation]:
    """Judge the scale that a configuration declares by arithmetic, where nothing was measured.

    The product of two vectors of d independent entries of deviation s has a deviation of s² √d. The
    norm of queries and keys makes s one; otherwise a matrix of deviation σ reads a stream of width
    w and deviation one, so that s² is σ² w.
    """
    settings = evidence.settings
    size = max(filter(None, (evidence.number(name) for name in _HEAD_SIZES)), default=None)
    size = size or settings.head_dim
    if evidence.forward is not None or evidence.is_fine_tuning or not size or settings.soft_cap:
        return
    declared = evidence.number("attention_multiplier")
    scalar = evidence.number("query_pre_attn_scalar")
    if settings.family.unscaled_attention:
        declared = 1.0
    elif scalar is not None and scalar > 0:
        declared = scalar**-0.5
    if declared is None or declared * math.sqrt(size) <= _UNUSUAL:
        return
    drawn = 1.0
    if not settings.normalizes_qk:
        drawn = (settings.init_std or 0.0) ** 2 * (evidence.declared_width or 0.0)
    spread = declared * drawn * math.sqrt(size)
    if spread > _LOGIT_SPREAD:
        yield Observation(
            level=Level.ERROR if spread > _SATURATED_SPREAD else Level.WARNING,
            message=(
                f"The configuration scales attention by {declared:.3g} at heads of {size:g} "
                f"dimensions, so its logits have a standard deviation of about {spread:.3g} before "
                "training."
            ),
            value=spread,
        )


def _entropy(evidence: CheckEvidence) -> Iterator[Observation]:
    attention = evidence.forward.attention if evidence.forward is not None else ()
    if not attention or evidence.is_pretrained:
        return
    worst = min(attention, key=lambda a: a.entropy)
    if worst.entropy < _ENTROPY:
        yield Observation(
            level=Level.ERROR if worst.entropy < _COLLAPSED_ENTROPY else Level.WARNING,
            message=(
                f"Attention has {worst.entropy:.1%} of its maximum entropy before "
                f"training{_where(worst.block)}."
            ),
            value=worst.entropy,
        )


def _qk_norm(evidence: CheckEvidence) -> Iterator[Observation]:
    edge, rate, size = (
        evidence.public_edge,
        evidence.recipe.learning_rate,
        evidence.active_parameters,
    )
    has_attention = evidence.facts is None or evidence.facts.attentions > 0
    if edge is None or size is None or size < _BIG or not has_attention:
        return
    if definite(rate) > _OF_EDGE * edge and not evidence.bounds_attention:
        yield Observation(
            message=(
                f"Nothing bounds the attention logits of this model ({size / 1e9:,.4g}B active "
                f"parameters). Its learning rate is {definite(rate) / edge:.2g} of the one at "
                "which public runs of this size failed."
            ),
            value=definite(rate) / edge,
            fix="Normalize queries and keys per head (the qwen3 or olmo2 model type)",
            rate=_OF_EDGE * edge,
        )


def _head_dimension(evidence: CheckEvidence) -> Iterator[Observation]:
    width = evidence.declared_width
    heads = evidence.number("num_attention_heads", "n_head")
    if not width or not heads or width < _WIDE:
        return
    declared = [name for name in _HEAD_SIZES if evidence.settings.declares(name)]
    sizes = [evidence.number(name) for name in declared] or [width / heads]
    for size in dict.fromkeys(sizes):
        if size is None:  # it differs by layer, so width over heads is that of none
            continue
        if size % _TILE:
            yield Observation(
                message=f"The heads have {size:g} dimensions, which is not a multiple of {_TILE}.",
                value=size,
            )
        elif not _HEAD[0] <= size <= _HEAD[1]:
            yield Observation(
                message=(
                    f"The heads have {size:g} dimensions. Usual heads have {_HEAD[0]} to "
                    f"{_HEAD[1]}."
                ),
                value=size,
            )


def _where(block: int | None) -> str:
    return "" if block is None else f" in block {block}"


_OF_ATTENTION = (
    Check(
        code="RKSP201",
        name="attention-logit-scale",
        level=Level.ERROR,
        title="Attention logits are too large",
        measures=(
            "The standard deviation of the scaled query–key products over visible keys, in the "
            f"worst layer. In trained weights: the largest logit, against {_CLIPPED_LOGIT:g}. "
            "Without a forward pass: what the configuration's scale gives for the size of a head."
        ),
        why=(
            "With 128 keys a softmax has at most 7 bits of entropy. Logits of standard deviation "
            "4 leave 2.2 bits, and logits of standard deviation 16 leave half a bit: every query "
            "attends to one random key, and almost no gradient reaches the others. The usual "
            "cause is QK-norm together with an attention scale of 1 instead of 1/√head_dim, which "
            "gives a standard deviation of exactly √head_dim."
        ),
        source=(
            "Automodel #3443 and transformers #45676 (scale 1.0 at head_dim 256: 16); our own "
            "measurement of saturation; Kimi K2 (arXiv 2507.20534) for trained weights"
        ),
        healthy=f"at most {_LOGIT_SPREAD:g}; an error above {_SATURATED_SPREAD:g}",
        fix="Scale attention by 1/√head_dim.",
        failing="QK-norm, attention scale 1.0, head_dim 256: 16",
        stable="QK-norm, attention scale 1/16, head_dim 256: 1",
        look=_logit_scale,
        settings=("attention_multiplier", "query_pre_attn_scalar", "head_dim"),
        reads="recipe",
        is_cause=True,
    ),
    Check(
        code="RKSP202",
        name="attention-entropy",
        level=Level.ERROR,
        title="Attention is concentrated before training",
        measures=(
            "The entropy of attention divided by ln(visible keys), averaged over heads, in the "
            "layer where it is lowest."
        ),
        why=(
            "Untrained attention should be spread over all keys. In trained models an entropy "
            "near zero accompanies divergence. At initialization it cannot be specialization."
        ),
        source=(
            "Zhai et al., 2023 (arXiv 2303.06296); levels from logit standard deviations of 4 and "
            "10"
        ),
        healthy=f"at least {_ENTROPY:g}; an error below {_COLLAPSED_ENTROPY:g}",
        fix="Scale attention by 1/√head_dim, or initialize queries and keys with smaller weights.",
        failing="QK-norm, attention scale 1.0, head_dim 256: 0.06",
        stable="QK-norm, attention scale 1/16, head_dim 256: 0.9",
        look=_entropy,
        reads="model",
        needs=(Need.FORWARD,),
        is_cause=True,
    ),
    Check(
        code="RKSP203",
        name="missing-qk-norm",
        level=Level.WARNING,
        title="A large model without QK-norm has a high learning rate",
        measures=(
            "Normalization of queries and keys, or a soft cap on attention logits. The check "
            f"applies from {_BIG / 1e9:g}B active parameters, where the learning rate is above a "
            "third of the public edge for the size (see RKSP502)."
        ),
        why=(
            "Attention logits grow with the learning rate. Where nothing bounds them, the highest "
            "learning rate that trains falls with model size. A model of 4.8B parameters failed "
            "at 1e-2, as smaller models had predicted. Size alone causes no failure. Marin's 32B "
            "spiked from step 70,000 on, whatever was changed in the optimizer, until it was "
            "moved to QK-norm; its 8B had been stable. This failure comes late, so no short run "
            "and no measurement at initialization shows it."
        ),
        source="Marin 32B retrospective; Wortsman et al., 2023 (arXiv 2309.14322)",
        healthy="QK-norm or a soft cap, or a learning rate under a third of the public edge",
        fix=(
            "Normalize queries and keys per head (in Hugging Face: the qwen3 or olmo2 model type)."
        ),
        failing="32B Llama, learning rate 7e-4, no QK-norm",
        stable="32B Qwen3, which normalizes queries and keys per head",
        look=_qk_norm,
        needs=(Need.SIZE,),
        field="learning_rate",
        settings=("model_type",),
    ),
    Check(
        code="RKSP204",
        name="head-dimension",
        level=Level.NOTE,
        title="Attention heads have an unusual size",
        measures=f"The dimensions of each head, at width {_WIDE} and above.",
        why=(
            f"Kernels work in units of {_TILE} elements: they pad other sizes or refuse them. Very "
            "small heads cannot distinguish keys. Fused attention does not support very large "
            "heads. BigScience's 104B had heads of 145 dimensions. An unusual size alone does not "
            "harm the loss."
        ),
        source=(
            "BigScience tr8-104B chronicle (11600 over 80 heads); published models use 64 to 512"
        ),
        healthy=f"a multiple of {_TILE} from {_HEAD[0]} to {_HEAD[1]}",
        fix="Choose the number of heads so that each head has 64 or 128 dimensions.",
        failing="hidden_size=11600, num_attention_heads=80: 145",
        stable="hidden_size=11264, num_attention_heads=88: 128",
        look=_head_dimension,
        reads="model",
        needs=(Need.CONFIG,),
        settings=(
            "num_attention_heads",
            "n_head",
            "head_dim",
        ),
    ),
)
CHECKS = (*_OF_OUTPUTS, *_OF_ATTENTION)
