"""The registered experiment of the spectrum: its rows, its labels, and what is said of it."""

import json
import re

import pytest
from support.places import ROOT

from lab.experiments import spectrum
from rksp.cli.explain import shipped_file
from rksp.report.glossary import find_word


@pytest.mark.parametrize(
    ("edge", "failed", "known"),
    [((0.0316, 0.0562), 5, 9), ((0.1, 0.316), 4, 9), ((1.0, None), 0, 7), (None, 9, 9)],
)
def test_an_edge_labels_the_nine_rates(edge, failed, known):
    labels = list(spectrum._labels(edge))
    assert sum(bad for _, bad in labels) == failed and len(labels) == known


def test_the_first_divergence_is_an_edge():
    runs = [[0.01, 2.5, False], [0.1, None, True], [1.0, 3.0, False]]
    assert spectrum._divergence(runs) == (0.01, 0.1)
    assert spectrum._divergence(runs[:1]) == (0.01, None)


def test_every_row_has_what_it_needs():
    rows = spectrum.read(spectrum.STORED)
    assert len({(row["kind"], row["draw"]) for row in rows}) == len(rows) >= 64
    for row in rows:
        assert len(row["p"]) == 9 and set(spectrum.FEATURES) <= set(row)
        assert json.dumps(row["runs"])


def test_page_card_and_words_say_what_the_table_says():
    shipped = shipped_file("rksp").read_text(encoding="utf-8")
    cells = {
        row[1].strip(): [cell.strip() for cell in row[2].split("|")]
        for row in re.finditer(r"^\| ([^|]+)\|(.+)\|$", shipped, re.M)
    }
    card = (ROOT / "classifiers/README.md").read_text(encoding="utf-8")
    for name, said in (
        ("M≈1", "M≈1 alone"),
        ("no norm, one bit", '"has no norm", one bit'),
        ("the rate", "the learning rate alone"),
        ("P(failed), the module read", "P(failed)"),
    ):
        assert f"| {said} | {cells[name][1]} | {cells[name][2]} |" in card
    near, rate, p = (
        f"{float(cells[name][2]):.2f}" for name in ("M≈1", "the rate", "P(failed), the module read")
    )
    word, readme = find_word("near-unit mass"), (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"AUROC {near}; the rate alone {rate}, P(failed) {p}" in readme
    assert f"AUROC of {near}, the learning rate with {rate} and P(failed) with {p}" in word.meaning
