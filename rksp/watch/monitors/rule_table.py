"""One rule per quantity: which change is bad, how large it must be, and what to do about it.

Advice names the intervention of rksp that the literature uses at such an alarm. Hard limits are
published ones if there are any, and otherwise defaults that healthy small runs do not reach. A
floor is the smallest change worth an alarm, in the units of the transform.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from rksp.watch.monitors.base import Severity

_TINY = 1e-30  # the smallest argument of a logarithm


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How readings of one quantity become alarms.

    Attributes:
        direction: The bad side; None if the quantity has only hard limits.
        transform: Logarithm for positive, heavy-tailed values.
        floor: Added to the measured spread, in transformed units.
        harmless: Values on the good side of this one never raise an alarm by their change.
        warn: Hard limit of a warning on the value itself, on the bad side (`up` if there is none).
            It does not apply to a series that starts beyond it, unless `from_start` is set.
        critical: Hard limit of a critical alarm, on the same side.
        from_start: Whether `warn` also applies to a series that starts beyond it. The warning of
            such a series does not become critical by lasting: back-off would lower a rate that is
            not at fault.
        patience: Number of samples in a row beyond a hard limit that raise its alarm.
        ratio: Alarm beyond this multiple (or fraction, if down) of the baseline's median, three
            samples in a row and outside of the usual spread, with `ratio_severity`.
        ratio_severity: The severity of that alarm.
        advice: Name of an intervention, or empty.
    """

    direction: Literal["up", "down", "both"] | None = "up"
    transform: Literal["identity", "log"] = "identity"
    floor: float = 0.0
    harmless: float | None = None
    warn: float | None = None
    critical: float | None = None
    from_start: bool = False
    patience: int = 1
    ratio: float | None = None
    ratio_severity: Severity = Severity.WARN
    advice: str = ""

    def __str__(self) -> str:
        """Describe in words what raises an alarm."""
        sign = "≤" if self.direction == "down" else "≥"
        parts = []
        if self.direction is not None:
            side = {"up": "rises from", "down": "falls from", "both": "leaves"}[self.direction]
            scale = " in ln" if self.transform == "log" else ""
            word = "above" if self.direction == "down" else "below"
            spared = "" if self.harmless is None else f", harmless {word} {self.harmless:g}"
            parts.append(f"{side} its baseline (floor {self.floor:g}{scale}{spared})")
        if self.ratio is not None:
            word = "less than 1 /" if self.direction == "down" else "more than"
            parts.append(f"{word} {self.ratio:g} times the median ({self.ratio_severity})")
        for limit, severity in ((self.warn, Severity.WARN), (self.critical, Severity.CRITICAL)):
            if limit is not None:
                early = ", from the start" if self.from_start else ""
                parts.append(f"{sign} {limit:g} ({severity}){early}")
        if self.patience > 1:
            parts.append(f"{self.patience} in a row")
        return "; ".join(parts) or "none"

    def transformed(self, value: float) -> float:
        """Return the value in the units of the baseline."""
        return math.log(max(value, _TINY)) if self.transform == "log" else value

    def restored(self, value: float) -> float:
        """Invert `transformed`."""
        return math.exp(value) if self.transform == "log" else value

    def is_beyond(self, value: float, limit: float) -> bool:
        """Return whether a value reached a limit."""
        if self.direction == "both":
            value = abs(value)
        return value <= limit if self.direction == "down" else value >= limit

    def ratio_to(self, value: float, median: float) -> float:
        """Return how many times worse than the median a positive value is."""
        low, high = (value, median) if self.direction == "down" else (median, value)
        return high / max(low, _TINY)


NO_RULE = Rule(direction=None)

_FALLING_RANK = Rule(direction="down", transform="log", floor=0.2, advice="backoff")
_STABLE_RANK = Rule(direction="down", transform="log", floor=0.1, advice="msign")

RULES: dict[str, Rule] = {
    # loss
    "loss": Rule(floor=0.05, advice="backoff"),
    "loss_excess": Rule(direction=None, warn=0.5, advice="backoff"),
    # gradient-norm
    "gradient_norm": Rule(
        transform="log",
        floor=0.2,
        ratio=10.0,
        ratio_severity=Severity.CRITICAL,
        advice="zclip",
    ),
    "block_gradient_norm": Rule(transform="log", floor=0.5, advice="adagc"),
    # output-change
    # Runs that learn move the median matrix's outputs by 0.1 to 0.5 in single early steps.
    "output_change": Rule(
        direction=None, warn=1.0, from_start=True, patience=2, advice="step_clip"
    ),
    "median_output_change": Rule(
        direction=None, warn=0.4, from_start=True, patience=2, advice="step_clip"
    ),
    # non-finite
    "non_finite_loss": Rule(direction=None, critical=1.0, advice="backoff"),
    "non_finite_modules": Rule(direction=None, critical=1.0, advice="backoff"),
    "non_finite_gradients": Rule(direction=None, critical=1.0, advice="backoff"),
    "overflowed_gradients": Rule(direction=None, critical=1.0, patience=10, advice="backoff"),
    # update-rms
    "rms_t": Rule(transform="log", floor=0.15, harmless=2.0, advice="zclip"),
    "update_rms": Rule(transform="log", floor=0.25, advice="zclip"),
    "epsilon_share": Rule(direction=None, warn=0.1),
    "starved_share": Rule(direction=None, warn=0.5, from_start=True),
    # output-log-z
    "output_log_z": Rule(direction="both", floor=0.25, advice="z_loss"),
    # activation-range
    "activation_max": Rule(transform="log", floor=0.1, advice="backoff"),
    "activation_share": Rule(direction=None, warn=0.25, critical=1.0),
    "activation_growth": Rule(floor=0.02, advice="backoff"),
    # near-unit-mass
    "near_unit_mass": Rule(direction="both", floor=0.05),
    "expansive_mass": Rule(floor=0.05),
    # silent-corruption
    "residual_gain_outlier": Rule(direction=None, warn=6.0),
    "checksum_mismatch": Rule(direction=None, critical=1.0, advice="backoff"),
    # qk-entropy
    "qk_delta2_rank": _FALLING_RANK,
    "qk_delta3_rank": _FALLING_RANK,
    "query_update_rank": _FALLING_RANK,
    "key_update_rank": _FALLING_RANK,
    # key-null-sum
    # Low precision gives 4e-3 and more; below 1e-3 saturated attention leaves float32's rounding.
    "key_null_sum": Rule(transform="log", floor=0.3, harmless=1e-3, ratio=5.0, advice="backoff"),
    "key_null_drift": Rule(direction=None, warn=4.0, advice="backoff"),
    # multi-maximum
    # No limit: repeated tokens tie in healthy small models, at up to 60 % of a head's rows.
    "multi_max_share": Rule(floor=0.05, advice="backoff"),
    # attention-logits
    # Kimi K2 clips at 100; its run without clipping passed 1,000 before it became unstable.
    "attention_max_logit": Rule(
        transform="log", floor=0.15, harmless=5.0, warn=100.0, critical=1000.0, advice="qk_clip"
    ),
    "worst_head_logit_std": Rule(transform="log", floor=0.2, harmless=1.0, advice="qk_clip"),
    # attention-entropy
    "attention_entropy": Rule(direction="down", floor=0.03, harmless=0.5, advice="qk_clip"),
    # spectral-alignment
    "sign_majority": Rule(floor=0.03, harmless=0.85, advice="qk_clip"),
    # stable-rank
    # No ratio: in 300 healthy steps of small models a matrix's rank fell to a quarter and the mean
    # of the early layers to a third.
    "stable_rank": _STABLE_RANK,
    "early_stable_rank": _STABLE_RANK,
    # router-similarity, -conditioning, -entropy, -load
    "router_similarity": Rule(floor=0.02, harmless=0.1, warn=0.3, advice="backoff"),
    "router_cond_ratio": Rule(direction="down", transform="log", floor=0.2, advice="backoff"),
    "router_centered_energy": Rule(transform="log", floor=0.3, advice="backoff"),
    "router_entropy": Rule(direction="down", floor=0.05, advice="backoff"),
    "router_entropy_sigmoid": Rule(direction="down", floor=0.05, advice="backoff"),
    "router_max_vio": Rule(floor=0.3),
    "router_dead_experts": Rule(direction=None, warn=1.0, from_start=True),
}


def rule_of(quantity: str, table: Mapping[str, Rule]) -> Rule:
    """Return the rule of a quantity; with a window as suffix (`..._50`), the rule of its stem."""
    stem, _, window = quantity.rpartition("_")
    known = quantity in table or not window.isdecimal()
    return table.get(quantity if known else stem, NO_RULE)
