"""`rksp watch`: every monitor on a command that trains, which knows nothing of it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import Field

from rksp.cli.options import Panel, with_options
from rksp.ground.errors import InputError
from rksp.ground.files import check_writable
from rksp.ground.flags import Flag
from rksp.ground.model import Finite, definite
from rksp.watch.attach import STOPPED

_PASSED_ON = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
_OF_TERMINALS = ("SIGINT", "SIGQUIT")  # a terminal sends them to the command itself
_LOOKS = 0.5  # seconds between two looks for the recipe that the command shows


class WatchOptions(Finite):
    """Options of a watched run."""

    log: Annotated[
        Path,
        Flag("--log", "The file of readings and alarms; a run is appended to it.", unit="file"),
    ] = Path("watch.jsonl")
    monitors: Annotated[
        list[str],
        Flag(
            "--monitor",
            "Use only these monitors (name or name:every=5) beside the loss; repeatable.",
            unit="monitor",
        ),
    ] = []
    on_alarm: Annotated[
        Literal["log", "checkpoint", "stop", "shape"],
        Flag(
            "--on-alarm",
            "What an alarm sets off. log: it is printed. checkpoint: the state from before a "
            "critical one is saved. stop: a critical one ends the command with exit code 75. "
            "shape: from the step after it on, no step moves outputs far (step clip).",
        ),
    ] = "log"
    to: Annotated[
        list[str],
        Flag(
            "--to",
            "Also send readings and alarms to tensorboard=FOLDER, or to the run that the script "
            "opens in wandb, mlflow or trackio; repeatable.",
            unit="tracker",
        ),
    ] = []
    record: Annotated[
        Path | None,
        Flag("--record", "File of runs to append this run to, for --runs of a later command."),
    ] = None
    memory: Annotated[
        float,
        Flag(
            "--memory",
            "Host memory for finding the cause of an alarm: two copies of the weights, and the "
            "inputs of the newest steps. 0 looks for no cause.",
            unit="GiB",
        ),
    ] = Field(default=4.0, ge=0)
    status: Annotated[
        float,
        Flag("--status", "Seconds between two lines of status; 0 prints none.", unit="seconds"),
    ] = Field(default=60.0, ge=0)


@with_options
def watch(
    command: Annotated[
        list[str], typer.Argument(help="The command that trains, after --.", metavar="-- COMMAND")
    ],
    options: Annotated[WatchOptions, Panel(title="Watching")],
) -> int:
    """Run a command that trains with every monitor on it, unchanged; pass its exit code on."""
    for path, name in ((options.log, "--log"), (options.record, "--record")):
        if path is not None:
            check_writable(path, name)
    with tempfile.TemporaryDirectory(prefix="rksp-watch-") as folder:
        process = _started(command, options, Path(folder))
        with _signals_passed_on(process), _forecasting(Path(folder)):
            code = process.wait()
        return _concluded(code, Path(folder))


def _started(command: list[str], options: WatchOptions, folder: Path) -> subprocess.Popen[bytes]:
    """Start the command with the hook on Python's path."""
    from rksp.watch.attach import start

    told = {
        "folder": str(folder),
        "log": str(options.log.absolute()),
        "monitors": options.monitors or ["all"],
        "on_alarm": options.on_alarm,
        "to": options.to,
        "record": options.record and str(options.record.absolute()),
        "memory": options.memory,
        "status": options.status,
        "command": shlex.join(command),
    }
    path = [str(Path(str(start.__file__)).parent), os.environ.get("PYTHONPATH", "")]
    more = {"RKSP_WATCH": json.dumps(told), "PYTHONPATH": os.pathsep.join(filter(None, path))}
    try:
        return subprocess.Popen(command, env={**os.environ, **more})
    except OSError as error:
        raise InputError(
            f"{command[0]} cannot be started ({error.strerror}); give a program after --, as in "
            "rksp watch -- python train.py."
        ) from None


@contextmanager
def _signals_passed_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Send the command what is sent to this process, while the block runs."""

    def pass_on(number: int, frame: object) -> None:
        if number not in own or not sys.__stdin__ or not sys.__stdin__.isatty():
            process.send_signal(number)

    own = {getattr(signal, name) for name in _OF_TERMINALS if hasattr(signal, name)}
    others = {getattr(signal, name) for name in _PASSED_ON if hasattr(signal, name)}
    is_main = threading.current_thread() is threading.main_thread()
    before = {n: signal.signal(n, pass_on) for n in own | others} if is_main else {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _forecasting(folder: Path) -> Iterator[None]:
    """Print the forecast of the run beside it, once the command has shown what it trains."""
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(_LOOKS):
            for asked in folder.glob("*.forecast"):
                try:
                    _forecast(json.loads(asked.read_text(encoding="utf-8")), folder)
                except Exception as error:  # the command runs on without one
                    _say(f"no forecast: {error}")
                return

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield
    finally:
        is_over.set()
        looking.join()


def _forecast(asked: dict[str, Any], folder: Path) -> None:
    """Judge a run by its configuration, print the answer, and keep it in the log of the run."""
    from rksp.documents.options import MeasureOptions
    from rksp.models.resolve import resolve
    from rksp.question.question import Question
    from rksp.question.run import Run
    from rksp.recipe.start import decide_start
    from rksp.report.score.result import Result

    config = folder / "config.json"
    config.write_text(json.dumps(asked["config"]), encoding="utf-8")
    run = Run.typed(str(config), asked["recipe"])
    source = resolve(run.target, counts=False)
    start = decide_start(source.start, loss=asked["loss"], guess=asked["guess"])
    source = replace(source, target=asked["model"], start=start.elsewhere)
    question = Question.of(run, source)
    answer = Result(definite(question.known([MeasureOptions(evidence="config")])))
    recipe = question.run.recipe.model_dump(mode="json", exclude_unset=True)
    kept: dict[str, Any] = {"kind": "forecast", "text": str(answer).splitlines(), "recipe": recipe}
    risk = answer.probability_failed
    kept |= {"verdict": answer.verdict, "probability_failed": risk, "rates": answer.rates()}
    with Path(asked["log"]).open("a", encoding="utf-8") as log:
        log.write(json.dumps(kept) + "\n")  # whole, behind the lines that the run has by now
    for line in kept["text"][:3]:  # the report has all of them
        _say(line)


def _concluded(code: int, folder: Path) -> int:
    """Say what became of the watch, and return the exit code of the command as a shell would."""
    found = {kind: sorted(folder.glob(f"*.{kind}")) for kind in ("python", "torch", "log", "stop")}
    if found["stop"]:
        _say(found["stop"][0].read_text(encoding="utf-8"))
        code = STOPPED  # also where a launcher in between gave another
    if found["log"]:
        logs = [file.read_text(encoding="utf-8") for file in found["log"]]
        log = Path(min(logs, key=len))  # that of rank 0
        shown = log.relative_to(Path.cwd()) if log.is_relative_to(Path.cwd()) else log
        _say(f"rksp report {shlex.quote(str(shown))} -o watch.html makes a page of the run")
    elif found["torch"]:
        _say("nothing was watched: torch was imported, and no step of an optimizer was followed")
    elif found["python"]:
        _say("nothing was watched: the command never imported torch")
    else:
        _say(
            "nothing was watched: no Python ran with the hook (-I, -E, -S and a PYTHONPATH that "
            "leaves out $PYTHONPATH turn it away)"
        )
    return code if code >= 0 else 128 - code


def _say(text: str) -> None:
    print(f"rksp watch: {text}", file=sys.stderr, flush=True)
