"""Plant faults in small runs that `rksp watch` follows from outside, and count what it sees."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import torch
import typer

from lab.tasks.tasks import make_task
from lab.zoo import build_member
from rksp.confirm.watched import watched_run
from rksp.documents.confirm import WatchReport
from rksp.recipe import Recipe
from rksp.watch.attach.finder import Finder
from rksp.watch.faults.registry import make_fault
from rksp.watch.monitors.watch import Watch
from rksp.watch.training import train
from rksp.watch.training.beside import Beside

STEPS, STRIKES = 100, 60
# What is planted -> its fault; the healthy run has none.
PLANTED = {
    "nothing": "",
    "rate × 100": f"large_rate:factor=100,step={STRIKES}",
    "repeated token": f"bad_batches:step={STRIKES},steps=5,kind=repeated",
    "noise in labels": f"bad_batches:step={STRIKES},steps=5,kind=labels",
    "bit of a weight": f"bitflip:step={STRIKES},where=weights,bit=30",
    "bit of a gradient": f"bitflip:step={STRIKES},where=gradients,bit=30",
    "bit of an activation": f"bitflip:step={STRIKES},where=activations,bit=30",
    "defect of a product": f"matmul:step={STRIKES},bit=30",
}
SHAPES = (
    {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
    {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2},
)


@contextlib.contextmanager
def attached(log: Path) -> Iterator[Finder]:
    """Attach to this process, with the default monitors, until the block ends."""
    options = {"folder": str(log.parent), "log": str(log), "monitors": ["all"], "to": []}
    finder = Finder(options | {"on_alarm": "stop", "record": None, "status": 0})
    finder.hook()
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield finder
    finally:
        finder.close()


def watched(fault: str, shape: dict[str, int], seed: int) -> WatchReport:
    """Train a small model on bytes with a fault, as a script would, and return what was seen."""
    more = {"vocab_size": 256, "max_position_embeddings": 64}
    model = build_member("zoo_pre_ln", {**shape, **more}, seed=seed).train()
    recipe = Recipe(
        learning_rate=2e-3,
        warmup_steps=20,
        max_steps=STEPS,
        batch_size=8,
        sequence_length=64,
        max_grad_norm=None,
    )
    faults = [make_fault(fault)] if fault else []
    batches = make_task("bytes", length=64).batches(STEPS, 8, seed=seed)
    for one in faults:
        batches = one.batches(batches, per_step=1, seed=seed)
        one.bind(model, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "watch.jsonl"
        with attached(log), contextlib.suppress(SystemExit):
            torch.manual_seed(seed)
            train(model, batches, recipe, companion=Beside(Watch([]), [], faults))
        return watched_run(log)


def main(
    seeds: Annotated[int, typer.Option(help="Runs of every kind and shape.")] = 3,
    healthy: Annotated[int, typer.Option(help="Healthy runs of every shape.")] = 10,
) -> None:
    """Print, for every planted fault: runs, alarms after it, stops, and who alarmed first."""
    torch.set_num_threads(1)
    print("| planted | runs | alarmed | stopped | median steps to the alarm | first |")
    print("|---|---:|---:|---:|---:|---|")
    for name, fault in PLANTED.items():
        first, delays, runs, stopped = Counter[str](), [], 0, 0
        for shape in SHAPES:
            for seed in range(seeds if fault else healthy):
                report = watched(fault, shape, seed)
                since = STRIKES if fault else 0
                after = [alarm for alarm in report.alarms if alarm.step >= since]
                runs += 1
                stopped += "stopped" in report.ended
                if after:
                    first[after[0].monitor] += 1
                    delays.append(after[0].step - since)
        middle = str(sorted(delays)[len(delays) // 2]) if delays else "–"
        who = ", ".join(f"{monitor} ({n})" for monitor, n in first.most_common())
        print(f"| {name} | {runs} | {len(delays)} | {stopped} | {middle} | {who} |", flush=True)


if __name__ == "__main__":
    typer.run(main)
