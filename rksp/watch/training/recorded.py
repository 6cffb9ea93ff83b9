"""The record of a watched run: one line in a file of runs, from which `--runs` learns later."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from torch import nn
from torch.optim import Optimizer

from rksp.ground.files import check_writable
from rksp.own_runs.outcome import Curves, Ended, OutcomePolicy
from rksp.own_runs.record import append_row, row_of, shape_of
from rksp.recipe import Recipe, fields_of
from rksp.recipe.optimizers.groups import highest_rate
from rksp.recipe.start import LEARNED

_FEWEST = 10  # rates after the peak that show a schedule, and
_FITS = 0.02  # of the peak, how closely


class Recorded:
    """Notes the losses and the rates of a run, and appends it to a file when it ends.

    Args:
        path: The file of runs; created if absent.
        model: The model that is trained.
        optimizer: Its optimizer, whose groups hold the rate.
        recipe: Fields of the recipe that the optimizer does not show: batch, warm-up, schedule, and
            `max_steps`, without which the run counts as finished where it ends.

    Raises:
        InputError: The file cannot be written, or a field is wrong.
    """

    def __init__(
        self,
        path: str | Path,
        model: nn.Module,
        optimizer: Optimizer | None,
        recipe: Mapping[str, object] | None = None,
    ) -> None:
        self._path, self._model, self._optimizer = Path(path), model, optimizer
        self._fields = dict(recipe or {})
        check_writable(self._path, "record")  # before the run, not after it
        Recipe.parse(self._fields)
        self._losses: list[float] = []
        self._rates: list[float] = []
        self._is_written = False

    def note(self, loss: float | None) -> None:
        """Note the loss of a step, and its rate."""
        if loss is not None:
            self._losses.append(float(loss))
        own = () if self._optimizer is None else (self._optimizer,)
        self._rates.append(highest_rate(*own))

    def write(self, *, is_whole: bool = True) -> None:
        """Append the run, once; a run without a loss or a rate says nothing and is left out.

        Args:
            is_whole: Whether the run came to its own end, as far as anyone knows.
        """
        if self._is_written or not self._losses or not any(self._rates):
            return
        self._is_written = True
        policy, steps = OutcomePolicy(), len(self._losses)
        loss = np.array(self._losses, dtype=np.float32)
        said = self._fields.get("max_steps")
        planned = max(said, steps) if isinstance(said, int) else steps
        curves = Curves(loss=loss, grad_norm=np.zeros(1, np.float32), planned_steps=planned)
        has_diverged = policy.has_diverged(curves)
        fields = schedule_seen(self._rates)
        shown = {} if self._optimizer is None else fields_of(self._optimizer)
        known = shown | fields | self._fields | {"max_steps": planned}
        recipe = Recipe.parse(known)
        shape = shape_of(getattr(self._model, "config", None), None, recipe)
        if shape is not None and loss[0] < math.log(shape.vocabulary) - LEARNED:
            shape = replace(shape, is_of_tuning=True)
        ended: Ended = "finished" if is_whole and steps == planned else "unfinished"
        append_row(
            self._path,
            row_of(
                type(self._model).__name__,
                recipe,
                shape,
                final_loss=policy.final_loss(curves) if not has_diverged else math.nan,
                state="diverged" if has_diverged else ended,
                seed=None,
                seen=known.keys(),
            ),
        )


def schedule_seen(rates: Sequence[float]) -> dict[str, object]:
    """Return what the rates of all steps show: the peak, the warm-up, and the schedule if it fits.

    Args:
        rates: Of every step, in order.
    """
    x = np.array(rates)
    peak = float(x.max())
    top = int(np.argmax(x >= peak * (1 - 1e-6)))
    found: dict[str, object] = {"learning_rate": peak, "warmup_steps": top + 1 if top else 0}
    rest = x[top:] / peak
    if len(rest) < _FEWEST:
        return found
    way, end = np.linspace(0, 1, len(rest)), float(rest[-1])
    shapes = {
        "constant": np.ones_like(way),
        "linear": 1 - way * (1 - end),
        "cosine": end + (1 - end) * (1 + np.cos(np.pi * way)) / 2,
    }
    misfits = {name: float(np.abs(shape - rest).max()) for name, shape in shapes.items()}
    best = min(misfits, key=misfits.__getitem__)
    if misfits[best] > _FITS:
        return found
    ratio = {} if best == "constant" else {"min_lr_ratio": round(end, 4)}
    return found | {"schedule": best} | ratio
