"""What one spectrum costs, stage by stage, against PyDMD on the same snapshots.

python -m lab.bench.spectra --width 768 --states 2048
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch

from rksp.ground.errors import InputError
from rksp.spectra.dmd import (
    VARIANCE_FLOOR,
    Subspace,
    blas_threads,
    distinct_states,
    fit,
    principal_subspace,
)
from rksp.spectra.operators import eigen_system

MAX_SECONDS = 1.0  # of one core, at width 768 and 2048 states
MIN_SPEEDUP = 3.0  # over PyDMD with kappa(V) and residuals computed from its result
ROUNDS = 3


def compare_with_pydmd(width: int = 768, states: int = 2048, seed: int = 0) -> dict[str, object]:
    """Time `rksp.spectra.dmd.fit` and PyDMD's exact DMD at full rank on one snapshot pair.

    The time is the process-CPU seconds of one thread, the least of alternating rounds, because
    neighbors on a shared machine can only add to it. PyDMD gets the centered pair in float64 and
    runs `DMD(svd_rank=-1, exact=True).fit(X, Y)`. It returns eigenvalues and modes. Our fit also
    returns the condition of the eigenvectors and the left residuals. A few lines of numpy compute
    these from PyDMD's result, and their time is counted apart.

    Args:
        width: Width of the residual stream.
        states: Number of snapshot pairs; at least 1.5 times the width, so that the fit has full
            rank.
        seed: Seed of the synthetic block.

    Returns:
        `seconds` and `pydmd_seconds` of the whole fits; `pydmd_seconds_same_outputs`, with the
        diagnostics; `speedup` and `speedup_same_outputs`, the ratios; `stages` and
        `pydmd_stages`, seconds by name, run apart from the totals; `stage_shares` of ours;
        `eigenvalue_gap`, the largest distance to PyDMD's nearest eigenvalue;
        `within_budget` and `fast_enough` (for the same outputs), None at other sizes than the one
        they are set for; and the arguments.

    Raises:
        InputError: PyDMD is missing, or the states are too few.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its own and its dependencies' deprecations
            from pydmd import DMD
            from pydmd.utils import compute_svd
    except ImportError as error:
        raise InputError(
            "PyDMD is not installed, so there is nothing to compare with; "
            'install it with pip install "rksp[peers]".'
        ) from error
    if states - 1 < 1.5 * width:
        raise InputError(
            f"{states} states are too few for a full fit at width {width}; "
            f"give at least {int(1.5 * width) + 2}."
        )
    x, y = _block(width, states, seed)
    inputs, outputs = (_centered_columns(t) for t in (x, y))

    def theirs() -> np.ndarray:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return DMD(svd_rank=-1, exact=True).fit(inputs, outputs).eigs

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with blas_threads(1):
            own, peer = [], []
            for _ in range(ROUNDS):  # alternating, so that a busy machine slows both alike
                spectrum, seconds = _timed(lambda: fit(x, y))
                own.append(seconds)
                values, seconds = _timed(theirs)
                peer.append(seconds)
            stages = _own_stages(x, y)
            peer_stages = _peer_stages(inputs, outputs, compute_svd)
    finally:
        torch.set_num_threads(threads)
    diagnostics = peer_stages["condition of eigenvectors"] + peer_stages["left residuals"]
    total, peer_total = min(own), min(peer)
    is_reference = (width, states) == (768, 2048)
    return {
        "width": width,
        "states": states,
        "seed": seed,
        "seconds": total,
        "pydmd_seconds": peer_total,
        "pydmd_seconds_same_outputs": peer_total + diagnostics,
        "speedup": peer_total / total,
        "speedup_same_outputs": (peer_total + diagnostics) / total,
        "stages": stages,
        "pydmd_stages": peer_stages,
        "stage_shares": {name: seconds / total for name, seconds in stages.items()},
        "eigenvalue_gap": _gap(spectrum.eigenvalues, values),
        "within_budget": total <= MAX_SECONDS if is_reference else None,
        "fast_enough": (peer_total + diagnostics) / total >= MIN_SPEEDUP if is_reference else None,
    }


def _block(width: int, states: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw float32 states before and after a block: identity, a linear and a saturating branch."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(states, width, generator=generator)
    mix = torch.randn(width, width, generator=generator) * (0.5 / width**0.5)
    return x, x + x @ mix + 0.3 * torch.tanh(2 * x)


def _centered_columns(states: torch.Tensor) -> np.ndarray:
    values = states.double().numpy()
    return np.ascontiguousarray((values - values.mean(axis=0)).T)


def _timed(call: Callable[[], object]) -> tuple[object, float]:
    start = time.process_time()
    result = call()
    return result, time.process_time() - start


def _own_stages(x: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
    """Time the parts of a fit, one after the other; the rest of the total is bookkeeping."""
    seconds: dict[str, float] = {}
    states, seconds["distinct states, float64, centering"] = _timed(lambda: distinct_states(x, y))
    subspace, seconds["covariance and principal directions"] = _timed(
        lambda: principal_subspace(states.x, floor=VARIANCE_FLOOR[states.dtype])
    )
    parts, seconds["operator and errors"] = _timed(lambda: _project(states.x, states.y, subspace))
    operator, covariance = parts
    ones = np.ones(len(operator))
    system, seconds["eigenvalues, left vectors, kappa(V)"] = _timed(lambda: eigen_system(operator))
    _, seconds["residuals"] = _timed(lambda: system.left_ratio(covariance, ones))
    return seconds


def _project(x: np.ndarray, y: np.ndarray, subspace: Subspace) -> tuple[np.ndarray, ...]:
    """Compute the products that `rksp.spectra.dmd` makes of the states."""
    inner = subspace.basis / np.sqrt(subspace.variances)
    white, outputs = x @ inner, y @ inner
    operator = outputs.T @ white / (len(x) - 1)
    outputs -= white @ operator.T
    return operator, outputs.T @ outputs / (len(x) - 1)


def _peer_stages(
    inputs: np.ndarray, outputs: np.ndarray, compute_svd: Callable[..., tuple]
) -> dict[str, float]:
    """Time the parts of PyDMD's fit, with its own SVD and numpy calls, and the diagnostics after.

    The total also includes the amplitudes of the modes and the checks of the input.
    """
    seconds: dict[str, float] = {}
    (u, s, v), seconds["SVD"] = _timed(lambda: compute_svd(inputs, svd_rank=-1))
    reduced, seconds["operator"] = _timed(lambda: u.T.conj() @ outputs @ v / s)
    (values, vectors), seconds["eigenvalues and vectors"] = _timed(lambda: np.linalg.eig(reduced))
    _, seconds["exact modes"] = _timed(lambda: outputs @ v / s @ vectors)
    _, seconds["condition of eigenvectors"] = _timed(lambda: np.linalg.cond(vectors))

    def residuals() -> np.ndarray:
        left = np.linalg.inv(vectors) @ u.T.conj()
        below = left @ inputs
        above = left @ outputs - values[:, None] * below
        return np.linalg.norm(above, axis=1) / np.linalg.norm(below, axis=1)

    _, seconds["left residuals"] = _timed(residuals)
    return seconds


def _gap(first: np.ndarray, second: np.ndarray) -> float:
    """Return the largest distance from an eigenvalue to the nearest of the other set, both ways."""
    gaps = np.abs(first[:, None] - second[None, :])
    return float(max(gaps.min(axis=0).max(), gaps.min(axis=1).max()))


def main() -> None:
    """Print both fits, stage by stage, in processor seconds of one thread."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--states", type=int, default=2048)
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = compare_with_pydmd(width=given.width, states=given.states)
    print(f"One spectrum of width {given.width} from {given.states} states, processor seconds:")
    for whose, total in (("stages", "seconds"), ("pydmd_stages", "pydmd_seconds")):
        print(f"  {'rksp' if whose == 'stages' else 'PyDMD':<38}{found[total]:>8.3f}")
        for stage, seconds in found[whose].items():
            print(f"    {stage:<36}{seconds:>8.3f}")
    print(
        f"  PyDMD's fit takes {found['speedup']:.2f} times ours; with the condition and the "
        f"residuals that\n  ours gives too, {found['speedup_same_outputs']:.2f} times. Largest "
        f"eigenvalue gap {found['eigenvalue_gap']:.1e}."
    )


if __name__ == "__main__":
    main()
