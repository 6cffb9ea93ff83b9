"""The default page: at most eight lines of the terminal's width, for every verdict."""

from __future__ import annotations

import functools
import io

import pytest
from rich.console import Console
from support.reports import finding, hostile, scored, with_findings, with_risk

from rksp.documents.score import AlternativeReport, ScoreReport
from rksp.report import words
from rksp.report.diff import compare
from rksp.report.formats import rendering

LONG = "assumed: one device, so a batch of 32; 1000 steps; no warm-up; pass --devices, --max-steps"
REASONS = ["the labelled runs contain no peft, no dpo", "the response could not be measured"]


def _not_assessed() -> ScoreReport:
    report = scored()
    seed = report.seeds[0].model_copy(update={"risk": None, "risk_missing": "no classifier " * 9})
    return report.model_copy(update={"seeds": [seed], "verdict": "not assessed"})


def _decisive() -> ScoreReport:
    report = scored(3.0).model_copy(update={"assumed": LONG})
    seed = report.seeds[0]
    other = AlternativeReport.of(seed.risk, assumption="64 devices, so a batch of 2048")
    other = other.model_copy(update={"verdict": "ok"})
    seeds = [seed.model_copy(update={"alternatives": [other]})]
    return report.model_copy(update={"seeds": seeds})


def _named(kind: str) -> ScoreReport:
    report = scored()
    name = "organization/a-model-with-a-name-that-is-much-longer-than-usual"
    target = report.target.model_copy(update={"kind": kind, "name": name})
    streamed = {"weights": "streamed from disk, 2 of 32 blocks at a time"}
    changed = {"target": target, "provenance": report.provenance | streamed}
    return report.model_copy(update=changed)


CASES = {
    "ok": scored,
    "caution": lambda: with_risk(scored(), verdict="caution", probability_failed_high=0.7),
    "risk": lambda: scored(3.0),
    "cannot tell": lambda: with_risk(scored(3.0), verdict="cannot tell", reasons=REASONS * 2),
    "not assessed": _not_assessed,
    "no rate": lambda: scored(None),
    "nothing trains": lambda: scored(6e-4, 1e19),
    "baseline": lambda: scored(3.0).model_copy(
        update={"baseline": compare(scored(), scored(3.0)), "assumed": LONG}
    ),
    "decisive assumption": _decisive,
    "streamed": lambda: _named("hub"),
    "regression module": lambda: _named("module"),
    "many findings": lambda: with_findings(
        *(finding(f"RKSP{n}", "error", "h.0", fix="Do less. " * 20) for n in range(101, 125))
    ),
    "hostile": hostile,
}
made = functools.cache(lambda case: CASES[case]())


def printed(report: ScoreReport, width: int) -> list[str]:
    """Return the lines that a terminal of this width shows."""
    stream = io.StringIO()
    Console(file=stream, width=width, highlight=False, color_system=None).print(
        rendering(report, "text")
    )
    return stream.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("case", CASES)
def test_a_page_has_at_most_eight_lines_of_the_terminals_width(case, width):
    lines = printed(made(case), width)
    assert 2 <= len(lines) <= 8
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("case", ["ok", "caution", "risk", "no rate", "decisive assumption"])
def test_the_three_rates_are_whole_at_every_width(case, width):
    (rates,) = [line for line in printed(made(case), width) if line.startswith("  start here")]
    risk = made(case).seeds[0].risk
    for value in (risk.start_here, risk.likely_edge, risk.do_not_exceed):
        assert f" {words.rate(value)}" in rates
    assert "…" not in rates
    assert ("nats" in rates) == (width >= 100)


def test_a_verdict_without_numbers_to_rely_on_draws_no_scale():
    lines = printed(made("cannot tell"), 100)
    assert "the labelled runs contain no peft" in lines[0]
    assert "and 2 more reasons" in lines[1]
    assert lines[2].startswith("  not reliable here: start")
    assert not any("──" in line for line in lines)


def test_the_next_command_follows_the_verdict():
    last = {case: printed(made(case), 100)[-1].split("   ")[0].strip() for case in CASES}
    assert last["ok"] == "next: rksp confirm gpt2 --shrink --lr 6e-4"
    start = words.rate(made("risk").seeds[0].risk.start_here)
    assert last["risk"] == last["no rate"] == f"next: rksp score gpt2 --lr {start}"
    assert last["nothing trains"] == "next: rksp explain RKSP301"
    assert last["baseline"].startswith("since the baseline: ")


def test_certainty_is_not_rounded_up():
    sure = with_risk(scored(3.0), probability_failed=0.9999, probability_failed_low=0.0001)
    assert "P(failed) >99% [<1%, " in printed(sure, 100)[0]


def test_colors_are_those_of_verdict_and_level():
    def styles(case: str) -> list[str]:
        page = rendering(made(case), "text")
        return [
            str(part.style) for line in page.lines for part in (*line.forms[0].spans, line.forms[0])
        ]

    assert "bold green" in styles("ok")
    assert "bold red" in styles("risk")
    assert "bold yellow" in styles("caution")
    assert "bold green" not in styles("caution") + styles("risk")
