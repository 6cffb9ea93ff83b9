"""The answer: what a fitted model, published runs or plain arithmetic say of one run, or nothing.

There are five kinds, told apart by `kind`. Each has the fields that it can fill, so nobody has to
guess the kind from what is None.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field, PositiveFloat

from rksp.documents.base import Part
from rksp.documents.own_runs import LearnedReport
from rksp.documents.verdict import Verdict

_FEARED, _LIKELY = 0.01, 0.5  # of P(failed): printed as less, no ending is feared; from here on one


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
        name: Its name, which `rksp explain` knows.
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


class _Stated(Part):
    """What every answer states. Probabilities lie between 0 and 1, rates are peak learning rates.

    Attributes:
        kind: Who answers: the model of the `edge` for random weights, that of `fine-tuning`,
            `published` runs, nobody since the failure is `certain`, or `untold`: nobody can.
        verdict: The word; see `rksp.documents.verdict`.
        evidence: Name of the tier of evidence behind the answer.
        horizon_steps: Steps of the run that the answer is about.
        risk: P(failed) up to which the word is ok.
        threshold: P(failed) from which it is risk: the bar.
        outside: Facts outside the range of the labelled runs, in decades.
        classifier_data: Digest of the data that the classifier was fitted on; None where no
            classifier was asked.
    """

    is_told: ClassVar[bool] = True  # numbers or published rates are given
    verdict: Verdict
    evidence: str
    horizon_steps: int
    risk: float
    threshold: float
    outside: dict[str, float] = Field(default_factory=dict)
    classifier_data: str | None = None

    def number(self, name: str) -> float | None:
        """Return a number of the answer; None where this kind has none of that name."""
        found: float | None = getattr(self, name, None)
        return found


class Untold(_Stated):
    """rksp cannot tell, and gives no number: it would be no answer.

    Attributes:
        reasons: Why, clauses; at least one.
    """

    is_told: ClassVar[bool] = False
    kind: Literal["untold"] = "untold"
    verdict: Literal[Verdict.CANNOT_TELL, Verdict.NOT_ASSESSED] = Verdict.CANNOT_TELL
    reasons: list[str] = Field(min_length=1)


class _Chances(_Stated):
    """The chances at the recipe's learning rate; each is None without a rate.

    Attributes:
        probability_failed: That a lower rate trains better or that none trains.
        probability_failed_low, probability_failed_high: The ends of its interval.
        probability_diverged: Part of it in which the run diverges: its loss or gradient is not
            finite, or beyond the thresholds of `OutcomePolicy`; the rest only ends higher. None
            where the model of fine-tuning answers, which does not tell them apart.
        curve: P(failed) by learning rate, in rising order.
        counterfactual: A sentence with a better rate and what it saves; None if the recipe's is
            as good.
    """

    probability_failed: float | None = None
    probability_failed_low: float | None = None
    probability_failed_high: float | None = None
    probability_diverged: float | None = None
    curve: list[CurvePoint] = Field(default_factory=list)
    counterfactual: str | None = None

    @property
    def feared(self) -> str:
        """The likelier ending of a run that fails; empty where it is not told, or hardly fails."""
        failed = self.probability_failed or 0.0
        if self.probability_diverged is None or failed < _FEARED:
            return ""
        ending = "diverges" if 2 * self.probability_diverged >= failed else "ends high"
        return f"rather {ending}" if failed >= _LIKELY else f"if it fails, it rather {ending}"


class CertainFailure(_Chances):
    """Values are not finite before the first step, so no learning rate trains the model."""

    kind: Literal["certain"] = "certain"
    verdict: Literal[Verdict.RISK] = Verdict.RISK
    counterfactual: str


class Estimate(_Chances):
    """What a fitted model says.

    Attributes:
        start_here: The rate with the lowest expected loss.
        start_failed: The probability that a run at that rate fails.
        likely_edge: The median of the edge: at this rate failure is as likely as not.
        do_not_exceed: The rate at which P(failed) reaches `risk`; in short runs it can be lower
            than `start_here`.
        contributions: Facts that move this run's edge from the average, largest first.
        learned: How far the team's own runs moved the answer; None where there are none.
    """

    start_here: float
    start_failed: float
    likely_edge: float
    do_not_exceed: float
    contributions: list[Contribution] = Field(default_factory=list)
    learned: LearnedReport | None = None


class FromEdge(Estimate):
    """What the model of the edge says, of runs from random weights.

    Attributes:
        start_excess: Expected loss at `start_here`, in nats above the best rate.
        expected_excess: The same at the recipe's rate; None without a rate.
        widened_by: What widens the interval of P(failed), since the labelled runs know little of
            it: each a standard deviation of the edge, in decades.
        levers: What would raise the edge, the largest first.
    """

    kind: Literal["edge"] = "edge"
    start_excess: float
    expected_excess: float | None = None
    widened_by: dict[str, float] = Field(default_factory=dict)
    levers: list[LeverReport] = Field(default_factory=list)


class FromFineTuning(Estimate):
    """What the model of fine-tuning says, of runs from trained weights; it knows no losses.

    Attributes:
        usual: The usual rate, where no data beat it and `start_here` is it.
        forgets_from: The rate from which a tenth of the untouched abilities is lost, in the
            median; None where no data show it.
    """

    kind: Literal["fine-tuning"] = "fine-tuning"
    usual: float | None = None
    forgets_from: float | None = None


class FromPublished(_Stated):
    """What published runs of the same sort trained at; they give no probability.

    Attributes:
        start_here: Their middle rate.
        published: The runs.
        counterfactual: A sentence with a better rate; None if the recipe's is as good.
    """

    kind: Literal["published"] = "published"
    start_here: float
    published: PublishedReport
    counterfactual: str | None = None


KINDS = (FromEdge, FromFineTuning, FromPublished, CertainFailure, Untold)
Answer = Annotated[
    FromEdge | FromFineTuning | FromPublished | CertainFailure | Untold,
    Field(discriminator="kind"),
]
