"""Train failing setups with the levers that their page names: which are saved, and at which loss?

A setup is a small model at the lowest rate that fails. `rksp confirm` trains it as it is, at the
best rate of its ladder, with every lever that the page names and a run can take up, and with all.
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

from rksp.classifiers.levers.effects import DEAR
from rksp.confirm.confirm import confirm
from rksp.confirm.options import TrialOptions
from rksp.documents.confirm import ConfirmReport
from rksp.documents.options import MeasureOptions
from rksp.ground.files import atomic_write, read_text
from rksp.models.resolve import resolve
from rksp.models.source import ModelSource
from rksp.own_runs.outcome import OutcomePolicy
from rksp.recipe import Recipe

_SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 88,
    "vocab_size": 256,
    "max_position_embeddings": 16,
}
TARGETS: dict[str, dict[str, object]] = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 256, "n_positions": 16},
    "llama": _SIZES | {"num_key_value_heads": 4},
    "olmo": _SIZES | {"num_key_value_heads": 4},
    "qwen2": _SIZES | {"num_key_value_heads": 4},
    "stablelm": _SIZES | {"num_key_value_heads": 4},
}
RECIPE = Recipe(
    max_steps=200,
    warmup_steps=20,
    schedule="cosine",
    adam_beta2=0.95,
    batch_size=16,
    sequence_length=16,
)
RATES = (0.316, 0.1, 0.0316, 0.01, 0.00316)  # of the ladder, whose edge is bisected once
TABLE = Path(__file__).with_suffix(".csv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """One lever of one failing setup.

    Attributes:
        target: The model type, of which a small model was trained.
        rate: The lowest rate that failed.
        lever: The arm; empty where the page names none that a run can take up. The first of a
            setup is the largest lever, the last all of them together.
        lower_rate: The rate of the ladder's best run.
        loss, lower_loss, lever_loss: Final losses in nats, means over the seeds, of the setup as it
            is, at the lower rate, and with the lever; None where a run diverged.
        saved: Seeds whose run with the lever ends at most 0.05 nats above that at the lower rate;
            `trained` of them at most 0.25, so that it did not fail.
        failed: Seeds whose run failed as it is.
        seeds: Seeds that were trained.
    """

    target: str
    rate: float
    lever: str
    lower_rate: float
    loss: float | None
    lower_loss: float | None
    lever_loss: float | None
    saved: int
    trained: int
    failed: int
    seeds: int


def failing_rate(source: ModelSource, folder: Path) -> tuple[float, float] | None:
    """Return the best rate of a ladder and the lowest that fails; None if none does, or all do."""
    top, *lower = RATES
    arms = [f"rate={rate / top:g}" for rate in lower]
    report = _confirmed(source, top, arms, 1, folder / "ladder")
    finals = {rate: _final(arm.final_loss) for rate, arm in zip(RATES, report.arms, strict=True)}
    if (ends := _ends(finals)) is None:
        return None
    _, last, failing = ends
    middle = float(f"{math.sqrt(last * failing):.3g}")
    (between,) = _confirmed(source, middle, [], 1, folder / "between").arms
    ends = _ends(finals | {middle: _final(between.final_loss)})
    return None if ends is None else (ends[0], ends[2])


def _ends(finals: Mapping[float, float]) -> tuple[float, float, float] | None:
    """Return the best rate, the last before the first failure above it, and that failure's."""
    rates, bar = sorted(finals), min(finals.values()) + OutcomePolicy().margin
    best = min(rates, key=finals.__getitem__)
    failing = next((rate for rate in rates if rate > best and finals[rate] > bar), None)
    if failing is None or not math.isfinite(bar):
        return None
    return best, max(rate for rate in rates if rate < failing), failing


def _final(loss: float | None) -> float:
    return math.inf if loss is None else loss


def saved(target: str, folder: Path, seeds: int) -> list[Saved]:
    """Train one setup with every lever; nothing if no rate of its ladder fails."""
    source = resolve(target, overrides=TARGETS[target])
    found = failing_rate(source, folder / target)
    if found is None:
        return []
    best, rate = found
    lower = f"rate={best / rate:.3g}"
    as_it_is = _confirmed(source, rate, [lower], seeds, folder / target / "lever")
    named = [lever.arm for lever in as_it_is.prediction.levers if lever.arm]
    named += ["+".join(named)] if len(named) > 1 else []
    report = _confirmed(source, rate, [lower, *named], seeds, folder / target / "lever")
    plain, at_best, *levers = report.arms
    finals = {(trial.arm, trial.seed): _final(trial.final_loss) for trial in report.trials}

    def count(arm: str, nats: float) -> int:
        above = (finals.get((arm, n), math.inf) - finals[lower, n] for n in range(seeds))
        return sum(more <= nats for more in above)

    return [
        Saved(
            target=target,
            rate=rate,
            lever=arm,
            lower_rate=best,
            loss=_rounded(plain.final_loss),
            lower_loss=_rounded(at_best.final_loss),
            lever_loss=_rounded(loss),
            saved=count(arm, DEAR),
            trained=count(arm, OutcomePolicy().margin),
            failed=plain.failed,
            seeds=seeds,
        )
        for arm, loss in [(x.arm, x.final_loss) for x in levers] or [("", None)]
    ]


def _confirmed(
    source: ModelSource, rate: float, arms: Sequence[str], seeds: int, folder: Path
) -> ConfirmReport:
    return confirm(
        source,
        RECIPE.model_copy(update={"learning_rate": rate}),
        TrialOptions(arms=list(arms), seeds=seeds, monitors=["loss"], keep=folder),
        measure=MeasureOptions(evidence="config"),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def to_csv(rows: Iterable[Saved]) -> str:
    """Write the rows as CSV."""
    text = StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(Saved)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return text.getvalue()


def markdown(rows: Sequence[Mapping[str, str]]) -> str:
    """Write the rows of a CSV file as a Markdown table, and how many setups were saved."""
    titles = ("model", "rate", "it ends at", "at the rate", "it ends at", "with", "it ends at")
    lines = [f"| {' | '.join((*titles, 'saved', 'did not fail'))} |", "|---" * 9 + "|"]
    by_lever: dict[str, list[Mapping[str, str]]] = {}
    for row in rows:
        ends = [row[name] or "diverges" for name in ("loss", "lower_loss")]
        lever = (f"`{row['lever']}`", row["lever_loss"] or "diverges") if row["lever"] else "––"
        cells = (row["target"], row["rate"], ends[0], row["lower_rate"], ends[1], *lever)
        of = f"of {row['seeds']}"
        lines.append(f"| {' | '.join(cells)} | {row['saved']} {of} | {row['trained']} {of} |")
        by_lever.setdefault(lever[0] if row["lever"] else "no lever", []).append(row)
    told = [_told(name, of) for name, of in by_lever.items()]
    return "\n".join([*lines, "", " ".join(told)])


def _told(name: str, rows: Sequence[Mapping[str, str]]) -> str:
    """Say in how many setups a lever saves most seeds, and in how many most seeds do not fail."""
    saved, trained = (
        sum(2 * int(row[name]) > int(row["seeds"]) for row in rows) for name in ("saved", "trained")
    )
    return (
        f"{name} saves {saved} of {len(rows)} setups at no more than {DEAR} nats, and with it "
        f"{trained} do not fail."
    )


def main(
    folder: Annotated[Path, typer.Option(help="Finished runs; the same command goes on.")],
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of every setup.")] = 1,
    output: Annotated[Path, typer.Option(help="The table to write.")] = TABLE,
) -> None:
    """Train five failing setups with the levers that rksp names, and print the table."""
    rows = []
    for target in TARGETS:
        rows += saved(target, folder, seeds)
        atomic_write(output, to_csv(rows))
    typer.echo(markdown(list(csv.DictReader(StringIO(read_text(output, 1_000_000))))))


if __name__ == "__main__":
    typer.run(main)
