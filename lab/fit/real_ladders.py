"""Reads published learning-rate ladders and single runs from files of normalized facts."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lab.fit.edge_ladder import (
    MARGIN,
    OPENLM,
    PUBLISHED,
    EdgeLadder,
    bracket,
    log_rates,
)
from lab.fit.stated import (
    BYTES_A_TOKEN,
    MANY_TOKENS,
    SEQUENCE,
    inputs_of,
    norm_of,
    optimizer_of,
)
from lab.fit.team_ladders import block_of, failed_run, team_ladder, whole_recipe
from rksp.classifiers.edge_inputs import OPTIMIZERS
from rksp.ground.errors import ArtifactError
from rksp.ground.files import read_text

# Groups that constrain the weights, or say too little about the model.
_LEFT_OUT = ("grug", "spectral", "hyperball")
_LARGEST = 256 * 2**20  # bytes of a file of runs
_SHORTEST = 2  # rates of a ladder
_OF_SCHEDULE = ("decay", "min_lr_ratio", "lr_schedule")  # settings whose change undoes a decay


def read_real_ladders(
    paths: Iterable[Path],
    measured: Mapping[str, Mapping[str, float]] | None = None,
    *,
    unfinished: bool = False,
) -> list[EdgeLadder]:
    """Read the ladders and single runs of files with a JSON object a line.

    A line with `rates` is a ladder, one with `changed` a run that differs from its base run in
    one setting, one with a list of `warmup_steps` several runs that differ in the warm-up alone,
    one with `trained_well` a published recipe, one with a `cause` a run that failed. Rows
    without a full model and recipe are left out, and so are parametrizations that move the edge on
    purpose (μP).

    Args:
        paths: The files.
        measured: Features at rate 1 by the name that `shape_name` gives.
        unfinished: Recipes count of which nobody knows yet how they ended.

    Raises:
        InputError: A file cannot be read.
        ArtifactError: A line is not such an object.
    """
    found: list[EdgeLadder] = []
    for path in paths:
        for number, line in enumerate(read_text(path, _LARGEST).splitlines(), start=1):
            try:
                row = json.loads(line)
                if unfinished and row.get("trained_well", True) is None:
                    row["trained_well"] = True
                found += _read(row, measured or {})
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                raise ArtifactError(f"{path.name}, line {number}, is no run: {error!r}.") from error
    return found


def read_measured(path: Path) -> dict[str, dict[str, float]]:
    """Read features at rate 1 of real shapes, by name; those of seed 0.

    Raises:
        ArtifactError: The file is missing or damaged.
    """
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return {
            row["shape"]: {
                k: math.nan if v is None else float(v) for k, v in row["features"].items()
            }
            for row in rows
            if row["seed"] == 0
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"{path.name} holds no features of shapes: {error!r}.") from error


def shape_name(source: str, architecture: Mapping[str, Any], optimizer: str) -> str:
    """Name a real shape: what is left out together, and what was measured.

    What is measured of the response depends on the optimizer's first step, which all relatives of
    Adam share.
    """
    width, depth = architecture["hidden_size"], architecture["layers"]
    name = f"{source}-{width}x{depth}"
    if architecture.get("experts"):
        return f"{name}-e{architecture['experts']}k{architecture['top_k']}"
    if source == "cs336":
        return f"{name}-{norm_of(architecture)}"
    if source == OPENLM:
        return f"{name}-h{architecture['heads']}"
    if source == "svg":
        return f"{name}-v{architecture['vocab']}"
    if source == "marin":
        return f"{name}-{optimizer if optimizer in ('lion', 'muon') else 'adam'}"
    return name


def _read(row: Mapping[str, Any], measured: Mapping[str, Mapping[str, float]]) -> list[EdgeLadder]:
    """Return the ladders of one row; none where it says too little."""
    if "method" in row:  # of fine-tuning where it is another one
        of_pretraining = team_ladder if "trust" in row else _more
        read = of_pretraining(row) if row["method"] == "pretrain" else None
        return [] if read is None else [read]
    if "cause" in row:
        read = failed_run(row)
        return [] if read is None else [read]
    if isinstance(row.get("warmup_steps"), list):
        return _warmups(row, measured)
    if "changed" in row:
        read = _single(row, measured)
    elif "trained_well" in row:
        stated = whole_recipe(row) if row["trained_well"] else None
        read = None if stated is None else _published(stated)
    else:
        read = _ladder(row, measured)
    return [] if read is None else [read]


def _ladder(
    row: Mapping[str, Any], measured: Mapping[str, Mapping[str, float]]
) -> EdgeLadder | None:
    if row["parametrization"] != "SP" or any(part in row["group"] for part in _LEFT_OUT):
        return None
    source = _source(row["group"])
    inputs = inputs_of(row["arch"], row["recipe"], source)
    order = np.argsort(row["rates"])
    rates = np.array(row["rates"], float)[order] * inputs.peak_share
    losses = np.array([math.nan if x is None else x for x in row["final_loss"]], float)[order]
    if len(rates) < _SHORTEST or not np.isfinite(losses).any():
        return None
    diverged = np.array(row["diverged"], bool)[order]
    low, high, best, failed = bracket(rates, losses, diverged)
    cap = max(math.log(inputs.vocabulary) - losses[best], 1.0)
    excess = np.where(np.isfinite(losses), losses, math.inf) - losses[best]
    shape = shape_name(source, row["arch"], inputs.optimizer)
    return EdgeLadder(
        name=row["id"],
        source=source,
        group=row["group"],
        shape=shape,
        inputs=inputs,
        low=low,
        high=high,
        best=math.log10(rates[best]),
        rates=log_rates(rates),
        excess=np.minimum(excess, cap),
        failed=failed,
        diverged=diverged & failed,
        measured=measured.get(shape, {}),
        block=block_of(source),
        team=str(row.get("source", "")).partition("@")[0],
    )


def _more(row: Mapping[str, Any]) -> EdgeLadder | None:
    """Return a ladder of `pretrain_more`; None where it says too little.

    Single runs of AlgoPerf are left out: its trials differ in several settings at once, and a
    vision model fails at a sixth of a rate at which others pass.
    """
    if "rates" not in row:
        return None
    arch, recipe = dict(row["arch"]), dict(row["recipe"])
    optimizer = recipe["optimizer"].split(" (")[0]
    optimizer = optimizer_of(optimizer)
    known = all((arch.get("hidden_size"), arch.get("layers"), recipe.get("steps")))
    if not known or optimizer not in ("adamw", *OPTIMIZERS):
        return None
    arch["vocab"] = arch["vocab"] or MANY_TOKENS
    arch["seq_len"] = recipe["seq_len"] or SEQUENCE
    arch["norm"] = "pre"
    recipe["optimizer"] = optimizer
    recipe["batch_tokens"] = recipe["batch_tokens"] or recipe["batch_sequences"] * arch["seq_len"]
    scale = math.log(2) * BYTES_A_TOKEN if "bits" in row["metric"] else 1.0
    losses = [None if x is None else x * scale for x in row["final_loss"]]
    group = row["group"].replace("-", "_")  # one source, whatever it is called
    whole = {"arch": arch, "recipe": recipe, "parametrization": "SP", "group": group}
    return _ladder({**row, **whole, "diverged": row["failed"], "final_loss": losses}, {})


def _single(row: Mapping[str, Any], measured: Mapping[str, Mapping[str, float]]):
    setting = row["changed"].split("=")[0]
    if setting in ("Baseline", "learning_rate"):  # these are in the ladders
        return None
    if row["recipe"]["learning_rate"] is None or (
        row["final_loss"] is None and not row["diverged"]
    ):
        return None
    failed = bool(row["failed"])
    if failed and not row["diverged"] and setting in _OF_SCHEDULE:
        return None  # it ends above a base that decays more, which says nothing of its rate
    source = _source(row["ladder"])
    inputs = inputs_of(row["arch"], row["recipe"], source)
    rate = math.log10(row["recipe"]["learning_rate"] * inputs.peak_share)
    losses = (row["final_loss"], row["baseline_loss"])
    excess = math.inf if None in losses else losses[0] - losses[1]
    shape = shape_name(source, row["arch"], inputs.optimizer)
    return EdgeLadder.of_one_run(
        *(rate, failed, excess),
        name=row["ladder"],
        source=source,
        group=f"{source}-{row['recipe']['optimizer']}",
        shape=shape,
        inputs=inputs,
        measured=measured.get(shape, {}),
        changed=row["changed"],
    )


def _warmups(
    row: Mapping[str, Any], measured: Mapping[str, Mapping[str, float]]
) -> list[EdgeLadder]:
    """Return runs of one model at one rate with several warm-ups.

    A run has failed if it ends `MARGIN` above the best and its warm-up is shorter: a longer one
    that ends higher does not show too high a rate.
    """
    arch, recipe = row["arch"], row["recipe"]
    losses = np.array(row["final_loss"], float)
    lengths = np.array(row["warmup_steps"], int)
    best = int(np.argmin(losses))
    rate = math.log10(recipe["learning_rate"])
    shape = shape_name(OPENLM, arch, "adamw")
    found = []
    for length, loss in zip(lengths.tolist(), losses.tolist(), strict=True):
        failed = loss > losses[best] + MARGIN and length < lengths[best]
        found.append(
            EdgeLadder.of_one_run(
                *(rate, failed, loss - losses[best]),
                name=f"{shape}-{recipe['steps']}",
                source=OPENLM,
                group=OPENLM,
                shape=shape,
                inputs=inputs_of(arch, recipe | {"warmup_steps": length}, OPENLM),
                measured=measured.get(shape, {}),
                changed=f"warmup_steps={length}",
            )
        )
    return found


def _published(row: Mapping[str, Any]) -> EdgeLadder:
    """Return a run that is known to have trained well: its edge lies above its rate."""
    inputs = inputs_of(row["arch"], row["recipe"], PUBLISHED)
    rate = math.log10(row["recipe"]["learning_rate"] * inputs.peak_share)
    return EdgeLadder.of_one_run(
        *(rate, False, math.nan),
        name=row["id"],
        source=PUBLISHED,
        group=row["group"],
        shape=row["id"],
        inputs=inputs,
        changed=PUBLISHED,
    )


def _source(group: str) -> str:
    """Return the repository of a group: what stands before the first dash, but for nanogpt-mup."""
    return "nanogpt" if group.startswith("nanogpt") else group.split("-")[0]
