"""The bases of frozen records, and a value that must be there."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from rksp.ground.model import Finite, Strict, definite


class _Loose(Strict):
    number: float


class _Bounded(Finite):
    number: float


@pytest.mark.parametrize("kind", [_Loose, _Bounded])
def test_a_record_is_frozen_and_knows_its_fields(kind):
    record = kind(number=1.0)
    with pytest.raises(ValidationError, match="frozen"):
        record.number = 2.0
    with pytest.raises(ValidationError, match="extra"):
        kind(number=1.0, nummer=2.0)


def test_only_a_finite_record_refuses_infinity():
    assert _Loose(number=math.inf).number == math.inf
    with pytest.raises(ValidationError, match="finite"):
        _Bounded(number=math.inf)


def test_a_definite_value_may_be_zero_but_not_missing():
    assert definite(0) == 0
    with pytest.raises(TypeError, match="None"):
        definite(None)
