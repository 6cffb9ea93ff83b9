"""What a reader of one trainer's files consists of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rksp.recipe_files.document import Document
from rksp.recipe_files.origin import Draft


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One trainer's format.

    Attributes:
        name: For `--as` and in tables.
        title: For people.
        matches: Whether a document looks like this trainer's.
        read: Fills a draft from its document.
    """

    name: str
    title: str
    matches: Callable[[Document], bool]
    read: Callable[[Draft], None]
