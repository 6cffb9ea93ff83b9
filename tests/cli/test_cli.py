"""The command line from outside: exit codes, streams, one sentence for bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import WITHOUT_POSIX, run_rksp

from rksp.documents.score import ScoreReport

TINY = ["--set", "n_layer=2", "--set", "n_embd=32", "--set", "n_head=2", "--set", "vocab_size=512"]
SMALL = [*TINY, "--snapshots", "256", "--threads", "1"]


def from_outside(*arguments: str, first: str = "") -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    code = f"{first}from rksp.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        stdin=subprocess.DEVNULL,
        check=False,
    )


@pytest.fixture(scope="module")
def scored(tmp_path_factory) -> tuple[subprocess.CompletedProcess[str], Path]:
    path = tmp_path_factory.mktemp("score") / "report.json"
    done = from_outside("score", "gpt2", "--lr", "6e-4", *SMALL, "-o", str(path))
    return done, path


def test_score_prints_the_report_and_nothing_else_on_stdout(scored):
    done, _ = scored
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(("OK  P(failed) ", "CAUTION  P(failed) "))
    assert "start here (S)" in done.stdout
    assert len(done.stdout.splitlines()) <= 14  # lines of a hundred columns
    assert "rksp: gpt2 seed 0: measuring the forward pass" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr  # no colors where there is no terminal


def test_the_written_report_is_the_schema_and_reads_back(scored):
    _, path = scored
    text = path.read_text()
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(run_rksp("report", "--schema").stdout)
    jsonschema.validate(json.loads(text), schema)
    report = ScoreReport.model_validate_json(text)
    assert report.to_json() == text
    assert [layer.layer for layer in report.seeds[0].spectra.layers] == [0, 1]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(json.loads(text) | {"extra": 1}, schema)


def test_findings_stand_in_the_text_and_in_the_json(scored):
    done, path = scored
    findings = ScoreReport.model_validate_json(path.read_text()).findings
    missing = next(finding for finding in findings if finding.name == "warmup")
    assert missing.value == 0
    assert "warning RKSP503 There is no warm-up in 1000 steps." in done.stdout
    assert "--warmup-steps 30" in missing.fix
    warmed = run_rksp("score", "gpt2", "--lr", "6e-4", *SMALL, "--warmup-steps", "30")
    assert "RKSP503" not in warmed.stdout


def test_a_stored_report_renders_again(scored):
    done, path = scored
    again = run_rksp("report", str(path))
    assert again.returncode == 0
    assert again.stdout == done.stdout


def test_the_same_command_gives_the_same_bytes_but_for_timings_where_posix_is_not(scored):
    _, path = scored
    starts_processes = "import rksp.grid.run, rksp.confirm.confirm\n"
    # From outside again: in this process what was measured is shared.
    again = from_outside(
        *("score", "gpt2", "--lr", "6e-4", *SMALL, "--format", "json", "--no-cache"),
        first=WITHOUT_POSIX + starts_processes,
    )
    assert again.returncode == 0, again.stderr
    first, second = (json.loads(text) for text in (path.read_text(), again.stdout))
    assert first.pop("timings").keys() == second.pop("timings").keys()
    assert first == second


def test_a_rate_far_too_high_exits_with_one_unless_told_otherwise():
    done = run_rksp("score", "gpt2", "--lr", "3.0", *SMALL)
    assert done.returncode == 1
    assert "RISK" in done.stdout
    assert run_rksp("score", "gpt2", "--lr", "3.0", *SMALL, "--exit-zero").returncode == 0


def test_without_a_rate_it_says_which_is_right():
    done = run_rksp("score", "gpt2", *SMALL)
    assert done.returncode == 0
    assert "no learning rate was given" in done.stdout
    assert "start here" in done.stdout


def test_several_seeds_report_their_spread():
    done = run_rksp("score", "gpt2", "--lr", "1e-3", *SMALL, "--seeds", "2", "--format", "json")
    report = json.loads(done.stdout)
    assert [seed["seed"] for seed in report["seeds"]] == [0, 1]
    spread = report["spread"]
    assert spread["published_score"]["std"] > 0
    start = [seed["risk"]["start_here"] for seed in report["seeds"]]
    low, high = (spread["start_here"][end] for end in ("low", "high"))
    assert (low, high) == (min(start), max(start))


BAD = {
    "unknown type": (["score", "gpt22"], "did you mean gpt2"),
    "missing file": (["score", "absent/config.json"], "absent/config.json"),
    "unknown factory": (["score", "no_such_module:make"], "no_such_module"),
    "unknown key": (["score", "gpt2", "--set", "n_layers=2"], "n_layer"),
    "no value": (["score", "gpt2", "--set", "n_layer"], "key=value"),
    "negative rate": (["score", "gpt2", "--lr", "-1"], "--lr is -1.0; it should be greater"),
    "unknown optimizer": (["score", "gpt2", "--optimizer", "adam2"], "did you mean adam?"),
    "unknown setting": (["score", "gpt2", "--set", "n_leyer=2"], "did you mean n_layer, n_inner?"),
    "bad ramp": (["score", "gpt2", "--set", "batch_ramp=a"], "--set batch_ramp is 'a'"),
    "unknown evidence": (
        ["score", "gpt2", "--evidence", "guess"],
        "config, forward, gradient",
    ),
    "unknown format": (["score", "gpt2", "--format", "xml"], "text, full, json"),
    "unknown option": (["score", "gpt2", "--learn-rate", "1"], "did you mean --lr 1?"),
    "unknown variant": (["score", "gpt2", *SMALL, "--variant", "mine"], "paper-full-1"),
    "too large": (
        ["score", "llama", "--stream", "never", "--max-memory", "1GB"],
        "of memory if held whole, more than 1.0 GB; use --stream auto",
    ),
    "missing probe": (["score", "gpt2", *SMALL, "--probe", "absent.txt"], "absent.txt"),
    "unknown check": (["explain", "RKSP109"], "did you mean RKSP10"),
    "missing report": (["report", "absent.json"], "absent.json"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_and_exit_code_two(case, tmp_path):
    arguments, hint = BAD[case]
    done = run_rksp(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert hint in done.stderr
    assert "Traceback" not in done.stderr
    assert "Value error" not in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_bad_input_seen_from_outside():
    done = from_outside(*BAD["unknown key"][0])
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1


def test_a_one_token_probe_is_refused(tmp_path):
    (tmp_path / "short.txt").write_text("a")
    done = run_rksp("score", "gpt2", *SMALL, "--probe", str(tmp_path / "short.txt"))
    assert done.returncode == 2
    assert "short.txt" in done.stderr


def test_a_score_without_kernels_is_the_same_where_triton_is_asked_for(monkeypatch):
    usual = run_rksp("score", "gpt2", "--lr", "6e-4", *SMALL)
    monkeypatch.setenv("RKSP_KERNELS", "triton")
    asked = run_rksp("score", "gpt2", "--lr", "6e-4", *SMALL)
    assert (asked.returncode, asked.stdout) == (0, usual.stdout), asked.stderr
