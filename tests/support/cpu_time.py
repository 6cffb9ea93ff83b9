"""What a test costs on one core, and whether its mark says so."""

from __future__ import annotations

import os

import pytest

SLOW = 5.0  # seconds; a test that needs more carries the mark `slow`
LENIENT = 8.0  # a core that is shared, or slower than ours: half as fast was seen
_BEGUN = pytest.StashKey[float]()


def cpu_seconds() -> float:
    """Return the processor time of this process and of those that it waited for."""
    times = os.times()
    return sum(times[:4])


def stopwatch(item: pytest.Item) -> None:
    """Begin to measure a test."""
    item.stash[_BEGUN] = cpu_seconds()


def judge(item: pytest.Item, report: pytest.TestReport) -> pytest.TestReport:
    """Write the cost of a phase into its report; in CI, fail a test that is slow and unmarked.

    What a module's fixture costs counts for the test that asks for it first. Its end does not
    count: it waits for processes that served all tests of the module.
    """
    seconds = cpu_seconds() - item.stash[_BEGUN]
    item.stash[_BEGUN] = cpu_seconds()
    cost = (f"cpu_{report.when}", round(seconds, 3))
    item.user_properties.append(
        cost
    )  # for the reports of later phases: `--junitxml` takes the last
    report.user_properties.append(cost)
    is_marked = item.get_closest_marker("slow") is not None
    is_own = report.passed and report.when != "teardown"
    if "CI" in os.environ and is_own and not is_marked and seconds > LENIENT * SLOW:
        report.outcome = "failed"
        report.longrepr = (
            f"{item.nodeid} took {seconds:.1f} s of processor time in its {report.when}. "
            f"Make it cheaper, or mark it slow (more than {SLOW:.0f} s on one core)."
        )
    return report
