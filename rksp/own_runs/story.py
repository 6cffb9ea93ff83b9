"""What became of a run that was read from files: its curves by their names, and its course."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rksp.ground.errors import InputError
from rksp.own_runs.course import FEWEST, Course, course
from rksp.own_runs.metrics import (
    held_out_loss,
    is_gain,
    is_metric,
    is_norm,
    is_of_language,
    is_opposed,
    is_perplexity,
    is_rate,
    reward_among,
    training_loss,
)
from rksp.own_runs.run import Curve, RawRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """One run's curves and what became of it.

    Attributes:
        raw: As it was read.
        metric: The curve that was judged.
        curve: It.
        held_out, held_out_name: The curve on held-out data, and its name; None without one.
        grad_norm, rate: The curves of the gradient's norm and of the learning rate, if logged.
        course: What became of the run.
    """

    raw: RawRun
    metric: str
    curve: Curve
    held_out: Curve | None
    held_out_name: str | None
    grad_norm: Curve | None
    rate: Curve | None
    course: Course


def course_of(raw: RawRun, metric: str | None = None) -> Story:
    """Judge the curve of one run.

    Args:
        raw: A run that was logged over steps.
        metric: The curve to judge; by default the reward of a run that learns by trial, else the
            training loss, else the loss on held-out data.

    Raises:
        InputError: It has no such curve.
    """
    # Of names alike the longest; what has a value or two is a summary beside it.
    logged = sorted(raw.curves, key=lambda name: -len(raw.curves[name].values))
    logged = [n for n in logged if len(raw.curves[n].values) >= FEWEST] or logged
    # A term that is switched off stays at zero, and is not what was trained; a reward may.
    moving = [name for name in logged if raw.curves[name].values.any()]
    names = moving if any(map(is_metric, moving)) else logged
    reward = (reward_among(names) or reward_among(logged)) if metric is None else None
    held = held_out_loss(names)
    lost = next(
        (n for n, c in raw.curves.items() if is_norm(n) and c.values[-1] != c.values[-1]), None
    )
    name = metric or reward or training_loss(names) or held or lost
    if name is None or name not in raw.curves:
        shown = ", ".join(names[:8]) or "none"
        wanted = f"no curve {metric!r}" if metric else "no curve of a loss or a reward"
        raise InputError(f"{raw.file} has {wanted} among its columns ({shown}).")
    curve = raw.curves[name]
    held_out = raw.curves[held] if held not in (None, name) and reward is None else None
    norm = next((c for n, c in raw.curves.items() if is_norm(n)), None)
    rate = next((c for n, c in raw.curves.items() if is_rate(n)), None)
    is_exponential = is_perplexity(name) and (curve.values > 0).all()
    found = course(
        curve.steps,
        np.log(curve.values) if is_exponential else curve.values,
        grad_norm=None if norm is None else _at(curve.steps, norm),
        held_out=None if held_out is None else (held_out.steps, held_out.values),
        is_gain=reward is not None or (metric is not None and is_gain(metric)),
        is_opposed=reward is None and is_opposed(names),
        is_language=reward is None and any(map(is_of_language, raw.curves)),
    )
    if is_exponential:
        levels = ("first", "last", "best", "level", "ended")
        exponentials: dict[str, Any] = {n: math.exp(getattr(found, n)) for n in levels}
        found = replace(found, **exponentials)
    return Story(
        raw=raw,
        metric=name,
        curve=curve,
        held_out=held_out,
        held_out_name=held if held_out is not None else None,
        grad_norm=norm,
        rate=rate,
        course=found,
    )


def _at(steps: np.ndarray, curve: Curve) -> np.ndarray:
    """Return a curve's values at these steps, NaN where it has none, `[steps]`."""
    known = dict(zip(curve.steps.tolist(), curve.values.tolist(), strict=True))
    return np.array([known.get(step, np.nan) for step in steps.tolist()])


_CHECKPOINT = re.compile(
    r"^(?:checkpoint|ckpt|global_?step|iter|step|epoch=\d+-step)[-_=]?0*(\d+)(?:-hf)?"
    r"(?:\.(?:pt|pth|ckpt|bin|safetensors))?$",
    re.I,
)


def checkpoints_of(run: Path) -> list[tuple[int, Path]]:
    """Return the checkpoints beside a log, or in a folder beside it, by their steps."""
    top = run.parent
    top = top.parent if _CHECKPOINT.match(top.name) else top
    beside: Sequence[Path] = [top / "checkpoints", top / "ckpt", top / "checkpoint", top]
    found = {}
    for folder in beside:
        if folder.is_dir():
            for one in folder.iterdir():
                if match := _CHECKPOINT.match(one.name):
                    found[int(match[1])] = one
    return sorted(found.items())
