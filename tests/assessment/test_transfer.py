"""`rksp score --tuned`: a rate carried to another size, with the errors of every rule."""

from __future__ import annotations

import json
import re

import pytest
from support.commands import left_with
from support.edge_cases import ladder, ladders

from lab.fit.edge_fit import fit_edge_model
from lab.fit.edge_transfer import transfer_errors, with_transfer_errors
from rksp.classifiers.edge_model import CONFIGURED, RULES, load_edge_model
from rksp.report.glossary import find_word


@pytest.fixture
def pair(tmp_path):
    """Two configurations of one family, the second eight times as wide."""
    shape = {"model_type": "llama", "num_hidden_layers": 2, "vocab_size": 512}
    for name, width in (("small", 32), ("large", 256)):
        sizes = {"hidden_size": width, "num_attention_heads": 2, "intermediate_size": 2 * width}
        (tmp_path / f"{name}.json").write_text(json.dumps(shape | sizes))
    return [str(tmp_path / f"{name}.json") for name in ("small", "large")]


def carried(pair: list[str]) -> list[str]:
    """Return the words that carry 2e-3 from the first model to the second."""
    return ["score", pair[1], "--tuned", f"{pair[0]}=2e-3"]


def test_the_errors_of_every_rule_stand_beside_its_rate(pair, capsys):
    assert left_with(carried(pair)) == 0
    page = capsys.readouterr().out
    known = dict(load_edge_model().card["transfer"])
    known["rksp"] = known.pop(CONFIGURED)
    for rule, errors in known.items():
        row = next(line for line in page.splitlines() if line.startswith(f"  {rule} "))
        assert row.split()[-2:] == [f"{errors['edge']:.2f}", f"{errors['best']:.2f}"]


def test_json_carries_the_same_rates(pair, capsys):
    assert left_with([*carried(pair), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rate"] == pytest.approx(2e-3 * 10 ** found["edge_shift"])
    assert found["rules"]["1/width"] == pytest.approx(2e-3 / 8)
    assert set(found["errors"]) == {"rksp", *RULES}
    assert found["reasons"] == []


def test_a_shape_beyond_the_data_is_not_reliable(pair, capsys):
    deep = ["--set", "num_hidden_layers=900"]
    assert left_with([*carried(pair), *deep]) == 0
    page = capsys.readouterr().out
    assert "not reliable here: the number of blocks lies" in page
    assert page.startswith("cannot tell the rate") and "the edge moves" not in page
    assert left_with([*carried(pair), *deep, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rate"] is found["edge_shift"] is None and found["rules"]["1/width"] is not None


def test_what_has_no_width_is_named(pair, capsys):
    assert left_with(carried([pair[0], "convnext"])) == 2
    assert "convnext: the configuration states no width" in capsys.readouterr().err


def test_the_columns_are_explained(pair, capsys):
    assert left_with(carried(pair)) == 0
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
