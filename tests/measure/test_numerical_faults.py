"""Models whose numbers break formulas: each gets a true status, and JSON stays strict."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest
import torch
from support.commands import left_with
from torch import nn

from rksp.models.resolve import resolve

SMALL = {"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 64, "n_positions": 64}
SMALL |= {"bos_token_id": 0, "eos_token_id": 0}
RUN = ("--lr", "1e-3", "--sequence-length", "32", "--batch-size", "8", "--snapshots", "128")
WEIGHT = "transformer.h.0.mlp.c_fc.weight"


@pytest.fixture
def score(tmp_path, monkeypatch, capsys) -> Callable[..., tuple[int, dict | None, str]]:
    """Score a target in this process: exit code, the report as strict JSON, stderr."""
    monkeypatch.chdir(tmp_path)

    def run(target: str, *more: str) -> tuple[int, dict | None, str]:
        code = left_with(["score", target, *RUN, *more, "--format", "json"])
        said = capsys.readouterr()
        return code, strict(said.out) if said.out else None, said.err

    return run


def strict(text: str) -> dict:
    """Read JSON that has neither NaN nor infinity."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def checkpoint(
    change: Callable[[nn.Parameter], object] | None = None, dtype: torch.dtype = torch.float32
) -> str:
    """Store a small GPT-2 whose weights are changed, and return its folder."""
    model = resolve("gpt2", overrides=SMALL).build(0)
    with torch.no_grad():
        for parameter in model.parameters() if change else ():
            change(parameter)
    model.to(dtype).save_pretrained("model")
    return "model"


def settings(**changed: object) -> list[str]:
    """Return the options that make a small GPT-2 with these settings."""
    pairs = (f"{name}={value}" for name, value in (SMALL | changed).items())
    return [word for pair in pairs for word in ("--set", pair)]


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_weights_that_are_not_finite_are_refused_by_name(score, number) -> None:
    def spoil(parameter: nn.Parameter) -> None:
        if parameter.shape == (16, 64):
            parameter.view(-1)[3] = number

    code, report, err = score(checkpoint(spoil))
    assert (code, report) == (2, None)
    assert f"NaN or infinity in {WEIGHT}" in err


def test_weights_beyond_half_precision_are_refused(score) -> None:
    code, _, err = score(checkpoint(lambda p: p.mul_(1e7), torch.float16))
    assert code == 2
    assert "NaN or infinity" in err


DEGENERATE = {
    "zero": lambda p: p.zero_(),
    "equal": lambda p: p.fill_(0.02),
    "tiny": lambda p: p.mul_(1e-20),
}


@pytest.mark.parametrize("case", DEGENERATE)
def test_states_that_do_not_differ_have_no_spectrum(score, case) -> None:
    code, report, _ = score(checkpoint(DEGENERATE[case]), "--evidence", "forward")
    assert code in (0, 1)
    assert report["verdict"] == "cannot tell"


@pytest.mark.parametrize("factor", [1e30, 1e38])
@pytest.mark.parametrize("evidence", ["forward", "gradient"])
def test_a_forward_pass_that_overflows_is_a_certain_risk(score, factor, evidence) -> None:
    code, report, _ = score(checkpoint(lambda p: p.mul_(factor)), "--evidence", evidence)
    assert (code, report["verdict"]) == (1, "risk")
    assert "RKSP301" in {finding["code"] for finding in report["findings"]}


def test_a_huge_initialization_is_accused(score) -> None:
    code, report, _ = score("gpt2", *settings(initializer_range=1e3))
    assert code == 1
    assert {"RKSP101", "RKSP201"} <= {finding["code"] for finding in report["findings"]}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_checkpoints_are_measured_like_the_whole_ones(score, dtype) -> None:
    rates = []
    for kind in (torch.float32, dtype):
        code, report, _ = score(checkpoint(dtype=kind), "--evidence", "gradient")
        assert (code, report["verdict"]) == (0, "cannot tell")  # stored weights may be trained ones
        rates.append(report["seeds"][0]["gradient"]["grad_norm"])
    assert rates[1] == pytest.approx(rates[0], rel=0.02)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"n_embd": 1, "n_head": 1}, "states have width 1"),
        ({"vocab_size": 1}, "A vocabulary of 1 cannot be probed"),
        ({"n_positions": 1}, "cannot run on the probe"),
        ({"n_layer": 0}, "must be from 1"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_the_reason(score, changed, sentence) -> None:
    code, report, err = score("gpt2", *settings(**changed))
    assert (code, report) == (2, None)
    assert sentence in err.splitlines()[-1]


@pytest.mark.parametrize(
    "changed",
    [
        {"n_layer": 1},
        {"n_embd": 2, "n_head": 1},
        {"vocab_size": 2},
        {"tie_word_embeddings": True},
        {"tie_word_embeddings": False},
        {"layer_norm_epsilon": 0.0},
        {"initializer_range": 0.0},
    ],
)
def test_the_smallest_models_have_an_answer(score, changed) -> None:
    code, report, _ = score("gpt2", *settings(**changed))
    assert code == 0
    assert report["verdict"] in ("ok", "caution", "cannot tell")
    risk = report["seeds"][0]["risk"]
    if report["verdict"] == "cannot tell":
        assert risk["reasons"] and risk["kind"] == "untold"
    else:
        assert 0 <= risk["probability_failed"] <= 1


def test_tied_weights_count_once(score) -> None:
    counts = [
        score("gpt2", *settings(tie_word_embeddings=tied))[1]["target"]["parameters"]
        for tied in (True, False)
    ]
    assert counts[1] - counts[0] == 64 * 16


def test_the_reader_of_strict_json_refuses_what_is_not() -> None:
    with pytest.raises(AssertionError, match="NaN"):
        strict('{"x": NaN}')
