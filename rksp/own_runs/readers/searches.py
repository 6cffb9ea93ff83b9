"""Trials of a search.

- Optuna (optuna 4 and 5): a study in an SQLite file, or in a journal.
- Ray Tune (ray 2): `result.json`, one JSON object a reported result.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rksp.ground.budgets import PAST_RUN
from rksp.ground.errors import InputError, RkspError
from rksp.ground.files import read_text
from rksp.own_runs.readers.files import address_of, head_of, queries_that_end, tables_of
from rksp.own_runs.run import Curve, Points, RawRun, RunReader
from rksp.recipe_files.columns import flat

_STATES = {"COMPLETE": "finished", "FAIL": "failed", "PRUNED": "unfinished"}


def _is_journal(path: Path) -> bool:
    return head_of(path).startswith(b'{"op_code"')


def _is_optuna(path: Path) -> bool:
    return _is_journal(path) or {"studies", "trials"} <= tables_of(path)


def _read_optuna(path: Path) -> Iterator[RawRun]:
    try:
        import optuna
    except ImportError as error:
        raise InputError(
            f"{path} is a storage of Optuna, which needs optuna; pip install 'rksp[optuna]'."
        ) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with queries_that_end(path):
            storage = _storage(path)
            studies = storage.get_all_studies()
            for study in studies:
                yield from _trials(path, study, storage)
    except (RkspError, MemoryError):
        raise
    except Exception as error:  # SQLAlchemy's, alembic's and the journal's own
        raise InputError(f"{path} is no storage that Optuna reads ({error!s:.100}).") from error


def _storage(path: Path) -> Any:
    import optuna

    if _is_journal(path):
        from optuna.storages.journal import JournalFileBackend

        return optuna.storages.JournalStorage(JournalFileBackend(str(path)))
    return optuna.storages.RDBStorage(
        address_of(path), skip_table_creation=True, skip_compatibility_check=True
    )


def _trials(path: Path, study: Any, storage: Any) -> Iterator[RawRun]:
    if len(study.directions) != 1 or study.directions[0].name != "MINIMIZE":
        raise InputError(
            f"{path}: the study {study.study_name!r:.100} does not minimize one value, so it has "
            "no loss; give a study that does."
        )
    named = storage.get_study_system_attrs(study._study_id).get("study:metric_names") or ["loss"]
    for trial in storage.get_all_trials(study._study_id, deepcopy=False):
        steps = {int(k): float(v) for k, v in trial.intermediate_values.items()}
        finals = {} if trial.values is None else {str(named[0]): float(trial.values[0])}
        yield RawRun(
            name=f"{study.study_name} {trial.number}",
            file=path,
            said=dict(study.user_attrs) | dict(trial.user_attrs) | dict(trial.params),
            finals=finals,
            curves={} if len(steps) < 2 else {str(named[0]): Curve.of(steps)},
            state=_STATES.get(trial.state.name, "unfinished"),
        )


OPTUNA = RunReader(matches=_is_optuna, read=_read_optuna)


_OWN = ("config", "hostname", "node_ip", "pid", "date", "timestamp", "trial_id", "done")
_MARKS = (b'"training_iteration"', b'"trial_id"')


def _is_ray_tune(path: Path) -> bool:
    head = head_of(path) if path.name == "result.json" else b""
    return all(mark in head for mark in _MARKS)


def _read_ray_tune(path: Path) -> Iterator[RawRun]:
    points = Points()
    last: dict[str, object] = {}
    for line in read_text(path, PAST_RUN).splitlines():
        try:
            result = json.loads(line)
        except (ValueError, RecursionError):
            continue  # the last line of a killed trial
        if not isinstance(result, dict):
            continue
        last = result
        step = result.get("step", result.get("training_iteration"))
        points.add(step, flat({k: v for k, v in result.items() if k not in _OWN}))
    if not last:
        raise InputError(f"{path} holds no result of a trial.")
    config = last.get("config")
    settings = flat(config) if isinstance(config, dict) else {}
    inner = settings.keys() & {name for name in settings if name.startswith("train_loop_config.")}
    said = {name.removeprefix("train_loop_config."): settings[name] for name in inner} or settings
    failed = (path.parent / "error.txt").is_file()
    yield RawRun(
        name=str(last.get("trial_id", path.parent.name)),
        file=path,
        said=said,
        curves=points.curves(),
        state="failed" if failed else "finished" if last.get("done") else "unfinished",
    )


RAY_TUNE = RunReader(matches=_is_ray_tune, read=_read_ray_tune)
