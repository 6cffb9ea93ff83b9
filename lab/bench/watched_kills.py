"""Kill `rksp watch`, or what it started, at random moments: is the log readable, is nothing left?

python -m lab.bench.watched_kills --count 60
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from rksp.confirm.watched import watched_run
from rksp.ground.errors import InputError

_SCRIPT = """
import torch, time
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
while True:
    x, y = torch.randn(16, 8), torch.randint(4, (16,))
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.005)
"""
_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
_ENDS = 60.0  # seconds in which all must be over
_LATEST = 6.0  # seconds from the first step to the kill


def alive(mark: str) -> list[int]:
    """Return the processes whose command line holds a mark."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if mark.encode() in file.read_bytes():
                found.append(int(file.parent.name))
    return found


def killed(number: int, draw: random.Random) -> str:
    """Watch a script, kill one of both, and say what became of the log and of the processes."""
    with tempfile.TemporaryDirectory(prefix=f"kills-{os.getpid()}-{number}-") as folder:
        script, log = Path(folder, "train.py"), Path(folder, "watch.jsonl")
        script.write_text(_SCRIPT, encoding="utf-8")
        command = ["-m", "rksp", "watch", "--log", str(log), "--", sys.executable, str(script)]
        watch = subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE)
        end = time.monotonic() + 4 * _ENDS
        while not log.exists() and time.monotonic() < end:
            time.sleep(0.1)
        time.sleep(_LATEST * draw.random())
        which = draw.choice(_SIGNALS)
        own = [pid for pid in alive(str(script)) if pid != watch.pid]
        target = draw.choice([watch.pid, *own[:1]])
        os.kill(target, which)
        end = time.monotonic() + _ENDS
        while (left := alive(folder)) and time.monotonic() < end:
            watch.poll()
            time.sleep(0.2)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        watch.communicate()
        try:
            read = f"read {watched_run(log).trial.steps > 0}"
        except InputError as error:
            read = "no step yet" if "holds no step" in str(error) else f"unreadable: {error}"
        who = "watch" if target == watch.pid else "child"
        return f"{which.name} to the {who}: {read}, {len(left)} left"


def main(
    count: Annotated[int, typer.Option(help="Kills.")] = 60,
    seed: Annotated[int, typer.Option(help="Of the moments, signals and victims.")] = 0,
) -> None:
    """Print what became of each kind of kill."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
    draw = random.Random(seed)
    found: Counter[str] = Counter()
    for number in range(count):
        found[killed(number, draw)] += 1
    for text, times in sorted(found.items()):
        print(f"{times:3} {text}")


if __name__ == "__main__":
    typer.run(main)
