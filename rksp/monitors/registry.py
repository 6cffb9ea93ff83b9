"""All monitors, by name: one explicit table."""

from __future__ import annotations

from collections.abc import Sequence

from rksp.errors import InputError, nearest
from rksp.monitors.activation_range import ActivationRange
from rksp.monitors.attention_entropy import AttentionEntropy
from rksp.monitors.attention_logits import AttentionLogits
from rksp.monitors.base import Monitor
from rksp.monitors.gradient_norm import GradientNorm
from rksp.monitors.jacobian_alignment import JacobianAlignment
from rksp.monitors.key_null_sum import KeyNullSum
from rksp.monitors.loss import LossSpike
from rksp.monitors.multi_max import MultiMaximum
from rksp.monitors.near_unit_mass import NearUnitMass
from rksp.monitors.non_finite import NonFinite
from rksp.monitors.output_log_z import OutputLogZ
from rksp.monitors.qk_entropy import QKSpectralEntropy
from rksp.monitors.router_conditioning import RouterConditioning
from rksp.monitors.router_entropy import RouterEntropy
from rksp.monitors.router_load import RouterLoad
from rksp.monitors.router_similarity import RouterSimilarity
from rksp.monitors.rule_table import RULES
from rksp.monitors.silent_corruption import SilentCorruption
from rksp.monitors.spectral_alignment import SpectralAlignment
from rksp.monitors.stable_rank import StableRank
from rksp.monitors.update_rms import UpdateRMS

MONITORS: dict[str, type[Monitor]] = {
    monitor.name: monitor
    for monitor in (
        LossSpike,
        GradientNorm,
        NonFinite,
        UpdateRMS,
        OutputLogZ,
        ActivationRange,
        NearUnitMass,
        QKSpectralEntropy,
        KeyNullSum,
        MultiMaximum,
        AttentionLogits,
        AttentionEntropy,
        SpectralAlignment,
        StableRank,
        JacobianAlignment,
        RouterSimilarity,
        RouterConditioning,
        RouterEntropy,
        RouterLoad,
        SilentCorruption,
    )
}


def markdown_table() -> str:
    """Every quantity of every monitor with its cadence, alarm rule, advice and source."""
    lines = [
        "| monitor | quantity | every | alarm | advice | source |",
        "|---|---|---:|---|---|---|",
    ]
    for monitor in MONITORS.values():
        for quantity in monitor.quantities:
            rule = RULES[quantity]
            cells = (monitor.name, f"`{quantity}`", monitor.default_every, rule, rule.advice)
            lines.append("| " + " | ".join(map(str, (*cells, monitor.source))) + " |")
    return "\n".join(lines) + "\n"


def make_monitors(names: Sequence[str] = ("all",)) -> list[Monitor]:
    """The monitors of these names, at their default cadence unless one says `name:every=N`.

    `all` stands for every one that is not named.

    Raises:
        InputError: A name is unknown (the nearest is named) or its cadence is no positive number.
    """
    chosen: dict[str, int | None] = {}
    for text in names:
        name, _, option = text.partition(":")
        if name == "all" and not option:
            chosen = {**dict.fromkeys(MONITORS), **chosen}
            continue
        if name not in MONITORS:
            known = nearest(name, MONITORS)
            raise InputError(f"There is no monitor {name!r}{known}; see `rksp confirm --help`.")
        chosen[name] = _cadence(text, option)
    return [monitor(every=chosen[name]) for name, monitor in MONITORS.items() if name in chosen]


def _cadence(text: str, option: str) -> int | None:
    if not option:
        return None
    key, _, number = option.partition("=")
    if key != "every" or not number.isdecimal() or int(number) < 1:
        raise InputError(f"Monitor option {text!r} is not understood; write name:every=50.")
    return int(number)
