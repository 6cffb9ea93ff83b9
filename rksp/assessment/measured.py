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
    seen, source = definite(evidence.profile), evidence.source
    width, depth = seen.width, sum(length for _, length in seen.chains)
    width, depth = definite(evidence.measurement).stands_for or (width, depth)
    loss = seen.forward.uniform_loss
    vocabulary = _VOCABULARY if loss is None else max(2, round(math.exp(loss)))
    return edge_inputs(
        recipe,
        width=width,
        depth=depth,
        vocabulary=CLASSIFIER_VOCABULARY if source.task.endswith("classification") else vocabulary,
        norm=_norm(evidence),
        **kind_of(evidence.declared) | _shown(evidence),
    )


def _shown(evidence: Evidence) -> dict[str, object]:
    """Return what the module itself shows of the kind of its blocks, as fields of `EdgeInputs`.

    It takes the place of what the configuration declares: the module is what is trained.
    """
    seen, source = definite(evidence.profile), evidence.source
    found: dict[str, object] = {}
    if source.batch is not None and source.config is None:
        from rksp.models.given import predicts_next

        found = {"predicts_next": predicts_next(source.batch)}
    if seen.placement is None or seen.placement.norm is None:
        return found | {"is_unread": source.config is None and bool(seen.chains)}
    like = {"alike": alike(seen.placement.design)} if source.config is None else {}
    return found | like | seen.placement.kind


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
