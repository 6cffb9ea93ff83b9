"""Settings of a command's own process: threads, and a stdout for only the result."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from rksp.documents.options import MeasureOptions
from rksp.models.configuration import offline

_MOST_THREADS = 1024


def default_threads() -> int:
    """Return two on CI, else half of the cores: more threads than free cores cost tenfold."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    if given.isascii() and given.isdigit() and int(given[:9]) > 0:
        return min(int(given[:9]), _MOST_THREADS)
    return 2 if os.environ.get("CI") else max(1, (os.cpu_count() or 2) // 2)


def counted_threads(options: MeasureOptions) -> MeasureOptions:
    """Return the options with the number of threads in place."""
    return options.model_copy(update={"threads": options.threads or default_threads()})


def with_threads(options: MeasureOptions) -> MeasureOptions:
    """Set the threads of torch, and return the options with their number in place."""
    import torch

    options = counted_threads(options)
    torch.set_num_threads(options.workers)
    return options


def quiet_transformers() -> None:
    """Silence the warnings and progress bars of transformers."""
    with offline():
        from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


@contextlib.contextmanager
def stdout_for_us_alone() -> Iterator[None]:
    """Send what other code prints to stderr, so that stdout carries only the result."""
    sys.stdout.flush()
    try:
        saved = os.dup(1)
    except OSError:  # no real stdout, as under a test runner that closed it
        with contextlib.redirect_stdout(sys.stderr):
            yield
        return
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)
