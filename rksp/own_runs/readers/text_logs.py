"""Text logs with a line a step: Megatron-LM, GPT-NeoX and DeepSpeed, or any `loss … lr …`.

Sources: `training_log` of Megatron-LM (core 0.16); `print_rank_0` of DeepSpeed's timers and
`report_progress` of its engine (0.18).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from rksp.ground.files import read_text
from rksp.own_runs.readers.files import LARGEST, head_of
from rksp.own_runs.run import Points, RawRun, RunReader

_NUMBER = r"([-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf))"
_COUNT = r"(\d{1,18})(?!\d)"
_STEP = re.compile(
    rf"\b(?:iteration|step|iter|global_step)\s*[:= ]\s*{_COUNT}(?:\s*/\s*{_COUNT})?", re.I
)
_METRICS = {
    "loss": re.compile(
        rf"\b(?:lm loss|train_loss|training loss|loss)\s*[:= ]\s*\[?{_NUMBER}", re.I
    ),
    "learning_rate": re.compile(rf"\b(?:learning[ _]rate|lr)\s*[:= ]\s*\[?\(?{_NUMBER}", re.I),
    "grad_norm": re.compile(rf"\b(?:grad[ _]norm)\s*[:= ]\s*{_NUMBER}", re.I),
}
_BATCH = re.compile(rf"global[ _]batch[ _]size\s*[:= ]\s*{_COUNT}", re.I)
# Megatron prints its arguments as `  name ...... value`.
_ARGUMENT = re.compile(r"^(?:\[[^\]]*\]:?)?\s*(\w+) \.{3,} (\S.*?)\s*$", re.M)
_SUFFIXES = (".log", ".txt", ".out")


def _matches(path: Path) -> bool:
    if path.suffix.lower() not in _SUFFIXES or not path.is_file():
        return False
    head = head_of(path).decode("utf-8", "replace")
    return any(
        _STEP.search(line) and _METRICS["loss"].search(line) for line in head.splitlines()
    ) or (bool(_ARGUMENT.search(head)) and "megatron" in head.lower())


def _read(path: Path) -> Iterator[RawRun]:
    text = read_text(path, LARGEST)
    points = Points()
    said: dict[str, object] = {
        name: value for name, value in _ARGUMENT.findall(text) if value not in ("None", "")
    }
    planned = 0
    for line in text.splitlines():
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
