"""Studies of Optuna (optuna 4 and 5): an SQLite file, or a journal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rksp.ground.errors import InputError, RkspError
from rksp.own_runs.readers.files import head_of
from rksp.own_runs.readers.sqlite import queries_that_end, tables_of, uri_of
from rksp.own_runs.run import Curve, RawRun, RunReader

_STATES = {"COMPLETE": "finished", "FAIL": "failed", "PRUNED": "unfinished"}


def _is_journal(path: Path) -> bool:
    return head_of(path).startswith(b'{"op_code"')


def _matches(path: Path) -> bool:
    return _is_journal(path) or {"studies", "trials"} <= tables_of(path)


def _read(path: Path) -> Iterator[RawRun]:
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
    # Quoted twice: SQLAlchemy undoes the first, SQLite the second.
    where = f"sqlite:///{quote(uri_of(path), safe=':/')}?mode=ro&uri=true"
    return optuna.storages.RDBStorage(
        where, skip_table_creation=True, skip_compatibility_check=True
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


READER = RunReader(name="an Optuna study", matches=_matches, read=_read)
