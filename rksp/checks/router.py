"""Checks of mixtures of experts: their routers and the balance of their load."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from operator import itemgetter

from rksp.checks.check import Observation, check
from rksp.checks.evidence import CheckEvidence
from rksp.documents.finding import Level
from rksp.recipe import REINFORCED, Recipe

_SPREAD, _WILD_SPREAD = 3.0, 8.0
_ENTROPY, _COLLAPSED_ENTROPY = 0.3, 0.05
_DEAD_SHARE = 0.75  # freshly drawn OLMoE and Qwen3-MoE, two blocks: 0.36 and 0.42
_ROUTER = re.compile(r"router|gate$")  # of the modules that adapters train
_BALANCED = "Turn the balance loss on, and check that the router's input is not constant."


@check("RKSP801", weights="random")
def _collapse(evidence: CheckEvidence) -> Iterator[Observation]:
    worst = min(evidence.forward.routers, key=lambda r: r.entropy, default=None)
    if worst is not None and worst.entropy < _ENTROPY:
        yield Observation(
            f"{worst.name} routes with {worst.entropy:.1%} of the maximum entropy.",
            worst.entropy,
            level=Level.ERROR if worst.entropy < _COLLAPSED_ENTROPY else Level.WARNING,
            layer=worst.name,
        )


@check("RKSP802", weights="random")
def _logit_scale(evidence: CheckEvidence) -> Iterator[Observation]:
    worst = max(evidence.forward.routers, key=lambda r: r.logit_std, default=None)
    if worst is not None and worst.logit_std > _SPREAD:
        yield Observation(
            f"{worst.name} has logits of standard deviation {worst.logit_std:.3g}.",
            worst.logit_std,
            level=Level.ERROR if worst.logit_std > _WILD_SPREAD else Level.WARNING,
            fix=f"Divide the router's initialization by {worst.logit_std:.2g}.",
            layer=worst.name,
        )


@check("RKSP803")
def _dead(evidence: CheckEvidence) -> Iterator[Observation]:
    experts = evidence.settings.experts or math.inf
    dead = [(r.dead_experts, r.name) for r in evidence.forward.routers if r.dead_experts]
    most, name = max(dead, key=itemgetter(0), default=(0, ""))
    if most / experts > _DEAD_SHARE:
        yield Observation(
            f"{most} of {experts:g} experts of {name} get almost no tokens.",
            most / experts,
            fix=_BALANCED if balance_is_off(evidence) is not None else None,
            layer=name,
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
    is_balanced = settings.family.bias_balanced or settings.get("topk_method") == "noaux_tc"
    is_balanced |= any(settings.get(switch) is True for switch in _BIAS_SWITCHES)
    is_balanced |= evidence.facts is not None and evidence.facts.balancing_biases > 0
    if (settings.experts or 0) <= 1 or is_balanced:
        return None
    if settings.number(*_COEFFICIENT) == 0:
        return "the coefficient of the balance loss is 0"
    # Trainers of rewards compute their loss from the logits alone, whatever the model would add.
    is_own_loss = evidence.recipe.objective not in REINFORCED
    if settings.get("output_router_logits") is False and is_own_loss and _trains(evidence.recipe):
        return _NOT_ADDED
    return None


def _trains(recipe: Recipe) -> bool:
    """Tell whether a router may change; adapters leave it alone unless they name it."""
    targets = recipe.lora_targets or ()
    is_named = any(_ROUTER.search(target) is not None for target in targets)
    return recipe.peft == "none" or is_named


@check("RKSP804")
def _balance(evidence: CheckEvidence) -> Iterator[Observation]:
    reason = balance_is_off(evidence)
    if reason is not None:
        # Whoever draws a mixture from scratch seldom does it in a trainer of Hugging Face, and
        # released configurations hold that library's default, whatever trained their weights.
        is_default = reason == _NOT_ADDED and evidence.start.is_scratch
        experts = evidence.settings.experts
        yield Observation(
            f"Nothing balances the load of {experts:g} experts: {reason}.",
            experts,
            level=Level.NOTE if is_default else Level.WARNING,
            fix=_OTHER_TRAINER if is_default else None,
        )


@check("RKSP805")
def _router_loss(evidence: CheckEvidence) -> Iterator[Observation]:
    settings = evidence.settings
    if (settings.experts or 0) <= 1:
        return
    chosen, coefficient = settings.experts_per_token, settings.number(*_Z_LOSS)
    is_new = evidence.start.is_scratch
    if evidence.recipe.precision in ("bf16-pure", "fp16-pure") and is_new:
        yield Observation(
            f"The router's softmax over {settings.experts:g} experts is computed in "
            f"{evidence.recipe.precision.removesuffix('-pure')}.",
            settings.experts,
            fix="Keep the router in float32 (--precision bf16).",
        )
    elif chosen == 1 and (coefficient == 0 or (coefficient is None and is_new)):
        yield Observation(
            f"Each token goes to one of {settings.experts:g} experts, and the router's z-loss "
            f"{'is off' if coefficient == 0 else 'is not in its configuration'}.",
            0.0,
        )
