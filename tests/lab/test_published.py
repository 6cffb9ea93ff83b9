"""The published recipes that bound the model of the edge."""

from __future__ import annotations

import json

import pytest
from support.places import ROOT

from lab.fit.edge_ladder import PUBLISHED
from lab.ladders.edge_ladders import edge_ladders

ROWS = ROOT / "datasets" / "real" / "published.jsonl"


def test_every_published_recipe_says_where_it_is_from_and_what_was_inferred():
    rows = [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]
    assert len({row["id"] for row in rows}) == len(rows) >= 60
    assert all(row["source"] and row["trained_well"] for row in rows)
    assert {row["checked"] for row in rows} == {"looked up", "memory"}
    assert all(isinstance(row["inferred"], list) for row in rows)


def test_encoders_and_muon_stand_among_them_in_the_models_scale():
    read = {x.name: x for x in edge_ladders() if x.source == PUBLISHED}
    assert not read["bert-base"].inputs.predicts_next
    assert read["gpt-3-125m"].inputs.predicts_next
    rate = 0.02 * read["nanochat-d20"].inputs.peak_share
    assert 10 ** read["nanochat-d20"].low == pytest.approx(rate)
    assert rate < 0.02 / 5
    assert 10 ** read["kimi-k2"].low == pytest.approx(2e-4)
