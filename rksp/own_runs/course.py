"""What became of one training run, read from its curves alone, as arrays.

Thresholds are shares of what the run itself learned or of its own noise, so nats, mean squared
errors and rewards are judged alike; only *never learned* knows what guessing costs in nats. They
were chosen on public logs, each labelled before it was looked at (README).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

FEWEST = 3  # records from which a course can be told
_ROSE = 0.18  # of what was learned: an end this far above the minimum has failed
_ROSE_LEAST = 0.03  # of what was learned, where the rise undid most of the run's time
_EARLY = 0.75  # of the way to the lowest point
_LASTS = 0.15  # of the run: a rise that is no last wobble
_STEADY = 12.0  # times what the curve strays from one that only rises, or only falls
_ROSE_A_LITTLE = 0.05  # of the first loss: a run that ended higher is not called fine
_WORSE = 0.07  # of the lowest held-out loss: a rise that is no wobble
_SEEN_RISE = 0.01  # of what was learned on held-out data: less cannot be seen
_FELL_ON = 0.05  # of the training loss: it fell while the held-out loss rose
_FELL = 0.5  # of what was gained: a reward that lost this much has collapsed
_NOISE = 3.0  # times the 90 % deviation from the smoothed curve
_FEW = 10.0  # records: the fewer there are, the more of a rise may be chance
_CAME_BACK = 0.3  # of a blow-up: a run that came back by as much is no plain divergence
_WILD = 0.1  # of the last third: bursts above the first loss that nothing ends
_GUESSES = (2, 3, 4, 5, 10, 100, 1000)  # classes of which a flat loss may be the logarithm
_VOCABULARY = (9.2, 13.0)  # nats: the logarithm of 10,000 to 400,000 words
_UNIGRAM = 0.62  # of that: less is left by a model that knows no more than frequencies
_STILL = 0.002  # of its height: a loss that moves less stands still
_LANGUAGE = 3.5  # nats: a language model that stays above has learned little more than frequencies
_UNTRAINED = 8.0  # nats: only a model that has learned nothing is there
_HABIT = 5.0  # times what the run strayed before: a rise that is no habit of it
_CLEAR = 30  # records from which a loss that stands still is no chance
_FLOOR = 0.02  # of a reward's range: it is at its lowest
_SEEN = 8  # records from which a habit is known
_MOST_SEEN = 200  # records of a curve that its habit is taken from
_SLOW = 0.25  # power of the window by which smoothing lowers noise that has a memory
_JUMP = 2.0  # times its usual size: a gradient norm that moved


class Fate(StrEnum):
    """What became of a run."""

    FINE = "fine"
    SPIKE_RECOVERED = "spike_recovered"
    DIVERGED = "diverged"
    NAN = "nan"
    SPIKE_UNRECOVERED = "spike_unrecovered"
    NEVER_LEARNED = "never_learned"
    COLLAPSED = "collapsed"  # a reward that fell for good
    OVERFIT = "overfit"
    UNTOLD = "cannot_tell"
    ALARMED = "alarmed"  # by the watch that wrote the log, where its loss did not fail
    CRASHED = "crashed"  # as that log says of the script, where nothing else went wrong

    @property
    def is_failure(self) -> bool:
        """Whether the run failed."""
        sound = (Fate.FINE, Fate.SPIKE_RECOVERED)
        return self not in (*sound, Fate.UNTOLD, Fate.ALARMED, Fate.CRASHED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What became of one run.

    Attributes:
        fate: In one word.
        first, last: The first and the last value, in the curve's own unit; NaN where not finite.
        last_step: Of the last record.
        best, best_step: The lowest value, of a reward the highest.
        level: The lowest value of the smoothed curve.
        ended: Median of the last twentieth, at least three records.
        onset: The step at which it went wrong; None where it did not.
        moved_first: `loss`, `grad_norm` or `held_out_loss`; empty where nothing went wrong.
        lead: Steps by which the gradient's norm left its range before the loss; 0 in the same
            record, None where it did not move or was not logged.
    """

    fate: Fate
    first: float = math.nan
    last: float = math.nan
    last_step: float = math.nan
    best: float = math.nan
    best_step: float = math.nan
    level: float = math.nan
    ended: float = math.nan
    onset: float | None = None
    moved_first: str = ""
    lead: float | None = None


@dataclass(frozen=True, slots=True)
class _Facts:
    """The finite part of a curve, smoothed: `[records]` each, and its noise and ends.

    `wobble` is the noise of the smoothed curve: noise with a memory is averaged less than the root
    of the window says.
    """

    steps: np.ndarray
    values: np.ndarray
    smooth: np.ndarray
    noise: float
    wobble: float
    lowest: int
    ended: float
    width: int

    @property
    def level(self) -> float:
        return float(self.smooth[self.lowest])

    @property
    def learned(self) -> float:
        return float(max(self.values[0], np.median(self.values[:3])) - self.level)


def course(
    steps: np.ndarray,
    loss: np.ndarray,
    *,
    grad_norm: np.ndarray | None = None,
    held_out: tuple[np.ndarray, np.ndarray] | None = None,
    is_gain: bool = False,
    is_opposed: bool = False,
    is_language: bool = False,
) -> Course:
    """Say what became of a run.

    Args:
        steps: Of each record, ascending, `[records]`; any counter.
        loss: Training loss, `[records]`; NaN and infinity as they were logged.
        grad_norm: Norm of the gradient at the same records, NaN where none was logged.
        held_out: Steps and values of the loss on held-out data, `[evaluations]` each.
        is_gain: More is better: a reward.
        is_opposed: Its height says nothing, as that of a policy's loss or of two networks that play
            against each other; only values that are no numbers count.
        is_language: A loss in nats per token, of which what guessing costs is known.
    """
    steps, loss = np.asarray(steps, np.float64), np.asarray(loss, np.float64)
    norm = None if grad_norm is None else np.asarray(grad_norm, np.float64)
    sign = -1.0 if is_gain else 1.0
    lost = _lost(loss, norm)
    values = np.where(lost, np.nan, sign * loss)
    known = np.isfinite(values)
    if not known.any():
        fate = Fate.NAN if len(loss) else Fate.UNTOLD
        onset = steps[0] if len(loss) else None
        return Course(fate=fate, onset=onset, moved_first="loss" if len(loss) else "")
    facts = _facts(steps[known], values[known])
    last = float(loss[-1]) if known[-1] else math.nan
    told = replace(
        _course(facts, sign), first=float(loss[0]), last=last, last_step=float(steps[-1])
    )
    if _ends_lost(known):
        return _failed(replace(told, fate=Fate.NAN), steps, norm, _nan_onset(values))
    if len(facts.values) < FEWEST:
        return told
    fate, onset = (Fate.FINE, 0) if is_opposed else _fate(facts, is_gain=is_gain)
    if is_language and not fate.is_failure and facts.values.min() < _VOCABULARY[1] < facts.ended:
        fate, onset = Fate.DIVERGED, int(np.argmax(facts.values > _VOCABULARY[1]))
    if fate.is_failure:
        at = int(np.flatnonzero(known)[onset])
        return _failed(replace(told, fate=fate), steps, norm, at)
    worse = None if held_out is None or is_gain or is_opposed else _overfit(facts, *held_out)
    return replace(told, fate=fate) if worse is None else worse


def _course(facts: _Facts, sign: float = 1.0) -> Course:
    best = int(np.argmin(facts.values))
    return Course(
        fate=Fate.UNTOLD,
        first=sign * float(facts.values[0]),
        last=sign * float(facts.values[-1]),
        last_step=float(facts.steps[-1]),
        best=sign * float(facts.values[best]),
        best_step=float(facts.steps[best]),
        level=sign * facts.level,
        ended=sign * facts.ended,
    )


def _lost(loss: np.ndarray, norm: np.ndarray | None) -> np.ndarray:
    """Mark the records that hold no number; transformers writes 0.0 for a loss that is not one."""
    lost: np.ndarray = ~np.isfinite(loss)
    later = np.flatnonzero(loss != 0.0)
    zeros = np.arange(len(loss)) > (later[-1] if len(later) else -1)
    sizes = np.abs(loss[np.isfinite(loss)])
    fell_at_once = len(later) > 0 and abs(loss[later[-1]]) > 0.05 * sizes.max(initial=0.0)
    if zeros.sum() >= 2 and fell_at_once:
        lost |= zeros
    if norm is not None and len(norm) == len(loss):
        lost |= zeros & ~np.isfinite(norm)
    return lost


def _ends_lost(known: np.ndarray) -> bool:
    lost = ~known
    if not lost.any():
        return False
    tail = int(np.argmax(known[::-1]))  # records without a number at the end
    after = lost[int(np.argmax(lost)) :]
    return tail >= 2 or (len(after) >= 3 and after.mean() > 0.5) or (tail == 1 and len(known) < 8)


def _facts(steps: np.ndarray, values: np.ndarray) -> _Facts:
    width = min(max(len(values) // 25, 1 if len(values) < 12 else 3), 101) | 1
    smooth = rolling_median(values, width)
    lowest = int(np.argmin(smooth))
    calm = slice(lowest // 2, lowest + 1) if lowest >= 16 else slice(None)
    noise = float(np.quantile(np.abs(values - smooth)[calm], 0.9))
    if len(values) > 1:  # of few records the smoothed curve is the curve
        noise = max(noise, 0.5 * float(np.median(np.abs(np.diff(values)))))
    noise *= 1 + _FEW / len(values)
    tail = min(max(3, len(values) // 20), max(1, len(values) // 3))
    wobble = noise * float((3 / max(3, width)) ** _SLOW)
    ended = float(np.median(values[-tail:]))
    return _Facts(steps, values, smooth, noise, wobble, lowest, ended, width)


def rolling_median(values: np.ndarray, width: int) -> np.ndarray:
    """Return the median of `width` (odd) values about each, of fewer at the ends, `[records]`."""
    half = width // 2
    if half == 0 or len(values) < width:
        return values.copy()
    middle = np.median(np.lib.stride_tricks.sliding_window_view(values, width), axis=1)
    first = [np.median(values[: n + half + 1]) for n in range(half)]
    last = [np.median(values[len(values) - 2 * half + n :]) for n in range(half)]
    return np.concatenate([np.array(first), middle, np.array(last)])


def _wander(facts: _Facts) -> float:
    """Return how far the smoothed curve strays from one that only falls to its lowest point.

    What strays as far again at the end is noise with a memory, or the run's restarts. Where too
    little lies before the lowest point, the curve behind it tells, against one that only rises.
    """
    for part in (facts.smooth[: facts.lowest + 1], facts.smooth[facts.lowest :][::-1]):
        if len(part) >= _SEEN:
            return _strays(part)
    return 0.0


def _strays(values: np.ndarray) -> float:
    """Return how far values stray, at the 90 % quantile, from a curve that only falls."""
    seen = values[:: -(-len(values) // _MOST_SEEN)]
    return float(np.quantile(np.abs(seen - _falling(seen)), 0.9))


def _strays_from_turn(facts: _Facts) -> float:
    """Return how far values stray at most from a curve that falls, turns, and rises for good."""
    lowest = int(np.argmin(facts.values))
    if lowest > len(facts.values) - FEWEST:
        return math.inf
    sides = facts.values[: lowest + 1], facts.values[lowest:][::-1]
    return max(float(np.abs(side - _falling(side)).max()) for side in sides)


def _falling(values: np.ndarray) -> np.ndarray:
    """Return the closest curve that never rises, `[records]`, by the min-max formula."""
    size = len(values)
    summed = np.concatenate([[0.0], np.cumsum(values)])
    first, last = np.arange(size)[:, None], np.arange(size)[None, :]
    means = (summed[last + 1] - summed[first]) / np.maximum(last - first + 1, 1)
    means = np.where(last >= first, means, -np.inf)
    highest = np.maximum.accumulate(means[:, ::-1], axis=1)[:, ::-1]
    highest = np.where(last >= first, highest, np.inf)
    found: np.ndarray = np.minimum.accumulate(highest, axis=0).diagonal()
    return found


def _fate(facts: _Facts, *, is_gain: bool) -> tuple[Fate, int]:
    rise, first = facts.ended - facts.level, facts.values[0]
    is_over = facts.lowest < len(facts.values) - max(1, len(facts.values) // 20)
    usual = max(_NOISE * facts.wobble, _HABIT * _wander(facts))
    if _SEEN <= len(facts.values) < _CLEAR:  # of few records that fall and rise, noise is little
        usual = min(usual, _STEADY * _strays_from_turn(facts))
    has_learned = facts.learned > usual
    is_clear = is_over and (rise if has_learned else facts.ended - first) > usual
    if is_gain:  # most rewards of a record are alike, and few lie far off
        spread = float((facts.values - facts.smooth).std())
        has_fallen = is_clear and rise > max(_FELL * facts.learned, _NOISE * spread)
        if has_fallen and len(facts.values) < _SEEN:
            return Fate.UNTOLD, 0
        if has_fallen:
            return Fate.COLLAPSED, _onset(facts)
        return (Fate.NEVER_LEARNED if _is_at_its_floor(facts) else Fate.FINE), 0
    if _is_flat(facts):
        spread = float(np.subtract(*np.quantile(facts.values, (0.9, 0.1))))
        return (Fate.DIVERGED if spread > 0.5 * abs(facts.ended) else Fate.NEVER_LEARNED), 0
    quarter = facts.values[-max(2, len(facts.values) // 4) :]
    far = min(max(0.5 * abs(first), _NOISE * facts.noise), 2 * abs(first))
    if (quarter > first).all() and facts.ended - first > far:
        return Fate.DIVERGED, int(np.argmax(facts.values > first + 0.1 * abs(first)))
    if is_clear and len(facts.values) < _SEEN and rise < far:
        return Fate.UNTOLD, 0
    has_risen = rise > _ROSE * max(facts.learned, 0.1 * abs(facts.level))
    if is_clear and (has_risen or _is_set_back(facts, usual)):
        peak = facts.smooth[facts.lowest :].max()
        came_back = peak - facts.ended > _CAME_BACK * (peak - facts.level)
        return (Fate.SPIKE_UNRECOVERED if came_back else Fate.DIVERGED), _onset(facts)
    third = facts.values[-max(3, len(facts.values) // 3) :]
    top = max(first, facts.level + facts.learned) + max(_NOISE * facts.noise, usual)
    if (third > top).mean() > _WILD:
        return Fate.DIVERGED, int(np.argmax(facts.values > top))
    if (dead := _died(facts)) is not None:
        return Fate.NEVER_LEARNED, dead
    tail = facts.values[-max(1, len(facts.values) // 40) :]
    stands_still = len(tail) >= _SEEN and np.ptp(tail) < _STILL * abs(facts.ended)
    if stands_still and rise > 0.5 * facts.learned:  # whatever it did before, it is over
        return Fate.DIVERGED, _onset(facts)
    above = facts.values - np.minimum.accumulate(facts.smooth)
    limit = max(4 * _NOISE * facts.noise, 0.25 * facts.learned)
    if (above[3:] > limit).any():
        return Fate.SPIKE_RECOVERED, 0
    is_higher = facts.ended - first > max(2 * facts.noise, _ROSE_A_LITTLE * abs(first))
    least = max(0.5 * facts.learned, _ROSE_A_LITTLE * abs(facts.level))
    least = max(least, 0.5 * float(np.median(np.abs(np.diff(facts.values)))))
    may_rise = is_over and rise > least and len(facts.values) < _SEEN
    return (Fate.UNTOLD if is_higher or may_rise else Fate.FINE), 0


def _is_set_back(facts: _Facts, usual: float) -> bool:
    """Tell whether the end is where the run was well before its lowest point.

    A rise that is small beside all that was learned may undo most of the time of the run. Then it
    goes on and on, or settles: the curve behind the lowest point is close to one that only rises,
    or behind its peak to one that only falls.
    """
    rise, passed = facts.ended - facts.level, int(np.argmax(facts.smooth <= facts.ended))
    after = facts.smooth[facts.lowest :]
    settled = after[int(np.argmax(after)) :]
    strays = [_strays(x) for x in (after[::-1], settled) if len(x) > _LASTS * len(facts.smooth)]
    is_clear = rise > max(usual, _ROSE_LEAST * facts.learned, _STEADY * min(strays, default=rise))
    return is_clear and passed < _EARLY * facts.lowest


def _is_at_its_floor(facts: _Facts) -> bool:
    """Tell whether a reward is never paid: its values are at their lowest, and so is its end.

    One that is level elsewhere may have been as good from the start. Lower is better here.
    """
    values = facts.values
    if len(values) < _SEEN:
        return False
    early, late = np.array_split(values, 2)
    doubt = _NOISE * math.hypot(early.std() / len(early) ** 0.5, late.std() / len(late) ** 0.5)
    usual = min(facts.ended, float(np.median(values)))
    is_low = values.max() - usual <= _FLOOR * np.ptp(values)
    return bool(is_low and early.mean() - late.mean() <= doubt)


def _is_flat(facts: _Facts) -> bool:
    """Tell whether the loss of a run from its beginning stays where guessing is.

    Guessing is the logarithm of a small number of classes, or anything from 3.5 nats on.
    """
    values = facts.values
    gap = np.median(np.diff(facts.steps)) if len(values) > 1 else 0.0
    is_start = facts.steps[0] <= 5 * max(gap, 1.0)
    if len(values) < _SEEN or not (is_start or facts.ended > _UNTRAINED):
        return False
    start = float(np.median(values[:3]))
    least = max(facts.noise, 0.02 * abs(start) if is_start else 0.0)  # of a part any fall counts
    if start - facts.ended > least or facts.learned > 0.15 * abs(values[0]):
        return False
    at_guess = any(abs(facts.ended - math.log(k)) < 0.03 * math.log(k) for k in _GUESSES)
    return bool(facts.ended < 1.1 * values[0] and (at_guess or facts.ended > _LANGUAGE))


def _died(facts: _Facts) -> int | None:
    """Return where a loss began to stand still at a guess, if it does so for half of the run.

    A guess is the logarithm of a small number of classes, or, for a language model that began at
    that of its vocabulary, no less than the entropy of words by their frequency.
    """
    size, ended = len(facts.values), facts.ended
    classes = any(abs(ended - math.log(k)) < _STILL * math.log(k) for k in _GUESSES)
    is_language = (
        _VOCABULARY[0] < facts.values[0] < _VOCABULARY[1] and ended > _UNIGRAM * facts.values[0]
    )
    margin = _STILL * abs(ended) if classes else max(0.01 * abs(ended), 2 * facts.wobble)
    smooth = rolling_median(facts.values, max(3, facts.width))  # one record is no movement
    still = np.abs(smooth - ended) < margin
    since = size - int(np.argmin(still[::-1])) if not still.all() else 0
    is_long = size >= (_SEEN if classes else _CLEAR)
    return since if (classes or is_language) and is_long and since <= size // 2 else None


def _overfit(facts: _Facts, steps: np.ndarray, values: np.ndarray) -> Course | None:
    """Return the course of the held-out loss, if it rises for good while the training loss falls.

    The onset is the first evaluation after the lowest.
    """
    finite = np.isfinite(values)
    if finite.sum() < FEWEST:
        return None
    held = _facts(np.asarray(steps, np.float64)[finite], np.asarray(values, np.float64)[finite])
    steps, values, lowest = held.steps, held.values, held.lowest
    half = values[len(values) // 2 :]
    if len(half) >= FEWEST and (half > values[0] + 0.5 * abs(values[0])).all():  # it never fell
        turned = lowest = int(np.argmin(values))
    elif lowest < len(values) - 1 and _has_risen(held):
        reach = max(2, held.width // 2)
        near = np.arange(max(0, lowest - reach), min(len(values) - 1, lowest + reach + 1))
        turned = int(near[values[near].argmin()])  # the smoothed curve turns a little aside
    else:
        return None
    place = min(int(np.searchsorted(facts.steps, steps[lowest])), len(facts.smooth) - 1)
    if facts.ended > facts.smooth[place] - _FELL_ON * abs(facts.smooth[place]):
        return None
    onset = float(steps[turned + 1])
    return replace(_course(held), fate=Fate.OVERFIT, onset=onset, moved_first="held_out_loss")


def _has_risen(held: _Facts) -> bool:
    """Tell whether a held-out loss is higher at its end than at its lowest, by more than noise."""
    after = held.values[held.lowest :]
    is_steady = len(after) >= FEWEST and bool((np.diff(after) > 0).all())
    rise = (after[-1] if is_steady else held.ended) - held.level
    doubt = 2 * held.wobble
    if len(after) >= _SEEN:  # a rise that goes on is no noise, however steep the fall before it
        doubt = min(doubt, 2 * _strays(after[::-1]) * (1 + _FEW / len(after)))
    if rise < _SEEN_RISE * held.learned:
        return False
    is_clear = rise >= max(_WORSE * abs(held.level), doubt)
    return is_clear or _has_turned(held.values, held.lowest)


def _has_turned(values: np.ndarray, lowest: int) -> bool:
    size = len(values) // 3
    low, late = values[max(0, lowest - size // 2) :][:size], values[-size:]
    if size < FEWEST or len(low) < size:
        return False
    doubt = _NOISE * math.hypot(low.std(ddof=1), late.std(ddof=1)) / size**0.5
    return bool(late.mean() - low.mean() > max(_WORSE * abs(low.mean()), doubt))


def _onset(facts: _Facts) -> int:
    rise = facts.ended - facts.level
    share = 0.1 * min(rise, facts.learned) if facts.learned > 0 else 0.1 * rise
    limit = facts.level + min(max(facts.wobble, share), 0.5 * rise)
    calm = np.flatnonzero(facts.smooth <= limit)
    start = int(calm[-1]) if len(calm) else 0
    width = np.flatnonzero(facts.values[start:] > limit)
    return start + int(width[0]) if len(width) else start


def _nan_onset(values: np.ndarray) -> int:
    first = int(np.argmax(~np.isfinite(values)))
    before = values[:first]
    if len(before) < FEWEST:
        return first
    facts = _facts(np.arange(first, dtype=np.float64), before)
    limit = facts.level + max(2 * _NOISE * facts.noise, 0.1 * facts.learned)
    # Of a run that rose from its first record on, the noise is the rise.
    limit = min(limit, before[0] + 0.5 * abs(before[0]))
    above = np.flatnonzero(before[facts.lowest :] > limit)
    return facts.lowest + int(above[0]) if len(above) else first


def _failed(told: Course, steps: np.ndarray, norm: np.ndarray | None, onset: int) -> Course:
    told = replace(told, onset=float(steps[onset]), moved_first="loss")
    if norm is None:
        return told
    before = norm[: onset + 1]
    if not np.isfinite(before).any():
        return replace(told, moved_first="grad_norm") if np.isnan(before).any() else told
    usual = norm[max(0, onset // 5) : onset]
    usual = usual[np.isfinite(usual)]
    if len(usual) < FEWEST:
        return told
    middle = np.median(usual)
    limit = max(_JUMP * middle, np.quantile(usual, 0.9) + middle)
    moved = ~(norm <= limit)
    if not moved[onset]:
        return told
    begins = onset
    while begins > 0 and moved[begins - 1]:
        begins -= 1
    first = "grad_norm" if begins < onset else "loss"
    return replace(told, moved_first=first, lead=float(steps[onset] - steps[begins]))
