"""Text logs with a line a step: Megatron-LM, GPT-NeoX and DeepSpeed, or any `loss … lr …`.

Sources: `training_log` of Megatron-LM (core 0.16); `print_rank_0` of DeepSpeed's timers and
`report_progress` of its engine (0.18).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from rksp.ground.budgets import LOG_LINE, PAST_RUN
from rksp.ground.files import read_text
from rksp.own_runs.readers.files import head_of
from rksp.own_runs.run import Points, RawRun, RunReader

_NUMBER = r"([-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf))"
_COUNT = r"(\d{1,15})(?!\d)"
_STEP = re.compile(
    rf"\b(?:iteration|step|iter|global_step)[ \t]*[:= ][ \t]*{_COUNT}"
    rf"(?:[ \t]*/[ \t]*{_COUNT})?",
    re.I,
)
_METRICS = {
    "loss": re.compile(
        rf"\b(?:lm loss|train_loss|training loss|loss)[ \t]*[:= ][ \t]*\[?{_NUMBER}", re.I
    ),
    "learning_rate": re.compile(
        rf"\b(?:learning[ _]rate|lr)[ \t]*[:= ][ \t]*\[?\(?{_NUMBER}", re.I
    ),
    "grad_norm": re.compile(rf"\b(?:grad[ _]norm)[ \t]*[:= ][ \t]*{_NUMBER}", re.I),
}
_BATCH = re.compile(rf"global[ _]batch[ _]size[ \t]*[:= ][ \t]*{_COUNT}", re.I)
# Megatron prints its arguments as `  name ...... value`.
_ARGUMENT = re.compile(r"(?:\[[^\]]*\]:?)?[ \t]*(\w+) \.{3,} (\S.*)")
_LINE = re.compile(r"[^\r\n]++")
_SUFFIXES = (".log", ".txt", ".out")


def _matches(path: Path) -> bool:
    if path.suffix.lower() not in _SUFFIXES or not path.is_file():
        return False
    head = head_of(path).decode("utf-8", "replace")
    is_megatron = "megatron" in head.lower()
    return any(
        (_STEP.search(line) and _METRICS["loss"].search(line))
        or (is_megatron and _ARGUMENT.match(line))
        for line in _lines(head)
    )


def _lines(text: str) -> Iterator[str]:
    """Yield the lines that are not empty, each cut where no logger writes on."""
    return (found[0][:LOG_LINE].strip() for found in _LINE.finditer(text))


def _read(path: Path) -> Iterator[RawRun]:
    text = read_text(path, PAST_RUN)
    points = Points()
    said: dict[str, object] = {}
    planned = 0
    for line in _lines(text):
        argument = _ARGUMENT.match(line)
        if argument is not None and argument[2] != "None":
            said[argument[1]] = argument[2]
        step = _STEP.search(line)
        if step is None:
            continue
        planned = max(planned, int(step[2] or 0))
        found = {name: pattern.search(line) for name, pattern in _METRICS.items()}
        points.add(int(step[1]), {name: float(m[1]) for name, m in found.items() if m is not None})
        batch = _BATCH.search(line)
        if batch is not None:
            said["batch_size"] = int(batch[1])
    if planned:
        said["max_steps"] = planned
    curves = points.curves()
    done = max((curve.steps[-1] for curve in curves.values()), default=0)
    state = "" if not planned else "finished" if done >= 0.99 * planned else "unfinished"
    yield RawRun(
        name=path.stem,
        file=path,
        said=said,
        curves=curves,
        state=state,
    )


READER = RunReader(name="a text log", matches=_matches, read=_read)
