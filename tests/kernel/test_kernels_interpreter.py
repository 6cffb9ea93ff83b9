"""Runs interpreted_kernels.py once, in its own process, and reports each test of it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from support.places import ROOT

from rksp.ground.processes import safe_path

pytestmark = pytest.mark.slow
FILE = Path(__file__).with_name("interpreted_kernels.py")
NAMES = [
    node.name
    for node in ast.parse(FILE.read_text(encoding="utf-8")).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
]


@pytest.fixture(scope="session")
def cases(tmp_path_factory) -> dict[str, list[tuple[str, str | None]]]:
    """Test function → its cases, each with the failure's text or None."""
    triton = pytest.importorskip("triton", reason="nothing can interpret without triton")
    if triton.__version__ < "3.7" and np.lib.NumpyVersion(np.__version__) >= "2.4.0":
        pytest.skip("the interpreter of triton 3.6 cannot loop to a bound with numpy 2.4 (#9171)")
    report = tmp_path_factory.mktemp("interpreter") / "report.xml"
    environment = (
        os.environ
        | safe_path()
        | {
            "TRITON_INTERPRET": "1",
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
    )
    environment.pop("RKSP_KERNELS", None)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", str(FILE), f"--rootdir={ROOT}"),
            *("-c", str(ROOT / "pyproject.toml"), "-q", "-n", "0", "-p", "no:cacheprovider"),
            f"--junitxml={report}",
        ],
        env=environment,
        cwd=report.parent,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert report.exists(), done.stdout + done.stderr
    found: dict[str, list[tuple[str, str | None]]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        failure = next((child for child in case if child.tag in ("failure", "error")), None)
        skipped = case.find("skipped") is not None
        text = "skipped" if skipped else None if failure is None else failure.text
        found.setdefault(case.get("name").split("[")[0], []).append((case.get("name"), text))
    assert found, done.stdout + done.stderr
    return found


@pytest.mark.parametrize("name", NAMES)
def test_interpreted(name, cases):
    assert cases.get(name), f"{name} did not run: the file failed to load, or was renamed"
    failed = [f"{case}\n{text}" for case, text in cases[name] if text is not None]
    assert not failed, "\n\n".join(failed)
