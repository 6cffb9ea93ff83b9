"""`python -m lab advisory` drafts an entry and its two recipes from facts given by hand."""

from __future__ import annotations

import json

import pytest

from lab.advisories import draft
from rksp.checks.advisories import Advisory, advisories
from rksp.ground.errors import InputError

FACTS = """\
summary = "A kernel drops the last row."
severity = "warning"
references = ["https://example.org/1"]
symptom = "wrong loss"
established = "single report"
fix = "Upgrade."
[[affected]]
package = "trl"
range = ">=1.0,<1.2"
[when]
packing = true
[match]
versions = { trl = "1.1" }
facts = { packing = true }
[near]
versions = { trl = "1.2" }
"""


@pytest.fixture
def drafted(tmp_path):
    def make(text):
        file = tmp_path / "facts.toml"
        file.write_text(text)
        return draft(file)

    return make


def test_a_draft_is_an_entry_and_its_recipes(drafted):
    entry, recipes = map(json.loads, drafted(FACTS))
    made = Advisory.model_validate(entry, strict=False)
    assert made.id == recipes["id"] and made.id not in {one.id for one in advisories()}
    assert made.database_specific.when == {"packing": True}
    assert recipes["near"] == {"versions": {"trl": "1.2"}}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('trl = "1.2"', 'trl = "1.1.5"', "near"),
        ("facts = { packing = true }", "", "match"),
        ('"warning"', '"grave"', "severity"),
        ('">=1.0,<1.2"', '"1.0 to 1.2"', "1.0 to 1.2"),
    ],
)
def test_a_draft_that_does_not_hold_is_refused(drafted, old, new, said):
    with pytest.raises(InputError, match=said):
        drafted(FACTS.replace(old, new))
