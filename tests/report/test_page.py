"""The default page: at most ten lines of the terminal's width, for every verdict."""

from __future__ import annotations

import functools
import io
import shlex

import pytest
from rich.console import Console
from support.reports import finding, hostile, judged, scored, with_findings, with_risk

from rksp.documents.score import AlternativeReport, ScoreReport
from rksp.ground.text import BYTES_SPREAD
from rksp.question import said as phrases
from rksp.recipe.start import Start
from rksp.report.diff import compare
from rksp.report.formats import render, rendering
from rksp.report.score.page import Line

LONG = "assumed: one device, so a batch of 32; 1000 steps; no warm-up; pass --devices, --max-steps"
REASONS = ["the labelled runs contain no peft, no dpo", "the response could not be measured"]


def _not_assessed() -> ScoreReport:
    return with_risk(scored(), verdict="not assessed", reasons=["no classifier " * 9])


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
    "cannot tell": lambda: with_risk(
        with_findings(rate=3.0), verdict="cannot tell", reasons=REASONS * 2
    ),
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


def whole(report: ScoreReport, width: int) -> str:
    """Return the page in one line, so that what goes on in the next one is found."""
    return " ".join(" ".join(printed(report, width)).split())


@pytest.mark.parametrize("width", [40, 80, 100, 120])
@pytest.mark.parametrize("case", CASES)
def test_a_page_wraps_and_cuts_nothing(case, width):
    lines = printed(made(case), width)
    assert len(lines) >= 2 and max(map(len, lines)) <= width
    assert len(printed(made(case), 2000)) <= 11
    wide = [one for one in whole(made(case), 2000).split() if "─" not in one]
    assert [one for one in wide if one not in whole(made(case), width) and len(one) < 30] == []


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("case", ["ok", "caution", "risk", "no rate", "decisive assumption"])
def test_the_three_rates_are_whole_at_every_width(case, width):
    risk, page = made(case).seeds[0].risk, whole(made(case), width)
    for value in (risk.start_here, risk.likely_edge, risk.do_not_exceed):
        assert f" {phrases.rate(value)}" in page


def test_a_verdict_without_numbers_to_rely_on_draws_no_scale():
    lines = printed(made("cannot tell"), 100)
    assert "the labelled runs contain no peft" in whole(made("cannot tell"), 100)
    assert "and 2 more reasons" in whole(made("cannot tell"), 100)
    assert not any("──" in line or "start" in line or "P(failed)" in line for line in lines)


def test_a_command_that_is_longer_than_the_width_goes_on_after_a_backslash():
    command = "rksp score 'my model' --lr 6e-4 " + " ".join(f"--set key_{n}={n}" for n in range(20))
    lines = printed(scored().model_copy(update={"next_command": command}), 80)
    first = next(n for n, line in enumerate(lines) if line.startswith("  next: "))
    shown = [line.strip() for line in lines[first:]]
    assert max(map(len, lines)) <= 80
    assert all(line.endswith(" \\") for line in shown[:-1])
    joined = "\n".join(shown).removeprefix("next: ").replace("\\\n", " ")
    assert shlex.split(joined) == shlex.split(command)


def test_an_error_is_the_first_word_and_the_reason_whatever_p_says():
    report = with_findings(finding("RKSP304", "error"))
    assert report.risk_verdict == "ok"
    for width in (80, 100, 120):
        first = printed(report, width)[0]
        assert first.startswith("RISK  error RKSP304 (initial-loss); P(failed) ")


def test_no_assumption_lifts_a_verdict_that_an_error_decides():
    said = "  would be "
    report = _decisive()
    assert said in render(report, "text")
    calm = with_risk(report, verdict="caution")
    broken = judged(calm.model_copy(update={"findings": [finding("RKSP304", "error")]}))
    assert broken.verdict == "risk" and said not in render(broken, "text")


@pytest.mark.parametrize("number", [2, 7, 24])
@pytest.mark.parametrize("fix", ["Do less.", "Do less. " * 20])
def test_findings_that_are_not_shown_are_counted_and_v_shows_all(number, fix):
    report = with_findings(*(finding(f"RKSP{100 + n}", "error", fix=fix) for n in range(number)))
    for width in (80, 100, 120):
        text = "\n".join(printed(report, width))
        assert f"(also {number - 1} error{'s' * (number > 2)}: -v)" in " ".join(text.split())
    full = render(report, "full")
    assert all(f"RKSP{100 + n}" in full for n in range(number))


def test_a_rate_that_is_too_low_is_told_what_it_costs():
    report = with_risk(scored(), start_here=3e-3, start_excess=0.1, expected_excess=0.36)
    assert any(line.endswith("● yours: 0.26 nats more than at S") for line in printed(report, 100))
    same = with_risk(scored(), start_here=3e-3, start_excess=0.1, expected_excess=0.12)
    assert "more than at S" not in "\n".join(printed(same, 100))


@pytest.mark.parametrize("name", ["text", "full", "markdown", "html"])
def test_a_start_above_the_safe_line_is_said_in_one_clause(name):
    said = "the best bet (S) is above the safe line (X)"
    above = with_risk(scored(), start_here=1e-3, do_not_exceed=9.9e-4, likely_edge=5e-3)
    below = with_risk(scored(), start_here=1e-3, do_not_exceed=1.01e-3, likely_edge=5e-3)
    assert said in " ".join(render(above, name).split())
    assert said not in " ".join(render(below, name).split())


@pytest.mark.parametrize("start", [6e-4, 1e-94, 1e94])
def test_no_mark_of_the_scale_hides_another(start):
    near = {"do_not_exceed": 1.001 * start, "likely_edge": 1.002 * start}
    report = with_risk(scored(6e-4), start_here=start, **near)
    (scale,) = [line for line in printed(report, 100) if "──" in line]
    assert all(mark in scale.split("  ●")[0] for mark in "SXE●")


@pytest.mark.parametrize("name", ["text", "full", "markdown", "html"])
def test_noise_in_front_of_trained_weights_is_said(name):
    def shown(probe: str, kind: str) -> str:
        start = Start(kind=kind, because="a test")
        target = scored().target.model_copy(update={"probe": probe, "start": start})
        return " ".join(render(scored().model_copy(update={"target": target}), name).split())

    said = "random token ids"
    assert said in shown(f"16 × 128 tokens, {BYTES_SPREAD}", "stored")
    assert said not in shown(f"16 × 128 tokens, {BYTES_SPREAD}", "scratch")
    assert said not in shown("16 × 128 tokens, the target's tokenizer", "stored")


def test_a_risk_says_how_much_of_it_is_divergence():
    risky = with_risk(scored(3.0), probability_diverged=0.2)
    assert ", P(diverged) 20%" in printed(risky, 200)[0]
    assert "P(diverged)" not in printed(with_risk(scored(), probability_diverged=0.0), 200)[0]
    untold = with_risk(scored(3.0), probability_diverged=None)
    assert "P(diverged)" not in phrases.answer(untold, untold.seeds[0].risk)


def test_the_reason_for_no_answer_is_printed_whole():
    reason = f"no run in the data {'has this optimizer and ' * 6}its end"
    untold = with_risk(scored(), verdict="cannot tell", reasons=[reason])
    assert reason in " ".join(" ".join(printed(untold, 60)).split())


def test_certainty_is_not_rounded_up():
    sure = with_risk(scored(3.0), probability_failed=0.9999, probability_failed_low=0.0001)
    assert "P(failed) >99% [<1%, " in printed(sure, 100)[0]


def test_colors_are_those_of_verdict_and_level():
    def styles(case: str) -> list[str]:
        page = rendering(made(case), "text")
        return [
            str(part.style)
            for line in page.renderables
            if isinstance(line, Line)
            for part in (*line.text.spans, line.text)
        ]

    assert "bold green" in styles("ok")
    assert "bold red" in styles("risk")
    assert "bold yellow" in styles("caution")
    assert "bold green" not in styles("caution") + styles("risk")
