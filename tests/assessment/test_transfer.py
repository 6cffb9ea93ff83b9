"""`rksp transfer`: a rate carried to another size, with the errors of every rule."""

from __future__ import annotations

import dataclasses
import json
import math
import re

import pytest
from support.commands import left_with
from support.edge_cases import inputs, ladder, ladders

import rksp.assessment.transfer as assessed
from lab.fit.edge_fit import fit_edge_model
from lab.fit.edge_transfer import transfer_errors, with_transfer_errors
from rksp.classifiers.edge_model import load_edge_model
from rksp.classifiers.transfer import CONFIGURED, RULES, transfer
from rksp.report.glossary import find_word


@pytest.fixture
def pair(tmp_path):
    """Two configurations of one family, the second eight times as wide."""
    shape = {"model_type": "llama", "num_hidden_layers": 2, "vocab_size": 512}
    for name, width in (("small", 32), ("large", 256)):
        sizes = {"hidden_size": width, "num_attention_heads": 2, "intermediate_size": 2 * width}
        (tmp_path / f"{name}.json").write_text(json.dumps(shape | sizes))
    return [str(tmp_path / f"{name}.json") for name in ("small", "large")]


@pytest.mark.parametrize("evidence", ["config", "gradient"])
def test_the_errors_of_every_rule_stand_beside_its_rate(pair, capsys, evidence):
    assert left_with(["transfer", *pair, "--lr", "2e-3", "--evidence", evidence]) == 0
    page = capsys.readouterr().out
    known = dict(load_edge_model().card["transfer"])
    configured = known.pop(CONFIGURED)
    if evidence == "config":
        known["rksp"] = configured
    assert ("from the first gradient of each" in page) is (evidence == "gradient")
    for rule, errors in known.items():
        row = next(line for line in page.splitlines() if line.startswith(f"  {rule} "))
        assert row.split()[-2:] == [f"{errors['edge']:.2f}", f"{errors['best']:.2f}"]


def test_json_carries_the_same_rates(pair, capsys):
    for evidence in ("gradient", "config"):
        call = ["transfer", *pair, "--lr", "2e-3", "--format", "json", "--evidence", evidence]
        assert left_with(call) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["measured"] == (["grad_norm"] if evidence == "gradient" else [])
    assert found["rate"] == pytest.approx(2e-3 * 10 ** found["edge_shift"])
    assert found["rules"]["1/width"] == pytest.approx(2e-3 / 8)
    assert set(found["errors"]) == {"rksp", *RULES}
    assert found["reasons"] == []


def test_a_shape_beyond_the_data_is_not_reliable(pair, capsys):
    deep = ["--evidence", "config", "--set", "num_hidden_layers=900"]
    assert left_with(["transfer", *pair, "--lr", "2e-3", *deep]) == 0
    page = capsys.readouterr().out
    assert "not reliable here: the number of blocks lies" in page
    assert page.startswith("cannot tell the rate") and "the edge moves" not in page
    assert left_with(["transfer", *pair, "--lr", "2e-3", *deep, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rate"] is found["edge_shift"] is None and found["rules"]["1/width"] is not None


def test_one_model_is_measured_once(pair, capsys, monkeypatch):
    gathered = []
    real = assessed.gather

    def counted(source, *more, **named):
        gathered.append(source.target)
        return real(source, *more, **named)

    monkeypatch.setattr(assessed, "gather", counted)
    for small, large in ((pair[0], pair[0]), pair):
        asked = ["--lr", "2e-3", "--format", "json", "--evidence", "gradient"]
        assert left_with(["transfer", small, large, *asked]) == 0
    assert gathered == [pair[0], *pair]
    assert json.loads(capsys.readouterr().out.split("\n}\n")[0] + "}")["rate"] == 2e-3


def test_what_has_no_width_is_named(pair, capsys):
    assert left_with(["transfer", pair[0], "convnext", "--lr", "2e-3"]) == 2
    assert "convnext: the configuration states no width" in capsys.readouterr().err


def test_the_columns_are_explained(pair, capsys):
    assert left_with(["transfer", *pair, "--lr", "2e-3", "--evidence", "config"]) == 0
    head = next(line for line in capsys.readouterr().out.splitlines() if "missed by" in line)
    for word in [*re.split(r"  +", head.strip()), *RULES]:
        assert find_word(word) is not None, word


def test_a_rule_that_fits_the_source_has_no_error_and_the_others_have():
    edges = {width: -1.2 - 0.5 * i for i, width in enumerate((64, 640))}  # 1/√width
    public = [
        ladder(n, edge, source="elsewhere", width=width)
        for n, (width, edge) in enumerate(edges.items())
    ]
    everything = [*ladders(20), *public]
    errors = {name: edge for name, edge, _ in transfer_errors(everything)}
    assert errors["1/√width"] < 0.02 < 0.4 < errors["1/width"]
    model = with_transfer_errors(fit_edge_model(everything, spreads=False), everything)
    assert model.card["transfer"]["1/√width"]["edge"] == round(errors["1/√width"], 2)


def test_what_one_model_alone_shows_is_no_difference():
    shown = [
        dataclasses.replace(x, measured={"grad_norm": 0.1 * (n % 5)})
        for n, x in enumerate(ladders(40))
    ]
    model = fit_edge_model(shown, spreads=False)
    small, large = inputs(width=64), inputs(width=256)
    shifts = [
        transfer(model, small, large, 1e-3, measured).edge_shift
        for measured in (
            ({}, {}),
            ({"grad_norm": 0.9}, {"grad_norm": math.nan}),
            ({"grad_norm": 0.9}, {"grad_norm": 0.1}),
        )
    ]
    assert shifts[0] == shifts[1] != shifts[2]


def test_what_cannot_be_measured_is_said_with_the_way_out(pair, capsys):
    # The probe holds no sound.
    assert (
        left_with(["transfer", pair[0], "wav2vec2", "--lr", "2e-3", "--evidence", "gradient"]) == 2
    )
    assert capsys.readouterr().err.rstrip().endswith("--evidence config.")
    assert left_with(["transfer", pair[0], "wav2vec2", "--lr", "2e-3", "--evidence", "config"]) == 0


def test_a_rate_is_carried_from_the_configurations_unless_more_is_asked(pair, capsys):
    assert left_with(["transfer", *pair, "--lr", "2e-3", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["measured"] == []
