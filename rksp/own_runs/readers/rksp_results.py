"""What rksp itself has trained: reports of `rksp confirm` and ladders of `python -m lab run`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rksp.ground.errors import InputError
from rksp.own_runs.readers.files import head_of, read_json
from rksp.own_runs.run import Curve, RawRun, RunReader, number_of

_LADDER = "rksp-ladder-1"
_KINDS = ("grid", "score", "diff")


def _matches(path: Path) -> bool:
    if path.suffix != ".json":
        return False
    head = head_of(path)
    is_report = b'"schema_version"' in head or b'"kind"' in head or b'"arms"' in head
    return f'"{_LADDER}"'.encode() in head or is_report


def _read(path: Path) -> Iterator[RawRun]:
    document = read_json(path)
    if not isinstance(document, dict):
        raise InputError(f"{path} is no result of rksp.")
    if document.get("kind") in _KINDS:
        raise InputError(
            f"{path} is a report of rksp {document['kind']}: it holds predictions, but no run."
        )
    try:
        if document.get("schema") == _LADDER:
            yield from _ladder(path, document)
        elif document.get("kind") == "confirm":
            yield from _confirmed(path, document)
        else:
            raise InputError(f"{path} is no result of rksp.")
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise InputError(f"{path} is damaged: {error!r:.100}.") from error


def _confirmed(path: Path, report: Mapping[str, Any]) -> Iterator[RawRun]:
    """Yield the runs that differ from the baseline in the rate alone."""
    if report["faults"]:
        raise InputError(f"{path} holds runs with a planted fault, which say nothing of the rate.")
    trained, target = report["trained"], report["target"]["name"]
    for trial in report["trials"]:
        arm = str(trial["arm"])
        if arm != "baseline" and not arm.startswith("rate="):
            continue
        factor = 1.0 if arm == "baseline" else float(arm.removeprefix("rate="))
        rate = trained["learning_rate"] * factor
        points = {int(s): float("nan") if v is None else float(v) for s, v in trial["loss"]}
        yield RawRun(
            name=f"{arm} seed {trial['seed']}",
            file=path,
            said=dict(trained) | {"learning_rate": rate, "seed": trial["seed"], "target": target},
            finals={} if trial["final_loss"] is None else {"final_loss": trial["final_loss"]},
            curves={"loss": Curve.of(points)},
            state="diverged" if trial["final_loss"] is None else "finished",
        )


def _ladder(path: Path, document: Mapping[str, Any]) -> Iterator[RawRun]:
    spec = document["spec"]
    shape = {f"set.{name}": value for name, value in spec["shape"].items()}
    for run in document["runs"]:
        losses = np.array([_value(v) for v in run["loss"]])
        steps = np.arange(len(losses))
        norms = np.array([_value(v) for v in run["grad_norm"]])
        planned = int(run.get("planned_steps", spec["recipe"]["max_steps"]))
        yield RawRun(
            name=f"{path.stem} {run['learning_rate']:g}",
            file=path,
            said=dict(spec["recipe"])
            | shape
            | {"learning_rate": run["learning_rate"], "target": spec["family"]}
            | {"max_steps": planned},
            curves={
                "loss": Curve(steps=steps, values=losses),
                "grad_norm": Curve(steps=steps[: len(norms)], values=norms),
            },
            state="finished" if len(losses) >= planned else "diverged",
        )


def _value(stored: object) -> float:
    found = number_of(stored)
    if found is None:
        raise ValueError(f"{stored!r:.50} is no number")
    return found


READER = RunReader(name="a result of rksp", matches=_matches, read=_read)
