"""Read public ladders, recipes and runs of fine-tuning, one JSON object a line."""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from lab.fine_tuning_fit.ladder import (
    CARD,
    PRACTICE,
    RECIPE,
    RUN,
    FineTuningLadder,
    kind_of,
    ladder_of_runs,
)
from rksp.classifiers.fine_tuning.inputs import ADAPTERS, FineTuningInputs
from rksp.classifiers.fine_tuning.model import between_neighbours
from rksp.ground.errors import ArtifactError
from rksp.ground.files import read_text

Row = Mapping[str, Any]

_LARGEST = 50_000_000  # bytes of a file
# Published sizes of checkpoints whose names do not say them.
_SIZES = {
    "t5-small": 6e7,
    "facebook/bart-base": 1.4e8,
    "openai/whisper-small": 2.4e8,
    "openai/whisper-tiny": 3.9e7,
    "distilbert-base-cased": 6.6e7,
    "microsoft/phi-2": 2.8e9,
    "microsoft/Phi-3-mini-4k-instruct": 3.8e9,
    "moonshotai/Kimi-K2.5": 1e12,
    "deepseek-ai/DeepSeek-V3.1": 6.7e11,
}
_SIZE_IN_NAME = re.compile(r"(\d+(?:\.\d+)?)\s?([bBmM])(?![a-z])")
_OBJECTIVES = {
    "classification": "classification",
    "dpo": "preference",
    "kto": "preference",
    "gdpo": "rl",
    "grpo": "rl",
    "ppo": "rl",
    "orpo": "orpo",
    "reward": "reward",
    "ebft": "rl",
}
_CONTINUED = ("continued", "mid-training")
# These groups classify with decoders or adapters, which neither method nor family says.
_CLASSIFYING = ("federated-lora-qnli", "microsoft-lora", "gpt2-course")
_ITSELF = "sundry"  # a group of unrelated sources: each row is one
# Groups that are one source under two names.
_SAME_SOURCE = {
    "hf-model-cards-ladders": "hf-model-cards",
    "hf-model-cards-pooled": "hf-model-cards",
}
_REPEATED = ("uiortholora", "marin-delphi")  # recipes whose ladders are rows, or without a rate
# Questions of a benchmark, by what a row calls it; of eight benchmarks whose accuracies are
# averaged, those of one that is as noisy.
_QUESTIONS = {
    "GSM8K": 1319,
    "commonsense-8": 11600,
    "SST-5": 1101,
    "CFIMDB": 245,
    "Quora": 40429,
    "QNLI": 5463,
    "CIFAR-10": 10000,
}
_CHOSEN_WIDTH = 1.0  # decades on either side of a rate that authors chose, often by custom
_RETAINED = 0.9  # share of the untouched abilities; below it a run has forgotten
_EMBEDDED = 0.75  # the largest share of the parameters that embeddings of tokens have
_FORGOTTEN = 0.25  # nats above the loss on the old data at the lowest rate


def read_public_rows(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Read the lines of all files.

    Raises:
        InputError: A file cannot be read.
        ArtifactError: A line is no object.
    """
    rows = []
    for path in paths:
        for number, line in enumerate(read_text(path, _LARGEST).splitlines(), start=1):
            try:
                row = json.loads(line)
                row["id"], row["arch"], row["recipe"], row["group"]
            except (ValueError, LookupError, TypeError) as error:
                raise ArtifactError(f"{path.name}, line {number}, is no run: {error!r}.") from error
            rows.append(row)
    return rows


def public_ladders(rows: Sequence[Row]) -> list[FineTuningLadder]:
    """Return what the fit uses: ladders, recipes that trained well, failed runs, practice.

    A card shows no edge: of their runs 1.8 % failed, and not more at high rates. But each that
    trained bounds the edge of a source from below, and the middle rate of a family is what people
    choose.
    """
    found, cards = [], defaultdict(list)
    for row in rows:
        if "rates" in row:
            found.append(_ladder(row))
        elif is_trained_recipe(row) and row["group"] not in _REPEATED:
            found.append(chosen_rate(row))
        elif row["group"] == "hf-model-cards":
            if is_trained_card(row) and row["arch"].get("family"):
                cards[row["arch"]["family"]].append(row)
        elif row.get("failed") and row.get("rate"):
            found.append(_failed_run(row))
    for family, members in sorted(cards.items()):
        found += [_practice(family, members), *_passed(family, members)]
    return sorted(found, key=lambda ladder: (ladder.inputs.source, ladder.name))


def is_trained_recipe(row: Row) -> bool:
    """Say whether a row is a recipe behind which an outcome or a released model stands."""
    return row.get("trained_well") is True and bool(row["recipe"].get("lr"))


def is_trained_card(row: Row) -> bool:
    """Say whether a row is a card's run of fine-tuning that trained, with an Adam."""
    return (
        row["group"] == "hf-model-cards"
        and not row["failed"]
        and str(row["method"]).startswith("full")
        and str(row["recipe"].get("optimizer")).startswith("adam")
    )


def chosen_rate(row: Row) -> FineTuningLadder:
    """Return a recipe or a card's run: its edge lies above its rate, its best rate near it."""
    rate = math.log10(row["rate"] if row.get("rate") else row["recipe"]["lr"])
    best = (rate - _CHOSEN_WIDTH, rate + _CHOSEN_WIDTH)
    grid = sorted(math.log10(x) for x in row.get("swept_grid") or ())
    if len(grid) > 2:
        nearest = min(range(len(grid)), key=lambda number: abs(grid[number] - rate))
        best = between_neighbours(grid, nearest)
    return FineTuningLadder(
        name=str(row["id"]),
        kind=RECIPE,
        inputs=inputs_of(row),
        best=best,
        edge=(rate, math.inf),
        rates=(rate,),
        failed=(False,),
        results=(None,),
        chosen=rate,
    )


def _ladder(row: Row) -> FineTuningLadder:
    rates = [math.log10(rate) for rate in row["rates"]]
    return ladder_of_runs(
        str(row["id"]),
        inputs_of(row),
        list(zip(rates, row.get("final_loss") or row["score"], row["failed"], strict=True)),
        noise=_noise(row),
        higher_is_better=bool(row["higher_is_better"]),
        forgetting=_forgetting(row, rates),
        width=_number(row["arch"].get("hidden_size")),
    )


def _noise(row: Row) -> list[float]:
    """Return the standard error of each result.

    It is that of the mean over seeds, where the source states their spread; a rate with one seed
    has the median spread. Else an accuracy is binomial in its questions; a loss has no noise.
    """
    seeds = row.get("replicates") or [1] * len(row["rates"])
    if spreads := row.get("score_sd"):
        columns = zip(spreads, seeds, row["failed"], strict=True)
        usual = median(sd for sd, count, failed in columns if count > 1 and not failed)
        return [
            (sd if count > 1 else usual) / math.sqrt(count)
            for sd, count in zip(spreads, seeds, strict=True)
        ]
    said = f"{row['metric']} {row['recipe'].get('data')}"
    questions = next((n for name, n in _QUESTIONS.items() if name in said), None)
    if "accuracy" not in said or questions is None:
        return [0.0] * len(seeds)
    whole = 100.0 if "%" in said else 1.0
    return [
        math.sqrt(score * max(whole - score, 0.0) / (questions * count))
        for score, count in zip(row["score"], seeds, strict=True)
    ]


def _forgetting(row: Row, rates: Sequence[float]) -> tuple[float, float] | None:
    """Return between which rates the old abilities go; from the second on all have lost them."""
    if row.get("retention"):
        reference = max(row["retention"][:2])
        lost = [value < _RETAINED * reference for value in row["retention"]]
    elif row.get("forgetting_loss"):
        reference = row["forgetting_loss"][0]
        lost = [value > reference + _FORGOTTEN for value in row["forgetting_loss"]]
    else:
        return None
    first = len(lost) - next((n for n, gone in enumerate(reversed(lost)) if not gone), len(lost))
    low = rates[first - 1] if first else -math.inf
    return low, rates[first] if first < len(rates) else math.inf


def _failed_run(row: Row) -> FineTuningLadder:
    rate = math.log10(row["rate"])
    return FineTuningLadder(
        name=str(row["id"]),
        kind=RUN,
        inputs=inputs_of(row),
        edge=(-math.inf, rate),
        rates=(rate,),
        failed=(True,),
        results=(None,),
    )


def _practice(family: str, rows: Sequence[Row]) -> FineTuningLadder:
    rates = sorted(math.log10(row["rate"]) for row in rows)
    middle = median(rates)
    sizes = [size for row in rows if (size := _size(row["arch"]))]
    inputs = FineTuningInputs(
        objective=_objective(rows[0], "next_token"),
        kind=_kind(family),
        family=family,
        parameters=median(sizes) if sizes else None,
        source="hf-model-cards",
        model=f"cards of {family}",
    )
    return FineTuningLadder(
        name=f"cards of {family}",
        kind=PRACTICE,
        inputs=inputs,
        best=(middle - _CHOSEN_WIDTH, middle + _CHOSEN_WIDTH),
        chosen=middle,
    )


def _passed(family: str, rows: Sequence[Row]) -> list[FineTuningLadder]:
    """Return below which rate no edge lies, rows alike together.

    A card that does not say so may have failed all the same: one in twenty, the highest, counts
    as if it had trained at the rate below which the others lie.
    """
    rates = sorted(math.log10(row["rate"]) for row in rows)
    highest = rates[(len(rates) - 1) * 19 // 20]
    alike: Counter[Any] = Counter()
    for row in rows:
        size = _size(row["arch"])
        size = None if size is None else round(math.log10(size), 1)
        alike[_objective(row, "next_token"), size, min(math.log10(row["rate"]), highest)] += 1
    return [
        FineTuningLadder(
            name=f"{count} cards of {family} at {rate:.3f} ({objective}, {size})",
            kind=CARD,
            inputs=FineTuningInputs(
                objective=objective,
                kind=_kind(family),
                family=family,
                parameters=None if size is None else 10**size,
                source="hf-model-cards",
                model=f"cards of {family}",
            ),
            edge=(rate, math.inf),
            chosen=rate,
            count=count,
        )
        for (objective, size, rate), count in sorted(alike.items(), key=repr)
    ]


def inputs_of(row: Row) -> FineTuningInputs:
    """Return the inputs of the model of fine-tuning for a row."""
    arch, recipe = row["arch"], row["recipe"]
    method, objective = _method(str(row["method"]))
    family = arch.get("family") or ""
    source: Any = row["id"] if row["group"] == _ITSELF else row["group"]
    return FineTuningInputs(
        method=method,
        objective=_objective(row, objective),
        kind=_kind(family),
        family=family,
        parameters=_size(arch),
        rank=_number(recipe.get("lora_rank")) if method in ADAPTERS else None,
        optimizer="sgd" if "sgd" in str(recipe.get("optimizer")) else "adamw",
        source=_SAME_SOURCE.get(source, source),
        model=arch.get("model") or str(row["id"]),
    )


def _method(text: str) -> tuple[str, str]:
    """Split `dpo-lora (…)` into the method and the objective."""
    name = text.split(" (")[0].replace("_", "-").replace("sclora", "sc-lora")
    objective = "continued" if any(word in text for word in _CONTINUED) else "next_token"
    first, _, rest = name.partition("-")
    if first in _OBJECTIVES:
        return rest or "full", _OBJECTIVES[first]
    return name, objective


def _objective(row: Row, said: str) -> str:
    if said != "next_token":
        return said
    kind = _kind(row["arch"].get("family"))
    if kind == "speech":
        return "transcription"
    is_text = "chrF" in str(row["metric"])
    if kind in ("encoder", "vision") or (row["group"] in _CLASSIFYING and not is_text):
        return "classification"
    return "next_token"


def _size(arch: Row) -> float | None:
    if arch.get("params"):
        embeddings = (arch.get("vocab") or 0) * (arch.get("hidden_size") or 0)
        return float(arch["params"]) - min(embeddings, _EMBEDDED * arch["params"])
    model = arch.get("model") or ""
    found = _SIZE_IN_NAME.search(model)
    if model in _SIZES or not found:
        return _SIZES.get(model)
    return float(found[1]) * (1e9 if found[2] in "bB" else 1e6)


def _kind(family: str | None) -> str:
    return kind_of(family or "")


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
