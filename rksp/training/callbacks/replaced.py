"""Methods of a trainer's objects that are replaced for the time of a training."""

from __future__ import annotations

import functools
from collections.abc import Callable


class Replaced:
    """Replaces methods of objects, and puts them back."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def method(self, owner: object, name: str, make: Callable[[Callable], Callable]) -> None:
        """Puts `make(method)` in the place of `owner.name`; a method of the class stays there."""
        original = getattr(owner, name)
        if name in vars(owner):
            self._undo.append(lambda: setattr(owner, name, original))
        else:
            self._undo.append(lambda: delattr(owner, name))
        setattr(owner, name, functools.wraps(original)(make(original)))

    def restore(self) -> None:
        """Puts everything back, the last first."""
        while self._undo:
            self._undo.pop()()
