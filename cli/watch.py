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
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from rksp.cli.options import Panel, brief, with_options
from rksp.ground.errors import InputError
from rksp.ground.files import check_writable
from rksp.ground.flags import Flag
from rksp.ground.model import definite
from rksp.ground.processes import signal_at_end_of_parent
from rksp.watch.attach import STOPPED
from rksp.watch.attach.options import Watching, WatchOptions

_PASSED_ON = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
_OF_TERMINALS = ("SIGINT", "SIGQUIT")  # a terminal sends them to the command itself
_LOOKS = 0.5  # seconds between two looks for what the command left
_PAGE = 60.0  # seconds between two pages
_PATIENCE = 30.0  # seconds that a command may take for an event


class CommandOptions(WatchOptions):
    """Options of `rksp watch`."""

    notify: Annotated[
        str | None,
        Flag(
            "--notify",
            "A command that gets each event as JSON on its standard input.",
            unit="command",
        ),
    ] = None


@with_options
@brief("command log on_alarm to monitors record")
def watch(
    command: Annotated[
        list[str], typer.Argument(help="The command that trains, after --.", metavar="-- COMMAND")
    ],
    options: Annotated[CommandOptions, Panel(title="Watching")],
) -> int:
    """Run a command that trains with every monitor on it, unchanged; pass its exit code on."""
    for path, name in ((options.log, "--log"), (options.record, "--record")):
        if path is not None:
            check_writable(path, name)
    if options.monitors:
        from rksp.watch.registry import make_monitors  # torch, which most commands load anyway

        make_monitors(options.monitors)
    with tempfile.TemporaryDirectory(prefix="rksp-watch-") as folder:
        process = _started(command, options, Path(folder))
        with _signals_passed_on(process) as passed_on, _beside(Path(folder), options):
            code = process.wait()
        if passed_on:
            _end_all(Path(folder))
        return _concluded(code, Path(folder))


def _started(command: list[str], options: CommandOptions, folder: Path) -> subprocess.Popen[bytes]:
    from rksp.watch.attach import start

    own = options.model_dump(exclude={"notify"})
    told = Watching(
        **own
        | {"log": options.log.absolute(), "record": options.record and options.record.absolute()},
        folder=folder,
        command=shlex.join(command),
        watcher=os.getpid(),
    )
    path = [str(Path(str(start.__file__)).parent), os.environ.get("PYTHONPATH", "")]
    more = {"RKSP_WATCH": told.model_dump_json(), "PYTHONPATH": os.pathsep.join(filter(None, path))}
    end = partial(signal_at_end_of_parent, signal.SIGTERM) if os.name == "posix" else None
    try:
        return subprocess.Popen(command, env={**os.environ, **more}, preexec_fn=end)
    except OSError as error:
        raise InputError(
            f"{command[0]} cannot be started ({error.strerror}); give a program after --, as in "
            "rksp watch -- python train.py."
        ) from None


def _end_all(folder: Path) -> None:
    """End what the command started and left behind when it was ended itself."""
    for file in folder.glob("*.python"):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(int(file.stem), signal.SIGTERM)


@contextmanager
def _signals_passed_on(process: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """Send the command what is sent to this process, while the block runs; yields what ends it."""
    ending: list[int] = []

    def pass_on(number: int, frame: object) -> None:
        if number not in own or not sys.__stdin__ or not sys.__stdin__.isatty():
            process.send_signal(number)
            if number in (signal.SIGTERM, getattr(signal, "SIGHUP", None)):
                ending.append(number)

    own = {getattr(signal, name) for name in _OF_TERMINALS if hasattr(signal, name)}
    others = {getattr(signal, name) for name in _PASSED_ON if hasattr(signal, name)}
    is_main = threading.current_thread() is threading.main_thread()
    before = {n: signal.signal(n, pass_on) for n in own | others} if is_main else {}
    try:
        yield ending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _beside(folder: Path, options: CommandOptions) -> Iterator[None]:
    """Forecast the run, pass its events on and renew its page, beside the command."""
    is_over = threading.Event()
    has_asked = False

    def look() -> None:
        nonlocal has_asked
        for file in sorted(folder.glob("*.event")):
            if options.notify is not None:
                _notify(options.notify, file.read_bytes())
            file.unlink()
        shown = () if has_asked else sorted(folder.glob("*.forecast"))
        if shown:
            has_asked = True
            _try("no forecast", partial(_forecast, shown[0], folder))

    def stay() -> None:
        since = time.monotonic()
        while not is_over.wait(_LOOKS):
            look()
            if time.monotonic() - since > _PAGE and (log := _log_of(folder)) is not None:
                _try("no page", partial(_write_page, log))
                since = time.monotonic()
        look()

    staying = threading.Thread(target=stay, daemon=True)
    staying.start()
    try:
        yield
    finally:
        is_over.set()
        staying.join()


def _try(what: str, call: Callable[[], None]) -> None:
    try:
        call()
    except Exception as error:  # the command runs on without
        _say(f"{what}: {error}")


def _notify(command: str, event: bytes) -> None:
    try:
        run = partial(subprocess.run, input=event, timeout=_PATIENCE, check=True)
        run(shlex.split(command), stdout=sys.stderr)
    except (OSError, subprocess.SubprocessError) as error:
        _say(f"--notify: {error}")


def _write_page(log: Path) -> None:
    from rksp.confirm.watched import watched_run
    from rksp.ground.files import atomic_write
    from rksp.report.formats import render

    atomic_write(log.with_suffix(".html"), render(watched_run(log), "html").encode())


def _log_of(folder: Path) -> Path | None:
    logs = [file.read_text(encoding="utf-8") for file in folder.glob("*.log")]
    return Path(min(logs, key=len)) if logs else None


def _forecast(file: Path, folder: Path) -> None:
    """Judge a run by its configuration, print the answer, and keep it in the log of the run."""
    from rksp.documents.confirm import ForecastReport
    from rksp.documents.options import MeasureOptions
    from rksp.models.resolve import resolve
    from rksp.question.question import Question
    from rksp.question.run import Run
    from rksp.recipe.start import decide_start
    from rksp.report.score.result import Result
    from rksp.watch.attach import lines

    asked = lines.Question.model_validate_json(file.read_bytes())
    config = folder / "config.json"
    config.write_text(json.dumps(asked.config), encoding="utf-8")
    run = Run.typed(str(config), asked.recipe)
    source = resolve(run.target, counts=False)
    start = decide_start(source.start, loss=asked.loss, guess=asked.guess)
    source = replace(source, target=asked.model, start=start.elsewhere)
    question = Question.of(run, source)
    answer = Result(definite(question.known([MeasureOptions(evidence="config")])))
    forecast = ForecastReport(
        text=str(answer).splitlines(),
        verdict=answer.verdict,
        probability_failed=answer.probability_failed,
        rates=answer.rates(),
    )
    with asked.log.open("a", encoding="utf-8") as log:
        log.write(lines.text_of(forecast))  # whole, behind the lines that the run has by now
    for line in forecast.text[:3]:  # the report has all of them
        _say(line)


def _concluded(code: int, folder: Path) -> int:
    python, torch, stop = (sorted(folder.glob(f"*.{one}")) for one in ("python", "torch", "stop"))
    if stop:
        _say(stop[0].read_text(encoding="utf-8"))
        code = STOPPED  # also where a launcher in between gave another
    log = _log_of(folder)
    if log is not None:
        ends = sorted(folder.glob("*.end"))
        _say(ends[0].read_text(encoding="utf-8") if ends else _broken_off(code, log))
        shown = log.relative_to(Path.cwd()) if log.is_relative_to(Path.cwd()) else log
        _say(f"rksp report {shlex.quote(str(shown))} -o watch.html makes a page of the run")
    elif torch:
        _say("nothing was watched: the command ended before the first step of an optimizer")
    elif python:
        _say("nothing was watched: the command never imported torch")
    else:
        _say(
            "nothing was watched: no Python ran with the hook (-I, -E, -S and a PYTHONPATH that "
            "leaves out $PYTHONPATH turn it away)"
        )
    return code if code >= 0 else 128 - code


def _broken_off(code: int, log: Path) -> str:
    from rksp.watch.attach.lines import Ended, text_of
    from rksp.watch.attach.past import past_runs

    runs = past_runs(log)
    last = runs[-1].last if runs else None
    loss = f", at a loss of {last.loss:.4g}" if last and last.loss is not None else ""
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    with log.open("a+b") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        if file.read(1) in (b"", b"\n"):  # no part of a line, which only the last one may be
            file.write(text_of(Ended(killed=how)).encode())
    return f"the run {how} after step {last.step if last else '?'}{loss}"


def _say(text: str) -> None:
    print(f"rksp watch: {text}", file=sys.stderr, flush=True)
