"""Finished runs of a confirmation in a folder, so that an interrupted one can go on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from rksp.documents.confirm import PredictionReport, TrialReport
from rksp.errors import InputError
from rksp.monitors.sinks import JsonLines, Sink
from rksp.training.checkpoints import Checkpoints


class _File(BaseModel):
    """What a file holds, and the settings that it is valid for."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    settings: str
    trial: TrialReport | None = None
    prediction: PredictionReport | None = None


class Kept:
    """What a folder holds of one confirmation; without a folder nothing is kept.

    A file made with other settings is as good as none: the run is trained again and replaces it.

    Args:
        folder: Made if missing.
        settings: Everything that all runs depend on.

    Raises:
        InputError: The folder cannot be made.
    """

    def __init__(self, folder: Path | None, settings: Mapping[str, object]) -> None:
        self.folder = folder
        text = json.dumps(settings, sort_keys=True, default=str)
        self._settings = hashlib.sha256(text.encode()).hexdigest()[:16]
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(f"--keep {folder} is no folder: {error.strerror}.") from None

    def trial(self, arm: str, seed: int) -> TrialReport | None:
        """The finished run of an arm at a seed."""
        found = self._read(_name(arm, seed))
        return found.trial if found is not None and found.trial is not None else None

    def keep_trial(self, trial: TrialReport) -> None:
        """Writes a finished run."""
        self._write(_name(trial.arm, trial.seed), trial=trial)

    def prediction(self) -> PredictionReport | None:
        """What was predicted of these settings."""
        found = self._read("prediction")
        return None if found is None else found.prediction

    def keep_prediction(self, prediction: PredictionReport) -> None:
        """Writes what was predicted."""
        self._write("prediction", prediction=prediction)

    def sinks(self, arm: str, seed: int) -> Sequence[Sink]:
        """The log of a run that is about to start, without what an interrupted one left in it."""
        path = self._path(_name(arm, seed), ".jsonl")
        return [] if path is None else [JsonLines(path, from_step=0)]

    def checkpoints(self, arm: str, seed: int) -> Checkpoints | None:
        """Where a run's states from before trouble go."""
        path = self._path(_name(arm, seed), "")
        return None if path is None else Checkpoints(path)

    def _path(self, name: str, suffix: str) -> Path | None:
        return None if self.folder is None else self.folder / f"{name}{suffix}"

    def _read(self, name: str) -> _File | None:
        path = self._path(name, ".json")
        if path is None or not path.exists():
            return None
        try:
            found = _File.model_validate_json(path.read_bytes())
        except ValidationError:  # of an older rksp
            return None
        return found if found.settings == self._settings else None

    def _write(self, name: str, **content: BaseModel) -> None:
        path = self._path(name, ".json")
        if path is None:
            return
        partial = path.with_suffix(".partial")
        file = _File(settings=self._settings, **content)
        partial.write_text(file.model_dump_json(indent=1, exclude_none=False), encoding="utf-8")
        partial.replace(path)


def _name(arm: str, seed: int) -> str:
    safe = "".join(c if c.isalnum() or c in "-._" else "-" for c in arm)
    return f"{safe}-seed-{seed}"
