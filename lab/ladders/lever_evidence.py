"""Set the sizes of levers beside public runs that pull the same lever: signs and sizes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from lab.ladders.edge_ladders import lab_inputs
from lab.ladders.lever_fit import kind_of_ladder, ordered_pairs, shipped_plans
from lab.ladders.markdown import table
from lab.ladders.pairs import LadderPairs
from rksp.classifiers.edge_model import EdgePredictor, load_edge_model
from rksp.classifiers.levers.catalogue import BY_NAME, Kind, Lever
from rksp.classifiers.levers.effects import LeverTable
from rksp.ground.errors import InputError
from rksp.ground.files import read_text
from rksp.recipe.optimizers.table import optimizer_named

_LARGEST = 50_000_000  # bytes
_SLIGHT = 0.05  # decades, or share of the runs: a smaller difference has no sign
_SEEN = 0.005  # decades; a model that says less has no column for a lever
_DASH = "–"
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What a paper says of a lever.

    Attributes:
        lever: Name in the catalogue.
        shift: Shift of the edge in decades; where only its sign is told, that sign times infinity.
        said: What was measured, and where.
    """

    lever: str
    shift: float
    said: str


PUBLISHED = (
    Published(
        lever="qk_norm",
        shift=math.log10(40e-3 / 6e-3),
        said="830 M parameters: trains up to 6e-3 without, 40e-3 with (arXiv 2410.16682)",
    ),
    Published(
        lever="qk_norm",
        shift=math.inf,
        said="4.8 B fails at 1e-2 without; 1.2 B trains at 0.3 with (Wortsman et al., 2023)",
    ),
    Published(
        lever="z_loss",
        shift=math.inf,
        said="2.4 M at 0.1: the output logits drift without, not with (Wortsman et al., 2023)",
    ),
    Published(
        lever="warmup",
        shift=math.inf,
        said="a longer one lowers the sensitivity to the rate (Wortsman et al., 2023)",
    ),
    Published(
        lever="batch",
        shift=0.0,
        said="256 to 1,024 sequences change no sensitivity (Wortsman et al., 2023)",
    ),
    Published(
        lever="batch",
        shift=-0.02 * math.log10(4),
        said="61 edges of 215 M to 1 B: batch to the power of -0.02 (arXiv 2503.04715, our fit)",
    ),
    Published(
        lever="muon",
        shift=math.log10(0.0200 / 0.0226),
        said="width 512, 10,240 and 20,480 steps: fails from 0.0226 under AdamW, warmed up for "
        "2,000, from 0.0200 in its scale under Muon, not warmed up (arXiv 2509.02046, our reading)",
    ),
)
# By lever: how much of it a public run has, and whether more of that number is more of the lever.
_AMOUNTS: dict[str, tuple[Callable[[Row], float | None], int]] = {
    "warmup": (lambda recipe: recipe["warmup_steps"], 1),
    "beta1": (lambda recipe: recipe["betas"][0], -1),
    "beta2": (lambda recipe: recipe["betas"][1], -1),
    "batch": (lambda recipe: recipe["batch_tokens"], 1),
    "weight_decay": (lambda recipe: recipe["weight_decay"], 1),
    "clip": (lambda recipe: recipe["clip"], -1),
}


def read_rows(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Read files of public runs, one JSON object a line.

    Raises:
        InputError: A file cannot be read, or a line is no object.
    """
    rows = []
    for path in paths:
        for number, line in enumerate(read_text(path, _LARGEST).splitlines(), 1):
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if not isinstance(row, dict):
                raise InputError(f"{path}, line {number}, is not a JSON object.")
            rows.append(row)
    return rows


def lever_card(sizes: LeverTable, rows: Sequence[Row] = ()) -> str:
    """Write what is known of every lever, and what public runs say, as Markdown.

    Args:
        sizes: The sizes.
        rows: Public runs.
    """
    parts = [
        f"{sizes.ladders:,} ladders ({sizes.digest}).",
        _sizes(sizes),
        "### Beside the model of the edge",
        _modelled(sizes, load_edge_model()),
        "### Beside papers",
        _papers(sizes),
    ]
    if one_factor := _one_factor(sizes, [row for row in rows if "changed" in row]):
        parts += ["### Beside public runs that change one setting at a fixed rate", one_factor]
    ladders = [row for row in rows if isinstance(row.get("warmup_steps"), list)]
    if ladders:
        parts += ["### Beside public ladders of warm-ups", _warmups(sizes, ladders)]
    return "\n\n".join(parts) + "\n"


def _sizes(sizes: LeverTable) -> str:
    """Write the sizes, by kind; of other kinds only where three families were measured."""
    header = (
        *("lever", "kind", "pairs", "families", "edge, decades", "holds", "missed by", "covered"),
        *("best rate", "loss", "time a step", "saved", "restored", "named"),
    )
    lines = [
        (
            *(name, kind, str(size.pairs), str(len(size.families))),
            _shift(size.shift, size.low, size.high),
            *(_share(size.holds), _number(size.misses, ".2f"), _share(size.covered)),
            *(_number(size.best, "+.2f"), _number(size.loss, "+.2f"), f"{size.cost:.2f}"),
            f"{size.saved} of {size.failing}",
            f"{size.restored} of {size.failed}",
            "yes" if size.is_sound and not BY_NAME[name].held_back else "no",
        )
        for kind, found in sizes.sizes.items()
        for name, size in found.items()
        if kind == "decoder" or not size.pooled
    ]
    return table(header, lines)


def model_shifts(
    lever: Lever, plans: Iterable[LadderPairs], kind: Kind, model: EdgePredictor
) -> list[float]:
    """Return by how much a model says that a lever moves the edge, by pair of the plans.

    The family, which is no lever, stays.
    """
    found = []
    for plan in plans:
        for pair in ordered_pairs(lever, plan):
            if kind_of_ladder(pair.plain) != kind:
                continue
            plain, changed = (lab_inputs(spec) for spec in (pair.plain, pair.changed))
            changed = replace(changed, family=plain.family)
            found.append(model.predict(changed).log_edge - model.predict(plain).log_edge)
    return found


def _modelled(sizes: LeverTable, model: EdgePredictor) -> str:
    """Write what the model says of the levers that it has columns for, beside their sizes."""
    header = ("lever", "kind", "measured, decades", "the model", "inside")
    lines, plans = [], shipped_plans()
    for kind, found in sizes.sizes.items():
        for name, size in found.items():
            said = median(model_shifts(BY_NAME[name], plans, kind, model))
            if (size.pooled and kind != "decoder") or abs(said) < _SEEN:
                continue
            inside = _DASH
            if size.low is not None and size.high is not None:
                inside = "yes" if size.low <= said <= size.high else "no"
            shown = _shift(size.shift, size.low, size.high)
            lines.append((name, kind, shown, f"{said:+.2f}", inside))
    return table(header, lines)


def _papers(sizes: LeverTable) -> str:
    header = ("lever", "lab, decades", "paper, decades", "same sign", "what was measured")
    lines = []
    for one in PUBLISHED:
        own = _own(sizes, one.lever)
        shown = f"{one.shift:+.2f}" if math.isfinite(one.shift) else "+" if one.shift > 0 else "-"
        lines.append((one.lever, _number(own, "+.2f"), shown, _agree(own, one.shift), one.said))
    return table(header, lines)


def _one_factor(sizes: LeverTable, rows: Sequence[Row]) -> str:
    """Write the failures and the loss of public runs with more and with less of a lever."""
    bases = {row["ladder"]: row["recipe"] for row in rows if row["changed"] == "Baseline"}
    kin = [
        row
        for row in rows
        if row["ladder"] in bases and row["baseline_loss"] is not None and _is_kin(row)
    ]
    lines = []
    for lever, (amount, direction) in _AMOUNTS.items():
        more: list[Row] = []
        less: list[Row] = []
        for row in kin:
            now, before = amount(row["recipe"]), amount(bases[row["ladder"]])
            if now is not None and before is not None and now != before:
                (more if (now > before) == (direction > 0) else less).append(row)
        if more and less:
            rises = _failing(less) - _failing(more)
            own = _own(sizes, lever)
            agree = _agree(own, rises)
            lines.append((lever, _number(own, "+.2f"), *_told(more), *_told(less), agree))
    header = (
        *("lever", "lab, decades", "runs with more", "failed", "loss"),
        *("runs with less", "failed", "loss", "same sign"),
    )
    return table(header, lines) if lines else ""


def _is_kin(row: Row) -> bool:
    """Return whether a run was trained with AdamW or its kin, as every pair of the lab was."""
    spec, _ = optimizer_named(row["recipe"]["optimizer"])
    return spec is not None and spec.is_adam_kin


def _failing(rows: Sequence[Row]) -> float:
    return sum(bool(row["failed"]) for row in rows) / len(rows)


def _told(rows: Sequence[Row]) -> tuple[str, str, str]:
    changes = [
        row["final_loss"] - row["baseline_loss"] for row in rows if row["final_loss"] is not None
    ]
    loss = _number(median(changes), "+.3f") if changes else _DASH
    return str(len(rows)), f"{_failing(rows):.0%}", loss


def _warmups(sizes: LeverTable, rows: Sequence[Row]) -> str:
    """Write how the final loss of public models changes with the warm-up at one rate."""
    changes = []
    for row in rows:
        known = [
            (steps, loss)
            for steps, loss in zip(row["warmup_steps"], row["final_loss"], strict=True)
            if loss is not None
        ]
        if len(known) > 1:
            (_, first), (_, last) = min(known), max(known)
            changes.append(last - first)
    lower = sum(change < 0 for change in changes)
    header = ("lever", "lab, decades", "models", "end lower with the longest", "loss, median")
    own = _number(_own(sizes, "warmup"), "+.2f")
    count = f"{lower} of {len(changes)}"
    return table(header, [("warmup", own, str(len(rows)), count, f"{median(changes):+.3f}")])


def _own(sizes: LeverTable, lever: str) -> float | None:
    size = sizes.size("decoder", lever)
    return None if size is None else size.shift


def _agree(own: float | None, other: float) -> str:
    if own is None:
        return _DASH
    signs = [0 if abs(x) < _SLIGHT else math.copysign(1, x) for x in (own, other)]
    return "yes" if signs[0] == signs[1] else "no"


def _shift(shift: float, low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return f"{shift:+.2f}"
    return f"{shift:+.2f} [{low:+.2f}, {high:+.2f}]"


def _share(value: float | None) -> str:
    return _DASH if value is None else f"{value:.0%}"


def _number(value: float | None, form: str) -> str:
    return _DASH if value is None else format(value, form)
