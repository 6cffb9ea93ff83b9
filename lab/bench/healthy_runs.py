"""What `rksp watch --on-alarm stop` says of runs with nothing wrong: a row a run.

    python -m lab.bench.healthy_runs --run

The bar is 0 of 100 stopped and 2 alarmed. A run counts as healthy by its own losses, which the row
has: it ends below the entropy of its targets' frequencies, or well below its first loss.
"""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from rksp.confirm.watched import watched_run

SCRIPT = Path(__file__).with_name("healthy_script.py")
TABLE = Path(__file__).with_suffix(".csv")
RUNS = """
width=48
width=64 call=name
width=96 call=logits
width=128 tied=0
width=48 tied=0 call=name
width=64 warm=0 schedule=none rate=1e-3
width=64 schedule=wsd
width=64 schedule=linear
width=64 schedule=to_zero steps=150
width=64 schedule=root
width=64 schedule=cycles steps=150
width=64 dtype=autocast
width=64 dtype=autocast tied=0 call=logits
width=64 dtype=weights rate=1e-2
width=64 accumulate=4 batch=4
width=64 clip=0
width=64 clip=0.1
width=64 dropout=0.1
width=64 dropout=0.3 steps=150
width=64 average=1
width=64 evaluate=1
width=64 smooth=0.1
width=64 smooth=0.1 call=logits
width=64 data=words
width=48 data=words tied=0
width=128 data=words rate=1e-3
width=64 data=words dtype=autocast
width=64 data=few
width=64 data=few tied=0 call=name
width=64 batch=2 rate=1e-3
width=64 batch=32 rate=1e-2
width=64 init=0.01
width=64 init=0.05 tied=0
width=64 decay=0
width=64 frozen=wpe
width=64 frozen=wte tied=0
width=64 optimizer=sgd rate=0.3 steps=150
width=64 optimizer=sgd rate=0.1 clip=0 steps=150
width=64 optimizer=lion rate=3e-4
width=48 optimizer=lion rate=1e-3 decay=0.01
width=64 optimizer=adafactor rate=1e-2
width=64 optimizer=rmsprop rate=1e-3
width=64 optimizer=nadam
width=64 optimizer=adam rate=5e-3
width=64 optimizer=muon rate=2e-2
width=64 optimizer=muon rate=2e-2 tied=0 schedule=wsd
model=chat optimizer=muon rate=2e-2 schedule=wsd warm=0 tied=0
model=chat optimizer=muon rate=2e-2 schedule=none warm=0 tied=0 width=48 clip=0
model=chat optimizer=muon rate=2e-2 data=words tied=0
model=chat optimizer=adamw rate=2e-3 dtype=autocast tied=0
width=64 part=2
width=64 part=2 optimizer=muon rate=2e-2 schedule=wsd
width=48 part=2 data=words schedule=none
width=64 part=2 optimizer=sgd rate=0.3 dtype=autocast
loop=fsdp width=64
loop=fsdp width=48 dtype=autocast clip=0
loop=fsdp width=64 data=words accumulate=2
loop=fsdp width=96 optimizer=lion rate=3e-4 schedule=wsd
model=gpt2
model=gpt2 dropout=0.1 data=words
model=gpt2 call=logits dtype=autocast
model=gpt2 checkpointing=1
model=gpt2 frozen=lora rate=1e-2 steps=150
model=gpt2 part=2
model=llama
model=llama optimizer=adafactor rate=1e-2 data=words
model=llama checkpointing=1 accumulate=2
model=llama width=48 rate=1e-2 schedule=none
model=qwen3
model=qwen3 call=logits clip=0 schedule=wsd
model=qwen3 dtype=autocast data=words
model=neox
model=neox optimizer=lion rate=1e-3 part=2
model=opt dropout=0.1
model=gemma2 rate=1e-3
model=mixtral
model=mixtral data=words dtype=autocast
model=moe
model=moe schedule=none clip=0
model=t5 rate=5e-3
model=t5 data=words optimizer=adafactor rate=1e-2
model=bert steps=150
model=bert data=words dropout=0.1 steps=150
model=lstm rate=5e-3
model=lstm optimizer=sgd rate=1 data=few steps=150
model=vit rate=1e-3 steps=150
model=vit dropout=0.1 part=2 rate=1e-3
model=cnn optimizer=sgd rate=0.05
model=cnn smooth=0.1 dropout=0.3 average=1
model=mlp optimizer=adam rate=1e-3 warm=0 schedule=none clip=0
model=two
model=regression clip=0 schedule=none warm=0
model=regression optimizer=sgd rate=0.05
model=diffusion average=1
model=autoencoder dtype=autocast part=2
model=contrastive
model=contrastive optimizer=sgd rate=0.1 schedule=none
model=dpo rate=3e-4 steps=60
model=dpo rate=1e-3 optimizer=rmsprop steps=60 clip=0
model=distilled
loop=trainer model=gpt2
loop=trainer model=llama dtype=autocast accumulate=2 evaluate=1
loop=trainer model=qwen3 optimizer=adafactor schedule=none rate=1e-2
loop=trainer model=neox smooth=0.1 part=2
loop=trainer model=gpt2 data=words checkpointing=1 schedule=linear steps=150
loop=lightning width=64
loop=lightning model=llama accumulate=2
loop=lightning model=cnn optimizer=sgd rate=0.05 dtype=autocast
""".strip().splitlines()


class Row(NamedTuple):
    """A run: its first and last printed loss, what it was told, and whether it was stopped."""

    run: str
    seed: int
    first: float
    last: float
    alarms: int
    stopped: bool
    said: str


def watched(run: str, seed: int) -> Row:
    """Run a line of `RUNS` under the watch; a second part goes on in the same log."""
    with tempfile.TemporaryDirectory() as folder:
        log, told = Path(folder) / "watch.jsonl", []
        losses: list[float] = []
        for part in range(1, 2 + ("part=2" in run)):
            start = [sys.executable]
            if "loop=fsdp" in run:
                start += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
            words = [*run.replace("part=2", f"part={part}").split(), f"seed={seed}"]
            script = [*start, str(SCRIPT), *words, f"folder={folder}"]
            options = ["--log", str(log), "--on-alarm", "stop"]
            done = subprocess.run(
                [sys.executable, "-m", "rksp", "watch", *options, "--", *script],
                capture_output=True,
                check=False,
                text=True,
                env={**os.environ, "PYTHONPATH": str(Path.cwd())},
            )
            found = re.findall(r"loss'?:? '?([\d.]+(?:e-?\d+)?)", done.stdout)
            losses += [float(x) for x in found]
            if done.returncode not in (0, 75) or not log.exists():
                raise typer.Exit(print(run, done.stderr[-3000:]) or 1)
            report = watched_run(log)
            told += [f"{one.cause}: {one.text}" for one in report.causes]
            told += [f"{one.monitor}: {one.text}" for one in report.alarms]
        stopped = done.returncode == 75
        first, last = (losses[0], losses[-1]) if losses else (0.0, 0.0)
        return Row(run, seed, first, last, len(told), stopped, " | ".join(told)[:600])


def main(
    table: Annotated[Path, typer.Option(help="Where rows are, and go.")] = TABLE,
    run: Annotated[bool, typer.Option(help="Run what the table lacks.")] = False,
    only: Annotated[str, typer.Option(help="Runs that this finds.")] = "",
    seed: Annotated[int, typer.Option(help="Seed of every run.")] = 0,
) -> None:
    """Print how many healthy runs were alarmed; with --run make the missing ones first."""
    rows: list[tuple[str, ...]] = []
    if table.exists():
        with table.open(newline="", encoding="utf-8") as file:
            rows = [tuple(one) for one in csv.reader(file)][1:]
    done = {(row[0], row[1]) for row in rows}
    for name in RUNS if run else ():
        if not re.search(only, name) or (name, str(seed)) in done:
            continue
        row = watched(name, seed)
        rows.append(tuple(map(str, row)))
        with table.open("a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            if file.tell() == 0:
                writer.writerow(Row._fields)
            writer.writerow(row)
        print(*row, sep="\t", flush=True)
    alarmed = [row for row in rows if row[4] != "0"]
    stopped = sum(row[5] == "True" for row in rows)
    print(f"{len(rows)} healthy runs: {len(alarmed)} alarmed, {stopped} stopped")
    for row in alarmed:
        print(f"  {row[0]}: {row[6][:160]}")


if __name__ == "__main__":
    typer.run(main)
