"""The documents of `rksp score`: the measurements and the answer, of one target or several."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from rksp.documents.answer import Answer
from rksp.documents.base import Document, Part, TargetReport
from rksp.documents.finding import Code, Edit, Finding, Level
from rksp.documents.own_runs import HistoryReport
from rksp.documents.verdict import Verdict
from rksp.recipe import USUAL_RANK, Recipe


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


class LayerReport(Part):
    """One block: its spectrum, its scales, and a status that says if they can be trusted.

    Attributes:
        layer: Position in the chain, from 0.
        status_detail: Why the spectrum has this status.
    """

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


class GradientReport(Part):
    """The first gradient; see `rksp.documents.shown.GradientProfile`.

    Attributes:
        grad_max: Largest absolute value in the first gradient.
    """

    grad_norm: float | None
    grad_max: float | None
    reason: str | None


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
    """An answer in short; every field is as in `Answer`, and None where that has none."""

    verdict: Verdict
    probability_failed: float | None = None
    start_here: float | None = None
    do_not_exceed: float | None = None


class AlternativeReport(AnswerReport):
    """The answer for another recipe that the same input could mean.

    Attributes:
        assumption: What must be true for it, such as `64 devices, so a batch of 1024`.
    """

    assumption: str


class ConfiguredReport(AnswerReport):
    """What the configuration alone says of the same recipe, before anything is measured."""

    reasons: list[str] = Field(default_factory=list)
    likely_edge: float | None = None


class SeedReport(Part):
    """Everything measured at one seed.

    `risk` is the answer.

    Attributes:
        configured: The answer before the measurement; None where nothing was measured, or there is
            no configuration that has an answer.
        alternatives: The answers for what else the input could mean.
    """

    seed: int
    spectra: SpectraReport
    forward: ForwardReport
    gradient: GradientReport | None
    risk: Answer
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


class CarriedReport(Part):
    """The learning rate of the recipe, carried from a smaller model on which it was tuned.

    Attributes:
        small: The smaller model, or its run file.
        small_rate: The learning rate that was tuned on it.
        rate: The carried one; None where the data do not cover both.
        edge_shift: By how many decades the likely edge moves, from the configurations alone.
        rules: Rule of scaling -> the rate it gives; `rksp` keeps the distance from the edge.
        errors: Rule -> `edge`, `best`: its median error in decades, over teams left out of the fit.
        reasons: Why no rate was carried, a clause each.
    """

    small: str
    small_rate: float
    rate: float | None
    edge_shift: float | None
    rules: dict[str, float]
    errors: dict[str, dict[str, float]]
    reasons: list[str]


class SummaryReport(Part):
    """The answer for a program: may the run be launched, and what to change first.

    Attributes:
        launch: As the verdict: yes where it is ok, caution, no where it is risk or fails the gate,
            unknown where rksp cannot tell or no learning rate was given. Caution where it is risk
            and the baseline had all of that, so that the exit code is 0.
        why: One sentence.
        learning_rate: The recipe's; None without one.
        probability_failed: At the recipe's learning rate; None without one.
        low, high: Ends of its interval.
        start_here, likely_edge, do_not_exceed: See `Answer`. Where published runs answer,
            the first is the middle of their rates and the last the highest; no edge is known.
        edits: Changes that remove findings, the most severe finding's first; the edits of
            `rksp fix` are those with a place in the file.
        next_command: What to run next; empty where nothing more can be asked.
    """

    launch: Literal["yes", "caution", "no", "unknown"]
    why: str
    learning_rate: float | None = None
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
        carried: Where the learning rate was carried from, with `--tuned`.
    """

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
    carried: CarriedReport | None = None
    timings: dict[str, float]


class FileRow(Part):
    """One file or target.

    Attributes:
        name: As it was typed, or found in a folder.
        verdict: The verdict of its report; `unreadable` where there is none.
        report: The finished report; None where the file cannot be read.
        error: Why it cannot be read, a sentence; empty where it can.
        is_named: It was typed, not found in a folder; one that cannot be read is then an error.
    """

    name: str
    verdict: str
    report: ScoreReport | None = None
    error: str = ""
    is_named: bool = True


class FilesReport(Document):
    """One run of `rksp score` over several files and targets; the verdict is the worst of theirs.

    Attributes:
        rows: One for each, in the order they were named.
        skipped: Number of files in folders that are no run files.
    """

    kind: Literal["files"] = "files"
    rows: list[FileRow]
    skipped: int = 0
