"""The examples in the docstrings of rksp's seven nouns run and print what they say."""

from __future__ import annotations

import doctest
import inspect

import pytest

import rksp

NOUNS = ("score", "grid", "confirm", "watch", "why", "fix", "diff")


@pytest.mark.parametrize("name", NOUNS)
def test_a_noun_has_an_example_that_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = inspect.unwrap(getattr(rksp, name))
    (test,) = doctest.DocTestFinder(recurse=False).find(found, name, globs={})
    assert test.examples
    assert doctest.DocTestRunner().run(test).failed == 0


def test_a_wrong_example_is_found():
    wrong = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, 0)
    assert doctest.DocTestRunner(verbose=False).run(wrong, out=lambda text: None).failed == 1
