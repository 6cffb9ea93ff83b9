"""Groups of options that several commands share, one model for each panel or part of it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_args

from pydantic import Field

from rksp.cli.mistakes import refuse_other
from rksp.cli.options import Given, flag_names
from rksp.documents.terms import DEFAULT_BAR, DEFAULT_RISK, FailOn, Risk, Terms
from rksp.ground.budgets import PAST_RUNS, reading
from rksp.ground.errors import InputError, nearest
from rksp.ground.factory import is_factory
from rksp.ground.files import absent
from rksp.ground.flags import COUNT, Flag, assignments
from rksp.ground.model import Finite
from rksp.ground.text import one_line
from rksp.recipe import Recipe
from rksp.report.formats import FORMATS, one_of, suffixes_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rksp.models.source import ModelSource
    from rksp.question.question import Question
    from rksp.question.run import Run

ExitZero = Annotated[bool, Flag("--exit-zero", "Exit with 0 in place of 1 and 4.", also="no_fail")]


class ModelOptions(Finite):
    """Options of the model."""

    overrides: Annotated[
        list[str],
        Flag(
            "--set", "Change a setting of the model's configuration; repeatable.", unit="key=value"
        ),
    ] = []
    task: Annotated[
        str | None,
        Flag("--task", "Read the model as this, such as image-classification.", unit="task"),
    ] = None
    max_params: Annotated[
        float, COUNT, Flag("--max-params", "Refuse larger models.", unit="parameters")
    ] = Field(default=2e9, gt=0)
    trust_remote_code: Annotated[
        bool, Flag("--trust-remote-code", "Run the model code that a repository brings.")
    ] = False
    offline: Annotated[
        bool, Flag("--offline", "Ask the Hub for nothing, not even a typed model's configuration.")
    ] = False
    allow_hub: Annotated[
        bool, Flag("--allow-hub", "Allow downloads from the Hugging Face Hub.")
    ] = False

    def resolve(
        self,
        target: str,
        overrides: Mapping[str, object],
        *,
        counts: bool = True,
        is_typed: bool = False,
    ) -> ModelSource:
        """Resolve a target; `--set` replaces what a recipe file changes about it.

        Args:
            target: See `rksp.resolve`.
            overrides: What a recipe file changes about the target.
            counts: See `rksp.resolve`.
            is_typed: A person typed the target, so the Hub may be asked for its configuration.

        Raises:
            InputError: The model does not exist.
        """
        from rksp.models.names import fetch_config, may_fetch, said_of_namesake
        from rksp.models.resolve import resolve  # torch, not for --help
        from rksp.models.source import Task

        if self.task is not None and self.task not in get_args(Task):
            hint = nearest(self.task, get_args(Task), count=1) or "."
            raise InputError(f"--task {self.task!r} is unknown; use {one_of(get_args(Task))}{hint}")

        runs_code = is_factory(target) or self.trust_remote_code  # which may take its time
        with nullcontext() if runs_code else reading(f"the model {one_line(target, 200)}"):
            source = resolve(
                target,
                overrides={**overrides, **assignments(self.overrides)},
                trust_remote_code=self.trust_remote_code,
                allow_hub=self.allow_hub and not self.offline,
                max_params=int(self.max_params),
                counts=counts,
                fetch=fetch_config if is_typed and may_fetch(self.offline) else None,
                task=cast(Any, self.task),
            )
        for said in said_of_namesake(target):
            print(f"rksp: {one_line(said)}", file=sys.stderr)
        return source


def format_of(*kinds: str) -> Any:
    """Return the type of `--format` for kinds of documents, or for any."""
    names = dict.fromkeys(one.name for one in FORMATS if not kinds or {*kinds} & {*one.kinds})
    return Annotated[Literal[tuple(names)], Flag("--format", "Format of the output on stdout.")]


def files_of(*kinds: str) -> Any:
    """Return the type of `--output` for kinds of documents, or for any."""
    said = f"Also save FILE ({suffixes_of(*kinds)}) or FORMAT=FILE; repeatable."
    return Annotated[list[str], Flag("--output", said, also="plot", aliases=("-o",), unit="file")]


class ExitOptions(Finite):
    """What fails, and with which exit code."""

    fail_on: FailOn = [str(DEFAULT_BAR)]
    exit_zero: ExitZero = False


class GateOptions(Terms):
    """The terms, and options of the exit code."""

    baseline: Annotated[
        Path | None,
        Flag(
            "--baseline",
            "An older JSON report; only new and worse issues count for the exit code.",
        ),
    ] = None
    exit_zero: ExitZero = False


class LearnOptions(Finite):
    """What the answer learns from."""

    runs: Annotated[
        list[Path],
        Flag(
            "--runs",
            "Learn from past runs: files or folders, as for rksp why; repeatable.",
            unit="path",
        ),
    ] = []


class RiskOptions(LearnOptions):
    """Options of the estimate of the risk in every cell of a grid."""

    risk: Risk = DEFAULT_RISK


class ScoreOutput(Finite):
    """Options of the output of `rksp score`."""

    output_format: format_of("score") = "text"  # type: ignore[valid-type]  # a table
    verbose: Annotated[
        bool,
        Flag(
            "--verbose",
            "Print every measurement instead of the short page.",
            aliases=("-v",),
            also="debug details",
            from_file=True,
        ),
    ] = False
    output: files_of("score") = []  # type: ignore[valid-type]  # a table

    @property
    def format(self) -> str:
        """The format of stdout: the full text where it was asked for."""
        return "full" if self.verbose and self.output_format == "text" else self.output_format


class ConfirmOutput(Finite):
    """Options of the output of `rksp confirm`."""

    output_format: format_of("confirm", "score") = "text"  # type: ignore[valid-type]  # a table
    output: files_of("confirm", "score") = []  # type: ignore[valid-type]  # a table


class ReportOutput(Finite):
    """Options of the output of `rksp report`."""

    output_format: format_of() = "text"  # type: ignore[valid-type]  # a table
    output: files_of() = []  # type: ignore[valid-type]  # a table


class WhyOutput(Finite):
    """Options of `rksp why` and of its output."""

    metric: Annotated[
        str | None,
        Flag(
            "--metric",
            "The curve to judge, by its name in the log; default the usual names.",
            also="loss column curve",
            unit="name",
        ),
    ] = None

    output_format: format_of("why") = "text"  # type: ignore[valid-type]  # a table
    output: files_of("why") = []  # type: ignore[valid-type]  # a table


class DiffOutput(ExitOptions):
    """Options of the output and exit code of `rksp diff`."""

    fail_on: FailOn = ["error"]
    output_format: format_of("diff") = "text"  # type: ignore[valid-type]  # a table


class RunOptions(Finite):
    """Options of the run beside the fields of its recipe."""

    recipe_file: Annotated[
        Path | None,
        Flag(
            "--recipe", "A trainer's run file; options override its settings.", also="config yaml"
        ),
    ] = None
    devices: Annotated[
        int | None,
        Flag(
            "--devices",
            "Number of devices in the run; needed where a run file gives the batch per device.",
            unit="devices",
        ),
    ] = None
    as_format: Annotated[
        str | None,
        Flag(
            "--as",
            "Read the run file as this trainer's; the default is to recognize the trainer.",
            also="trainer",
            unit="trainer",
        ),
    ] = None
    is_pretrained: Annotated[
        bool | None,
        Flag(
            "--pretrained/--from-scratch",
            "The run starts from trained weights, or from random ones; the default is what the "
            "target and the run file show.",
        ),
    ] = None

    is_strict: Annotated[
        bool, Flag("--strict", "Refuse a run file with a setting that rksp does not know.")
    ] = False

    def beside(self, target: str, other: str) -> RunOptions:
        """Return the options of a target: if only the other is a run file, it is of both."""
        from rksp.question.run import is_run_file

        if self.recipe_file is not None or is_run_file(target) or not is_run_file(other):
            return self
        return self.model_copy(update={"recipe_file": Path(other)})

    def run(self, target: str, given: Given[Recipe], *, needs_model: bool = True) -> Run:
        """Return the run of a target; what is to be known about its file is said on stderr.

        Args:
            target: See `rksp.question.run.Run.read`.
            given: What was typed of the recipe.
            needs_model: See there.

        Raises:
            InputError: See `rksp.question.run.Run.read`.
        """
        from rksp.question.run import Run, is_run_file

        if self.recipe_file is not None and is_run_file(target):
            raise InputError(
                f"{one_line(target, 200)} is a run file, and --recipe gives one, too; leave it out."
            )

        file = Path(str(self.recipe_file or "-").partition("::")[0])
        if str(file) != "-" and not file.exists():
            raise InputError(absent(file))
        refuse_other(str(self.recipe_file or target), "score")
        with reading(f"the run file {one_line(str(self.recipe_file or target), 200)}"):
            run = Run.read(
                target,
                {name: given.values[name] for name in given.typed},
                file=self.recipe_file,
                devices=self.devices,
                trainer=self.as_format,
                strict=self.is_strict,
                flags=flag_names(Recipe),
                needs_model=needs_model,
            )
        say(run.notes)
        _refuse_idle(run.recipe, given.typed)
        told = self.is_pretrained
        return run if told is None else run.starting(is_pretrained=told)


def _refuse_idle(recipe: Recipe, typed: Iterable[str]) -> None:
    from rksp.recipe_files.said.origin import flag_of, used_in

    used = used_in(recipe.model_dump()) if typed else frozenset()
    for name in typed:
        if name.startswith("lora_") and recipe.peft == "none":
            raise InputError(f"{flag_of(name)} has no effect without adapters; add --peft lora.")
        if name != "learning_rate" and name not in used:
            with_what = f"the {recipe.schedule} schedule and {recipe.optimizer}"
            raise InputError(f"{flag_of(name)} has no effect with {with_what}; leave it out.")


def learned(question: Question, paths: Sequence[Path]) -> Question:
    """Return the question to a classifier that knows past runs; say if they move nothing.

    Raises:
        InputError: A path holds no run that can be read.
    """
    if not paths:
        return question
    with reading(f"the runs {one_line(', '.join(map(str, paths)), 200)}", PAST_RUNS):
        question = question.learning(paths)
    if question.unlearned:
        say([f"nothing is learned from the runs: {question.unlearned}"])
    return question


def say(notes: Iterable[str]) -> None:
    """Print notes on stderr, a line each."""
    for note in notes:
        print(f"rksp: {one_line(note)}", file=sys.stderr)


class PlanOptions(Finite):
    """Options of the cells of a grid."""

    target: Annotated[
        str | None, Flag("--target", "The model, if the file names none.", unit="target")
    ] = None
    samples: Annotated[
        int | None,
        Flag("--samples", "Draw this many cells at random; needed for ranges.", unit="cells"),
    ] = Field(default=None, ge=1)
    ignore: Annotated[
        list[str],
        Flag(
            "--ignore",
            "Ignore this axis, which sets neither recipe nor model; repeatable.",
            unit="axis",
        ),
    ] = []
    dry_run: Annotated[bool, Flag("--dry-run", "Print the cells and stop.")] = False


class EngineOptions(Finite):
    """Options of the workers."""

    engine: Annotated[
        Literal["local", "ray", "slurm"], Flag("--engine", "Where the workers run.")
    ] = "local"
    workers: Annotated[
        int | None,
        Flag("--workers", "Models to measure in parallel.", also="parallel jobs j", unit="workers"),
    ] = Field(default=None, ge=1)
    address: Annotated[
        str | None, Flag("--address", "Address of a Ray cluster.", unit="address")
    ] = None
    slurm: Annotated[
        list[str],
        Flag(
            "--slurm",
            "A parameter of submitit: slurm_partition=cpu, timeout_min=60, mem_gb=8.",
            unit="name=value",
        ),
    ] = []
    timeout: Annotated[
        float, Flag("--timeout", "Time limit for one profile or cell.", unit="seconds")
    ] = Field(default=1800.0, gt=0)
    retry_failed: Annotated[bool, Flag("--retry-failed", "Run failed cells again.")] = False


class ViewOptions(ExitOptions):
    """Options of a grid's output and exit code."""

    output_format: format_of("grid") = "text"  # type: ignore[valid-type]  # a table
    output: Annotated[
        list[str],
        Flag(
            "--output",
            f"Also save FILE ({suffixes_of('grid')}) or FORMAT=FILE; a FILE.db is the store, "
            "from which the same grid resumes. Repeatable.",
            aliases=("-o",),
            also="save",
            unit="file",
        ),
    ] = []
    top: Annotated[int | None, Flag("--top", "Print only this many cells.", unit="cells")] = Field(
        default=None, ge=1
    )
    where: Annotated[
        list[str],
        Flag("--where", "Print only the cells that match: lr<=1e-3; repeatable.", unit="condition"),
    ] = []
    export: Annotated[
        list[Path],
        Flag(
            "--export",
            "Also write all cells (.csv, .jsonl), or the settings of those that pass (.json); "
            "repeatable.",
            unit="file",
        ),
    ] = []
