"""Read off a measured model what the model of the edge needs, and what speaks against it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rksp.assessment.evidence import Evidence
from rksp.assessment.risk import edge_inputs, kind_of
from rksp.classifiers.edge_inputs import CLASSIFIER_VOCABULARY, EdgeInputs, Norm
from rksp.classifiers.lines import alike
from rksp.documents.shown import GRADIENT_NOT_FINITE, LOGITS_NOT_FINITE, GradientProfile
from rksp.ground.model import definite
from rksp.recipe import Recipe
from rksp.spectra.model_profile import Profile

_VOCABULARY = 50_000  # for a model without classes
_SAME_SIZE = 1.002


def measured_inputs(evidence: Evidence, recipe: Recipe) -> EdgeInputs:
    """Return the inputs of the edge model for a measured model and a recipe."""
    seen = evidence.profile
    width, depth = definite(seen).width, sum(length for _, length in definite(seen).chains)
    stands_for = definite(evidence.measurement).stands_for
    if stands_for is not None:
        width, depth = stands_for
    return edge_inputs(
        recipe,
        width=width,
        depth=depth,
        vocabulary=_vocabulary(evidence),
        norm=_norm(evidence),
        **kind_of(evidence.declared) | _placed(evidence),
    )


def _placed(evidence: Evidence) -> dict[str, object]:
    """Return what the module itself shows of the kind of its blocks, as fields of `EdgeInputs`.

    It takes the place of what the configuration declares: the module is what is trained.
    """
    return _shown_by_batch(evidence) | _shown_by_blocks(evidence)


def _shown_by_batch(evidence: Evidence) -> dict[str, bool]:
    """Return whether the batch of a module without a configuration asks for the next token."""
    if evidence.source.batch is None or evidence.source.config is not None:
        return {}
    from rksp.models.given import predicts_next

    return {"predicts_next": predicts_next(evidence.source.batch)}


def _shown_by_blocks(evidence: Evidence) -> dict[str, object]:
    placed, is_bare = definite(evidence.profile).placement, evidence.source.config is None
    if placed is None or placed.norm is None:
        return {"is_unread": is_bare and bool(definite(evidence.profile).chains)}
    return placed.kind | ({"alike": alike(placed.design)} if is_bare else {})


def _vocabulary(evidence: Evidence) -> int:
    """Return the number of tokens that the model distinguishes."""
    loss = definite(evidence.profile).forward.uniform_loss
    if evidence.source.task.endswith("classification"):
        return CLASSIFIER_VOCABULARY
    return _VOCABULARY if loss is None else max(2, round(math.exp(loss)))


def _norm(evidence: Evidence) -> Norm:
    """Tell where the blocks normalize.

    Where their graph does not say it: post-norm blocks all leave states of the same size.
    """
    placed = definite(evidence.profile).placement
    if placed is not None and placed.norm is not None:
        return placed.norm
    if not definite(evidence.facts).block_norms:
        return "none"
    sizes = [block.rms_out for block in definite(evidence.profile).forward.blocks]
    is_post = len(sizes) > 1 and min(sizes) > 0 and max(sizes) < min(sizes) * _SAME_SIZE
    return "post" if is_post else "pre"


def not_finite(seen: Profile, gradient: GradientProfile | None) -> str | None:
    """Return what makes training impossible for any recipe, or None."""
    if seen.forward.not_measured.get("loss") == LOGITS_NOT_FINITE:
        return f"{LOGITS_NOT_FINITE} (first in {seen.forward.non_finite})"
    if gradient is not None and gradient.reason == GRADIENT_NOT_FINITE:
        return GRADIENT_NOT_FINITE
    return None


def loss_doubts(seen: Profile) -> list[str]:
    """Return a clause where the model's own loss is none that a labelled run minimizes."""
    is_other = seen.forward.loss is not None and seen.forward.uniform_loss is None
    return ["rksp does not recognize this loss as a cross-entropy"] * is_other


def doubts_of(
    seen: Profile, gradient: GradientProfile | None, of_recipe: Sequence[str]
) -> list[str]:
    """Return the reasons why the evidence does not support an answer, with those of the recipe."""
    doubts = [] if seen.chains else ["the labelled runs all have a residual stream"]
    doubts += of_recipe
    doubts += loss_doubts(seen)
    if gradient is not None and gradient.reason is not None:
        doubts.append(f"the gradient could not be measured: {gradient.reason}")
    if gradient is None and seen.spectra.reading == "indeterminate":
        doubts.append(f"the spectrum is degenerate: {seen.spectra.reason}")
    if gradient is None and seen.spectra.reading == "not measured":
        doubts.append(f"neither spectra nor the gradient could be measured: {seen.spectra.reason}")
    return doubts
