"""Columns of a table of runs that set a recipe, a model or a seed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from rksp.models.settings import settings_of
from rksp.recipe_files.columns import canonical, names_weights


class Columns:
    """Tells the columns that set a cell's recipe, model or seed from metrics and names.

    Attributes:
        ignored: The names of the others, of every row so far.
    """

    def __init__(self, *, allow_hub: bool = False) -> None:
        self.ignored: set[str] = set()
        self._settings = lru_cache(lambda target: settings_of(target, allow_hub=allow_hub))

    def chosen(self, row: Mapping[str, object], target: str | None) -> dict[str, object]:
        """Return what a row sets.

        A column without a prefix is a setting of the model if the configuration of the row's
        target has it. Beside stored weights it counts only where it differs from theirs.

        Args:
            row: Values by column.
            target: The model, if the row names none.
        """
        own = next((str(row[n]) for n in ("target", *row) if _is_target(n) and n in row), target)
        known = self._settings(own) if own is not None else None
        point = {}
        for name, value in row.items():
            kind, setting = canonical(name)
            if kind == "set" and not name.startswith("set."):
                if known is None or setting not in known:
                    self.ignored.add(name)
                    continue
                value = _typed(value, known.value(setting))
                if known.has_weights and value == known.value(setting):
                    continue
            elif _names_target_again(name, value, row):
                self.ignored.add(name)
                continue
            point[name] = value
        return point

    def notes(self) -> list[str]:
        """Return a note that names the ignored columns; none if there are none."""
        names = ", ".join(sorted(self.ignored))
        return [f"Ignored columns (neither recipe nor settings of the model): {names}."] * bool(
            names
        )


def _is_target(name: str) -> bool:
    return canonical(name)[0] == "target"


def _names_target_again(name: str, value: object, row: Mapping[str, object]) -> bool:
    """Tell whether a column adds nothing to `target`; the name of its weights adds that."""
    if not _is_target(name) or name == "target" or "target" not in row:
        return False
    return value != row["target"] or not names_weights(name)


def _typed(value: object, like: object) -> object:
    """Convert 2.0 to 2 where the setting is a whole number: a column with gaps holds floats."""
    is_whole = isinstance(like, int) and not isinstance(like, bool)
    return int(value) if is_whole and isinstance(value, float) and value.is_integer() else value
