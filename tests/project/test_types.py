"""The check of types: which tree it sees, what it names, and how rarely it is told to look away."""

from __future__ import annotations

import importlib.util
import re

from support.places import ROOT

_IGNORE = re.compile(r"# type: ignore(.*)")
_WITH_REASON = re.compile(r"\[[a-z-]+\]  # \S")


def _script():
    spec = importlib.util.spec_from_file_location("check_types", ROOT / ".ci" / "check_types.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tree_holds_every_package(tmp_path):
    script = _script()
    assert sorted(script.homes()) == ["classifiers", "cli", "datasets", "kernels"]
    script.assemble(tmp_path)
    for name in (
        "recipe/__init__.py",
        "py.typed",
        "cli/app.py",
        "datasets/probe.py",
        "kernels/__init__.py",
    ):
        assert (tmp_path / "rksp" / name).is_file()
    assert (tmp_path / "lab" / "commands.py").is_file()


def test_a_message_names_the_file_of_the_repository():
    said = "rksp/cli/app.py:1: error: a\nrksp/recipe/__init__.py:2: error: see rksp/cli/app.py\n"
    named = "cli/app.py:1: error: a\nrksp/recipe/__init__.py:2: error: see rksp/cli/app.py\n"
    assert _script().real_paths(said) == named


def test_every_ignored_type_says_which_and_why():
    homes = ("rksp", "cli", "kernels", "classifiers", "datasets", "lab")
    sources = [path.read_text() for home in homes for path in (ROOT / home).rglob("*.py")]
    ignored = [found[1] for source in sources for found in _IGNORE.finditer(source)]
    assert 0 < len(ignored) < 30
    assert [rest for rest in ignored if not _WITH_REASON.match(rest)] == []
    assert not _WITH_REASON.match("") and not _WITH_REASON.match("[misc]")
