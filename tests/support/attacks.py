"""Commands in a folder with a stranger's files, and the checks that rksp refuses them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.commands import left_with

EVIL = """
import pathlib
pathlib.Path("imported").touch()
def run():
    pathlib.Path("called").touch()
    raise SystemExit(0)
"""
STEPS = "learning_rate: 1e-4\nmicro_batch_size: 1\nmax_steps: 10\nsequence_len: 64\n"
AXOLOTL = f'base_model: "evil:run"\n{STEPS}gradient_accumulation_steps: 1\n'
HUGGING_FACE = (
    'model_name_or_path: "evil:run"\nlearning_rate: 1e-4\nper_device_train_batch_size: 8\n'
    "max_steps: 10\n"
)

Answer = tuple[int, str, str]  # exit code, stdout, stderr


def commands_in(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[[str], Answer]]:
    """Yield a function that runs a command beside a file that leaves marks when it is executed."""
    monkeypatch.chdir(folder)
    Path("evil.py").write_text(EVIL)
    Path("t.yaml").write_text(AXOLOTL)

    def call(command: str) -> Answer:
        code = left_with(command.split())
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return code, said.out, said.err

    yield call
    sys.modules.pop("evil", None)


def refused(done: Answer, sentence: str = "") -> str:
    """Check exit code 2 and nothing on stdout; return the one sentence on stderr."""
    code, out, err = done
    assert (code, out) == (2, ""), err
    assert len(err.splitlines()) == 1, err
    assert sentence in err
    assert len(err) < 1200
    return err
