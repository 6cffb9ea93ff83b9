"""Measure what `rksp watch` adds to a training step of GPT-2's size, as a ratio within one run."""

from __future__ import annotations

import math
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from transformers import GPT2Config, GPT2LMHeadModel

from rksp.ground.model import definite
from rksp.watch.attach.finder import Finder
from rksp.watch.attach.kept import SPARSEST
from rksp.watch.attach.options import Watching
from rksp.watch.registry import make_monitors

_COPY = "copy of the weights"
_EARLY = 2  # more steps: the first five look at every gradient


class _Timed(Finder):
    """A finder that adds up the processor seconds of all that it does."""

    seconds = 0.0

    def _guarded(self, call: Callable[..., Any], *args: Any) -> Any:
        was_busy, started = self._is_busy, time.process_time()
        try:
            return super()._guarded(call, *args)
        finally:
            if not was_busy:
                self.seconds += time.process_time() - started


def watched_cost(
    batch_size: int, length: int, *, rounds: int = 2, sizes: dict[str, int] | None = None
) -> list[dict[str, Any]]:
    """Train a GPT-2 with every monitor at every step, and spread the cost of each over its cadence.

    The first step, in which the finder finds the model, is left out; of the others the least
    counts. In as many more, and in two past the looks that only the first steps take, all monitors
    are off: they give the bare step and the finder's own cost.

    Args:
        batch_size: Sequences of a step.
        length: Tokens of a sequence.
        rounds: Timed steps.
        sizes: Settings of the model that replace GPT-2's own.

    Returns:
        A row each for the bare step, every monitor that measures, the finder and their sum: `name`,
        `every`, `ms` of processor time and `share` of the bare step.
    """
    every = {monitor.name: monitor.every for monitor in make_monitors()}
    with tempfile.TemporaryDirectory() as folder:
        finder = _Timed(
            Watching(
                folder=Path(folder),
                log=Path(folder, "watch.jsonl"),
                monitors=[f"{name}:every=1" for name in every],
                status=0,
            )
        )
        finder.hook()
        torch.manual_seed(0)
        model = GPT2LMHeadModel(GPT2Config(**sizes or {}))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        spent: list[Counter[str]] = []
        alone: list[tuple[float, float]] = []  # the step without the finder, and the finder
        for number in range(2 * rounds + 1 + _EARLY):
            if number == rounds + 1:  # the finder by itself
                session = definite(finder.session)
                session.watch.silent.update(dict.fromkeys(every, "bench"))
                kept = definite(session._kept)
                kept._next = math.inf  # early, weights are copied more often than later
            tokens = torch.randint(model.config.vocab_size, (batch_size, length))
            before, own = _seconds(finder), finder.seconds
            started = time.process_time()
            model(tokens, labels=tokens).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            whole = time.process_time() - started
            step = _seconds(finder)
            step.subtract(before)
            spent.append(step)
            own = finder.seconds - own
            alone.append((whole - own, own))
        kept._next, started = 0, time.process_time()
        kept.begin(number + 1)
        copy = time.process_time() - started
        finder.close()
    bare, own = (min(part) for part in zip(*alone[rounds + 1 :], strict=True))
    watched = spent[1 : rounds + 1]
    least = {name: min(step[name] for step in watched) for name in every if name in spent[1]}
    every[_COPY] = SPARSEST
    parts = {"bare step": bare, "finding the steps": own, _COPY: copy, **least}
    rows = [{"name": n, "every": every.get(n, 1), "ms": 1e3 * s} for n, s in parts.items()]
    rows = [row | {"share": row["ms"] / (1e3 * bare * row["every"])} for row in rows if row["ms"]]
    return [*rows, {"name": "watching", "share": sum(row["share"] for row in rows[1:])}]


def _seconds(finder: _Timed) -> Counter[str]:
    """Return what every monitor has taken so far, hooks included."""
    if finder.session is None:
        return Counter()
    finder.session.watch._clock = time.process_time
    return Counter(finder.session.watch.seconds)


def main(
    batch_size: Annotated[int, typer.Option(help="Sequences of a step.")] = 2,
    length: Annotated[int, typer.Option(help="Tokens of a sequence.")] = 1024,
    rounds: Annotated[int, typer.Option(help="Timed steps.")] = 2,
    small: Annotated[bool, typer.Option(help="Two layers of width 64, to try it out.")] = False,
) -> None:
    """Print the share of a step that watching takes, by monitor."""
    torch.set_num_threads(1)
    sizes = {"n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 256} if small else None
    for row in watched_cost(batch_size, length, rounds=rounds, sizes=sizes):
        every = f"every {row['every']}" if "every" in row else ""
        spent = f"{row['ms']:.1f} ms" if "ms" in row else ""
        print(f"{row['name']:<22}{every:<12}{spent:>12}{row['share']:>10.3%}")


if __name__ == "__main__":
    typer.run(main)
