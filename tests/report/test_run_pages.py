"""Pages of a confirmation and of a grid: the same numbers, no requests, and a phone's width."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import jsonschema
import pytest
import xmlschema
from support import browser
from support.commands import left_with
from support.pages import Page, check_self_contained, embedded, wrong_numbers
from support.places import SCHEMAS
from support.reports import scored
from support.run_pages import confirmation_report, grid_report

from rksp.cli.rendering import emit, load, outputs
from rksp.ground.errors import InputError
from rksp.ground.text import safe_strings
from rksp.report.confirm import loss_curves
from rksp.report.formats import formats_of, render
from rksp.report.grid import Settings

JUNIT = xmlschema.XMLSchema(SCHEMAS / "junit-10.xsd")


@pytest.fixture(scope="module")
def chromium():
    yield from browser.opened()


def test_the_page_of_a_confirmation_shows_the_same_numbers():
    report = confirmation_report()
    text = render(report, "html")
    check_self_contained(text)
    assert wrong_numbers(text, json.loads(report.to_json())) == []
    paths = {path for path, _, _ in Page(text).numbers}
    assert {"arms/1/p_value", "arms/0/monitors/0/lead", "prediction/probability_failed"} <= paths
    assert text.count('class="run arm0"') == text.count('class="run arm1"') == 4  # wide and narrow
    assert "prediction held" in text
    assert "mimo is read as qwen2" in text
    assert "<b x" not in text


def test_the_page_draws_profiles_that_have_two_points():
    report = confirmation_report()
    assert "Profiles" not in render(report, "html")
    curves = {"stable_rank": [(0, 3.0), (2, 2.0)], "near_unit_mass": [(0, 0.5)]}
    trials = [report.trials[0].model_copy(update={"profiles": curves}), *report.trials[1:]]
    page = render(report.model_copy(update={"trials": trials}), "html")
    assert "Stable rank of every run by step" in page and "Near-unit mass M≈1 of" not in page
    check_self_contained(page)


def test_a_stored_confirmation_renders_again(tmp_path, capsys):
    report = confirmation_report()
    spaced = json.dumps(json.loads(report.to_json()), indent=4)  # as another tool rewrites it
    (tmp_path / "confirm.json").write_text(spaced)
    stored = load(tmp_path / "confirm.json", "")
    escaped = safe_strings(json.loads(report.to_json()))  # its names hold control characters
    assert json.loads(stored.to_json()) == escaped != json.loads(report.to_json())
    emit(stored, "html", outputs("html", [str(tmp_path / "page.txt")], "confirm"))
    assert capsys.readouterr().out == render(stored, "html")
    assert "FAILED" in (tmp_path / "page.txt").read_text()
    assert "mimo is read as qwen2" in (tmp_path / "page.txt").read_text()
    with pytest.raises(InputError, match="rksp confirm, --format 'csv'"):
        emit(stored, "csv", [])
    (tmp_path / "score.json").write_text(scored().to_json())
    assert load(tmp_path / "score.json", "") == scored()


def test_a_format_that_a_confirmation_lacks_is_refused_before_the_work(tmp_path):
    with pytest.raises(InputError, match="use text, json, markdown"):
        outputs("csv", [], "confirm")
    with pytest.raises(InputError, match=r"x\.csv"):
        outputs("text", [str(tmp_path / "x.csv")], "confirm")


def test_a_curve_has_gaps_where_the_loss_was_not_finite():
    report = confirmation_report()
    broken = [(0, 4.0), (1, None), (2, 3.0), (3, 2.0)]
    trials = [report.trials[0].model_copy(update={"loss": broken})]
    drawn = loss_curves(trials, {"baseline": 0}, width=350, height=300)
    assert drawn.count('class="run arm0"') == 2
    empty = [report.trials[0].model_copy(update={"loss": [(0, None)]})]
    lost = loss_curves(empty, {"baseline": 0}, width=350, height=300)
    assert "No run has a finite loss" in lost


def test_one_wild_run_does_not_flatten_the_rest():
    report = confirmation_report()
    wild = report.trials[0].model_copy(update={"loss": [(0, 4.0), (1, 1e9), (2, 9.0)]})
    calm = report.trials[2]
    drawn = loss_curves([wild, calm], {wild.arm: 0, calm.arm: 1}, width=350, height=300)
    curve = re.search(r'd="M([^"]+)" class="run arm1"', drawn)[1]
    heights = [float(point.split()[1]) for point in curve.split("L")]
    assert max(heights) - min(heights) > 30
    page = render(report.model_copy(update={"trials": [wild, calm]}), "html")
    assert "Triangles mark losses above 12." in page and 'class="off arm' in page
    assert "drawn at the top" not in render(report, "html")


def test_a_grid_knows_what_varies():
    report = grid_report(broken=False)
    setting = Settings(report)
    assert setting.axes == ["learning_rate", "n_layer"]  # not lr too, and not the optimizer
    assert setting(report.cells[0]) == "learning_rate=1e-4 n_layer=2"


@pytest.mark.parametrize("rate", ["lr", "learning_rate"])
def test_a_grid_in_the_terminal_shows_every_setting_that_varies(rate):
    report = grid_report(broken=False).model_copy(update={"axes": [rate, "n_layer"]})
    lines = render(report, "text").splitlines()
    head, first = lines[lines.index("Ranked") + 1 :][:2]
    assert head.split("  ")[0] == "Rank"
    at = head.index(rate)
    assert first[at : at + 6].split() == ["1e-4"]
    assert "5e-4" in first  # the rate to start with, in the same form


@pytest.mark.parametrize(
    ("verdict", "code"), [("ok", 0), ("risk", 1), ("unusable", 2), ("incomplete", 3)]
)
def test_the_verdict_of_a_grid_is_that_of_its_exit_code(verdict, code):
    assert grid_report().model_copy(update={"verdict": verdict}).exit_code == code


def test_the_page_of_a_grid_shows_the_same_numbers():
    report = grid_report()
    text = render(report, "html")
    check_self_contained(text)
    document = json.loads(report.to_json())
    assert wrong_numbers(text, document) == []
    assert json.loads(embedded(text)) == document
    assert text.count('class="risky') == 6
    assert Settings(report).axes == ["learning_rate", "n_layer"]
    assert "4 of 7" in text
    assert "error RKSP501; warning RKSP503, RKSP504" in text
    assert "<b x" not in text


def test_a_broken_cell_is_an_error_beside_the_good_ones(capsys, tmp_path):
    report = grid_report()
    text = render(report, "junit")
    JUNIT.validate(text)
    suite = ElementTree.fromstring(text.encode()).find("testsuite")
    assert [suite.get(name) for name in ("tests", "failures", "errors")] == ["7", "2", "1"]
    allowed = ElementTree.fromstring(render(grid_report(failing=[]), "junit").encode())
    assert allowed.get("failures") == "0"
    summary = render(report, "markdown")
    assert "4 of 7 settings are ok" in summary
    assert "Could not run" in summary and "| 1 cell |" in summary
    unescaped = re.sub(r"\\.", "", summary)
    assert "<b x" not in re.sub(r"`[^`]*`", "", unescaped)
    (tmp_path / "grid.json").write_text(report.to_json())
    for name in formats_of("grid"):
        emit(load(tmp_path / "grid.json", ""), name, [])
        assert "could not run" in capsys.readouterr().out.lower(), name


@pytest.mark.parametrize("make", [confirmation_report, grid_report])
def test_the_json_is_valid_by_its_schema(make):
    report = make()
    schema = type(report).model_json_schema()
    document = json.loads(report.to_json())
    jsonschema.validate(document, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document | {"kind": "soup"}, schema)


def test_a_stored_report_of_nothing_known_is_refused(tmp_path):
    (tmp_path / "x.json").write_text('{"kind": "soup"}')
    with pytest.raises(InputError, match="no report of 'soup'"):
        load(tmp_path / "x.json", "")


@pytest.mark.parametrize("kind", ["confirm", "grid"])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_opens_it_in_silence(chromium, kind, width, tmp_path):
    file = tmp_path / "page.html"
    page = render(confirmation_report() if kind == "confirm" else grid_report(), "html")
    file.write_text(page, encoding="utf-8")
    chromium.open(file, width=width, dark=width == 390)
    chromium.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
    assert chromium.complaints() == []
    assert chromium.requests() == []
    assert chromium.evaluate("document.documentElement.scrollWidth") <= width
    shown = chromium.evaluate("document.body.innerText")
    assert ("2 of 2" if kind == "confirm" else "4 of 7") in shown


@pytest.mark.parametrize("damage", ["cell without a verdict", "probability that is a list"])
def test_a_stored_grid_with_a_damaged_cell_is_refused(damage, tmp_path, capsys):
    stored = json.loads(grid_report().to_json())
    if damage.startswith("cell"):
        del stored["best_safe"]["gpt2 n_layer=2"]["verdict"]
    else:
        stored["cells"][0]["probability_failed"] = [1]
    path = tmp_path / "grid.json"
    path.write_text(json.dumps(stored))
    assert left_with(["report", str(path)]) == 2
    assert "is not a report" in capsys.readouterr().err


def test_a_stored_report_whose_parts_do_not_belong_together_is_refused(tmp_path, capsys):
    stored = json.loads(confirmation_report().to_json()) | {"arms": []}
    path = tmp_path / "confirm.json"
    path.write_text(json.dumps(stored))
    assert left_with(["report", str(path)]) == 2
    assert "do not belong together" in capsys.readouterr().err
