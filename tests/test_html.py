"""The HTML report: its numbers are the JSON's, it asks for nothing, and it fits a phone."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import browser
import pytest
from reports import HOSTILE, finding, scored, with_findings

from rksp.cli.rendering import emit, load_any
from rksp.confirm.schema import ArmReport, ConfirmReport, MonitorReport, PredictionReport
from rksp.confirm.trial import TrialReport
from rksp.errors import InputError
from rksp.recipe import Recipe
from rksp.report import confirmation
from rksp.report.formats import render
from rksp.report.html import likelihood
from rksp.report.schema import Report
from rksp.report.svg import Scale, short

VOID = {"meta", "link", "br", "hr", "img", "input"}


class _Page(HTMLParser):
    """Checks nesting, and collects `data` elements and every address."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.numbers: list[tuple[str, str, str]] = []
        self.addresses: list[str] = []
        self._number: list[str] | None = None
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.addresses += [found[a] for a in ("src", "href", "xlink:href", "action") if a in found]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "data":
            self._number = [found["data-path"], found["value"], ""]

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag == "data":
            self.numbers.append(tuple(self._number))
            self._number = None

    def handle_data(self, data):
        if self._number is not None:
            self._number[2] += data


def _look_up(document: object, path: str) -> float:
    for part in path.split("/"):
        document = document[int(part)] if isinstance(document, list) else document[part]
    return document


def _shown(text: str) -> float:
    scale = 0.01 if text.endswith("%") else 1.0
    return scale * float(text.rstrip("%").replace(",", ""))


@pytest.mark.parametrize("rate", [6e-4, 3.0, None])
def test_every_number_is_the_one_of_the_json(rate):
    report = scored(rate)
    document = json.loads(report.to_json())
    numbers = _Page(render(report, "html")).numbers
    assert len(numbers) > 40
    for path, value, text in numbers:
        exact = _look_up(document, path)
        assert float(value) == exact, path
        digits = 1 if "%" in text or abs(exact) < 10 else 2
        rounding = 6e-3 if digits == 2 else max(6e-3, 6e-3 * abs(exact))
        assert _shown(text) == pytest.approx(exact, rel=6e-3, abs=rounding), path
    paths = {path for path, _, _ in numbers}
    if rate is not None:
        assert {"seeds/0/risk/probability_failed", "seeds/0/risk/likely_edge"} <= paths


def test_that_check_can_fail():
    page = render(scored(), "html")
    first = re.search(r'<data value="([^"]+)" data-path="seeds/0/risk/probability_failed"', page)
    broken = page.replace(f'value="{first[1]}"', 'value="0.5"')
    document = json.loads(scored().to_json())
    wrong = [p for p, v, _ in _Page(broken).numbers if float(v) != _look_up(document, p)]
    assert wrong == ["seeds/0/risk/probability_failed"]


def test_the_page_holds_the_whole_report_and_refers_to_nothing():
    report = scored(3.0)
    text = render(report, "html")
    inside = re.search(r'<script type="application/json" id="report">(.*?)</script>', text)[1]
    assert Report.model_validate_json(inside).to_json() == report.to_json()
    assert _Page(text).addresses == ["data:,"]
    assert "http://" not in text.replace(inside, "")
    assert "default-src 'none'" in text


def test_a_model_of_many_blocks_stays_a_page():
    report = scored()
    seed = report.seeds[0]
    spectra = seed.spectra.model_copy(update={"layers": seed.spectra.layers * 40})
    deep = report.model_copy(update={"seeds": [seed.model_copy(update={"spectra": spectra})]})
    text = render(deep, "html")
    assert "All 80 blocks" in text
    assert len(text) < 2e6


def test_words_of_likelihood():
    assert likelihood(0.0) == "exceptionally unlikely"
    assert likelihood(0.5) == "about as likely as not"
    assert likelihood(1.0) == "virtually certain"


WRITTEN = {
    6e-4: "6e-4",
    1.995e-5: "2e-5",
    1e-3: "0.001",
    0.00373: "0.00373",
    3740.2: "3,740",
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


@pytest.fixture(scope="module")
def chromium():
    command = browser.find()
    if command is None:
        pytest.skip("no Chromium on this machine: apt install chromium to open the page")
    page = browser.Browser(command)
    yield page
    page.close()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_opens_it_in_silence(chromium, width, dark, tmp_path):
    long = "decoder.layers.11.self_attention.rotary_embedding." * 4
    report = with_findings(finding("RKSP101", "error", long, message=long), rate=3.0)
    file = tmp_path / "report.html"
    file.write_text(render(report, "html"), encoding="utf-8")
    chromium.open(file, width=width, dark=dark)
    chromium.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
    assert chromium.complaints() == []
    assert chromium.requests() == []
    assert chromium.evaluate("document.documentElement.scrollWidth") <= width
    shown = chromium.evaluate("document.body.innerText")
    risk = report.seeds[0].risk
    for number in (f"{risk.probability_failed:.1%}", short(risk.likely_edge), "RKSP101"):
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


def _confirmation() -> ConfirmReport:
    """Two arms of two runs; one diverges, with an alarm before."""

    def trial(arm: str, seed: int, loss: list[float | None], **more: object) -> TrialReport:
        nothing = {"alarms": {}, "silent": {}, "actions": {}, "undone": 0, "seconds": 1.0}
        nothing |= {"action_seconds": 0.0, "monitor_seconds": 0.1, "grad_norm": []}
        nothing |= {"onset": None, "first_alarms": {}, "leads": {}, "outcome": "converged"}
        named = {"arm": arm, "seed": seed, "steps": len(loss), "final_loss": loss[-1]}
        return TrialReport(**(nothing | named | {"loss": list(enumerate(loss))} | more))

    calm, wild = [4.0, 3.0, 2.5, 2.25], [4.0, 3.5, 9.0, None]
    saw = {"outcome": "diverged", "onset": 2, "first_alarms": {"loss": 1}, "leads": {"loss": 1}}
    monitor = MonitorReport(monitor="loss", runs=2, first_alarm=1.0, lead=1.0, silent=None)
    common = {"runs": 2, "diverged": 0, "lost": 0}
    arms = [
        {"arm": "baseline", "failed": 2, "p_value": None, "final_loss": None, "saved": 0}
        | {"overhead": None, "monitors": [monitor]},
        {"arm": f"rate=0.3{HOSTILE}", "failed": 0, "p_value": 0.33, "final_loss": 2.25, "saved": 2}
        | {"overhead": 0.015, "monitors": []},
    ]
    return ConfirmReport(
        target={"name": HOSTILE},
        asked=Recipe(learning_rate=3.0),
        trained=Recipe(learning_rate=3.0, max_steps=4),
        faults=[],
        prediction=PredictionReport(
            probability_failed=0.97,
            low=0.9,
            high=0.99,
            verdict="risk",
            reasons=[],
            safe_learning_rate=1e-3,
            threshold=0.5,
        ),
        prediction_held=True,
        verdict="failed",
        conclusions=["The prediction held."],
        arms=[ArmReport(**(common | arm)) for arm in arms],
        trials=[
            *(trial("baseline", seed, wild, **saw) for seed in (0, 1)),
            *(trial(arms[1]["arm"], seed, calm) for seed in (0, 1)),
        ],
        provenance={"rksp": "0", "command": "rksp confirm"},
        timings={"trials": 4.0},
    )


def test_the_page_of_a_confirmation_shows_the_same_numbers():
    report = _confirmation()
    text = confirmation.render(report)
    document = json.loads(report.to_json())
    page = _Page(text)
    assert page.addresses == ["data:,"]
    for path, value, _ in page.numbers:
        assert float(value) == _look_up(document, path), path
    assert {"arms/1/p_value", "arms/0/monitors/0/lead"} <= {path for path, _, _ in page.numbers}
    assert text.count('class="run arm0"') == text.count('class="run arm1"') == 4  # wide and narrow
    assert "<b x" not in text
    assert text.count("</script>") == 1


def test_a_stored_confirmation_renders_again(tmp_path, capsys):
    report = _confirmation()
    (tmp_path / "confirm.json").write_text(report.to_json())
    stored = load_any(tmp_path / "confirm.json")
    assert stored == report
    emit(stored, "html", [])
    assert capsys.readouterr().out == confirmation.render(report)
    with pytest.raises(InputError, match="json and html"):
        emit(stored, "sarif", [])
    (tmp_path / "score.json").write_text(scored().to_json())
    assert load_any(tmp_path / "score.json") == scored()


def test_a_curve_has_gaps_where_the_loss_was_not_finite():
    report = _confirmation()
    broken = [(0, 4.0), (1, None), (2, 3.0), (3, 2.0)]
    trials = [report.trials[0].model_copy(update={"loss": broken})]
    drawn = confirmation.loss_curves(trials, {"baseline": 0}, width=350, height=300)
    assert drawn.count('class="run arm0"') == 2
    empty = [report.trials[0].model_copy(update={"loss": [(0, None)]})]
    lost = confirmation.loss_curves(empty, {"baseline": 0}, width=350, height=300)
    assert "No run has a finite loss" in lost


def test_a_browser_opens_a_confirmation_in_silence(chromium, tmp_path):
    file = tmp_path / "confirm.html"
    file.write_text(confirmation.render(_confirmation()), encoding="utf-8")
    chromium.open(file, width=390)
    assert chromium.complaints() == []
    assert chromium.requests() == []
    assert chromium.evaluate("document.documentElement.scrollWidth") <= 390
