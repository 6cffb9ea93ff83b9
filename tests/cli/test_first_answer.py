"""On a terminal the configuration answers first, and the measurement replaces its answer."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from support.commands import left_with, run_rksp
from support.terminal import on_a_terminal, screen, terminal

from rksp.cli import score as command

TINY = ("--set=n_layer=1", "--set=n_embd=32", "--set=n_head=2", "--set=vocab_size=300")
SCORE = ("score", "gpt2", *TINY, "--snapshots=128", "--lr=6e-4", "--exit-zero")
MEASURING = "measuring…"


@pytest.fixture(autouse=True)
def _fresh(_measured_once, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("RKSP_CACHE", str(tmp_path / "cache"))


CHANGED = re.compile("(raised|lowered|left) the edge")  # what a measurement says


@pytest.fixture(scope="module")
def page() -> str:
    """The page of the same score in a pipe, as wide as the terminal."""
    return run_rksp(*SCORE, "--no-cache").stdout


def test_the_measurement_replaces_the_configuration_s_answer(page):
    with on_a_terminal() as text:
        assert not left_with(list(SCORE))
        drawn = text()
    before, _, after = drawn.rpartition(MEASURING)
    assert "start here" in before and not CHANGED.search(before)
    final = [line.rstrip() for line in screen(drawn) if line.strip()]
    assert final[0].startswith(("OK", "CAUTION", "RISK"))
    assert [line[:60] for line in final] == [line[:60] for line in page.splitlines()]
    assert any(CHANGED.search(line) for line in final)
    assert MEASURING not in "".join(final) and CHANGED.search(after)


def test_a_pipe_carries_the_final_page_alone(page):
    assert MEASURING not in page
    assert page.count("start here") == len(CHANGED.findall(page)) == 1


def test_what_is_known_is_not_announced():
    run_rksp(*SCORE)
    with on_a_terminal() as text:
        again = [word for word in SCORE if not word.startswith("--lr")]
        assert not left_with([*again, "--lr=5e-4"])
        drawn = text()
    assert MEASURING not in drawn and CHANGED.search(drawn)


@pytest.mark.parametrize("more", [("--format=json",), ("--evidence=config",)])
def test_only_a_page_that_will_change_comes_first(more):
    with on_a_terminal() as text:
        assert not left_with([*SCORE, *more])
        drawn = text()
    assert MEASURING not in drawn and "\x1b[2K" not in drawn


def test_an_interrupt_leaves_the_first_answer_standing(monkeypatch, capsys):
    def interrupted(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_ready", interrupted)
    with on_a_terminal() as text:
        assert left_with(list(SCORE)) == 130
        drawn = text()
    left = screen(drawn)
    assert left[0].startswith(("OK", "CAUTION", "RISK"))
    assert [line for line in left if line][-1].startswith("  not measured: this is what the conf")
    assert MEASURING not in "".join(left)
    assert "nothing was kept" not in capsys.readouterr().err
    assert left_with(list(SCORE)) == 130  # no terminal: nothing stands
    assert "nothing was kept" in capsys.readouterr().err


def test_a_target_without_a_configuration_is_just_measured(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(
        "import torch\n"
        "def make():\n"
        "    return torch.nn.Linear(4, 4), (torch.randn(8, 4), torch.randn(8, 4))\n"
    )
    monkeypatch.chdir(tmp_path)
    with on_a_terminal() as text:
        assert not left_with(["score", "own:make", "--lr=1e-3", "--exit-zero"])
        drawn = text()
    assert (MEASURING not in drawn and "Linear" in drawn) or "own:make" in drawn


def test_both_answers_are_in_the_document():
    measured, configured = (
        json.loads(run_rksp(*SCORE, "--format=json", *more).stdout)["seeds"][0]
        for more in ((), ("--evidence=config",))
    )
    assert configured["configured"] is None
    for name, value in measured["configured"].items():
        assert value == configured["risk"].get(name, value), name
    assert measured["configured"]["likely_edge"] != measured["risk"]["likely_edge"]


_NO_TORCH = """
import sys
from rksp.cli import main, score
def ready(*given):
    print("loaded", sorted({"torch", "transformers"} & set(sys.modules)), file=sys.stderr)
    raise KeyboardInterrupt
score._ready = ready
main(sys.argv[1:])
"""


def test_the_first_answer_waits_for_no_library():
    with terminal() as (end, text):
        done = subprocess.run(
            [sys.executable, "-P", "-c", _NO_TORCH, *SCORE],
            stdout=end,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"TERM": "xterm"},
        )
        drawn = text()
    assert done.returncode == 130
    assert "loaded []" in done.stderr
    assert MEASURING in drawn
