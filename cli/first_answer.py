"""The configuration's answer on a terminal, which stands there while the model is measured."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rksp.cli.progress import Report, live_progress

if TYPE_CHECKING:
    from rich.console import Console

_MEASURING = "  measuring… (this is what the configuration alone says)"
_STANDS = "  not measured: this is what the configuration alone says"


class FirstAnswerStands(KeyboardInterrupt):
    """The measurement was interrupted; the configuration's answer is on the terminal."""


@contextmanager
def terminal_of_stdout(*, is_wanted: bool) -> Iterator[Console | None]:
    """Yield a console on the terminal behind stdout, which works while stdout is not ours.

    It is None where stdout is a file, a pipe or a terminal that cannot erase.
    """
    if not (is_wanted and sys.stdout.isatty()) or os.environ.get("TERM") in ("dumb", "unknown"):
        yield None
        return
    from rich.console import Console

    sys.stdout.flush()
    again = os.dup(sys.stdout.fileno())
    with os.fdopen(again, "w", encoding=sys.stdout.encoding) as terminal:
        yield Console(file=terminal, highlight=False)


@contextmanager
def standing(page: Any, terminal: Console) -> Iterator[Report]:
    """Show a page with live progress below it, and erase both at the end.

    If the block is interrupted, the page stays and says that nothing was measured.

    Args:
        page: What to draw.
        terminal: Where.

    Raises:
        FirstAnswerStands: The block was interrupted.
    """
    try:
        with live_progress(console=terminal, above=(page, _MEASURING)) as report:
            yield report
    except KeyboardInterrupt:
        terminal.print(page)
        terminal.print(_STANDS, markup=False)
        raise FirstAnswerStands from None
