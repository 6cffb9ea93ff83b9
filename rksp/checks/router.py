"""Checks of mixtures of experts: their routers and the balance of their load."""

from __future__ import annotations

from collections.abc import Iterator

from rksp.checks.check import Check, Observation
from rksp.checks.evidence import CheckEvidence, Need
from rksp.documents.finding import Level
from rksp.ground.model import definite

_SPREAD, _WILD_SPREAD = 3.0, 8.0
_ENTROPY, _COLLAPSED_ENTROPY = 0.3, 0.05
_DEAD_SHARE = 0.75  # freshly drawn OLMoE and Qwen3-MoE, two blocks: 0.36 and 0.42


def _collapse(evidence: CheckEvidence) -> Iterator[Observation]:
    routers = evidence.forward.routers if evidence.forward is not None else ()
    if not routers or evidence.is_pretrained:
        return
    worst = min(routers, key=lambda r: r.entropy)
    if worst.entropy < _ENTROPY:
        yield Observation(
            level=Level.ERROR if worst.entropy < _COLLAPSED_ENTROPY else Level.WARNING,
            message=f"{worst.name} routes with {worst.entropy:.1%} of the maximum entropy.",
            value=worst.entropy,
            layer=worst.name,
        )


def _logit_scale(evidence: CheckEvidence) -> Iterator[Observation]:
    routers = evidence.forward.routers if evidence.forward is not None else ()
    if not routers or evidence.is_pretrained:
        return
    worst = max(routers, key=lambda r: r.logit_std)
    if worst.logit_std > _SPREAD:
        yield Observation(
            level=Level.ERROR if worst.logit_std > _WILD_SPREAD else Level.WARNING,
            message=f"{worst.name} has logits of standard deviation {worst.logit_std:.3g}.",
            value=worst.logit_std,
            fix=f"Divide the router's initialization by {worst.logit_std:.2g}.",
            layer=worst.name,
        )


def _dead(evidence: CheckEvidence) -> Iterator[Observation]:
    measured = evidence.forward.routers if evidence.forward is not None else ()
    experts = evidence.experts
    routers = [router for router in measured if router.dead_experts is not None]
    if not routers or not experts:
        return
    worst = max(routers, key=lambda r: definite(r.dead_experts))
    share = definite(worst.dead_experts) / experts
    if share > _DEAD_SHARE:
        yield Observation(
            message=(
                f"{worst.dead_experts} of {experts:g} experts of {worst.name} get almost no tokens."
            ),
            value=share,
            fix=(
                "Turn the balance loss on, and check that the router's input is not constant."
                if balance_is_off(evidence) is not None
                else None
            ),
            layer=worst.name,
        )


_OF_ROUTERS = (
    Check(
        code="RKSP801",
        name="router-collapse",
        level=Level.ERROR,
        title="A router has concentrated on few experts before training",
        measures=(
            "The entropy of the softmax over all experts divided by ln(experts), in the router "
            "where it is lowest."
        ),
        why=(
            "The chosen expert gets the gradient, improves and is chosen more often, so an "
            "imbalance at the start reinforces itself. A new router should be nearly uniform and "
            "specialize later."
        ),
        source="arXiv 2606.28116 on routing entropy; the levels are our choice",
        healthy=f"at least {_ENTROPY:g}; an error below {_COLLAPSED_ENTROPY:g}",
        fix="Initialize the router with smaller weights (0.02 or less), and use a balance loss.",
        failing="router weights N(0, 2²) at width 64",
        stable="router weights N(0, 0.02²)",
        look=_collapse,
        reads="model",
        needs=(Need.FORWARD,),
        is_cause=True,
    ),
    Check(
        code="RKSP802",
        name="router-logit-scale",
        level=Level.ERROR,
        title="Router logits are too large",
        measures=(
            "The standard deviation of the router's logits over experts, in the worst router."
        ),
        why=(
            "Large router logits have large rounding errors and freeze the choice of experts. In "
            "a 410M top-1 mixture a router z-loss of 1e-3 kept log-sum-exp at 2 to 3, where it "
            "otherwise rose from 14 to 24. That stabilizes the logits; it does not balance the "
            "experts."
        ),
        source=(
            "KempnerForge PR 119; Zoph et al., 2022 (ST-MoE router z-loss); levels are our choice"
        ),
        healthy=f"at most {_SPREAD:g}; an error above {_WILD_SPREAD:g}",
        fix="Initialize the router with smaller weights, and add a router z-loss of 1e-3.",
        failing="router logits of standard deviation 6 over 8 experts: log-sum-exp near 9",
        stable="router logits of standard deviation 1: log-sum-exp near 2.5",
        look=_logit_scale,
        reads="model",
        needs=(Need.FORWARD,),
        is_cause=True,
    ),
    Check(
        code="RKSP803",
        name="dead-experts",
        level=Level.WARNING,
        title="Most experts get almost no tokens",
        measures=(
            "The share of experts with less than a tenth of the mean load, over all choices of "
            "every token. The check is silent where the mean is under 20 choices."
        ),
        why=(
            "An expert without tokens has no gradient. On a small probe, whose tokens resemble "
            "each other, some experts are idle by chance: a third to two fifths in newly "
            "initialized OLMoE and Qwen3-MoE models. A share of three quarters is not chance."
        ),
        source="Wang et al., 2024 (arXiv 2408.15664) on load; the level is our choice",
        healthy=f"at most {_DEAD_SHARE:.0%}",
        fix=(
            "Check that the router's input is not constant, and initialize the router with "
            "smaller weights."
        ),
        failing="a router bias that favors one expert of eight by 10",
        stable="no bias",
        look=_dead,
        reads="model",
        needs=(Need.FORWARD,),
    ),
)


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


_OF_BALANCE = (
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
CHECKS = (*_OF_ROUTERS, *_OF_BALANCE)
