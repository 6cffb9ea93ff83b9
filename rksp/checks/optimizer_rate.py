"""The check of learning rates against the limits of their own optimizer."""

from __future__ import annotations

from collections.abc import Iterator

from rksp.checks.check import Check, Observation
from rksp.checks.evidence import CheckEvidence, Need
from rksp.checks.published import published_rate, swept_edge
from rksp.documents.finding import Level
from rksp.ground.text import short
from rksp.optimizers.table import optimizer_spec

_OF_EDGE = 0.75
_OVER_PUBLISHED = 2.0  # times the top of what was published


def _own_rate(evidence: CheckEvidence) -> Iterator[Observation]:
    recipe, size = evidence.recipe, evidence.active_parameters
    rate, known = recipe.learning_rate, optimizer_spec(recipe.optimizer)
    if rate is None or not size or evidence.is_fine_tuning or recipe.optimizer == "adamw":
        return
    if evidence.scales_rates_by_width:
        return
    edge = swept_edge(recipe.optimizer, evidence.block_parameters or size)
    limits = [_OF_EDGE * edge] if edge is not None else []
    if known.rates.over_adamw is not None and known.family in ("sign-like", "layerwise"):
        limits.append(_OVER_PUBLISHED * known.rates.over_adamw * published_rate(size))
    limit = min(limits, default=None)
    if limit is not None and rate > limit:
        yield Observation(
            message=(
                f"The learning rate {short(rate, 6)} is above {short(limit, 2)}, the highest that "
                f"is known to work with {recipe.optimizer} at {size / 1e6:,.0f}M active parameters."
            ),
            value=rate / limit,
            rate=limit,
        )


CHECKS = (
    Check(
        code="RKSP507",
        name="optimizer-rate",
        level=Level.WARNING,
        title="The learning rate is not usual for this optimizer",
        measures=(
            "The peak learning rate of an optimizer other than AdamW. It is compared with "
            f"{_OF_EDGE:g} of the edge that the optimizer had in the Marin sweep, extrapolated to "
            f"the model's size as AdamW's edge is, and for Lion and LAMB with {_OVER_PUBLISHED:g} "
            "times the published learning rates. The check is silent for fine-tuning and under "
            "μP."
        ),
        why=(
            "The same learning rate has a different effect under each optimizer. Lion moves every "
            "weight by the whole learning rate and needs a third to a tenth of AdamW's. Muon and "
            "Scion have a scale of their own. A learning rate that was taken over from another "
            "optimizer is a usual cause of failure: RoPE-ViT with LAMB's learning rate under "
            "AdamW was NaN at the end of warm-up."
        ),
        source=(
            "Chen et al., 2023 (arXiv 2302.06675); You et al., 2020 (arXiv 1904.00962); the Marin "
            "optimizer sweep (arXiv 2509.02046), our reading; rope-vit #16"
        ),
        healthy=f"at most {_OF_EDGE:g} of the optimizer's own edge, or its published range",
        fix="Use a learning rate that was published for this optimizer.",
        failing="--optimizer lion --lr 6e-4 on a GPT-2",
        stable="--optimizer lion --lr 1e-4 on a GPT-2",
        look=_own_rate,
        needs=(Need.SIZE,),
        field="learning_rate",
    ),
)
