"""`rksp explain` knows every word that any rendering prints."""

from __future__ import annotations

import functools
import lzma
import math
import re
from typing import get_args

import numpy as np
import pytest
from support.places import ROOT
from support.printed_words import cleaned, of_html, of_markdown, of_rich
from support.reports import scored, with_risk
from support.run_pages import confirmation_report, grid_report

from rksp.checks.registry import CHECKS
from rksp.cli.explain import explained
from rksp.documents.finding import Level
from rksp.documents.score import DiffReport, ScoreReport, Verdict
from rksp.documents.spectrum import VARIANTS, Status
from rksp.documents.verdict import WORST_FIRST
from rksp.ground.errors import InputError
from rksp.question.run import Run, origins_of_flags
from rksp.recipe import Recipe
from rksp.recipe_files.said.origin import OriginKind, assumed_line
from rksp.report import words
from rksp.report.diff import compare
from rksp.report.formats import formats_of, render, rendering
from rksp.report.glossary import words as all_words
from rksp.report.score.measured import COLUMNS, measured
from rksp.watch.registry import FAULTS, INTERVENTIONS, MONITORS


@functools.cache
def _scored() -> ScoreReport:
    """Return a risky report with origins, a baseline and two seeds."""
    report = scored(3.0)
    origins = origins_of_flags(report.recipe, {"learning_rate": "--lr"})
    report = Run(target="gpt2", recipe=report.recipe, origins=origins).written_in(report)
    return report.model_copy(update={"baseline": compare(scored(), report)})


REPORTS = {
    "score": _scored,
    "cannot tell": lambda: with_risk(_scored(), verdict="cannot tell", reasons=["too far"]),
    "confirm": lambda: confirmation_report().model_copy(update={"provenance": {"device": "cpu"}}),
    "grid": grid_report,
    "diff": lambda: DiffReport.of(compare(scored(), _scored())),
}
READERS = {"text": of_rich, "full": of_rich, "markdown": of_markdown, "html": of_html}
PRINTED = [
    (case, name)
    for case in REPORTS
    for name in READERS
    if name in formats_of({"cannot tell": "score"}.get(case, case))
]
PAGE = ("P(failed)", "start here", "likely edge", "do not exceed", "nats", "fail", "yours", "steps")
PAGE += ("next", "assumed", "since the baseline", "error", "new", "unchanged")
LISTED = {
    "verdicts": [*Verdict, *WORST_FIRST, "failed", "trained", "undecided", "incomplete"],
    "statuses": [status.value for status in Status],
    "levels": list(Level),
    "changes": list(words.STATES),
    "checks": [text for check in CHECKS for text in (check.code, check.name)],
    "codes of the verdict": ["RKSP001", "RKSP002", "RKSP004", "high-risk"],
    "fields of the recipe": list(Recipe.model_fields),
    "origins": list(OriginKind),
    "variants": list(VARIANTS),
    "monitors": list(MONITORS),
    "quantities": [name for monitor in MONITORS.values() for name in monitor.quantities],
    "arms": ["baseline", "rate", *INTERVENTIONS],
    "faults": list(FAULTS),
    "columns": [column.title for column in COLUMNS],
    "marks": ["S", "E", "X", "●", "nats", "steps", "tokens", "parameters", "B", "M", "k", "–"],
}


def unknown(wanted: set[str] | list[str]) -> list[str]:
    """Return the words that nobody explains."""
    missing = []
    for word in sorted(map(str, wanted)):
        try:
            explained(word)
        except InputError:
            missing.append(word)
    return missing


@pytest.mark.parametrize(("case", "name"), PRINTED)
def test_every_head_and_label_is_explained(case, name):
    made = rendering(REPORTS[case](), name)
    found = cleaned(READERS[name](made))
    assert found or name == "text"
    own = set(getattr(REPORTS[case](), "axes", []))
    assert unknown(found - own) == []


@pytest.mark.parametrize("listed", LISTED)
def test_every_listed_word_is_explained(listed):
    assert unknown(LISTED[listed]) == []


def test_the_words_of_the_page_are_explained():
    shown = _scored().model_copy(update={"baseline": None})
    pages = render(_scored(), "text") + render(shown, "text")
    assert [word for word in PAGE if word not in pages] == []
    assert unknown(PAGE) == []


def test_every_head_of_the_lists_of_checks_and_of_the_labs_card_is_explained():
    assert unknown(["code", "name", "hits", "misses", "false alarms"]) == []
    card = (ROOT / "datasets" / "README.md").read_text()
    assert unknown(cleaned(of_markdown(card))) == []


def test_an_unknown_word_is_seen():
    page = rendering(_scored(), "html").replace("<dt>Logit std</dt>", "<dt>Zork factor</dt>")
    assert unknown(cleaned(of_html(page))) == ["Zork factor"]
    markdown = rendering(_scored(), "markdown").replace("| Measured |", "| Zorked |")
    assert "Zorked" in unknown(cleaned(of_markdown(markdown)))


def test_the_assumptions_name_fields_that_are_explained():
    line = assumed_line(Recipe(), origins_of_flags(Recipe(), {}))
    assert unknown(re.findall(r"--([\w-]+)", line)) == []


@pytest.mark.parametrize("name", ["full", "markdown", "html"])
def test_a_range_stands_beside_every_number(name):
    report, seed = _scored(), _scored().seeds[0]
    text = render(report, name)
    rows = measured(seed)
    assert len(rows) >= 7
    assert all(row.healthy for row in rows)
    for row in rows:
        assert row.healthy.replace("'", "&#39;" if name == "html" else "'") in text, row.word
    low, high = next(word.usual for word in all_words() if word.name == "M≈1")
    assert f"{low:g}–{high:g}" in text


LOGARITHMS = ("spectral_radius", "eigenvector_condition", "energy_gain", "update_ratio")
USUAL = [word for word in all_words() if word.usual is not None]


@pytest.mark.parametrize("word", USUAL, ids=lambda word: word.name)
def test_a_usual_range_is_the_middle_of_the_labelled_models(word):
    values = np.array([row.get(word.feature) for row in _models()], dtype=float)
    values = values[np.isfinite(values)]
    assert len(values) > 600
    low, high = np.quantile(values, [0.05, 0.95])
    if word.feature in LOGARITHMS:
        low, high = 10**low, 10**high
    assert tuple(float(f"{end:.2g}") for end in (low, high)) == pytest.approx(word.usual)


@functools.cache
def _models() -> list[dict[str, float]]:
    import json

    with lzma.open(ROOT / "datasets" / "runs" / "measurements.jsonl.xz") as file:
        return [json.loads(line)["features"] for line in file]


def test_a_range_of_a_check_is_the_checks_own():
    ranges = {word.name: word.range for word in all_words() if word.check}
    by_code = {check.code: check.texts.healthy for check in CHECKS}
    assert ranges["logit std"] == by_code["RKSP102"]
    assert all(not word.healthy for word in all_words() if word.check or word.usual)
    assert not math.isnan(len(ranges))


def test_every_choice_of_the_recipe_is_listed():
    _, rows = explained("schedule")
    assert dict(rows)["Choices"] == ", ".join(get_args(Recipe.model_fields["schedule"].annotation))
