"""All monitors by name: one explicit table."""

from __future__ import annotations

from collections.abc import Sequence

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
from rksp.option_lines import build, known_name, split_line

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
    """Return every quantity of every monitor with its cadence, alarm rule, advice and source."""
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


def make_monitors(lines: Sequence[str] = ("all",)) -> list[Monitor]:
    """Make the monitors of these lines, such as `loss` or `near-unit-mass:every=50,states=256`.

    `all` stands for every monitor that is not named, with its defaults.

    Raises:
        InputError: A name or an option is unknown, or a value cannot be used.
    """
    chosen: dict[str, str] = {}
    for line in lines:
        typed, _ = split_line(line, noun="monitor")
        if line.strip() == "all":
            chosen = {**{name: name for name in MONITORS}, **chosen}
        else:
            chosen[known_name(MONITORS, typed, noun="monitor")] = line
    return [build(MONITORS, chosen[name], noun="monitor") for name in MONITORS if name in chosen]
