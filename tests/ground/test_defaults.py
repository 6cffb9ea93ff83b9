"""Defaults from a file: found, checked, and weaker than what is typed."""

from __future__ import annotations

import json
import os

import pytest
import typer

from rksp.cli import app, defaults
from rksp.cli.defaults import default_map, find_defaults
from rksp.ground.errors import InputError

COMMAND = typer.main.get_command(app)


def _map(tmp_path, text: str) -> dict:
    (tmp_path / ".rksp.toml").write_text(text)
    file, tables = find_defaults(tmp_path)
    return default_map(file, tables, COMMAND)


def test_the_nearest_file_wins_and_the_search_ends_at_the_repository(tmp_path):
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert find_defaults(inner) is None
    (tmp_path / ".git").mkdir()
    (tmp_path / "pyproject.toml").write_text("[tool.rksp.score]\nlr = 1e-3\n")
    assert find_defaults(inner) == (tmp_path / "pyproject.toml", {"score": {"lr": 1e-3}})
    (tmp_path / "a" / "pyproject.toml").write_text("[project]\nname = 'x'\n")  # has no table
    assert find_defaults(inner)[0] == tmp_path / "pyproject.toml"
    (tmp_path / ".rksp.toml").write_text("[score]\nlr = 2e-3\n")
    assert find_defaults(inner)[1] == {"score": {"lr": 2e-3}}
    (tmp_path / "a" / ".git").mkdir()
    assert find_defaults(inner) is None


def test_options_become_parameters(tmp_path):
    found = _map(tmp_path, "[score]\nthreads = 2\nverbose = true\n")
    assert found == {"score": {"threads": 2, "verbose": True}}


BAD = {
    "[scor]": "did you mean score",
    "[lab.eval]": "no command 'lab'",
    "score = 3": r"under \[score\]",
    "[score]\nwarm-up-steps = 3": "did you mean warmup-steps",
    "[score]\nverbose = 'yes'": "true or false",
    "[score]\nthreads = [1]": "one text or number",
    "[score]\nthreads = true": "one text or number",
    "[score]\nfail-on = [true]": "list of texts",
    "[score]\nfail-on = [['error']]": "list of texts",
    "[score": "not valid TOML",
    "[score]\nlr = 1e-3": "it may set fail-on, threads, verbose.; type --lr",
    "[runs]\nmetric = 'loss'": "no command .runs.",
    "[score]\nfail-on = 'never'": "cannot be weaker than 0.5",
    "[score]\nfail-on = 0.9": "cannot be weaker than 0.5",
    "[score]\nfail-on = ['warning', '0.51']": "cannot be weaker than 0.5",
    "[diff]\nfail-on = 'never'": "cannot be weaker than error",
    "[score]\nfail-on = 'nan'": "must be a probability",
    "[score]\nfail-on = '\u0660.\u0669'": "cannot be weaker",
}


@pytest.mark.parametrize(
    "value", ["'error'", "'warning'", "0.1", "'0.5'", "['warning', 'unknown']"]
)
def test_a_gate_may_be_stricter(tmp_path, value):
    assert _map(tmp_path, f"[score]\nfail-on = {value}\n")["score"]["fail_on"]


@pytest.mark.parametrize("text", BAD)
def test_what_means_nothing_is_refused(text, tmp_path):
    with pytest.raises(InputError, match=BAD[text]):
        _map(tmp_path, text)


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs `rksp diff` of two equal reports, in a folder with a file of defaults."""
    from support.reports import scored

    from rksp.cli import main

    (tmp_path / ".git").mkdir()
    (tmp_path / ".rksp.toml").write_text("[diff]\nfail-on = 'warning'\n")
    (tmp_path / "a.json").write_text(scored().to_json())
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str, typed: tuple[str, ...] = ()) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main([*arguments, "diff", "a.json", "a.json", "--format", "json", *typed])
        return left.value.code, *capsys.readouterr()

    return call


def test_a_default_is_taken_and_named_on_stderr(run):
    code, out, err = run()
    assert (code, json.loads(out)["gate"]["fail_on"]) == (0, "warning")
    assert "defaults from" in err
    assert ".rksp.toml" in err


def test_the_command_line_wins(run):
    _, out, _ = run(typed=("--fail-on", "error"))
    assert json.loads(out)["gate"]["fail_on"] == "error"


def test_no_config_ignores_the_file(run):
    code, out, err = run("--no-config")
    assert (code, json.loads(out)["gate"]["fail_on"]) == (0, "error")
    assert "defaults" not in err


def test_a_bad_value_is_exit_code_two_with_nothing_on_stdout(run, tmp_path):
    (tmp_path / ".rksp.toml").write_text("[diff]\nfail-on = 'many'\n")
    code, out, err = run()
    assert (code, out) == (2, "")
    assert "--fail-on" in err


def test_outside_of_a_repository_only_the_working_folder_counts(tmp_path):
    inner = tmp_path / "a"
    inner.mkdir()
    (tmp_path / ".rksp.toml").write_text("[score]\nthreads = 2\n")
    assert find_defaults(inner) is None
    assert find_defaults(tmp_path)[1] == {"score": {"threads": 2}}
    (tmp_path / ".git").mkdir()
    assert find_defaults(inner)[0] == tmp_path / ".rksp.toml"


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs owners of files")
@pytest.mark.parametrize("name", [".rksp.toml", "pyproject.toml"])
def test_a_file_of_another_user_is_not_read(tmp_path, monkeypatch, capsys, name):
    (tmp_path / name).write_text("[tool.rksp.score]\nthreads = 2\n")
    assert find_defaults(tmp_path) is not None
    monkeypatch.setattr(defaults.os, "geteuid", lambda: os.getuid() + 1)
    assert find_defaults(tmp_path) is None
    assert "belongs to another user" in capsys.readouterr().err
