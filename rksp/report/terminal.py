"""The report for a person at a terminal."""

from __future__ import annotations

import io
from collections import Counter

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from rksp.report import words
from rksp.report.issues import deciding
from rksp.report.schema import (
    ComparisonReport,
    FindingReport,
    LayerReport,
    Report,
    RiskReport,
    SeedReport,
)
from rksp.spectra.status import Status

_BARS = "▁▂▃▄▅▆▇█"
_MOST_FINDINGS = 6
_LEVEL_STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}
_STYLES = {"ok": "bold green", "risk": "bold red", "indeterminate": "bold yellow"}


def render(report: Report, console: Console) -> None:
    """Prints the verdict first, then the numbers behind it, then what could not be measured."""
    seed = deciding(report)
    console.print(_headline(report))
    console.print(_verdict(report, seed))
    if report.findings:
        console.print(_findings(report.findings))
    if report.baseline:
        console.print(_changes(report.baseline))
    console.print()
    console.print(_spectra(seed))
    console.print()
    console.print(_forward(seed))
    notes = words.notes(report, seed)
    if notes:
        console.print()
        console.print(Group(*(Text(f"· {note}", style="dim") for note in notes)))


def render_comparison(changed: ComparisonReport, console: Console) -> None:
    """Two reports: their verdicts, the issues that moved, then numbers and settings."""
    console.print(Text(f"{changed.verdict[0]} → {changed.verdict[1]}", style="bold"))
    console.print(_changes(changed))
    table = Table(box=None, pad_edge=False, padding=(0, 2), header_style="bold")
    for title in ("", "old", "new"):
        table.add_column(title, justify="right" if title else "left")
    for name, pair in changed.numbers.items():
        table.add_row(name, *(_number(value, "{:.3g}") for value in pair))
    for name, pair in changed.settings.items():
        table.add_row(name, *("–" if value is None else Text(value) for value in pair))
    console.print(table)
    for note in changed.notes:
        console.print(Text(f"· {note}", style="dim"))


def plain(report: Report) -> str:
    """The same without colors, 100 columns wide."""
    stream = io.StringIO()
    render(report, Console(file=stream, width=100, highlight=False, color_system=None))
    return stream.getvalue()


def _headline(report: Report) -> Text:
    target = report.target
    return Text.assemble(
        (target.name, "bold"),
        f", {words.size_and_weights(report)}\n",
        (f"blocks {words.blocks(report)}, width {target.width}; shown {target.probe}\n", "dim"),
    )


def _verdict(report: Report, seed: SeedReport) -> Group:
    risk = seed.risk
    if risk is None:
        return Group(Text(f"not assessed: {seed.risk_missing}", style="bold yellow"))
    title = (risk.verdict.upper(), _STYLES[risk.verdict])
    if risk.verdict == "indeterminate":
        why = f"  rksp cannot tell: {'; '.join(risk.reasons)}"
        return Group(Text.assemble(title, why), Text(f"  {words.alone(report, risk)}", "dim"))
    lines = [Text.assemble(title, "  ", words.answer(report, risk))]
    lines.append(Text(f"  {words.rates(risk)}"))
    if report.recipe.learning_rate is not None:
        for meaning, share in risk.contributions[:3]:
            if abs(share) >= 0.05:
                word = "raises" if share > 0 else "lowers"
                lines.append(Text(f"  {meaning} {word} the log-odds by {abs(share):.1f}"))
    for sentence in filter(None, (risk.counterfactual, words.margin(report, risk))):
        lines.append(Text(f"  {sentence}", style="bold"))
    lines.append(
        Text(f"  P(failed) from {_lowest(risk):.0e} to {_highest(risk):.0e}: {_curve(risk)}", "dim")
    )
    return Group(*lines)


def _findings(findings: list[FindingReport]) -> Group:
    """One line each, as many as can be read; errors come first."""
    lines = [
        Text.assemble(
            "  ",
            (f"{finding.level} {finding.code}", _LEVEL_STYLES[finding.level]),
            f" {finding.message} ",
            (finding.fix, "italic"),
        )
        for finding in findings[:_MOST_FINDINGS]
    ]
    if len(findings) > _MOST_FINDINGS:
        lines.append(Text(f"  and {len(findings) - _MOST_FINDINGS} more, see the JSON", "dim"))
    return Group(*lines)


def _changes(changed: ComparisonReport) -> Group:
    """How many issues are new since the baseline, and which."""
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
    """All blocks of a shallow model; of a deep one the ends and those that stand out."""
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

    add("initial loss", forward.loss, f"a uniform guess has {forward.uniform_loss or 0:.3g}")
    add("logit std", forward.logit_std, "over the classes")
    add("attention logit std", forward.attention_logit_std, "largest of the layers")
    add("attention entropy", forward.attention_entropy, "lowest layer's; 1 is uniform")
    add("router entropy", forward.router_entropy, "lowest layer's; 1 is uniform")
    add(
        "largest activation",
        forward.activation_absmax,
        f"{forward.activation_name}; fp16 overflows at 65504",
    )
    if response is not None:
        add("gradient norm", response.grad_norm, "at initialization")
        add("critical rate", response.critical_rate, "one step further raises the loss")
    return table


def _sparkline(values: list[float | None]) -> str:
    """One character a block, from 0 to 1; a dot where nothing was measured."""
    if len(values) > 60:
        return ""
    return "".join("·" if v is None else _BARS[min(7, int(v * 8))] for v in values)


def _curve(risk: RiskReport) -> str:
    return "".join(_BARS[min(7, int(p * 8))] for _, p, _, _ in risk.curve[20:160:5])


def _lowest(risk: RiskReport) -> float:
    return risk.curve[20][0]


def _highest(risk: RiskReport) -> float:
    return risk.curve[155][0]


def _number(value: float | None, form: str = "{:.2f}") -> str:
    return "–" if value is None else form.format(value)
