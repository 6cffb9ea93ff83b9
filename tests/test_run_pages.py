"""Pages of a confirmation and of a grid: the same numbers, no requests, and a phone's width."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import browser
import jsonschema
import pytest
import xmlschema
from commands import left_with
from pages import Page, check_self_contained, embedded, wrong_numbers
from reports import HOSTILE, scored

from rksp.cli.rendering import emit, load_any, outputs
from rksp.documents.base import TargetReport
from rksp.documents.confirm import (
    ArmReport,
    ConfirmReport,
    MonitorReport,
    PredictionReport,
    TrialReport,
)
from rksp.documents.grid import GridReport
from rksp.errors import InputError
from rksp.recipe import Recipe
from rksp.report import confirm_html, grid_html, grid_summary, grid_terminal
from rksp.report.formats import formats_of
from rksp.report.grid_settings import Settings
from rksp.text import safe_strings

JUNIT = xmlschema.XMLSchema(Path(__file__).parent / "schemas" / "junit-10.xsd")


@pytest.fixture(scope="module")
def chromium():
    yield from browser.opened()


def confirmation_report() -> ConfirmReport:
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
    common = {"runs": 2, "diverged": 0, "learned": 0, "lost": 0}
    arms = [
        {"arm": "baseline", "failed": 2, "p_value": None, "final_loss": None, "saved": 0}
        | {"overhead": None, "monitors": [monitor]},
        {"arm": f"rate=0.3{HOSTILE}", "failed": 0, "p_value": 0.33, "final_loss": 2.25, "saved": 2}
        | {"overhead": 0.015, "monitors": []},
    ]
    return ConfirmReport(
        target=TargetReport(
            name=HOSTILE,
            kind="config",
            task="causal-lm",
            model_type="gpt2",
            parameters=1000,
            is_pretrained=False,
            config_hash=None,
            notes=["Model type mimo is read as qwen2."],
        ),
        asked=Recipe(learning_rate=3.0),
        trained=Recipe(learning_rate=3.0, max_steps=4),
        faults=[],
        prediction=PredictionReport(
            probability_failed=0.97,
            low=0.9,
            high=0.99,
            verdict="risk",
            reasons=[],
            do_not_exceed=1e-3,
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
    report = confirmation_report()
    text = confirm_html.render(report)
    check_self_contained(text)
    assert wrong_numbers(text, json.loads(report.to_json())) == []
    paths = {path for path, _, _ in Page(text).numbers}
    assert {"arms/1/p_value", "arms/0/monitors/0/lead", "prediction/probability_failed"} <= paths
    assert text.count('class="run arm0"') == text.count('class="run arm1"') == 4  # wide and narrow
    assert ">held<" in text
    assert "mimo is read as qwen2" in text
    assert "<b x" not in text


def test_the_page_draws_profiles_that_have_two_points():
    report = confirmation_report()
    assert "Profiles" not in confirm_html.render(report)
    curves = {"stable_rank": [(0, 3.0), (2, 2.0)], "near_unit_mass": [(0, 0.5)]}
    trials = [report.trials[0].model_copy(update={"profiles": curves}), *report.trials[1:]]
    page = confirm_html.render(report.model_copy(update={"trials": trials}))
    assert "Stable rank of every run by step" in page and "Near-unit mass M≈1 of" not in page
    check_self_contained(page)


def test_a_stored_confirmation_renders_again(tmp_path, capsys):
    report = confirmation_report()
    spaced = json.dumps(json.loads(report.to_json()), indent=4)  # as another tool rewrites it
    (tmp_path / "confirm.json").write_text(spaced)
    stored = load_any(tmp_path / "confirm.json")
    escaped = safe_strings(json.loads(report.to_json()))  # its names hold control characters
    assert json.loads(stored.to_json()) == escaped != json.loads(report.to_json())
    emit(stored, "html", outputs("html", [str(tmp_path / "page.txt")], "confirm"))
    assert capsys.readouterr().out == confirm_html.render(stored)
    assert "FAILED" in (tmp_path / "page.txt").read_text()
    assert "mimo is read as qwen2" in (tmp_path / "page.txt").read_text()
    with pytest.raises(InputError, match="rksp confirm, --format 'csv'"):
        emit(stored, "csv", [])
    (tmp_path / "score.json").write_text(scored().to_json())
    assert load_any(tmp_path / "score.json") == scored()


def test_a_format_that_a_confirmation_lacks_is_refused_before_the_work(tmp_path):
    with pytest.raises(InputError, match="use text, json, markdown"):
        outputs("csv", [], "confirm")
    with pytest.raises(InputError, match=r"x\.csv"):
        outputs("text", [str(tmp_path / "x.csv")], "confirm")


def test_a_curve_has_gaps_where_the_loss_was_not_finite():
    report = confirmation_report()
    broken = [(0, 4.0), (1, None), (2, 3.0), (3, 2.0)]
    trials = [report.trials[0].model_copy(update={"loss": broken})]
    drawn = confirm_html.loss_curves(trials, {"baseline": 0}, width=350, height=300)
    assert drawn.count('class="run arm0"') == 2
    empty = [report.trials[0].model_copy(update={"loss": [(0, None)]})]
    lost = confirm_html.loss_curves(empty, {"baseline": 0}, width=350, height=300)
    assert "No run has a finite loss" in lost


def test_one_wild_run_does_not_flatten_the_rest():
    report = confirmation_report()
    wild = report.trials[0].model_copy(update={"loss": [(0, 4.0), (1, 1e9), (2, 9.0)]})
    calm = report.trials[2]
    drawn = confirm_html.loss_curves(
        [wild, calm], {wild.arm: 0, calm.arm: 1}, width=350, height=300
    )
    curve = re.search(r'd="M([^"]+)" class="run arm1"', drawn)[1]
    heights = [float(point.split()[1]) for point in curve.split("L")]
    assert max(heights) - min(heights) > 30
    page = confirm_html.render(report.model_copy(update={"trials": [wild, calm]}))
    assert "Losses above 12 are drawn at the top." in page
    assert "drawn at the top" not in confirm_html.render(report)


def grid_report(*, broken: bool = True, failing: list[int] | None = None) -> GridReport:
    """Two depths and three rates; the last depth cannot be built."""
    cells = []
    for position, (depth, rate) in enumerate((d, r) for d in (2, 4) for r in (1e-4, 3e-3, 0.3)):
        probability = min(0.99, 3 * rate + 0.001 * depth)
        cell = {"position": position, "model": f"gpt2 n_layer={depth}", "n_layer": depth}
        cell |= {
            "learning_rate": rate,
            "lr": rate,
            "optimizer": "adamw",
            "start_here": 1e-3 / depth,
            "do_not_exceed": 2e-3 / depth,
            "expected_excess": 0.1 + rate,
        }
        cell |= {"probability_failed": probability, "probability_failed_low": probability / 2}
        cell |= {"probability_failed_high": min(1.0, probability * 1.5), "reasons": ""}
        cell |= {"verdict": "risk" if probability >= 0.5 else "ok", "seed": 0}
        cell |= {"findings": "RKSP503 warning RKSP501 error RKSP504 warning"}
        cells.append(cell | {"failure": None, "message": None})
    if broken:
        lost = dict.fromkeys(cells[0], None)
        lost |= {"position": 6, "model": HOSTILE, "n_layer": HOSTILE, "learning_rate": 1e-4}
        lost |= {"verdict": "could not run", "failure": "invalid", "message": HOSTILE, "lr": 1e-4}
        cells.append(lost)
    if failing is None:
        failing = [c["position"] for c in cells if c["verdict"] == "risk"]
    return GridReport(
        verdict="incomplete" if broken else "risk" if failing else "ok",
        cells_in_grid=len(cells),
        axes=["lr", "n_layer"],
        profiles_made=2,
        cells=sorted(cells, key=lambda c: c["probability_failed"] or 2.0),
        best_safe={"gpt2 n_layer=2": cells[0], "gpt2 n_layer=4": cells[3], HOSTILE: None},
        pareto={},
        failing=failing,
        made_by={"rksp": "0"},
    )


def test_a_grid_knows_what_varies():
    report = grid_report(broken=False)
    setting = Settings(report)
    assert setting.axes == ["learning_rate", "n_layer"]  # not lr too, and not the optimizer
    assert setting(report.cells[0]) == "learning_rate=1e-4 n_layer=2"
    assert [place.name for place in grid_html.places(report, setting, [1e-4, 3e-3, 0.3])] == [
        "n_layer=2",
        "n_layer=4",
    ]


@pytest.mark.parametrize("rate", ["lr", "learning_rate"])
def test_a_grid_in_the_terminal_shows_every_setting_that_varies(rate):
    report = grid_report(broken=False).model_copy(update={"axes": [rate, "n_layer"]})
    head, first, *_ = grid_terminal.render(report).splitlines()
    assert head.split("  ")[0] == "rank"
    assert head.split().index(rate) == first.split().index("1e-4") == 5
    assert "5e-4" in first  # the rate to start with, in the same form
    assert f"{rate}=1e-4" in grid_terminal.render(report)


@pytest.mark.parametrize(
    ("verdict", "code"), [("ok", 0), ("risk", 1), ("unusable", 2), ("incomplete", 3)]
)
def test_the_verdict_of_a_grid_is_that_of_its_exit_code(verdict, code):
    assert grid_report().model_copy(update={"verdict": verdict}).exit_code == code


def test_the_page_of_a_grid_shows_the_same_numbers():
    report = grid_report()
    text = grid_html.render(report)
    check_self_contained(text)
    document = json.loads(report.to_json())
    assert wrong_numbers(text, document) == []
    assert json.loads(embedded(text)) == document
    assert text.count('class="risky') == 6
    assert text.count("risky best") == 2
    assert Settings(report).axes == ["learning_rate", "n_layer"]
    assert "4 of 7" in text
    assert "error RKSP501; warning RKSP503, RKSP504" in text
    assert "<b x" not in text


def test_a_broken_cell_is_an_error_beside_the_good_ones(capsys, tmp_path):
    report = grid_report()
    text = grid_summary.junit(report)
    JUNIT.validate(text)
    suite = ElementTree.fromstring(text.encode()).find("testsuite")
    assert [suite.get(name) for name in ("tests", "failures", "errors")] == ["7", "2", "1"]
    allowed = ElementTree.fromstring(grid_summary.junit(grid_report(failing=[])).encode())
    assert allowed.get("failures") == "0"
    summary = grid_summary.markdown(report)
    assert "**4 of 7** settings are ok" in summary
    assert "1 cell could not run" in summary
    unescaped = re.sub(r"\\.", "", summary)
    assert "<b x" not in re.sub(r"`[^`]*`", "", unescaped)
    (tmp_path / "grid.json").write_text(report.to_json())
    for name in formats_of("grid"):
        emit(load_any(tmp_path / "grid.json"), name, [])
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
        load_any(tmp_path / "x.json")


@pytest.mark.parametrize("kind", ["confirm", "grid"])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_opens_it_in_silence(chromium, kind, width, tmp_path):
    file = tmp_path / "page.html"
    report = confirm_html.render(confirmation_report())
    page = report if kind == "confirm" else grid_html.render(grid_report())
    file.write_text(page, encoding="utf-8")
    chromium.open(file, width=width, dark=width == 390)
    chromium.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
    assert chromium.complaints() == []
    assert chromium.requests() == []
    assert chromium.evaluate("document.documentElement.scrollWidth") <= width
    shown = chromium.evaluate("document.body.innerText")
    assert ("2 of 2" if kind == "confirm" else "4 of 7") in shown


@pytest.mark.parametrize("damage", ["front of another model", "probability that is a list"])
def test_a_stored_report_whose_parts_do_not_belong_together_is_refused(damage, tmp_path, capsys):
    stored = json.loads(grid_report().to_json())
    if damage.startswith("front"):
        stored["pareto"]["another model"] = stored["cells"][:2]
    else:
        stored["cells"][0]["probability_failed"] = [1]
    path = tmp_path / "grid.json"
    path.write_text(json.dumps(stored))
    assert left_with(["report", str(path)]) == 2
    assert "do not belong together" in capsys.readouterr().err
