"""Time the leading singular triplets in Triton beside plain torch and torch's own low-rank SVD.

On a GPU the table shows from which size on the Triton program is faster, and
`rksp.kernels.power_iteration` may then choose by size. Without one it compares plain torch with the
library alone.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import typer
from torch.utils.benchmark import Timer

from rksp.kernels.power_iteration import top_singular_reference, top_singular_triton

# Weights of a group, and their width.
_ON_GPU, _ON_CPU = ((64, 512), (16, 2048), (8, 4096)), ((8, 256), (2, 1024))


def timed(count: int, width: int, device: str, seconds: float = 1.0) -> dict[str, float]:
    """Return the median milliseconds of each implementation, for two warm passes.

    Args:
        count: Weights, in bfloat16 on a GPU and float32 on a CPU.
        width: Rows and columns of each.
        device: `cuda` or `cpu`.
        seconds: For which each implementation is called, at least.
    """
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    weights = [torch.randn(width, width).to(device, dtype) for _ in range(count)]
    state = top_singular_reference(weights, iterations=1).state
    # One subspace iteration of svd_lowrank reads the weight four times, like two of these.
    calls: dict[str, Callable[[], object]] = {
        "library": lambda: [torch.svd_lowrank(w.float(), q=4, niter=1) for w in weights],
        "reference": lambda: top_singular_reference(weights, state, iterations=2),
    }
    if device == "cuda":  # in the interpreter times mean nothing
        calls["triton"] = lambda: top_singular_triton(weights, state, iterations=2)
    found = {}
    with torch.no_grad():
        for name, call in calls.items():
            timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
            found[name] = 1e3 * timer.blocked_autorange(min_run_time=seconds).median
    return found


def main() -> None:
    """Print a table: milliseconds by size and implementation."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = torch.cuda.get_device_name() if device == "cuda" else "no GPU"
    typer.echo(f"{name}, torch {torch.__version__}\n")
    for place, (count, width) in enumerate(_ON_GPU if device == "cuda" else _ON_CPU):
        found = timed(count, width, device)
        if not place:
            typer.echo(f"| weights | {' | '.join(f'{name}, ms' for name in found)} |")
            typer.echo("|---" * (len(found) + 1) + "|")
        times = " | ".join(f"{time:.3g}" for time in found.values())
        typer.echo(f"| {count} × {width}² | {times} |")


if __name__ == "__main__":
    typer.run(main)
