"""Progress on stderr: one live line on a terminal, few lines in a log file."""

from __future__ import annotations

import io

from rich.console import Console

from rksp.assessment.pipeline import evaluate
from rksp.cli.process import live_progress, sparse, time_left
from rksp.documents.options import MeasureOptions
from rksp.models.resolve import resolve
from rksp.recipe import Recipe


def _clock(step: float):
    now = iter(range(10_000))
    return lambda: step * next(now)


def test_a_terminal_shows_one_line_that_vanishes():
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100, legacy_windows=False)
    with live_progress(console=console, clock=_clock(60.0)) as report:
        for block in range(1, 7):
            report("gpt2 seed 0: forward and spectra", block, 12)
    text = stream.getvalue()
    assert "forward and spectra (about" in text
    assert "min left" in text
    assert text.count("\n") <= 2


def test_kept_lines_stay_on_the_terminal():
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100, legacy_windows=False)
    with live_progress(lambda what: "alarm" in what, console=console) as report:
        report("baseline seed 0: step 1/9", 1, 9)
        report("baseline seed 0: alarm of loss", 2, 9)
    assert "rksp: baseline seed 0: alarm of loss\n" in stream.getvalue()
    assert "rksp: baseline seed 0: step" not in stream.getvalue()


def test_a_log_file_gets_the_start_of_each_step_and_a_line_every_half_minute(capsys):
    say = sparse(_clock(1.0))
    say("gpt2 seed 0: build", 0, 0)
    say("gpt2 seed 0: forward and spectra", 0, 0)
    for block in range(1, 61):
        say("gpt2 seed 0: forward and spectra", block, 60)
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["rksp: gpt2 seed 0: build", "rksp: gpt2 seed 0: forward and spectra"]
    assert 3 <= len(lines) <= 10
    assert lines[2].endswith("left)")


def test_a_new_step_has_its_own_pace():
    left = time_left(_clock(60.0))
    assert [left(done, 10) for done in (0, 1, 2, 3)] == ["", "", "", ""]
    assert left(4, 10) == " (about 6 min left)"
    assert [left(done, 4) for done in (0, 1, 2)] == ["", "", ""]
    assert left(10, 10) == ""


def test_hours_are_written_as_hours_and_stored_work_costs_no_time():
    left = time_left(_clock(600.0))
    assert [left(done, 50) for done in (40, 41, 42)] == ["", "", ""]
    assert left(43, 50) == " (about 1 h 10 min left)"


def test_what_arrives_is_printed_on_one_line(capsys):
    sparse(_clock(1.0))("gpt2: \x1b[2Jbad\nline", 0, 0)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["rksp: gpt2: \\u001b[2Jbad\\nline"]


def test_a_score_reports_every_block_in_order():
    source = resolve("gpt2", overrides={"n_layer": 3, "n_embd": 16, "n_head": 2, "vocab_size": 64})
    seen = []
    options = MeasureOptions(states=64, evidence="forward")
    evaluate(source, Recipe(), options, progress=lambda *event: seen.append(event))
    assert [event for event in seen if event[0] == 0] == [
        (0, 0, "build"),
        (0, 0, "forward and spectra"),
    ]
    assert [event for event in seen if event[0]] == [
        (block, 3, "forward and spectra") for block in (1, 2, 3)
    ]
