"""Convert the lab's ladders to the input of the edge model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lab.fit.edge_ladder import BRIDGE, LAB, PAIRS, EdgeLadder, log_rates
from lab.fit.real_ladders import read_measured, read_real_ladders
from lab.ladders.collection import read_collection, stored_ladders, trivial_loss
from lab.ladders.grid import read_ladder_plan
from lab.ladders.ladder import POLICY, LadderRun
from lab.ladders.measurements import unpack_measurements
from lab.ladders.pairs import LadderPairs
from lab.ladders.plan import LadderSpec
from lab.places import DATA
from lab.zoo.members import ZOO_FAMILIES
from rksp.classifiers.edge_inputs import EdgeInputs, Norm
from rksp.models.families import family_of
from rksp.own_runs.outcome import Outcome

_POST_NORM = ("opt_post", "zoo_post_ln")
# Plans of pairs that are fitted. Of two ladders of one specification, trained on two machines, the
# one of the later plan counts.
PAIR_PLANS = ("families", "models", "levers", "optimizers", "depth", "undecayed")
_MADE_UP = ("recall", "synthetic")  # tasks that are algorithms, not data


def edge_ladders(
    collection: Path | None = None,
    measurements: Path | None = None,
    real: Sequence[Path] = (),
) -> list[EdgeLadder]:
    """Return all ladders that the edge model is fitted on.

    Args:
        collection: Collection of the lab; default the bundled one.
        measurements: Measurements of the lab; default the bundled ones.
        real: Files of public ladders and runs; the bundled ones are always read.

    Returns:
        The ladders.
    """
    measured = unpack_measurements(measurements)
    runs = [run for run in read_collection(collection) if run.spec.id in measured]
    lab = lab_ladders(runs, measured)
    if collection is None:
        lab += _pairs(measured, {x.name for x in lab})
    shipped = DATA / "real"
    public = read_real_ladders(
        [shipped / "published.jsonl", *real], read_measured(shipped / "features.jsonl")
    )
    return [*lab, *public]


def _pairs(measured: Mapping[str, Mapping[str, Any]], known: set[str]) -> list[EdgeLadder]:
    """Return the shipped ladders of plans of pairs without an intervention, each once."""
    packed = stored_ladders(_shipped(PAIR_PLANS))
    runs = {run.spec.id: run for run, _ in packed if not run.spec.interventions}
    found = lab_ladders([run for name, run in runs.items() if name not in known], measured)
    return [replace(x, group=PAIRS) for x in found]


def _shipped(names: Sequence[str]) -> list[Path]:
    """Return the packed ladders of these plans that are shipped."""
    folder = DATA / "runs"
    return [path for name in names if (path := folder / f"{name}.parquet").exists()]


def model_pairs() -> list[tuple[str, str, str, str]]:
    """Return (model, lever, ladder without it, ladder with it) of the plan of pairs of models."""
    design = read_ladder_plan(DATA / "plans" / "models.yaml")
    assert isinstance(design, LadderPairs)
    return [(p.model, p.lever, p.plain.id, p.changed.id) for p in design.pairs()]


def repeated_ladders() -> list[list[str]]:
    """Return the names of the shipped ladders that differ in the seed alone, by what they share."""
    found: dict[str, set[str]] = {}
    for run, _ in stored_ladders(_shipped(("collection", *PAIR_PLANS))):
        shared = run.spec.model_copy(update={"seed": 0}).model_dump_json()
        found.setdefault(shared, set()).add(run.spec.id)
    return [sorted(names) for names in found.values() if len(names) > 1]


def lab_ladders(
    runs: Iterable[LadderRun],
    measurements: Mapping[str, Mapping[str, Any]],
) -> list[EdgeLadder]:
    """Return the ladders that learned and had a finite run, sorted by name.

    Args:
        runs: The trained ladders.
        measurements: By ladder id, as `unpack_measurements` returns them; a ladder
            without a measurement keeps only its configuration.

    Returns:
        The ladders.
    """
    bridge = _bridge()
    found = [_ladder(run, measurements.get(run.spec.id), bridge) for run in runs]
    return sorted((x for x in found if x is not None), key=lambda x: x.name)


def _bridge() -> frozenset[str]:
    """Return the ids of the ladders of the plan `bridge`: ten times the steps of the others."""
    plan = DATA / "plans" / "bridge.yaml"
    return frozenset(spec.id for spec in read_ladder_plan(plan).expand())


def _ladder(
    run: LadderRun,
    measured: Mapping[str, Any] | None,
    bridge: frozenset[str],
) -> EdgeLadder | None:
    judged = run.judge()
    finals = [POLICY.final_loss(curves) for curves in run.curves]
    if judged.edge is None or judged.best_rate is None:
        return None
    if min(finals) >= trivial_loss(run.spec) - POLICY.margin:
        return None
    low, high = judged.edge
    start = float(run.curves[0].loss[0])
    cap = max(start - min(finals), 0.3) if math.isfinite(start) else 5.0
    spec = run.spec
    stored = {} if measured is None else measured["features"]
    values = {name: math.nan if x is None else float(x) for name, x in stored.items()}
    return EdgeLadder(
        name=spec.id,
        source=LAB,
        group=BRIDGE if spec.id in bridge else spec.family,
        shape=f"{spec.shape['hidden_size']}x{spec.shape['num_hidden_layers']}",
        inputs=lab_inputs(spec),
        low=math.log10(low),
        high=math.inf if high is None else math.log10(high),
        best=math.log10(judged.best_rate),
        rates=log_rates(run.rates),
        excess=np.minimum(np.array(judged.excess), cap),
        failed=np.array([outcome.is_failure for outcome in judged.outcomes]),
        diverged=np.array([outcome is Outcome.DIVERGED for outcome in judged.outcomes]),
        measured=values,
        task=spec.task,
        seed=spec.seed,
    )


def lab_inputs(spec: LadderSpec) -> EdgeInputs:
    """Return a lab ladder's configuration."""
    recipe = spec.recipe
    shape: Mapping[str, Any] = spec.shape
    zoo = ZOO_FAMILIES.get(spec.family)
    known = family_of((spec.family,))
    norm: Norm = "post" if spec.family in _POST_NORM or known.post_norm else "pre"
    is_parallel = known.parallel
    if zoo is not None:
        is_parallel = bool(zoo.get("parallel_blocks") or shape.get("parallel_blocks"))
    return EdgeInputs(
        width=shape["hidden_size"],
        depth=shape["num_hidden_layers"],
        vocabulary=shape["vocab_size"],
        sequence_length=recipe.sequence_length,
        batch_tokens=recipe.batch_size * recipe.sequence_length,
        steps=recipe.max_steps,
        warmup_steps=recipe.warmup_steps,
        optimizer=recipe.optimizer,
        muon_scale=recipe.muon_scale,
        late_share=recipe.late_share,
        beta1=recipe.adam_beta1,
        beta2=recipe.adam_beta2,
        norm="none" if spec.family == "zoo_no_norm" else norm,
        family=spec.family,
        is_parallel=is_parallel,
        normalizes_branches=known.branch_norm or (zoo or {}).get("norm") in ("branch", "sandwich"),
        normalizes_qk=known.qk_norm or spec.family == "zoo_qk_norm",
        init_std=_init_std(shape, is_zoo=zoo is not None),
        is_made_up=spec.task in _MADE_UP,
    )


def _init_std(shape: Mapping[str, Any], *, is_zoo: bool) -> float:
    """Return the standard deviation of the initial weights; only the zoo has schemes."""
    scheme, width = shape.get("init_scheme", "normal"), shape["hidden_size"]
    if not is_zoo or scheme == "normal":
        return float(shape["init_std"])
    return 1 / math.sqrt(width if scheme == "fan_in" else 3 * width)
