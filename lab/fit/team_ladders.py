"""Reads ladders, failed runs and recipes of public teams from rows of normalized facts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from lab.fit.edge_ladder import (
    FAILED,
    PUBLISHED,
    TRAINED,
    EdgeLadder,
    bracket,
    log_rates,
)
from lab.fit.stated import (
    BYTES_A_TOKEN,
    MANY_TOKENS,
    SEQUENCE,
    inputs_of,
    optimizer_of,
)
from rksp.classifiers.edge_inputs import OPTIMIZERS

_COURSE = "cs336"  # whose teams share a handout: one model, other hands
_HANDOUT = "summerquest"  # teams of another year, with the same handout
_BLOCKS = {_COURSE: _COURSE, _HANDOUT: _HANDOUT, "edgetalker": _HANDOUT}
# The share of a run that warms up, where a group does not say it: the course's default, nanochat's.
_WARMED = {_COURSE: 0.1, _HANDOUT: 0.1, "lite": 0.05}
_NO_LOSS = ("CORE", "%")  # in the name of a metric of which more may be better
# What a failed run does not say; the course's default is of that length.
_STEPS, _SEQUENCES = 10_000, 128
# Causes that bound the edge.
_OF_THE_RATE = ("rate too high", "no normalisation", "post-norm", "all RMSNorm removed")
_TRAINED_BEFORE = ("lora", "tuning")  # in the kind of a run that starts from trained weights
_PATCHES = 197  # of an image of 224 pixels, in patches of 16, and a token for its class
_STABLE = 0.15  # share of a run that decays at its end, where it is said to be 10 to 20 %
# Developers whose recipes stand in the shipped list too, and those whose ladders are read.
_DEVELOPERS = {"huggingface-smollm": "smollm", "allenai": "olmo", "answerdotai": "modernbert"}
_HAVE_LADDERS = (
    *("mlfoundations-dclm", "cs336-coldink4"),
    *(_HANDOUT, "edgetalker", "multi-head-mhc", "svg-ayushs2k1"),
)


def block_of(source: str) -> str:
    """Return the design that a source shares with others; "" where it has its own."""
    return next((block for name, block in _BLOCKS.items() if source.startswith(name)), "")


def team_ladder(row: Mapping[str, Any]) -> EdgeLadder | None:
    """Return a team's ladder; None where it says too little or is not to be trusted.

    A run that has no loss and did not fail is a rate that passes. Where the metric is no loss, the
    rates that trained are all that counts. Left out are weights that are constrained, and rates of
    a part of the weights.
    """
    arch, recipe = _whole(row)
    is_other = "ngpt" in (arch.get("family") or "") or "matrix group" in (row.get("notes") or "")
    is_other = is_other or row.get("parametrization", "SP") != "SP"
    if not _is_known(arch, recipe) or row["trust"] == "low" or is_other:
        return None
    family = arch.get("family") or ""
    arch["objective"] = "other" if family == "vit" else "mlm" if "masked" in family else "lm"
    source = row["group"].replace("-", "_")
    inputs = inputs_of(arch, recipe, source)
    order = np.argsort(row["rates"])
    rates = log_rates(np.array(row["rates"], float)[order] * inputs.peak_share)
    failed, diverged = (np.array(row[name], bool)[order] for name in ("failed", "diverged"))
    shared: dict[str, Any] = {
        "name": row["id"],
        "source": source,
        "group": row["group"],
        "shape": f"{source}-{inputs.width}x{inputs.depth}",
        "inputs": inputs,
        "block": block_of(source),
        "team": str(row["source"]).partition("@")[0],
    }
    if any(word in row["metric"] for word in _NO_LOSS):
        trained = float(rates[~failed].max())
        return EdgeLadder.of_one_run(trained, False, math.nan, **shared, changed=TRAINED)
    scale = math.log(2) * BYTES_A_TOKEN if "bpb" in row["metric"] else 1.0
    losses = np.array([math.nan if x is None else x * scale for x in row["final_loss"]])[order]
    passed = rates[~np.isfinite(losses) & ~failed]
    told = np.isfinite(losses) | failed
    rates, losses, failed, diverged = (x[told] for x in (rates, losses, failed, diverged))
    low, high, best, broke = bracket(10**rates, losses, failed | diverged)
    excess = np.where(np.isfinite(losses), losses, math.inf) - losses[best]
    return EdgeLadder(
        **shared,
        low=max([low, *passed[passed < high].tolist()]),
        high=high,
        best=float(rates[best]),
        rates=rates,
        excess=np.minimum(excess, max(math.log(inputs.vocabulary) - losses[best], 1.0)),
        failed=broke,
        diverged=diverged & broke,
    )


def failed_run(row: Mapping[str, Any]) -> EdgeLadder | None:
    """Return a run that failed for its rate, which bounds the edge from above; None for others."""
    arch, recipe = _whole(row)
    rate, cause = recipe.get("learning_rate"), row.get("cause") or ""
    if any(word in row["kind"] for word in _TRAINED_BEFORE):
        return None
    recipe["optimizer"] = optimizer_of(recipe["optimizer"] or "adamw")
    recipe["steps"] = recipe.get("steps") or _STEPS
    recipe["batch_tokens"] = recipe["batch_tokens"] or _SEQUENCES * arch["seq_len"]
    is_image = "vision" in row["kind"]
    if not rate or not cause.startswith(_OF_THE_RATE) or is_image or not _is_known(arch, recipe):
        return None
    arch["objective"] = "mlm" if "mlm" in row["kind"] else "lm"
    if recipe["warmup_steps"] is None:
        recipe["warmup_steps"] = round(_WARMED[_COURSE] * recipe["steps"])
    source = row["group"].replace("-", "_")
    inputs = inputs_of(arch, recipe, source)
    return EdgeLadder.of_one_run(
        *(math.log10(rate * inputs.peak_share), True, math.inf),
        changed=FAILED,
        name=row["id"],
        source=source,
        group=row["group"],
        shape=row["id"],
        inputs=inputs,
        block=block_of(source),
        team=source,
    )


def whole_recipe(row: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return a published recipe with what it leaves open filled in; None if that is too much."""
    if row["group"].startswith(PUBLISHED):
        return row
    arch, recipe = _whole(row)
    if "vision" in row["kind"] and not row["recipe"].get("batch_tokens"):
        recipe["batch_tokens"] = (recipe.get("batch_sequences") or 0) * _PATCHES
    if not _is_known(arch, recipe) or row["group"].startswith(_HAVE_LADDERS):
        return None
    arch["objective"] = "lm" if row["kind"] in ("decoder", "moe decoder") else "other"
    if "mlm" in row["kind"]:
        arch["objective"] = "mlm"
    recipe["warmup_steps"] = recipe["warmup_steps"] or 0
    developer = _DEVELOPERS.get(row["group"], row["group"])
    return {**row, "arch": arch, "recipe": recipe, "group": f"{PUBLISHED}-{developer}"}


def _whole(row: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the model and the recipe of a row, with the usual values of what hardly counts."""
    arch, recipe = dict(row["arch"]), dict(row["recipe"])
    arch["seq_len"] = arch.get("seq_len") or SEQUENCE
    arch["vocab"] = arch.get("vocab") or MANY_TOKENS
    recipe["optimizer"] = optimizer_of(recipe["optimizer"]) if recipe.get("optimizer") else None
    tokens = recipe.get("batch_tokens") or (recipe.get("batch_sequences") or 0) * arch["seq_len"]
    recipe["batch_tokens"] = tokens
    if not recipe.get("steps") and recipe.get("tokens") and tokens:
        recipe["steps"] = round(recipe["tokens"] / tokens)
    recipe["warmup_steps"] = recipe.get("warmup_steps")
    if recipe["warmup_steps"] is None and recipe.get("steps"):
        share = _WARMED.get(row["group"].split("-")[0])
        recipe["warmup_steps"] = None if share is None else round(share * recipe["steps"])
    said = recipe.get("schedule") or ""
    recipe["schedule"] = "warm-up only" if "constant" in said else said
    if "last half" in said:
        recipe["decay_fraction"] = 0.5
    elif said.startswith("wsd"):
        recipe["decay_fraction"] = _STABLE
    return arch, recipe


def _is_known(arch: Mapping[str, Any], recipe: Mapping[str, Any]) -> bool:
    facts = (arch.get("hidden_size"), arch.get("layers"), recipe.get("steps"))
    return all((*facts, recipe["batch_tokens"])) and recipe["optimizer"] in ("adamw", *OPTIMIZERS)
