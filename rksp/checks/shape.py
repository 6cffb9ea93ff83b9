"""Checks of the architecture's proportions and of missing parts."""

from __future__ import annotations

from collections.abc import Iterator

from rksp.checks.check import Check, Observation
from rksp.checks.evidence import CheckEvidence, Need
from rksp.documents.finding import Level

_NARROW, _BROAD = 1.5, 12.0
_UNNORMALIZED_RATE = 2e-3
_DEEP = 12  # shallower models are toys or cut down to be looked at
_FLAT, _TALL = 300.0, 4.0
_MUCH, _MOST = 0.5, 0.8
_DROPOUTS = (
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "resid_pdrop", "embd_pdrop"),
    *("attn_pdrop", "hidden_dropout", "attention_dropout", "dropout", "dropout_rate"),
    *("activation_dropout", "residual_dropout", "emb_pdrop"),
)
_DEEPER = 24  # BERT-large and RoBERTa-large


def _feed_forward(evidence: CheckEvidence) -> Iterator[Observation]:
    width, inner = evidence.declared_width, evidence.settings.inner
    if not width or not inner or evidence.experts or evidence.setting("use_bottleneck"):
        return
    ratio = inner / width
    if not _NARROW <= ratio <= _BROAD:
        yield Observation(
            message=(
                f"The feed-forward width {inner:g} is {ratio:.3g} times the model's width "
                f"{width:g}."
            ),
            value=ratio,
            fix=f"Set it to {4 * width:g} (4 times), or about {8 * width / 3:.0f} if it is gated.",
        )


def _normalization(evidence: CheckEvidence) -> Iterator[Observation]:
    facts = evidence.facts
    if facts is None or facts.block_norms:
        return
    rate = evidence.recipe.learning_rate
    yield Observation(
        level=Level.ERROR if rate is not None and rate > _UNNORMALIZED_RATE else Level.WARNING,
        message=f"None of the {facts.depth} blocks contains a normalization module.",
        value=None,
    )


def _proportions(evidence: CheckEvidence) -> Iterator[Observation]:
    facts = evidence.facts
    if facts is None or facts.depth < _DEEP:
        return
    ratio = facts.width / facts.depth
    if not _TALL <= ratio <= _FLAT:
        yield Observation(
            message=f"The width {facts.width} divided by {facts.depth} blocks is {ratio:.3g}.",
            value=ratio,
        )


def _dropout(evidence: CheckEvidence) -> Iterator[Observation]:
    shares = {name: evidence.number(name) for name in _DROPOUTS}
    known = {name: share for name, share in shares.items() if share is not None}
    name = max(known, key=lambda name: known[name], default=None)
    if name is not None and known[name] > _MUCH:
        yield Observation(
            level=Level.ERROR if known[name] >= _MOST else Level.WARNING,
            message=f"{name} drops {known[name]:.0%} of the activations.",
            value=known[name],
        )


def _post_norm(evidence: CheckEvidence) -> Iterator[Observation]:
    settings = evidence.settings
    if evidence.is_pretrained or evidence.recipe.learning_rate is None:
        return
    if settings.norm != "post":
        return
    pair = settings.depths or (0, 0)
    depth, limit = (max(pair), _DEEP) if pair[1] else (evidence.depth or 0, _DEEPER + 1)
    if depth >= limit:
        yield Observation(
            message=f"{depth:g} blocks normalize after the residual sum (post-norm).",
            value=float(depth),
        )


CHECKS = (
    Check(
        code="RKSP701",
        name="feed-forward-ratio",
        level=Level.WARNING,
        title="The feed-forward width does not fit the model's width",
        measures="The inner width of the dense feed-forward layers divided by the model's width.",
        why=(
            "Usually the setting is left over from another model. BigScience's first 104B runs "
            "had layers of width 16,384 with the previous model's feed-forward width of 20,480 "
            "(1.25 times), and so had a 58B. The correction did not cure the divergence, but "
            "until then ten experiments were mistaken for those of another model."
        ),
        source="BigScience tr8-104B chronicle; published models use 2 to 8",
        healthy=f"{_NARROW:g} to {_BROAD:g} (4 is usual, 8/3 if gated)",
        fix="Set it to 4 times the width, or to 8/3 of it if it is gated.",
        failing="hidden_size=16384, intermediate_size=20480",
        stable="hidden_size=16384, intermediate_size=65536",
        look=_feed_forward,
        reads="model",
        needs=(Need.CONFIG,),
        settings=("intermediate_size", "n_inner", "ffn_dim"),
        is_cause=True,
    ),
    Check(
        code="RKSP702",
        name="missing-normalization",
        level=Level.ERROR,
        title="The blocks have no normalization",
        measures=(
            "The normalization modules inside the blocks. None is an error above a learning rate "
            f"of {_UNNORMALIZED_RATE:g}, else a warning."
        ),
        why=(
            "In arXiv 2602.22988, 81 of 84 runs without normalization diverged, and none of the "
            "130 runs with it. The largest stable learning rate without it was 0.002. Training "
            "without normalization is possible with care (Fixup, small learning rates). The check "
            "does not see normalization by a function call."
        ),
        source="arXiv 2602.22988, Tables 1 and 5",
        healthy="at least one normalization in each block",
        fix="Normalize the input of every branch (pre-norm).",
        failing="x + f(x)",
        stable="x + f(norm(x))",
        look=_normalization,
        needs=(Need.MODULES,),
        is_cause=True,
    ),
    Check(
        code="RKSP703",
        name="width-depth-ratio",
        level=Level.NOTE,
        title="The proportions of width and depth are unusual",
        measures=f"The width divided by the number of blocks, from {_DEEP} blocks.",
        why=(
            "Depth raises the sensitivity to the learning rate faster than width does. Very wide "
            "and shallow models waste parameters. BigScience's first 104B attempts had a ratio of "
            "512, and GPT-3 has 128. MSign's deliberately unstable NanoGPT has 2."
        ),
        source="Wortsman et al., 2023; BigScience tr8-104B chronicle; arXiv 2602.01734 (MSign)",
        healthy=f"{_TALL:g} to {_FLAT:g} (published models: 20 to 200)",
        fix="Change width and depth until the ratio is near 100.",
        failing="hidden_size=16384, num_hidden_layers=32: 512",
        stable="hidden_size=12288, num_hidden_layers=96: 128",
        look=_proportions,
        reads="model",
        needs=(Need.MODULES,),
        settings=("num_hidden_layers", "n_layer"),
    ),
    Check(
        code="RKSP704",
        name="dropout",
        level=Level.ERROR,
        title="Dropout is very large",
        measures="The largest dropout probability in the configuration.",
        why=(
            "If nine of ten activations are dropped, the remaining signal is smaller than the "
            "noise of dropping. Transformers use 0 to 0.3, and 0.1 is usual. A larger value was "
            "often meant as the share to keep."
        ),
        source="Srivastava et al., 2014; Vaswani et al., 2017, Table 3; the levels are our choice",
        healthy=f"at most {_MUCH:g}; an error at {_MOST:g}",
        fix="Set dropout to 0.1 or 0.",
        failing="resid_pdrop=0.9",
        stable="resid_pdrop=0.1",
        look=_dropout,
        reads="model",
        needs=(Need.CONFIG,),
        settings=_DROPOUTS,
    ),
    Check(
        code="RKSP705",
        name="post-norm-depth",
        level=Level.WARNING,
        title="A deep model normalizes after the residual sum",
        measures=(
            f"The number of blocks in families with post-norm: from {_DEEP} in an encoder with a "
            f"decoder, above {_DEEPER} in an encoder alone."
        ),
        why=(
            "Post-norm blocks depend on their branch more than on the residual stream, so small "
            "changes are amplified with depth. A translation model with 6 encoder and 6 decoder "
            "blocks trains with warm-up; models with 12 and 12 or 18 and 18 fail. Admin and "
            "DeepNorm rescale the stream, and pre-norm does not need this. BERT-large, an "
            "encoder, trains with 24 blocks."
        ),
        source="Liu et al., 2020 (arXiv 2004.08249); Wang et al., 2022 (arXiv 2203.00555)",
        healthy=(
            f"under {_DEEP} blocks in an encoder with a decoder, at most {_DEEPER} in an encoder "
            "alone"
        ),
        fix="Normalize before each branch (pre-norm), or initialize with Admin or DeepNorm.",
        failing="marian with 12 encoder and 12 decoder layers",
        stable="marian with 6 encoder and 6 decoder layers",
        look=_post_norm,
        needs=(Need.CONFIG,),
        settings=("encoder_layers", "decoder_layers"),
        is_cause=True,
    ),
)
