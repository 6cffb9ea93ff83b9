"""rksp works from wherever one stands: installed or not, in the checkout, above it, or elsewhere.

Each process starts as a stranger's would, without a variable of Python's. Where rksp is not
installed only the checkout's root can find it, and what stands elsewhere is skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import venv
from pathlib import Path

import pytest
from support.places import ROOT

import rksp

PACKAGE_ROOTS = ("rksp", "classifiers", "cli", "datasets", "kernels")
BARE = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
WITHOUT_DATASETS = "import sys; sys.path = [p for p in sys.path if '-packages' not in p]\n"
SCORED = """
import multiprocessing
import rksp

def work(rate):
    return rksp.score("gpt2", lr=rate, evidence="config").verdict, rksp.__version__

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        assert pool.map(work, [30.0]) == [work(30.0)], "a worker answers otherwise"
    print(*work(30.0))
"""
TRAINED = """
import torch, transformers
model = transformers.GPT2LMHeadModel(
    transformers.GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=32, n_positions=8)
)
rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 4
settings = transformers.TrainingArguments(
    output_dir="out", max_steps=1, report_to=[], use_cpu=True, save_strategy="no"
)
print(transformers.Trainer(model, settings, train_dataset=rows).train().global_step)
"""


def said(*command: str, cwd: Path, python: str = sys.executable, **more: str) -> str:
    """Return the last line that Python prints; an error is the test's."""
    done = subprocess.run(
        [python, *command], cwd=cwd, env=BARE | more, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip().rpartition("\n")[2]


@pytest.fixture(scope="module")
def clone(tmp_path_factory) -> Path:
    """A copy of what a checkout has, in a folder called `rksp`."""
    root = tmp_path_factory.mktemp("parent") / "rksp"
    skipped = shutil.ignore_patterns("__pycache__", "*.parquet")
    for name in PACKAGE_ROOTS:
        shutil.copytree(ROOT / name, root / name, ignore=skipped)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, root)
    return root


def _place(name: str, clone: Path, tmp_path: Path) -> Path:
    if name != "root" and "PYTHONPATH" in os.environ:
        pytest.skip("rksp is not installed, so nothing finds it there")
    return {"root": clone, "parent": clone.parent, "elsewhere": tmp_path}[name]


@pytest.mark.parametrize("where", ["root", "parent", "elsewhere"])
def test_a_module_starts(where, clone, tmp_path):
    place = _place(where, clone, tmp_path)
    assert said("-m", "rksp", "--version", cwd=place) == f"rksp {rksp.__version__}"


def test_a_script_and_its_workers_start_in_the_root(clone):
    (clone / "example.py").write_text(SCORED)
    assert said("example.py", cwd=clone) == f"risk {rksp.__version__}"


def test_hugging_faces_package_is_what_a_bare_name_means(clone):
    expected = pytest.importorskip("datasets").__version__
    code = "import datasets; from datasets import Dataset; print(datasets.__version__)"
    assert said("-c", code, cwd=clone) == expected


def test_the_checkout_hides_nothing_of_its_neighbours(clone):
    code = "import rksp.kernels.power_iteration, rksp.datasets, rksp.classifiers, rksp.cli; "
    named = ", ".join(f"rksp.{name}.__file__" for name in PACKAGE_ROOTS[1:])
    files = said("-c", f"{code}print({named})", cwd=clone).split()
    assert [Path(file).parent for file in files] == [clone / name for name in PACKAGE_ROOTS[1:]]


def test_a_clone_without_the_two_lines_finds_no_neighbour(clone, tmp_path):
    init = (clone / "rksp" / "__init__.py").read_text()
    (tmp_path / "rksp").mkdir()
    (tmp_path / "rksp" / "__init__.py").write_text(init.replace("__path__[:]", "_ignored"))
    shutil.copytree(clone / "cli", tmp_path / "cli")
    with pytest.raises(AssertionError, match=r"No module named 'rksp\.cli'"):
        said("-c", "import rksp.cli", cwd=tmp_path)


@pytest.mark.parametrize("name", ["datasets", "kernels"])
def test_a_folder_is_silent_until_it_is_used_and_then_says_what_it_is(name, clone):
    code = WITHOUT_DATASETS + textwrap.dedent(f"""
        import {name}
        assert not hasattr({name}, "Dataset") and not hasattr({name}, "dispatch")
        try:
            {name}.Dataset
        except AttributeError as error:
            print(error)
    """)
    answer = said("-c", code, cwd=clone)
    assert f"{name}.Dataset" in answer and f"pip install {name}" in answer


def test_a_package_elsewhere_is_preferred_and_two_clones_do_not_call_each_other(clone, tmp_path):
    code = "import kernels; print(kernels.__file__)"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(BARE, "PYTHONPATH", os.pathsep.join([str(ROOT), str(tmp_path)]))
        assert Path(said("-c", WITHOUT_DATASETS + code, cwd=clone)).parent == clone / "kernels"
        (tmp_path / "kernels.py").touch()
        assert said("-c", WITHOUT_DATASETS + code, cwd=clone) == str(tmp_path / "kernels.py")


def test_the_key_of_what_is_kept_depends_on_the_package_alone(clone):
    (clone / ".venv").mkdir(exist_ok=True)
    (clone / ".venv" / "other.py").touch()
    code = "from rksp.assessment.store import _code; print(_code())"
    key = said("-c", code, cwd=clone)
    (clone / ".venv" / "other.py").write_text("more = 1\n")
    assert said("-c", code, cwd=clone) == key
    for folder in ("rksp", "datasets", "kernels"):
        (clone / folder / "other.py").touch()
        assert said("-c", code, cwd=clone) != key
        (clone / folder / "other.py").unlink()


@pytest.mark.slow
@pytest.mark.parametrize("library", ["with", "without"])
def test_a_trainer_starts_in_the_root(library, clone):
    pytest.importorskip("accelerate")
    if library == "with":
        pytest.importorskip("datasets")
        assert said("-c", TRAINED, cwd=clone) == "1"
    else:
        hidden = """
            import sys, importlib.machinery as m
            whole = m.PathFinder.find_spec
            def without(name, path=None, target=None):
                ours = [p for p in path or sys.path if "-packages" not in p]
                return whole(name, ours if name == "datasets" else path, target)
            m.PathFinder.find_spec = without
            from transformers import Trainer
            print(sys.modules["datasets"].__file__)
        """
        file = said("-c", textwrap.dedent(hidden), cwd=clone)
        assert Path(file).parent == clone / "datasets"


@pytest.mark.slow
def test_an_editable_installation_works_everywhere(clone, tmp_path):
    """As `pip install -e .` does it, offline: a fresh environment that sees the libraries here."""
    pytest.importorskip("setuptools", "77")
    pip = subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, env=BARE)
    if pip.returncode:
        pytest.skip("pip is not installed")
    venv.create(tmp_path / "env", symlinks=os.name != "nt")
    python = str(tmp_path / "env" / ("Scripts" if os.name == "nt" else "bin") / "python")
    place = "import sysconfig; print(sysconfig.get_path('purelib'))"
    libraries = "\n".join(p for p in sys.path if p.endswith("-packages"))
    Path(said("-c", place, cwd=tmp_path, python=python), "zz.pth").write_text(libraries)
    options = ["--no-build-isolation", "--no-deps", "--ignore-installed", "--no-index", "-q"]
    said("-m", "pip", "install", *options, "-e", ".", cwd=clone, python=python)
    for place in (clone, clone.parent, tmp_path):
        assert said("-m", "rksp", "--version", cwd=place, python=python).endswith(rksp.__version__)
        code = "import rksp.cli as c; print(c.__file__)"
        assert said("-c", code, cwd=place, python=python) == str(clone / "cli" / "__init__.py")
    (clone / "rksp" / "new.py").write_text("VALUE = 7\n")
    code = "from rksp.new import VALUE; print(VALUE)"
    assert said("-c", code, cwd=clone.parent, python=python) == "7"
    exposed = "import importlib.util as u; print([n for n in ('cli', 'tests') if u.find_spec(n)])"
    assert said("-I", "-c", exposed, cwd=tmp_path, python=python) == "[]"
