"""Commands of rksp in this process, in silence, and the smallest model and plan for them."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Sequence

from lab.commands import main as lab
from rksp.cli import main

SHAPE = ("n_layer=1", "n_embd=16", "n_head=2", "vocab_size=300")
PLAN = {
    "name": "tiny",
    "seed": 3,
    "ladders": 2,
    "families": {"zoo_pre_ln": 1.0, "zoo_no_norm": 1.0},
    "tasks": {"recall": 1.0},
    "widths": [32],
    "depths": [2],
    "batch_sizes": [4],
    "sequence_lengths": [16],
    "steps": [4],
}


def gpt2(*settings: str) -> tuple[str, ...]:
    """Return the words for a GPT-2 with some settings."""
    return ("gpt2", *(word for setting in settings for word in ("--set", setting)))


CONFIG, JSON = ("--evidence", "config"), ("--format", "json")
TINY = gpt2(*SHAPE)
RATE = ("--lr", "1e-3")
SCORE = ("score", *TINY, *RATE)


def short(steps: int = 4, seeds: int = 1) -> tuple[str, ...]:
    """Return the words for a training run of few steps."""
    batch = ("--batch-size", "2", "--sequence-length", "16")
    return ("--steps", str(steps), "--seeds", str(seeds), *batch)


def rksp(words: list[str]) -> None:
    """Run a command of rksp, or of the lab behind the word `lab`, and leave with its exit code."""
    if words[:1] == ["lab"]:
        lab(words[1:])
    main(words)


def said(words: Sequence[str], allowed: Sequence[int] = (0, 1)) -> tuple[int, str]:
    """Run a command; return its exit code and its output.

    Raises:
        RuntimeError: It left with another code.
    """
    out, code = io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            rksp(list(words))
        except SystemExit as left:
            code = int(left.code or 0)
    if code not in allowed:
        raise RuntimeError(f"{' '.join(words)} left with {code}: {err.getvalue()[-500:]}")
    return code, out.getvalue()


def environment() -> None:
    """Set what keeps this process and its children cheap and without a network."""
    os.environ.update({"HF_HUB_OFFLINE": "1", "PYTHONSAFEPATH": "1"})
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("MKL_NUM_THREADS", "1")
