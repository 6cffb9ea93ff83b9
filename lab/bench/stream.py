"""Measure what a streamed pass costs, beside lower bounds that hold for any method."""

from __future__ import annotations

import math
import multiprocessing
import resource
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ByteSize, TypeAdapter

from rksp.ground.errors import InputError
from rksp.ground.flags import assignments

_DRAWS = "random numbers drawn"
_GRADIENT = "gradient, s"
_PIECES = 16  # pieces of a million entries in the fill that measures a bound


def _llama(layers: int, width: int, inner: int, heads: int, groups: int, vocabulary: int) -> dict:
    return {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "vocab_size": vocabulary,
    }


# Model type and shape, from the configurations that their makers published.
MODELS: Mapping[str, tuple[str, dict[str, object]]] = {
    "llama-2-7b": ("llama", _llama(32, 4096, 11008, 32, 32, 32_000)),
    "llama-3.1-70b": ("llama", _llama(80, 8192, 28_672, 64, 8, 128_256)),
    "llama-3.1-405b": ("llama", _llama(126, 16_384, 53_248, 128, 8, 128_256)),
    "deepseek-v3": ("deepseek_v3", {}),  # the defaults of transformers are this model
    "mixtral-8x7b": ("mixtral", {"max_position_embeddings": 32_768}),  # likewise
    "qwen3-30b-a3b": (
        "qwen3_moe",
        _llama(48, 2048, 6144, 32, 4, 151_936)
        | {"head_dim": 128, "moe_intermediate_size": 768, "num_experts": 128}
        | {"num_experts_per_tok": 8, "norm_topk_prob": True},
    ),
}


def run(
    target: str,
    *,
    tokens: int = 256,
    layers: int | None = None,
    threads: int = 1,
    spectra: bool = True,
    max_memory: int | None = None,
    overrides: Mapping[str, object] | None = None,
    gradient: bool = True,
) -> list[dict[str, object]]:
    """Stream one pass in its own process, so that the peak memory is that of the pass.

    Args:
        target: A name in `MODELS`, or as for `rksp score`.
        tokens: Tokens of the probe, in two sequences.
        layers: Cut the model to this many blocks and extrapolate to the whole.
        threads: Threads that prepare weights and multiply.
        spectra: Whether to fit the spectra too.
        max_memory: As for `rksp score`.
        overrides: Further settings.
        gradient: Whether to measure the first gradient too, on the first sequence. Each of its two
            batches is one of the probe's two sequences.

    Returns:
        Rows of name and value.

    Raises:
        InputError: The target is unknown or does not fit in memory.
    """
    if tokens < 4:
        raise InputError(f"--tokens is {tokens}; give at least 4, for two sequences.")
    target, shape = MODELS.get(target, (target, {}))
    settings = shape | dict(overrides or {})
    cut = {} if layers is None else {"num_hidden_layers": layers}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        found = pool.submit(
            _measure, target, settings | cut, tokens, threads, spectra, max_memory, gradient
        ).result()
    if cut:
        found |= _whole(found, target, settings, tokens, threads, max_memory)
    return [{"name": name, "value": value} for name, value in found.items()]


def _measure(
    target: str,
    overrides: dict[str, object],
    tokens: int,
    threads: int,
    spectra: bool,
    max_memory: int | None,
    gradient: bool = False,
) -> dict[str, object]:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from rksp.measure.snapshots import collect
    from rksp.models.resolve import resolve
    from rksp.models.streaming.stream import open_stream
    from rksp.spectra.model_profile import profile

    source = resolve(target, overrides=overrides)
    batch = _batch(source, tokens)
    imported = _peak()
    start = time.perf_counter()
    with open_stream(source, 0, workers=threads, max_memory=max_memory) as stream:
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
        shapes = [slot.empty.shape for unit in stream.units for slot in unit.slots]
        draws = _draws(stream)
        plan, how = stream.plan, stream.describe()
        flops = counter.get_total_flops() + stream.split_flops
    responded = _gradient(stream, batch) if gradient else {}
    torch.set_num_threads(1)
    draw, multiply = draws / _fill_rate(), flops / _product_rate(tokens, max(shapes, key=_area))
    floor = draw + multiply
    return {
        "parameters": source.num_parameters,
        _DRAWS: draws,
        "how": how,
        "threads": threads,
        "skeleton and recipes, s": round(opened, 2),
        "pass, s": round(passed, 2),
        "processor time of the pass, s": round(worked, 2),
        "peak memory, GB": round(peak / 1e9, 2),
        "of it after imports, GB": round(imported / 1e9, 2),
        "predicted peak, GB": round(plan.peak / 1e9, 2),
        "floors of drawing and multiplying, processor s": f"{draw:.4g} + {multiply:.4g}",
        "processor time over these floors": round(worked / floor, 2),
        **responded,
    }


def _gradient(stream, batch) -> dict[str, object]:
    """Measure the first gradient on a stream that has run a pass, with its predicted memory."""
    from rksp.measure.gradient import measure_streamed_gradient
    from rksp.models.streaming.stream import gradient_peak

    same, peak = batch.rows(0, 1), gradient_peak(stream, batch.rows(0, 1))
    begun, worked = time.perf_counter(), time.process_time()
    found = measure_streamed_gradient(stream, same)
    seconds, worked = time.perf_counter() - begun, time.process_time() - worked
    return {
        _GRADIENT: round(seconds, 2),
        "processor time of the gradient, s": round(worked, 2),
        "peak memory with the gradient, GB": round(_peak() / 1e9, 2),
        "predicted peak with the gradient, GB": round(peak / 1e9, 2),
        "gradient norm": found.grad_norm,
    }


def _draws(stream) -> int:
    """Count the random numbers of a pass; a large embedding draws only the rows looked up."""
    from torch import nn

    looked_up = {slot.name for slot in stream.tall if isinstance(slot.module, nn.Embedding)}
    looked_up -= {slot.name for slot in stream.tall if isinstance(slot.module, nn.Linear)}
    recipes = stream.weights.recipes
    return sum(
        recipe.numel if step.view is None else math.prod(step.view[0])
        for name, recipe in recipes.items()
        for step in recipe.steps
        if name not in looked_up and step.pieces
    )


def _batch(source, tokens: int):
    import torch

    from rksp.datasets.batch import Batch

    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(source.config.vocab_size, (2, tokens // 2), generator=generator)
    return Batch(inputs={"input_ids": ids}, labels=ids.roll(-1, 1))


def _area(shape: tuple[int, ...]) -> int:
    return shape[-1] * shape[0] if len(shape) == 2 else 0


def _fill_rate() -> float:
    """Measure the normal numbers per processor second, drawn into allocated memory."""
    import torch

    piece, generator = torch.zeros(1 << 20), torch.Generator().manual_seed(0)

    def draw() -> None:
        for _ in range(_PIECES):
            piece.normal_(generator=generator)

    return _PIECES * piece.numel() / _best(draw)


def _product_rate(tokens: int, shape: tuple[int, ...]) -> float:
    """Measure the FLOP per processor second of the product with a block's largest matrix.

    The matrix is cut to 8192 rows at most.
    """
    import torch
    from torch.nn import functional as F

    x, weight = torch.ones(tokens, shape[1]), torch.ones(min(shape[0], 8192), shape[1])
    return 2 * tokens * weight.numel() / _best(lambda: F.linear(x, weight))


def _best(action: Callable[[], object], times: int = 5) -> float:
    """Return the least processor seconds, which vary less than wall time on a busy machine."""
    found = []
    for _ in range(times):
        start = time.process_time()
        action()
        found.append(time.process_time() - start)
    return min(found)


def _whole(
    found: dict[str, object],
    target: str,
    settings: dict[str, object],
    tokens: int,
    threads: int,
    max_memory: int | None,
) -> dict[str, object]:
    """Predict the uncut model: its peak by a rehearsal, its time by the numbers it draws."""
    import torch

    from rksp.models.resolve import resolve
    from rksp.models.streaming.stream import gradient_peak, locate_chains, open_stream

    source = resolve(target, overrides=settings)
    batch = _batch(source, tokens)
    one = {key: value[:1] for key, value in batch.inputs.items()}
    with open_stream(source, 0, workers=threads, max_memory=max_memory) as stream, torch.no_grad():
        locate_chains(stream.model, lambda: stream.model(**one, use_cache=False), None, 2, tokens)
        predicted = stream.plan.peak
        of_gradient = gradient_peak(stream, batch.rows(0, 1))
        ratio = _draws(stream) / found[_DRAWS]
    size = f"all {source.num_parameters:,} parameters"
    responded = {}
    if _GRADIENT in found:
        responded = {
            f"predicted peak of the gradient for {size}, GB": round(of_gradient / 1e9, 2),
            f"extrapolated seconds of the gradient for {size}": round(found[_GRADIENT] * ratio),
        }
    return responded | {
        f"predicted peak for {size}, GB": round(predicted / 1e9, 2),
        f"extrapolated seconds for {size}": round(found["pass, s"] * ratio),
        f"extrapolated processor seconds for {size}": round(
            found["processor time of the pass, s"] * ratio
        ),
    }


def _peak() -> int:
    """Return the peak resident bytes, of this process image alone where the system tells."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(
    target: Annotated[
        str,
        typer.Argument(help=f"{', '.join(MODELS)}, or as for rksp score."),
    ] = "llama-2-7b",
    tokens: Annotated[int, typer.Option(help="Tokens of the probe.")] = 256,
    layers: Annotated[
        int | None, typer.Option(help="Cut the model to this many blocks and extrapolate.")
    ] = None,
    threads: Annotated[int, typer.Option(help="Threads that prepare weights and multiply.")] = 1,
    max_memory: Annotated[str | None, typer.Option(help="As for rksp score.")] = None,
    spectra: Annotated[bool, typer.Option(help="Fit the spectra too.")] = True,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Configuration key=value; repeatable.")
    ] = None,
) -> None:
    """Stream a pass over a model that is never whole in memory; print peak, cost and bounds."""
    for row in run(
        target,
        tokens=tokens,
        layers=layers,
        threads=threads,
        max_memory=TypeAdapter(ByteSize | None).validate_python(max_memory),
        spectra=spectra,
        overrides=assignments(overrides or []),
    ):
        typer.echo(f"{row['name']}: {row['value']}")


if __name__ == "__main__":
    typer.run(main)
