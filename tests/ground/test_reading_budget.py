"""Reading ends: what takes longer than its budget of processor time is refused in a sentence."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from rksp.ground.budgets import reading
from rksp.ground.errors import InputError


def _work(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        sum(range(1000))


def test_what_reads_too_long_is_refused_and_names_itself() -> None:
    with (
        pytest.raises(InputError, match="Reading the plan x took more than"),
        reading("the plan x", 0.05),
    ):
        _work(5)
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)


def test_an_error_that_was_swallowed_comes_again() -> None:
    swallowed = 0
    with pytest.raises(InputError), reading("x", 0.02):
        try:
            _work(5)
        except InputError:
            swallowed += 1
        _work(5)
    assert swallowed == 1


def test_what_is_read_in_time_leaves_no_timer() -> None:
    before = signal.getsignal(signal.SIGPROF)
    with reading("x", 30), reading("y", 1e-4):  # the inner one shares the budget
        _work(0.02)
    assert signal.getsignal(signal.SIGPROF) is before
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)


def test_waiting_costs_nothing() -> None:
    begun = time.monotonic()
    with reading("x", 0.05):
        time.sleep(0.2)
    assert time.monotonic() - begun >= 0.2  # it was not cut short


def test_another_thread_has_no_timer() -> None:
    done = []

    def read() -> None:
        with reading("x", 1e-3):
            _work(0.05)
            done.append(True)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert done
