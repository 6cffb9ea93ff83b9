"""What the measured columns of the lab's models are with the probe that `rksp score` shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rksp.classifiers.edge_inputs import MEASURED_COLUMNS
from rksp.classifiers.edge_ladder import LAB, EdgeLadder
from rksp.classifiers.edge_model import EdgeModel
from rksp.datasets.probe import make_probe
from rksp.features import extract
from rksp.lab.ladder import LadderRun
from rksp.lab.plan import LadderSpec
from rksp.models.zoo import build_member
from rksp.spectra.model_profile import profile


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeShift:
    """One lab model, measured with its own task's batches and with the probe of `rksp score`.

    Attributes:
        fitted: The features that the fit saw, by name.
        deployed: The features with the default probe, by name.
        moved: How far the likely edge moves from the first to the second, in decades.
    """

    fitted: Mapping[str, float]
    deployed: Mapping[str, float]
    moved: float


def probe_shifts(
    ladders: Sequence[EdgeLadder], runs: Sequence[LadderRun], model: EdgeModel, count: int
) -> list[ProbeShift]:
    """Measure evenly chosen lab models again, with the probe that a user's model gets.

    Args:
        ladders: All ladders; those of the lab are measured.
        runs: The lab's ladders with their specifications.
        model: Says how far the edge moves.
        count: How many models are measured.

    Returns:
        One shift a model.
    """
    specs = {run.spec.id: run.spec for run in runs}
    lab = [x for x in ladders if x.source == LAB and x.measured and x.name in specs]
    chosen = [lab[i] for i in np.linspace(0, len(lab) - 1, min(count, len(lab))).astype(int)]
    found = []
    for ladder in chosen:
        deployed = _measure(specs[ladder.name])
        one, other = (
            model.predict(ladder.inputs, values).log_edge for values in (ladder.measured, deployed)
        )
        found.append(ProbeShift(fitted=ladder.measured, deployed=deployed, moved=other - one))
    return found


def _measure(spec: LadderSpec) -> Mapping[str, float]:
    net = build_member(spec.family, spec.shape, seed=spec.seed).eval()
    probe = make_probe(net.config)
    is_zoo = not hasattr(net.config, "model_type")  # the zoo's own models take one tensor
    seen = profile(net, probe.inputs["input_ids"] if is_zoo else probe.batch)
    return extract(seen.forward, seen.spectra).values


def shift_markdown(shifts: Sequence[ProbeShift]) -> str:
    """Say how far each measured column and the edge move."""
    lines = [
        f"### The probe of `rksp score` instead of the run's batches, {len(shifts)} lab models"
    ]
    for column in MEASURED_COLUMNS:
        pairs = np.array([(x.fitted[column.name], x.deployed[column.name]) for x in shifts])
        pairs = pairs[np.isfinite(pairs).all(axis=1)]
        gap = pairs[:, 1] - pairs[:, 0]
        lines += [
            "",
            f"`{column.name}` changes by {np.median(gap):+.3f} in the median and by "
            f"{np.quantile(np.abs(gap), 0.9):.3f} at most in nine of ten; the two correlate with "
            f"{np.corrcoef(pairs.T)[0, 1]:.2f}.",
        ]
    moved = np.abs([x.moved for x in shifts])
    lines[-1] += (
        f" The likely edge moves by {np.median(moved):.3f} decades in the median, by "
        f"{np.quantile(moved, 0.9):.3f} in nine of ten, by {moved.max():.3f} at most."
    )
    return "\n".join(lines)
