"""The cells of a grid in words: their settings, errors and findings."""

from __future__ import annotations

from collections.abc import Iterable

from rksp.documents.finding import LEVELS
from rksp.documents.grid import FAILED, GridReport, Record
from rksp.ground.text import short
from rksp.recipe_files.columns import canonical

_MOST_AXES = 8  # more are named in the table alone
_NOT_SETTINGS = ("position", "model", "reasons", "findings", "failure", "message", "verdict")
_ANSWERS = (
    *("start_here", "start_excess", "start_failed", "do_not_exceed", "expected_excess"),
    *("lever", "lever_factor"),
)


class Settings:
    """Names each cell by what varies over the shown cells.

    Attributes:
        axes: What varies, the learning rate first; a recipe's fields by their own names.
    """

    def __init__(self, report: GridReport) -> None:
        known: set[str] = set().union(*report.cells)
        told = [n for n in known if _is_setting(n) and (n in report.axes or n[:4] != "set.")]
        varied = [name for name in told if _varies(name, report.cells)]
        fields = {name: canonical(name)[1] for name in varied}
        own = [name for name in varied if fields[name] == name or fields[name] not in known]
        self.axes = sorted(own, key=lambda name: (name != "learning_rate", name))[:_MOST_AXES]

    def __call__(self, cell: Record, *, but: str = "") -> str:
        """Return the cell by what varies, except one axis: `learning_rate=6e-4 n_layer=4`."""
        words = [
            f"{axis}={word(cell[axis])}"
            for axis in self.axes
            if axis != but and cell.get(axis) is not None
        ]
        return " ".join(words) or str(cell["model"])

    def broken(self, cells: Iterable[Record]) -> dict[str, list[str]]:
        """Map each error message to the settings that it stopped."""
        found: dict[str, list[str]] = {}
        for cell in cells:
            if cell["verdict"] == FAILED:
                found.setdefault(str(cell["message"]), []).append(self(cell))
        return found


def by_level(cell: Record) -> str:
    """Return the cell's findings by level, such as `error RKSP501; warning RKSP502, RKSP503`."""
    found: dict[str, list[str]] = {level: [] for level in reversed(LEVELS)}
    for finding in cell["findings"]:
        found.setdefault(finding["level"], []).append(finding["code"])
    return "; ".join(f"{level} {', '.join(codes)}" for level, codes in found.items() if codes)


def first_lever(cell: Record) -> str:
    """Return the lever that raises the cell's edge the most, with its size: `warmup 1.3×`."""
    name, factor = cell.get("lever"), cell.get("lever_factor")
    return f"{name} {short(factor, 2)}×" if name and factor else ""


def assumed_run(report: GridReport, cell: Record) -> str:
    """Say of how long a run a cell's warm-up is a part, where nobody decided; else empty."""
    steps, warmup = cell.get("max_steps"), cell.get("warmup_steps")
    if "max_steps" not in report.assumed or not warmup:
        return ""
    return f"a warm-up of {warmup} in an assumed run of {steps} steps"


def word(value: object) -> str:
    """Format a setting's value for a table."""
    return "–" if value is None else short(value, 4) if isinstance(value, float) else str(value)


def _varies(name: str, cells: Iterable[Record]) -> bool:
    """Tell whether cells have two values of a setting, as they are printed."""
    values = [value for cell in cells if (value := cell.get(name)) is not None]
    if not values or (values.count(values[0]) == len(values) and len(set(map(type, values))) == 1):
        return False
    first = values[0]
    return any(
        (type(value) is not type(first) or value != first) and str(value) != str(first)
        for value in values
    )


def _is_setting(name: str) -> bool:
    return name not in (*_NOT_SETTINGS, *_ANSWERS) and not name.startswith(
        ("probability_", "likely_")
    )
