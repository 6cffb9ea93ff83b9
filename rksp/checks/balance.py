"""Checks of what balances the load of experts: the balance loss and the router's z-loss."""

from __future__ import annotations

from collections.abc import Iterator

from rksp.checks.check import Check, Observation
from rksp.checks.evidence import CheckEvidence, Need
from rksp.documents.finding import Level

_COEFFICIENT = ("router_aux_loss_coef", "aux_loss_alpha", "moe_aux_loss_coef")
_BIAS_SWITCHES = (
    *("use_routing_bias", "use_expert_bias", "moe_use_aux_free", "moe_router_enable_expert_bias"),
    "moe_router_use_expert_bias",
)
_Z_LOSS = ("router_z_loss_coef", "moe_z_loss_coef", "z_loss_coef")

_NOT_ADDED = "output_router_logits is False, so Hugging Face adds no balance loss"
_OTHER_TRAINER = (
    "Set output_router_logits=True if transformers trains it; another trainer may add the loss."
)


def balance_is_off(evidence: CheckEvidence) -> str | None:
    """Say why no loss balances the experts; None if one does, or if it is unknown."""
    settings = evidence.settings
    if (settings.experts or 0) <= 1 or settings.family.bias_balanced:
        return None
    if settings.get("topk_method") == "noaux_tc" or any(
        settings.get(switch) is True for switch in _BIAS_SWITCHES
    ):
        return None
    if evidence.facts is not None and evidence.facts.balancing_biases:
        return None
    coefficient = settings.number(*_COEFFICIENT)
    if coefficient == 0:
        return "the coefficient of the balance loss is 0"
    if settings.get("output_router_logits") is False:
        return _NOT_ADDED
    return None


def _balance(evidence: CheckEvidence) -> Iterator[Observation]:
    reason = balance_is_off(evidence)
    if reason is not None:
        # Whoever draws a mixture from scratch seldom does it in a trainer of Hugging Face, and
        # released configurations hold that library's default, whatever trained their weights.
        is_default = reason == _NOT_ADDED and not evidence.is_fine_tuning
        yield Observation(
            level=Level.NOTE if is_default else Level.WARNING,
            message=f"Nothing balances the load of {evidence.experts:g} experts: {reason}.",
            value=evidence.experts,
            fix=_OTHER_TRAINER if is_default else None,
        )


def _router_loss(evidence: CheckEvidence) -> Iterator[Observation]:
    settings = evidence.settings
    if (settings.experts or 0) <= 1:
        return
    chosen, coefficient = settings.experts_per_token, settings.number(*_Z_LOSS)
    is_new = not evidence.is_fine_tuning
    if evidence.recipe.precision in ("bf16-pure", "fp16-pure") and is_new:
        yield Observation(
            message=(
                f"The router's softmax over {settings.experts:g} experts is computed in "
                f"{evidence.recipe.precision.removesuffix('-pure')}."
            ),
            value=settings.experts,
            fix="Keep the router in float32 (--precision bf16).",
        )
    elif chosen == 1 and (coefficient == 0 or (coefficient is None and is_new)):
        yield Observation(
            message=(
                f"Each token goes to one of {settings.experts:g} experts, and the router's z-loss "
                f"{'is off' if coefficient == 0 else 'is not in its configuration'}."
            ),
            value=0.0,
        )


CHECKS = (
    Check(
        code="RKSP804",
        name="balance-loss-off",
        level=Level.WARNING,
        title="Nothing balances the load of the experts",
        measures=(
            "The coefficient of the balance loss, and output_router_logits, which turns that loss "
            "on in Hugging Face; a note where that default alone speaks and the weights are new. "
            "The check is silent where a bias balances the load."
        ),
        why=(
            "An expert that gets more tokens learns more and then gets still more. Mixtral and "
            "related models add the balance loss only if output_router_logits is True, and the "
            "default is False: whatever the coefficient, training runs without the loss and gives "
            "no warning. Trainers other than Hugging Face's may add the loss themselves."
        ),
        source=(
            "transformers #44242 and PR 44586; LlamaFactory PR 3276; axolotl PR 995; trl PR 6085"
        ),
        healthy="output_router_logits=True with a coefficient above 0, or balancing by a bias",
        fix="Set output_router_logits=True and router_aux_loss_coef to 0.01.",
        failing="mixtral with output_router_logits=False",
        stable="mixtral with output_router_logits=True, router_aux_loss_coef=0.02",
        look=_balance,
        needs=(Need.CONFIG,),
        settings=("output_router_logits", "router_aux_loss_coef"),
        is_cause=True,
        reads="recipe",
    ),
    Check(
        code="RKSP805",
        name="router-stability",
        level=Level.WARNING,
        title="Nothing keeps the router's logits small",
        measures=(
            "The router's z-loss, if each token goes to one expert, and the router's precision."
        ),
        why=(
            "Router logits grow, and the softmax over large logits has large rounding errors. In "
            "ST-MoE a router in bfloat16 made runs diverge, and the z-loss was the only remedy "
            "that did not reduce quality. A 410M top-1 mixture without z-loss reached a "
            "log-sum-exp of 24 and used one expert."
        ),
        source="Zoph et al., 2022 (arXiv 2202.08906); KempnerForge #117 and PR 119",
        healthy="a z-loss of 1e-3, or at least two experts per token; the router in float32",
        fix="Set the router's z-loss to 1e-3.",
        failing="num_experts_per_tok=1, router_z_loss_coef=0",
        stable="num_experts_per_tok=1, router_z_loss_coef=0.001",
        look=_router_loss,
        needs=(Need.CONFIG,),
        settings=("router_z_loss_coef",),
        is_cause=True,
        reads="recipe",
    ),
)
