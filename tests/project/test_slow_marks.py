"""The mark `slow` is honest: in CI a test that costs too much without it fails."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from support import cpu_time


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch):
    """Judges a test that passed after some seconds of processor time."""

    def judge(
        seconds: float, *, is_slow: bool = False, is_ci: bool = True, phase: str = "call"
    ) -> pytest.TestReport:
        marker = pytest.mark.slow if is_slow else None
        item = SimpleNamespace(
            nodeid="test_a.py::test_b",
            stash=pytest.Stash(),
            user_properties=[],
            get_closest_marker=lambda _: marker,
        )
        place = ("test_a.py", 1, "test_b")
        report = pytest.TestReport(item.nodeid, place, {}, "passed", None, phase)
        clock = iter([0.0, seconds, seconds])
        with monkeypatch.context() as patch:
            patch.delenv("CI", raising=False)
            if is_ci:
                patch.setenv("CI", "true")
            patch.setattr(cpu_time, "cpu_seconds", lambda: next(clock))
            cpu_time.stopwatch(item)
            return cpu_time.judge(item, report)

    return judge


def test_a_test_that_costs_too_much_fails_in_ci_unless_it_is_marked(judged) -> None:
    much = 1.1 * cpu_time.LENIENT * cpu_time.SLOW
    report = judged(much)
    assert report.failed and "mark it slow" in report.longrepr
    assert judged(much, is_slow=True).passed
    assert judged(much, is_ci=False).passed
    assert judged(much, phase="teardown").passed  # what served a whole module ends there
    assert judged(cpu_time.SLOW).passed


def test_every_report_carries_its_cost(judged) -> None:
    assert judged(1.5).user_properties == [("cpu_call", 1.5)]
