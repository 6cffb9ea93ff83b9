"""The full report on a terminal, with every measurement."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from rich.console import Group
from rich.table import Table
from rich.text import Text

from rksp.documents.finding import Finding
from rksp.documents.score import (
    ComparisonReport,
    CurvePoint,
    LayerReport,
    ScoreReport,
    SeedReport,
)
from rksp.recipe_files.table_text import recipe_table
from rksp.report import words
from rksp.report.issues import deciding
from rksp.spectra.status import Status

_BARS = "▁▂▃▄▅▆▇█"
_MOST_FINDINGS = 6
_QUARTERS = range(-24, 4)  # of decades, from 1e-6 to 6
LEVEL_STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}
STYLES = {
    "ok": "bold green",
    "caution": "bold yellow",
    "risk": "bold red",
    "cannot tell": "bold yellow",
}


def render(report: ScoreReport) -> Group:
    """Render the verdict, then the numbers behind it, then what could not be measured."""
    seed = deciding(report)
    parts = [_headline(report), _verdict(report, seed)]
    if report.findings:
        parts.append(_findings(report.findings))
    if report.baseline:
        parts.append(_changes(report.baseline))
    if seed.spectra.layers:
        parts += [Text(), _spectra(seed)]
    parts += [Text(), _forward(seed)]
    if report.recipe_origins:
        parts += [Text(), *_recipe(report, seed)]
    notes = words.notes(report, seed)
    if notes:
        parts += [Text(), *(Text(f"· {note}", style="dim") for note in notes)]
    return Group(*parts)


def render_comparison(changed: ComparisonReport) -> Group:
    """Render two reports: verdicts, changed issues, then numbers and settings."""
    table = Table(box=None, pad_edge=False, padding=(0, 2), header_style="bold")
    for title in ("", "old", "new"):
        table.add_column(title, justify="right" if title else "left")
    for name, pair in changed.numbers.items():
        table.add_row(name, *(_number(value, "{:.3g}") for value in pair))
    for name, pair in changed.settings.items():
        table.add_row(name, *("–" if value is None else Text(value) for value in pair))
    return Group(
        Text(f"{changed.verdict[0]} → {changed.verdict[1]}", style="bold"),
        _changes(changed),
        table,
        *(Text(f"· {note}", style="dim") for note in changed.notes),
    )


def _headline(report: ScoreReport) -> Text:
    target = report.target
    return Text.assemble(
        (target.name, "bold"),
        f", {words.size_and_weights(report)}\n",
        (f"{words.stream(report)}; probe: {target.probe}\n", "dim"),
    )


def _verdict(report: ScoreReport, seed: SeedReport) -> Group:
    risk = seed.risk
    if risk is None:
        return Group(Text(f"not assessed: {seed.risk_missing}", style="bold yellow"))
    title = (risk.verdict.upper(), STYLES[risk.verdict])
    if risk.verdict == "cannot tell":
        why = f"  {'; '.join(risk.reasons)}"
        return Group(Text.assemble(title, why), Text(f"  {words.alone(report, risk)}", "dim"))
    lines = [Text.assemble(title, "  ", words.answer(report, risk))]
    lines.append(Text(f"  {words.rates(risk)}"))
    if report.recipe.learning_rate is not None:
        for c in risk.contributions[:3]:
            if abs(c.decades) >= 0.05:
                word = "raises" if c.decades > 0 else "lowers"
                factor = 10 ** abs(c.decades)
                lines.append(Text(f"  {c.meaning} {word} the edge by a factor of {factor:.2g}"))
    for sentence in filter(None, (risk.counterfactual, words.margin(report, risk))):
        lines.append(Text(f"  {sentence}", style="bold"))
    if risk.curve:
        lines.append(Text(f"  {_curve(risk.curve)}", "dim"))
    return Group(*lines)


def _findings(findings: list[Finding]) -> Group:
    """Render one line per finding, at most six; errors come first."""
    lines = [
        Text.assemble(
            "  ",
            (f"{finding.level} {finding.code}", LEVEL_STYLES[finding.level]),
            f" {finding.message} ",
            (finding.fix, "italic"),
        )
        for finding in findings[:_MOST_FINDINGS]
    ]
    if len(findings) > _MOST_FINDINGS:
        lines.append(Text(f"  and {len(findings) - _MOST_FINDINGS} more in the JSON report", "dim"))
    return Group(*lines)


def _recipe(report: ScoreReport, seed: SeedReport) -> Iterator[Text]:
    """Yield the recipe with its origins, and the assumptions that decide the verdict."""
    for row in recipe_table(dict(report.recipe), report.recipe_origins):
        yield Text(row, no_wrap=True, overflow="ellipsis")
    decisive = words.decisive(seed)
    if decisive:
        yield Text(decisive, style="yellow")


def _changes(changed: ComparisonReport) -> Group:
    """Render how many issues are new since the baseline, and which."""
    states = Counter(change.state for change in changed.changes)
    lines = [Text(f"  since the baseline: {words.states(states)}")]
    lines += [
        Text.assemble("  ", (change.state, "bold"), f" {change.code} {change.message}")
        for change in changed.changes
        if change.state != "unchanged"
    ]
    return Group(*lines)


def _spectra(seed: SeedReport) -> Group:
    spectra = seed.spectra
    score = "not measured" if spectra.published_score is None else f"{spectra.published_score:.3f}"
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    for title in ("block", "M≈1", "M>1", "ρ", "κ(V)", "η", "update", "status"):
        table.add_column(title, justify="left" if title in ("block", "status") else "right")
    for layer in _shown(spectra.layers):
        table.add_row(*layer)
    masses = [layer.near_unit_mass for layer in spectra.layers]
    return Group(
        Text.assemble(
            ("Residual-stream spectra", "bold"),
            f"  near-unit mass {score} ({spectra.variant}), over {spectra.coverage:.0%} of the "
            f"blocks  {_sparkline(masses)}",
        ),
        table,
    )


def _shown(layers: list[LayerReport]) -> list[tuple[str, ...]]:
    """Return rows for all blocks, or of a deep model for the ends and conspicuous blocks."""
    if len(layers) <= 16:
        return [_row(layer) for layer in layers]
    ends = {0, 1, 2, len(layers) - 2, len(layers) - 1}
    odd = {i for i, layer in enumerate(layers) if layer.status != Status.OK.value}
    radii = sorted(range(len(layers)), key=lambda i: -(layers[i].spectral_radius or 0.0))
    kept = sorted(ends | set(sorted(odd)[:4]) | set(radii[:3]))
    rows: list[tuple[str, ...]] = []
    last = -1
    for i in kept:
        if i > last + 1:
            rows.append((f"  … {i - last - 1} more", *[""] * 7))
        rows.append(_row(layers[i]))
        last = i
    return rows


def _row(layer: LayerReport) -> tuple[str, ...]:
    status = "" if layer.status == Status.OK.value else layer.status.replace("_", " ")
    return (
        layer.name,
        _number(layer.near_unit_mass),
        _number(layer.expansive_mass),
        _number(layer.spectral_radius),
        _number(layer.eigenvector_condition, "{:.3g}"),
        _number(layer.nonlinearity),
        _number(layer.update_ratio),
        status,
    )


def _forward(seed: SeedReport) -> Table:
    forward, response = seed.forward, seed.response
    table = Table(box=None, pad_edge=False, padding=(0, 2), show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column(style="dim")

    def add(name: str, value: float | None, meaning: str, form: str = "{:.3g}") -> None:
        if value is not None:
            table.add_row(name, form.format(value), meaning)

    guess = (
        ""
        if forward.uniform_loss is None
        else f"the loss of a uniform guess is {forward.uniform_loss:.3g}"
    )
    add("initial loss", forward.loss, guess)
    add("logit std", forward.logit_std, "over the classes")
    add("attention logit std", forward.attention_logit_std, "in the layer where it is largest")
    add(
        "attention entropy",
        forward.attention_entropy,
        "in the layer where it is lowest; 1 is uniform",
    )
    add("router entropy", forward.router_entropy, "in the layer where it is lowest; 1 is uniform")
    add(
        "largest activation",
        forward.activation_absmax,
        f"{forward.activation_name}; fp16 overflows at 65504",
    )
    if response is not None:
        add("gradient norm", response.grad_norm, "of the first batch")
        add("critical rate", response.critical_rate, "a larger first step raises the loss")
    return table


def _sparkline(values: list[float | None]) -> str:
    """Return one character per block, from 0 to 1; a dot if nothing was measured."""
    if len(values) > 60:
        return ""
    return "".join("·" if v is None else _BARS[min(7, int(v * 8))] for v in values)


def _curve(curve: list[CurvePoint]) -> str:
    """Return P(failed) by learning rate, with one character per quarter of a decade.

    A curve that reaches none of them is shown whole.
    """
    shown = [p for p in (_nearest(curve, quarter / 4) for quarter in _QUARTERS) if p] or curve
    bars = "".join(_BARS[min(7, int(p.probability * 8))] for p in shown)
    ends = f"{shown[0].learning_rate:.0e} to {shown[-1].learning_rate:.0e}"
    return f"P(failed) from {ends}: {bars}"


def _nearest(curve: list[CurvePoint], decade: float) -> CurvePoint | None:
    """Return the point nearest to 10**decade; None if none is within an eighth of a decade."""
    found = min(curve, key=lambda point: abs(math.log10(point.learning_rate) - decade))
    return found if abs(math.log10(found.learning_rate) - decade) < 1 / 8 else None


def _number(value: float | None, form: str = "{:.2f}") -> str:
    return "–" if value is None else form.format(value)
