"""Systems with known spectra, and slow textbook formulas to compare with."""

from __future__ import annotations

import warnings

import numpy as np
import scipy.linalg
import scipy.optimize
import torch
from torch import Tensor


def real_blocks(eigenvalues: list[complex]) -> np.ndarray:
    """Return a block-diagonal real operator; each non-real entry adds its conjugate."""
    blocks = []
    for value in eigenvalues:
        a, b = complex(value).real, complex(value).imag
        blocks.append(np.array([[a, -b], [b, a]]) if b else np.array([[a]]))
    return scipy.linalg.block_diag(*blocks)


def spectrum_of(eigenvalues: list[complex]) -> np.ndarray:
    """Return all eigenvalues of `real_blocks`, with the conjugates."""
    both = [v for e in eigenvalues for v in ({complex(e), complex(e).conjugate()})]
    return np.array(both)


def rotation(n: int, seed: int) -> np.ndarray:
    """Return an orthogonal `[n, n]` matrix."""
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((n, n)))[0]


def similar(core: np.ndarray, *, condition: float, seed: int) -> np.ndarray:
    """Return `T core T^-1` with kappa(T) = condition; a normal core stays normal at condition 1."""
    n = len(core)
    stretch = np.geomspace(1.0, condition, n)
    transform = rotation(n, seed) * stretch @ rotation(n, seed + 1)
    return transform @ core @ np.linalg.inv(transform)


def jordan(eigenvalue: float, size: int) -> np.ndarray:
    return eigenvalue * np.eye(size) + np.diag(np.ones(size - 1), 1)


def states_under(
    operator: np.ndarray,
    states: int,
    *,
    seed: int,
    noise: float = 0.0,
    rank: int | None = None,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Return pairs with `y = A x + b + noise`, `[states, width]` float64, neither centered.

    With `rank`, the inputs span only the subspace of the first `rank` coordinates.
    """
    rng = np.random.default_rng(seed)
    width = len(operator)
    x = rng.standard_normal((states, width)) * scale
    if rank is not None:
        x[:, rank:] = 0.0
    y = x @ operator.T + noise * rng.standard_normal((states, width))
    return torch.from_numpy(x + 0.7), torch.from_numpy(y - 0.2)


def noisy_pair(states: int, width: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return a block-like pair: identity plus a random linear branch, a nonlinear one and noise."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((states, width)) * np.geomspace(1.0, 0.2, width)
    mix = 0.4 * rng.standard_normal((width, width)) / np.sqrt(width)
    y = x + x @ mix + 0.3 * np.tanh(2 * x) + 0.05 * rng.standard_normal((states, width))
    return torch.from_numpy(x), torch.from_numpy(y)


def centered(x: Tensor) -> np.ndarray:
    values = x.to(torch.float64).numpy()
    return values - values.mean(axis=0)


def whitened_eigenvalues(x: Tensor, y: Tensor, epsilon: float) -> np.ndarray:
    """Compute the published definition literally: W = (C + eps I)^-1/2, A = Yw pinv(Xw)."""
    xc, yc = centered(x).T, centered(y).T
    width, states = xc.shape
    w, u = np.linalg.eigh(xc @ xc.T / (states - 1) + epsilon * np.eye(width))
    white = u / np.sqrt(w) @ u.T
    return np.linalg.eigvals(white @ yc @ np.linalg.pinv(white @ xc, rcond=1e-10))


def pydmd_eigenvalues(x: Tensor, y: Tensor) -> np.ndarray:
    """Return the eigenvalues of PyDMD's exact DMD on the centered pair, full rank."""
    from pydmd import DMD

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyDMD warns about the condition of some inputs
        return DMD(svd_rank=-1, exact=True).fit(centered(x).T, centered(y).T).eigs


def distance(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest gap of the best one-to-one matching; infinite if the counts differ."""
    if len(found) != len(expected):
        return float("inf")
    gaps = np.abs(np.asarray(found)[:, None] - np.asarray(expected)[None, :])
    rows, columns = scipy.optimize.linear_sum_assignment(gaps)
    return float(gaps[rows, columns].max(initial=0.0))


def same_bits(first: object, second: object) -> bool:
    """Return whether two spectra agree in every field, to the last bit."""
    for name in first.__dataclass_fields__:
        a, b = getattr(first, name), getattr(second, name)
        equal = np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b
        if not equal:
            return False
    return True
