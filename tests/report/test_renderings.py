"""Every rendering of a report is valid by its own standard and says what the JSON says."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import jsonschema
import pytest
import xmlschema
from support.places import SCHEMAS
from support.reports import finding, hostile, scored, with_findings, with_risk

from rksp.assessment.pipeline import prevailing
from rksp.documents.score import ScoreReport
from rksp.documents.terms import Gate
from rksp.ground.errors import InputError
from rksp.ground.text import short
from rksp.question import said as phrases
from rksp.question.gate import judge
from rksp.report.formats import Output, check_format, formats_of, render

SARIF = json.loads((SCHEMAS / "sarif-2.1.0-rtm.4.json").read_text())
JUNIT = xmlschema.XMLSchema(SCHEMAS / "junit-10.xsd")


def _cases() -> dict[str, ScoreReport]:
    risky = scored(3.0)
    return {
        "ok": scored(),
        "risk": risky,
        "no rate": scored(None),
        "nothing found": with_findings(),
        "many": with_findings(*(finding(f"RKSP{n}", "error") for n in range(101, 125))),
        "hostile": hostile(),
        "cannot tell": with_risk(risky, verdict="cannot tell", reasons=["too far outside"]),
        "not assessed": _not_assessed(),
        "judged": risky.model_copy(update={"gate": judge(Gate.parse("warning"), risky)}),
    }


def _not_assessed() -> ScoreReport:
    return with_risk(scored(), verdict="not assessed", reasons=["no evidence"])


CASES = (
    "ok",
    "risk",
    "no rate",
    "nothing found",
    "many",
    "hostile",
    "cannot tell",
    "not assessed",
    "judged",
)


@pytest.fixture(scope="module")
def cases() -> dict[str, ScoreReport]:
    made = _cases()
    assert tuple(made) == CASES
    return made


@pytest.mark.parametrize("case", CASES)
def test_sarif_is_valid_by_the_official_schema(cases, case):
    document = json.loads(render(cases[case], "sarif"))
    jsonschema.validate(document, SARIF)
    results = document["runs"][0]["results"]
    rules = document["runs"][0]["tool"]["driver"]["rules"]
    assert len(results) == len(cases[case].findings) + (cases[case].risk_verdict != "ok")
    for result in results:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert not result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"].startswith(
            "/"
        )


def test_a_broken_sarif_document_is_seen(cases):
    document = json.loads(render(cases["risk"], "sarif"))
    document["runs"][0]["results"][0]["level"] = "catastrophe"
    with pytest.raises(jsonschema.ValidationError, match="catastrophe"):
        jsonschema.validate(document, SARIF)
    del document["runs"]
    with pytest.raises(jsonschema.ValidationError, match="runs"):
        jsonschema.validate(document, SARIF)


@pytest.mark.parametrize("case", CASES)
def test_junit_is_valid_by_the_schema_and_its_counts_add_up(cases, case):
    text = render(cases[case], "junit")
    JUNIT.validate(text)
    suite = ElementTree.fromstring(text.encode()).find("testsuite")
    tests = suite.findall("testcase")
    assert int(suite.get("tests")) == len(tests) >= 1
    for name, tag in (("failures", "failure"), ("skipped", "skipped")):
        assert int(suite.get(name)) == sum(test.find(tag) is not None for test in tests)


def test_a_broken_junit_document_is_seen(cases):
    text = render(cases["risk"], "junit")
    with pytest.raises(xmlschema.XMLSchemaValidationError):
        JUNIT.validate(text.replace("<testcase", "<testcases").replace("</testcase", "</testcases"))


@pytest.mark.parametrize("level", ["0.5", "error", "warning", "never"])
@pytest.mark.parametrize("case", CASES)
def test_junit_is_red_exactly_when_the_gate_fails(cases, case, level):
    report = cases[case]
    gate = judge(Gate.parse(level), report)
    judged = report.model_copy(update={"gate": gate})
    assert ("<failure" in render(judged, "junit")) == gate.failed
    assert gate.failed == bool(gate.issues) == bool(gate.reasons)


def test_the_gate_counts_what_it_says():
    warned = with_findings(finding(level="warning"))
    noted = with_findings(finding(level="note"))
    wrong = with_findings(finding(level="error"))
    table = {
        report_level: [
            judge(Gate.parse(bar), report).failed for bar in ("0.5", "error", "warning", "never")
        ]
        for report_level, report in (("note", noted), ("warning", warned), ("error", wrong))
    }
    assert table == {
        "note": [False, False, False, False],
        "warning": [False, False, True, False],
        "error": [True, True, True, False],
    }
    risky = [judge(Gate.parse(bar), scored(3.0)).failed for bar in ("0.5", "error", "never")]
    assert risky == [True, True, False]
    assert Gate.parse("0.25").bar == 0.25


@pytest.mark.parametrize("text", ["warnings", "high", "0", "1.5", "-1", "nan", ""])
def test_a_gate_that_means_nothing_is_refused(text):
    with pytest.raises(InputError, match="--fail-on"):
        Gate.parse(text)


@pytest.mark.parametrize("case", CASES)
def test_github_annotations_are_one_line_each_and_never_more_than_ten_of_a_kind(cases, case):
    lines = render(cases[case], "github").splitlines()
    assert lines
    kinds = [re.match(r"::(error|warning|notice) ", line)[1] for line in lines]
    assert max(map(kinds.count, kinds)) <= 10
    # A command ends its properties with "::"; the message may hold anything but a line end.
    for line in lines:
        properties = line.split("::")[1]
        assert all("=" in part for part in properties.partition(" ")[2].split(","))


def test_github_says_how_many_it_leaves_out(cases):
    assert "15 more findings of this level" in render(cases["many"], "github")


@pytest.mark.parametrize("case", CASES)
def test_gitlab_entries_have_what_gitlab_requires(cases, case):
    entries = json.loads(render(cases[case], "gitlab"))
    for entry in entries:
        assert entry.keys() == {"check_name", "description", "fingerprint", "severity", "location"}
        assert entry["severity"] in ("info", "minor", "major", "critical", "blocker")
        assert entry["location"]["lines"]["begin"] >= 1
    assert len({entry["fingerprint"] for entry in entries}) == len(entries)


def test_sarif_names_a_file_the_way_the_standard_asks():
    def uri(name: str, kind: str) -> str:
        report = scored(3.0)
        target = report.target.model_copy(update={"name": name, "kind": kind})
        run = json.loads(render(report.model_copy(update={"target": target}), "sarif"))["runs"][0]
        return run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]

    assert uri("configs/my model.json", "config") == "configs/my%20model.json"
    assert uri("/data/config.json", "config") == "file:///data/config.json"
    assert uri("gpt2", "model_type") == "gpt2"


def test_of_equally_many_seeds_the_worst_counts():
    def verdict(*rates: float | None) -> str:
        return prevailing([scored(rate).risk_verdict for rate in rates])

    assert verdict(6e-4, 3.0) == verdict(3.0, 6e-4) == "risk"
    assert verdict(6e-4, 3.0, 6e-4) == "ok"


def test_fingerprints_do_not_follow_wording_but_follow_the_code():
    def prints(*findings):
        entries = json.loads(render(with_findings(*findings), "gitlab"))
        return [entry["fingerprint"] for entry in entries]

    assert prints(finding(message="1.7 is high")) == prints(finding(message="1.8 is high"))
    assert prints(finding("RKSP101")) != prints(finding("RKSP102"))
    assert prints(finding(layer="h.0")) != prints(finding(layer="h.1"))


@pytest.mark.parametrize("name", formats_of("score"))
@pytest.mark.parametrize("case", ["risk", "hostile"])
def test_every_rendering_gives_the_same_bytes_twice(cases, case, name):
    again = ScoreReport.model_validate_json(cases[case].to_json())
    assert render(again, name) == render(cases[case], name)


@pytest.mark.parametrize("name", formats_of("score"))
def test_a_model_that_overflows_is_rendered_alike_from_its_json(name):
    report = scored(6e-4, 1e19)
    assert any(finding.code == "RKSP301" for finding in report.findings)
    assert report.non_finite
    assert report.verdict == "risk"
    assert report.seeds[0].risk.probability_failed == 1.0
    assert report.seeds[0].risk.kind == "certain"
    again = ScoreReport.model_validate_json(report.to_json())
    assert again == report
    assert render(again, name) == render(report, name)


def test_hostile_names_stay_inside_their_place(cases):
    report = cases["hostile"]
    assert "<b x" not in render(report, "html")
    assert render(report, "html").count("</script>") == 1
    assert "\n::error::" not in render(report, "github")
    markdown = render(report, "markdown")
    rows = [line for line in markdown.splitlines() if line.startswith("| 🟠")]
    assert len(rows) == 1
    head = next(line for line in markdown.splitlines() if line.startswith("| Level"))
    assert len(re.findall(r"(?<!\\)\|", rows[0])) == head.count("|") == 6
    unescaped = re.sub(r"\\.", "", markdown)
    assert "<b x" not in re.sub(r"`[^`]*`", "", unescaped)


def test_markdown_numbers_are_those_of_the_json(cases):
    report = cases["risk"]
    markdown = render(report, "markdown")
    risk = report.seeds[0].risk
    assert phrases.odds(risk) in re.sub(r"\\(.)", r"\1", markdown)
    for rate in (risk.start_here, risk.do_not_exceed, risk.likely_edge):
        assert f"| {short(rate, 2)} |" in markdown
    header = next(line for line in markdown.splitlines() if line.startswith("| Block"))
    titles = [cell.strip() for cell in header.strip("|").split("|")]
    rows = [line for line in markdown.splitlines() if line.startswith("| `transformer.h")]
    assert len(rows) == len(report.seeds[0].spectra.layers)
    fields = {"M≈1": "near_unit_mass", "M>1": "expansive_mass", "ρ": "spectral_radius"}
    fields |= {"κ(V)": "eigenvector_condition", "gain": "energy_gain", "rms out": "rms_out"}
    for row, layer in zip(rows, report.seeds[0].spectra.layers, strict=True):
        cells = dict(zip(titles, (c.strip() for c in row.strip("|").split("|")), strict=True))
        for title, field in fields.items():
            assert float(cells[title]) == pytest.approx(getattr(layer, field), rel=6e-3, abs=6e-3)


def test_a_very_deep_model_fits_a_job_summary():
    report = scored()
    seed = report.seeds[0]
    layers = seed.spectra.layers * 1000
    spectra = seed.spectra.model_copy(update={"layers": layers})
    deep = report.model_copy(update={"seeds": [seed.model_copy(update={"spectra": spectra})]})
    assert len(render(deep, "markdown").encode()) < 900 * 1024  # GitHub drops more than 1 MiB


def test_json_is_valid_by_our_schema(cases):
    schema = ScoreReport.model_json_schema()
    for case in ("hostile", "judged"):
        jsonschema.validate(json.loads(render(cases[case], "json")), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(json.loads(scored().to_json()) | {"verdict": "maybe"}, schema)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("r.json", "json"),
        ("r.md", "markdown"),
        ("r.sarif", "sarif"),
        ("r.xml", "junit"),
        ("r.html", "html"),
        ("r.txt", "text"),
        ("gitlab=r.json", "gitlab"),
        ("github=log", "github"),
    ],
)
def test_the_format_of_a_file(text, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Output.parse(text).format == name


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("r.pdf", "FORMAT=FILE"),
        ("sarf=r", "did you mean sarif"),
        ("json=", "does not name a file"),
        ("absent/r.json", "the folder absent does not exist"),
    ],
)
def test_a_file_without_a_format_is_refused(text, hint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=hint):
        Output.parse(text)


def test_an_unknown_format_names_the_nearest():
    assert check_format("html") == "html"
    with pytest.raises(InputError, match="did you mean markdown"):
        check_format("markdwn")
