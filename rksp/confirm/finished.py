"""The finished runs of a confirmation in a folder, from which an interrupted one resumes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from pydantic import BaseModel, ValidationError

from rksp.documents.confirm import PredictionReport, TrialReport
from rksp.ground.files import ResultFolder, digest
from rksp.ground.model import Strict
from rksp.watch.monitors.sinks import JsonLines, Sink
from rksp.watch.training.checkpoints import Checkpoints


class _File(Strict):
    """The contents of a file, and the settings for which they are valid."""

    settings: str
    trial: TrialReport | None = None
    prediction: PredictionReport | None = None


class FinishedRuns:
    """The finished runs of one confirmation in a folder; without a folder nothing is stored.

    A file made with other settings counts as missing: the run is trained again and replaces it.

    Args:
        folder: The folder, created if missing; None stores nothing.
        settings: Everything that all runs depend on.

    Raises:
        InputError: The folder cannot be made.
    """

    def __init__(self, folder: Path | None, settings: Mapping[str, object]) -> None:
        self._results = None if folder is None else ResultFolder(folder)
        self._settings = digest(json.dumps(settings, sort_keys=True, default=str))

    def alone(self) -> AbstractContextManager[None]:
        """Lock the folder for this process.

        Raises:
            InputError: Another confirmation works in it.
        """
        return nullcontext() if self._results is None else self._results.alone()

    def trial(self, arm: str, seed: int) -> TrialReport | None:
        """Return the finished run of an arm at a seed."""
        found = self._read(_name(arm, seed))
        return found.trial if found is not None and found.trial is not None else None

    def keep_trial(self, trial: TrialReport) -> None:
        """Store a finished run."""
        self._write(_name(trial.arm, trial.seed), trial=trial)

    def prediction(self) -> PredictionReport | None:
        """Return the stored prediction for these settings."""
        found = self._read("prediction")
        return None if found is None else found.prediction

    def keep_prediction(self, prediction: PredictionReport) -> None:
        """Store the prediction."""
        self._write("prediction", prediction=prediction)

    def sinks(self, arm: str, seed: int) -> Sequence[Sink]:
        """Return the log of a run that is about to start, emptied of an interrupted run's lines."""
        path = self._path(_name(arm, seed), ".jsonl")
        return [] if path is None else [JsonLines(path, from_step=0)]

    def checkpoints(self, arm: str, seed: int) -> Checkpoints | None:
        """Return the store for a run's states from before an alarm."""
        path = self._path(_name(arm, seed), "")
        return None if path is None else Checkpoints(path)

    def _path(self, name: str, suffix: str) -> Path | None:
        return None if self._results is None else self._results.path(name, suffix)

    def _read(self, name: str) -> _File | None:
        content = None if self._results is None else self._results.read(name)
        if content is None:
            return None
        try:
            found = _File.model_validate_json(content)
        except ValidationError:  # written by an older rksp
            return None
        return found if found.settings == self._settings else None

    def _write(self, name: str, **content: BaseModel) -> None:
        if self._results is not None:
            file = _File(settings=self._settings, **content)
            self._results.write(name, file.model_dump_json(indent=1, exclude_none=False))


def _name(arm: str, seed: int) -> str:
    safe = "".join(c if c.isalnum() or c in "-._" else "-" for c in arm)
    return f"{safe}-seed-{seed}"
