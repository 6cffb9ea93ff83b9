"""What a streamed pass costs, beside the floors that no way of doing it goes below."""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

_PIECES = 16  # of a million entries: the fill whose rate is the floor


def run(
    target: str,
    *,
    tokens: int = 256,
    layers: int | None = None,
    threads: int = 1,
    spectra: bool = True,
    overrides: dict[str, str] | None = None,
) -> list[dict[str, object]]:
    """Streams one pass in a process of its own, so that its peak is its own.

    Args:
        target: A configuration or model type.
        tokens: Of the probe, two sequences.
        layers: Cut the model to so many blocks; the whole is then extrapolated.
        threads: That prepare weights; the pass itself takes one.
        spectra: Whether to fit the spectra too.
        overrides: Further settings.

    Returns:
        Rows of name and value; a floor is what drawing, or multiplying, alone would take.
    """
    overrides = dict(overrides or {})
    cut = {} if layers is None else {"num_hidden_layers": str(layers)}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        found = pool.submit(_measure, target, overrides | cut, tokens, threads, spectra).result()
    rows = [{"name": name, "value": value} for name, value in found.items()]
    return [*rows, _extrapolated(found, target, overrides)] if cut else rows


def _measure(
    target: str, overrides: dict[str, str], tokens: int, threads: int, spectra: bool
) -> dict[str, object]:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from rksp.datasets.tasks import Batch
    from rksp.models.resolve import resolve
    from rksp.models.streaming.opening import open_stream
    from rksp.pipeline import profile
    from rksp.snapshots import collect

    source = resolve(target, overrides=overrides)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(source.config.vocab_size, (2, tokens // 2), generator=generator)
    batch = Batch(inputs={"input_ids": ids}, labels=ids.roll(-1, 1))
    imported = _peak()
    start = time.perf_counter()
    with open_stream(source, 0, workers=threads) as stream:
        opened = time.perf_counter() - start
        counter = FlopCounterMode(display=False)
        begun, worked = time.perf_counter(), time.process_time()
        with counter:
            if spectra:
                profile(stream.model, batch, workers=threads)
            else:
                collect(stream.model, batch, consume=lambda transition: None)
        passed, worked = time.perf_counter() - begun, time.process_time() - worked
        peak = _peak()
        weights, streamed = stream.weights, stream.units
        plan, waited, grain = stream.plan, stream.waited, stream.grain
        draws = sum(recipe.draws for recipe in weights.recipes.values())
        size = sum(unit.size for unit in streamed)
        shape = max((unit.slots[0].empty.shape for unit in streamed if "." in unit.path), key=_area)
    flops = counter.get_total_flops()
    fill_rate = _fill_rate()
    product_rate = _product_rate(tokens, shape)
    init_floor, forward_floor = draws / fill_rate, flops / product_rate
    return {
        "parameters": source.num_parameters,
        "grain": grain,
        "threads that prepare weights": threads,
        "skeleton and recipes, s": round(opened, 2),
        "pass, s": round(passed, 2),
        "of it waited for weights, s": round(waited, 2),
        "processor time of the pass, s": round(worked, 2),
        "peak memory, GB": round(peak / 1e9, 2),
        "of it after imports, GB": round(imported / 1e9, 2),
        "predicted peak, GB": round(plan.peak / 1e9, 2),
        "bytes of weights, GB": round(size / 1e9, 2),
        "random numbers, 1e9": round(draws / 1e9, 3),
        "products, TFLOP": round(flops / 1e12, 3),
        "fill rate of one core, 1e6/s": round(fill_rate / 1e6, 1),
        "product rate of one core, GFLOP/s": round(product_rate / 1e9, 1),
        "floor of initialization, processor s": round(init_floor, 2),
        "floor of products, processor s": round(forward_floor, 2),
        "processor time over the sum of floors": round(worked / (init_floor + forward_floor), 3),
        "seconds over the larger floor by its threads": round(
            passed / max(init_floor / threads, forward_floor), 3
        ),
    }


def _area(shape: tuple[int, ...]) -> int:
    return shape[-1] * shape[0] if len(shape) == 2 else 0


def _fill_rate() -> float:
    """Normal numbers a processor second into memory that is there already, best of three."""
    import torch

    piece, generator = torch.zeros(1 << 20), torch.Generator().manual_seed(0)

    def draw() -> None:
        for _ in range(_PIECES):
            piece.normal_(generator=generator)

    return _PIECES * piece.numel() / _best(draw)


def _product_rate(tokens: int, shape: tuple[int, ...]) -> float:
    """FLOP a processor second of the product with the largest matrix of a block."""
    import torch
    from torch.nn import functional as F

    x, weight = torch.ones(tokens, shape[1]), torch.ones(shape)
    return 2 * tokens * shape[0] * shape[1] / _best(lambda: F.linear(x, weight))


def _best(action: Callable[[], object], times: int = 3) -> float:
    """Processor seconds, which a busy machine changes less than those of the clock."""
    found = []
    for _ in range(times):
        start = time.process_time()
        action()
        found.append(time.process_time() - start)
    return min(found)


def _extrapolated(found: dict[str, object], target: str, overrides: dict[str, str]) -> dict:
    """The whole model's cost by its number of parameters: drawing them is most of it."""
    from rksp.models.resolve import resolve

    whole = resolve(target, overrides=overrides).num_parameters
    seconds = found["processor time of the pass, s"] * whole / found["parameters"]
    return {"name": f"processor s for all {whole:,} parameters", "value": round(seconds)}


def _peak() -> int:
    """Bytes; of this process's own image, where the system tells."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
