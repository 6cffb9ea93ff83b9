"""All monitors by name: one explicit table."""

from __future__ import annotations

from collections.abc import Sequence

from rksp.ground.option_lines import build, known_name, split_line
from rksp.watch.monitors.activation_range import ActivationRange
from rksp.watch.monitors.attention_entropy import AttentionEntropy
from rksp.watch.monitors.attention_logits import AttentionLogits
from rksp.watch.monitors.base import Monitor
from rksp.watch.monitors.gradient_norm import GradientNorm
from rksp.watch.monitors.jacobian_alignment import JacobianAlignment
from rksp.watch.monitors.key_null_sum import KeyNullSum
from rksp.watch.monitors.loss import LossSpike
from rksp.watch.monitors.multi_max import MultiMaximum
from rksp.watch.monitors.near_unit_mass import NearUnitMass
from rksp.watch.monitors.non_finite import NonFinite
from rksp.watch.monitors.output_change import OutputChangeMonitor
from rksp.watch.monitors.output_log_z import OutputLogZ
from rksp.watch.monitors.qk_entropy import QKSpectralEntropy
from rksp.watch.monitors.router_conditioning import RouterConditioning
from rksp.watch.monitors.router_entropy import RouterEntropy
from rksp.watch.monitors.router_load import RouterLoad
from rksp.watch.monitors.router_similarity import RouterSimilarity
from rksp.watch.monitors.rule_table import RULES
from rksp.watch.monitors.silent_corruption import SilentCorruption
from rksp.watch.monitors.spectral_alignment import SpectralAlignment
from rksp.watch.monitors.stable_rank import StableRank
from rksp.watch.monitors.update_rms import UpdateRMS

MONITORS: dict[str, type[Monitor]] = {
    monitor.name: monitor
    for monitor in (
        LossSpike,
        GradientNorm,
        OutputChangeMonitor,
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
