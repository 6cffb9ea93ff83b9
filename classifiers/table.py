"""The training table: one row a run, with what the classifier sees and what became of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of labelled runs, all arrays of the same length.

    Attributes:
        x: Features in the order of `rksp.features.FEATURES`, `[rows, features]`, NaN if missing.
        failed, diverged: Labels of the outcome policy, `[rows]` bool.
        rate: Learning rate of the run, `[rows]`.
        ladder, family, task: Names; rows of one ladder share everything but the rate.
        width, depth, parameters: Size of the model.
        edge_low, edge_high: The two rates around the ladder's edge; NaN where there is none.
        one_step_change: Change of the loss of one step at the run's rate, in nats (a baseline).
        learned: The best run of the row's ladder ended more than the policy's margin below the
            loss of the label frequencies, or no run of it ended at all.
    """

    x: np.ndarray
    failed: np.ndarray
    diverged: np.ndarray
    rate: np.ndarray
    ladder: np.ndarray
    family: np.ndarray
    task: np.ndarray
    width: np.ndarray
    depth: np.ndarray
    parameters: np.ndarray
    edge_low: np.ndarray
    edge_high: np.ndarray
    one_step_change: np.ndarray
    learned: np.ndarray

    def __len__(self) -> int:
        return len(self.rate)

    def take(self, rows: np.ndarray) -> Table:
        """The rows of a mask or an index array."""
        return Table(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    @property
    def log_edge(self) -> np.ndarray:
        """log10 of the geometric middle of the edge, `[rows]`; NaN where there is none."""
        return (np.log10(self.edge_low) + np.log10(self.edge_high)) / 2

    @property
    def weights(self) -> np.ndarray:
        """One over the number of runs of a row's ladder, so that ladders count alike."""
        _, inverse, counts = np.unique(self.ladder, return_inverse=True, return_counts=True)
        return 1.0 / counts[inverse]

    @property
    def digest(self) -> str:
        """SHA-256 of the contents, the identity of what a classifier was fitted on."""
        sha = hashlib.sha256()
        for f in fields(self):
            values = getattr(self, f.name)
            sha.update(f.name.encode())
            sha.update("\0".join(values).encode() if values.dtype.kind == "U" else values.tobytes())
        return sha.hexdigest()
