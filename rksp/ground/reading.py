"""The one door for what strangers give: text of a regular file, and what it may hold once parsed.

A file comes in by `files.read_text` or `read_limited` with its kind's size of `budgets`, or line by
line by `open_lines`; JSON by `parse_json`, and everything that is parsed passes `bounded`. A test
(`tests/security/test_one_door.py`) forbids other ways in the product.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rksp.ground.budgets import DEPTH, KEY_CHARACTERS, SETTINGS, Limit
from rksp.ground.errors import InputError
from rksp.ground.files import read_head

_LARGEST = 10**300  # beyond it a whole number is no float


def open_lines(path: Path, longest: int) -> Iterator[str]:
    """Yield the lines of a regular UTF-8 file with their ends, a longer one in pieces.

    Raises:
        InputError: It is missing, unreadable, no regular file, or not UTF-8 text.
    """
    read_head(path, 0)  # refuses a pipe and a device, which would be waited for
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(descriptor, encoding="utf-8-sig") as file:
            yield from iter(lambda: file.readline(longest), "")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path!s:.200} cannot be read: {error!s:.200}.") from None


def parse_json(
    text: str | bytes,
    where: object,
    *,
    most: Limit = SETTINGS,
    pairs: Callable[[list[tuple[str, Any]]], Any] | None = None,
) -> Any:
    """Parse JSON that may cost no more than it shows.

    Args:
        text: The content.
        where: What holds it, for messages.
        most: How many values it may hold.
        pairs: Makes an object from its pairs.

    Raises:
        InputError: It is not JSON, with line and column, or holds too much.
    """
    try:
        return bounded(json.loads(text, object_pairs_hook=pairs), where, most=most)
    except json.JSONDecodeError as error:
        place = f"{where!s:.200}:{error.lineno}:{error.colno}"
        raise InputError(f"{place}: not valid JSON, {error.msg}.") from error
    except (ValueError, RecursionError) as error:  # digits without end, or levels
        raise InputError(f"{where!s:.200}: not valid JSON, {error!s:.100}.") from error


def bounded(tree: object, where: object, *, most: Limit = SETTINGS) -> object:
    """Return parsed data whose unfolded tree, where what is shared counts each time, is bearable.

    Raises:
        InputError: It has too many values or levels, too long dotted keys, or a whole number that
            no float holds.
    """
    size, count, waiting = 0, 0, [(0, 0, tree)]
    while waiting:
        above, depth, value = waiting.pop()
        count += 1
        most.check(count, where)
        if isinstance(value, Mapping):
            DEPTH.check(depth, where)
            size += sum(above + len(str(name)) for name in value)
            KEY_CHARACTERS.check(size, where)
            waiting += [
                (above + len(str(name)) + 1, depth + 1, inner) for name, inner in value.items()
            ]
        elif isinstance(value, list):
            DEPTH.check(depth, where)
            waiting += [(above, depth + 1, inner) for inner in value]
        elif isinstance(value, int) and abs(value) > _LARGEST:
            raise InputError(f"{where!s:.200} holds a number of more than 300 digits.")
    return tree
