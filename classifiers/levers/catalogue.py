"""The one table of levers: to add one, write its row in `LEVERS`.

The same rows name the levers of the lab's plans, of pages, of `--apply` and of `rksp confirm`.
"""

from __future__ import annotations

from rksp.classifiers.edge_inputs import SHORT
from rksp.classifiers.levers.conditions import (
    clips,
    clips_low,
    decays_rate,
    decays_weights,
    fixed,
    forgets_fast,
    forgets_squares_fast,
    has_z_loss,
    initialized,
    is_optimizer,
    is_parallel,
    is_ramped,
    is_unknown,
    is_untied,
    is_warmed,
    is_warmed_long,
    lacks_attention,
    normalizes_branches,
    normalizes_qk,
    scales_by_depth,
)
from rksp.classifiers.levers.lever import Lever, Measured
from rksp.ground.option_lines import known_name

_WARMED = 0.1  # of the run: the warm-up that a run without one is given


def find_lever(name: str) -> Lever:
    """Return the lever of this name, with hyphens or underscores.

    Raises:
        InputError: There is none; the message names all.
    """
    return BY_NAME[known_name(BY_NAME, name, noun="lever")]


def _levers(name: str, *, is_inverted: bool = False) -> Measured:
    return Measured(plan="levers", lever=name, is_inverted=is_inverted)


def _families(name: str, *, is_inverted: bool = False) -> Measured:
    return Measured(plan="families", lever=name, is_inverted=is_inverted)


def _models(name: str, *, is_inverted: bool = False) -> Measured:
    return Measured(plan="models", lever=name, is_inverted=is_inverted)


_OTHER_SCALE = "the rates of another optimizer are on a scale of their own"
_LARGE_INIT = (
    "large runs failed at an initial deviation 3.4 times the usual one (RKSP601), and the lab's "
    "models are small"
)
_OTHER_MODEL = "it is another architecture, and a trained one cannot be given it"
LEVERS: tuple[Lever, ...] = (
    Lever(
        name="qk_norm",
        title="QK-norm",
        sentence=(
            "Queries and keys are normalized per head before their product, so that attention "
            "logits cannot grow without end (Dehghani et al., 2023; Wortsman et al., 2023)."
        ),
        measured=(_levers("qk_norm_added"), _families("qk_norm_added"), _models("qk_norm")),
        value=fixed(True),
        settings=("use_qk_norm", "qk_norm", "qk_layernorm"),
        intervention="qk_norm",
        blocked=normalizes_qk,
    ),
    Lever(
        name="warmup",
        title="{value} steps of warm-up",
        sentence="The rate climbs three times as long before it reaches its peak.",
        measured=(_levers("warmup_x3"), _families("warmup_x3")),
        field="warmup_steps",
        value=lambda declared, recipe: 3 * recipe.warmup_steps,
        blocked=is_warmed_long,
    ),
    Lever(
        name="first_warmup",
        title="{value} steps of warm-up",
        sentence="The rate climbs to its peak over a tenth of the run instead of starting there.",
        measured=(_levers("no_warmup", is_inverted=True),),
        field="warmup_steps",
        value=lambda declared, recipe: max(1, round(_WARMED * recipe.max_steps)),
        blocked=is_warmed,
    ),
    Lever(
        name="clip",
        title="clipping at {value}",
        sentence="Gradients are clipped at a tenth of the usual norm, so at nearly every step.",
        measured=(_levers("clip_at_0.1"),),
        field="max_grad_norm",
        value=fixed(0.1),
        blocked=clips_low,
    ),
    Lever(
        name="clipping",
        title="clipping at {value}",
        sentence="Gradients are clipped at the usual norm, where the recipe does not clip at all.",
        measured=(_levers("no_clipping", is_inverted=True),),
        field="max_grad_norm",
        value=fixed(1.0),
        blocked=clips,
    ),
    Lever(
        name="beta1",
        title="a beta1 of {value}",
        sentence="Adam's first moment forgets faster: its memory is five steps instead of ten.",
        measured=(_levers("beta1_0.8"),),
        field="adam_beta1",
        value=fixed(0.8),
        blocked=forgets_fast,
    ),
    Lever(
        name="beta2",
        title="a beta2 of {value}",
        sentence="Adam's second moment forgets faster: in twenty steps instead of a thousand.",
        measured=(
            _levers("beta2_0.999", is_inverted=True),
            _families("beta2_0.999", is_inverted=True),
        ),
        field="adam_beta2",
        value=fixed(0.95),
        blocked=forgets_squares_fast,
    ),
    Lever(
        name="batch",
        title="batches of {value} sequences",
        sentence="Four times the batch: less noise in every gradient, at four times the work.",
        measured=(_levers("batch_x4"),),
        field="batch_size",
        value=lambda declared, recipe: 4 * recipe.batch_size,
        blocked=is_ramped,
        held_back="public ladders of 57 M to 1 B parameters show no edge that rises with the batch",
    ),
    Lever(
        name="weight_decay",
        title="a weight decay of {value}",
        sentence="Weights are pulled toward zero at every step, which bounds their size.",
        measured=(_levers("no_decay", is_inverted=True), _families("no_decay", is_inverted=True)),
        field="weight_decay",
        value=fixed(0.1),
        blocked=decays_weights,
    ),
    Lever(
        name="decayed_rate",
        title="a {value} schedule",
        sentence="The rate falls after the warm-up instead of staying at its peak to the end.",
        measured=(_levers("constant_rate", is_inverted=True),),
        field="schedule",
        value=fixed("cosine"),
        blocked=decays_rate,
    ),
    Lever(
        name="z_loss",
        title="a z-loss of {value}",
        sentence=(
            "A penalty on log²Z keeps the output logits from drifting (Chowdhery et al., 2022)."
        ),
        measured=(_levers("z_loss"),),
        field="z_loss",
        value=fixed(1e-4),
        blocked=has_z_loss,
    ),
    Lever(
        name="qk_clip",
        title="QK-clip at 20",
        sentence=(
            "Query and key weights of a head shrink whenever its attention logits pass a bound "
            "(MuonClip, Kimi K2, arXiv 2507.20534)."
        ),
        measured=(_levers("qk_clip"),),
        intervention="qk_clip:tau=20",
        blocked=lacks_attention,
    ),
    Lever(
        name="zclip",
        title="ZClip",
        sentence="Only gradients that are large for this run are clipped (arXiv 2504.02507).",
        measured=(_levers("zclip"),),
        intervention="zclip",
    ),
    Lever(
        name="adagc",
        title="AdaGC",
        sentence="Every tensor's gradient is clipped at its own running norm (arXiv 2502.11034).",
        measured=(_levers("adagc"),),
        intervention="adagc",
    ),
    Lever(
        name="backoff",
        title="back-off with rollback",
        sentence="After an alarm the run goes back and trains on at a lower rate.",
        measured=(_levers("backoff"),),
        intervention="backoff",
    ),
    Lever(
        name="spectral_smoothing",
        title="spectral smoothing every 20 steps",
        sentence="Singular values that stand out in a weight are lowered (rksp's own).",
        measured=(_levers("spectral_smoothing"),),
        intervention="spectral_smoothing:every=20",
    ),
    Lever(
        name="msign",
        title="MSign every 20 steps",
        sentence=(
            "Every 20 steps all singular values of a weight become equal, at equal norm "
            "(arXiv 2602.01734)."
        ),
        measured=(_levers("msign"),),
        intervention="msign:every=20",
    ),
    Lever(
        name="kss",
        title="KSS",
        sentence=(
            "A penalty on blocks that amplify the energy of the residual stream: rksp's form of "
            "Koopman spectral shaping (arXiv 2602.22988, Theorem 1). The paper reports 50 to 150 % "
            "higher rates. With a gradient that was wrong up to rksp 0.10, of 40 settings none "
            "saved more runs than clipping at 0.1 (rksp reproduce kss-frontier --stored); --arm "
            "step_clip bounds the update itself."
        ),
        measured=(_levers("kss"),),
        intervention="kss",
    ),
    Lever(
        name="kss_published",
        title="KSS as published",
        sentence=(
            "A penalty pulls the eigenvalues of each block's fitted map toward a target: Koopman "
            "spectral shaping with the paper's own penalty (arXiv 2602.22988)."
        ),
        measured=(_levers("kss_published"),),
        intervention="kss:form=published",
    ),
    Lever(
        name="muon",
        title="Muon",
        sentence=(
            "Updates of matrices are orthogonalized momentum (Jordan et al., 2024), scaled so that "
            "AdamW's rates fit (Liu et al., 2025)."
        ),
        measured=(_levers("muon"), _families("muon")),
        field="optimizer",
        value=fixed("muon"),
        blocked=is_optimizer("muon"),
        is_sequential=True,
        longest=SHORT,  # public ladders of 1,500 steps and more do not show it
    ),
    Lever(
        name="lion",
        title="Lion",
        sentence="Updates are the sign of a momentum (Chen et al., 2023).",
        measured=(_levers("lion"),),
        field="optimizer",
        value=fixed("lion"),
        blocked=is_optimizer("lion"),
        held_back=_OTHER_SCALE,
    ),
    Lever(
        name="untied",
        title="an output layer of its own",
        sentence="The output layer no longer is the embedding.",
        measured=(_models("tied", is_inverted=True),),
        value=fixed(False),
        settings=("tie_word_embeddings",),
        blocked=is_untied,
    ),
    Lever(
        name="init_x4",
        title="an initial deviation of {value}",
        sentence="The initial weights are four times as large.",
        measured=(_models("init_x4"),),
        value=initialized(4),
        part="init_std",
        settings=("initializer_range", "init_std"),
        blocked=is_unknown,
        held_back=_LARGE_INIT,
    ),
    Lever(
        name="init_x10",
        title="an initial deviation of {value}",
        sentence="The initial weights are ten times as large.",
        measured=(_models("init_x10"),),
        value=initialized(10),
        part="init_std",
        settings=("initializer_range", "init_std"),
        blocked=is_unknown,
        held_back=_LARGE_INIT,
    ),
    Lever(
        name="init_x0.25",
        title="an initial deviation of {value}",
        sentence="The initial weights are a quarter as large.",
        measured=(_models("init_x0.25"),),
        value=initialized(0.25),
        part="init_std",
        settings=("initializer_range", "init_std"),
        blocked=is_unknown,
    ),
    Lever(
        name="depth_scaled",
        title="depth-scaled output layers",
        sentence="The last matrix of every branch starts smaller by the root of twice the depth.",
        measured=(_models("depth_scaled"),),
        value=fixed(True),
        settings=("scale_residual_init",),
        blocked=scales_by_depth,
    ),
    Lever(
        name="residual_scale",
        title="a residual scale of {value}",
        sentence="Every branch is multiplied by a tenth before it is added.",
        measured=(_models("residual_x0.1"),),
        value=fixed(0.1),
        settings=("residual_multiplier",),
        blocked=is_unknown,
    ),
    Lever(
        name="parallel",
        title="parallel blocks",
        sentence="Attention and feed-forward read the same input and are added at once.",
        measured=(_models("parallel"),),
        value=fixed(True),
        part="is_parallel",
        settings=("use_parallel_residual", "parallel_attn", "parallel_blocks"),
        blocked=is_parallel,
    ),
    Lever(
        name="norm_after_branch",
        title="a norm after each branch",
        sentence="Blocks normalize what a branch adds instead of what it reads, as OLMo 2 does.",
        measured=(_models("norm_after_branch"),),
        value=fixed(True),
        part="normalizes_branches",
        blocked=normalizes_branches,
        held_back=_OTHER_MODEL,
    ),
    Lever(
        name="norm_around_branch",
        title="a norm before and after each branch",
        sentence="Blocks normalize what a branch reads and what it adds, as Gemma 2 does.",
        measured=(_models("norm_around_branch"),),
        value=fixed(True),
        part="normalizes_branches",
        blocked=normalizes_branches,
        held_back=_OTHER_MODEL,
    ),
    Lever(
        name="norm_after_sum",
        title="a norm after the residual sum",
        sentence="Blocks normalize the residual stream itself, as the first transformers did.",
        measured=(_models("norm_after_sum"),),
        value=fixed("post"),
        part="norm",
        blocked=is_unknown,
        held_back=_OTHER_MODEL,
    ),
)
BY_NAME = {lever.name: lever for lever in LEVERS}
