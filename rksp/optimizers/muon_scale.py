"""The two scales in which Muon's rates are given, and the ratio between them."""

from __future__ import annotations

import math


def matched_rate(width: float) -> float:
    """Return the rate of `match_rms_adamw` that steps as far as the rate 1 of `original` does.

    A square matrix of this width has √max(1, rows/columns) = 1 in the scale of Jordan et al.
    (2024), and 0.2 √max(rows, columns) in that of Liu et al. (2025, 2502.16982, equation 4).
    """
    return 1 / (0.2 * math.sqrt(width))
