"""What `rksp explain` says of a lever: what it does, its size, and why a page may not name it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rksp.ground.text import short

if TYPE_CHECKING:
    from rksp.classifiers.levers.catalogue import Lever


def lever_rows(word: str) -> list[tuple[str, str]]:
    """Return what is known of the lever of this name; of all levers for `levers`; else nothing."""
    from rksp.classifiers.levers.catalogue import BY_NAME

    wanted = word.strip().lower().replace("-", "_")
    if wanted in ("lever", "levers"):
        return [(name, lever.sentence) for name, lever in BY_NAME.items()]
    return list(_rows(wanted)) if wanted in BY_NAME else []


def _rows(name: str) -> Iterator[tuple[str, str]]:
    from rksp.classifiers.levers.catalogue import BY_NAME
    from rksp.classifiers.levers.effects import load_lever_table

    lever, table = BY_NAME[name], load_lever_table()
    yield "Lever", lever.sentence
    for kind, sizes in sorted(table.sizes.items()):
        size = sizes.get(name)
        if size is None or size.pooled:
            continue
        ends = ""
        if size.low is not None and size.high is not None:
            ends = f" [{_times(size.low)}, {_times(size.high)}]"
        loss = "most runs diverge with it" if size.loss is None else f"{size.loss:+.2f} nats"
        yield (
            f"In {kind}s",
            f"the edge {_times(size.shift)}{ends}, {loss}, {size.cost:.2f} times the time a step; "
            f"{size.pairs} pairs of {len(size.families)} families",
        )
        yield "Named", _named(size.is_sound, lever)
    yield "See", f"rksp score TARGET --apply {name}"


def _times(decades: float) -> str:
    return f"{short(10**decades, 2)}×"


def _named(is_sound: bool, lever: Lever) -> str:
    if lever.held_back:
        return f"on no page: {lever.held_back}"
    if is_sound:
        blocks = "of models without parallel blocks, " if lever.is_sequential else ""
        steps = f"of runs of {lever.longest} steps at most, " if lever.longest else ""
        return f"on pages {blocks}{steps}where it is not on already"
    return "on no page: the pairs do not show that it raises the edge of another family cheaply"
