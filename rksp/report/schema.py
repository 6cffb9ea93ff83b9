"""The report: one schema-checked document that every rendering is made from."""

from __future__ import annotations

import json
import math
from typing import Literal

from pydantic import BaseModel, ConfigDict

from rksp.recipe import Recipe

SCHEMA_VERSION = "1.0"


class Part(BaseModel):
    """Base of every part: frozen, and no field that the schema does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TargetReport(Part):
    """What was scored."""

    name: str
    kind: str
    task: str
    model_type: str | None
    parameters: int | None
    is_pretrained: bool
    config_hash: str | None
    blocks: list[tuple[str, int]]
    width: int
    probe: str


class LayerReport(Part):
    """One block: its spectrum, its scales, and how far both can be trusted."""

    layer: int
    name: str
    status: str
    status_detail: str
    states: int
    rank: int
    near_unit_mass: float | None
    expansive_mass: float | None
    contractive_mass: float | None
    spectral_radius: float | None
    eigenvector_condition: float | None
    nonnormality: float | None
    energy_gain: float | None
    nonlinearity: float | None
    update_ratio: float | None
    noise_radius: float | None
    held_out_residual: float | None
    kreiss: float | None
    rms_in: float | None
    rms_out: float | None
    eigenvalues: list[tuple[float, float]]


class SpectraReport(Part):
    """The blocks together, under one named definition."""

    variant: str
    reading: str
    reason: str
    coverage: float
    published_score: float | None
    aggregates: dict[str, dict[str, float | None]]
    layers: list[LayerReport]


class ForwardReport(Part):
    """What else the forward pass showed; see `rksp.measure.forward.ForwardStats`."""

    loss: float | None
    uniform_loss: float | None
    logit_std: float | None
    activation_absmax: float | None
    activation_name: str | None
    attention_logit_std: float | None
    attention_entropy: float | None
    attention_collapsed_heads: int | None
    router_entropy: float | None
    router_max_violation: float | None
    aligned_response: float | None
    not_measured: dict[str, str]


class ResponseReport(Part):
    """The reaction to the first update; see `rksp.measure.response.ResponseProfile`."""

    grad_norm: float | None
    grad_max: float | None
    critical_rate: float | None
    output_slope: float | None
    overshoot: float | None
    forward_passes: float
    reason: str | None


class RiskReport(Part):
    """The answer; see `rksp.risk.RiskAssessment`. Probabilities lie between 0 and 1."""

    verdict: Literal["ok", "risk", "indeterminate"]
    reasons: list[str]
    evidence: str
    horizon_steps: int
    probability_failed: float | None
    probability_failed_low: float | None
    probability_failed_high: float | None
    probability_diverged: float | None
    safe_learning_rate: float | None
    likely_edge: float | None
    risk: float
    threshold: float
    curve: list[tuple[float, float, float, float]]
    contributions: list[tuple[str, float]]
    outside: dict[str, float]
    counterfactual: str | None
    classifier_data: str | None


class FindingReport(Part):
    """One thing that a check saw; see `rksp.checks.finding.Finding`."""

    code: str
    name: str
    level: Literal["error", "warning", "note"]
    message: str
    value: float | None
    healthy: str
    fix: str
    source: str
    layer: str


class KernelReport(Part):
    """Which implementation of an operation ran, and why; see `rksp.kernels.dispatch`."""

    op: str
    implementation: Literal["reference", "triton"]
    reason: str


class ChangeReport(Part):
    """One issue against an older report; see `rksp.report.diff`."""

    state: Literal["new", "worse", "better", "fixed", "unchanged"]
    code: str
    name: str
    layer: str
    level: Literal["error", "warning", "note"]
    was: Literal["error", "warning", "note"] | None
    message: str


class ComparisonReport(Part):
    """A report against an older one. Each pair is (old, new)."""

    target: tuple[str, str]
    verdict: tuple[str, str]
    changes: list[ChangeReport]
    settings: dict[str, tuple[str | None, str | None]]
    numbers: dict[str, tuple[float | None, float | None]]
    notes: list[str]


class GateReport(Part):
    """What the exit code was decided by: `failed` means 1, unless `--exit-zero` was given."""

    fail_on: str
    failed: bool
    issues: list[str]
    reasons: list[str]


class SeedReport(Part):
    """Everything measured at one seed."""

    seed: int
    spectra: SpectraReport
    forward: ForwardReport
    response: ResponseReport | None
    risk: RiskReport | None
    risk_missing: str | None


class Report(Part):
    """One run of `rksp score`.

    `findings` are those of the first seed. `seeds` holds one entry per initialization, `spread` the
    mean, standard deviation, lowest and highest over them of the numbers that people compare.
    `kernels` says which implementations ran, `gate` what decided the exit code, `baseline` what
    changed since an older report. `recipe_places` says at which file and line a field of the recipe
    stands, for those that were read from a file. `non_finite` lists the paths of numbers that were
    infinite or undefined: JSON has no word for them, so they stand as null. Only `timings` differs
    between two runs of the same command.
    """

    schema_version: Literal["1.0"] = SCHEMA_VERSION
    target: TargetReport
    recipe: Recipe
    verdict: Literal["ok", "risk", "indeterminate", "not assessed"]
    findings: list[FindingReport]
    seeds: list[SeedReport]
    spread: dict[str, dict[str, float]]
    provenance: dict[str, str | int | float | bool | None]
    kernels: list[KernelReport]
    gate: GateReport | None = None
    baseline: ComparisonReport | None = None
    non_finite: list[str] = []
    recipe_places: dict[str, tuple[str, int]] = {}
    timings: dict[str, float]

    def finite(self) -> Report:
        """As it will be read again: keys in order; what is not finite is None, and listed."""
        return Report.model_validate(_clean(self))

    def to_json(self) -> str:
        """Sorted keys and no NaN; the same bytes for the same numbers."""
        return json.dumps(_clean(self), sort_keys=True, allow_nan=False, indent=1) + "\n"


def _clean(report: Report) -> dict[str, object]:
    missing: list[str] = []
    content = _finite(report.model_dump(mode="python"), "", missing)
    return content | {"non_finite": sorted(set(missing) | set(report.non_finite))}


def _finite(value: object, path: str, missing: list[str]) -> object:
    if isinstance(value, dict):
        return {key: _finite(value[key], f"{path}/{key}", missing) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [_finite(part, f"{path}/{i}", missing) for i, part in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        missing.append(path)
        return None
    return value
