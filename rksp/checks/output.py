"""Checks of the model's output at initialization: its loss and the scale of its logits."""

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


CHECKS = (
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
