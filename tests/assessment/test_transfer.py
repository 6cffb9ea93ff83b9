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
    return ["score", pair[1], "--tuned", f"{pair[0]}=2e-3", "--evidence", "config"]


def report_of(arguments: list[str], capsys) -> dict:
    left_with([*arguments, "--format", "json"])
    return json.loads(capsys.readouterr().out)


def test_the_errors_of_every_rule_stand_beside_its_rate(pair, capsys):
    assert left_with([*carried(pair), "-v"]) == 0
    page = capsys.readouterr().out
    known = dict(load_edge_model().card["transfer"])
    known["rksp"] = known.pop(CONFIGURED)
    for rule, errors in known.items():
        row = next(line for line in page.splitlines() if line.startswith(f"{rule} "))
        assert row.split()[-2:] == [f"{errors['edge']:.2f}", f"{errors['best']:.2f}"]


def test_json_carries_the_same_rates(pair, capsys):
    found = report_of(carried(pair), capsys)["carried"]
    rates = found["rules"]
    assert found["rate"] == rates["rksp"] == pytest.approx(2e-3 * 10 ** found["edge_shift"], 0.005)
    assert rates["1/width"] == pytest.approx(2e-3 / 8)
    assert set(rates) == {"rksp", *RULES} == set(found["errors"]) and found["reasons"] == []


def test_the_carried_rate_is_judged_as_if_it_had_been_typed(pair, capsys):
    report = report_of(carried(pair), capsys)
    rate = report["carried"]["rate"]
    typed = report_of(["score", pair[1], "--lr", str(rate), "--evidence", "config"], capsys)
    for name in ("verdict", "seeds", "findings", "gate"):
        assert report[name] == typed[name], name
    hot = [*carried(pair), "--tuned", f"{pair[0]}=10"]
    assert left_with(hot) == 1 and capsys.readouterr().out.startswith("RISK")


def test_the_only_run_file_is_the_recipe_of_both(pair, tmp_path, capsys):
    file = tmp_path / "run.yaml"
    file.write_text("config_name: gpt2\nlearning_rate: 1e-3\nmax_steps: 7000\noutput_dir: x\n")
    alone = ["--devices", "1", "--evidence", "config"]
    small = report_of(["score", "gpt2", "--tuned", str(file), *alone], capsys)
    large = report_of(["score", str(file), "--tuned", "gpt2=1e-3", *alone], capsys)
    for report in (small, large):
        assert report["recipe"]["max_steps"] == 7000
        assert report["carried"]["edge_shift"] == 0 and report["recipe"]["learning_rate"] == 1e-3
    apart = report_of(["score", "gpt2", "--tuned", "gpt2=1e-3", "--evidence", "config"], capsys)
    assert apart["recipe"]["max_steps"] != 7000


def test_a_shape_beyond_the_data_is_not_reliable(pair, capsys):
    deep = [*carried(pair), "--set", "num_hidden_layers=900"]
    assert left_with(deep) == 0
    page = capsys.readouterr().out
    assert "is not carried here: the number of blocks lies" in page.replace("\n   ", "")
    assert page.startswith("CANNOT TELL") and "the edge moves" not in page
    found = report_of(deep, capsys)["carried"]
    rates = found["rules"]
    assert found["rate"] is found["edge_shift"] is None and set(rates) == set(RULES)


def test_what_has_no_width_is_named(pair, capsys):
    assert left_with(carried([pair[0], "convnext"])) == 2
    assert "convnext: the configuration states no width" in capsys.readouterr().err


def test_the_columns_are_explained(pair, capsys):
    assert left_with([*carried(pair), "-v"]) == 0
    head = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("Rule "))
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
