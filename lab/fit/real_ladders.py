"""Reads published learning-rate ladders and single runs from files of normalized facts."""

from __future__ import annotations

import json
import math
import re
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
from rksp.classifiers.edge_inputs import OPTIMIZERS, EdgeInputs, Norm
from rksp.ground.errors import ArtifactError
from rksp.ground.files import read_text
from rksp.recipe import Recipe

_OPTIMIZERS = {
    "mini": "adam_mini",
    "soape": "soap",
    "muon+adam": "muon",
    "muon+adamw": "muon",
}
# What `pretrain_more` does not say: the tokens of a sequence, which hardly count, and a number of
# tokens above the one up to which the vocabulary counts.
_SEQUENCE = 1024
_MANY_TOKENS = 32_000
_BYTES_A_TOKEN = 2.4  # of a vocabulary of 1,024, to read bits a byte as nats a token
# Groups that constrain the weights, or say too little about the model.
_LEFT_OUT = ("grug", "spectral", "hyperball")
_MUON_SCALE = "original"  # of public runs that do not say it: their Muon is that of Jordan et al.
_LARGEST = 256 * 2**20  # bytes of a file of runs
_SHORTEST = 2  # rates of a ladder
_STEPS = 1000  # of a schedule whose shape alone counts
_OF_SCHEDULE = ("decay", "min_lr_ratio", "lr_schedule")  # settings whose change undoes a decay


def read_real_ladders(
    paths: Iterable[Path], measured: Mapping[str, Mapping[str, float]] | None = None
) -> list[EdgeLadder]:
    """Read the ladders and single runs of files with a JSON object a line.

    A line with `rates` is a ladder, one with `changed` a run that differs from its base run in
    one setting, one with a list of `warmup_steps` several runs that differ in the warm-up alone,
    one with `trained_well` a published recipe. Rows without a full model and recipe are left out,
    and so are parametrizations that move the edge on purpose (μP).

    Args:
        paths: The files.
        measured: Features at rate 1 by the name that `shape_name` gives.

    Raises:
        InputError: A file cannot be read.
        ArtifactError: A line is not such an object.
    """
    found: list[EdgeLadder] = []
    for path in paths:
        for number, line in enumerate(read_text(path, _LARGEST).splitlines(), start=1):
            try:
                found += _read(json.loads(line), measured or {})
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
        return f"{name}-{_norm(architecture)}"
    if source == OPENLM:
        return f"{name}-h{architecture['heads']}"
    if source == "svg":
        return f"{name}-v{architecture['vocab']}"
    if source == "marin":
        return f"{name}-{optimizer if optimizer in ('lion', 'muon') else 'adam'}"
    return name


def _read(row: Mapping[str, Any], measured: Mapping[str, Mapping[str, float]]) -> list[EdgeLadder]:
    """Return the ladders of one row; none where it says too little."""
    if row.get("method") == "pretrain":
        read = _more(row)
        return [] if read is None else [read]
    if isinstance(row.get("warmup_steps"), list):
        return _warmups(row, measured)
    if "changed" in row:
        read = _single(row, measured)
    elif row.get("trained_well"):
        read = _published(row)
    else:
        read = _ladder(row, measured)
    return [] if read is None else [read]


def _ladder(
    row: Mapping[str, Any], measured: Mapping[str, Mapping[str, float]]
) -> EdgeLadder | None:
    if row["parametrization"] != "SP" or any(part in row["group"] for part in _LEFT_OUT):
        return None
    source = _source(row["group"])
    inputs = _inputs(row["arch"], row["recipe"], source)
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
    optimizer = _OPTIMIZERS.get(optimizer, optimizer)
    known = all((arch.get("hidden_size"), arch.get("layers"), recipe.get("steps")))
    if not known or optimizer not in ("adamw", *OPTIMIZERS):
        return None
    arch["vocab"] = arch["vocab"] or _MANY_TOKENS
    arch["seq_len"] = recipe["seq_len"] or _SEQUENCE
    arch["norm"] = "pre"
    recipe["optimizer"] = optimizer
    recipe["batch_tokens"] = recipe["batch_tokens"] or recipe["batch_sequences"] * arch["seq_len"]
    scale = math.log(2) * _BYTES_A_TOKEN if "bits" in row["metric"] else 1.0
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
    inputs = _inputs(row["arch"], row["recipe"], source)
    rate = math.log10(row["recipe"]["learning_rate"] * inputs.peak_share)
    losses = (row["final_loss"], row["baseline_loss"])
    excess = math.inf if None in losses else losses[0] - losses[1]
    shape = shape_name(source, row["arch"], inputs.optimizer)
    return EdgeLadder(
        name=row["ladder"],
        source=source,
        group=f"{source}-{row['recipe']['optimizer']}",
        shape=shape,
        inputs=inputs,
        low=-math.inf if failed else rate,
        high=rate if failed else math.inf,
        best=None,
        rates=np.array([rate]),
        excess=np.array([excess]),
        failed=np.array([failed]),
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
            EdgeLadder(
                name=f"{shape}-{recipe['steps']}",
                source=OPENLM,
                group=OPENLM,
                shape=shape,
                inputs=_inputs(arch, recipe | {"warmup_steps": length}, OPENLM),
                low=-math.inf if failed else rate,
                high=rate if failed else math.inf,
                best=None,
                rates=np.array([rate]),
                excess=np.array([loss - losses[best]]),
                failed=np.array([failed]),
                measured=measured.get(shape, {}),
                changed=f"warmup_steps={length}",
            )
        )
    return found


def _published(row: Mapping[str, Any]) -> EdgeLadder:
    """Return a run that is known to have trained well: its edge lies above its rate."""
    inputs = _inputs(row["arch"], row["recipe"], PUBLISHED)
    rate = math.log10(row["recipe"]["learning_rate"] * inputs.peak_share)
    return EdgeLadder(
        name=row["id"],
        source=PUBLISHED,
        group=row["group"],
        shape=row["id"],
        inputs=inputs,
        low=rate,
        high=math.inf,
        best=None,
        rates=np.array([rate]),
        excess=np.array([math.nan]),
        failed=np.array([False]),
        changed=PUBLISHED,
    )


def _source(group: str) -> str:
    """Return the repository of a group: what stands before the first dash, but for nanogpt-mup."""
    return "nanogpt" if group.startswith("nanogpt") else group.split("-")[0]


def _inputs(arch: Mapping[str, Any], recipe: Mapping[str, Any], source: str) -> EdgeInputs:
    steps, warmup = int(recipe["steps"]), int(recipe["warmup_steps"] or 0)
    if source == "steplaw" and warmup > steps:
        warmup = steps // 2  # inferred, and doubtful where the run is shorter than it
    betas = recipe.get("betas") or (None, None)
    optimizer = recipe["optimizer"]
    return EdgeInputs(
        width=arch["hidden_size"],
        depth=arch["layers"],
        vocabulary=arch["vocab"],
        sequence_length=arch["seq_len"],
        batch_tokens=recipe["batch_tokens"],
        steps=steps,
        warmup_steps=warmup,
        optimizer=_OPTIMIZERS.get(optimizer, optimizer),
        muon_scale=recipe.get("muon_scale", _MUON_SCALE),
        late_share=_late_share(recipe),
        beta1=betas[0],
        beta2=betas[1],
        norm=_norm(arch),
        family=re.split(r"[^a-z0-9_]", arch.get("family") or "")[0],
        is_parallel=bool(arch.get("parallel")),
        normalizes_branches=bool(arch.get("branch_norm")),
        predicts_next=arch.get("objective", "lm") == "lm",
        init_std=_init_std(arch),
    )


def _init_std(arch: Mapping[str, Any]) -> float | None:
    found = re.search(r"init std ([0-9.]+)", arch.get("notes") or "")
    return float(found[1]) if found else None


def _late_share(recipe: Mapping[str, Any]) -> float:
    """Return the mean rate of the last tenth of a run over its peak."""
    said, least, share = recipe["schedule"] or "", _least(recipe), recipe.get("decay_fraction")
    if "warm-up only" in said or share == 0:
        return 1.0
    schedule = next((name for name in ("linear", "wsd") if said.startswith(name)), "cosine")
    if schedule == "linear" and share is not None:
        schedule = "wsd"  # with a linear decay at its end
    return Recipe(
        schedule=schedule,
        max_steps=_STEPS,
        decay_steps=None if share is None else round(share * _STEPS),
        min_lr_ratio=least,
    ).late_share


def _least(recipe: Mapping[str, Any]) -> float:
    if recipe.get("min_lr_ratio") is not None:
        return float(recipe["min_lr_ratio"])
    if not recipe.get("min_lr"):
        return 0.0
    return min(1.0, recipe["min_lr"] / recipe.get("learning_rate", 2e-3))


def _norm(arch: Mapping[str, Any]) -> Norm:
    words = str(arch["norm"]).split()
    return "none" if words == ["none"] else "post" if "post" in words else "pre"
