"""Turn a target and a recipe into the evidence, the answer, and the document of both."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rksp.assessment.evidence import NOTHING_RAN, Evidence, trained_part
from rksp.assessment.levers import levers_of
from rksp.assessment.risk import About, Basis, Detail, choose_model, declared_inputs
from rksp.checks.evidence import CheckEvidence
from rksp.checks.registry import not_run, run_checks
from rksp.classifiers.edge_inputs import EdgeInputs
from rksp.classifiers.edge_model import EdgePredictor, Remembered, load_edge_model
from rksp.documents import score as documents
from rksp.documents.answer import Answer, FromPublished
from rksp.documents.finding import Finding
from rksp.documents.options import MeasureOptions
from rksp.documents.shown import NO_GRADIENT, NO_PASS, ForwardStats, GradientProfile
from rksp.documents.spectrum import SpectralProfile
from rksp.documents.terms import Terms
from rksp.documents.verdict import Verdict, combined, worst
from rksp.ground.errors import ArtifactError, InputError, NotCovered, check_kind
from rksp.ground.model import definite
from rksp.ground.versions import version
from rksp.models.declared import Declared
from rksp.models.type_table import TableConfig, common
from rksp.recipe import USUAL_RANK, Recipe
from rksp.recipe.coverage import untuned
from rksp.spectra.features import UNMEASURED, Tier, extract

if TYPE_CHECKING:  # a configuration is judged without what measures a model
    from rksp.assessment.measurement import Measurement
    from rksp.assessment.store import MeasurementStore
    from rksp.ground.model import Progress
    from rksp.models.source import ModelSource
    from rksp.spectra.model_profile import Profile


_NOTHING = dict.fromkeys(("forward", "gradient"), NOTHING_RAN)


def gather(
    source: ModelSource,
    options: MeasureOptions | None = None,
    *,
    store: MeasurementStore | None = None,
    progress: Progress = lambda done, total, label: None,
) -> Evidence:
    """Gather everything that does not depend on the recipe: build and measure one initialization.

    With `evidence="config"` only the configuration is read.

    Args:
        source: The target.
        options: How to measure it.
        store: Where an earlier measurement may be, and where this one is kept.
        progress: Called at the start of each step and as it proceeds; see `Progress`.

    Raises:
        InputError: An option, the probe or the model cannot be used, or a target without a
            configuration is not to be measured.
    """
    options = options or MeasureOptions()
    if options.evidence != "config":
        found = None if store is None else stored(source, options, store)
        if found is not None:
            return found
        from rksp.assessment.measuring import measured

        evidence = measured(source, options, store, progress)
        evidence.keep()
        return evidence
    if source.config is None:
        raise InputError(
            f"{source.target} has no configuration; leave out --evidence config to measure it."
        )
    seedless = options.model_copy(update={"seed": 0})  # a configuration has no seed
    return Evidence(source=source, options=seedless, tier=Tier.CONFIG)


def known(
    source: ModelSource, options: MeasureOptions, recipe: Recipe, store: MeasurementStore | None
) -> Evidence | None:
    """Return evidence that judges a recipe without a measurement; None if there is none."""
    if options.evidence == "config":
        return gather(source, options)
    found = None if store is None else stored(source, options, store)
    return found if found is not None and found.is_whole(recipe) else None


def stored(
    source: ModelSource, options: MeasureOptions, store: MeasurementStore
) -> Evidence | None:
    """Return the evidence of an earlier measurement, without torch; None if there is none."""
    start = time.perf_counter()
    found = store.find(source, options)
    if found is None:
        return None
    return Evidence(
        source=replace(source, **found.source),
        options=options,
        tier=found.tier,
        measurement=found,
        store=store,
        seconds={"read what was stored": time.perf_counter() - start},
    )


def gradient_of(evidence: Evidence, recipe: Recipe, progress: Progress) -> GradientProfile | None:
    """Return the first gradient; recipes that train the same share it."""
    if not evidence.has_gradient(recipe):
        return None
    part = trained_part(recipe)
    if part not in evidence.gradients:
        from rksp.assessment.measuring import measured_gradient

        evidence.gradients[part] = measured_gradient(evidence, part, progress)
        evidence.keep()
    return evidence.gradients[part]


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
    gradient: GradientProfile | None
    risk: Answer
    alternatives: tuple[documents.AlternativeReport, ...] = ()
    configured: documents.ConfiguredReport | None = None
    findings: tuple[Finding, ...] = ()
    not_run: tuple[documents.NotRunReport, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)


def evaluate(
    source: ModelSource,
    recipe: Recipe,
    options: MeasureOptions | None = None,
    *,
    store: MeasurementStore | None = None,
    progress: Progress = lambda done, total, label: None,
    **asked: Any,
) -> Evaluation:
    """Gather the evidence for one target and recipe at one seed, and assess it.

    Args:
        source: The target.
        recipe: How it is to be trained.
        options: How it is measured, and at which seed.
        store: Where an earlier measurement may be, and where this one is kept; None keeps none.
        progress: Called at the start of each step and as it proceeds; see `Progress`.
        **asked: See `judge`.

    Raises:
        InputError: An option, the probe or the model cannot be used.
    """
    check_kind("recipe", recipe, Recipe, "a Recipe")
    check_kind("options", options, MeasureOptions | None, "MeasureOptions")
    evidence = gather(source, options, store=store, progress=progress)
    return judge(evidence, recipe, **asked, progress=progress)


def judge(
    evidence: Evidence,
    recipe: Recipe,
    *,
    terms: Terms | None = None,
    classifier: EdgePredictor | None = None,
    alternatives: Sequence[tuple[str, Recipe]] = (),
    unknown: Mapping[str, str] = MappingProxyType({}),
    has_devices: bool = True,
    with_details: bool = True,
    rates: Sequence[float] = (),
    progress: Progress = lambda done, total, label: None,
) -> Evaluation:
    """Assess one recipe; measure only what no earlier recipe has measured.

    Args:
        evidence: From `gather`.
        recipe: How the model is to be trained.
        terms: What it is judged by.
        classifier: Default the bundled one; without any, the risk is missing with a reason.
        alternatives: Other recipes to assess with the same evidence and at the same rate, which
            they leave out, each with its assumption.
        unknown: Fields that the run gives and nobody can tell, with why; of those that an answer
            uses each alone makes it "cannot tell".
        has_devices: The number of devices is known; without it a batch may be many times the one
            of a device, and no check holds that against the run.
        with_details: Compute the curve of the risk and say which rate is better too, and list the
            checks that could not run.
        rates: Learning rates at which a `Remembered` classifier will be asked for this recipe.
        progress: Called at the start of each step and as it proceeds; see `Progress`.
    """
    rate, plan = recipe.learning_rate, recipe.model_copy(update={"learning_rate": None})
    gradient, start = gradient_of(evidence, plan, progress), evidence.start_of(plan)
    answer = partial(_answer, rate, classifier=classifier, terms=terms or Terms(), unknown=unknown)
    configured = None
    others: tuple[documents.AlternativeReport, ...] = ()
    if with_details and evidence.measurement is not None and evidence.source.config is not None:
        bare = replace(evidence, tier=Tier.CONFIG, measurement=None, built=None, gradients={})
        with suppress(ArtifactError, NotCovered):
            configured = documents.ConfiguredReport.of(answer(plan, bare))
    assessment: Answer
    try:
        detail: Detail = "page" if with_details else "cell"
        assessment = answer(plan, evidence, gradient, rates=rates, detail=detail)
        beside = list(alternatives)
        if not start.is_scratch and rate is None and plan.peft == "none":
            lora = plan.model_copy(update={"peft": "lora", "lora_rank": USUAL_RANK})
            beside.append((documents.ADAPTERS_BESIDE, lora))
        others = tuple(
            documents.AlternativeReport.of(answer(other, evidence, gradient), assumption=text)
            for text, other in beside
        )
    except (ArtifactError, NotCovered) as error:
        about = About(steps=plan.max_steps, tier=evidence.tier, terms=terms or Terms())
        assessment = about.cannot_tell([str(error)], verdict=Verdict.NOT_ASSESSED)
    names, seen = ("start_here", "do_not_exceed", "likely_edge"), evidence.profile
    checked = CheckEvidence(
        recipe=recipe,
        config=evidence.source.config,
        task=evidence.source.task,
        facts=evidence.facts,
        forward=NO_PASS if seen is None else seen.forward,
        placement=None if seen is None else seen.placement,
        gradient=gradient or NO_GRADIENT,
        **{name: assessment.number(name) for name in names},
        highest_published=(
            assessment.published.highest if isinstance(assessment, FromPublished) else None
        ),
        unknown=frozenset([*unknown, *(() if has_devices else ("devices",))]),
        start=start,
        declared=evidence.declared,
        reads_tokens=evidence.reads_tokens,
    )
    return Evaluation(
        seed=evidence.options.seed,
        source=evidence.source,
        measurement=None if evidence.measurement is None else evidence.kept(),
        profile=seen,
        gradient=gradient,
        risk=assessment,
        alternatives=others,
        configured=configured,
        findings=run_checks(checked, evidence.seen),
        not_run=not_run(checked.held) if with_details else (),
        seconds=dict(evidence.seconds),
    )


_UNUSED = {"fine-tuning": ("sequence_length",)}  # fields that this model does not ask for


def _answer(
    rate: float | None,
    recipe: Recipe,
    evidence: Evidence,
    gradient: GradientProfile | None = None,
    *,
    classifier: EdgePredictor | None,
    terms: Terms,
    unknown: Mapping[str, str],
    rates: Sequence[float] = (),
    detail: Detail = "brief",
) -> Answer:
    """Return the answer of the model that covers a run at a rate, or why there is none.

    Where numbers are not finite, the failure is certain and no model is asked.
    """
    seen, features, broken = evidence.profile, UNMEASURED, None
    if seen is not None:
        from rksp.assessment.measured import doubts_of, not_finite

        features = extract(seen.forward, seen.spectra, gradient)
        broken = not_finite(seen, gradient)
    tier = features.tier if broken is None else evidence.tier
    about = About(learning_rate=rate, steps=recipe.max_steps, tier=tier, terms=terms)
    if broken is not None:
        return about.certain_failure(broken)
    choice = choose_model(recipe, evidence.start_of(recipe))
    missing = [why for name, why in unknown.items() if name not in _UNUSED.get(choice.model, ())]
    if choice.model == "none" or missing:
        return about.cannot_tell([*missing, *choice.reasons])
    if choice.model == "fine-tuning":
        return _tuned(evidence, recipe, classifier, about)
    model = classifier or load_edge_model()
    doubts = choice.doubts if seen is None else doubts_of(seen, gradient, choice.doubts)

    def make() -> Basis:
        """Ask the model of the edge, and if wanted once more for each lever."""
        basis = Basis.of(features, inputs_of(evidence, recipe), model, doubts)
        if basis.reasons or detail == "brief":
            return basis
        predict = lambda other, changed: model.predict(
            replace(inputs_of(evidence, other), **changed), features.values
        )
        basis.estimate.lose_at(rates)
        return replace(basis, levers=levers_of(evidence.declared, recipe, predict))

    # `declared` is the evidence's own: it stands for it.
    asked = (evidence.declared, recipe.but_for_rate, detail)
    basis = model.once(asked, make) if isinstance(model, Remembered) else make()
    return basis.answer(about, detail)


def _tuned(
    evidence: Evidence, recipe: Recipe, classifier: EdgePredictor | None, about: About
) -> Answer:
    from rksp.assessment.fine_tuning import assess_fine_tuning, fine_tuning_inputs
    from rksp.classifiers.fine_tuning.model import load_fine_tuning_model

    source = evidence.source
    return assess_fine_tuning(
        fine_tuning_inputs(source.config, _task_of(evidence), source.num_parameters, recipe),
        load_fine_tuning_model() if classifier is None else classifier.tuning,
        about,
        doubts=_tuning_doubts(evidence, recipe),
        objective=recipe.objective,
    )


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
    from rksp.models.heads import other_head

    is_classified = other_head(evidence.declared.get("architectures")) is not None
    if data is not None:
        from rksp.datasets.own_data import read_own_rows

        is_classified = is_classified or bool(read_own_rows(data).labels)
    return "text-classification" if is_classified else task


def _tuning_doubts(evidence: Evidence, recipe: Recipe) -> list[str]:
    doubts, model = untuned(recipe), evidence.source.model
    if evidence.profile is not None:
        from rksp.assessment.measured import loss_doubts

        doubts += loss_doubts(evidence.profile)
    if model is not None and recipe.peft == "none":
        from rksp.models.adapters import is_partly_frozen

        if is_partly_frozen(model):
            doubts.append("the runs of fine-tuning train all weights or adapters, not some layers")
    return doubts


def score_report(recipe: Recipe, evaluations: Sequence[Evaluation]) -> documents.ScoreReport:
    """Make the report of one or more seeds of a target and recipe, with finite numbers only."""
    first = evaluations[0]
    verdicts = [evaluation.risk.verdict.value for evaluation in evaluations]
    risk_verdict = prevailing(verdicts)
    decides = evaluations[verdicts.index(risk_verdict)]
    seeds = [_seed(evaluation) for evaluation in evaluations]
    return documents.ScoreReport(
        target=_target(first),
        recipe=recipe,
        verdict=combined(risk_verdict, decides.findings),
        risk_verdict=risk_verdict,
        findings=list(decides.findings),
        not_run=list(decides.not_run),
        seeds=seeds,
        spread=_spread(seeds),
        provenance=_provenance(first),
        timings={
            f"{step} (seed {evaluation.seed})": round(seconds, 3)
            for evaluation in evaluations
            for step, seconds in evaluation.seconds.items()
        },
    ).finite()


def _target(first: Evaluation) -> documents.ScoredTarget:
    source = first.source
    names = {"name": source.target, "model_type": getattr(source.config, "model_type", None)}
    if (seen := first.measurement) is not None:
        profile = definite(first.profile)
        notes = [*source.notes, *profile.notes]
        sizes = {"parameters": source.num_parameters, "blocks": profile.chains}
        return documents.ScoredTarget.of(source, profile, seen, **names, **sizes, notes=notes)
    said = Declared(source.config, source.task)
    shape = said.shape
    computed = None if shape is None else round(shape.parameters)
    return documents.ScoredTarget.of(
        source,
        **names,
        parameters=source.num_parameters or computed,
        blocks=[],
        width=said.width or 0,
        probe="nothing",
        notes=list(source.notes),
    )


def _provenance(first: Evaluation) -> dict[str, str | int | float | bool | None]:
    read_by = version("transformers")
    if (seen := first.measurement) is None and isinstance(first.source.config, TableConfig):
        read_by = common().transformers  # the table's release
    made: dict[str, Any] = {"rksp": version("rksp"), "transformers": read_by}
    if seen is None:
        return made | {"weights": "not built"}
    return made | {
        "weights": seen.weights,
        "torch": version("torch"),
        "python": platform.python_version(),
        "dtype": "float32",
        "states": seen.profile.states,
        "variant": seen.profile.spectra.variant,
    }


def prevailing(verdicts: Sequence[str]) -> str:
    """Return the most frequent verdict over the seeds; for ties, the worst of them."""
    return worst(*statistics.multimode(verdicts))


def _seed(evaluation: Evaluation) -> documents.SeedReport:
    """Report one seed; a block's scales come from the forward pass, the rest from its spectrum."""
    seen = evaluation.profile
    spectra = SpectralProfile(variant="none", reason=NOTHING_RAN) if seen is None else seen.spectra
    forward = ForwardStats(not_measured=_NOTHING) if seen is None else seen.forward
    scales = {block.name: block for block in forward.blocks}
    layers = [
        documents.LayerReport.of(layer, scales[layer.name], rank=layer.modes)
        for layer in spectra.layers
    ]
    return documents.SeedReport.of(
        evaluation,
        spectra=documents.SpectraReport.of(spectra, layers=layers),
        forward=documents.ForwardReport.of(forward),
    )


def _spread(seeds: Sequence[documents.SeedReport]) -> dict[str, dict[str, float]]:
    if len(seeds) < 2:
        return {}
    values: dict[str, list[Any]] = {
        "published_score": [seed.spectra.published_score for seed in seeds]
    }
    for name in ("probability_failed", "start_here", "do_not_exceed", "likely_edge"):
        values[name] = [seed.risk.number(name) for seed in seeds]
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
