"""The GitHub action and the GitLab snippet do what they promise, run as scripts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import yaml
from support.places import ROOT

ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
README = (ROOT / "rksp/report/README.md").read_text()
TINY = "--set n_layer=2 --evidence config"  # what is measured is not what these tests are about
RKSP = f"""#!/bin/sh\nexec "{sys.executable}" -c 'from rksp.cli import main; main()' "$@"\n"""
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
        env=environment | {"PYTHONSAFEPATH": "1"} | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def _action(
    folder: Path, /, *, rksp: str = RKSP, **inputs: str
) -> subprocess.CompletedProcess[str]:
    """The action's step as a runner runs it: inputs with their defaults, through `env`."""
    (step,) = (step for step in ACTION["runs"]["steps"] if step.get("id") == "score")
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
    assert "## rksp: RISK" in (tmp_path / "github_step_summary").read_text()
    written = {file.suffix for file in (tmp_path / "rksp-report").iterdir()}
    assert written == {".json", ".sarif", ".xml", ".md", ".html"}


def test_the_action_hands_every_input_over(tmp_path):
    stub = '#!/bin/sh\nfor word in "$@"; do echo "$word"; done\nexit 1\n'
    done = _action(
        tmp_path,
        rksp=stub,
        target="my model.json",
        arguments="--set 'name=a b'  --lr 6e-4",
        baseline="old.json",
        folder="out",
        **{"fail-on": "warning"},
    )
    assert done.returncode == 1  # of rksp, not of what comes after it
    words = done.stdout.splitlines()
    assert words[:5] == ["score", "my model.json", "--fail-on", "warning", "--format"]
    assert words[-6:] == ["--set", "name=a b", "--lr", "6e-4", "--baseline", "old.json"]
    assert "out/report.sarif" in words
    assert not (tmp_path / "github_output").exists()


def test_bad_input_is_exit_code_two_writes_nothing_and_is_never_code(tmp_path):
    (step,) = (step for step in ACTION["runs"]["steps"] if step.get("id") == "score")
    assert "${{" not in step["run"]
    done = _action(
        tmp_path, target='gpt22"; touch owned; "', arguments="--seed $(touch${IFS}owned)"
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert list((tmp_path / "rksp-report").iterdir()) == []
    assert not (tmp_path / "github_output").exists()
    assert not (tmp_path / "owned").exists()


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
