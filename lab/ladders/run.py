"""Run a plan with one process per core; it resumes after any interruption."""

from __future__ import annotations

import multiprocessing
import os
import platform
import signal
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from lab.ladders.grid import LadderPlan
from lab.ladders.ladder import run_ladder
from lab.ladders.plan import LadderSpec
from lab.ladders.store import write_ladder
from rksp.ground.errors import Incomplete, NotCovered
from rksp.ground.files import ResultFolder
from rksp.ground.processes import end_with, safe_path

Progress = Callable[[int, int], None]  # (ladders done, ladders planned)
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Counts of the ladders of a `run_plan` call."""

    planned: int
    already_stored: int
    newly_run: int


def run_plan(
    plan: LadderPlan,
    folder: Path,
    *,
    workers: int | None = None,
    known: Collection[str] = (),
    progress: Progress = lambda done, total: None,
) -> Tally:
    """Train the ladders of a plan that are not in `folder` yet.

    A ladder's rows depend only on its specification, so an interrupted plan that is run again
    ends with the same rows as an uninterrupted one.

    Args:
        plan: The plan.
        folder: Folder of the stored ladders.
        workers: Processes of one thread each; default one per core.
        known: Ids of ladders stored elsewhere, which are not trained again.
        progress: Called after every ladder.

    Returns:
        The counts of ladders.

    Raises:
        Incomplete: A worker process died; the stored ladders stay, and the same call continues.
    """
    results = ResultFolder(folder)
    results.clean()
    specs = plan.expand()
    stored = [spec.id in known or spec.id in results for spec in specs]
    missing = [spec for spec, found in zip(specs, stored, strict=True) if not found]
    work_through(_run, missing, folder, total=len(specs), workers=workers, progress=progress)
    return Tally(planned=len(specs), already_stored=sum(stored), newly_run=len(missing))


def measure_plan(
    ladders: Path,
    folder: Path,
    *,
    workers: int | None = None,
    known: Collection[str] = (),
    progress: Progress = lambda done, total: None,
) -> Tally:
    """Measure the stored ladders of one folder into another; resumable like `run_plan`."""
    results = ResultFolder(folder)
    results.clean()
    paths = sorted(ladders.glob("*.json"))
    stored = [path.stem in known or path.stem in results for path in paths]
    missing = [path for path, found in zip(paths, stored, strict=True) if not found]
    work_through(_measure, missing, folder, total=len(paths), workers=workers, progress=progress)
    return Tally(planned=len(paths), already_stored=sum(stored), newly_run=len(missing))


def work_through(
    action: Callable[[Item, Path], None],
    items: Sequence[Item],
    folder: Path,
    *,
    total: int,
    workers: int | None,
    progress: Progress,
) -> None:
    """Call `action(item, folder)` for every item in processes of one thread each.

    Raises:
        Incomplete: A worker died, or an item is not covered, which stops no other; everything
            stored stays.
    """
    refused: list[str] = []
    done = total - len(items)
    progress(done, total)
    os.environ.update(safe_path())
    # spawn, because a forked child would inherit torch's thread pools in an unknown state.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(
        workers or os.cpu_count(),
        mp_context=context,
        initializer=_start_worker,
        initargs=(os.getpid(),),
    )
    is_done = False
    try:
        for future in as_completed([pool.submit(action, item, folder) for item in items]):
            try:
                future.result()
            except NotCovered as error:
                refused.append(str(error))
                continue
            done += 1
            progress(done, total)
        is_done = True
    except BrokenProcessPool:
        raise Incomplete(
            f"A worker died (out of memory, or killed) with {done} of {total} ladders stored; "
            "run the same command again to continue, with fewer --workers if memory was short."
        ) from None
    finally:
        # A pool that is not waited for may complain when the interpreter ends.
        pool.shutdown(wait=is_done, cancel_futures=True)
    if refused:
        raise Incomplete(
            f"{len(refused)} of {total} ladders cannot be trained, and {done} are stored; the "
            f"first reason: {refused[0]}"
        )


def _start_worker(coordinator: int) -> None:
    import torch  # only in the worker: the parent needs no torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles the interrupt
    end_with(coordinator)


def _run(spec: LadderSpec, folder: Path) -> None:
    import torch  # only where something is trained
    import transformers

    provenance: dict[str, object] = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "machine": platform.machine(),
    }
    write_ladder(folder, run_ladder(spec), provenance)


def _measure(path: Path, folder: Path) -> None:
    from lab.ladders.measure import measure_ladder  # torch: in the worker only
    from lab.ladders.measurements import write_measurement
    from lab.ladders.store import read_ladder

    spec = read_ladder(path).spec
    write_measurement(folder, spec.id, measure_ladder(spec))
