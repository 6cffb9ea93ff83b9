"""`rksp transfer`: a rate carried to another size, with the errors of every rule."""

from __future__ import annotations

import json
import re

import pytest
from commands import left_with
from edge_cases import ladder, ladders

from rksp.classifiers.edge_fit import fit_edge_model
from rksp.classifiers.edge_model import load_edge_model
from rksp.classifiers.edge_transfer import RULES, transfer_errors, with_transfer_errors
from rksp.report.glossary.find import find_word


@pytest.fixture
def pair(tmp_path):
    """Two configurations of one family, the second eight times as wide."""
    shape = {"model_type": "llama", "num_hidden_layers": 4, "vocab_size": 512}
    for name, width in (("small", 128), ("large", 1024)):
        sizes = {"hidden_size": width, "num_attention_heads": width // 32}
        (tmp_path / f"{name}.json").write_text(json.dumps(shape | sizes))
    return [str(tmp_path / f"{name}.json") for name in ("small", "large")]


def test_the_errors_of_every_rule_stand_beside_its_rate(pair, capsys):
    assert left_with(["transfer", *pair, "--lr", "2e-3"]) == 0
    page = capsys.readouterr().out
    for rule, errors in load_edge_model().card["transfer"].items():
        row = next(line for line in page.splitlines() if line.startswith(f"  {rule} "))
        assert row.split()[-2:] == [f"{errors['edge']:.2f}", f"{errors['best']:.2f}"]


def test_json_carries_the_same_rates(pair, capsys):
    assert left_with(["transfer", *pair, "--lr", "2e-3", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rate"] == pytest.approx(2e-3 * 10 ** found["edge_shift"])
    assert found["rules"]["1/width"] == pytest.approx(2e-3 / 8)
    assert set(found["errors"]) == {"rksp", *RULES}
    assert found["reasons"] == []


def test_a_shape_beyond_the_data_is_not_reliable(pair, capsys):
    assert left_with(["transfer", *pair, "--lr", "2e-3", "--set", "num_hidden_layers=900"]) == 0
    assert "not reliable here: the number of blocks lies" in capsys.readouterr().out


def test_what_has_no_width_is_named(pair, capsys):
    assert left_with(["transfer", pair[0], "convnext", "--lr", "2e-3"]) == 2
    assert "convnext: the configuration states no width" in capsys.readouterr().err


def test_the_columns_are_explained(pair, capsys):
    assert left_with(["transfer", *pair, "--lr", "2e-3"]) == 0
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
