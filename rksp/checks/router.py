"""Checks of mixtures of experts before training: entropy, logits and load of routers."""

from __future__ import annotations

from collections.abc import Iterator

from rksp.checks.balance import balance_is_off
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


CHECKS = (
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
