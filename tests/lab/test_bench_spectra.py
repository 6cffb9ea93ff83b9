"""The comparison with PyDMD: same answer, all stages timed, one sentence when PyDMD is missing."""

from __future__ import annotations

import sys

import pytest
from support.benchmark_scripts import script

from rksp.ground.errors import InputError

compare_with_pydmd = script("spectra").compare_with_pydmd


def test_both_find_the_same_spectrum_and_every_stage_is_timed() -> None:
    found = compare_with_pydmd(width=48, states=160, seed=1)
    assert found["eigenvalue_gap"] < 1e-8
    assert found["speedup"] == pytest.approx(found["pydmd_seconds"] / found["seconds"])
    assert found["speedup_same_outputs"] > found["speedup"]
    assert sum(found["stages"].values()) > 0
    assert {"SVD", "left residuals"} <= set(found["pydmd_stages"])
    assert found["within_budget"] is None, "the budget is set for width 768"


def test_a_missing_pydmd_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydmd", None)
    with pytest.raises(InputError, match=r"rksp\[peers\]"):
        compare_with_pydmd(width=8, states=40)


def test_too_few_states_are_refused() -> None:
    with pytest.raises(InputError, match="at least 146"):
        compare_with_pydmd(width=96, states=100)
