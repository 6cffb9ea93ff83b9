"""A run as its tracker wrote it down, and which of its metrics is the loss."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rksp.ground.budgets import LOGGED
from rksp.ground.text import words
from rksp.recipe_files.columns import without_unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Logged values of one metric: `steps` ascending, `values` float64, both `[points]`."""

    steps: np.ndarray
    values: np.ndarray

    @classmethod
    def of(cls, points: Mapping[int, float]) -> Curve:
        """Return the curve of values by step."""
        steps = sorted(points)
        return cls(
            steps=np.array(steps, dtype=np.int64),
            values=np.array([points[step] for step in steps], dtype=np.float64),
        )


class Points:
    """What was logged, by metric and step, while a reader collects it."""

    def __init__(self) -> None:
        self._found: dict[str, dict[int, float]] = {}
        self._count = 0

    def add(self, step: object, values: Mapping[str, object]) -> None:
        """Keep the numbers among the values of one step; nothing where that is no step."""
        at = step_of(step)
        for name, value in values.items():
            known = number_of(value)
            if at is not None and known is not None:
                self._found.setdefault(name, {})[at] = known
                self._count += 1
        LOGGED.check(self._count, "A run")

    def curves(self) -> dict[str, Curve]:
        """Return the curve of each metric."""
        return {name: Curve.of(points) for name, points in self._found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRun:
    """One run.

    Attributes:
        name: Its tracker's name of it.
        file: Where it was read.
        said: What was set, by the names of its tracker.
        finals: The last value of each metric.
        curves: Of each metric that was logged over steps.
        state: How it ended, in its tracker's word; empty if that is not known.
        outcome: Its label where rksp itself has made it.
    """

    name: str
    file: Path
    said: Mapping[str, object]
    finals: Mapping[str, object] = field(default_factory=dict)
    curves: Mapping[str, Curve] = field(default_factory=dict)
    state: str = ""
    outcome: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReader:
    """One format of past runs.

    Attributes:
        matches: Tells whether a file is of this format, from its name and beginning.
        read: Yields its runs.
    """

    matches: Callable[[Path], bool]
    read: Callable[[Path], Iterator[RawRun]]


def step_of(value: object) -> int | None:
    """Return the number of a step; None for what is none."""
    found = number_of(value)
    return int(found) if found is not None and 0 <= found < 2**53 else None


def number_of(value: Any) -> float | None:
    """Return a number; None for all else, and for text but that of what is not finite (`nan`)."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except OverflowError:
        return math.inf
    except ValueError:
        return None
    return None if isinstance(value, str) and math.isfinite(found) else found


# The first that a run has counts. Hugging Face's `train_loss` is a mean over the whole run, and
# stands beside `train/loss`, the last one.
_TRAINING = words(
    "final_loss final_train_loss train/loss loss lm_loss train_loss_step training_loss train_loss "
    "train_loss_epoch loss/train metrics/loss"
)
_HELD_OUT = words(
    "val/loss val_loss eval/loss eval_loss validation/loss validation_loss valid_loss valid/loss "
    "dev_loss test_loss loss/val val_loss_epoch"
)
LOSSES = (*_TRAINING, *_HELD_OUT)
_RATES = words("learning_rate train/learning_rate lr train/lr optimizer/lr lr_scheduler/lr")
_RANK = {name: place for place, name in enumerate(LOSSES)}
_PREFIXES = ("metrics.", "summary.", "metric.")
_EDGE = r"[/_.\s()\[\]-]"  # of a word in a name
_PER_BYTE = re.compile(rf"(^|{_EDGE})(bpb|bpc|bits[_ ]per[_ ](byte|char\w*))({_EDGE}|$)", re.I)
_BITS = re.compile(rf"(^|{_EDGE})bits?({_EDGE}|$)", re.I)
_PERPLEXITY = re.compile(rf"(^|{_EDGE})(ppl|perplexity)({_EDGE}|$)", re.I)

_GAIN = re.compile(
    rf"(^|{_EDGE}|_)(acc|accuracy|f1|bleu|rouge\w*|auc|auroc|reward\w*|mfu|throughput)({_EDGE}|$)",
    re.I,
)


def is_gain(name: str) -> bool:
    """Tell by its name whether more of a metric is better, so that it is no loss."""
    return _GAIN.search(name) is not None


def _plain(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return without_unit(name).lower().replace(" ", "_").replace("-", "_")


def is_loss(name: str) -> bool:
    """Tell whether a metric is a loss by its name."""
    return _plain(name) in _RANK


def is_rate(name: str) -> bool:
    """Tell whether a metric is the learning rate."""
    return _plain(name) in _RATES


def loss_among(names: Iterable[str]) -> str | None:
    """Return the name of the loss; training comes before held-out data, as in rksp's own labels."""
    ranked = [(_RANK[_plain(name)], name) for name in names if _plain(name) in _RANK]
    return min(ranked)[1] if ranked else None


def in_nats(name: str, value: float) -> float:
    """Return a value of a metric in nats; those per byte are taken as they are.

    Bits are 0.69 nats, and a perplexity is the exponential of the loss.
    """
    if _PERPLEXITY.search(name):
        return math.log(value) if value > 0 else math.nan
    return value * math.log(2) if _BITS.search(name) or _PER_BYTE.search(name) else value
