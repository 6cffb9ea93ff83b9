"""Markdown: a job summary or a comment on a merge request."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from rksp.documents.finding import Finding
from rksp.documents.own_runs import HistoryReport
from rksp.documents.score import (
    ComparisonReport,
    LayerReport,
    RiskAssessment,
    ScoreReport,
    SeedReport,
)
from rksp.ground.model import definite
from rksp.ground.text import short
from rksp.report import words
from rksp.report.issues import deciding, place
from rksp.report.machines.listing import from_root
from rksp.report.score.measured import COLUMNS, RANGE_NOTE, measured, usual

_MOST_RUNS = 50  # of a ladder; JSON holds all
_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~&])")
_MARKS = {"error": "🔴", "warning": "🟠", "note": "🔵"}


def render(report: ScoreReport) -> str:
    """Render the verdict and what to do, with the rest folded away."""
    seed = deciding(report)
    parts = [
        f"## rksp: {words.TITLES[report.verdict]} — {code(report.target.name)}",
        words.size_and_weights(report),
        *_verdict(report, seed),
    ]
    if report.gate and report.gate.failed:
        broke = ", ".join(code(key) for key in report.gate.issues)
        parts.append(f"**Failed** (`--fail-on {plain(report.gate.fail_on)}`): {broke}")
    if report.findings:
        parts.append(_findings(report))
    if report.baseline:
        parts.append(comparison(report.baseline))
    if words.has_reasons(report, seed.risk):
        parts.append(_folded("Reasons", _contributions(definite(seed.risk))))
    if seed.spectra.layers:
        parts.append(_folded(f"Blocks ({len(seed.spectra.layers)})", _layers(seed.spectra.layers)))
    if report.own_runs is not None:
        parts.append(_folded("Your own runs", _own_runs(report.own_runs)))
    if report.recipe_origins:
        parts += [
            f"> {plain(line)}"
            for line in (words.unread(report), words.decisive(report, seed), report.assumed)
            if line
        ]
        rows = [
            (code(n), plain(value), plain(said)) for n, value, said in words.recipe_rows(report)
        ]
        parts.append(_folded("Recipe", table(("Field", "Value", "From"), rows)))
    parts.append(_folded("Evidence", _evidence(report, seed)))
    parts.append(_folded("Provenance", _provenance(report)))
    return "\n\n".join(parts) + "\n"


def comparison(changed: ComparisonReport) -> str:
    """Render what changed between two reports; what did not is only counted."""
    moved = [change for change in changed.changes if change.state != "unchanged"]
    numbers = {name: (old, new) for name, (old, new) in changed.numbers.items() if old != new}
    counts = words.states(Counter(change.state for change in changed.changes))
    parts = [
        f"### Compared with the baseline: {counts}",
        f"Verdict {changed.verdict[0]} → {changed.verdict[1]}.",
    ]
    if moved:
        parts.append(
            table(
                ("", "Issue", "Message"),
                [
                    (c.state, " ".join(filter(None, (c.code, code(c.layer)))), plain(c.message))
                    for c in moved
                ],
            )
        )
    if numbers:
        rows = [(n, number(old), number(new)) for n, (old, new) in numbers.items()]
        parts.append(table(("Number", "Old", "New"), rows))
    if changed.settings:
        rows = [(n, plain(old), plain(new)) for n, (old, new) in changed.settings.items()]
        parts.append(table(("Setting", "Old", "New"), rows))
    parts += [f"> {plain(note)}" for note in changed.notes]
    return "\n\n".join(parts)


def render_comparison(changed: ComparisonReport) -> str:
    """Render the comparison as a document of its own."""
    return comparison(changed) + "\n"


def table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a pipe table; cells are already Markdown."""
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def plain(text: str | None) -> str:
    """Escape text for Markdown: names come from untrusted files."""
    return "–" if text is None else _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def code(text: str) -> str:
    """Return a code span that is also valid inside a table; empty for empty text."""
    held = " ".join(text.split()).replace("`", "'").replace("|", "\\|")
    return f"`{held}`" if held else ""


def _verdict(report: ScoreReport, seed: SeedReport) -> list[str]:
    risk, finding = seed.risk, words.reason(report)
    parts = []
    if finding:
        parts.append(f"**{finding.level} {code(finding.key)}:** {plain(finding.message)}")
    if risk is None or words.can_not_tell(risk):
        said = (
            f"Not assessed: {plain(seed.risk_missing)}"
            if risk is None
            else f"**rksp cannot tell:** {plain('; '.join(risk.reasons))}"
        )
        is_open = words.sentence(words.open_gate(report))
        return [*parts, said, f"{is_open}."] if is_open else [*parts, said]
    parts += [f"**{words.answer(report, risk)}**", _rates(risk)]
    said_of_runs = [said for said in (words.learned(seed), *words.trained(report, seed)) if said]
    parts += [f"{words.sentence(said)}." for said in said_of_runs]
    if crossed := words.crossed(risk):
        parts.append(f"{words.sentence(crossed)}.")
    for sentence in filter(None, (risk.counterfactual, words.margin(report, risk))):
        parts.append(f"➜ {plain(sentence)}")
    if said := words.applied(risk):
        parts.append(f"{words.sentence(plain(said))}.")
    if risk.levers:
        parts.append(_levers(risk))
    return parts


def _own_runs(history: HistoryReport) -> str:
    rows = [
        (str(place), number(run.learning_rate), number(run.final_loss), run.label)
        for place, ladder in enumerate(history.ladders, start=1)
        for run in ladder.runs[:_MOST_RUNS]
    ]
    return table(("Ladder", "Rate", "Final loss", "Label"), rows)


def _levers(risk: RiskAssessment) -> str:
    """Render what would raise the edge, with its size and its price."""
    rows = [
        (
            plain(f"{one.title} {one.change}"),
            f"{short(one.factor, 2)}× [{short(one.low, 2)}, {short(one.high, 2)}]",
            f"{one.loss:+.2f} nats",
            f"{one.cost:.2f}×",
        )
        for one in risk.levers
    ]
    return table(("Would raise the edge", "By", "Final loss", "Time a step"), rows)


def _rates(risk: RiskAssessment) -> str:
    if risk.start_here is None or risk.published is not None:
        return f"{words.sentence(words.rates(risk))}."
    meaning = "the best result, in the median"
    if risk.start_excess is not None:
        meaning = f"the lowest expected loss, {risk.start_excess:.2f} nats above the best rate"
    rows = [
        ("**start here**", words.rate(risk.start_here), meaning),
        ("likely edge", words.rate(risk.likely_edge), "failure is as likely as success"),
        ("do not exceed", words.rate(risk.do_not_exceed), f"{risk.risk:.0%} of edges lie below"),
    ]
    return table(("Learning rate", "Value", "Meaning"), rows)


def _where(report: ScoreReport, finding: Finding) -> str:
    """Return the place of a finding, such as `train.yaml:3`; empty where no file is to blame."""
    stands = place(report, finding)
    return code(f"{from_root(stands[0])}:{stands[1]}") if stands else ""


def _findings(report: ScoreReport) -> str:
    rows = [
        (
            f"{_MARKS[finding.level]} {finding.level}",
            " ".join(filter(None, (finding.code, code(finding.layer), _where(report, finding)))),
            plain(finding.message),
            plain(finding.fix),
        )
        for finding in report.findings
    ]
    return "### Findings\n\n" + table(("Level", "Check", "Message", "Fix"), rows)


def _contributions(risk: RiskAssessment) -> str:
    rows = [
        (plain(c.meaning), "raises" if c.decades > 0 else "lowers", f"{10 ** abs(c.decades):.2f}")
        for c in risk.contributions
        if abs(c.decades) >= 0.05
    ]
    return table(("Reason", "Edge", "Factor"), rows)


def _layers(layers: list[LayerReport]) -> str:
    rows = [
        (
            code(layer.name),
            *(number(getattr(layer, column.field), column.form) for column in COLUMNS),
            layer.status.replace("_", " "),
        )
        for layer in layers
    ]
    rows.append(("usual", *map(usual, COLUMNS), ""))
    return table(("Block", *(column.title for column in COLUMNS), "Status"), rows)


def _evidence(report: ScoreReport, seed: SeedReport) -> str:
    about = f"{plain(words.stream(report))}; probe: {plain(report.target.probe)}"
    rows = [(m.word, number(m.value), m.healthy, plain(m.note)) for m in measured(seed)]
    parts = [about]
    if rows:
        parts += [table(("Measured", "Value", "Healthy", ""), rows), RANGE_NOTE]
    parts.append("\n".join(f"- {plain(note)}" for note in words.notes(report, seed)))
    return "\n\n".join(filter(None, parts))


def _provenance(report: ScoreReport) -> str:
    rows = [(plain(name), code(str(value))) for name, value in sorted(report.provenance.items())]
    rows += [(plain(step), f"{seconds:.3f} s") for step, seconds in report.timings.items()]
    return table(("", ""), rows)


def number(value: float | None, form: str = "") -> str:
    """Format a number, without a form in three digits; None is a dash."""
    if value is None:
        return "–"
    return format(value, form) if form else short(value)


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"
