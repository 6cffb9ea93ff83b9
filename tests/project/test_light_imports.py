"""What is light stays light: one fresh Python takes every step, and says what each step loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import run_rksp
from support.places import CONFIGS, ROOT, RUN_CONFIGS
from support.reports import scored

HEAVY = {"torch", "transformers", "sklearn", "scipy", "triton"}
_COMMAND = """
from rksp.cli import main
try:
    main({!r})
except SystemExit as end:
    assert end.code in (0, None), end.code
"""
_RECIPE = """
import time
from rksp.checks.evidence import CheckEvidence
from rksp.checks.registry import run_checks
from rksp.recipe import Recipe
llama = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008,
    "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32000,
}
begun = time.process_time()
assert run_checks(CheckEvidence(recipe=Recipe(learning_rate=1e-2), config=llama))
assert time.process_time() - begun < 0.5
"""
_DRIVER = """
import contextlib, io, json, sys
found = []
for name, code in json.load(sys.stdin):
    before, error = set(sys.modules), ""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        try:
            exec(code, {})
        except BaseException as problem:
            error = repr(problem)
    found.append((name, sorted(set(sys.modules) - before), error))
json.dump(found, sys.stdout)
"""


def _command(*arguments: str) -> str:
    return _COMMAND.format(list(arguments))


def _modules(*rooms: str) -> str:
    files = [path for room in rooms for path in sorted((ROOT / "rksp" / room).rglob("*.py"))]
    parts = [path.relative_to(ROOT).with_suffix("").parts for path in files]
    names = [".".join(part) for part in parts if part[-1] != "__init__"]
    assert len(names) > 20
    return f"import {', '.join(names)}"


_TINY = ("gpt2", "--set", "n_layer=1", "--set", "n_embd=32", "--set", "n_head=2")


def _real_scores() -> str:
    """Score configurations that were published, a run file, and write a playground."""
    more = ("--lr", "1e-4", "--evidence", "config", "--exit-zero")
    names = ("Qwen3-0.6B", "Qwen3-VL", "DeepSeek-V3", "Kimi-K2", "gpt-oss")
    files = [file for name in names for file in CONFIGS.glob(f"*{name}*.json")]
    assert len(files) == len(names)
    scores = [_command("score", str(file), *more) for file in files]
    return "".join([*scores, _command("report", "--sliders", str(files[0]), "-o", "page.html")])


_RUN_FILE = str(RUN_CONFIGS / "litgpt" / "microllama.yaml")
_SCORED = ("score", "gpt2", "--lr", "1e-4", "--evidence", "config", "--exit-zero")

# Name → (code, what it must not load); from light to heavy, because they share a process.
STEPS = {
    "rksp": ("import rksp, rksp.cli", HEAVY | {"numpy"}),
    "rksp -h": (_command("-h"), HEAVY | {"numpy", "pydantic"}),
    "the recipe": ("import rksp.recipe, rksp.documents.options", HEAVY),
    "kinds of documents": (
        "from rksp.report.formats import KINDS, schema_of; list(map(schema_of, KINDS))",
        HEAVY,
    ),
    "rksp.models": ("import rksp.models", HEAVY),
    "rksp.kernels": ("import rksp.kernels", HEAVY),
    "the lab's command": (
        f"import sys; sys.path.append({str(ROOT)!r}); import lab.commands",
        HEAVY | {"pyarrow"},
    ),
    "rksp score --help": (_command("score", "--help"), HEAVY),
    "rksp explain": (_command("explain"), HEAVY),
    "a recipe's checks": (_RECIPE, HEAVY),
    "documents and renderings": (_modules("documents", "report"), HEAVY - {"scipy"}),
    "rksp report": (_command("report", "r.json", "--format", "html"), HEAVY - {"scipy"}),
    "rksp diff": (_command("diff", "r.json", "r.json"), HEAVY - {"scipy"}),
    "rksp report --schema": (_command("report", "--schema"), HEAVY - {"scipy"}),
    "the score of a configuration": (_command(*_SCORED), HEAVY - {"scipy"}),
    "the score of a config.json": (_command("score", "c.json", *_SCORED[2:]), HEAVY - {"scipy"}),
    "the scores of real configurations": (_real_scores(), HEAVY - {"scipy"}),
    "the score of a run file": (_command("score", _RUN_FILE, *_SCORED[4:]), HEAVY - {"scipy"}),
    "a score of what was measured before": (
        _command("score", *_TINY, "--lr", "2e-4", "--exit-zero"),
        HEAVY - {"scipy"},
    ),
    "a kernel": ("from rksp.kernels import power_iteration", {"triton", "transformers"}),
}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[list[str], str]]:
    """Step → what it loaded, and the error it ended with."""
    folder: Path = tmp_path_factory.mktemp("light")
    (folder / "r.json").write_text(scored(3.0).to_json())
    assert run_rksp("score", *_TINY, "--lr", "1e-4", "--exit-zero").returncode == 0
    (folder / "c.json").write_text('{"model_type": "llama", "num_hidden_layers": 2}')
    steps = [(name, code) for name, (code, _) in STEPS.items()]
    done = subprocess.run(
        [sys.executable, "-P", "-c", _DRIVER],
        input=json.dumps([*steps, ("control", "import rksp.assessment.measuring")]),
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
    )
    return {name: (modules, error) for name, modules, error in json.loads(done.stdout)}


@pytest.mark.parametrize("step", STEPS)
def test_a_light_step_loads_nothing_heavy(loaded, step: str) -> None:
    modules, error = loaded[step]
    assert error == ""
    assert STEPS[step][1] & set(modules) == set()


def test_that_check_can_fail(loaded) -> None:
    modules, _ = loaded["control"]
    assert "rksp.assessment.measuring" in modules
    assert "torch" in loaded["a kernel"][0]
