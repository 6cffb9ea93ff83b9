"""Time the kernels against their references and the best library call on this machine.

On a GPU the table shows from which size on a kernel is faster; `rksp.kernels.dispatch` may then
choose by size. Without a GPU it compares references with library calls.
"""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import typer
from torch import Tensor

from rksp.ground.errors import InputError, nearest
from rksp.kernels.newton_schulz import symmetric_product_reference, symmetric_product_triton
from rksp.kernels.power_iteration import top_singular_reference, top_singular_triton
from rksp.kernels.router_statistics import router_statistics_reference, router_statistics_triton
from rksp.kernels.row_cosine import row_cosine_reference, row_cosine_triton

OPERATIONS = ("symmetric_product", "top_singular", "row_cosine", "router_statistics")
NO_GPU = "no GPU on this machine: references against library calls on the CPU only"
Run = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One operation at one size.

    Attributes:
        op: One of `OPERATIONS`.
        shape: Sizes, as printed.
        dtype: Data type of the inputs.
        flops: Floating-point operations that the result needs; None if the operation is limited
            by memory bandwidth.
        bytes: Bytes that must be read and written once; None if arithmetic is the limit.
        runs: Call of each implementation. `library` computes the same result in plain torch.
    """

    op: str
    shape: str
    dtype: torch.dtype
    flops: float | None
    bytes: float | None
    runs: dict[str, Run]


def run(
    *, device: str | None = None, ops: Sequence[str] | None = None, repeats: int = 20
) -> list[dict[str, object]]:
    """Run the benchmark.

    Args:
        device: `"cuda"` or `"cpu"`; None takes the GPU if there is one.
        ops: Operations to time, some of `OPERATIONS`; None times all of them.
        repeats: Timed calls per implementation, after warming up.

    Returns:
        A row per operation, size and implementation, JSON-ready: `op, shape, dtype,
        implementation, ms_p20, ms_p50, ms_p80, gb_per_s` or `tflop_per_s` (the other is None),
        `ceiling` (measured here, in the same unit), `share_of_ceiling`, `ratio_to_library` (above
        one means faster than the best library call), `device, torch, triton, note`.

    Raises:
        InputError: An operation or device is unknown, or there are fewer than three repeats.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise InputError(f"bench kernels runs on cpu or an available cuda device, got {device}.")
    for op in ops or ():
        if op not in OPERATIONS:
            raise InputError(f"no kernel is called {op!r}{nearest(op, OPERATIONS)}.")
    if repeats < 3:
        raise InputError(f"percentiles need at least 3 repeats, got {repeats}. Use 20.")
    ceilings = _Ceilings(device, repeats)
    facts = _facts(device)
    rows = []
    with torch.no_grad():
        for case in _cases(device):
            if ops is not None and case.op not in ops:
                continue
            rows.extend(_rows(case, ceilings, device, repeats, facts))
    return rows


def to_markdown(rows: Sequence[dict[str, object]]) -> str:
    """Format the rows as a Markdown table under a line with device, versions and note."""
    if not rows:
        return "No measurement."
    first = rows[0]
    head = f"{first['device']}, torch {first['torch']}, triton {first['triton']}. {first['note']}"
    lines = [
        head.strip(),
        "",
        "| operation | size | dtype | implementation | p20 / p50 / p80 ms | rate | of ceiling "
        "| × best library |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        rate = (
            f"{row['tflop_per_s']:.3g} TFLOP/s"
            if row["tflop_per_s"] is not None
            else f"{row['gb_per_s']:.3g} GB/s"
        )
        times = " / ".join(f"{row[key]:.3g}" for key in ("ms_p20", "ms_p50", "ms_p80"))
        lines.append(
            f"| {row['op']} | {row['shape']} | {row['dtype']} | {row['implementation']} | {times} "
            f"| {rate} | {row['share_of_ceiling']:.0%} | {row['ratio_to_library']:.2f} |"
        )
    return "\n".join(lines)


def _rows(case: Case, ceilings: _Ceilings, device: str, repeats: int, facts) -> list[dict]:
    times = {name: _times(call, device, repeats) for name, call in case.runs.items()}
    best = min(times[name][1] for name in times if name in ("library", "compiled"))
    if case.flops is not None:
        ceiling, unit, work = ceilings.tflops(case.dtype), 1e-9, case.flops
    else:
        ceiling, unit, work = ceilings.bandwidth(), 1e-6, case.bytes
    rows = []
    for name, (p20, p50, p80) in times.items():
        rate = work * unit / p50
        rows.append(
            {
                "op": case.op,
                "shape": case.shape,
                "dtype": str(case.dtype).removeprefix("torch."),
                "implementation": name,
                "ms_p20": p20,
                "ms_p50": p50,
                "ms_p80": p80,
                "gb_per_s": None if case.flops is not None else rate,
                "tflop_per_s": rate if case.flops is not None else None,
                "ceiling": ceiling,
                "share_of_ceiling": rate / ceiling,
                "ratio_to_library": best / p50,
                **facts,
            }
        )
    return rows


def _times(call: Run, device: str, repeats: int) -> tuple[float, float, float]:
    """Return the 20th, 50th and 80th percentile in milliseconds, with cold caches on a GPU."""
    for _ in range(3):
        call()
    if device == "cuda":
        # Larger than the L2 cache of any current GPU, so each call finds its inputs in memory.
        flush = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
        starts, stops = (
            [torch.cuda.Event(enable_timing=True) for _ in range(repeats)] for _ in range(2)
        )
        for start, stop in zip(starts, stops, strict=True):
            flush.zero_()
            start.record()
            call()
            stop.record()
        torch.cuda.synchronize()
        spent = [start.elapsed_time(stop) for start, stop in zip(starts, stops, strict=True)]
    else:
        spent = []
        for _ in range(repeats):
            begin = time.perf_counter()
            call()
            spent.append(1e3 * (time.perf_counter() - begin))
    quantiles = torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64)
    p20, p50, p80 = torch.tensor(spent, dtype=torch.float64).quantile(quantiles).tolist()
    return p20, p50, p80


class _Ceilings:
    """The fastest copy and matrix product that this machine reaches, measured on first use."""

    def __init__(self, device: str, repeats: int) -> None:
        self._device = device
        self._repeats = repeats
        self._known: dict[object, float] = {}

    def bandwidth(self) -> float:
        """Return the GB/s that a copy reads and writes."""
        if "copy" not in self._known:
            source = torch.ones((1 << 30 if self._device == "cuda" else 1 << 25) // 4)
            source = source.to(self._device)
            target = torch.empty_like(source)
            spent = _times(lambda: target.copy_(source), self._device, self._repeats)[1]
            self._known["copy"] = 2 * source.numel() * 4 * 1e-6 / spent
        return self._known["copy"]

    def tflops(self, dtype: torch.dtype) -> float:
        """Return the TFLOP/s of a square product of random matrices in `dtype`."""
        if dtype not in self._known:
            n = 8192 if self._device == "cuda" else 512
            a, b = (_noise((n, n), seed, self._device, dtype) for seed in (1, 2))
            spent = _times(lambda: a @ b, self._device, self._repeats)[1]
            self._known[dtype] = 2 * n**3 * 1e-9 / spent
        return self._known[dtype]


def _facts(device: str) -> dict[str, str | None]:
    try:
        triton = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        triton = None
    name = (
        torch.cuda.get_device_name()
        if device == "cuda"
        else f"CPU, {torch.get_num_threads()} thread(s)"
    )
    note = "" if device == "cuda" else NO_GPU
    return {"device": name, "torch": torch.__version__, "triton": triton, "note": note}


def _noise(shape: tuple[int, ...], seed: int, device: str, dtype: torch.dtype) -> Tensor:
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return drawn.to(device, dtype)


def _cases(device: str) -> Iterator[Case]:
    """Yield the cases one at a time, so that only one holds memory."""
    is_gpu = device == "cuda"
    half = torch.bfloat16 if is_gpu else torch.float32
    for batch, n in (
        [(8, 512), (4, 1024), (1, 2048), (1, 4096), (1, 8192)] if is_gpu else [(4, 256)]
    ):
        yield _symmetric_case(batch, n, half, device)
    for count, n in [(64, 512), (16, 2048), (8, 4096)] if is_gpu else [(8, 256), (2, 1024)]:
        yield _singular_case(count, n, half, device)
    for rows, width in [(8192, 4096), (65536, 4096)] if is_gpu else [(2048, 512)]:
        yield _cosine_case(rows, width, half, device)
    for tokens, experts in [(8192, 64), (131072, 256)] if is_gpu else [(8192, 64)]:
        yield _router_case(tokens, experts, half, device)


def _case(
    op: str, shape: str, dtype, device: str, *, flops=None, bytes=None, triton: Run, **runs: Run
) -> Case:
    # The interpreter can run the kernels on a CPU, but its times mean nothing.
    if device == "cuda":
        runs["triton"] = triton
    return Case(op=op, shape=shape, dtype=dtype, flops=flops, bytes=bytes, runs=runs)


def _symmetric_case(batch: int, n: int, dtype: torch.dtype, device: str) -> Case:
    a = _noise((batch, n, n), 3, device, dtype)
    return _case(
        "symmetric_product",
        f"{batch} x {n} x {n}",
        dtype,
        device,
        flops=float(batch) * n**3,
        library=lambda: a @ a.mT,
        reference=lambda: symmetric_product_reference(a),
        triton=lambda: symmetric_product_triton(a),
    )


def _singular_case(count: int, n: int, dtype: torch.dtype, device: str) -> Case:
    weights = [_noise((n, n), seed, device, dtype) for seed in range(count)]
    state = top_singular_reference(weights, iterations=1).state
    # One subspace iteration of svd_lowrank reads the weight four times, like two of these.
    return _case(
        "top_singular",
        f"{count} x {n} x {n}, warm, 2 iterations",
        dtype,
        device,
        bytes=4.0 * count * n * n * weights[0].element_size(),
        library=lambda: [torch.svd_lowrank(w.float(), q=4, niter=1) for w in weights],
        reference=lambda: top_singular_reference(weights, state, iterations=2),
        triton=lambda: top_singular_triton(weights, state, iterations=2),
    )


def _cosine_case(rows: int, width: int, dtype: torch.dtype, device: str) -> Case:
    x = _noise((rows, width), 4, device, dtype)
    v = _noise((4, width), 5, device, torch.float32)

    def library() -> list[Tensor]:
        cosines = torch.nn.functional.normalize(x.float(), dim=-1) @ v.mT
        histograms = [torch.histc(column, 64, -1, 1) for column in cosines.mT]
        return [*histograms, (cosines > 0).sum(0), cosines.sum(0), cosines.square().sum(0)]

    runs = {"library": library, "reference": lambda: row_cosine_reference(x, v)}
    if device == "cuda":
        compiled = torch.compile(row_cosine_reference, fullgraph=True)
        runs["compiled"] = lambda: compiled(x, v)
    return _case(
        "row_cosine",
        f"{rows} x {width}, 4 vectors",
        dtype,
        device,
        bytes=float(x.numel() * x.element_size()),
        **runs,
        triton=lambda: row_cosine_triton(x, v),
    )


def _router_case(tokens: int, experts: int, dtype: torch.dtype, device: str) -> Case:
    logits = _noise((tokens, experts), 6, device, dtype)

    def library() -> list[Tensor]:
        logs = torch.log_softmax(logits.float(), -1)
        shares = logs.exp()
        chosen = shares.topk(8, -1).indices
        load = torch.bincount(chosen.reshape(-1), minlength=experts)
        return [-(shares * logs).sum(-1), torch.logsumexp(logits, -1), load, shares.sum(0)]

    runs = {"library": library, "reference": lambda: router_statistics_reference(logits, 8)}
    if device == "cuda":
        compiled = torch.compile(router_statistics_reference, fullgraph=True)
        runs["compiled"] = lambda: compiled(logits, 8)
    return _case(
        "router_statistics",
        f"{tokens} x {experts}, top 8",
        dtype,
        device,
        bytes=float(logits.numel() * logits.element_size() + 16 * tokens),
        **runs,
        triton=lambda: router_statistics_triton(logits, 8),
    )


def main() -> None:
    """Compare every kernel's reference and Triton program with the best library call."""
    typer.echo(to_markdown(run()), nl=False)


if __name__ == "__main__":
    typer.run(main)
