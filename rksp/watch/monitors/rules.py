"""Alarms from stored readings, with explicit thresholds that can be replayed."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
from scipy.special import stdtrit

from rksp.ground.model import definite
from rksp.watch.monitors.base import Alarm, Reading, Rule, Severity
from rksp.watch.registry import RULES, rule_of

_LAST_RESORT = "backoff"
TO_SIGMA = 1.4826  # converts the MAD of normal samples to standard deviations
MAD_EFFICIENCY = 0.37  # of the MAD relative to the standard deviation, for normal samples
LINE_VARIANCE = 13.4  # of the resistant line a quarter of its length ahead, in units of σ²/n
SINGLE_TAIL = 1e-5  # false alarms per sample and quantity: 30 quantities give 0.3 in 1,000 steps
RUN_TAIL = 1e-3  # the same for a sample that must repeat to raise an alarm
MOST = 25.0  # the largest threshold, however smooth the series is
WINDOW, RECENT, FEWEST = 128, 8, 8  # samples of a baseline, newest ones that it leaves out, least
SINGLE_Z, RUN_Z = 6.0, 4.0  # the least thresholds: for one sample, and for samples in a row
RUN_LENGTH, CRITICAL_LENGTH = 3, 10  # samples in a row of an alarm, and of a critical one
_CRITICAL_FACTOR = 10.0  # times its threshold: a sample that is critical at once
_RATIO_Z = 3.0  # spreads away from the median within which no ratio to it counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of a run's quantities, and what is known of the run.

    A reading is compared with a baseline of its own series: the last 128 samples, without the 8
    newest (fewer while the series is short) and without any that was over the bar. Its z is the
    distance from their line in units of their spread plus the rule's floor. A sample is *over the
    bar* at z ≥ 4. An alarm is a warning at z ≥ 6 once, or after 3 samples over the bar in a row.
    It is critical after 10 of them, beyond a hard limit, or at once if z or a jump is 10 times its
    threshold. A ratio to the median counts only 3 spreads away from it. Both thresholds grow if
    samples are few or autocorrelated (`fit_baseline`), so a series of 20 samples can alarm, but
    only on values beyond its own uncertainty. With fewer than 8 only hard limits apply. A smooth
    series is judged by its jumps too. A sample warns if it is 6 times further from the last one
    than neighbors usually are, and if it is as many jumps, or a z of 4, from the expected value.
    After an alarm the quantity's baseline is frozen until no layer was over the bar for 3 samples.

    Attributes:
        active: Names of interventions that act in the run; no alarm advises one of them.
        warmup_steps: Steps of the learning-rate warm-up. During it only hard limits apply, and the
            samples enter no baseline.
        table: The rule of every quantity; a quantity without a rule alarms only if it is not
            finite.
    """

    warmup_steps: int = 0
    active: frozenset[str] = frozenset()
    table: Mapping[str, Rule] = field(default_factory=lambda: RULES)

    def advice(self, rule: Rule) -> str:
        """Return the rule's advice, or back-off if that is already active; empty if both are."""
        left = (name for name in (rule.advice, _LAST_RESORT) if name not in self.active)
        return next(left, "") if rule.advice else ""


def replay(readings: Iterable[Reading], rules: Rules) -> list[Alarm]:
    """Return the alarms that `rules` would have raised on stored readings, in their order.

    With the rules of the run they are the alarms of the run.
    """
    judge = Judge(rules)
    steps = groupby(readings, key=lambda reading: reading.step)
    return [alarm for _, group in steps for alarm in judge.feed(list(group))]


class Judge:
    """Applies rules to readings as they come."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._quantities: dict[tuple[str, str], _Quantity] = {}

    def feed(self, readings: Sequence[Reading]) -> list[Alarm]:
        """Return the new alarms for the readings of one step."""
        alarms = []
        groups: dict[tuple[str, str], list[Reading]] = {}
        for reading in readings:
            groups.setdefault((reading.monitor, reading.quantity), []).append(reading)
        for key, group in groups.items():
            if key not in self._quantities:
                rule = rule_of(key[1], self.rules.table)
                self._quantities[key] = _Quantity(rule, self.rules)
            alarms += self._quantities[key].judge(group)
        return alarms


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A resistant line through past samples, and their spread around it.

    Attributes:
        count: Number of samples that it was fitted to.
        median: Median of all samples.
        recent: Median of their newest third.
        end: The line at the newest sample.
        slope: The rise of the line from one sample to the next.
        spread: MAD around the line, in standard deviations.
        scale: The spread and the step of a random walk that comes as far as the line, in
            quadrature, plus the floor.
        correlation: Lag-one autocorrelation around the line.
        single_z: Threshold for one sample, at this count and correlation.
        run_z: Threshold for samples in a row, at this count and correlation.
        jump: MAD of the differences between neighbors, in standard deviations, plus the floor.
        jump_z: Threshold for a difference, which correlation does not raise.
    """

    count: int
    median: float
    recent: float
    end: float
    slope: float
    spread: float
    scale: float
    correlation: float
    single_z: float
    run_z: float
    jump: float
    jump_z: float

    def reference(self, direction: str, ahead: int = 1) -> float:
        """Return the value that a sample `ahead` samples after the newest is compared with.

        It is the worse one of the line and of the newest third. After a trend toward the bad side
        the trend may continue; after a trend toward the good side it may end.
        """
        both = (self.recent, self.end + self.slope * ahead)
        return max(both) if direction == "up" else min(both)

    def jump_of(self, x: float, last: float, direction: str) -> float:
        """Return the jump from the last sample to the bad side, in units of the usual jumps."""
        leap = (x - last - self.slope) / self.jump
        return {"up": leap, "down": -leap, "both": abs(leap)}[direction]

    def distance(self, x: float, direction: str, ahead: int = 1) -> float:
        """Return the distance from the reference to the bad side."""
        up, down = x - self.reference("up", ahead), self.reference("down", ahead) - x
        return {"up": up, "down": down, "both": max(up, down)}[direction]


def fit_baseline(samples: Sequence[float], *, floor: float, layers: int) -> Baseline:
    """Fit a baseline to at least four samples.

    The line joins the medians of the first and the last third (Tukey's resistant line). Without it
    a trend would count as spread and as correlation, and would hide a loss that doubles. Thresholds
    are at least `SINGLE_Z` and `RUN_Z`. With few samples they are quantiles of Student's t, with
    the degrees of freedom of a MAD of n' samples, widened by the error of the line. Here n' = n
    (1-ρ²)/(1+ρ²) for the spread and n (1-ρ)/(1+ρ) for the line (AR(1), Bartlett 1946). They are at
    most `MOST`. Tails are divided by the number of layers that are judged together.

    Args:
        samples: The past samples, oldest first.
        floor: The smallest change worth an alarm, added to the spread.
        layers: Number of layers that are judged together.
    """
    x = np.asarray(samples, dtype=np.float64)
    n = len(x)
    third = max(1, n // 3)
    recent = float(np.median(x[-third:]))
    slope = (recent - float(np.median(x[:third]))) / (n - third)
    level = x - slope * np.arange(n)
    start = float(np.median(level))
    spread = TO_SIGMA * float(np.median(np.abs(level - start)))
    jumps = TO_SIGMA * float(np.median(np.abs(np.diff(level))))
    # Var of a difference is 2 σ² (1-ρ); robust, and corrected for its bias at few samples with a
    # trend taken out (Marriott and Pope, 1954).
    correlation = 1 - 0.5 * (jumps / spread) ** 2 if spread > 0 else 0.0
    correlation = min(max(correlation + (2 + 4 * correlation) / n, 0.0), 0.999)
    square, independent = correlation**2, (1 - correlation) / (1 + correlation)
    freedom = max(1.0, MAD_EFFICIENCY * n * (1 - square) / (1 + square))
    widening = math.sqrt(1 + LINE_VARIANCE / max(1.0, n * independent))
    # A run of correlated samples is hardly more evidence than a single one.
    run_tail = SINGLE_TAIL**square * RUN_TAIL ** (1 - square)
    single, run = (
        widening * float(stdtrit(freedom, 1 - tail / layers)) for tail in (SINGLE_TAIL, run_tail)
    )
    median = float(np.median(x))
    least = max(floor, 1e-3 * abs(median), 1e-8)
    leap = float(stdtrit(max(1.0, MAD_EFFICIENCY * (n - 1)), 1 - SINGLE_TAIL / layers))
    return Baseline(
        count=n,
        median=median,
        recent=recent,
        end=start + slope * (n - 1),
        slope=slope,
        spread=spread,
        # A random walk that covers the trend in n samples takes steps of |slope| √n.
        scale=math.hypot(spread, slope * math.sqrt(n)) + least,
        correlation=correlation,
        single_z=min(max(SINGLE_Z, single), MOST),
        run_z=min(max(RUN_Z, run), MOST),
        jump=jumps + least,
        jump_z=min(max(SINGLE_Z, leap), MOST),
    )


@dataclass(frozen=True, slots=True)
class _Verdict:
    """The judgement of one layer's reading; without a severity it is over the bar and waits."""

    reading: Reading
    excess: float  # over the threshold, to rank layers by
    rule: str
    baseline: float | None = None
    severity: Severity | None = None
    is_limit: bool = False
    is_from_start: bool = False  # the series was never within the limit


class _Quantity:
    def __init__(self, rule: Rule, rules: Rules) -> None:
        self.rule, self.rules = rule, rules
        self.layers: dict[str, _Series] = {}
        self.raised: Severity | None = None
        self.over = self.calm = self.beyond = 0

    def judge(self, readings: Sequence[Reading]) -> list[Alarm]:
        """Judge the readings of one step; return the alarm if there is one."""
        for reading in readings:
            if reading.layer not in self.layers:
                self.layers[reading.layer] = _Series(self.rule, self.rules.warmup_steps)
        count = len(self.layers)
        found = [self.layers[reading.layer].verdict(reading, count) for reading in readings]
        verdicts = self._patient([verdict for verdict in found if verdict is not None])
        alarm = self._episode(verdicts)
        if self.raised is None and readings[0].step >= self.rules.warmup_steps:
            flagged = {verdict.reading.layer for verdict in verdicts}
            for reading in readings:
                if reading.layer not in flagged:
                    self.layers[reading.layer].keep(reading.value)
        return [] if alarm is None else [alarm]

    def _patient(self, verdicts: list[_Verdict]) -> list[_Verdict]:
        """Drop hard limits until they were passed often enough in a row."""
        self.beyond = self.beyond + 1 if any(v.is_limit for v in verdicts) else 0
        if self.beyond >= self.rule.patience:
            return verdicts
        return [verdict for verdict in verdicts if not verdict.is_limit]

    def _episode(self, verdicts: list[_Verdict]) -> Alarm | None:
        """Open, escalate or close the episode; return an alarm if it opened or escalated."""
        if not verdicts:
            self.over, self.calm = 0, self.calm + 1
            if self.calm >= RUN_LENGTH:
                self.raised = None
            return None
        self.over, self.calm = self.over + 1, 0
        worst = max(verdicts, key=_rank)
        severity, rule = worst.severity, worst.rule
        lasts = self.over >= CRITICAL_LENGTH and not worst.is_from_start
        if self.raised is not None and lasts:
            severity, rule = Severity.CRITICAL, f"{rule}, {self.over} samples in a row"
        is_escalation = self.raised is Severity.WARN and severity is Severity.CRITICAL
        if severity is None or not (self.raised is None or is_escalation):
            return None
        self.raised = severity
        reading = worst.reading
        return Alarm(
            monitor=reading.monitor,
            quantity=reading.quantity,
            layer=reading.layer,
            step=reading.step,
            severity=severity,
            rule=rule,
            value=reading.value,
            baseline=worst.baseline,
            layers=len(verdicts),
            advice=self.rules.advice(self.rule),
            is_escalation=is_escalation,
        )


class _Series:
    """One layer's samples, in the transform of its rule."""

    def __init__(self, rule: Rule, warmup_steps: int) -> None:
        self.rule, self.warmup_steps = rule, warmup_steps
        self.samples: deque[float] = deque(maxlen=WINDOW + RECENT)
        self.count = 0  # samples kept so far
        self.fitted_at = self.fitted_to = -1  # samples kept at the last fit, and samples used
        self.baseline: Baseline | None = None
        self.run = self.beyond = 0  # samples in a row over the bar, beyond the ratio
        self.was_within = False  # true once a value was within the soft limit
        self.last: float | None = None  # the newest finite sample

    def keep(self, value: float) -> None:
        """Add a finite value to the samples."""
        if math.isfinite(value):
            self.samples.append(self.rule.transformed(value))
            self.count += 1

    def verdict(self, reading: Reading, layers: int) -> _Verdict | None:
        """Judge one reading; return the worst verdict, or None."""
        rule, value = self.rule, reading.value
        if not math.isfinite(value):
            return _Verdict(reading, math.inf, "not finite", severity=Severity.CRITICAL)
        verdicts = list(self._limits(reading))
        self.was_within |= rule.warn is None or not rule.is_beyond(value, rule.warn)
        if reading.step >= self.warmup_steps and rule.direction is not None:
            self._refresh(layers)
            if self.baseline is not None:
                verdicts += self._statistics(reading, self.baseline)
        self.last = rule.transformed(value)
        return max(verdicts, key=_rank, default=None)

    def _limits(self, reading: Reading) -> Iterator[_Verdict]:
        rule, value = self.rule, reading.value
        for limit, severity in ((rule.critical, Severity.CRITICAL), (rule.warn, Severity.WARN)):
            if limit is None or not rule.is_beyond(value, limit):
                continue
            # A model that starts beyond a soft limit is of another kind, not in trouble.
            is_judged = self.was_within or rule.from_start
            if severity is Severity.WARN and not is_judged:
                continue
            sign = "<=" if rule.direction == "down" else ">="
            yield _Verdict(
                reading=reading,
                excess=abs(value),
                rule=f"limit {sign} {limit:g}",
                severity=severity,
                is_limit=True,
                is_from_start=not self.was_within,
            )
            return

    def _statistics(self, reading: Reading, baseline: Baseline) -> Iterator[_Verdict]:
        rule = self.rule
        if rule.harmless is not None and not rule.is_beyond(reading.value, rule.harmless):
            self.run = self.beyond = 0
            return
        x, direction = rule.transformed(reading.value), definite(rule.direction)
        ahead = self.count - self.fitted_to
        distance = baseline.distance(x, direction, ahead)
        z = distance / baseline.scale
        side = ("up" if x > baseline.end else "down") if direction == "both" else direction
        reference = rule.restored(baseline.reference(side, ahead))
        self.run = self.run + 1 if z >= baseline.run_z else 0
        if self.run:
            severity = None
            text = f"z {z:.1f} >= {baseline.run_z:.1f} of {baseline.count} samples"
            if z >= baseline.single_z:
                severity = _severity(z, baseline.single_z)
                text = f"z {z:.1f} >= {baseline.single_z:.1f} of {baseline.count} samples"
            elif self.run >= RUN_LENGTH:
                severity, text = Severity.WARN, f"{text}, {self.run} in a row"
            yield _Verdict(reading, z / baseline.run_z, text, reference, severity)
        leap = 0.0 if self.last is None else baseline.jump_of(x, self.last, direction)
        # A return from a low sample is not an alarm: it must also be far from the expected value.
        far = max(z / RUN_Z, distance / baseline.jump / baseline.jump_z)
        if leap >= baseline.jump_z and far >= 1:
            severity = _severity(min(leap, far * baseline.jump_z), baseline.jump_z)
            text = f"leap {leap:.1f} >= {baseline.jump_z:.1f} of {baseline.count} samples"
            yield _Verdict(reading, leap / baseline.jump_z, text, reference, severity)
        if rule.ratio is not None:
            median = rule.restored(baseline.median)
            factor = rule.ratio_to(reading.value, median)
            # A series that often passes the ratio by itself is judged by its spread.
            is_far = abs(x - baseline.median) >= _RATIO_Z * baseline.spread
            self.beyond = self.beyond + 1 if factor > rule.ratio and is_far else 0
            if self.beyond >= RUN_LENGTH:
                text = f"beyond {rule.ratio:g} times the median, {self.beyond} in a row"
                yield _Verdict(reading, factor, text, median, rule.ratio_severity)

    def _refresh(self, layers: int) -> None:
        """Fit the baseline again once an eighth of the samples is new."""
        usable = len(self.samples)
        is_due = self.count - self.fitted_at >= max(1, usable // 8)
        if self.fitted_at >= 0 and not is_due:
            return
        recent = min(RECENT, usable // 4)
        if usable - recent < FEWEST:
            return
        self.fitted_at, self.fitted_to = self.count, self.count - recent - 1
        self.baseline = fit_baseline(
            list(self.samples)[: usable - recent][-WINDOW:], floor=self.rule.floor, layers=layers
        )


def _severity(size: float, threshold: float) -> Severity:
    return Severity.CRITICAL if size >= _CRITICAL_FACTOR * threshold else Severity.WARN


def _rank(verdict: _Verdict) -> tuple[int, float]:
    order = {None: 0, Severity.WARN: 1, Severity.CRITICAL: 2}
    return order[verdict.severity], verdict.excess
