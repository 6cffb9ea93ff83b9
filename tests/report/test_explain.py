"""`rksp explain` knows every word that a page prints."""

from __future__ import annotations

import re

import pytest
from support.commands import left_with
from support.places import ROOT

from rksp.cli.explain import explained
from rksp.documents.spectrum import Status
from rksp.ground.errors import InputError
from rksp.report.glossary import find_word, words

KNOWN = {
    "RKSP101": "initial-loss",
    "attention-entropy": "RKSP",
    "M≈1": "0.90 and 1.05",
    "eta": "no linear map",
    "RKSP001": "at least the bar",
    "start_here": "expected excess loss",
    "rank deficient": "--directions",
    "attention-logits": "qk_clip",
    "qk-clip": "arm of rksp confirm",
    "bitflip": "a fault",
    "LoRA": "low rank",
    "fine-tuning": "trained weights",
    "pretrained": "trained before",
    "the vocabulary": "tokens",
    "ranges outside": "widths of the range",
    "decades": "factor of 10",
    "kss": "an arm of rksp confirm",
    "muon": "max(rows, columns)",
    "X": "P(failed) reaches 20%",
    "risk_verdict": "P(failed) says alone",
}


@pytest.mark.parametrize("word", KNOWN)
def test_a_word_is_explained(word, capsys):
    assert left_with(["explain", word]) == 0
    assert KNOWN[word] in " ".join(capsys.readouterr().out.split())


def test_every_concept_is_explained():
    page = (ROOT / "CONCEPTS.md").read_text(encoding="utf-8")
    terms = ", ".join(re.findall(r"^\*\*([^*]+)\.\*\*", page, re.M)).split(", ")
    assert len(terms) > 30
    unknown = []
    for term in terms:
        try:
            explained(re.sub(r" \(.\)$", "", term))
        except InputError:
            unknown.append(term)
    assert not unknown


def test_an_unknown_word_names_the_nearest(capsys):
    assert left_with(["explain", "spektral radius"]) == 2
    assert "did you mean spectral radius" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "option"),
    [("bitflip", "where=weights"), ("zclip", "Does"), ("backoff", "factor")],
)
def test_a_fault_or_an_arm_is_explained_with_its_options(word, option, capsys):
    assert left_with(["explain", word]) == 0
    assert option in capsys.readouterr().out


def test_every_spelling_leads_to_its_own_word():
    names = [name for word in words() for name in (word.name, *word.spellings)]
    assert len({name.lower() for name in names}) == len(names)
    for word in words():
        assert all(find_word(name) is word for name in (word.name, *word.spellings))
    assert find_word("zork") is None


@pytest.mark.parametrize("status", [s for s in Status if s is not Status.OK])
def test_every_status_is_explained(status, capsys):
    assert left_with(["explain", status.value.replace("_", " ")]) == 0
    assert status.remedy.split()[0] in capsys.readouterr().out
