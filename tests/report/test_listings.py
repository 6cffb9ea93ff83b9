"""What code-scanning pages, annotations and test reports say of a score, a confirmation, a grid."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest
import xmlschema
from support.places import SCHEMAS
from support.reports import finding, scored, with_findings
from support.run_pages import confirmation_report, grid_report

from rksp.checks.registry import CHECKS, left_out
from rksp.question.gate import from_root
from rksp.report.formats import render
from rksp.report.machines import listing

SARIF = json.loads((SCHEMAS / "sarif-2.1.0-rtm.4.json").read_text())
JUNIT = xmlschema.XMLSchema(SCHEMAS / "junit-10.xsd")


def _tests(text: str) -> dict[str, ElementTree.Element]:
    JUNIT.validate(text)
    return {test.get("name"): test for test in ElementTree.fromstring(text).iter("testcase")}


def _location(report) -> dict:
    run = json.loads(render(report, "sarif"))["runs"][0]
    return run["results"][-1]["locations"][0]["physicalLocation"]


def test_the_sarif_of_a_grid_is_valid_and_names_what_failed():
    document = json.loads(render(grid_report(), "sarif"))
    jsonschema.validate(document, SARIF)
    run = document["runs"][0]
    assert [one["ruleId"] for one in run["results"]] == ["RKSP001", "RKSP001", "RKSP004"]
    assert run["automationDetails"]["id"].startswith("rksp/grid/")
    prints = {one["partialFingerprints"]["rkspIssue/v1"] for one in run["results"]}
    assert len(prints) == 3
    run["results"][0]["level"] = "catastrophe"
    with pytest.raises(jsonschema.ValidationError, match="catastrophe"):
        jsonschema.validate(document, SARIF)


def test_annotations_of_a_grid_are_one_line_for_each_issue():
    report = grid_report()
    lines = render(report, "github").splitlines()
    assert len(lines) == len(listing(report).issues) == len(json.loads(render(report, "gitlab")))
    assert all(re.match(r"::error title=RKSP00\d", line) for line in lines)
    calm = grid_report(broken=False, failing=[])
    assert listing(calm).issues == ()
    assert render(calm, "github").startswith("::notice title=rksp::")


def test_a_cell_points_to_the_run_file_that_varies(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.yaml").write_text("lr: 1\n")
    report = grid_report()
    cells = [cell.model_copy(update={"target": "train.yaml"}) for cell in report.cells]
    lines = render(report.model_copy(update={"cells": cells}), "github").splitlines()
    assert lines and all("file=train.yaml,line=1," in line for line in lines)


def test_the_tests_of_a_confirmation_fail_only_with_the_recipe():
    tests = _tests(render(confirmation_report(), "junit"))
    assert [test.find("failure") is not None for test in tests.values()] == [True, False, False]
    calm = confirmation_report().model_copy(update={"verdict": "trained", "prediction_held": None})
    tests = _tests(render(calm, "junit"))
    assert "<failure" not in render(calm, "junit")
    assert tests["the prediction holds"].find("skipped") is not None


def test_the_summary_of_a_confirmation_has_its_arms_and_keeps_hostile_names_in_place():
    text = render(confirmation_report(), "markdown")
    assert text.startswith("## rksp confirm: ")
    assert "**FAILED: " in text and "The prediction held." in text
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert [line.count("2/2") for line in rows] == [1, 0, 1]  # two arms and a monitor
    assert "<b x" not in re.sub(r"`[^`]*`", "", re.sub(r"\\.", "", text))


def test_every_check_is_a_test_and_what_did_not_run_says_why():
    ignored = left_out(ignore=["RKSP5"])
    report = with_findings(finding("RKSP101", "error"))
    assert report.not_run == []
    report = report.model_copy(update={"not_run": list(ignored)})
    tests = _tests(render(report, "junit"))
    assert {name.split()[0] for name in tests} == {c.code for c in CHECKS} | {"RKSP001"}
    skipped = {name[:7]: test.find("skipped") for name, test in tests.items()}
    assert {code for code, why in skipped.items() if why is not None} == {c.code for c in ignored}
    assert skipped["RKSP503"].get("message") == "--select or --ignore leaves it out"
    assert tests["RKSP201 attention-logit-scale"].find("system-out").text.startswith("healthy:")


def test_a_test_keeps_its_name_when_it_fails():
    names = [next(iter(_tests(render(scored(rate), "junit")))) for rate in (6e-4, 3.0)]
    assert names == ["RKSP001 P(failed) is below the bar"] * 2


def test_a_rule_explains_itself_in_markdown():
    rules = json.loads(render(scored(3.0), "sarif"))["runs"][0]["tool"]["driver"]["rules"]
    by_code = {rule["id"]: rule for rule in rules}
    check = next(check for check in CHECKS if check.code == "RKSP503")
    told = by_code["RKSP503"]["help"]
    assert check.texts.why in told["text"]
    assert "**Why.** " in told["markdown"]
    assert "**More.** `rksp explain RKSP503`" in told["markdown"]
    assert by_code["RKSP503"]["fullDescription"]["text"] == check.texts.title
    assert by_code["RKSP503"]["defaultConfiguration"]["level"] == check.level
    assert "at least the bar" in by_code["RKSP001"]["help"]["text"]


@pytest.fixture
def configured(tmp_path, monkeypatch):
    """A report about `configs/model.json` of a repository, seen from the folder `configs`."""
    (tmp_path / ".git").mkdir()
    folder = tmp_path / "configs"
    folder.mkdir()
    (folder / "model.json").write_text('{\n "model_type": "gpt2",\n "initializer_range": 1.0\n}\n')
    monkeypatch.chdir(folder)
    report = with_findings(finding("RKSP601", "error"))
    target = report.target.model_copy(update={"name": "model.json", "kind": "config"})
    return report.model_copy(update={"target": target})


def test_files_are_named_from_the_root_of_the_repository(configured, monkeypatch):
    at = {"uri": "configs/model.json", "uriBaseId": "SRCROOT"}
    assert _location(configured) == {"artifactLocation": at, "region": {"startLine": 3}}
    assert "file=configs/model.json,line=3," in render(configured, "github")
    entry = json.loads(render(configured, "gitlab"))[0]
    assert entry["location"] == {"path": "configs/model.json", "lines": {"begin": 3}}
    assert "`configs/model.json:3`" in render(configured, "markdown")
    monkeypatch.chdir("..")
    target = configured.target.model_copy(update={"name": "configs/model.json"})
    above = configured.model_copy(update={"target": target})
    assert json.loads(render(above, "gitlab"))[0] == entry  # the fingerprint too
    Path(".git").rmdir()
    assert from_root("configs/model.json") == "configs/model.json"


def test_a_folder_of_a_model_points_into_its_configuration(configured, monkeypatch):
    Path("model.json").rename("config.json")
    monkeypatch.chdir("..")
    target = configured.target.model_copy(update={"name": "configs", "kind": "checkpoint"})
    found = _location(configured.model_copy(update={"target": target}))
    assert found["artifactLocation"]["uri"] == "configs/config.json"
    assert found["region"] == {"startLine": 3}


def test_a_typed_setting_stands_on_no_line(configured):
    target = configured.target.model_copy(update={"overrides": ["initializer_range"]})
    assert _location(configured.model_copy(update={"target": target}))["region"]["startLine"] == 1


@pytest.mark.parametrize("name", ["gpt2", "models:make", "a\0b", "x" * 5000, "/data/config.json"])
def test_a_name_that_is_no_file_stays_as_it_is(name):
    assert from_root(name) == name
