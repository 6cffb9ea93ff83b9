"""Markdown: a job summary or a comment on a merge request."""

from __future__ import annotations

import re
from collections import Counter

from rksp.documents.score import (
    ComparisonReport,
    LayerReport,
    RiskAssessment,
    ScoreReport,
    SeedReport,
)
from rksp.report import words
from rksp.report.issues import deciding

_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~&])")
_MARKS = {"error": "🔴", "warning": "🟠", "note": "🔵"}
_COLUMNS = (
    ("M≈1", "near_unit_mass", ".2f"),
    ("M>1", "expansive_mass", ".2f"),
    ("ρ", "spectral_radius", ".2f"),
    ("κ(V)", "eigenvector_condition", ".3g"),
    ("η", "nonlinearity", ".2f"),
    ("gain", "energy_gain", ".2f"),
    ("update", "update_ratio", ".2f"),
    ("rms in", "rms_in", ".3g"),
    ("rms out", "rms_out", ".3g"),
)


def render(report: ScoreReport) -> str:
    """Render the verdict and what to do, with the rest folded away."""
    seed = deciding(report)
    parts = [
        f"## rksp: {words.TITLES[report.verdict]} — {code(report.target.name)}",
        f"{words.size_and_weights(report)}; {plain(words.stream(report))}; "
        f"probe: {plain(report.target.probe)}",
        *_verdict(report, seed),
    ]
    if report.gate and report.gate.failed:
        broke = "\n".join(f"- {plain(reason)}" for reason in report.gate.reasons)
        parts.append(f"**Failed** (`--fail-on {plain(report.gate.fail_on)}`):\n\n{broke}")
    if report.findings:
        parts.append(_findings(report))
    if report.baseline:
        parts.append(comparison(report.baseline))
    if seed.risk and seed.risk.contributions and report.recipe.learning_rate is not None:
        parts.append(_folded("Reasons", _contributions(seed.risk)))
    if seed.spectra.layers:
        parts.append(_folded(f"Blocks ({len(seed.spectra.layers)})", _layers(seed.spectra.layers)))
    if report.recipe_origins:
        parts += [f"> {plain(line)}" for line in (words.decisive(seed), report.assumed) if line]
        rows = [
            (code(n), plain(value), plain(said)) for n, value, said in words.recipe_rows(report)
        ]
        parts.append(_folded("Recipe", table(("Field", "Value", "From"), rows)))
    parts.append(_folded("Evidence", _evidence(report, seed)))
    parts.append(_folded("Provenance", _provenance(report)))
    return "\n\n".join(parts) + "\n"


def comparison(changed: ComparisonReport) -> str:
    """Render what changed between two reports."""
    counts = words.states(Counter(change.state for change in changed.changes))
    parts = [
        f"### Compared with the baseline: {counts}",
        f"Verdict {changed.verdict[0]} → {changed.verdict[1]}.",
    ]
    if changed.changes:
        parts.append(
            table(
                ("", "Issue", "Message"),
                [
                    (c.state, " ".join(filter(None, (c.code, code(c.layer)))), plain(c.message))
                    for c in changed.changes
                ],
            )
        )
    if changed.numbers:
        rows = [(n, _number(old), _number(new)) for n, (old, new) in changed.numbers.items()]
        parts.append(table(("Number", "Old", "New"), rows))
    if changed.settings:
        rows = [(n, plain(old), plain(new)) for n, (old, new) in changed.settings.items()]
        parts.append(table(("Setting", "Old", "New"), rows))
    parts += [f"> {plain(note)}" for note in changed.notes]
    return "\n\n".join(parts)


def render_comparison(changed: ComparisonReport) -> str:
    """Render the comparison as a document of its own."""
    return comparison(changed) + "\n"


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
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
    risk = seed.risk
    if risk is None:
        return [f"Not assessed: {plain(seed.risk_missing)}"]
    if risk.verdict == "cannot tell":
        why = f"**rksp cannot tell:** {plain('; '.join(risk.reasons))}"
        return [why, f"({words.alone(report, risk)})"]
    parts = [f"**{words.answer(report, risk)}**"]
    parts.append(f"{words.sentence(words.rates(risk))}.")
    for sentence in filter(None, (risk.counterfactual, words.margin(report, risk))):
        parts.append(f"➜ {plain(sentence)}")
    return parts


def _findings(report: ScoreReport) -> str:
    rows = [
        (
            f"{_MARKS[finding.level]} {finding.level}",
            f"{finding.code} {code(finding.layer)}".strip(),
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
            *(_number(getattr(layer, field), form) for _, field, form in _COLUMNS),
            layer.status.replace("_", " "),
        )
        for layer in layers
    ]
    return table(("Block", *(title for title, _, _ in _COLUMNS), "Status"), rows)


def _evidence(report: ScoreReport, seed: SeedReport) -> str:
    forward, response = seed.forward, seed.response
    rows = [
        ("initial loss", _number(forward.loss)),
        ("loss of a uniform guess", _number(forward.uniform_loss)),
        ("logit std", _number(forward.logit_std)),
        ("attention logit std", _number(forward.attention_logit_std)),
        ("attention entropy", _number(forward.attention_entropy)),
        ("router entropy", _number(forward.router_entropy)),
        ("largest activation", _number(forward.activation_absmax)),
        ("near-unit mass", _number(seed.spectra.published_score)),
    ]
    if response is not None:
        rows += [
            ("gradient norm", _number(response.grad_norm)),
            ("critical rate", _number(response.critical_rate)),
        ]
    measured = [row for row in rows if row[1] != "–"]
    listed = "\n".join(f"- {plain(note)}" for note in words.notes(report, seed))
    return "\n\n".join(filter(None, (table(("Measured", "Value"), measured), listed)))


def _provenance(report: ScoreReport) -> str:
    rows = [(plain(name), code(str(value))) for name, value in sorted(report.provenance.items())]
    rows += [(plain(step), f"{seconds:.3f} s") for step, seconds in report.timings.items()]
    return table(("", ""), rows)


def _number(value: float | None, form: str = ".3g") -> str:
    return "–" if value is None else format(value, form)


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"
