"""Check the settings that a grid varies against its models, before anything is measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rksp.grid.cell import Cell
from rksp.ground.errors import InputError
from rksp.ground.factory import is_factory
from rksp.models.settings import ModelSettings, settings_of


def check_names(cells: Sequence[Cell], *, allow_hub: bool = False) -> tuple[str, ...]:
    """Return notes on the settings of a grid: what a name means, and which cells cannot run.

    Args:
        cells: The cells of the grid.
        allow_hub: Fetch the configuration of a Hub model that the cache lacks.

    Raises:
        InputError: No cell can run, because each sets something that its model does not have.
    """
    settings: dict[str, ModelSettings | None] = {}
    refused: Counter[str] = Counter()
    meant: dict[str, None] = {}
    for cell in cells:
        if not cell.overrides or is_factory(cell.target):  # a factory refuses every setting
            continue
        if cell.target not in settings:
            settings[cell.target] = settings_of(cell.target, allow_hub=allow_hub)
        known = settings[cell.target]
        if known is None:  # the worker says what is wrong with the target
            continue
        unknown = [name for name in cell.overrides if name not in known]
        if unknown:
            refused[_sentence(cell.target, known, unknown[0])] += 1
        elif "dropout" in cell.overrides and known.dropouts:
            meant[f"dropout sets {', '.join(known.dropouts)} of {cell.target}."] = None
    if sum(refused.values()) == len(cells) and cells:
        raise InputError(" ".join(refused))
    return (*meant, *(f"{_cells(n)} cannot run: {why}" for why, n in refused.items()))


def _sentence(target: str, known: ModelSettings, name: str) -> str:
    return (
        f"{name} is neither a field of the recipe nor a setting of {target}{known.close(name)} "
        f"Use --ignore {name} to leave the axis out."
    )


def _cells(count: int) -> str:
    return "1 cell" if count == 1 else f"{count} cells"
