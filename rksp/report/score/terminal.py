"""The full report on a terminal, with every measurement."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

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
from rksp.ground.text import short
from rksp.recipe_files.said.origin import recipe_table
from rksp.report import words
from rksp.report.issues import deciding
from rksp.report.score.change import change
from rksp.report.score.measured import COLUMNS, RANGE_NOTE, measured, usual
from rksp.report.score.page import LEVEL_STYLES, STYLES
from rksp.spectra.status import Status

_BARS = "▁▂▃▄▅▆▇█"
_QUARTERS = range(-24, 4)  # of decades, from 1e-6 to 6


def render(report: ScoreReport) -> Group:
    """Render the verdict, then the numbers behind it, then what could not be measured."""
    seed = deciding(report)
    parts: list[Any] = [_headline(report), _verdict(report, seed)]
    if report.findings:
        parts.append(_findings(report.findings))
    if report.baseline:
        parts.append(_changes(report.baseline))
    if seed.spectra.layers:
        parts += [Text(), _spectra(seed)]
    if measured(seed):
        parts += [Text(), _measured(seed)]
    if report.recipe_origins:
        parts += [Text(), *_recipe(report, seed)]
    if report.own_runs is not None:
        from rksp.report.own_runs.terminal import notes as own_notes
        from rksp.report.own_runs.terminal import table

        parts += [Text(), Text("Your own runs", style="bold"), table(report.own_runs)]
        parts += [Text(f"· {note}", style="dim") for note in own_notes(report.own_runs)]
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
        table.add_row(name, *("–" if value is None else short(value) for value in pair))
    for name, said in changed.settings.items():
        table.add_row(name, *("–" if value is None else Text(value) for value in said))
    return Group(
        Text(f"{changed.verdict[0]} → {changed.verdict[1]}", style="bold"),
        _changes(changed),
        table,
        *(Text(f"· {note}", style="dim") for note in changed.notes),
    )


def _headline(report: ScoreReport) -> Text:
    target = report.target
    return Text.assemble(
        (words.training(report, target.name), "bold"),
        f", {words.size_and_weights(report)}\n",
        (f"{words.stream(report)}; probe: {target.probe}\n", "dim"),
    )


def _verdict(report: ScoreReport, seed: SeedReport) -> Group:
    risk, finding = seed.risk, words.reason(report)
    title = (words.TITLES[report.verdict], STYLES.get(report.verdict, "bold yellow"))
    because = f"{finding.level} {finding.code} ({finding.name}); " if finding else ""
    if risk is None:
        return Group(Text.assemble(title, f"  {because}{seed.risk_missing}"))
    if words.can_not_tell(risk):
        return Group(Text.assemble(title, f"  {because}{'; '.join(risk.reasons)}"))
    lines = [Text.assemble(title, f"  {because}{words.answer(report, risk)}")]
    lines += [Text(f"  {said}") for said in (words.rates(risk), words.crossed(risk)) if said]
    said = (words.learned(seed), *words.trained(report, seed), change(seed))
    lines += [Text(f"  {one}") for one in said if one]
    lines += [Text(f"  {one}", "dim") for one in risk.measuring_adds]
    if report.recipe.learning_rate is not None:
        for c in risk.contributions[:3]:
            if abs(c.decades) >= 0.05:
                word = "raises" if c.decades > 0 else "lowers"
                factor = 10 ** abs(c.decades)
                lines.append(Text(f"  {c.meaning} {word} the edge by a factor of {factor:.2g}"))
    for sentence in filter(None, (risk.counterfactual, words.margin(report, risk))):
        lines.append(Text(f"  {sentence}", style="bold"))
    lines += [Text(f"  {said}") for said in (words.applied(risk), words.levers(risk)) if said]
    if risk.curve:
        lines.append(Text(f"  {_curve(risk.curve)}", "dim"))
    return Group(*lines)


def _findings(findings: list[Finding]) -> Group:
    """Render one line per finding; errors come first."""
    lines = [
        Text.assemble(
            "  ",
            (f"{finding.level} {finding.code}", LEVEL_STYLES[finding.level]),
            f" {finding.message} ",
            (finding.fix, "italic"),
        )
        for finding in findings
    ]
    return Group(*lines)


def _recipe(report: ScoreReport, seed: SeedReport) -> Iterator[Text]:
    """Yield the recipe with its origins, and the assumptions that decide the verdict."""
    for row in recipe_table(dict(report.recipe), report.recipe_origins):
        yield Text(row, no_wrap=True, overflow="ellipsis")
    decisive = words.decisive(report, seed)
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
    spectra, shown = seed.spectra, [column for column in COLUMNS if column.is_brief]
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    table.add_column("block")
    for column in shown:
        table.add_column(column.title, justify="right")
    table.add_column("status")
    for row in _shown(spectra.layers):
        table.add_row(*row)
    table.add_row("usual", *map(usual, shown), style="dim")
    masses = [layer.near_unit_mass for layer in spectra.layers]
    return Group(
        Text.assemble(
            ("Residual-stream spectra", "bold"),
            f" ({spectra.variant}), coverage {spectra.coverage:.0%}  {_sparkline(masses)}",
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
            rows.append((f"  … {i - last - 1} more",))
        rows.append(_row(layers[i]))
        last = i
    return rows


def _row(layer: LayerReport) -> tuple[str, ...]:
    status = "" if layer.status == Status.OK.value else layer.status.replace("_", " ")
    numbers = [
        _number(getattr(layer, column.field), f"{{:{column.form}}}")
        for column in COLUMNS
        if column.is_brief
    ]
    return (layer.name, *numbers, status)


def _measured(seed: SeedReport) -> Group:
    """Render every measured number beside its healthy range."""
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    for title in ("measured", "value", "healthy", ""):
        table.add_column(title, justify="right" if title == "value" else "left")
    for row in measured(seed):
        table.add_row(row.word, short(row.value), row.healthy, Text(row.note))
    return Group(table, Text(RANGE_NOTE, style="dim"))


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
    ends = f"{short(shown[0].learning_rate, 1)} to {short(shown[-1].learning_rate, 1)}"
    return f"P(failed) from {ends}: {bars}"


def _nearest(curve: list[CurvePoint], decade: float) -> CurvePoint | None:
    """Return the point nearest to 10**decade; None if none is within an eighth of a decade."""
    found = min(curve, key=lambda point: abs(math.log10(point.learning_rate) - decade))
    return found if abs(math.log10(found.learning_rate) - decade) < 1 / 8 else None


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)
