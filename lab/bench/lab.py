"""Measure what the lab costs: against a bare loop, and over processes."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Sequence

import torch
import typer
from torch import nn
from torch.nn import functional as F

from lab.tasks.tasks import make_task
from lab.zoo import build_member
from rksp.datasets.batch import Batch
from rksp.recipe import Recipe
from rksp.watch.training import train

Row = dict[str, object]
MAX_OVERHEAD = 1.15  # the lab's step over the bare loop's step
MIN_SCALING = 0.85  # throughput of n processes over n times that of one
_BATCH, _LENGTH = 8, 64
_SHAPE = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}


def run(
    *,
    steps: int = 40,
    rounds: int = 5,
    processes: Sequence[int] = (1, 2, 4),
) -> list[Row]:
    """Measure the lab on this machine.

    Args:
        steps: Training steps per timing.
        rounds: Alternating timings of the lab and the bare loop; the rows hold their medians.
        processes: Worker counts to try; counts above the core count are left out.

    Returns:
        One row per measurement.
    """
    counts = [n for n in processes if n <= (os.cpu_count() or 1)]
    return [
        overhead(steps=steps, rounds=rounds),
        *scaling(counts, steps=5 * steps),  # one second is too short to show the scaling
    ]


def overhead(*, steps: int, rounds: int) -> Row:
    """Measure the step time of `rksp.watch.training.train` over that of a bare loop."""
    recipe, batches = _workload(steps)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        lab, bare = [], []
        for _ in range(rounds):  # alternating, so that a busy machine slows both alike
            lab.append(_seconds(lambda: train(_model(), batches, recipe)))
            bare.append(_seconds(lambda: _bare_loop(_model(), batches, recipe)))
    finally:
        torch.set_num_threads(threads)
    ratios = [ours / theirs for ours, theirs in zip(lab, bare, strict=True)]
    ratio = statistics.median(ratios)
    return {
        "name": "lab step / bare step",
        "lab_ms": 1e3 * statistics.median(lab) / steps,
        "bare_ms": 1e3 * statistics.median(bare) / steps,
        "value": ratio,
        "spread": max(ratios) - min(ratios),
        "target": f"<= {MAX_OVERHEAD}",
        "holds": ratio <= MAX_OVERHEAD,
        "rounds": rounds,
    }


def scaling(counts: Sequence[int], *, steps: int) -> list[Row]:
    """Measure the throughput of n processes that train at once, over n times that of one.

    Each row also holds the ratio for the bare loop, which shows the limit set by the machine.
    """
    rates = {n: _throughput(n, steps) for n in counts}
    bare = {n: _throughput(n, steps, is_bare=True) for n in counts}
    share = lambda found, n: found[n] * min(counts) / (n * found[min(counts)])
    return [
        {
            "name": f"throughput of {n} processes / {n} x one",
            "steps_per_second": rates[n],
            "value": share(rates, n),
            "of_the_bare_loop": share(bare, n),
            "target": f">= {MIN_SCALING}",
            "holds": share(rates, n) >= MIN_SCALING,
            "load_before": os.getloadavg()[0],
        }
        for n in counts
    ]


def _workload(steps: int) -> tuple[Recipe, list[Batch]]:
    recipe = Recipe(
        learning_rate=1e-3,
        schedule="constant",
        max_steps=steps,
        batch_size=_BATCH,
        sequence_length=_LENGTH,
    )
    return recipe, make_task("bytes", length=_LENGTH).batches(steps, _BATCH, seed=0)


def _model() -> nn.Module:
    return build_member("zoo_pre_ln", {**_SHAPE, "max_position_embeddings": _LENGTH}, seed=0)


def _bare_loop(model: nn.Module, batches: Sequence[Batch], recipe: Recipe) -> None:
    """Train by hand: the same arithmetic, one loss read per step, no records."""
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=recipe.learning_rate,
        weight_decay=recipe.weight_decay,
        fused=True,
    )
    for batch in batches:
        logits = model(batch.inputs).logits
        loss = F.cross_entropy(logits.flatten(0, -2), batch.labels.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()


def _throughput(count: int, steps: int, *, is_bare: bool = False) -> float:
    context = multiprocessing.get_context("spawn")
    gate = context.Barrier(count)
    results = context.SimpleQueue()
    workers = [
        context.Process(target=_worker, args=(gate, results, steps, is_bare)) for _ in range(count)
    ]
    for worker in workers:
        worker.start()
    spans = [results.get() for _ in workers]
    for worker in workers:
        worker.join()
    return count * steps / max(spans)


def _worker(gate, results, steps: int, is_bare: bool) -> None:
    torch.set_num_threads(1)
    loop = _bare_loop if is_bare else train
    recipe, batches = _workload(steps)
    loop(_model(), batches[:5], recipe.model_copy(update={"max_steps": 5}))
    gate.wait()
    results.put(_seconds(lambda: loop(_model(), batches, recipe)))


def _seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    """Compare the lab's training step with a bare loop, and its throughput over processes."""
    for row in run():
        typer.echo(", ".join(f"{name} {value}" for name, value in row.items()))


if __name__ == "__main__":
    typer.run(main)
