"""The GitHub action and the GitLab snippet do what they promise, run as scripts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.places import ROOT

ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
README = (ROOT / "rksp/report/README.md").read_text()
TINY = "--set n_layer=2 --evidence config"  # what is measured is not what these tests are about
RKSP = f"#!{sys.executable}\nfrom rksp.cli import main\nmain()\n"  # as pip writes it
PYTHON = f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'


def _run(
    script: str, folder: Path, *, rksp: str = RKSP, **variables: str
) -> subprocess.CompletedProcess[str]:
    tools = folder / "bin"
    tools.mkdir(exist_ok=True)
    for name, code in (("rksp", rksp), ("python", PYTHON)):
        (tools / name).write_text(code)
        (tools / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=folder,
        env=environment | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def _step(name: str) -> dict:
    (step,) = (step for step in ACTION["runs"]["steps"] if step.get("id") == name)
    return step


def _action(
    folder: Path, /, *, rksp: str = RKSP, **inputs: str
) -> subprocess.CompletedProcess[str]:
    """The action's step as a runner runs it: inputs with their defaults, through `env`."""
    step = _step("score")
    given = {name: spec.get("default", "") for name, spec in ACTION["inputs"].items()} | inputs
    variables = {
        name: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda m: given[m[1]], text)
        for name, text in step["env"].items()
    }
    assert not any("${{" in value for value in variables.values())
    files = {name: str(folder / name.lower()) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    return _run(step["run"], folder, rksp=rksp, **variables, **files)


def test_the_action_reports_a_risk_everywhere(tmp_path):
    done = _action(tmp_path, target="gpt2", arguments=f"--lr 3.0 {TINY}")
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("::error title=RKSP001")
    outputs = dict(
        line.split("=", 1) for line in (tmp_path / "github_output").read_text().splitlines()
    )
    report = json.loads((tmp_path / outputs["report"]).read_text())
    assert outputs["verdict"] == report["verdict"] == "risk"
    assert float(outputs["risk"]) == report["seeds"][0]["risk"]["probability_failed"]
    assert (tmp_path / outputs["sarif"]).is_file()
    assert outputs.keys() == ACTION["outputs"].keys()
    assert "**RISK: " in (tmp_path / "github_step_summary").read_text()
    written = {file.suffix for file in (tmp_path / "rksp-report").iterdir()}
    assert written == {".json", ".sarif", ".xml", ".md", ".html"}


def test_the_action_hands_every_input_over(tmp_path):
    stub = '#!/bin/sh\nfor word in "$@"; do echo "$word"; done\nexit 1\n'
    done = _action(
        tmp_path,
        rksp=stub,
        target="my model.json\nruns/",
        devices="8",
        arguments="--set 'name=a b'  --lr 6e-4",
        baseline="old.json",
        folder="out",
        **{"fail-on": "warning"},
    )
    assert done.returncode == 1  # of rksp, not of what comes after it
    words = done.stdout.splitlines()
    assert words[:6] == ["score", "my model.json", "runs/", "--fail-on", "warning", "--format"]
    assert words[-8:-6] == ["--devices", "8"]
    assert words[-6:] == ["--set", "name=a b", "--lr", "6e-4", "--baseline", "old.json"]
    assert "out/report.sarif" in words
    assert not (tmp_path / "github_output").exists()


def test_the_action_scores_several_files(tmp_path):
    for name, rate in (("a", "1.0e-4"), ("b", "0.3")):
        run = f"model_name_or_path: gpt2\nlearning_rate: {rate}\nmax_steps: 1000\n"
        (tmp_path / f"{name}.yaml").write_text(run)
    done = _action(tmp_path, target="a.yaml\nb.yaml\n", devices="1")
    assert done.returncode == 1, done.stderr
    told = (tmp_path / "github_output").read_text().splitlines()
    assert "verdict=risk" in told and float(told[1].removeprefix("risk=")) > 0.5


def test_bad_input_is_exit_code_two_writes_nothing_and_is_never_code(tmp_path):
    assert "${{" not in _step("score")["run"]
    done = _action(
        tmp_path, target='gpt22"; touch owned; "', arguments="--seed $(touch${IFS}owned)"
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert list((tmp_path / "rksp-report").iterdir()) == []
    assert not (tmp_path / "github_output").exists()
    assert not (tmp_path / "owned").exists()


# What a stranger may check out: each file tells that Python ran it, or that a tool obeyed it.
_TOUCH = "import pathlib\npathlib.Path({folder!r}, 'ran-{name}').touch()\n"
_HOSTILE = ("pip/__init__.py", "uv/__init__.py", "json.py", "sitecustomize.py", "rksp/__init__.py")
# A Python that starts as it is told, and asks pip and uv for no more than their release.
_ASKING = f"""#!/bin/sh
echo "$PWD|$UV_NO_CONFIG|$PIP_CONFIG_FILE|$*" >> "$ASKED"
case "$*" in
  *"-m pip "*) exec "{sys.executable}" ${{1%-m}} -m pip --version ;;
  *"-m uv "*) "{sys.executable}" ${{1%-m}} -m uv --version || true ;;
  *) exec "{sys.executable}" "$@" ;;
esac
"""


@pytest.fixture
def hostile(tmp_path) -> Path:
    """A checked-out tree full of what Python and its tools would take from their folder."""
    tree = tmp_path / "tree"
    for name in _HOSTILE:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        label = name.replace("/", "-")
        (tree / name).write_text(_TOUCH.format(folder=str(tmp_path), name=label))
        (tree / name).with_name("__main__.py").touch()
    (tree / "uv.toml").write_text('[pip]\nindex-url = "http://127.0.0.1:9/"\n')
    (tree / "pip.conf").write_text("[global]\nindex-url = http://127.0.0.1:9/\n")
    return tree


def _ran(tree: Path) -> set[str]:
    return {path.name.removeprefix("ran-") for path in tree.parent.glob("ran-*")}


def _installed(tree: Path, script: str) -> list[list[str]]:
    """Run the script of the step that installs, in the folder that it names."""
    step, asked = _step("install"), tree.parent / "asked"
    elsewhere = tree.parent / "temp"
    elsewhere.mkdir(exist_ok=True)
    named = step.get("working-directory", "").replace("${{ runner.temp }}", str(elsewhere))
    folder = Path(named) if script == step["run"] else tree
    (tree.parent / "python").write_text(_ASKING)
    (tree.parent / "python").chmod(0o755)
    variables = {
        k: v.replace("${{ github.action_path }}", str(ROOT)) for k, v in step["env"].items()
    }
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")} | variables
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=folder,
        env=environment | {"PATH": f"{tree.parent}:{os.environ['PATH']}", "ASKED": str(asked)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [line.split("|") for line in asked.read_text().splitlines()]


def test_the_action_installs_without_running_or_obeying_the_checked_out_tree(hostile):
    asked = _installed(hostile, _step("install")["run"])
    assert _ran(hostile) == set()
    tools = [line for line in asked if "-m " in line[3]]
    assert [line[3].split()[2] for line in tools] == ["pip", "uv", "uv"]
    assert all(line[3].startswith("-I ") for line in tools)
    for folder, no_config, pip_config, _ in tools:
        assert not Path(folder).is_relative_to(hostile)
        assert (no_config, pip_config) == ("1", os.devnull)
    assert all("--require-hashes" in line[3] for line in tools[:2])


def test_the_action_scores_without_running_the_checked_out_tree(hostile):
    done = _action(hostile, target="gpt2", arguments=f"--lr 3.0 {TINY}")
    assert done.returncode == 1, done.stderr
    assert "verdict=risk" in (hostile / "github_output").read_text()
    assert _ran(hostile) == set()


def test_that_tree_can_be_executed(hostile):
    _installed(hostile, "python -m pip install uv; python -m uv pip install x")
    bare = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    for code in ("import json", "import rksp"):
        subprocess.run([sys.executable, "-c", code], cwd=hostile, env=bare, capture_output=True)
    path = bare | {"PYTHONPATH": str(hostile)}
    subprocess.run([sys.executable, "-c", "pass"], cwd=hostile, env=path, capture_output=True)
    assert _ran(hostile) == {name.replace("/", "-") for name in _HOSTILE}


def test_a_report_that_was_checked_out_is_no_answer(tmp_path):
    (tmp_path / "rksp-report").mkdir()
    (tmp_path / "rksp-report" / "report.json").write_text('{"verdict": "ok"}')
    done = _action(tmp_path, target="no-such-model", arguments=TINY)
    assert done.returncode == 2
    assert not (tmp_path / "github_output").exists()


def test_the_gitlab_snippet_writes_what_it_declares(tmp_path):
    block = next(b for b in re.findall(r"```yaml\n(.*?)```", README, re.S) if "codequality" in b)
    job = yaml.safe_load(block)["rksp"]
    arguments = f"--lr 3.0 {TINY}"
    done = _run("\n".join(job["script"]), tmp_path, RKSP_TARGET="gpt2", RKSP_ARGUMENTS=arguments)
    assert done.returncode == 1, done.stderr
    declared = [*job["artifacts"]["paths"], *job["artifacts"]["reports"].values()]
    assert all((tmp_path / name).stat().st_size for name in declared)
    entries = json.loads((tmp_path / job["artifacts"]["reports"]["codequality"]).read_text())
    assert entries[0]["check_name"] == "RKSP001"


def test_the_github_snippet_uses_inputs_that_exist():
    block = next(b for b in re.findall(r"```yaml\n(.*?)```", README, re.S) if "upload-sarif" in b)
    step = next(s for s in yaml.safe_load(block) if s.get("id") == "rksp")
    assert step["with"].keys() <= ACTION["inputs"].keys()
    assert (ROOT / step["uses"] / "action.yml").is_file()
