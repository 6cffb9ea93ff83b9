"""The document of `rksp score`: the measurements and the answer."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field, PositiveFloat, model_validator

from rksp.documents.base import Document, Part, TargetReport
from rksp.documents.finding import Code, Edit, Finding, Level
from rksp.documents.own_runs import HistoryReport, LearnedReport
from rksp.documents.verdict import Verdict
from rksp.recipe import USUAL_RANK, Recipe

# What a probe's description calls text whose tokens mean nothing to trained weights.
BYTES_SPREAD, BYTES_FOLDED = "bytes mapped into the vocabulary", "bytes folded into the vocabulary"


def _pairs(values: object) -> object:
    """Return complex numbers as (real, imaginary) pairs with six digits, enough for a plot."""
    found = getattr(values, "tolist", lambda: values)()
    if not isinstance(found, list | tuple):
        return found
    return [(round(z.real, 6), round(z.imag, 6)) if isinstance(z, complex) else z for z in found]


# Beside all weights of a trained model, so that both rates are seen at once.
ADAPTERS_BESIDE = f"LoRA adapters of rank {USUAL_RANK}"


class ScoredTarget(TargetReport):
    """The scored model and its probe.

    Attributes:
        blocks: (path, number of blocks) of each chain of the residual stream.
        width: Width of the residual stream.
        probe: The text that the model was shown, in words.
        overrides: Names of the settings that were typed and do not come from the target's file.
    """

    blocks: list[tuple[str, int]]
    width: int
    probe: str
    overrides: list[str] = Field(default_factory=list)


_GONE = {"held_out_residual", "kernels", "noise_radius"}  # written up to schema 4.4


def _without_gone(cls: type[Part], given: Any) -> Any:
    return {k: v for k, v in given.items() if k not in _GONE} if isinstance(given, dict) else given


class LayerReport(Part):
    """One block: its spectrum, its scales, and a status that says if they can be trusted.

    Attributes:
        layer: Position in the chain, from 0.
        status_detail: Why the spectrum has this status.
    """

    _earlier = model_validator(mode="before")(_without_gone)

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
    kreiss: float | None = None
    rms_in: float | None
    rms_out: float | None
    eigenvalues: Annotated[list[tuple[float, float]], BeforeValidator(_pairs)]


class SpectraReport(Part):
    """The blocks together, under one named definition.

    Attributes:
        reading: How the spectra may be read: measured, or why not as a risk.
        aggregates: Quantity -> mean, lowest and highest over the layers.
        layers: One entry for each block.
    """

    variant: str
    reading: str
    reason: str
    coverage: float
    published_score: float | None
    aggregates: dict[str, dict[str, float | None]]
    layers: list[LayerReport]


class ForwardReport(Part):
    """Other results of the forward pass; see `rksp.measure.forward.ForwardStats`.

    Attributes:
        activation_name: Path of the module with the largest activation.
        attention_collapsed_heads: Number of heads with an entropy of attention below 0.05.
        router_max_violation: Largest load of an expert over the mean load, less 1.
        aligned_response: Geometric mean over linear layers of mean‖x‖₁ / RMS(Wx).
    """

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
    """The first gradient, and the response to the first update if it was measured.

    See `rksp.measure.shown.ResponseProfile`.

    `drift` is the KL divergence, in nats a position, of trained weights' predictions on the bundled
    text after one update at a rate of 1e-3.

    Attributes:
        grad_max: Largest absolute value in the first gradient.
        output_slope: Relative change of the logits for each unit of the rate.
        overshoot: Change of the loss on fresh text, in nats, at ten times the critical rate.
    """

    grad_norm: float | None
    grad_max: float | None
    critical_rate: float | None
    output_slope: float | None
    overshoot: float | None
    forward_passes: float
    reason: str | None
    drift: float | None = None


class CurvePoint(NamedTuple):
    """P(failed) at one learning rate, with its interval."""

    learning_rate: PositiveFloat
    probability: float
    low: float
    high: float


class Contribution(NamedTuple):
    """The effect of one fact on the edge, in decades; a negative one lowers the edge."""

    meaning: str
    decades: float
    feature: str


class LeverReport(Part):
    """A change that would raise the edge of this model and recipe.

    Attributes:
        name: Its name in `--apply`.
        title: What it adds, such as `300 steps of warm-up`.
        change: How it is made: a setting of the run file or of the model's configuration.
        factor: By how much the edge rises, a ratio; `low` and `high` are the ends of the 80 %
            interval for a family that was not measured.
        loss: Nats by which runs at their usual rates end higher with it; lower if negative.
        cost: Processor time of a step over that without it, on the small models that were measured.
        pairs, families: Pairs of ladders, and families of models, that it was measured in.
        arm: The arm of `rksp confirm` that tries it; empty if a run cannot take it up.
        low, high: Ends of the interval of `factor`.
    """

    name: str
    title: str
    change: str
    factor: float
    low: float
    high: float
    loss: float
    cost: float
    pairs: int
    families: int
    arm: str


class PublishedReport(Part):
    """Published runs of the same sort, which answer where no model of fine-tuning can.

    Attributes:
        method, objective, kind, size: What the runs have in common; `lora` has the runs of `qlora`,
            `rl` and `preference` are several objectives, and the size may be `any`.
        runs, stated, sources: Runs that trained well, or that a trainer ships as an example; those
            of them behind which an outcome or a released model stands; groups that published them.
        lowest, middle, highest: Their peak rates; the middle is the median.
        failed, failed_from: Runs of the same sort that failed, and the lowest of their rates.
    """

    method: str
    objective: str
    kind: str
    size: str
    runs: int
    stated: int
    sources: int
    lowest: float
    middle: float
    highest: float
    failed: int
    failed_from: float | None


class RiskAssessment(Part):
    """The answer for one model and recipe. Probabilities lie between 0 and 1.

    Under "cannot tell" no number is given: every probability, rate and loss is None, and the
    curve is empty.

    Attributes:
        verdict: `risk` if the point estimate is at or above `threshold`; `caution` if it is at or
            above two fifths of it, and the rate above both `start_here` and `do_not_exceed`.
        reasons: Why rksp cannot tell; empty otherwise.
        evidence: Name of the tier of evidence behind the answer.
        horizon_steps: Steps of the run that the answer is about.
        probability_failed: Probability, at the recipe's learning rate, that a lower rate trains
            better or that none trains; None without a rate.
        probability_failed_low, probability_failed_high: The ends of its interval.
        probability_diverged: Part of it in which the run diverges: its loss or gradient is not
            finite, or beyond the thresholds of `OutcomePolicy`; the rest only ends higher. None
            where the model of fine-tuning answers, which does not tell them apart.
        start_here: The rate with the lowest expected loss.
        start_excess: That loss, in nats above the best rate.
        start_failed: The probability that a run at that rate fails.
        likely_edge: The median of the edge: at this rate failure is as likely as not.
        do_not_exceed: The rate below which a share `risk` of the edges lies; in short runs it can
            be lower than `start_here`.
        expected_excess: Expected loss at the recipe's rate above that at the best rate, in nats;
            None without a rate.
        risk: Share of the edges below `do_not_exceed`.
        threshold: Probability at which the verdict becomes `risk`.
        curve: P(failed) by learning rate, in rising order.
        contributions: Facts that move this run's edge from the average, largest first.
        outside: Facts outside the range of the labelled runs, in decades.
        widened_by: What widens the interval of P(failed), since the labelled runs know little of
            it: each a standard deviation of the edge, in decades.
        counterfactual: A sentence with a better rate and what it saves; None if the recipe's is
            as good.
        classifier_data: Digest of the data that the classifier was fitted on; None where no
            classifier was asked.
        answered_by: The runs of the fitted model that answered; None where none did. The model of
            fine-tuning states no losses, so `start_excess` and `expected_excess` are None. Of
            published runs only `start_here`, their middle rate, is known, and the verdict is
            `caution` above the highest and `risk` above ten times that.
        published: The published runs, where they answer.
        usual: The usual rate, where no data beat it and `start_here` is it.
        forgets_from: The rate from which a tenth of the untouched abilities is lost, in the
            median; None where no data show it.
        measuring_adds: What a measurement of trained weights adds to the rates, with an interval,
            a sentence each; empty where nothing was measured.
        learned: How far the team's own runs moved the answer; None where there are none.
        levers: What would raise the edge, the largest first.
        applied: Levers that the answer counts with, by name.
    """

    verdict: Verdict
    reasons: list[str] = Field(default_factory=list)
    evidence: str
    horizon_steps: int
    probability_failed: float | None = None
    probability_failed_low: float | None = None
    probability_failed_high: float | None = None
    start_here: float | None = None
    start_excess: float | None = None
    start_failed: float | None = None
    likely_edge: float | None = None
    do_not_exceed: float | None = None
    expected_excess: float | None = None
    risk: float
    threshold: float
    curve: list[CurvePoint] = Field(default_factory=list)
    contributions: list[Contribution] = Field(default_factory=list)
    outside: dict[str, float] = Field(default_factory=dict)
    counterfactual: str | None = None
    classifier_data: str | None = None
    probability_diverged: float | None = None
    answered_by: Literal["random initializations", "fine-tuning", "published runs"] | None = None
    published: PublishedReport | None = None
    usual: float | None = None
    forgets_from: float | None = None
    widened_by: dict[str, float] = Field(default_factory=dict)
    measuring_adds: list[str] = Field(default_factory=list)
    learned: LearnedReport | None = None
    levers: list[LeverReport] = Field(default_factory=list)
    applied: list[str] = Field(default_factory=list)


class ChangeReport(Part):
    """One issue against an older report; see `rksp.report.diff`.

    Attributes:
        state: What became of the issue.
        layer: Path of the module; empty for the whole model.
        was: Level in the older report; None if it is new.
    """

    state: Literal["new", "worse", "better", "fixed", "unchanged"]
    code: Code
    name: str
    layer: str
    level: Level
    was: Level | None
    message: str


class ComparisonReport(Part):
    """A report against an older one. Each pair is (old, new).

    Attributes:
        target: Names of the models.
        changes: What became of each issue.
        settings: Recipe field -> the two values, where they differ.
        places: Recipe field -> the file and line of the two values, where one stands in a file.
        numbers: Name -> the two values, of the numbers that people compare.
        notes: Why the two can hardly be compared, a sentence each.
    """

    target: tuple[str, str]
    verdict: tuple[str, str]
    changes: list[ChangeReport]
    settings: dict[str, tuple[str | None, str | None]]
    places: dict[str, tuple[str | None, str | None]] = Field(default_factory=dict)
    numbers: dict[str, tuple[float | None, float | None]]
    notes: list[str]


class EffectReport(Part):
    """What one difference between two runs moves.

    Attributes:
        name: The field of the older run's recipe that has the newer run's value, `the model`, or
            `all together`.
        numbers: Name -> the older run's number, and the one with that difference.
        why: Why there is no such number, a sentence; else empty.
    """

    name: str
    numbers: dict[str, tuple[float | None, float | None]]
    why: str = ""


class DiffReport(ComparisonReport, Document):
    """One run of `rksp diff`; the verdict is that of the older and of the newer report.

    Attributes:
        effects: What each difference moves, by the configuration; empty between two reports.
    """

    kind: Literal["diff"] = "diff"
    effects: list[EffectReport] = Field(default_factory=list)


class AnswerReport(Part):
    """An answer in short; every field is as in `RiskAssessment`."""

    verdict: Verdict
    probability_failed: float | None
    start_here: float | None
    do_not_exceed: float | None


class AlternativeReport(AnswerReport):
    """The answer for another recipe that the same input could mean.

    Attributes:
        assumption: What must be true for it, such as `64 devices, so a batch of 1024`.
    """

    assumption: str


class ConfiguredReport(AnswerReport):
    """What the configuration alone says of the same recipe, before anything is measured."""

    reasons: list[str]
    likely_edge: float | None


class SeedReport(Part):
    """Everything measured at one seed.

    `risk` is the answer.

    Attributes:
        configured: The answer before the measurement; None where nothing was measured, or there is
            no configuration that has an answer.
        alternatives: The answers for what else the input could mean.
        risk_missing: Why there is no answer; None if there is one.
    """

    seed: int
    spectra: SpectraReport
    forward: ForwardReport
    response: ResponseReport | None
    risk: RiskAssessment | None
    risk_missing: str | None
    alternatives: list[AlternativeReport] = Field(default_factory=list)
    configured: ConfiguredReport | None = None


class NotRunReport(Part):
    """A check that could not run, and what it lacked."""

    code: Code
    name: str
    reason: str


class OriginReport(Part):
    """Where one field of the recipe comes from.

    Attributes:
        kind: file, flag, computed, trainer, unasked, assumed or unknown.
        text: One phrase: the keys, the flag, or whose default it is.
        file, line: Position in a file, if the file sets it.
    """

    kind: str
    text: str
    file: str | None = None
    line: int | None = None


class UnreadReport(Part):
    """A setting of the run file that rksp does not read, and that may matter.

    Attributes:
        key: Its dotted key.
        file, line: Its place; the line where the format has lines.
        nearest: The known key that may have been meant; empty if none is near.
        why: How it changes the run, where rksp knows the key but does not model it.
        value: What stands there and could not be followed; empty where the key is not known.
        text: All of it in one clause.
    """

    key: str
    file: str | None = None
    line: int | None = None
    nearest: str = ""
    why: str = ""
    value: str = ""
    text: str


class SummaryReport(Part):
    """The answer for a program: may the run be launched, and what to change first.

    Attributes:
        launch: yes, also above `do_not_exceed`, which `why` then says; no where P(failed) reaches
            the bar, a finding has level error, or the rate is above ten times that of published
            runs; unknown where rksp cannot tell or no learning rate was given.
        why: One sentence.
        probability_failed: At the recipe's learning rate; None without one.
        low, high: Ends of its interval.
        start_here, likely_edge, do_not_exceed: See `RiskAssessment`. Where published runs answer,
            the first is the middle of their rates and the last the highest; no edge is known.
        edits: Changes that remove findings, the most severe finding's first; the edits of
            `rksp fix` are those with a place in the file.
        next_command: What to run next; empty where nothing more can be asked.
    """

    launch: Literal["yes", "no", "unknown"]
    why: str
    probability_failed: float | None
    low: float | None
    high: float | None
    start_here: float | None
    likely_edge: float | None
    do_not_exceed: float | None
    edits: list[Edit] = Field(default_factory=list)
    next_command: str = ""


ScoreVerdict = Literal["ok", "caution", "risk", "cannot tell", "not assessed"]


class ScoreReport(Document):
    """One run of `rksp score`.

    `verdict` is the worst of `risk_verdict`, which is what P(failed) says, and of the findings.
    `findings` and `not_run` are those of the deciding seed: the first with the report's
    `risk_verdict`. Only `timings` differs between two runs of the same command.

    Attributes:
        summary: The answer for a program, at the top of the JSON.
        target: The model.
        risk_verdict: What P(failed) alone says.
        findings: What the checks found, the worst first.
        not_run: Checks that could not run.
        seeds: One entry for each initialization.
        spread: Name -> mean, standard deviation, lowest and highest over the seeds.
        baseline: What changed since an older report; None without one.
        recipe_places: Field -> file and line that set it.
        recipe_origins: Field -> where its value comes from.
        unread: Settings of the run file that were not read and may matter.
        assumed: All assumptions in one line.
        next_command: The user's command with what is to change in it; empty for a score in Python
            and where only `-v` has more to say.
        own_runs: The past runs that the answer knows, with their labels.
    """

    _earlier = model_validator(mode="before")(_without_gone)

    kind: Literal["score"] = "score"
    summary: SummaryReport | None = None
    target: ScoredTarget
    recipe: Recipe
    verdict: ScoreVerdict
    risk_verdict: ScoreVerdict
    findings: list[Finding]
    not_run: list[NotRunReport] = Field(default_factory=list)
    seeds: list[SeedReport]
    spread: dict[str, dict[str, float]]
    provenance: dict[str, str | int | float | bool | None]
    baseline: ComparisonReport | None = None
    recipe_places: dict[str, tuple[str, int]] = Field(default_factory=dict)
    recipe_origins: dict[str, OriginReport] = Field(default_factory=dict)
    unread: list[UnreadReport] = Field(default_factory=list)
    assumed: str = ""
    next_command: str = ""
    own_runs: HistoryReport | None = None
    timings: dict[str, float]
