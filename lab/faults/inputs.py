"""Damaged input by the thousand: explored, judged, and every finding made small."""

from __future__ import annotations

import base64
import contextlib
import json
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

import lab.ladders.run
from lab.faults import counts
from lab.faults.answers import Answer, Case, answer, complaint, signature
from lab.faults.kinds import Kind
from lab.faults.limits import Child, Ended, in_processes

CHUNK = 60  # inputs that one process tries
_SHRINKING = 80  # runs of a command to make one finding small


COLUMNS: counts.Columns = {
    "inputs": attrgetter("inputs"),
    **{f"exit {code}": lambda tally, code=code: tally.codes[code] for code in "0123"},
    **counts.named("tracebacks", "wrong", "beyond", "slowest"),
}


@dataclass(slots=True)
class Tally:
    """What came of the inputs of one kind; `slowest` in processor seconds."""

    name: str
    inputs: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    tracebacks: int = 0
    wrong: int = 0  # exit codes, and answers that break another promise
    beyond: int = 0  # of the limits of time and memory
    slowest: float = 0.0
    findings: list[dict[str, object]] = field(default_factory=list)

    def add(self, case: Case, found: Answer, said: str | None) -> None:
        """Count one input."""
        self.inputs += 1
        self.codes[str(found.code)] += 1
        self.slowest = max(self.slowest, found.seconds)
        if said is None:
            return
        is_traceback = said.startswith("traceback")
        is_beyond = "CPU seconds" in said or "MemoryError" in said
        self.tracebacks += is_traceback
        self.beyond += is_beyond and not is_traceback
        self.wrong += not is_traceback and not is_beyond

    def record(self) -> dict[str, object]:
        """Return the tally as a line of the file of results."""
        return {name: getattr(self, name) for name in self.__slots__} | {"codes": dict(self.codes)}

    @classmethod
    def of(cls, record: dict) -> Tally:
        """Return the tally of a line."""
        known = {k: v for k, v in record.items() if k in cls.__slots__}
        return cls(**known | {"codes": Counter(record["codes"])})

    def join(self, other: Tally) -> None:
        """Add another tally of the same kind."""
        for name in ("inputs", "tracebacks", "wrong", "beyond"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.codes += other.codes
        self.slowest = max(self.slowest, other.slowest)
        self.findings += other.findings


class _Finding(Exception):
    """An answer that breaks a promise, of a cause that was not seen before."""


class _Enough(BaseException):
    """Ends a search that has been made small enough."""


def explore(
    kind: Kind, count: int, number: int, *, note: Callable[[Case | None], None] = lambda case: None
) -> Tally:
    """Try `count` inputs of a kind in this process; each new finding is made small.

    Args:
        kind: What to try.
        count: How many.
        number: Seed: the same number gives the same inputs.
        note: Told what is about to run, and None afterwards.
    """
    tally = Tally(name=kind.name)
    seen: set[str] = set()
    rounds = 0
    with _no_training():
        while tally.inputs < count and rounds < 12:
            before = tally.inputs
            _one_search(kind, count - before, (number, rounds), tally, seen, note)
            rounds += 1
            if tally.inputs == before:
                break  # the kind has no more inputs
    return tally


def _one_search(
    kind: Kind,
    count: int,
    numbers: tuple[int, int],
    tally: Tally,
    seen: set[str],
    note: Callable[[Case | None], None],
) -> None:
    """Search until a new finding has been made small, or until all inputs are tried."""
    cause: str | None = None
    small: tuple[int, Case, str] | None = None
    runs = 0

    @seed(zlib.crc32(f"{kind.name} {numbers}".encode()))
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
    )
    @given(kind.cases)
    def tried(case: Case) -> None:
        nonlocal cause, small, runs
        note(case)
        found = answer(case)
        note(None)
        said = complaint(found, is_json="json" in case.command)
        if cause is None:
            tally.add(case, found, said)
            if said is None or signature(said) in seen:
                return
            cause = signature(said)
        elif said is None or signature(said) != cause:
            runs += 1
            if runs > _SHRINKING:
                raise _Enough
            return
        size = sum(map(len, case.files.values())) + sum(map(len, case.command))
        if small is None or size <= small[0]:
            small = (size, case, said)
        runs += 1
        if runs > _SHRINKING:
            raise _Enough
        raise _Finding(cause)

    with contextlib.suppress(_Finding, _Enough):
        tried()
    if small is not None:
        seen.add(cause)
        tally.findings.append(finding(small[1], small[2]))


def finding(case: Case, said: str) -> dict[str, object]:
    """Return a finding as JSON can hold it."""
    content = {name: base64.b64encode(data).decode() for name, data in case.files.items()}
    return {"said": said, "command": list(case.command), "files": content}


def fuzz(
    kinds: Sequence[Kind], results: Path, *, share: float = 1.0, workers: int = 2
) -> list[Tally]:
    """Try every kind's inputs in limited processes; `results` keeps what is done.

    Args:
        kinds: What to try.
        results: A file of JSON lines; the same call goes on from it.
        share: Of each kind's number of inputs.
        workers: Processes at a time.
    """
    done = _stored(results)
    jobs = [job for job in _jobs(kinds, share) if (job[0].name, job[2]) not in done]
    for (kind, _, number), ended in in_processes(jobs, lambda job, c: _work(*job, c), workers):
        tally = Tally.of(json.loads(ended.result)) if ended.result else _broken(kind, ended)
        line = {"chunk": number, **tally.record()}
        with results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        done[kind.name, number] = tally
    joined = {kind.name: Tally(name=kind.name) for kind in kinds}
    for (name, _), tally in sorted(done.items()):
        if name in joined:
            joined[name].join(tally)
    return list(joined.values())


def _jobs(kinds: Sequence[Kind], share: float) -> Iterator[tuple[Kind, int, int]]:
    for kind in kinds:
        count = max(1, round(kind.inputs * share))
        for number, start in enumerate(range(0, count, CHUNK)):
            yield kind, min(CHUNK, count - start), number


def _work(kind: Kind, count: int, number: int, child: Child) -> str:
    def note(case: Case | None) -> None:
        child.note("" if case is None else json.dumps(finding(case, "")))

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        return json.dumps(explore(kind, count, number, note=note).record())


def _broken(kind: Kind, ended: Ended) -> Tally:
    """Return the tally of a process that an input ended: that input alone is counted."""
    known = json.loads(ended.note) if ended.note else {"command": [], "files": {}}
    return Tally(name=kind.name, inputs=1, codes=Counter({"none": 1}), beyond=1,
                 slowest=ended.seconds, findings=[known | {"said": ended.said}])  # fmt: skip


def _stored(results: Path) -> dict[tuple[str, int], Tally]:
    if not results.is_file():
        return {}
    lines = results.read_text(encoding="utf-8").splitlines()
    records = []
    for line in lines:
        with contextlib.suppress(ValueError):  # a line that a kill cut off
            records.append(json.loads(line))
    return {(record["name"], record["chunk"]): Tally.of(record) for record in records}


@contextlib.contextmanager
def _no_training():
    """Let `lab run` read and expand its plan, and train nothing."""
    kept = lab.ladders.run.work_through
    lab.ladders.run.work_through = lambda *given, **more: None
    try:
        yield
    finally:
        lab.ladders.run.work_through = kept


def table(tallies: Sequence[Tally], seconds: float) -> str:
    """Return the tallies as text, with their sum and every finding."""
    lines = [counts.table("kind", tallies, COLUMNS), f"{seconds:.0f} processor seconds."]
    for found in (found for tally in tallies for found in tally.findings):
        lines += ["", f"{found['said']}", f"  rksp {' '.join(found['command'])}"]
        for name, data in found["files"].items():
            lines.append(f"  {name}: {len(base64.b64decode(data))} bytes")
    return "\n".join(lines)
