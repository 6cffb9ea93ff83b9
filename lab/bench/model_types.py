"""Which model types of transformers work at which tier, and whether streaming changes anything.

    python -m lab.bench.model_types [--only TYPE …]

Every type is shrunk in every dimension and scored in memory and streamed. A type that the table
has already is passed over, so the script can be interrupted.
"""

from __future__ import annotations

import csv
import math
import re
import signal
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from rksp.ground.text import words
from rksp.models.tiny import SIZES, shrunk

TABLE = Path(__file__).with_suffix(".csv")
TIERS = ("config", "forward", "gradient", "streamed")
COLUMNS = ("type", "task", *TIERS, "features", "findings")
LIMIT = 30  # processor seconds a type; most take two
SAME = {"features": 1e-3}
WORKS = "works"
# The dimensions of heads and of latent attention.
_OF_HEADS = words(
    "head_dim rotary_dim q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim "
    "qk_head_dim index_head_dim index_n_heads index_topk o_lora_rank o_groups"
)
_KEPT_HEADS = {name: size for name, size in SIZES.items() if name not in _OF_HEADS}

# A ladder of tiny sizes; those of some types must agree, so each rung changes less. All sizes; not
# those of heads; as many key–value heads as heads, and eight layers; only depth and vocabulary;
# only depth.
RUNGS: tuple[Callable[[Mapping[str, Any]], dict[str, Any]], ...] = (
    shrunk,
    partial(shrunk, sizes=_KEPT_HEADS),
    partial(shrunk, sizes=_KEPT_HEADS | {"num_key_value_heads": 4, "num_kv_heads": 4}, depth=8),
    partial(shrunk, sizes={}),
    partial(shrunk, sizes={}, vocabulary=None),
)


def row_of(kind: str) -> dict[str, str]:
    """Score one model type at every tier.

    Args:
        kind: A model type of transformers.

    Returns:
        A cell a column of `COLUMNS`: `works` or the sentence that refuses; the differences between
        streamed and in memory, relative, and of features absolute.
    """
    from rksp.ground.errors import RkspError

    row, error = {"type": kind}, None
    for rung in range(len(RUNGS)):
        try:
            return row | _scored(kind, rung)
        except RkspError as caught:
            error = error or caught
    return row | {"forward": _sentence(error)}


def _scored(kind: str, rung: int) -> dict[str, str]:
    from rksp.assessment.pipeline import evaluate
    from rksp.documents.options import MeasureOptions
    from rksp.ground.errors import RkspError
    from rksp.models.resolve import resolve_tiny
    from rksp.recipe import Recipe

    source = resolve_tiny(kind, shrink=RUNGS[rung], max_params=3e8)
    recipe = Recipe(learning_rate=3e-3)
    configured = evaluate(source, recipe, MeasureOptions(evidence="config")).risk
    whole = evaluate(source, recipe, MeasureOptions(states=256, streaming="never"))
    row = {
        "task": source.task,
        "config": WORKS if configured.is_told else configured.reasons[0],
        "forward": WORKS if whole.profile.chains else whole.profile.spectra.reason,
        "gradient": _gradient(whole, source.task),
    }
    try:
        part = evaluate(source, recipe, MeasureOptions(states=256, streaming="always"))
    except RkspError as error:
        return row | {"streamed": _sentence(error)}
    if part.gradient is not None and part.gradient.reason != whole.gradient.reason:
        return row | {"streamed": part.gradient.reason}
    return row | {"streamed": WORKS} | _differences(whole, part)


def _gradient(evaluation, task: str) -> str:
    if evaluation.gradient is None:
        return f"the probe has no labels for the task {task}"
    return evaluation.gradient.reason or WORKS


def _differences(whole, part) -> dict[str, str]:
    """Return how far a streamed evaluation is from one in memory."""
    from rksp.spectra.features import extract

    same = [(f.code, f.level, f.layer) for f in whole.findings] == [
        (f.code, f.level, f.layer) for f in part.findings
    ]
    left, right = (
        extract(e.profile.forward, e.profile.spectra, e.gradient).values.values()
        for e in (whole, part)
    )
    gaps = [abs(a - b) for a, b in zip(left, right, strict=True) if math.isfinite(a)]
    return {"findings": "same" if same else "differ", "features": f"{max(gaps, default=0):.1e}"}


def _sentence(error: BaseException | None) -> str:
    """Return the message in one line, without the folders of this machine."""
    return re.sub(r"(<module '[\w.]+') from '[^']*'>", r"\1>", " ".join(str(error).split()))


class _OutOfTime(BaseException):
    """A type takes too long; no handler of errors below takes this for a refusal."""


def _stopped(number: int, frame: object) -> None:
    raise _OutOfTime


def summary(rows: list[Mapping[str, str]]) -> str:
    """Count what works.

    Args:
        rows: As in the table.

    Returns:
        Lines of text.
    """
    lines = [f"{len(rows)} model types"]
    lines += [f"{tier}: {sum(row[tier] == WORKS for row in rows)} work" for tier in TIERS]
    both = [row for row in rows if row["streamed"] == WORKS]
    lines.append(f"findings: the same in {sum(r['findings'] == 'same' for r in both)} streamed")
    for name, limit in SAME.items():
        gaps = [float(row[name]) for row in both if row[name]]
        inside = sum(gap <= limit for gap in gaps)
        lines.append(f"{name}: {inside} of {len(gaps)} within {limit:g}")
    return "\n".join(lines)


def main(
    only: Annotated[list[str] | None, typer.Option(help="These types, again.")] = None,
    table: Annotated[Path, typer.Option(help="The table that is continued.")] = TABLE,
) -> None:
    """Continue the table of model types, and count what works."""
    import torch

    import rksp.assessment.pipeline  # noqa: F401  its seconds are no type's
    from rksp.models.configuration import model_types

    torch.set_num_threads(1)
    signal.signal(signal.SIGPROF, _stopped)
    rows: dict[str, dict[str, str]] = {}
    if table.exists():
        with table.open(encoding="utf-8", newline="") as file:
            rows = {row["type"]: row for row in csv.DictReader(file)}
    for kind in only or [kind for kind in sorted(model_types()) if kind not in rows]:
        signal.setitimer(signal.ITIMER_PROF, LIMIT)
        try:
            found = row_of(kind)
        except _OutOfTime:
            sentence = f"takes more than {LIMIT} processor seconds at tiny size"
            found = {"type": kind, "forward": sentence}
        except Exception as error:  # a type that breaks is what the table is for
            found = {"type": kind, "forward": f"breaks: {type(error).__name__}: {_sentence(error)}"}
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        rows[kind] = {column: found.get(column, "") for column in COLUMNS}
        typer.echo(" | ".join(rows[kind].values())[:300])
        with table.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows[name] for name in sorted(rows))
    typer.echo(summary(list(rows.values())))


if __name__ == "__main__":
    typer.run(main)
