"""Reads what a row of facts states of a model and its recipe: the inputs of the edge model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rksp.classifiers.edge_inputs import EdgeInputs, Norm
from rksp.models.families import family_of
from rksp.recipe import Recipe

# What a row does not state: the tokens of a sequence, which hardly count, and a number of tokens
# above the one up to which the vocabulary counts.
SEQUENCE, MANY_TOKENS = 1024, 32_000
BYTES_A_TOKEN = 2.4  # of a vocabulary of 1,024, to read bits a byte as nats a token
_OPTIMIZERS = {
    "adam": "adamw",
    "sgd-m": "sgd",
    "mini": "adam_mini",
    "soape": "soap",
    "muon+adam": "muon",
    "muon+adamw": "muon",
}
_MUON_SCALE = "original"  # of public runs that do not say it: their Muon is that of Jordan et al.
_MASKED = ("mlm", "rtd")  # masked text, and text of which tokens are replaced
_STEPS = 1000  # of a schedule whose shape alone counts


def optimizer_of(name: str) -> str:
    """Return rksp's name of an optimizer."""
    return _OPTIMIZERS.get(name, name)


def inputs_of(arch: Mapping[str, Any], recipe: Mapping[str, Any], source: str) -> EdgeInputs:
    """Return the inputs of a row's model and recipe; `source` is where it is from.

    Raises:
        LookupError: The row lacks a fact.
    """
    steps, warmup = int(recipe["steps"]), int(recipe["warmup_steps"] or 0)
    if source == "steplaw" and warmup > steps:
        warmup = steps // 2  # inferred, and doubtful where the run is shorter than it
    betas = recipe.get("betas") or (None, None)
    return EdgeInputs(
        width=arch["hidden_size"],
        depth=arch["layers"],
        vocabulary=arch["vocab"],
        sequence_length=arch["seq_len"],
        batch_tokens=recipe["batch_tokens"],
        steps=steps,
        warmup_steps=warmup,
        optimizer=optimizer_of(recipe["optimizer"]),
        muon_scale=recipe.get("muon_scale", _MUON_SCALE),
        late_share=_late_share(recipe),
        beta1=betas[0],
        beta2=betas[1],
        norm=norm_of(arch),
        family=_family(arch),
        is_parallel=bool(arch.get("parallel")),
        normalizes_branches=bool(arch.get("branch_norm")) or "after" in str(arch.get("norm")),
        normalizes_qk=_normalizes_qk(arch),
        predicts_next=arch.get("objective", "lm") == "lm",
        masks=arch.get("objective") in _MASKED,
        init_std=_init_std(arch),
    )


def _normalizes_qk(arch: Mapping[str, Any]) -> bool:
    said = str(arch.get("norm"))
    return ("qk" in said and "no qk" not in said) or family_of((_family(arch),)).qk_norm


def _family(arch: Mapping[str, Any]) -> str:
    return re.split(r"[^a-z0-9_]", arch.get("family") or "")[0]


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


def norm_of(arch: Mapping[str, Any]) -> Norm:
    """Return where the blocks normalize; a row that does not say it has the norm of its family."""
    if not arch.get("norm"):
        return "post" if family_of((_family(arch),)).post_norm else "pre"
    words = re.split(r"[ _-]", str(arch["norm"]))
    return "none" if words == ["none"] else "post" if "post" in words else "pre"
