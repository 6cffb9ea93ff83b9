"""Kills with results in flight: nothing lost, nothing computed twice, no orphan."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from lab.faults import cheap, counts
from lab.faults.processes import alive, code_of, exit_code, forked, has_ended, seconds_until_gone
from lab.faults.scenes import Scene

ORPHANED = 10.0  # seconds after which a worker without a coordinator counts as an orphan
_AT_MOST = 6  # kills of one job, before it is left to finish
COLUMNS = counts.named("kills", "early", "workers", "jobs", "lost", "doubled", "different",
                       "orphans", "services", "slowest")  # fmt: skip


@dataclass(slots=True, kw_only=True)
class Toll:
    """What kills of one scene did.

    Attributes:
        kills: That met a job with some results stored and others open.
        early: That met a job before its first result, or in its last step.
        workers: Kills of a worker instead of the coordinator.
        lost: Results that were stored before a kill and not afterwards.
        doubled: Results that were stored and then computed again.
        different: Jobs whose rows differ from the undisturbed run's.
        orphans: Workers that outlived their coordinator by ten seconds.
        services: Processes of Ray itself that lived on; they hold no work and are not counted.
        slowest: Seconds that the slowest worker lived on.
    """

    name: str
    kills: int = 0
    early: int = 0
    workers: int = 0
    jobs: int = 0
    lost: int = 0
    doubled: int = 0
    different: int = 0
    orphans: int = 0
    services: int = 0
    slowest: float = 0.0

    @property
    def faults(self) -> int:
        """Return the number of broken promises."""
        return self.lost + self.doubled + self.different + self.orphans


def kill(scene: Scene, kills: int, *, seed: int = 0) -> Toll:
    """Kill a scene's job at random moments, take it up again, and compare with an undisturbed run.

    Args:
        scene: The job.
        kills: How many with results in flight.
        seed: Of the moments and of whom they meet.
    """
    source = random.Random(seed)
    toll = Toll(name=scene.name)
    with tempfile.TemporaryDirectory() as place:
        whole = Path(place) / "whole"
        whole.mkdir()
        scene.warm()
        started = time.monotonic()
        assert code_of(lambda: scene.work(whole)) == 0, scene.name
        seconds = time.monotonic() - started
        expected = scene.rows(whole)
        while toll.kills + toll.early < kills * 2 and toll.kills < kills:
            folder = Path(place) / f"job-{toll.jobs}"
            folder.mkdir()
            _one_job(scene, folder, toll, source, seconds, kills)
            toll.jobs += 1
            toll.different += scene.rows(folder) != expected
            shutil.rmtree(folder)
    return toll


def _one_job(
    scene: Scene, folder: Path, toll: Toll, source: random.Random, seconds: float, kills: int
) -> None:
    """Kill one job up to six times, then let it end."""
    has_met_a_worker = False
    for _ in range(_AT_MOST):
        if toll.kills >= kills:
            break
        pid = forked(lambda: scene.work(folder))
        before, judged = scene.done(folder), len(cheap.judged(folder / "judged"))
        _wait_for_a_moment(scene, folder, pid, before, source, seconds)
        if has_ended(pid):
            exit_code(pid)
            break
        below = psutil.Process(pid).children(recursive=True)
        services = [process for process in below if _name(process) in scene.services]
        workers = [process for process in below if process not in services]
        if workers and not has_met_a_worker and source.random() < 0.2:
            has_met_a_worker = True  # the coordinator goes on, or says that a worker died
            with contextlib.suppress(psutil.NoSuchProcess):
                source.choice(workers).kill()
            time.sleep(0.05)
            toll.workers += 1
        _strike(pid, source)
        code = exit_code(pid)
        lived = seconds_until_gone(workers)
        toll.services += len(alive(services))
        seconds_until_gone(services, 0.0)
        after = scene.done(folder)
        toll.slowest = max(toll.slowest, lived)
        toll.orphans += lived > ORPHANED
        toll.lost += len(before - after)
        toll.doubled += scene.doubled(folder, before, judged)
        is_in_flight = code != 0 and (scene.size == 1 or 0 < len(after) < scene.size)
        toll.kills += is_in_flight
        toll.early += not is_in_flight
    kept, judged = scene.done(folder), len(cheap.judged(folder / "judged"))
    toll.different += code_of(lambda: scene.work(folder)) != 0
    toll.doubled += scene.doubled(folder, kept, judged)


def _name(process: psutil.Process) -> str:
    """Return the first word of a process's command line; empty once it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return next(iter(process.cmdline()), "").strip()
    return ""


def _wait_for_a_moment(
    scene: Scene,
    folder: Path,
    pid: int,
    before: set[str],
    source: random.Random,
    seconds: float,
) -> None:
    """Wait until a random number of new results is stored, and a random moment more."""
    if scene.size == 1:
        time.sleep(source.uniform(0.05, 0.95) * seconds)
        return
    left = scene.size - len(before)
    wanted = source.randint(1, max(1, min(left - 2, scene.size // 5)))
    end = time.monotonic() + 120
    while len(scene.done(folder) - before) < wanted:
        if has_ended(pid) or time.monotonic() > end:
            return
        time.sleep(0.003)
    time.sleep(source.uniform(0, 0.03))


def _strike(pid: int, source: random.Random) -> None:
    chosen = source.choices((signal.SIGKILL, signal.SIGTERM, signal.SIGINT), (8, 1, 1))[0]
    os.kill(pid, chosen)
    if chosen == signal.SIGINT:  # which Python may have met in a place where it is ignored
        time.sleep(0.2)
        if not has_ended(pid):
            os.kill(pid, signal.SIGKILL)
