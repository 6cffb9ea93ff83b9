"""From measurements to the report."""

from __future__ import annotations

import dataclasses
import platform
import statistics
from collections.abc import Sequence
from importlib.metadata import version

import torch

from rksp.classifiers.classifier import load_classifier
from rksp.errors import ArtifactError
from rksp.kernels import dispatch
from rksp.measure.forward import BlockStats
from rksp.models.source import ModelSource
from rksp.pipeline import Evaluation
from rksp.recipe import Recipe
from rksp.report.schema import (
    FindingReport,
    ForwardReport,
    KernelReport,
    LayerReport,
    Report,
    ResponseReport,
    RiskReport,
    SeedReport,
    SpectraReport,
    TargetReport,
)
from rksp.risk import HORIZON_STEPS, RiskAssessment
from rksp.spectra.spectrum import LayerSpectrum

_CONCERN = ("risk", "indeterminate", "not assessed", "ok")  # worst first


def build_report(
    source: ModelSource, recipe: Recipe, evaluations: Sequence[Evaluation], probe: str
) -> Report:
    """The report of one or more seeds of the same target and recipe, with finite numbers only."""
    first = evaluations[0]
    config = source.config
    verdicts = [e.risk.verdict.value if e.risk else "not assessed" for e in evaluations]
    seeds = [_seed(evaluation) for evaluation in evaluations]
    return Report(
        target=TargetReport(
            name=source.target,
            kind=source.kind,
            task=source.task,
            model_type=getattr(config, "model_type", None),
            parameters=source.num_parameters,
            is_pretrained=source.is_pretrained,
            config_hash=source.config_hash,
            blocks=list(first.profile.chains),
            width=first.profile.width,
            probe=probe,
        ),
        recipe=recipe,
        verdict=prevailing(verdicts),
        findings=[FindingReport(**dataclasses.asdict(finding)) for finding in first.findings],
        seeds=seeds,
        spread=_spread(seeds),
        provenance={
            "rksp": version("rksp"),
            "torch": torch.__version__,
            "transformers": version("transformers"),
            "python": platform.python_version(),
            "dtype": "float32",
            "states": first.profile.states,
            "variant": first.profile.spectra.variant,
            "weights": first.weights,
        },
        kernels=[
            KernelReport(op=choice.op, implementation=choice.implementation, reason=choice.reason)
            for choice in sorted(dispatch.explain(), key=lambda choice: (choice.op, choice.reason))
        ],
        timings={
            f"{step} (seed {evaluation.seed})": round(seconds, 3)
            for evaluation in evaluations
            for step, seconds in evaluation.seconds.items()
        },
    ).finite()


def prevailing(verdicts: Sequence[str]) -> str:
    """The most frequent verdict over the seeds; of equally frequent ones the worst."""
    return min(statistics.multimode(verdicts), key=_CONCERN.index)


def _seed(evaluation: Evaluation) -> SeedReport:
    spectra, forward = evaluation.profile.spectra, evaluation.profile.forward
    response = evaluation.response
    attention, routers = forward.attention, forward.routers
    scales = {block.name: block for block in forward.blocks}
    return SeedReport(
        seed=evaluation.seed,
        spectra=SpectraReport(
            variant=spectra.variant,
            reading=spectra.reading,
            reason=spectra.reason,
            coverage=spectra.coverage,
            published_score=spectra.published_score,
            aggregates={name: dict(values) for name, values in spectra.aggregates.items()},
            layers=[_layer(layer, scales[layer.name]) for layer in spectra.layers],
        ),
        forward=ForwardReport(
            loss=forward.loss,
            uniform_loss=forward.uniform_loss,
            logit_std=forward.logit_std,
            activation_absmax=forward.activation_absmax,
            activation_name=forward.activation_name,
            attention_logit_std=max((a.logit_std for a in attention), default=None),
            attention_entropy=min((a.entropy for a in attention), default=None),
            attention_collapsed_heads=(
                sum(a.collapsed_heads for a in attention) if attention else None
            ),
            router_entropy=min((r.entropy for r in routers), default=None),
            router_max_violation=max((r.max_violation for r in routers), default=None),
            aligned_response=forward.aligned_response,
            not_measured=dict(forward.not_measured),
        ),
        response=None
        if response is None
        else ResponseReport(
            grad_norm=response.grad_norm,
            grad_max=response.grad_max,
            critical_rate=response.critical_rate,
            output_slope=response.output_slope,
            overshoot=response.overshoot,
            forward_passes=response.forward_passes,
            reason=response.reason,
        ),
        risk=None if evaluation.risk is None else _risk(evaluation.risk),
        risk_missing=evaluation.risk_missing,
    )


def _layer(layer: LayerSpectrum, scale: BlockStats) -> LayerReport:
    return LayerReport(
        layer=layer.layer,
        name=layer.name,
        status=layer.status.value,
        status_detail=layer.status_detail,
        states=layer.states,
        rank=layer.modes,
        near_unit_mass=layer.near_unit_mass,
        expansive_mass=layer.expansive_mass,
        contractive_mass=layer.contractive_mass,
        spectral_radius=layer.spectral_radius,
        eigenvector_condition=layer.eigenvector_condition,
        nonnormality=layer.nonnormality,
        energy_gain=layer.energy_gain,
        nonlinearity=layer.nonlinearity,
        update_ratio=layer.update_ratio,
        noise_radius=layer.noise_radius,
        held_out_residual=layer.held_out_residual,
        kreiss=layer.kreiss,
        rms_in=scale.rms_in,
        rms_out=scale.rms_out,
        # Six digits place a point in a plot; the scalars above are exact.
        eigenvalues=[(round(z.real, 6), round(z.imag, 6)) for z in layer.eigenvalues.tolist()],
    )


def _risk(risk: RiskAssessment) -> RiskReport:
    try:
        data = load_classifier().card.get("data")
    except ArtifactError:
        data = None
    failed = risk.failed
    return RiskReport(
        verdict=risk.verdict.value,
        reasons=list(risk.reasons),
        evidence=str(risk.tier),
        horizon_steps=HORIZON_STEPS,
        probability_failed=failed.probability if failed else None,
        probability_failed_low=failed.low if failed else None,
        probability_failed_high=failed.high if failed else None,
        probability_diverged=risk.diverged.probability if risk.diverged else None,
        safe_learning_rate=risk.safe_learning_rate,
        likely_edge=risk.likely_edge,
        risk=risk.risk,
        threshold=risk.threshold,
        curve=[(p.learning_rate, p.probability, p.low, p.high) for p in risk.curve],
        contributions=[(c.meaning, c.log_odds) for c in risk.contributions],
        outside=risk.outside,
        counterfactual=risk.counterfactual,
        classifier_data=data,
    )


def _spread(seeds: Sequence[SeedReport]) -> dict[str, dict[str, float]]:
    if len(seeds) < 2:
        return {}
    values = {
        "published_score": [s.spectra.published_score for s in seeds],
        "probability_failed": [s.risk.probability_failed if s.risk else None for s in seeds],
        "safe_learning_rate": [s.risk.safe_learning_rate if s.risk else None for s in seeds],
        "likely_edge": [s.risk.likely_edge if s.risk else None for s in seeds],
    }
    return {
        name: {
            "mean": statistics.fmean(found),
            "std": statistics.stdev(found),
            "low": min(found),
            "high": max(found),
        }
        for name, found in values.items()
        if None not in found
    }
