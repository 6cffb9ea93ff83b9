"""The HTML report: its numbers are the JSON's, it asks for nothing, and it fits a phone."""

from __future__ import annotations

import itertools
import json
import math
import re

import pytest
from support import browser
from support.pages import Page, check_self_contained, embedded, wrong_numbers
from support.reports import finding, scored, with_findings, with_risk

from rksp.documents.score import LayerReport, ScoreReport
from rksp.ground.text import percent, short
from rksp.report.blocks import likelihood
from rksp.report.formats import render
from rksp.report.score.figures import circle, frame
from rksp.report.svg import Scale, flags


@pytest.mark.parametrize("rate", [6e-4, 3.0, None])
def test_every_number_is_the_one_of_the_json(rate):
    report = scored(rate)
    text = render(report, "html")
    assert wrong_numbers(text, json.loads(report.to_json())) == []
    paths = {path for path, _, _ in Page(text).numbers}
    assert len(paths) > 40
    if rate is not None:
        assert {"seeds/0/risk/probability_failed", "seeds/0/risk/likely_edge"} <= paths


def test_that_check_can_fail():
    page = render(scored(), "html")
    document = json.loads(scored().to_json())
    element = re.search(
        r'<data value="([^"]+)" data-path="seeds/0/risk/likely_edge">([^<]+)</data>', page
    )
    exact, shown = element[0], element[0].replace(f">{element[2]}<", ">0.5<")
    for broken in (exact.replace(element[1], "0.5", 1), shown):
        assert wrong_numbers(page.replace(exact, broken), document) == ["seeds/0/risk/likely_edge"]


@pytest.mark.parametrize("rate", [6e-4, 3.0, None])
def test_the_page_holds_the_whole_report_and_refers_to_nothing(rate):
    report = scored(rate)
    text = render(report, "html")
    check_self_contained(text)
    assert ScoreReport.model_validate_json(embedded(text)).to_json() == report.to_json()


@pytest.mark.parametrize(
    "intruder",
    [
        '<img src="https://example.org/x.png">',
        "<style>@import 'x.css';</style>",
        '<p style="background: url(x.png)"></p>',
        "<script>alert(1)</script>",
    ],
)
def test_an_intruder_is_seen(intruder):
    text = render(scored(), "html").replace("<main>", f"<main>{intruder}")
    with pytest.raises(AssertionError):
        check_self_contained(text)


def test_the_verdict_comes_first_and_every_part_is_there():
    text = render(scored(3.0), "html")
    parts = ["Verdict", "Risk against the learning rate", "Findings", "Why"]
    parts += ["Eigenvalues of every block", "All numbers of all blocks", "Evidence", "Provenance"]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert text.count('class="unit"') == text.count('class="ring"') == 2  # one a block


def test_where_rksp_cannot_tell_no_number_is_its_answer():
    report = with_risk(scored(3.0), verdict="cannot tell", reasons=["too far outside"])
    sure, unsure = (render(r, "html").split("</section>")[0] for r in (scored(3.0), report))
    assert 'class="odds"' in sure
    assert 'class="gauge"' in sure
    assert "Too far outside." in unsure
    whole = render(report, "html")
    for part in (
        'class="odds"',
        'class="gauge"',
        "<dt>Start here",
        "Risk against",
        "<h2>Why",
    ):
        assert part not in whole
    numbers = [path for path, _, _ in Page(whole).numbers if "/risk/" in path]
    assert numbers == []


def test_a_rate_above_the_one_not_to_exceed_is_said_so():
    report = scored(6e-4)
    ceiling = report.seeds[0].risk.do_not_exceed

    def at(rate: float) -> ScoreReport:
        recipe = report.recipe.model_copy(update={"learning_rate": rate})
        return report.model_copy(update={"recipe": recipe, "risk_verdict": "caution"})

    for name in ("html", "markdown", "full"):
        assert "2.5 times the one not to exceed" in render(at(2.5 * ceiling), name), name
        assert "times the one not" not in render(at(ceiling), name), name


def test_a_model_of_many_blocks_stays_a_page():
    report = scored()
    seed = report.seeds[0]
    spectra = seed.spectra.model_copy(update={"layers": seed.spectra.layers * 40})
    deep = report.model_copy(update={"seeds": [seed.model_copy(update={"spectra": spectra})]})
    text = render(deep, "html")
    assert "All 80 blocks" in text
    assert len(text) < 2e6


def _layers(values: list[tuple[float, float]]) -> list[LayerReport]:
    layer = scored().seeds[0].spectra.layers[0]
    return [layer.model_copy(update={"eigenvalues": values})]


def test_values_near_one_are_drawn_large_and_others_in_the_whole_circle():
    near = [(1 + 0.1 * math.cos(a), 0.1 * math.sin(a)) for a in range(20)]
    part = frame(_layers(near))
    assert part.is_part
    assert part.reach < 0.2
    for real, imaginary in near:
        assert abs(real - part.middle) < part.reach
        assert abs(imaginary) < part.reach
    for values in ([*near, (-0.5, 0.0)], [*near, (1.0, 0.6)], []):
        whole = frame(_layers(values))
        assert not whole.is_part
        assert whole.middle - whole.reach < -1
        assert whole.middle + whole.reach > 1
    far = frame(_layers([(1e6, 0.0), (0.0, -1e6)]))
    assert far.reach < 4


@pytest.mark.parametrize("values", [[(1.1, 0.0), (0.9, 0.1)], [(1.0, 0.5), (-0.7, 0.1)]])
def test_dots_and_the_circle_are_on_one_scale(values):
    layers = _layers(values)
    drawn = circle(layers[0], frame(layers), (0.9, 1.05))
    unit_circle = re.search(r'<circle cx="([-\d.]+)" cy="70" r="([\d.]+)" class="unit"', drawn)
    middle, unit = map(float, unit_circle.groups())
    dots = [tuple(map(float, d)) for d in re.findall(r"M([\d.]+) ([\d.]+)h0", drawn)]
    measured = {(round((x - middle) / unit, 1), round((70 - y) / unit, 1)) for x, y in dots}
    assert measured == {(round(re_, 1), round(im, 1)) for re_, im in values}


def test_words_of_likelihood():
    assert likelihood(0.0) == "exceptionally unlikely"
    assert likelihood(0.5) == "about as likely as not"
    assert likelihood(1.0) == "virtually certain"


WRITTEN = {
    6e-4: "6e-4",
    1.995e-5: "2e-5",
    1e-3: "1e-3",
    0.00373: "3.73e-3",
    0.0100: "0.01",
    0.009996: "0.01",
    0.0325: "0.0325",
    3740.2: "3,740",
    999.9: "1,000",
    50.54: "50.5",
    2.5e9: "2.5e9",
    -0.5: "-0.5",
    0.0: "0",
}


@pytest.mark.parametrize(("value", "text"), WRITTEN.items())
def test_numbers_are_written_as_people_write_them(value, text):
    assert short(value) == text


def test_a_scale_is_linear_in_what_it_says():
    log = Scale(low=1e-6, high=1, start=0, end=60, log=True)
    assert [log(10.0**-k) for k in (6, 3, 0)] == pytest.approx([0, 30, 60])
    assert log(100.0) == 60  # held at the end
    assert log.ticks(7) == pytest.approx([10.0**-k for k in (6, 5, 4, 3, 2, 1, 0)])
    assert Scale(low=0, high=1, start=0, end=1).ticks(5) == pytest.approx(
        [0, 0.2, 0.4, 0.6, 0.8, 1]
    )
    assert Scale(low=2, high=2, start=0, end=10)(2) == 5  # no division by nothing


def test_labels_of_marks_are_not_crossed_and_stay_inside():
    """By brute force: no line passes a label, unless there is no room left of the label's line."""
    width, most = 7 * len("000 likely edge"), 8 * len("000 likely edge")
    free = 0
    for places in itertools.combinations((60, 75, 120, 150, 190, 200, 235, 310, 330), 3):
        drawn = flags([(f"{x} likely edge", "css", float(x)) for x in places], 340, 300)
        ends = [tuple(map(float, re.findall(r'[xy]\d="([\d.]+)"', d))) for d in drawn[:3]]
        tops = {x: y for x, y, _, _ in ends}
        assert tops.keys() == set(places)
        for label in drawn[3:]:
            x, y = (float(v) for v in re.search(r'x="([\d.]+)" y="([\d.]+)"', label).groups())
            left = x - width if 'anchor="end"' in label else x
            assert left >= 0
            assert left + width <= 340
            own = int(re.search(r">(\d+)", label)[1])
            crossing = [at for at, top in tops.items() if left < at < left + width and top < y - 12]
            assert crossing == [] or own <= most, (places, label)
            free += crossing == []
    assert free > 200


@pytest.fixture(scope="module")
def chromium():
    yield from browser.opened()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_opens_it_in_silence(chromium, width, dark, tmp_path):
    long = "decoder.layers.11.self_attention.rotary_embedding." * 4
    report = with_findings(finding("RKSP101", "error", long, message=long), rate=3.0)
    seed = report.seeds[0]
    forward = seed.forward.model_copy(update={"activation_name": long})
    report = report.model_copy(update={"seeds": [seed.model_copy(update={"forward": forward})]})
    file = tmp_path / "report.html"
    file.write_text(render(report, "html"), encoding="utf-8")
    chromium.open(file, width=width, dark=dark)
    chromium.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
    assert chromium.complaints() == []
    assert chromium.requests() == []
    assert chromium.evaluate("document.documentElement.scrollWidth") <= width
    shown = chromium.evaluate("document.body.innerText")
    risk = report.seeds[0].risk
    for number in (percent(risk.probability_failed), short(risk.likely_edge, 2), "RKSP101"):
        assert number in shown
    paper = chromium.evaluate("getComputedStyle(document.body).backgroundColor")
    bright = sum(map(int, re.findall(r"\d+", paper)[:3])) > 3 * 128
    assert bright != dark


def test_the_browser_sees_what_is_wrong(chromium, tmp_path):
    file = tmp_path / "bad.html"
    wide = '<div style="width:2000px">x</div><img src="absent.png">'
    file.write_text(f"<!doctype html>{wide}<script>console.error('no')</script>", encoding="utf-8")
    chromium.open(file, width=390)
    assert any("no" in line for line in chromium.complaints())
    assert any("absent.png" in address for address in chromium.requests())
    assert chromium.evaluate("document.documentElement.scrollWidth") > 390
