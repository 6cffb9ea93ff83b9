"""What a loss should be doing: judged step by step, from plain numbers.

A cross-entropy has references that need no training: ln C of C classes for a model that knows
nothing, and the entropy of the targets' frequencies for one that knows nothing but these. A mean
square has one: the variance of the targets, which their mean as every answer gives. A loss of
another kind has none, and is judged by none of the rules here.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from rksp.documents.confirm import Cause

Word = Literal[
    "start_high",
    "worse_than_nothing",
    "jump",
    "not_begun",
    "worse_than_frequencies",
    "plateau",
    "above_best",
    "too_good",
    "does_not_continue",
    "behind",
]
UNBEGUN = frozenset({"not_begun", "worse_than_frequencies", "plateau"})
SMOOTH = 10  # steps of a smoothed loss
_HIGH = 1.0  # nats above ln C at which a start is too high; healthy ones lie within 0.3
_EARLIEST = 60  # steps before a run can have failed to begin, and
_SETTLED = 40  # of them with a rate that no longer rises
_LATEST = 5_000
_PACE = 10.0  # times the steps so far that the rest of the way may take at the present pace
_BELOW = 0.05  # nats below the frequencies where something is learned
_ABOVE = 0.1
_AT_PLATEAU = 150  # steps at the frequencies of the targets, where every token is one, or
_EACH = 100  # targets of each class were seen: few are as dense; of two or three classes
_FEW_CLASSES, _LONG = 3, 400  # a task may be so hard that it takes longer
UNTOLD = 0.02  # nats that a token tells of its target: in no text, nor in any pairs that belong
_RISE, _SHARE, _LASTS = 0.5, 0.25, 20  # nats, of what was learned, steps
_LOST = 0.15  # of a loss, against its own best
_NOISES = 4.0  # standard errors of a smoothed loss that no rule takes for a change
_JUMP, _JUMPS, _IN_A_ROW = 0.25, 5.0, 3  # nats, standard deviations of a loss, steps
_QUICK, _TOO_GOOD = 200, 0.25  # steps, share of the entropy of pairs
_CONTINUES = 0.3  # nats between the end of a run and the start of the one that goes on with it


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that is not as it should be, and needs no baseline.

    Attributes:
        name: Of the finding, for the log: of what is wrong with a loss, a `Word`.
        text: What was seen, with its number, and what to do.
        cause: As in `CauseReport`, where the finding shows it; empty where one is to be looked for.
        module: Path of the module or parameter; empty where it is none.
        value: The number; of a loss the smoothed one, in nats.
        reference: What it is compared with.
        is_critical: Whether training on is of no use.
    """

    name: str
    text: str
    cause: Cause | None = None
    module: str = ""
    value: float = 0.0
    reference: float | None = None
    is_critical: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What is known of the targets by now.

    Attributes:
        classes: Number of classes C.
        entropy: Of their frequencies, in nats, corrected for the number seen; None if unknown.
        pairs: Of a target given the token before it; None if unknown.
        information: What the token at a target's place tells of it; None if unknown.
        is_dense: Whether every token has a target, as in language models.
        rows: Targets of a step.
        spread: The variance of a regression's targets; None of classes.
        is_matching: Whether each row of a batch is a class of its own, as of pairs to be matched:
            the scale of such logits is a choice.
    """

    classes: int
    entropy: float | None = None
    pairs: float | None = None
    information: float | None = None
    is_dense: bool = False
    rows: int | None = None
    spread: float | None = None
    is_matching: bool = False

    @property
    def patience(self) -> int:
        """How many steps a run may stay at the frequencies of the targets."""
        if self.information is not None and self.information < UNTOLD:
            return _EARLIEST
        if self.is_dense or self.spread is not None:
            return _AT_PLATEAU
        if self.rows is None or self.classes <= _FEW_CLASSES:
            return _LONG
        return max(_AT_PLATEAU, _EACH * self.classes // max(self.rows, 1))

    @property
    def nothing(self) -> float:
        """The loss of a model that knows nothing."""
        return math.log(self.classes) if self.spread is None else self.spread

    @property
    def unit(self) -> float:
        """What counts as a nat."""
        return 1.0 if self.spread is None else self.spread

    def __str__(self) -> str:
        if self.spread is not None:
            return f"the mean of the targets as every answer gives {self.spread:.3g}"
        return f"a model that knows nothing has {self.nothing:.3g} (ln {self.classes})"


class Sibling(NamedTuple):
    """An earlier run of the same command, step by step."""

    seen: Sequence[int]
    losses: Sequence[float]

    def at(self, seen: int) -> float | None:
        """Return the smoothed loss once so many targets were seen; None if it ended before."""
        place = bisect.bisect_left(self.seen, seen)
        if place >= len(self.seen):
            return None
        part = self.losses[max(place + 1 - SMOOTH, 0) : place + 1]
        return sum(part) / len(part)


@dataclass(slots=True, kw_only=True)
class Expected:
    """Follows one run; call `feed` once a step.

    Args:
        before: Smoothed loss at which the run ended that this one goes on with; None without one.
        spread_before: The standard deviation of its losses.
        siblings: Earlier runs of the same command: targets seen by each step, and losses.
    """

    before: float | None = None
    spread_before: float = 0.0
    siblings: Sequence[Sibling] = ()
    seen: int = 0
    losses: list[float] = field(default_factory=list)
    said: set[str] = field(default_factory=set)
    best: float = math.inf
    _above: int = 0

    def feed(self, loss: float, of: Reference, *, settled: int | None) -> Iterator[Finding]:
        """Judge the loss of the next step; yields what is seen for the first time.

        Args:
            loss: In nats, finite.
            of: What is known of the targets.
            settled: The step from which on the rate no longer rises; None while it rises.
        """
        self.losses.append(loss)
        self.seen += of.rows or 1
        rules = [self._continues, self._begins, self._behind]
        if of.spread is None:
            rules += [self._start, self._jumps, self._rises, self._falls]
        for rule in rules:
            found = rule(of, settled)
            if found is not None and found.name not in self.said:
                self.said.add(found.name)
                yield found

    @property
    def step(self) -> int:
        """The newest step."""
        return len(self.losses) - 1

    def smooth(self) -> float:
        """Return the mean of the newest losses."""
        part = self.losses[-SMOOTH:]
        return sum(part) / len(part)

    @property
    def has_learned(self) -> bool:
        """Whether the smoothed loss was once well below what it is."""
        return bool(self.losses) and self.best < (1 - _LOST) * self.smooth()

    @property
    def noise(self) -> float:
        """The standard error of a smoothed loss."""
        return spread_of(self.losses) / math.sqrt(SMOOTH)

    def _symptom(
        self, word: Word, reference: float, text: str, *, is_critical: bool = False
    ) -> Finding:
        value = self.smooth()
        return Finding(
            name=word, text=text, value=value, reference=reference, is_critical=is_critical
        )

    def _start(self, of: Reference, settled: int | None) -> Finding | None:
        first, nothing = self.losses[0], of.nothing
        if "does_not_continue" in self.said or self.step or of.is_matching:
            return None
        if first > max(nothing + _HIGH, 1.25 * nothing):
            return self._symptom("start_high", nothing, f"the loss begins at {first:.4g}; {of}")
        return None

    def _continues(self, of: Reference, settled: int | None) -> Finding | None:
        if self.before is None or self.step not in (2, 14) or "does_not_continue" in self.said:
            return None
        part = self.losses[-SMOOTH:]
        now, learned = sum(part) / len(part), max(of.nothing - self.before, 0.0)
        error = self.spread_before * math.sqrt(1 / SMOOTH + 1 / len(part))
        bar = max(_CONTINUES * of.unit, 0.15 * learned, _NOISES * error)
        if now <= self.before + bar:
            return None
        text = (
            f"the run before it ended at a loss of {self.before:.4g}, and this one is at {now:.4g}"
        )
        return self._symptom("does_not_continue", self.before, f"{text}: it does not continue")

    def _jumps(self, of: Reference, settled: int | None) -> Finding | None:
        if self.step < 2 * SMOOTH + _IN_A_ROW:
            return None
        before, new = self.losses[-64 - _IN_A_ROW : -_IN_A_ROW], self.losses[-_IN_A_ROW:]
        usual = spread_of(before)
        level = max(float(np.mean(before[-SMOOTH:])), float(np.median(before[-SMOOTH:])))
        if min(new) <= level + max(_JUMP, _JUMPS * usual):
            return None
        text = (
            f"the loss jumped from {level:.4g} to {min(new):.4g} within {_IN_A_ROW} steps (usual "
            f"step ± {usual:.2g})"
        )
        return self._symptom("jump", level, text)

    def _rises(self, of: Reference, settled: int | None) -> Finding | None:
        if self.step + 1 < SMOOTH:
            return None
        now = self.smooth()
        self.best = min(self.best, now)
        start, noise = float(np.median(self.losses[:3])), _NOISES * self.noise
        if min(self.losses[-SMOOTH:]) > of.nothing + _RISE > self.losses[0]:
            text = f"the loss began at {self.losses[0]:.4g} and is {now:.4g}; {of}"
            return self._symptom("worse_than_nothing", of.nothing, text, is_critical=True)
        learned = min(start, of.nothing) - self.best
        bar = max(min(_RISE, _SHARE * learned), noise, 2 * _ABOVE) if learned > 0 else _RISE + noise
        self._above = self._above + 1 if now > self.best + bar else 0
        if self._above < _LASTS:
            return None
        text = f"for {_LASTS} steps the loss is above its own best: {now:.4g} after {self.best:.4g}"
        return self._symptom("above_best", self.best, text, is_critical=True)

    def _begins(self, of: Reference, settled: int | None) -> Finding | None:
        """Tell whether the loss will at its pace ever be below what frequencies alone give."""
        steps, is_settled = self.step + 1, settled is not None and self.step >= settled + _SETTLED
        is_time = steps >= (_EARLIEST if is_settled else _AT_PLATEAU)
        # By the latest step it has long begun, or was told of.
        if not is_time or steps > _LATEST or steps % 5 or self.said & UNBEGUN:
            return None
        unit, known = of.unit, of.nothing if of.entropy is None else min(of.entropy, of.nothing)
        part = np.array(self.losses[-max(_SETTLED, steps // 2) :])
        now = float(part[-2 * SMOOTH :].mean())
        gap = now - (known - _BELOW * unit)
        if not gap > 0 or known < 2 * _ABOVE * unit:  # of a drifting goal it is no number
            return None
        x = np.arange(len(part)) - (len(part) - 1) / 2
        slope = float(x @ part / (x @ x))
        error = float(np.std(part - part.mean() - slope * x)) / math.sqrt(float(x @ x))
        pace = slope - 2 * error  # the fastest fall that these losses allow
        is_slow = pace >= 0 or gap / -pace >= _PACE * steps
        has = f"after {steps} steps the loss is {now:.4g}"
        around = float(np.std(part[-2 * SMOOTH :])) / math.sqrt(2 * SMOOTH)
        above = max(_ABOVE * unit, 3 * around)
        has_begun = now <= of.nothing - _ABOVE * unit
        if not is_settled and (settled is not None or has_begun):
            return None  # of a rate that still rises nothing else is known
        is_above = now > known + above and (of.is_dense or now > known + _RISE / 2 * unit)
        if is_above or not is_settled:
            if not is_slow:
                return None
            if not has_begun or known > of.nothing - _ABOVE * unit:
                still = "" if is_settled else ", while the rate still rises"
                text = f"{has}{still}, and {of}: it has not begun to learn"
                return self._symptom("not_begun", of.nothing, text)
            text = f"{has}, worse than the frequencies of the targets alone, {known:.3g}"
            return self._symptom("worse_than_frequencies", known, text)
        if steps < of.patience or slope * len(part) < -_BELOW * unit:
            return None
        if of.spread is not None:
            return self._symptom("plateau", known, f"{has}, and {of}: it has learned nothing else")
        text = f"{has}, no better than the frequencies of the targets alone, {known:.3g}"
        return self._symptom("plateau", known, f"{text}: it has learned nothing else")

    def _falls(self, of: Reference, settled: int | None) -> Finding | None:
        if of.pairs is None or of.pairs < 0.5 or not SMOOTH <= self.step < _QUICK:
            return None
        now = self.smooth()
        if now > _TOO_GOOD * of.pairs or self.before is not None or self.losses[0] < of.pairs:
            return None
        text = (
            f"after {self.step + 1} steps the loss is {now:.3g}, and pairs of tokens alone give "
            f"{of.pairs:.3g}: too good to be true"
        )
        return self._symptom("too_good", of.pairs, text)

    def _behind(self, of: Reference, settled: int | None) -> Finding | None:
        if self.step % 10 or self.step < 2 * _LASTS or self.before is not None:
            return None
        ends = [end for run in self.siblings if (end := run.at(self.seen)) is not None]
        if not ends:
            return None
        middle, spread = float(np.median(ends)), float(np.ptp(ends))
        learned = max(of.nothing - middle, 0.0)
        now, least = self.smooth(), _RISE / 2 * of.unit
        bar = max(least, _SHARE * learned, 2 * spread, _NOISES * self.noise)
        if now <= middle + bar:
            return None
        count = "an earlier run" if len(ends) == 1 else f"{len(ends)} earlier runs"
        text = f"the loss is {now:.4g}, {now - middle:.2g} nats behind {count} of this command"
        return self._symptom("behind", middle, f"{text} ({middle:.4g} at as many targets)")


def spread_of(losses: Sequence[float]) -> float:
    """Return the standard deviation of the newest losses about their course; 0 of fewer than two.

    That of a difference of two normal numbers is √2 of theirs, and its median size 0.67 of that.
    """
    jumps = np.abs(np.diff(losses[-64:]))
    return 1.05 * float(np.median(jumps)) if len(jumps) else 0.0


def entropy_of(counts: np.ndarray) -> float:
    """Return the entropy of frequencies in nats, with the correction of Miller and Madow (1955)."""
    total = float(counts.sum())
    p = counts[counts > 0] / total
    return float(-(p * np.log(p)).sum()) + (len(p) - 1) / (2 * total)


def information_of(pairs: np.ndarray) -> float:
    """Return what one of two tells of the other, in nats, from counts `[one, other]`; corrected."""
    total, cells = pairs.sum(), np.count_nonzero(pairs)
    rows, columns = pairs.sum(1), pairs.sum(0)
    plain = [entropy_of(part) for part in (rows, columns, pairs.ravel())]
    return plain[0] + plain[1] - plain[2] if total and cells else 0.0
