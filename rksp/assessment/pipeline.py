"""Turn a target and a recipe into the evidence and the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rksp.assessment.basis import Basis
from rksp.assessment.evidence import Evidence
from rksp.assessment.gathering import gather, response_of
from rksp.assessment.levers import applied_in, levers_of
from rksp.assessment.model_choice import choose_model, shown_beside
from rksp.assessment.risk import certain_failure, declared_inputs, untold
from rksp.checks.coverage import untuned
from rksp.checks.evidence import CheckEvidence
from rksp.checks.registry import NotRun, not_run, run_checks
from rksp.classifiers.edge_inputs import EdgeInputs
from rksp.classifiers.edge_model import EdgePredictor, load_edge_model
from rksp.classifiers.remembered import Remembered
from rksp.documents.finding import Finding
from rksp.documents.score import AlternativeReport, ConfiguredReport, RiskAssessment
from rksp.documents.verdict import Verdict
from rksp.ground.errors import ArtifactError, NotCovered, check_kind
from rksp.options import MeasureOptions
from rksp.recipe import Recipe
from rksp.spectra.features import UNMEASURED, Features, Tier, extract

if TYPE_CHECKING:  # a configuration is judged without what measures a model
    from rksp.assessment.measurement import Measurement
    from rksp.assessment.store import MeasurementStore
    from rksp.measure.response_profile import ResponseProfile
    from rksp.models.source import ModelSource
    from rksp.models.streaming.meter import Progress
    from rksp.spectra.model_profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """All evidence for one seed of one target, and the resulting answer.

    `profile` and `measurement` are None where only the configuration was read, and `configured`,
    the answer of the configuration alone, where there is no other.
    """

    seed: int
    source: ModelSource
    measurement: Measurement | None = None
    profile: Profile | None
    response: ResponseProfile | None
    risk: RiskAssessment | None
    risk_missing: str | None
    alternatives: tuple[AlternativeReport, ...] = ()
    configured: ConfiguredReport | None = None
    findings: tuple[Finding, ...] = ()
    not_run: tuple[NotRun, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)


def evaluate(
    source: ModelSource,
    recipe: Recipe,
    options: MeasureOptions | None = None,
    *,
    threshold: float = 0.5,
    risk: float = 0.05,
    classifier: EdgePredictor | None = None,
    alternatives: Sequence[tuple[str, Recipe]] = (),
    store: MeasurementStore | None = None,
    progress: Progress = lambda done, total, label: None,
) -> Evaluation:
    """Gather the evidence for one target and recipe at one seed, and assess it.

    Args:
        source: The target.
        recipe: How it is to be trained.
        options: How it is measured, and at which seed.
        threshold: See `rksp.assessment.basis.Basis.answer`.
        risk: See `rksp.assessment.basis.Basis.answer`.
        classifier: Default the bundled one; without any, the risk is missing with a reason.
        alternatives: Other recipes to assess with the same evidence, each with its assumption.
        store: Where an earlier measurement may be, and where this one is kept; None keeps none.
        progress: Called at the start of each step and as it proceeds; see `Progress`.

    Returns:
        The evaluation.

    Raises:
        InputError: An option, the probe or the model cannot be used.
    """
    check_kind("recipe", recipe, Recipe, "a Recipe")
    check_kind("options", options, MeasureOptions | None, "MeasureOptions")
    evidence = gather(source, options, store=store, progress=progress)
    return judge(
        evidence,
        recipe,
        threshold=threshold,
        risk=risk,
        classifier=classifier,
        alternatives=alternatives,
        progress=progress,
    )


def judge(
    evidence: Evidence,
    recipe: Recipe,
    *,
    threshold: float = 0.5,
    risk: float = 0.05,
    classifier: EdgePredictor | None = None,
    alternatives: Sequence[tuple[str, Recipe]] = (),
    with_details: bool = True,
    with_advice: bool = True,
    rates: Sequence[float] = (),
    progress: Progress = lambda done, total, label: None,
) -> Evaluation:
    """Assess one recipe; measure only what no earlier recipe has measured.

    Args:
        evidence: From `rksp.assessment.gathering.gather`.
        recipe: How the model is to be trained.
        threshold: See `rksp.assessment.basis.Basis.answer`.
        risk: See `rksp.assessment.basis.Basis.answer`.
        classifier: Default the bundled one; without any, the risk is missing with a reason.
        alternatives: Other recipes to assess with the same evidence, each with its assumption.
        with_details: Compute the curve of the risk too, and list the checks that could not run.
        with_advice: Say which rate would be better.
        rates: Learning rates at which a `Remembered` classifier will be asked for this recipe.
        progress: Called at the start of each step and as it proceeds; see `Progress`.

    Returns:
        The evaluation.
    """
    asked = [*alternatives, *(shown_beside(recipe) if evidence.is_trained else ())]
    response = response_of(evidence, recipe, progress)
    bars = {"threshold": threshold, "risk": risk}
    assess = partial(_assess, classifier=classifier, bars=bars)
    missing, assessment, others, configured = None, None, [], None
    if with_details and evidence.measurement is not None and evidence.source.config is not None:
        bare = replace(evidence, tier=Tier.CONFIG, measurement=None, built=None, responses={})
        with suppress(ArtifactError, NotCovered):
            configured = ConfiguredReport.of(assess(bare, recipe, None))
    try:
        assessment = assess(
            evidence,
            recipe,
            response,
            rates=rates,
            with_levers=True,
            with_curve=with_details,
            with_advice=with_advice,
        )
        others = [
            AlternativeReport.of(assess(evidence, other, response), assumption=text)
            for text, other in asked
        ]
    except (ArtifactError, NotCovered) as error:
        missing = str(error)
    trusted = assessment if assessment is not None and not assessment.reasons else None
    checked = _checked(evidence, recipe, response, trusted)
    return Evaluation(
        seed=evidence.options.seed,
        source=evidence.source,
        measurement=None if evidence.measurement is None else evidence.kept(),
        profile=evidence.profile,
        response=response,
        risk=assessment,
        risk_missing=missing,
        alternatives=tuple(others),
        configured=configured,
        findings=run_checks(checked, evidence.seen),
        not_run=not_run(checked) if with_details else (),
        seconds=dict(evidence.seconds),
    )


def _checked(
    evidence: Evidence,
    recipe: Recipe,
    response: ResponseProfile | None,
    trusted: RiskAssessment | None,
) -> CheckEvidence:
    """Return what the checks read; recipes that differ in their rates share what is found."""
    names = ("start_here", "do_not_exceed", "likely_edge")
    rates = {name: getattr(trusted, name, None) for name in names}
    key = (recipe.but_for_rate, *rates.values())
    is_doubtful = trusted is not None and trusted.verdict in (Verdict.CAUTION, Verdict.RISK)
    if key in evidence.checked:
        return evidence.checked[key].at(recipe, is_doubtful=is_doubtful)
    evidence.checked[key] = checked = CheckEvidence(
        recipe=recipe,
        config=evidence.source.config,
        task=evidence.source.task,
        facts=evidence.facts,
        forward=None if evidence.profile is None else evidence.profile.forward,
        response=response,
        **rates,
        is_doubtful=is_doubtful,
        is_pretrained=evidence.is_trained,
        declared=evidence.declared,
        reads_tokens=evidence.reads_tokens,
    )
    return checked


def _assess(
    evidence: Evidence,
    recipe: Recipe,
    response: ResponseProfile | None,
    *,
    classifier: EdgePredictor | None,
    bars: Mapping[str, Any],
    rates: Sequence[float] = (),
    with_curve: bool = False,
    with_advice: bool = False,
    with_levers: bool = False,
) -> RiskAssessment:
    """Return the answer of the model that covers the run, or why there is none.

    Where numbers are not finite, the failure is certain and no model is asked.
    """
    seen, rate, steps = evidence.profile, recipe.learning_rate, recipe.max_steps
    if seen is None:
        features, broken = UNMEASURED, None
    else:
        from rksp.assessment.measured import not_finite

        features = extract(seen.forward, seen.spectra, response)
        broken = not_finite(seen, response)
    if broken is not None:
        return certain_failure(broken, evidence.tier, steps=steps, learning_rate=rate, **bars)
    choice = choose_model(recipe, is_pretrained=evidence.is_trained)
    if choice.model == "none":
        return untold(choice.reasons, features.tier, steps=steps, **bars)
    if choice.model == "fine-tuning":
        from rksp.assessment.fine_tuning import assess_fine_tuning, fine_tuning_inputs
        from rksp.classifiers.fine_tuning.model import load_fine_tuning_model

        source = evidence.source
        return assess_fine_tuning(
            fine_tuning_inputs(source.config, _task_of(evidence), source.num_parameters, recipe),
            load_fine_tuning_model() if classifier is None else classifier.tuning,
            features.tier,
            steps=steps,
            learning_rate=rate,
            **bars,
            doubts=_tuning_doubts(evidence, recipe),
            is_measured=response is not None and response.reason is None,
            objective=recipe.objective,
        )
    model = classifier or load_edge_model()
    make = partial(_basis, evidence, recipe, features, model, rates, with_levers)
    key = (evidence.declared, recipe.but_for_rate, with_levers)
    doubts = choice.doubts
    if seen is not None:
        from rksp.assessment.measured import doubts_of

        doubts = doubts_of(seen, response, doubts)
    if isinstance(model, Remembered):  # `declared` is the evidence's own: it stands for it
        basis = model.once(key, partial(make, doubts))
    else:
        basis = make(doubts)
    return basis.answer(rate, **bars, with_curve=with_curve, with_advice=with_advice)


def _basis(
    evidence: Evidence,
    recipe: Recipe,
    features: Features,
    model: EdgePredictor,
    rates: Sequence[float],
    with_levers: bool,
    doubts: Sequence[str],
) -> Basis:
    """Return what the model of the edge says of a recipe, and if asked of it with each lever."""
    basis = Basis.of(features, inputs_of(evidence, recipe), model, doubts)
    if basis.reasons or not with_levers:
        return basis
    predict = lambda other, changed: model.predict(
        replace(inputs_of(evidence, other), **changed), features.values
    )
    basis.estimate.lose_at(rates)
    levers = levers_of(evidence.declared, recipe, model, predict)
    return replace(basis, levers=levers, applied=applied_in(model))


def inputs_of(evidence: Evidence, recipe: Recipe) -> EdgeInputs:
    """Return the inputs of the edge model for a recipe: as measured, or else as declared."""
    if evidence.profile is None:
        return declared_inputs(evidence.declared, recipe)
    from rksp.assessment.measured import measured_inputs

    return measured_inputs(evidence, recipe)


def _task_of(evidence: Evidence) -> str:
    """Return the task of trained weights: classes, where an encoder's head or data says so."""
    task, data = evidence.source.task, evidence.options.data
    if evidence.declared.family.kind != "encoder" or task.endswith("classification"):
        return task
    from rksp.datasets.own_rows import read_own_rows
    from rksp.models.heads import other_head

    head = other_head(evidence.declared.get("architectures"))
    has_labels = data is not None and bool(read_own_rows(data).labels)
    return "text-classification" if head is not None or has_labels else task


def _tuning_doubts(evidence: Evidence, recipe: Recipe) -> list[str]:
    """Return what no run of fine-tuning has and its model does not know by name, as clauses."""
    doubts, model = untuned(recipe), evidence.source.model
    if evidence.profile is not None:
        from rksp.assessment.measured import loss_doubts

        doubts += loss_doubts(evidence.profile)
    if model is not None and recipe.peft == "none":
        from rksp.models.module_facts import is_partly_frozen

        if is_partly_frozen(model):
            doubts.append("the runs of fine-tuning train all weights or adapters, not some layers")
    return doubts
