"""Exit codes hold whatever happens to stdout, stderr, the locale, the folder and the variables."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from support.attacks import refused
from support.commands import left_with

from rksp.cli.process import Stream, own_streams
from rksp.confirm.calibrate import Ranks
from rksp.ground.errors import Incomplete, InputError, foreign, summary

INSTALLED = str(Path(sys.executable).with_name("rksp"))
RISK = "score gpt2 --lr 6e-3 --evidence config"
OK = "score gpt2 --lr 1e-4 --warmup-steps 100 --evidence config"
needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
posix = pytest.mark.skipif(os.name != "posix", reason="needs a shell of POSIX")


def shell(command: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """Run the installed command as a shell does."""
    return subprocess.run(
        ["/bin/sh", "-c", command.replace("rksp ", f"{INSTALLED} ", 1)],
        cwd=cwd,
        env=os.environ | variables,
        capture_output=True,
        timeout=120,
    )


@needs_full
@posix
@pytest.mark.parametrize(
    ("command", "code", "out", "err"),
    [
        ("rksp score nope 2>/dev/full", 2, b"neither a file", b""),
        ("rksp score nope 2>&-", 2, b"neither a file", b""),
        (f"rksp {RISK} 2>/dev/full", 1, b"RISK", b""),
        (f"rksp {OK} 2>/dev/full", 0, b"P(failed)", b""),
        ("rksp checks >/dev/full", 3, b"", b"cannot be written to stdout: No space"),
        ("rksp checks >&-", 3, b"", b"cannot be written to stdout"),
        ("rksp checks >/dev/full 2>&1", 3, b"", b""),
        ("rksp checks >&- 2>&- <&-", 3, b"", b""),
        ("mkdir gone; cd gone; rmdir ../gone; exec rksp checks", 2, b"", b"folder is gone"),
    ],
)
def test_a_stream_that_fails_changes_no_code_and_the_other_says_why(
    command, code, out, err, tmp_path
):
    (tmp_path / ".rksp.toml").write_text("[score]\nthreads = 1\n")  # which stderr names
    done = shell(command, tmp_path)
    assert done.returncode == code, done
    assert out in done.stdout and err in done.stderr
    assert b"Traceback" not in done.stderr and b"Exception ignored" not in done.stderr


@posix
def test_a_dead_reader_of_stderr_changes_no_code(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        done = subprocess.run([INSTALLED, "score", "nope"], stderr=closed, stdout=-1, cwd=tmp_path)
    assert (done.returncode, b"neither a file" in done.stdout) == (2, True)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_a_locale_without_the_letters_is_no_failure(encoding, tmp_path):
    """A pipe of Windows has cp1252."""
    for command in (
        "explain levers",
        "score gpt2 --lr 6e-4 --evidence config --format text -o r.json",
        *(f"report r.json --format {name}" for name in ("markdown", "html", "junit")),
    ):
        done = subprocess.run(
            [INSTALLED, *command.split()],
            cwd=tmp_path,
            env=os.environ | {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0", "LC_ALL": "C"},
            capture_output=True,
        )
        assert (done.returncode, done.stderr) == (0, b""), command
        assert done.stdout.decode(encoding)
        if "html" in command:
            assert b"&#" in done.stdout


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("COLUMNS", "0"),
        ("COLUMNS", "²"),
        ("LINES", "²"),
        ("OMP_NUM_THREADS", "²"),
        ("OMP_NUM_THREADS", "9" * 30),
        ("TERMINAL_WIDTH", "wide"),
    ],
)
def test_odd_variables_are_no_failure(name, value, tmp_path, monkeypatch, capsys):
    from rksp.cli.process import default_threads

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(name, value)
    assert 1 <= default_threads() <= 1024
    assert left_with(OK.split()) == 0
    assert "P(failed)" in capsys.readouterr().out


@posix
def test_a_pipe_without_a_reader_is_not_waited_for(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    code = left_with([*OK.split(), "-o", "json=pipe"])
    assert (code, "pipe cannot be written" in capsys.readouterr().err) == (2, True)


@posix
def test_a_pipe_with_a_reader_gets_the_report(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["cat", "pipe"], cwd=tmp_path, stdout=-1) as reader:
        done = shell(f"rksp {OK} -o json=pipe", tmp_path)
        assert done.returncode == 0, done.stderr
        assert json.loads(reader.communicate()[0])["verdict"] == "ok"


class Panic(BaseException):
    """What Rust's bindings raise over a panic: no Exception."""


def test_a_panic_of_compiled_code_is_no_risk(monkeypatch, capsys):
    from rksp.cli import app

    def panic(*_: object) -> None:
        raise Panic("entered unreachable code")

    monkeypatch.setattr(app.__class__, "__call__", panic)
    monkeypatch.setattr("rksp.cli.defaults.find_defaults", panic)
    assert left_with(["explain"]) == 3
    said = capsys.readouterr()
    assert said.out == "" and "unexpected Panic: entered unreachable code" in said.err


def test_a_panic_over_a_file_is_bad_input_and_want_of_memory_is_not():
    with pytest.raises(InputError, match=r"It is bad \(Panic: x\)\."), foreign("It is bad"):
        raise Panic("x")
    with pytest.raises(MemoryError), foreign("It is bad"):
        raise MemoryError
    with pytest.raises(KeyboardInterrupt), foreign("It is bad"):
        raise KeyboardInterrupt


def test_an_error_whose_text_raises_is_said_by_its_type():
    class Silent(Exception):
        def __str__(self) -> str:
            raise SystemExit(0)

    assert summary(Silent()) == "Silent: no message"


def test_variables_of_a_launcher_that_are_no_numbers_are_said(monkeypatch):
    assert Ranks.launched().count == 1
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
        with monkeypatch.context() as patch, pytest.raises(InputError, match=name):
            patch.setenv(name, "two")
            Ranks.launched()


@posix
@pytest.mark.parametrize("value", ["evil", "complete_bash"])
def test_a_variable_that_asks_for_completions_is_no_risk(value, tmp_path):
    assert shell(f"rksp {RISK}", tmp_path, _RKSP_COMPLETE=value).returncode in (2, 3)


CATASTROPHIC = r"([a-zA-Z\s,.;:']+)+\d$"


def test_a_tokenizer_that_panics_is_bad_input(tmp_path, monkeypatch, capsys):
    """A regular expression that gives up: the binding panics."""
    monkeypatch.chdir(tmp_path)
    config = {"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 1, "vocab_size": 64}
    split = {"type": "Split", "pattern": {"Regex": CATASTROPHIC}, "behavior": "Isolated"}
    model = {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"}
    stored = {"version": "1.0", "added_tokens": [], "model": model}
    stored |= {"pre_tokenizer": {**split, "invert": False}}
    stored |= dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    Path("m").mkdir()
    Path("m/config.json").write_text(json.dumps(config))
    Path("m/tokenizer.json").write_text(json.dumps(stored))
    Path("probe.txt").write_text("a" * 50_000)
    assert left_with(["score", "m/", "--lr", "1e-3", "--probe", "probe.txt"]) == 2
    said = capsys.readouterr()
    assert said.out == "" and "m/tokenizer.json cannot be read" in said.err


def _weights(header: str) -> bytes:
    return struct.pack("<Q", len(header)) + header.encode() + b"\0" * 4


ENTRY = '{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'
BAD_FILES = {
    "type {}": ("config.json", b'{"model_type": {}}'),
    "type []": ("config.json", b'{"model_type": ["gpt2"]}'),
    "a shape of -1": ("model.safetensors", _weights(ENTRY.replace("[1]", "[-1]"))),
    "a shape of true": ("model.safetensors", _weights(ENTRY.replace("[1]", "[true]"))),
    "a shape of NaN": ("model.safetensors", _weights(ENTRY.replace("[1]", "[NaN]"))),
    "too large a shape": ("model.safetensors", _weights(ENTRY.replace("[1]", f"[{2**63}, 8]"))),
    "offsets of text": ("model.safetensors", _weights(ENTRY.replace("[0, 4]", '["0", "4"]'))),
    "a long name": (
        "model.safetensors.index.json",
        json.dumps({"weight_map": {"a": "b" * 5000}}).encode(),
    ),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_damaged_file_is_two(case, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    name, content = BAD_FILES[case]
    config = {"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 1, "vocab_size": 64}
    Path("m").mkdir()
    Path("m/config.json").write_text(json.dumps(config))
    Path("m", name).write_bytes(content)
    code = left_with(["score", "m/", "--lr", "1e-3"])
    said = capsys.readouterr()
    assert code == 2
    refused((code, said.out, said.err))


def test_more_digits_than_python_reads_are_two(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("x.log").write_text(f"step: {'9' * 5000} loss: 2.0 lr: 1e-3\nstep: 1 loss: 3.0\n")
    code = left_with(["runs", "x.log"])
    said = capsys.readouterr()
    assert code in (0, 2) and "unexpected" not in said.err


def test_more_states_than_memory_holds_are_two(capsys):
    code = left_with(["score", "gpt2", "--lr", "1e-3", "--snapshots", "1e12"])
    assert (code, "--snapshots" in capsys.readouterr().err) == (2, True)


def test_what_stderr_cannot_say_is_lost_and_what_stdout_cannot_is_an_error():
    class Full:
        def write(self, text: str) -> None:
            raise OSError(28, "No space left on device")

        flush = write

    quiet = Stream(Full(), is_answer=False)
    assert quiet.write("a") == 1 and quiet.is_lost
    with pytest.raises(Incomplete, match="No space"):
        Stream(Full(), is_answer=True).write("a")


def test_no_line_of_either_stream_holds_a_command_of_the_runner(capsys):
    with own_streams():
        print("a ##[stop-commands]x")
        print("a ##[error]x", file=sys.stderr)
    said = capsys.readouterr()
    assert "##[" not in said.out + said.err
    assert "#\\u0023[stop-commands]x" in said.out
