"""Sinks for readings and alarms: a file, or an experiment tracker."""

from __future__ import annotations

import importlib
import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from rksp.ground.errors import ArtifactError, InputError
from rksp.ground.files import atomic_write, check_link, write_failure
from rksp.ground.reading import open_lines, parse_json
from rksp.watch.monitors.base import Alarm, Reading, Severity
from rksp.watch.registry import RULES, rule_of

T = TypeVar("T")
_DETAIL = "detail."
_LONGEST = 2**20  # characters of a line


class Sink(ABC):
    """Receives readings and alarms call by call."""

    @abstractmethod
    def write(self, readings: Sequence[Reading], alarms: Sequence[Alarm]) -> None:
        """Write what is new; called after every phase of every step, often with nothing."""

    def close(self) -> None:
        """Flush and close."""
        return None


class JsonLines(Sink):
    """One flat JSON object a line, flushed after every step: the source of truth of a run.

    An existing file is continued, without an incomplete last line. JSON has no infinity and no NaN,
    so such values are written as the strings `"inf"`, `"-inf"`, `"nan"`.

    Args:
        path: The file; its folder must exist.
        from_step: First drop the records of this step and later ones, for a run that resumes from a
            checkpoint.

    Raises:
        InputError: The file cannot be written.
        Incomplete: The disk is full or failed, at any step.
    """

    def __init__(self, path: str | os.PathLike[str], *, from_step: int | None = None) -> None:
        self.path = Path(path)
        check_link(self.path)
        try:
            self._repair(from_step)
            self._file = self.path.open("ab", buffering=0)
        except OSError as error:
            raise InputError(
                f"The monitor log {self.path} cannot be written ({error.strerror}); "
                "give a path in a folder that exists."
            ) from error

    def write(self, readings: Sequence[Reading], alarms: Sequence[Alarm]) -> None:
        lines = [_line_of_reading(reading) for reading in readings]
        lines += [text_of_record("alarm", asdict(alarm)) for alarm in alarms]
        self._append("".join(lines))

    def close(self) -> None:
        self._file.close()

    def _append(self, text: str) -> None:
        data = text.encode()
        try:
            while data:  # a disk that is almost full takes a part
                data = data[self._file.write(data) :]
        except OSError as error:
            raise write_failure(self.path, error) from error

    def _repair(self, from_step: int | None) -> None:
        if not self.path.exists():
            return
        whole = [line for line in self.path.read_bytes().splitlines(True) if line.endswith(b"\n")]
        if from_step is not None:
            whole = [line for line in whole if json.loads(line)["step"] < from_step]
        kept = b"".join(whole)
        if len(kept) < self.path.stat().st_size:
            atomic_write(self.path, kept)


def read_lines(path: Path, record: Callable[[dict[str, Any]], T]) -> Iterator[T]:
    """Yield the record of every line of a log; a last line that is cut off is left out.

    Raises:
        InputError: The file cannot be read.
        ArtifactError: A line is not a record of such a log.
    """
    for number, line in enumerate(open_lines(path, _LONGEST), 1):
        try:
            if line.endswith("\n"):
                yield record(parse_json(line, path))
        except (InputError, ValueError, TypeError, LookupError, AttributeError) as error:
            raise ArtifactError(
                f"Line {number} of {path} is not a record of a monitor log ({error}); "
                "the file was changed, or another program wrote it."
            ) from error


def record_of(line: dict[str, Any]) -> Reading | Alarm:
    """Return the reading or the alarm of a line that `JsonLines` wrote.

    Raises:
        ValueError, TypeError, LookupError: It is neither.
    """
    known = {name: value for name, value in line.items() if name != "kind"}
    for name in ("value", "baseline"):
        if known.get(name) is not None:
            known[name] = float(known[name])  # "nan" is one
    if line["kind"] == "reading":
        detail = {name: known.pop(name) for name in list(known) if name.startswith(_DETAIL)}
        rest = {name.removeprefix(_DETAIL): float(value) for name, value in detail.items()}
        return Reading(**known, detail=rest)
    known["severity"] = Severity(known["severity"])
    return Alarm(**known)


def _line_of_reading(reading: Reading) -> str:
    entries = asdict(reading)
    detail = entries.pop("detail")
    return text_of_record(
        "reading", entries | {_DETAIL + name: value for name, value in detail.items()}
    )


def text_of_record(kind: str, entries: Mapping[str, object]) -> str:
    """Return a line of a log; what is no number of JSON is a string."""
    safe = {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in entries.items()
    }
    return json.dumps({"kind": kind, **safe}, allow_nan=False) + "\n"


class TensorBoard(Sink):
    """Scalars `rksp/monitor/quantity/layer` in an event file, and alarms as text."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        _needed("tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(os.fspath(folder))

    def write(self, readings: Sequence[Reading], alarms: Sequence[Alarm]) -> None:
        for reading in readings:
            self._writer.add_scalar(_tag(reading), reading.value, reading.step)
        for alarm in alarms:
            self._writer.add_text("rksp/alarms", sentence(alarm), alarm.step)

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases(Sink):
    """Logs into the run that `wandb.init` opened; rksp never opens one. Alarms become its alerts.

    An alert is sent at the first alarm of each quantity and severity, so that an episode that comes
    and goes is one message. The run's log holds all alarms.
    """

    def __init__(self) -> None:
        wandb = _needed("wandb")
        if wandb.run is None:
            raise InputError("No W&B run is active; call wandb.init() first.")
        self._run = wandb.run
        self._run.define_metric("rksp/*", step_metric="rksp/step")
        levels = wandb.AlertLevel
        self._levels = {Severity.WARN: levels.WARN, Severity.CRITICAL: levels.ERROR}
        self._seen: set[tuple[str, str, str]] = set()

    def write(self, readings: Sequence[Reading], alarms: Sequence[Alarm]) -> None:
        for step, values in _by_step(readings):
            self._run.log({"rksp/step": step, **values})
        for alarm in alarms:
            self._run.log({"rksp/step": alarm.step, "rksp/alarm": sentence(alarm)})
        for alarm in _first(alarms, self._seen):
            self._run.alert(
                title=f"rksp: {alarm.quantity} {alarm.severity}",
                text=f"Step {alarm.step}: {sentence(alarm)}",
                level=self._levels[alarm.severity],
            )


class MLflow(Sink):
    """Logs into the run that `mlflow.start_run` opened; rksp never opens one. Alarms become tags.

    A quantity has one tag for each severity, `rksp.alarm.critical.loss`, with its first such alarm.
    """

    def __init__(self) -> None:
        self._mlflow = _needed("mlflow")
        if self._mlflow.active_run() is None:
            raise InputError("No MLflow run is active; call mlflow.start_run() first.")
        self._seen: set[tuple[str, str, str]] = set()

    def write(self, readings: Sequence[Reading], alarms: Sequence[Alarm]) -> None:
        for step, values in _by_step(readings):
            self._mlflow.log_metrics(values, step=step)
        for alarm in _first(alarms, self._seen):
            name = f"rksp.alarm.{alarm.severity}.{alarm.quantity}"
            self._mlflow.set_tag(name, f"step {alarm.step}: {sentence(alarm)}")


class Trackio(Sink):
    """Logs into the run that `trackio.init` opened; rksp never opens one."""

    def __init__(self) -> None:
        trackio = _needed("trackio")
        self._run = trackio.context_vars.current_run.get()
        if self._run is None:
            raise InputError("No Trackio run is active; call trackio.init() first.")

    def write(self, readings: Sequence[Reading], alarms: Sequence[Alarm]) -> None:
        for step, values in _by_step(readings):
            self._run.log(values, step=step)
        for alarm in alarms:
            self._run.log({"rksp/alarm": sentence(alarm)}, step=alarm.step)


def _first(alarms: Sequence[Alarm], seen: set[tuple[str, str, str]]) -> Iterator[Alarm]:
    for alarm in alarms:
        key = (alarm.monitor, alarm.quantity, alarm.severity)
        if key not in seen:
            seen.add(key)
            yield alarm


def _needed(package: str) -> ModuleType:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise InputError(
            f"This sink needs {package}; pip install {package}, or log to JSON Lines."
        ) from error


def _by_step(readings: Sequence[Reading]) -> Iterator[tuple[int, dict[str, float]]]:
    steps: dict[int, dict[str, float]] = {}
    for reading in readings:
        steps.setdefault(reading.step, {})[_tag(reading)] = reading.value
    yield from steps.items()


def _tag(reading: Reading) -> str:
    parts = ("rksp", reading.monitor, reading.quantity, reading.layer)
    return "/".join(part for part in parts if part)


def sentence(alarm: Alarm) -> str:
    """Return an alarm in one line, for logs and trackers."""
    return f"{alarm.severity}: {said(alarm)}"


def said(alarm: Alarm) -> str:
    """Return an alarm as people say it."""
    if alarm.text:
        return alarm.text
    where = f" of {alarm.layer}" if alarm.layer else ""
    value, usual = f"{alarm.value:.4g}", alarm.baseline
    what = alarm.quantity.removeprefix("non_finite_").replace("_", " ")
    if alarm.quantity.startswith("non_finite") or not math.isfinite(alarm.value):
        return f"{what}{where} not finite"
    if alarm.quantity == "loss" and usual is not None:
        return f"the loss jumped to {value}, from {usual:.4g}"
    return f"{what}{where} is {value}" + ("" if usual is None else f" (usual {usual:.4g})")


class Latest(Sink):
    """Keeps one number for each quantity: that of the whole model, or else of the worst layer.

    The worst value is the smallest if a fall is bad, and otherwise the largest.

    Attributes:
        values: `rksp/monitor/quantity` → its newest value; `rksp/alarms` counts the alarms so far.
    """

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self._alarms = 0

    def write(self, readings: Sequence[Reading], alarms: Sequence[Alarm]) -> None:
        new: dict[str, list[Reading]] = {}
        for reading in readings:
            new.setdefault(f"rksp/{reading.monitor}/{reading.quantity}", []).append(reading)
        for tag, group in new.items():
            self.values[tag] = worst(group)
        self._alarms += len(alarms)
        if self.values:
            self.values["rksp/alarms"] = float(self._alarms)


def worst(readings: Sequence[Reading]) -> float:
    """Return the value of the whole model, or else the worst of its layers."""
    values = [r.value for r in readings if not r.layer] or [r.value for r in readings]
    bad = next((value for value in values if not math.isfinite(value)), None)
    if bad is not None:
        return bad
    falls = rule_of(readings[0].quantity, RULES).direction == "down"
    return min(values) if falls else max(values)
