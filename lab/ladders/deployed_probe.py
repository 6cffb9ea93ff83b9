"""Measure the lab's models with the probe that `rksp score` shows a user's model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from lab.fit.edge_ladder import LAB, EdgeLadder
from lab.ladders.collection import read_collection
from lab.ladders.plan import LadderSpec
from lab.zoo import build_member
from rksp.assessment.pipeline import gather, gradient_of
from rksp.datasets.probe import make_probe
from rksp.documents.options import MeasureOptions
from rksp.ground.model import definite
from rksp.models.given import module_source
from rksp.spectra.features import extract


def deployed_features(
    ladders: Sequence[EdgeLadder], count: int, collection: Path | None = None
) -> dict[str, Mapping[str, float]]:
    """Measure evenly chosen lab models again, with the default probe in place of their own data.

    Args:
        ladders: All ladders; those of the lab that were measured are chosen from.
        count: How many models are measured, at most.
        collection: Where the lab's ladders are; None for the shipped one.

    Returns:
        The features by ladder.
    """
    specs = {run.spec.id: run.spec for run in read_collection(collection)}
    lab = [x for x in ladders if x.source == LAB and x.measured and x.name in specs]
    chosen = np.linspace(0, len(lab) - 1, min(count, len(lab))).astype(int)
    return {lab[i].name: _measure(specs[lab[i].name]) for i in chosen}


def _measure(spec: LadderSpec) -> Mapping[str, float]:
    net = build_member(spec.family, spec.shape, seed=spec.seed).eval()
    is_zoo = not hasattr(net.config, "model_type")  # rksp brings no batch for these
    batch = cast(Any, make_probe(net.config).inputs)["input_ids"] if is_zoo else None
    evidence = gather(module_source(net, batch), MeasureOptions())
    gradient = gradient_of(evidence, spec.recipe, lambda done, total, label: None)
    return extract(
        definite(evidence.profile).forward, definite(evidence.profile).spectra, gradient
    ).values
