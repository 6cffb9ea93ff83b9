"""Fix from Python: the edits of a run file that remove its findings, and both answers."""

from __future__ import annotations

import difflib
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rksp.documents.finding import applied
from rksp.documents.options import MeasureOptions
from rksp.ground.budgets import reading
from rksp.ground.errors import InputError
from rksp.ground.files import absent, atomic_write
from rksp.ground.model import definite
from rksp.ground.text import one_line
from rksp.models.names import is_explicit
from rksp.models.resolve import resolve
from rksp.question.gate import edits_of, is_fixable, summarized
from rksp.question.question import Question
from rksp.question.run import Run

if TYPE_CHECKING:
    from rksp.documents.score import ScoreReport

_ROUNDS = 4  # a fix may bring forth another finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """What the edits of a run file change.

    Attributes:
        diff: Of the file; empty where no edit can be written safely.
        before, after: The answers to the file and to its changed copy.
        is_written: The file itself was changed.
    """

    diff: str
    before: ScoreReport
    after: ScoreReport
    is_written: bool

    @property
    def document(self) -> dict[str, object]:
        """The same for a program."""
        told = {name: getattr(self, name).summary for name in ("before", "after")}
        answers = {name: summary.model_dump(mode="json") for name, summary in told.items()}
        return {"diff": self.diff, "written": self.is_written, **answers}

    def lines(self, file: str) -> Iterator[str]:
        """Yield the answer to the file, that to its changed copy, and what to do next."""
        yield f"{file} as it {'was' if self.is_written else 'is'}: {_answer(self.before)}"
        if not self.diff:
            yield "No fix of a finding can be written into this file safely."
            return
        yield f"With these edits: {_answer(self.after)}"
        if self.is_written:
            yield f"They are written to {file}."
        else:
            yield f"Write them: rksp fix {shlex.quote(file)} --write"


def _answer(report: ScoreReport) -> str:
    return f"{report.verdict.upper()}. {definite(report.summary).why}"


def fix(
    file: str | Path, *, write: bool = False, devices: int | None = None, trainer: str | None = None
) -> Fixed:
    r"""Apply all edits to a copy of a run file, until no finding has another.

        >>> import pathlib, rksp
        >>> lines = ["model_name_or_path: gpt2", "learning_rate: 0.3", "max_steps: 1000"]
        >>> _ = pathlib.Path("run.yaml").write_text("\n".join(lines))
        >>> found = rksp.fix("run.yaml")
        >>> found.before.verdict, found.after.verdict
        ('risk', 'ok')
        >>> "-learning_rate: 0.3" in found.diff
        True

    Args:
        file: A trainer's run file; `FILE.py::NAME` for one of many.
        write: Write what became of the copy into the file.
        devices: Number of devices, where the file gives the batch per device.
        trainer: Whose file it is; by default the trainer is recognized.

    Returns:
        The diff, and the answers before and after.

    Raises:
        InputError: The file cannot be scored.
    """
    file = str(file)
    judged = partial(scored, devices=devices, trainer=trainer)
    name, mark, part = file.partition("::")
    if not Path(name).is_file():
        if is_explicit(name):
            raise InputError(absent(name))
        raise InputError(
            f"{one_line(name, 200)} is no file, and rksp fix changes a trainer's run file; for a "
            "model type: rksp score."
        )
    with tempfile.TemporaryDirectory() as folder:
        first = report = judged(file)
        copy = Path(folder, Path(name).name)
        shutil.copyfile(name, copy)
        before = after = copy.read_bytes().decode()
        for _ in range(_ROUNDS):
            edits = [one for one in edits_of(report.findings) if one.file is not None]
            if not edits:
                break
            after = applied(after, edits)
            copy.write_bytes(after.encode())
            report = judged(f"{copy}{mark}{part}", called=file)
    is_written = write and after != before
    if is_written:
        atomic_write(Path(name), after)
    diff = difflib.unified_diff(before.splitlines(True), after.splitlines(True), name, name)
    return Fixed(diff="".join(diff), before=first, after=report, is_written=is_written)


def scored(
    target: str,
    *,
    called: str = "",
    recipe: Mapping[str, object] | None = None,
    devices: int | None = None,
    trainer: str | None = None,
) -> ScoreReport:
    """Return the report of a target by its configuration alone, with a command that leads on.

    Args:
        target: As for `rksp.score`.
        called: What the command calls it, if it is a copy.
        recipe: Fields that replace those of the run file.
        devices: See `rksp.question.run.Run.read`.
        trainer: Likewise.

    Raises:
        InputError: The target cannot be scored.
    """
    with reading(f"the run file {one_line(target, 200)}"):
        run = Run.read(target, recipe or {}, devices=devices, trainer=trainer)
        source = resolve(run.target, overrides=run.overrides, counts=False)
        question, _ = Question.of(run, source).audited()
        report = question.answer([MeasureOptions(evidence="config")])
    command = shlex.join(["rksp", "fix" if is_fixable(report) else "score", called or target])
    return summarized(report.model_copy(update={"next_command": command}))
