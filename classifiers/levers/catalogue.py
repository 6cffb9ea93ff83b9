"""Levers: changes of a recipe or model whose effect on the edge was measured in pairs of ladders.

One table, `LEVERS`: to add a lever, write its row. The same rows name the levers of the lab's
plans, of pages and of `rksp confirm`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from rksp.classifiers.edge_inputs import SHORT
from rksp.models.declared import Declared
from rksp.recipe import Recipe
from rksp.recipe.optimizers.table import optimizer_spec

Kind = Literal["decoder", "encoder", "encoder-decoder", "vision"]
_KINDS: dict[str, Kind] = {
    "causal-lm": "decoder",
    "masked-lm": "encoder",
    "seq2seq": "encoder-decoder",
    "image-classification": "vision",
}
SHARED = ("batch_size",)  # fields that all runs of a comparison have in common
_WARMED = 0.1  # of the run: the warm-up that a run without one is given
Condition = Callable[[Declared, Recipe], object]


@dataclass(frozen=True, slots=True)
class Lever:
    """One lever.

    Attributes:
        name: Its name in the arms of `rksp confirm` and in documents.
        title: What it adds, with `{value}` where it has one: `{value} steps of warm-up`.
        sentence: What it does, one or two plain sentences.
        measured: The pairs that show its size: plan in `datasets/plans` → name of the lever there.
        is_inverted: The plans take away what the lever adds.
        field: The field of the recipe that it sets; empty where it changes the model.
        value: The value of the field, or of the setting, that it was measured at; a function where
            it depends on the model and the recipe.
        part: The field of `EdgeInputs` that it sets, where the model of the edge may know it.
        settings: Names that a model's configuration may give it.
        intervention: The line that applies it in a run; empty where only a new run can have it.
        unless: Tells whether it is on already, does not apply, or was not measured.
        is_sequential: Only pairs of models whose blocks are not parallel count, and pages of them
            name it: parallel blocks gain nothing by it.
        of_decoders: Only pairs of decoders count: other kinds of models gain otherwise by it.
        longest: Steps of the longest run for which a page names it; None for any.
        held_back: Why no page names it, whatever the pairs say.
    """

    name: str
    title: str
    sentence: str
    measured: Mapping[str, str]
    is_inverted: bool = False
    field: str = ""
    value: object = None
    part: str = ""
    settings: tuple[str, ...] = ()
    intervention: str = ""
    unless: Condition = lambda declared, recipe: False
    is_sequential: bool = False
    of_decoders: bool = False
    longest: int | None = None
    held_back: str = ""

    @property
    def arm_name(self) -> str:
        """Its name in an arm that sets its field: `warmup=60`, `optimizer=muon`."""
        return self.field if self.field == "optimizer" else self.name

    def value_for(self, declared: Declared, recipe: Recipe) -> object:
        """Return the value that the lever has for this model and recipe; None without one."""
        return self.value(declared, recipe) if callable(self.value) else self.value

    def may_be_named(self, declared: Declared, recipe: Recipe) -> bool:
        """Tell whether a page of this model and recipe may name it."""
        if self.held_back or self.unless(declared, recipe):
            return False
        is_too_long = self.longest is not None and recipe.max_steps > self.longest
        return not is_too_long and not (self.is_sequential and declared.is_parallel)

    def applied(self, declared: Declared, recipe: Recipe) -> Recipe:
        """Return the recipe with the lever; one that changes the model leaves it as it is."""
        if not self.field:
            return recipe
        return recipe.model_copy(update={self.field: self.value_for(declared, recipe)})

    def changed(self, declared: Declared, recipe: Recipe) -> dict[str, object]:
        """Return what it sets in the inputs of the model of the edge besides the recipe's."""
        return {self.part: self.value_for(declared, recipe)} if self.part else {}


def kind_of(declared: Declared) -> Kind | None:
    """Return the kind of model that a lever's size is known for; None for any other."""
    return _KINDS.get(declared.task)


def _is_unknown(declared: Declared, recipe: Recipe) -> bool:
    return declared.config is None


def _is_normed(declared: Declared, recipe: Recipe) -> bool:
    return declared.config is None or declared.family.branch_norm


def _has_no_memories(recipe: Recipe) -> bool:
    """Tell whether the optimizer has nothing that a warm-up or a beta would protect."""
    return not optimizer_spec(recipe.optimizer).has_memories


_LARGE_INIT = (
    "large runs failed at an initial deviation 3.4 times the usual one (RKSP601), and the lab's "
    "models are small"
)
_OTHER_MODEL = "it is another architecture, and a trained one cannot be given it"


def _initialized(factor: float, times: str, held_back: str = "") -> Lever:
    return Lever(
        f"init_x{factor:g}",
        "an initial deviation of {value}",
        f"The initial weights are {times} as large.",
        {"models": f"init_x{factor:g}"},
        value=lambda m, r: float(f"{factor * (m.init_std or 0.02):.3g}"),
        part="init_std",
        settings=("initializer_range", "init_std"),
        unless=_is_unknown,
        held_back=held_back,
    )


LEVERS: tuple[Lever, ...] = (
    Lever(
        "qk_norm",
        "QK-norm",
        "Queries and keys are normalized per head before their product, so that attention "
        "logits cannot grow without end (Dehghani et al., 2023; Wortsman et al., 2023).",
        {"levers": "qk_norm_added", "families": "qk_norm_added", "models": "qk_norm"},
        value=True,
        settings=("use_qk_norm", "qk_norm", "qk_layernorm"),
        intervention="qk_norm",
        unless=lambda m, r: m.config is None or m.normalizes_qk or not m.heads,
    ),
    Lever(
        "warmup",
        "{value} steps of warm-up",
        "The rate climbs three times as long before it reaches its peak.",
        {"levers": "warmup_x3", "families": "warmup_x3"},
        field="warmup_steps",
        value=lambda m, r: 3 * r.warmup_steps,
        unless=lambda m, r: not 0 < 3 * r.warmup_steps <= r.max_steps / 2 or _has_no_memories(r),
    ),
    Lever(
        "first_warmup",
        "{value} steps of warm-up",
        "The rate climbs to its peak over a tenth of the run instead of starting there.",
        {"levers": "no_warmup"},
        is_inverted=True,
        field="warmup_steps",
        value=lambda m, r: max(1, round(_WARMED * r.max_steps)),
        unless=lambda m, r: r.warmup_steps or _has_no_memories(r),
    ),
    Lever(
        "clip",
        "clipping at {value}",
        "Gradients are clipped at a tenth of the usual norm, so at nearly every step.",
        {"levers": "clip_at_0.1"},
        field="max_grad_norm",
        value=0.1,
        unless=lambda m, r: r.max_grad_norm is None or r.max_grad_norm <= 0.1,
    ),
    Lever(
        "clipping",
        "clipping at {value}",
        "Gradients are clipped at the usual norm, where the recipe does not clip at all.",
        {"levers": "no_clipping"},
        is_inverted=True,
        field="max_grad_norm",
        value=1.0,
        unless=lambda m, r: r.max_grad_norm is not None,
    ),
    Lever(
        "beta1",
        "a beta1 of {value}",
        "Adam's first moment forgets faster: its memory is five steps instead of ten.",
        {"levers": "beta1_0.8"},
        field="adam_beta1",
        value=0.8,
        unless=lambda m, r: r.adam_beta1 <= 0.8 or _has_no_memories(r),
    ),
    Lever(
        "beta2",
        "a beta2 of {value}",
        "Adam's second moment forgets faster: in twenty steps instead of a thousand.",
        {"levers": "beta2_0.999", "families": "beta2_0.999"},
        is_inverted=True,
        field="adam_beta2",
        value=0.95,
        unless=lambda m, r: r.adam_beta2 <= 0.95 or _has_no_memories(r),
    ),
    Lever(
        "batch",
        "batches of {value} sequences",
        "Four times the batch: less noise in every gradient, at four times the work.",
        {"levers": "batch_x4"},
        field="batch_size",
        value=lambda m, r: 4 * r.batch_size,
        unless=lambda m, r: r.batch_ramp,
        held_back="public sweeps of 57 M to 1 B parameters show no edge that rises with the batch",
    ),
    Lever(
        "weight_decay",
        "a weight decay of {value}",
        "Weights are pulled toward zero at every step, which bounds their size.",
        {"levers": "no_decay", "families": "no_decay"},
        is_inverted=True,
        field="weight_decay",
        value=0.1,
        unless=lambda m, r: r.weight_decay,
    ),
    Lever(
        "decayed_rate",
        "a {value} schedule",
        "The rate falls after the warm-up instead of staying at its peak to the end.",
        {"levers": "constant_rate"},
        is_inverted=True,
        field="schedule",
        value="cosine",
        unless=lambda m, r: r.schedule != "constant",
    ),
    Lever(
        "z_loss",
        "a z-loss of {value}",
        "A penalty on log²Z keeps the output logits from drifting (Chowdhery et al., 2022).",
        {"levers": "z_loss"},
        field="z_loss",
        value=1e-4,
        unless=lambda m, r: r.z_loss,
    ),
    Lever(
        "qk_clip",
        "QK-clip at 20",
        "Query and key weights of a head shrink whenever its attention logits pass a bound "
        "(MuonClip, Kimi K2, arXiv 2507.20534).",
        {"levers": "qk_clip"},
        intervention="qk_clip:tau=20",
        unless=lambda m, r: not m.heads,
    ),
    Lever(
        "zclip",
        "ZClip",
        "Only gradients that are large for this run are clipped (arXiv 2504.02507).",
        {"levers": "zclip"},
        intervention="zclip",
    ),
    Lever(
        "adagc",
        "AdaGC",
        "Every tensor's gradient is clipped at its own running norm (arXiv 2502.11034).",
        {"levers": "adagc"},
        intervention="adagc",
    ),
    Lever(
        "backoff",
        "back-off with rollback",
        "After an alarm the run goes back and trains on at a lower rate.",
        {"levers": "backoff"},
        intervention="backoff",
    ),
    Lever(
        "spectral_smoothing",
        "spectral smoothing every 20 steps",
        "Singular values that stand out in a weight are lowered (rksp's own).",
        {"levers": "spectral_smoothing"},
        intervention="spectral_smoothing:every=20",
    ),
    Lever(
        "step_clip",
        "step clip",
        "No step moves the outputs of a matrix by more than 5 % of their size (after arXiv "
        "2410.23922). No run "
        "of its short sweeps failed with it, so its size is a lower bound.",
        {"step_clip": "step_clip_0.05"},
        intervention="step_clip",
        # Over 1,200 steps step clip moves the edge less, and at a batch of 4 hardly.
        longest=SHORT,
        unless=lambda m, r: not optimizer_spec(r.optimizer).is_adam_kin,
        of_decoders=True,
    ),
    Lever(
        "msign",
        "MSign every 20 steps",
        "Every 20 steps all singular values of a weight become equal, at equal norm "
        "(arXiv 2602.01734).",
        {"levers": "msign"},
        intervention="msign:every=20",
    ),
    Lever(
        "kss",
        "KSS",
        "A penalty on blocks that amplify the energy of the residual stream: rksp's form of "
        "Koopman spectral shaping (arXiv 2602.22988, Theorem 1). The paper reports 50 to 150 % "
        "higher rates; here the edge falls with it. --arm update_bound bounds the update itself.",
        {"levers": "kss"},
        intervention="kss",
    ),
    Lever(
        "kss_published",
        "KSS as published",
        "A penalty pulls the eigenvalues of each block's fitted map toward a target: Koopman "
        "spectral shaping with the paper's own penalty (arXiv 2602.22988).",
        {"levers": "kss_published"},
        intervention="kss:form=published",
    ),
    Lever(
        "muon",
        "Muon",
        "Updates of matrices are orthogonalized momentum (Jordan et al., 2024), scaled so that "
        "AdamW's rates fit (Liu et al., 2025).",
        {"levers": "muon", "families": "muon"},
        field="optimizer",
        value="muon",
        unless=lambda m, r: r.optimizer == "muon",
        is_sequential=True,
        longest=SHORT,  # public ladders of 1,500 steps and more do not show it
    ),
    Lever(
        "lion",
        "Lion",
        "Updates are the sign of a momentum (Chen et al., 2023).",
        {"levers": "lion"},
        field="optimizer",
        value="lion",
        unless=lambda m, r: r.optimizer == "lion",
        held_back="the rates of another optimizer are on a scale of their own",
    ),
    Lever(
        "untied",
        "an output layer of its own",
        "The output layer no longer is the embedding.",
        {"models": "tied"},
        is_inverted=True,
        value=False,
        settings=("tie_word_embeddings",),
        unless=lambda m, r: not m.is_tied,
    ),
    _initialized(4, "four times", _LARGE_INIT),
    _initialized(10, "ten times", _LARGE_INIT),
    _initialized(0.25, "a quarter"),
    Lever(
        "depth_scaled",
        "depth-scaled output layers",
        "The last matrix of every branch starts smaller by the root of twice the depth.",
        {"models": "depth_scaled"},
        value=True,
        settings=("scale_residual_init",),
        unless=lambda m, r: (
            m.config is None or m.get("scale_residual_init") is True or m.name == "gpt2"
        ),
    ),
    Lever(
        "residual_scale",
        "a residual scale of {value}",
        "Every branch is multiplied by a tenth before it is added.",
        {"models": "residual_x0.1"},
        value=0.1,
        settings=("residual_multiplier",),
        unless=_is_unknown,
    ),
    Lever(
        "parallel",
        "parallel blocks",
        "Attention and feed-forward read the same input and are added at once.",
        {"models": "parallel"},
        value=True,
        part="is_parallel",
        settings=("use_parallel_residual", "parallel_attn", "parallel_blocks"),
        unless=lambda m, r: m.config is None or m.is_parallel,
    ),
    Lever(
        "norm_after_branch",
        "a norm after each branch",
        "Blocks normalize what a branch adds instead of what it reads, as OLMo 2 does.",
        {"models": "norm_after_branch"},
        value=True,
        part="normalizes_branches",
        unless=_is_normed,
        held_back=_OTHER_MODEL,
    ),
    Lever(
        "norm_around_branch",
        "a norm before and after each branch",
        "Blocks normalize what a branch reads and what it adds, as Gemma 2 does.",
        {"models": "norm_around_branch"},
        value=True,
        part="normalizes_branches",
        unless=_is_normed,
        held_back=_OTHER_MODEL,
    ),
    Lever(
        "norm_after_sum",
        "a norm after the residual sum",
        "Blocks normalize the residual stream itself, as the first transformers did.",
        {"models": "norm_after_sum"},
        value="post",
        part="norm",
        unless=_is_unknown,
        held_back=_OTHER_MODEL,
    ),
)
BY_NAME = {lever.name: lever for lever in LEVERS}
