"""All monitors, interventions and faults by name: a new one needs a class and a line here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rksp.ground.option_lines import build, known_name, split_line
from rksp.watch.faults import computation, run_faults
from rksp.watch.faults.base import Fault
from rksp.watch.interventions import clipping, penalties, recovery, weights
from rksp.watch.interventions.base import Intervention
from rksp.watch.interventions.step_clip import StepClip
from rksp.watch.interventions.update_bound import BoundUpdates
from rksp.watch.monitors import attention, routers, scalars, silent_corruption
from rksp.watch.monitors import weights as weight_monitors
from rksp.watch.monitors.base import NO_RULE, Monitor, Rule
from rksp.watch.output_change import OutputChangeMonitor

MONITORS: dict[str, type[Monitor]] = {
    monitor.name: monitor
    for monitor in (
        scalars.LossSpike,
        scalars.GradientNorm,
        OutputChangeMonitor,
        scalars.NonFinite,
        weight_monitors.UpdateRMS,
        scalars.OutputLogZ,
        scalars.ActivationRange,
        attention.NearUnitMass,
        weight_monitors.QKSpectralEntropy,
        attention.KeyNullSum,
        attention.MultiMaximum,
        attention.AttentionLogits,
        attention.AttentionEntropy,
        weight_monitors.SpectralAlignment,
        weight_monitors.StableRank,
        routers.RouterSimilarity,
        routers.RouterConditioning,
        routers.RouterEntropy,
        routers.RouterLoad,
        silent_corruption.SilentCorruption,
    )
}
RULES: dict[str, Rule] = {
    quantity: rule for kind in MONITORS.values() for quantity, rule in kind.quantities.items()
}
# Only where they are named: `output-change` also alarmed in 4 of 13 runs that learn.
ON_REQUEST = frozenset({"output-change"})
INTERVENTIONS: dict[str, type[Intervention]] = {
    kind.name: kind
    for kind in (
        penalties.KSS,
        BoundUpdates,
        StepClip,
        weights.MSign,
        weights.QKClip,
        weights.QKNorm,
        clipping.Clip,
        clipping.ZClip,
        clipping.AdaGC,
        recovery.RateBackoff,
        penalties.ZLoss,
        weights.SpectralSmoothing,
        recovery.RepeatStep,
    )
}
FAULTS: dict[str, type[Fault]] = {
    kind.name: kind
    for kind in (
        computation.LowPrecisionAttention,
        run_faults.LargeRate,
        run_faults.AuxOff,
        computation.BitFlip,
        computation.MatmulCorruption,
        computation.ReplicaCorruption,
        run_faults.BadBatches,
    )
}


def make_monitors(lines: Sequence[str | Monitor] = ("all",)) -> list[Monitor]:
    """Make the monitors of these lines, such as `loss` or `near-unit-mass:every=50,states=256`.

    Monitors among them come first.

    `all` stands for every monitor that is not named and not of `ON_REQUEST`, with its defaults.

    Raises:
        InputError: A name or an option is unknown, or a value cannot be used.
    """
    chosen: dict[str, str] = {}
    for line in (line for line in lines if isinstance(line, str)):
        typed, _ = split_line(line, noun="monitor")
        if line.strip() == "all":
            chosen = {**{name: name for name in MONITORS if name not in ON_REQUEST}, **chosen}
        else:
            chosen[known_name(MONITORS, typed, noun="monitor")] = line
    made = [build(MONITORS, chosen[name], noun="monitor") for name in MONITORS if name in chosen]
    return [line for line in lines if isinstance(line, Monitor)] + made


def rule_of(quantity: str, table: Mapping[str, Rule]) -> Rule:
    """Return the rule of a quantity; with a window as suffix (`..._50`), the rule of its stem."""
    stem, _, window = quantity.rpartition("_")
    known = quantity in table or not window.isdecimal()
    return table.get(quantity if known else stem, NO_RULE)


def make_intervention(text: str) -> Intervention:
    """Make the intervention that a line such as `kss:weight=0.1,every=4` describes.

    Raises:
        InputError: There is no such intervention or option, or a value cannot be used.
    """
    return build(INTERVENTIONS, text, noun="intervention")


def make_fault(text: str) -> Fault:
    """Make the fault that a line such as `bitflip:step=50,where=weights` describes.

    Raises:
        InputError: There is no such fault or option, or a value cannot be used.
    """
    return build(FAULTS, text, noun="fault")
