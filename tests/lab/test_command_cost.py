"""What whole commands cost: what is run, what is told of it, and what is refused."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from lab.bench.command_cost import Usage, command_cost, used, used_until_page
from rksp.ground.errors import Incomplete


def _told(cells: int) -> tuple[list, list]:
    """Return the costs where every command uses a second an argument, and the commands."""
    asked = []

    def run(command, place):
        asked.append((command, place))
        steps = int(command[-1]) if "--steps" in command else 0
        return Usage(seconds=float(len(command) + 10 * steps), peak=1e6)

    return command_cost("gpt2", cells=cells, run=run, page=run), asked


def test_every_command_that_a_user_waits_for_is_told_in_starts_of_python():
    costs, asked = _told(10_000)
    stages = [cost.stage for cost in costs]
    assert stages[0] == "python -c pass"
    assert stages[1:] == [
        "first page",
        "score --evidence config",
        "score",
        "score, another rate",
        "grid of 10,000 cells",
        "a step of confirm",
    ]
    start = costs[0].usage.seconds
    assert all(cost.starts == pytest.approx(cost.usage.seconds / start) for cost in costs)
    assert costs[-1].usage.seconds == pytest.approx(10)  # what commands share is no step
    assert len({place["RKSP_CACHE"] for _, place in asked}) == 1
    assert not Path(asked[0][1]["RKSP_CACHE"]).exists()


def test_the_second_score_differs_in_the_rate_alone():
    _, asked = _told(100)
    full = [command for command, _ in asked if "score" in command and "json" in command]
    first, second = (command for command in full if "config" not in command)
    assert [a == b for a, b in zip(first, second, strict=True)].count(False) == 1


@pytest.mark.parametrize(("asked", "made"), [(4, "4"), (100, "100"), (450, "400")])
def test_a_grid_has_the_cells_that_its_name_says(asked, made):
    costs, commands = _told(asked)
    assert costs[-2].stage == f"grid of {made} cells"
    grid = next(command for command, _ in commands if "grid" in command)
    rates, warmups = (int(axis.rstrip(")").split(",")[-1]) for axis in grid[6:8])
    assert rates * warmups == int(made)


def test_a_process_is_charged_with_what_it_uses():
    idle = used((sys.executable, "-c", "pass"), {})
    busy = used((sys.executable, "-c", "b'x' * 10**8; sum(range(10**7))"), {})
    assert 0 < idle.seconds < busy.seconds
    assert 5e6 < idle.peak < busy.peak - 5e7


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="no terminals")
def test_the_first_page_is_where_it_says_that_it_measures():
    works = "sum(range(5_000_000))"  # for longer than the system counts in
    says = f"import time; {works}; print('answer, measuring…', flush=True); time.sleep(600)"
    found = used_until_page((sys.executable, "-c", says), {})
    assert found.seconds > 0 and found.peak > 5e6
    with pytest.raises(Incomplete, match="did not answer: other"):
        used_until_page((sys.executable, "-c", "print('other')"), {})


def test_a_command_that_fails_is_no_measurement():
    says = "import sys; print('no such thing', file=sys.stderr); sys.exit(2)"
    with pytest.raises(Incomplete, match="did not answer: no such thing"):
        used((sys.executable, "-c", says), {})
