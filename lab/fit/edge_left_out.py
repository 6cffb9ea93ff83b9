"""The tables that lead: whole families, tasks and sources left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from lab.fit.edge_fit import Columns, fit_edge_model
from lab.fit.edge_ladder import BOUNDS, LAB, OPENLM, PAIRS, PUBLISHED, EdgeLadder
from lab.fit.edge_scores import Prediction
from lab.fit.edge_spreads import with_spreads_of
from rksp.classifiers.edge_inputs import ADAM_FAMILY, MEASURED_COLUMNS
from rksp.classifiers.edge_model import EdgeModel
from rksp.classifiers.metrics import auroc, ece
from rksp.ground.model import definite

Key = Callable[[EdgeLadder], str]
FOLDS = 8


def predicted(
    ladders: Sequence[EdgeLadder], model: EdgeModel, key: Key, measured: Columns = MEASURED_COLUMNS
) -> dict[str, list[Prediction]]:
    """Return predictions of every ladder that has a key, by the key, all of which was left out.

    Args:
        ladders: Of the lab and of public sources.
        model: Whose spreads are used.
        key: "" for what is never left out.
        measured: The columns of measurements that are used.
    """
    found = {}
    for name in sorted({key(x) for x in ladders} - {""}):
        rest = [x for x in ladders if key(x) != name]
        seen = with_spreads_of(fit_edge_model(rest, measured, spreads=False), model)
        found[name] = [Prediction.of(seen, x) for x in ladders if key(x) == name]
    return found


def source_of(ladder: EdgeLadder) -> str:
    """Return the public source of a ladder; "" where it has none that is left out."""
    return "" if ladder.source in (LAB, PUBLISHED, OPENLM) else ladder.source


def shape_of(ladder: EdgeLadder) -> str:
    """Return the shape of a ladder of a public source; "" of others."""
    return ladder.shape if source_of(ladder) else ""


def keys(ladders: Sequence[EdgeLadder]) -> dict[str, Key]:
    """Return what is left out together, by its title; folds are eighths of the lab's ladders."""
    names = sorted(x.name for x in ladders if x.source == LAB and x.group != PAIRS)
    fold = {name: str(number % FOLDS) for number, name in enumerate(names)}
    of_lab: Callable[[Key], Key] = lambda key: lambda x: key(x) if x.source == LAB else ""
    return {
        "public sources": source_of,
        "public sources but Step Law": lambda x: "" if x.source == "steplaw" else source_of(x),
        "families of the lab": of_lab(lambda x: x.inputs.family),
        "tasks of the lab": of_lab(lambda x: x.task),
        "ladders of the lab": of_lab(lambda x: fold.get(x.name, "")),
    }


def teams_table(ladders: Sequence[EdgeLadder], model: EdgeModel) -> str:
    """Return a row for each public team left out whole, beside the constant of the other teams.

    The constant is the median of the other teams' median edges, of AdamW and its kin with norms and
    the next token as the objective. A block is the teams that share a design.
    """
    found = predicted(ladders, model, keys(ladders)["public sources"])
    found = {name: [p for p in read if not _is_setting(p.ladder)] for name, read in found.items()}
    middles = {
        name: float(np.median(edges))
        for name, read in found.items()
        if (
            edges := [p.ladder.edge for p in read if p.ladder.has_edge and p.ladder.inputs.is_usual]
        )
    }
    lines = [
        "### Teams left out whole",
        "",
        "Errors in decades, above zero where rksp says too much. *Constant*: the median edge of "
        "the other teams, for AdamW and its kin. *Within*: edges that may lie within the 90 % "
        "interval. *Covered*: first failures above *do not exceed*.",
        "",
        "| team | ladders | with an edge | edge: error | bias | constant | within | start over "
        "best | covered |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    rows = []
    for name, read in found.items():
        constant = float(np.median([e for other, e in middles.items() if other != name]))
        rows += [(p, constant) for p in read]
        lines.append(_team(name, [(p, constant) for p in read]))
    for block in sorted({p.ladder.block for p, _ in rows} - {""}):
        chosen = [row for row in rows if row[0].ladder.block == block]
        lines.append(_team(f"**the teams of {block}**", chosen))
    usual = [row for row in rows if row[0].ladder.inputs.is_usual]
    lines.append(_team("**all, AdamW and its kin, with norms**", usual))
    return "\n".join(lines)


def _is_setting(ladder: EdgeLadder) -> bool:
    """Say whether it is a run that changes one setting of a base run."""
    return bool(ladder.changed) and ladder.changed not in BOUNDS


def _team(name: str, rows: Sequence[tuple[Prediction, float]]) -> str:
    edged = [(p, c) for p, c in rows if p.ladder.has_edge]
    middle = lambda values: f"{np.median(values):.2f}" if len(values) else "–"
    off = [p.edge - p.ladder.edge for p, _ in edged]
    constant = [abs(c - p.ladder.edge) for p, c in edged if p.ladder.inputs.is_usual]
    start = [10 ** (p.start - p.ladder.best) for p, _ in rows if p.ladder.best is not None]
    failed = [p.ceiling < p.ladder.high for p, _ in rows if math.isfinite(p.ladder.high)]
    covered = f"{sum(failed)} of {len(failed)}" if failed else "–"
    within = f"{sum(p.holds_edge for p, _ in edged)} of {len(edged)}" if edged else "–"
    bias = f"{np.median(off):+.2f}" if off else "–"
    return (
        f"| {name} | {len(rows)} | {len(edged)} | {middle(np.abs(off))} | {bias} | "
        f"{middle(constant)} | {within} | {middle(start)} | {covered} |"
    )


def left_out_table(ladders: Sequence[EdgeLadder], model: EdgeModel) -> str:
    """Return the table of what was left out."""
    lines = [
        "### Left out whole: sources, families, tasks, ladders",
        "",
        "Ladders of every optimizer and norm. *Alike* counts sources, families or tasks alike. The "
        "interval holds where the number that failed lies between its ends, summed over the runs "
        "and rounded outwards to whole runs.",
        "",
        "| left out | ladders | edge error: median | alike | 90 % | best-rate error | AUROC | "
        "ECE | of P(diverged): AUROC | ECE | above *do not exceed* | interval holds |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for title, key in keys(ladders).items():
        found = predicted(ladders, model, key)
        if not found:
            continue
        lines.append(f"| {title} | {' | '.join(_cells(found, 'ladders of' in title))} |")
    return "\n".join(lines)


def _cells(found: Mapping[str, list[Prediction]], is_fold: bool) -> list[str]:
    """Return the cells of a row; folds mean nothing, so they are not counted alike."""
    parts = {name: [p for p in read if p.ladder.best is not None] for name, read in found.items()}
    every = [p for read in parts.values() for p in read]
    edged = [p for p in every if p.ladder.has_edge]
    errors = np.abs([p.edge - p.ladder.edge for p in edged])
    of_part = [
        np.median([abs(p.edge - p.ladder.edge) for p in read if p.ladder.has_edge])
        for read in parts.values()
        if any(p.ladder.has_edge for p in read)
    ]
    y = np.concatenate([p.ladder.failed for p in every])
    diverged = np.concatenate([definite(p.ladder.diverged) for p in every])
    margins = np.concatenate([p.ladder.rates - p.edge for p in every])
    said, chances = (
        np.concatenate([getattr(p, of) for p in every]) for of in ("failed", "diverged")
    )
    held = [_holds(read) for read in parts.values() if read]
    return [
        f"{len(every)} ({len(edged)} with an edge)",
        f"{np.median(errors):.2f}",
        "–" if is_fold else f"{np.mean(of_part):.2f}",
        f"{np.quantile(errors, 0.9):.2f}",
        f"{np.median([abs(p.best - (p.ladder.best or math.nan)) for p in every]):.2f}",
        f"{auroc(y, margins):.3f}",
        f"{ece(y, said):.3f}",
        f"{auroc(diverged, chances):.3f}",
        f"{ece(diverged, chances):.3f}",
        f"{np.mean([p.is_covered for p in edged]):.0%}",
        "–" if is_fold else f"{sum(held)} of {len(held)}",
    ]


def _holds(read: Sequence[Prediction]) -> bool:
    count = np.concatenate([p.ladder.failed for p in read]).sum()
    low = np.concatenate([p.failed_low for p in read]).sum()
    high = np.concatenate([p.failed_high for p in read]).sum()
    return bool(math.floor(low) <= count <= math.ceil(high))


def optimizers_left_out(ladders: Sequence[EdgeLadder], model: EdgeModel) -> str:
    """Return the errors for optimizers that are no kin of Adam, their source left out."""
    found = predicted(ladders, model, keys(ladders)["public sources"])
    lines = [
        "### Muon and Lion, the source left out",
        "",
        "| source | optimizer | ladders with an edge | edge: median error | best rate | start here "
        "over the best rate |",
        "|---|---|---|---|---|---|",
    ]
    for name, read in found.items():
        for optimizer in ("muon", "lion"):
            mine = [
                p
                for p in read
                if p.ladder.inputs.optimizer == optimizer and p.ladder.best is not None
            ]
            if not mine:
                continue
            edged = [p.edge - p.ladder.edge for p in mine if p.ladder.has_edge]
            edge = f"{np.median(edged):+.2f}" if edged else "–"
            best = np.median([p.best - (p.ladder.best or math.nan) for p in mine])
            start = 10 ** np.median([p.start - (p.ladder.best or math.nan) for p in mine])
            lines.append(
                f"| {name} | {optimizer} | {len(edged)} | {edge} | {best:+.2f} | {start:.2f} |"
            )
    return "\n".join(lines)


def batches(ladders: Sequence[EdgeLadder], model: EdgeModel) -> str:
    """Return what *start here* loses by the tokens of a batch, the shape left out; Adam's kin."""
    every = [p for read in predicted(ladders, model, shape_of).values() for p in read]
    every = [
        p for p in every if p.ladder.best is not None and p.ladder.inputs.optimizer in ADAM_FAMILY
    ]
    lines = [
        "### The batch, shapes left out: Adam's kin",
        "",
        "| tokens of a batch | ladders | best rate | start here | lost: median | 90 % |",
        "|---|---|---|---|---|---|",
    ]
    for low, high in pairwise((0, 1e5, 3e5, 8e5, 1.6e6, 1e9)):
        mine = [p for p in every if low <= p.ladder.inputs.batch_tokens < high]
        if mine:
            lost = [float(p.ladder.excess_at(p.start)) for p in mine]
            best, start = (
                10 ** np.median([value(p) for p in mine])
                for value in (lambda p: p.ladder.best, lambda p: p.start)
            )
            title = f"{low:,.0f} – {high:,.0f}" if high < 1e9 else f"above {low:,.0f}"
            lines.append(
                f"| {title} | {len(mine)} | {best:.2g} | {start:.2g} | {np.median(lost):.3f} | "
                f"{np.quantile(lost, 0.9):.3f} |"
            )
    return "\n".join(lines)


def pair_table(ladders: Sequence[EdgeLadder], pairs: Sequence[tuple[str, str, str, str]]) -> str:
    """Return what was said of the shift of the edge in pairs of ladders, their model left out.

    Args:
        ladders: Of the lab and of public sources.
        pairs: (model, lever, name of the ladder without it, name of the ladder with it).
    """
    from scipy.stats import spearmanr

    by_name = {x.name: x for x in ladders if x.source == LAB and x.has_edge}
    shifts: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for left in sorted({model for model, *_, changed in pairs if changed in by_name}):
        mine = [pair for pair in pairs if pair[0] == left]
        unseen = {name for pair in mine for name in pair[2:]}
        seen = fit_edge_model([x for x in ladders if x.name not in unseen], spreads=False)
        for _, lever, plain, changed in mine:
            if plain in by_name and changed in by_name:
                one, other = by_name[plain], by_name[changed]
                said = [seen.predict(x.inputs).log_edge for x in (one, other)]
                shift = (said[1] - said[0], other.edge - one.edge)
                shifts.setdefault(lever, {}).setdefault(left, []).append(shift)
    of_models = [np.array(seeds) for models in shifts.values() for seeds in models.values()]
    if sum(map(len, of_models)) < 3:
        return ""
    every = np.concatenate(of_models)
    means = np.array([seeds.mean(axis=0) for seeds in of_models])
    lines = [
        "### Pairs that differ in the model alone, all ladders of the model left out",
        "",
        "| what differs | models | pairs | edge moves by, decades | said |",
        "|---|---|---|---|---|",
    ]
    for lever, models in shifts.items():
        of_lever = np.concatenate([np.array(seeds) for seeds in models.values()])
        said, moved = of_lever.mean(axis=0)
        lines.append(f"| {lever} | {len(models)} | {len(of_lever)} | {moved:+.2f} | {said:+.2f} |")
    missed = np.sqrt(np.mean((every[:, 0] - every[:, 1]) ** 2))
    lines += [
        "",
        f"Rank correlation {spearmanr(*means.T)[0]:.2f} over {len(means)} changes of a model, each "
        f"the mean of its seeds, and {spearmanr(*every.T)[0]:.2f} over the {len(every)} pairs of "
        f"one seed; the edges move by {np.sqrt(np.mean(every[:, 1] ** 2)):.2f} decades (root mean "
        f"square), and {missed:.2f} are left.",
    ]
    return "\n".join(lines)
