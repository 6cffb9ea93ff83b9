"""Runs of MLflow (mlflow 2 and 3): a folder `mlruns`, or its SQLite file."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rksp.ground.errors import InputError, RkspError
from rksp.own_runs.metrics import is_loss, is_rate
from rksp.own_runs.readers.files import head_of
from rksp.own_runs.readers.sqlite import queries_that_end, tables_of, uri_of
from rksp.own_runs.run import Curve, RawRun, RunReader

_PAGE = 1000  # runs fetched at once
_STATES = {"FINISHED": "finished", "FAILED": "failed", "KILLED": "killed"}


def _matches(path: Path) -> bool:
    if path.is_dir():
        return any(b"experiment_id" in head_of(p / "meta.yaml") for p in path.iterdir())
    return {"experiments", "runs", "latest_metrics"} <= tables_of(path)


def _read(path: Path) -> Iterator[RawRun]:
    try:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow 3.10 refuses folders
        from mlflow import MlflowClient
    except ImportError as error:
        raise InputError(
            f"{path} is MLflow's, which needs mlflow; pip install 'rksp[mlflow]'."
        ) from error
    logging.getLogger("mlflow").setLevel(logging.ERROR)
    is_folder = path.is_dir()
    where = path.absolute().as_uri() if is_folder else _address(path)
    try:
        with queries_that_end(path):
            client = MlflowClient(tracking_uri=where)
            experiments = [e.experiment_id for e in client.search_experiments()]
            token: str | None = None
            while experiments:
                page = client.search_runs(experiments, max_results=_PAGE, page_token=token)
                yield from (_run(path, client, run) for run in page)
                token = page.token
                if not token:
                    return
    except (RkspError, MemoryError):
        raise
    except Exception as error:  # MLflow's and SQLAlchemy's own
        raise InputError(f"{path} is nothing that MLflow reads ({error!s:.100}).") from error


def _address(path: Path) -> str:
    """Return the address of an SQLite file, opened for reading alone."""
    return f"sqlite:///{quote(uri_of(path), safe=':/')}?mode=ro&uri=true"


def _run(path: Path, client: Any, run: Any) -> RawRun:
    wanted = [name for name in run.data.metrics if is_loss(name) or is_rate(name)]
    curves = {}
    for name in wanted:
        history = client.get_metric_history(run.info.run_id, name)
        if len(history) > 1:
            curves[name] = Curve.of({int(m.step): float(m.value) for m in history})
    return RawRun(
        name=run.info.run_name or run.info.run_id,
        file=path,
        said=dict(run.data.params),
        finals=dict(run.data.metrics),
        curves=curves,
        state=_STATES.get(run.info.status, "unfinished"),
    )


READER = RunReader(name="MLflow's runs", matches=_matches, read=_read, takes_folders=True)
