"""Train failing setups with the lever that their page names: does it save them, and at which loss?

A setup is the tiny twin of a model type at the lowest rate of a ladder that fails. `rksp confirm`
then trains it by its default arms: as it is, at the rate to start with, and with the first lever.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from io import StringIO
from pathlib import Path
from typing import Annotated

import typer

from rksp.assessment.pipeline import evaluate
from rksp.classifiers.levers.effects import DEAR
from rksp.confirm.arms import parse_arms
from rksp.confirm.confirm import confirm
from rksp.documents.confirm import ConfirmReport
from rksp.ground.files import atomic_write, read_text
from rksp.ground.model import definite
from rksp.models.resolve import resolve_tiny
from rksp.models.source import ModelSource
from rksp.options import MeasureOptions
from rksp.outcome import OutcomePolicy
from rksp.recipe import Recipe

TARGETS = ("gpt2", "llama", "olmo", "qwen2", "bert")
RECIPE = Recipe(max_steps=120, warmup_steps=12, schedule="cosine", batch_size=8, sequence_length=32)
HIGHEST = 1.0  # times the likely edge, where the ladder begins
STEPS = 5  # of the ladder
OPTIONS = MeasureOptions(evidence="config")
TABLE = Path(__file__).with_suffix(".csv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """One failing setup.

    Attributes:
        target: The model type, of which the tiny twin was trained.
        rate: The lowest rate that failed.
        edge: The edge that was predicted.
        lever: The arm of the first lever; empty where the page names none that a run can take up.
        loss, lower_loss, lever_loss: Final losses in nats, means over the seeds, as the setup is,
            at `lower_rate`, and with the lever; None where runs diverged.
        saved: Seeds of which the lever's run ends at most 0.05 nats above that at the lower rate.
        failed: Seeds whose run failed as it is.
        seeds: Seeds that were trained.
    """

    target: str
    rate: float
    edge: float
    lever: str
    lower_rate: float
    loss: float | None
    lower_loss: float | None
    lever_loss: float | None
    saved: int
    failed: int
    seeds: int


def failing_rate(source: ModelSource, folder: Path) -> tuple[float, float] | None:
    """Return the lowest rate of a ladder that fails, and the predicted edge.

    The ladder goes down by half decades; the edge is bisected once. None if nothing fails, or if
    everything does.
    """
    edge = definite(definite(evaluate(source, RECIPE, OPTIONS).risk).likely_edge)
    top = float(f"{HIGHEST * edge:.3g}")
    factors = [float(f"{10 ** (-k / 2):.3g}") for k in range(STEPS)]
    report = _confirmed(source, top, [f"rate={x:g}" for x in factors[1:]], 1, folder / "ladder")
    finals = {
        top * factor: _final(arm.final_loss)
        for factor, arm in zip(factors, report.arms, strict=True)
    }
    if (ends := _ends(finals)) is None:
        return None
    middle = float(f"{math.sqrt(math.prod(ends)):.3g}")
    (between,) = _confirmed(source, middle, [], 1, folder / "between").arms
    _, failing = definite(_ends(finals | {middle: _final(between.final_loss)}))
    return failing, edge


def _ends(finals: Mapping[float, float]) -> tuple[float, float] | None:
    """Return the highest rate that trains and the lowest above the best that fails."""
    rates, bar = sorted(finals), min(finals.values()) + OutcomePolicy().margin
    best = min(rates, key=finals.__getitem__)
    failing = next((rate for rate in rates if rate > best and finals[rate] > bar), None)
    if failing is None or not math.isfinite(bar):
        return None
    return max(rate for rate in rates if rate < failing), failing


def _final(loss: float | None) -> float:
    return math.inf if loss is None else loss


def saved(target: str, folder: Path, seeds: int) -> Saved | None:
    """Train one setup; None if no rate of its ladder fails."""
    source = resolve_tiny(target)
    found = failing_rate(source, folder / target)
    if found is None:
        return None
    rate, edge = (float(f"{value:.3g}") for value in found)
    report = _confirmed(source, rate, None, seeds, folder / target / "lever")
    _, lower, *levers = report.arms
    lever = levers[0].arm if levers else ""
    finals = {(trial.arm, trial.seed): trial.final_loss for trial in report.trials}
    return Saved(
        target=target,
        rate=rate,
        edge=edge,
        lever=lever,
        lower_rate=float(f"{rate * parse_arms([lower.arm])[1].rate:.3g}"),
        loss=_rounded(report.arms[0].final_loss),
        lower_loss=_rounded(lower.final_loss),
        lever_loss=_rounded(levers[0].final_loss) if levers else None,
        saved=sum(
            _ends_as_low(finals.get((lever, seed)), finals[lower.arm, seed])
            for seed in range(seeds)
        ),
        failed=report.arms[0].failed,
        seeds=seeds,
    )


def _confirmed(
    source: ModelSource, rate: float, arms: Sequence[str] | None, seeds: int, folder: Path
) -> ConfirmReport:
    return confirm(
        source,
        RECIPE.model_copy(update={"learning_rate": rate}),
        None if arms is None else parse_arms(arms),
        seeds=range(seeds),
        monitors=("loss",),
        options=OPTIONS,
        folder=folder,
    )


def _ends_as_low(loss: float | None, lower: float | None) -> bool:
    return loss is not None and lower is not None and loss <= lower + DEAR


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def to_csv(rows: Iterable[Saved]) -> str:
    """Write the rows as CSV."""
    text = StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(Saved)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return text.getvalue()


def markdown(rows: Sequence[dict[str, str]]) -> str:
    """Write the rows of a CSV file as a Markdown table, and a sentence."""
    header = "| model | rate | it ends at | at the rate | it ends at | with | it ends at | saved |"
    lines = [header, "|---" * 8 + "|"]
    for row in rows:
        ends = [row[name] or "diverges" for name in ("loss", "lower_loss")]
        lever = (row["lever"], row["lever_loss"] or "diverges") if row["lever"] else ("–", "–")
        cells = (row["target"], row["rate"], ends[0], row["lower_rate"], ends[1], *lever)
        lines.append(f"| {' | '.join(cells)} | {row['saved']} of {row['seeds']} |")
    count = sum(2 * int(row["saved"]) > int(row["seeds"]) for row in rows)
    return "\n".join([*lines, "", f"Saved: {count} of {len(rows)} setups."])


def main(
    folder: Annotated[Path, typer.Option(help="Finished runs; the same command goes on.")],
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of every setup.")] = 1,
    output: Annotated[Path, typer.Option(help="The table to write.")] = TABLE,
    stored: Annotated[
        bool, typer.Option("--stored", help="Print the table that is there.")
    ] = False,
) -> None:
    """Train five failing setups with the lever that rksp names, and print the table."""
    if not stored:
        rows = []
        for target in TARGETS:
            row = saved(target, folder, seeds)
            typer.echo(row, err=True)
            rows += [] if row is None else [row]
        atomic_write(output, to_csv(rows))
    typer.echo(markdown(list(csv.DictReader(StringIO(read_text(output, 1_000_000))))))


if __name__ == "__main__":
    typer.run(main)
