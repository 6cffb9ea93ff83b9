"""Compute a Kreiss constant that exists for every operator, by a search over resolvent norms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import blas, schur

RADII = (1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 4.0)
MARGIN = 1e-2


@dataclass(frozen=True, slots=True, kw_only=True)
class KreissConstant:
    """`K(A / scale)`, attained at `point`.

    Attributes:
        value: `sup (|z| - 1) ||(zI - A/scale)^-1||` over |z| > 1, from below; at least 1.
        scale: `max(1, rho(A)) * 1.01`. The Kreiss constant itself is infinite for rho > 1.
        point: The z with the largest value found.
        resolvents: Number of resolvent norms that were estimated.
    """

    value: float
    scale: float
    point: complex
    resolvents: int


def kreiss_constant(
    operator: np.ndarray,
    *,
    angles: int = 32,
    radii: Sequence[float] = RADII,
    steps: int = 8,
    polish: int = 60,
) -> KreissConstant:
    """Compute transient growth from pseudospectra (Mitchell 2019, arXiv 1907.06537, eq. 1.2).

    The method is one complex Schur form, then for each point z inverse power iteration on
    `(zI-T)*(zI-T)` with two triangular solves a step, warm-started along a ray, then Nelder-Mead
    from the best point. The result is a lower bound: every iterate is `||R v||` of a unit vector.

    Args:
        operator: `[n, n]`, real or complex, finite.
        angles: Number of rays; they cover the upper half plane for a real operator.
        radii: Moduli of z to try on each ray.
        steps: Power-iteration steps per point.
        polish: Most points that the local search may add; 0 keeps the grid's best.

    Returns:
        The constant.
    """
    triangle = np.asfortranarray(schur(operator, output="complex")[0])
    spectrum = np.diag(triangle).copy()
    scale = max(1.0, float(np.abs(spectrum).max(initial=0.0))) * (1 + MARGIN)
    search = _Resolvent(triangle / -scale, spectrum / -scale, steps)
    is_real = np.isrealobj(operator)
    span = np.pi if is_real else 2 * np.pi
    best, where = 1.0, complex("inf")
    for theta in np.linspace(0.0, span, angles, endpoint=is_real):
        search.restart()
        # Far points converge fast, and their vectors warm-start the near ones.
        for radius in sorted(radii, reverse=True):
            z = radius * np.exp(1j * theta)
            value = (radius - 1) * search.norm(z)
            if value > best:
                best, where = value, complex(z)
    if polish and np.isfinite(where):

        def negative(point: np.ndarray) -> float:
            excess = np.exp(min(point[0], 50.0))
            return -excess * search.norm((1 + excess) * np.exp(1j * point[1]))

        from scipy.optimize import minimize  # takes a quarter of a second and is rarely needed

        start = np.array([np.log(np.abs(where) - 1), np.angle(where)])
        found = minimize(
            negative,
            start,
            method="Nelder-Mead",
            options={"maxfev": polish, "initial_simplex": start + 0.2 * np.eye(3, 2, -1)},
        )
        if -found.fun > best:
            best = float(-found.fun)
            where = complex((1 + np.exp(found.x[0])) * np.exp(1j * found.x[1]))
    return KreissConstant(
        value=float(best), scale=scale, point=where, resolvents=search.evaluations
    )


class _Resolvent:
    """`||(zI - T)^-1||_2` for upper triangular T, from below; the last vector starts the next."""

    def __init__(self, negative: np.ndarray, negative_diagonal: np.ndarray, steps: int) -> None:
        self._matrix = np.asfortranarray(negative)
        self._diagonal = negative_diagonal
        self._steps = steps
        self.evaluations = 0
        self.restart()

    def restart(self) -> None:
        n = len(self._diagonal)
        self._vector = np.exp(1j * np.arange(n) ** 2) / np.sqrt(max(n, 1))

    def norm(self, z: complex) -> float:
        self.evaluations += 1
        np.fill_diagonal(self._matrix, self._diagonal + z)
        vector, best = self._vector, 0.0
        for _ in range(self._steps):
            image = blas.ztrsv(self._matrix, vector)
            size = float(np.linalg.norm(image))
            best = max(best, size)
            vector = blas.ztrsv(self._matrix, image, trans=2)
            vector /= np.linalg.norm(vector)
        self._vector = vector
        return best
