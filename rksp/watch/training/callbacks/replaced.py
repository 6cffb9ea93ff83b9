"""Replace methods of a trainer's objects during a training."""

from __future__ import annotations

import functools
from collections.abc import Callable


class Replaced:
    """Replaces methods of objects and restores them."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def method(self, owner: object, name: str, make: Callable[[Callable], Callable]) -> None:
        """Replace `owner.name` by `make(method)`; a method of the class stays in the class."""
        original = getattr(owner, name)
        if name in vars(owner):
            self._undo.append(lambda: setattr(owner, name, original))
        else:
            self._undo.append(lambda: delattr(owner, name))
        setattr(owner, name, functools.wraps(original)(make(original)))

    def restore(self) -> None:
        """Restore all methods, the last replaced first."""
        while self._undo:
            self._undo.pop()()
