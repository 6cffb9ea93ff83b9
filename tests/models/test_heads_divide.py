"""Heads that do not divide the width are an error in every tier, before anything is built."""

from __future__ import annotations

import pytest

from rksp.ground.errors import InputError
from rksp.models.configuration import model_types
from rksp.models.resolve import resolve


@pytest.mark.parametrize("counts", [False, True])
def test_a_width_that_the_heads_do_not_divide_is_refused(counts):
    with pytest.raises(
        InputError, match="12 heads do not divide the width 128: try --set n_head=8"
    ):
        resolve("gpt2", overrides={"n_embd": "128"}, counts=counts)
    assert resolve("gpt2", overrides={"n_embd": "132"}, counts=False).config.n_embd == 132


def test_no_type_is_refused_at_its_defaults_for_its_heads():
    refused = []
    for name in model_types():
        try:
            resolve(name, counts=False)
        except InputError as error:
            refused += [name] * ("do not divide" in str(error))
    assert refused == []
