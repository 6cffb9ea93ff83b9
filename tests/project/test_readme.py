"""The README's commands are the ones that exist, and its Python runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
import typer
from support.places import ROOT

from rksp.cli import app

README = (ROOT / "README.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def _commands() -> list[list[str]]:
    lines = [line for block in _blocks("sh") for line in block.splitlines()]
    found = [part.strip() for line in lines for part in line.split("&&")]
    found += re.findall(r"`(rksp (?:grid|confirm|why) [^`]+)`", README)
    return [part.split() for part in found if part.startswith("rksp ")]


def _faults(words: list[str]) -> list[str]:
    """Return what is wrong with a command: options it does not have, or no such command."""
    command = typer.main.get_command(app)
    path = words[1 : words.index("--")] if "--" in words else words[1:]
    while path and path[0] in getattr(command, "commands", {}):
        command = command.commands[path.pop(0)]
    options = {name for p in command.params for name in p.opts}
    found = [f"no option {w}" for w in path if w.startswith("-") and w not in options]
    return found + ["no such command"] * bool(getattr(command, "commands", {}))


def test_the_readme_has_commands():
    assert len(_commands()) >= 5


@pytest.mark.parametrize("words", _commands(), ids=" ".join)
def test_every_command_parses(words):
    assert _faults(words) == []


def test_that_check_can_fail():
    assert _faults(["rksp", "score", "gpt2", "--speed"]) == ["no option --speed"]
    assert _faults(["rksp", "scores", "gpt2"]) == ["no such command"]


_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")


def _spoken(text: str) -> tuple[list[str], list[float]]:
    """The words and the numbers outside of the table of blocks, whose κ(V) depends on the BLAS."""
    lines = [line for line in text.splitlines() if not line.startswith("transformer.h.")]
    joined = re.sub(r"[▁-█]+", " ", " ".join(lines))
    return _NUMBER.sub("#", joined).split(), [float(n) for n in _NUMBER.findall(joined)]


PRINTED = ("score examples/gpt2.yaml", "score examples/gpt2_hot.yaml", "confirm gpt2")


@pytest.mark.parametrize("place", [0, 1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_output_of_the_readme_is_what_its_command_prints(place):
    verb, _, target = PRINTED[place].partition(" ")
    told = next(words for words in _commands() if words[1:3] == [verb, target])
    done = subprocess.run(
        [sys.executable, "-c", "from rksp.cli import main; main()", *told[1:]],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "100", "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
    )
    assert done.returncode in (0, 1), done.stderr
    words, numbers = _spoken(_blocks("text")[place])
    printed, found = _spoken(done.stdout if verb == "score" else done.stdout.split("\n\n")[0])
    assert printed == words
    assert found == pytest.approx(numbers, rel=0.1, abs=0.02)


def test_the_python_of_the_readme_runs():
    blocks = _blocks("python")
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    assert names["result"].verdict == "cannot tell" and names["result"].rates() == {}


def test_the_ci_script_does_what_the_readme_says():
    script = (ROOT / ".ci" / "run").read_text()
    install = "-c constraints.txt '.[test]'"
    assert install in README
    assert install in script
    assert "&& pytest -q\n" in README
    assert script.endswith("\npytest -q\npytest -q -m slow\n")


def test_the_test_command_leaves_out_what_the_readme_says(pytestconfig):
    assert "`pytest -q -m slow` runs the others" in README
    assert "not slow" in pytestconfig.getini("addopts")
