"""What a file of defaults can do: every option of every command is tried from one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from pydantic import BaseModel
from support.attacks import refused
from support.commands import left_with
from support.file_powers import FROM_FILE

from rksp.cli import app
from rksp.cli.options import Panel, with_options
from rksp.ground.flags import Flag

VALUES = {"fail-on": ['"warning"', "0.01", '["unknown", "error"]'], "threads": ["1"]}
TARGETS = {
    "a risk": ["gpt2", "--lr", "6e-3"],
    "a warning": ["gpt2", "--lr", "6e-4"],
    "an unknown": ["gpt2", "--lr", "6e-4", "--objective", "other"],
}


def _commands(command: Any, path: tuple[str, ...] = ()) -> dict[str, Any]:
    inner = getattr(command, "commands", None)
    if inner is None:
        return {" ".join(path): command}
    return {k: v for name, one in inner.items() for k, v in _commands(one, (*path, name)).items()}


COMMANDS = _commands(typer.main.get_command(app))


def _options(command: Any) -> dict[str, Any]:
    return {
        name.removeprefix("--"): parameter
        for parameter in command.params
        for name in parameter.opts
        if name.startswith("--") and name != "--help"
    }


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Runs a command in a repository whose file of defaults has one line."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".git").mkdir()

    def call(command: str, line: str, *arguments: str) -> tuple[int, str, str]:
        table = command.replace(" ", ".")
        Path(".rksp.toml").write_text(f"[{table}]\n{line}\n" if line else "")
        code = left_with([*command.split(), *arguments])
        return code, *capsys.readouterr()

    return call


@pytest.mark.parametrize("command", COMMANDS)
def test_every_other_option_is_refused_and_nothing_is_written(run, command):
    options = _options(COMMANDS[command])
    for name, parameter in options.items():
        if name in FROM_FILE.get(command, ()):
            continue
        value = "true" if parameter.is_flag else '["1"]' if parameter.multiple else '"1"'
        refused(run(command, f"{name} = {value}"), f"type --{name}")
        assert sorted(p.name for p in Path().iterdir()) == [".git", ".rksp.toml"]
    assert FROM_FILE.get(command, set()) <= options.keys()


@pytest.mark.parametrize("target", TARGETS)
def test_an_allowed_option_lowers_no_exit_code_and_hides_no_finding(run, target):
    arguments = [*TARGETS[target], "--evidence", "config", "-o", "out.json"]

    def scored(line: str) -> tuple[int, dict[str, Any]]:
        code, _, _ = run("score", line, *arguments)
        return code, json.loads(Path("out.json").read_text())

    before, plain = scored("")
    assert before == (target == "a risk")
    for name in FROM_FILE["score"]:
        for value in VALUES.get(name, ["true"]):
            code, report = scored(f"{name} = {value}")
            assert code >= before and code in (0, 1, 4)
            found = [{one["code"] for one in each["findings"]} for each in (report, plain)]
            assert found[0] >= found[1]
            assert report["findings"] == plain["findings"] or "0.01" in value
            assert report["seeds"] == plain["seeds"] or "0.01" in value  # the bar moves a verdict
            assert report["provenance"]["defaults_from_file"].startswith("-")
    assert sorted(p.name for p in Path().iterdir()) == [".git", ".rksp.toml", "out.json"]


def test_a_stricter_gate_of_a_file_is_obeyed_and_typed_words_win_over_it(run):
    warned = [*TARGETS["a warning"], "--evidence", "config"]
    assert run("score", "", *warned)[0] == 0
    assert run("score", 'fail-on = "warning"', *warned)[0] == 1
    assert run("score", 'fail-on = "warning"', *warned, "--fail-on", "0.5")[0] == 0
    unknown = [*TARGETS["an unknown"], "--evidence", "config"]
    assert run("score", 'fail-on = "unknown"', *unknown)[0] == 4


class Toy(BaseModel):
    """A model of options."""

    old: Annotated[int, Flag("--old", "Decided.", from_file=True)] = 1
    new: Annotated[int, Flag("--new", "Not yet.")] = 1


@with_options
def toy(model: Annotated[Toy, Panel(title="Toy")]) -> None:
    """Take both."""


def test_a_new_option_is_refused_until_someone_decides():
    made: Any = toy
    assert made.from_file == {"old"}
    assert "file of defaults" in Flag("--old", "Decided.", from_file=True).said
    assert "file of defaults" not in Flag("--new", "Not yet.").said
