"""Python: whatever a caller gives, the error is rksp's own, and fits a line."""

from __future__ import annotations

from decimal import Decimal

import pytest

import rksp
from rksp.ground.errors import InputError
from rksp.ground.text import has_control

BAD = {
    "cache []": {"cache": []},
    "cache Decimal": {"cache": Decimal(1)},
    "runs 1": {"runs": 1},
    "runs of numbers": {"runs": [1]},
    "apply Decimal": {"apply": Decimal(1)},
    "apply None in it": {"apply": [None]},
    "apply text": {"apply": "qk_norm"},
    "recipe text": {"recipe": "bf16"},
    "recipe number": {"recipe": 5.0},
    "lr True": {"lr": True},
    "a field True": {"recipe": {"warmup_steps": True}},
    "seed True": {"seed": True},
    "options": {"options": {"seed": 1}},
    "a list for a rate": {"lr": ["\x1b[31m\n" * 50_000]},
    "a field's name": {"recipe": {"\x1b[31m\n" * 50_000: 1}},
    "an option's name": {"\u202e" * 5000: 1},
    "a lever's name": {"apply": ["\x1b]0;x\x07" * 50_000]},
    "a path": {"runs": "\x1b[2J" * 50},
}


@pytest.mark.parametrize("case", BAD)
def test_it_is_an_input_error_on_one_short_line(case):
    with pytest.raises(InputError) as raised:
        rksp.score("gpt2", **{"evidence": "config", "lr": 1e-3} | BAD[case])
    said = str(raised.value)
    assert 0 < len(said) <= 1100 and not has_control(said)


@pytest.mark.parametrize("target", [None, 5, b"gpt2", "", "\0", "a" * 10_000, "\x1b[31m", object()])
def test_a_target_of_any_kind_is_an_input_error(target):
    for call in (rksp.score, rksp.resolve):
        with pytest.raises(InputError) as raised:
            call(target)
        assert len(str(raised.value)) <= 1100 and not has_control(str(raised.value))


@pytest.mark.parametrize(
    "given",
    [{"overrides": 5}, {"overrides": "n_layer=2"}, {"max_params": "x"}, {"seed": "a"}],
)
def test_resolve_says_what_was_wrong(given):
    with pytest.raises(InputError, match=next(iter(given))):
        rksp.resolve("gpt2", **given)


def test_evaluate_says_what_was_wrong():
    source = rksp.resolve("gpt2", counts=False)
    for given in ((source, {"learning_rate": 1e-3}), (source, rksp.Recipe(), {"seed": 1})):
        with pytest.raises(InputError, match="it should be"):
            rksp.evaluate(*given)


def test_what_is_right_is_taken():
    answer = rksp.score("gpt2", lr=1e-3, evidence="config", cache=False, runs=[])
    assert answer.verdict in ("ok", "caution", "risk")
