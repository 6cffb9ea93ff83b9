"""How well the edge and the best rate are read between the rates of a ladder: Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from lab.fit.edge_ladder import LAB, EdgeLadder
from rksp.own_runs.observed import Reading, crossing, lowest

_KEPT = (2, 3, 4, 6)  # every so many rates are kept
_FEWEST = 6  # rates of a ladder that can be thinned
_SURE = 1e-9  # nats by which seeds differ, for a reading that does not doubt the losses
_Ladder = tuple[np.ndarray, np.ndarray]  # log10 of the rates, nats above the best
_Read = tuple[float, float, float]  # where the reading is, the middle of the cell, its step


def thinned_markdown(ladders: Sequence[EdgeLadder]) -> str:
    """Return the table of errors of readings of thinned ladders, beside those of whole ones.

    Args:
        ladders: Of the lab and of public sources.
    """
    lines = [
        "Ladders of which every second to sixth rate was kept. Errors are in steps of what is "
        "left, beside the reading of the whole ladder: root mean square, and median.",
        "",
        "| read | from | readings | between the rates | middle of the step |",
        "|---|---|---|---|---|",
    ]
    readers = {"best rate": _read_best, "edge where the loss rises through the margin": _read_edge}
    for title, reader in readers.items():
        for kind in ("public", "lab"):
            errors = np.array([e for x in ladders if _is(kind, x) for e in _errors(x, reader)])
            if len(errors):
                rms, median = np.sqrt((errors**2).mean(axis=0)), np.median(np.abs(errors), axis=0)
                cells = [f"{a:.2f}, {b:.2f}" for a, b in zip(rms, median, strict=True)]
                lines.append(f"| {title} | {kind} | {len(errors)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _is(kind: str, ladder: EdgeLadder) -> bool:
    return ladder.best is not None and (ladder.source == LAB) == (kind == "lab")


def _errors(
    ladder: EdgeLadder, reader: Callable[[_Ladder], _Read | None]
) -> Iterator[tuple[float, float]]:
    """Yield by how many steps a thinned ladder's reading, and its middle, are off."""
    order = np.argsort(ladder.rates)
    rates, excess = ladder.rates[order], ladder.excess[order].astype(float)
    if len(rates) < _FEWEST or (np.diff(rates) < 1e-6).any():
        return
    whole = reader((rates, excess))
    if whole is None:
        return
    for kept in _KEPT:
        for first in range(kept):
            part = excess[first::kept]
            found = reader((rates[first::kept], part - part.min()))
            if found is not None and abs(found[1] - whole[0]) < 1.5 * found[2]:
                yield (found[0] - whole[0]) / found[2], (found[1] - whole[0]) / found[2]


def _read_best(ladder: _Ladder) -> _Read | None:
    rates, excess = ladder
    best = int(np.argmin(excess))
    if not 0 < best < len(rates) - 1:
        return None
    read = lowest(rates, excess, best, _SURE)
    return read.at, float(rates[best]), float(rates[best + 1] - rates[best - 1]) / 2


def _read_edge(ladder: _Ladder) -> _Read | None:
    rates, excess = ladder
    read: Reading | None = crossing(rates, excess, _SURE)
    if read is None:
        return None
    at = int(np.searchsorted(rates, read.at))
    return read.at, float(rates[at - 1] + rates[at]) / 2, float(rates[at] - rates[at - 1])
