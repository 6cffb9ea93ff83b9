"""What reading may cost: each limit on what a stranger gives, and the budgets of time.

A limit is checked before the work that it bounds. A budget of processor time ends what no limit
foresaw.
"""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from rksp.ground.errors import ArtifactError, Incomplete, InputError

MIB = 2**20
# Bytes of a file, by what it holds.
DEFAULTS, SOFTWARE, RUN_FILE = MIB, 8 * MIB, 2 * MIB  # the largest run file seen has 164 kB
TABLE, PAST_RUN, PROBE = 64 * MIB, 64 * MIB, 64 * MIB
TOKENIZER = 64 * MIB  # the largest in use has 33 MB
# Seconds of the processor.
READING, PAST_RUNS, QUERIES, ENCODING = 60.0, 300.0, 30.0, 30
ENCODER = 2**31  # bytes that the process of a tokenizer may hold; the largest in use takes a third
_INSTRUCTIONS = 10_000  # of SQLite's machine, between two looks at the clock
_NAMES = """SELECT name FROM sqlite_master WHERE type IN ('view', 'trigger')
UNION SELECT c.name FROM sqlite_master m, pragma_table_xinfo(m.name) c WHERE c.hidden > 1 LIMIT 1"""


@dataclass(frozen=True, slots=True)
class Limit:
    """The most of something that rksp reads.

    Attributes:
        most: How many.
        of: What is counted, in the plural.
    """

    most: int
    of: str

    def check(self, found: float, where: object) -> None:
        """Refuse more than the most.

        Args:
            found: How many there are.
            where: What holds them; a file, or words for the message.

        Raises:
            InputError: There are more.
        """
        if found > self.most:
            raise InputError(
                f"{where!s:.200} holds more than {self.most:,} {self.of}, the most that rksp "
                "reads; give a smaller one."
            )


KEY_PARTS = Limit(20, "parts in one dotted key")  # TOML's cost grows with their square
CODE = Limit(2**18, "characters of Python or shell")  # the largest script seen has 60 kB
DEPTH = Limit(40, "levels of settings")
SETTINGS = Limit(20_000, "settings")  # aliases and calls can unfold a kilobyte into gigabytes
KEY_CHARACTERS = Limit(2**24, "characters of dotted keys")
REFERENCES = Limit(2_000, "references")  # they can double at every step
TABLE_ROWS, TABLE_COLUMNS = Limit(100_000, "rows"), Limit(10_000, "columns")
CELLS = Limit(5_000_000, "values")  # of a table
UNPACKED = Limit(256 * MIB, "bytes once it is unpacked")
LOGGED = Limit(1_000_000, "logged values")
RUNS, ENTRIES = Limit(100_000, "runs"), Limit(200_000, "files and folders")
STORED_CELLS = Limit(1_000_000, "cells")
SEEDS = 100
LOG_LINE = 16_384  # characters; the rest of a line is not read


@contextlib.contextmanager
def reading(what: str, seconds: float = READING) -> Iterator[None]:
    """Bound what reading something may cost, whatever it holds.

    A block inside another shares its budget. There is no bound outside of the main thread, nor
    where the system has no such timer.

    Args:
        what: Named in the message.
        seconds: Of the processor. A slow disk and a busy machine do not count.

    Raises:
        InputError: It takes longer.
        Incomplete: There is not enough memory for it.
    """

    def stop(*given: object) -> None:
        raise InputError(
            f"Reading {what} took more than {seconds:g} processor seconds; give a smaller file."
        )

    is_possible = hasattr(signal, "SIGPROF") and threading.current_thread() is (
        threading.main_thread()
    )
    is_first = is_possible and not signal.getitimer(signal.ITIMER_PROF)[0]
    if is_first:
        before = signal.signal(signal.SIGPROF, stop)
        # Once more each second: the first error may be taken for one of the file's own.
        signal.setitimer(signal.ITIMER_PROF, seconds, 1.0)
    try:
        yield
    except MemoryError as error:
        raise Incomplete(
            f"Reading {what} took all the memory that this process may have; give it more, or a "
            "smaller file."
        ) from error
    finally:
        if is_first:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)


def bound_queries(base: sqlite3.Connection, where: object, seconds: float | None = QUERIES) -> None:
    """Let an SQLite file of a stranger cost no more than its tables can hold.

    Args:
        base: The open file.
        where: Its name, for the message.
        seconds: Of the processor, from now on, after which a query ends with
            `sqlite3.OperationalError`; None for a file that stays open.

    Raises:
        ArtifactError: It has views, triggers or generated columns, which can compute without an
            end.
    """
    if hasattr(base, "setlimit"):  # Python 3.11
        base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, PAST_RUN)
    if seconds is not None:
        end = time.process_time() + seconds
        base.set_progress_handler(lambda: time.process_time() > end, _INSTRUCTIONS)
    found = base.execute(_NAMES).fetchone()
    if found is not None:
        raise ArtifactError(
            f"{where!s:.200} has a view, a trigger or a generated column, {found[0]!r:.60}, and "
            "rksp reads only tables."
        )
