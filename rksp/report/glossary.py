"""Every printed word that is not a check: its meaning and its healthy range."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One word of the output.

    Attributes:
        name: As the pages print it.
        meaning: One or two sentences.
        healthy: What a run that trains well shows; empty where the word is not a quantity.
        spellings: Other ways to type it.
        source: Who defined it; empty where rksp did.
    """

    name: str
    meaning: str
    healthy: str = ""
    spellings: tuple[str, ...] = ()
    source: str = ""


WORDS: tuple[Word, ...] = (
    # The answer
    Word(
        name="start here",
        meaning=(
            "The learning rate with the lowest expected excess loss. A lower rate learns more "
            "slowly, and a higher one is more likely to fail."
        ),
        spellings=("start_here", "start"),
    ),
    Word(
        name="likely edge",
        meaning="The learning rate at which this run is as likely to fail as to train well: the "
        "median of the edge's distribution.",
        spellings=("likely_edge", "edge"),
    ),
    Word(
        name="do not exceed",
        meaning=(
            "The 5 % quantile of the edge's distribution: one in twenty models like this one has "
            "its edge below this learning rate."
        ),
        spellings=("do_not_exceed", "limit"),
    ),
    Word(
        name="P(failed)",
        meaning=(
            "The probability that the run diverges, or that its final loss is more than 0.25 nats "
            "above that of the best lower learning rate. The range in brackets is an 80 % "
            "interval."
        ),
        healthy="Below the bar (50 %, unless --fail-on sets another).",
        spellings=("probability_failed", "failed", "risk001"),
    ),
    Word(
        name="bar",
        meaning=(
            "The P(failed) from which on the verdict is risk and the exit code is 1. --fail-on "
            "sets it."
        ),
        spellings=("threshold", "fail-on"),
    ),
    Word(
        name="expected excess",
        meaning=(
            "The loss, in nats, by which this learning rate is expected to end above the best one "
            "for the same model and recipe."
        ),
        healthy="At most 0.1 nats.",
        spellings=("expected_excess", "excess loss", "nats"),
    ),
    Word(
        name="ok",
        meaning=(
            "A verdict: the whole interval of P(failed) is below the bar, and the learning rate "
            "is not above “do not exceed”."
        ),
    ),
    Word(
        name="caution",
        meaning=(
            "A verdict: the interval of P(failed) contains the bar, or the learning rate is above "
            "“do not exceed”. A short run (rksp confirm) gives the answer."
        ),
    ),
    Word(
        name="risk",
        meaning="A verdict: P(failed) is at or above the bar.",
        spellings=("high-risk", "RKSP001"),
    ),
    Word(
        name="cannot tell",
        meaning=(
            "A verdict: the evidence does not suffice for an answer. The report states the reasons."
        ),
        spellings=("indeterminate", "RKSP002"),
    ),
    Word(
        name="not assessed",
        meaning=(
            "A verdict: no classifier could be read, so the report has measurements but no "
            "probability."
        ),
    ),
    Word(
        name="reasons",
        meaning=(
            "The properties of this run that move its edge away from that of the average labelled "
            "run, each as a factor on the learning rate."
        ),
        spellings=("contribution", "contributions", "decades", "why"),
    ),
    Word(
        name="evidence",
        meaning=(
            "What was measured for the answer: config reads only the configuration; forward adds "
            "a forward pass with its spectra; response adds a gradient and a few "
            "passes."
        ),
        spellings=("tier", "config", "forward", "response"),
    ),
    Word(
        name="assumed",
        meaning=(
            "A field of the recipe that neither an option nor the run file sets. A wrong "
            "assumption gives a wrong answer, so each one is printed."
        ),
        spellings=("assumption", "origin"),
    ),
    Word(
        name="beyond the labelled runs",
        meaning=(
            "A measurement lies outside the range of the runs that the classifier was fitted to. "
            "The number says by what factor. The interval grows with it."
        ),
        spellings=("outside",),
    ),
    Word(
        name="horizon",
        meaning=(
            "The number of steps over which the labelled runs were observed. The probability does "
            "not include later failures."
        ),
        spellings=("horizon_steps",),
    ),
    # The spectra
    Word(
        name="M≈1",
        meaning=(
            "Near-unit mass: the share of a block's eigenvalues with a modulus between 0.90 and "
            "1.05. Its mean over the blocks is the published score."
        ),
        healthy=(
            "0.1 to 0.4 for Pre-LN models at initialization; 0.7 or more for models without "
            "normalization."
        ),
        spellings=("near-unit mass", "near_unit_mass", "published_score", "m~1"),
        source="RKSP, arXiv 2602.22988.",
    ),
    Word(
        name="M>1",
        meaning="Expansive mass: the share of a block's eigenvalues with a modulus above 1.05.",
        healthy="About 0.5 for Pre-LN models at initialization.",
        spellings=("expansive mass", "expansive_mass"),
        source="RKSP, arXiv 2602.22988.",
    ),
    Word(
        name="ρ",
        meaning="Spectral radius: the largest modulus of a block's eigenvalues.",
        healthy="1.3 to 2.5 for Pre-LN models at initialization.",
        spellings=("rho", "spectral radius", "spectral_radius"),
    ),
    Word(
        name="κ(V)",
        meaning=(
            "The condition number of a block's eigenvectors; it is 1 if they are orthogonal. If "
            "it is large, states can grow for a while although every eigenvalue has a modulus "
            "below 1."
        ),
        healthy="Below 1e4 at initialization.",
        spellings=("kappa", "eigenvector_condition", "eigenvector condition"),
    ),
    Word(
        name="η",
        meaning="Nonlinearity ratio: the part of a block's update that no linear map explains.",
        healthy="0.2 to 0.5 at initialization.",
        spellings=("eta", "nonlinearity"),
        source="RKSP, arXiv 2602.22988.",
    ),
    Word(
        name="update",
        meaning="The size of a block's update divided by the size of its input.",
        healthy="Below 1 after the first blocks.",
        spellings=("update ratio", "update_ratio"),
    ),
    Word(
        name="Kreiss constant",
        meaning="A lower bound of the largest transient growth of the fitted linear map.",
        spellings=("kreiss",),
        source="Trefethen and Embree (2005), chapter 14.",
    ),
    Word(
        name="status",
        meaning=(
            "Whether a block's spectrum can be trusted. Only blocks with status ok count in the "
            "means. Every other status has its own explanation (rksp explain STATUS)."
        ),
    ),
    # The forward pass and the response
    Word(
        name="initial loss",
        meaning="The loss in nats before the first step.",
        healthy=(
            "Close to the loss of a uniform guess, which is the logarithm of the vocabulary size."
        ),
    ),
    Word(
        name="logit std",
        meaning="The standard deviation of the output logits over the classes.",
        healthy="Below 1 at initialization.",
        spellings=("logit_std",),
    ),
    Word(
        name="attention logit std",
        meaning=(
            "The standard deviation of the attention logits over visible keys, in the layer where "
            "it is largest."
        ),
        healthy="Below 2 at initialization.",
        spellings=("attention_logit_std",),
    ),
    Word(
        name="router entropy",
        meaning=(
            "The entropy of the router's distribution over the experts, in the layer where it is "
            "lowest. 1 is uniform."
        ),
        healthy="Above 0.8 at initialization.",
        spellings=("router_entropy",),
    ),
    Word(
        name="largest activation",
        meaning=(
            "The largest absolute value in the output of any module, and the name of that module."
        ),
        healthy="Below 1,000; fp16 overflows at 65,504.",
        spellings=("activation_absmax",),
    ),
    Word(
        name="gradient norm",
        meaning="The Euclidean norm of the gradient of the first batch.",
        healthy="0.1 to 100 at initialization.",
        spellings=("grad_norm",),
    ),
    Word(
        name="critical rate",
        meaning=(
            "The learning rate above which a single first step no longer lowers the loss of an "
            "unseen batch."
        ),
        healthy="Far above the recipe's learning rate.",
        spellings=("critical_rate", "critical sharpness"),
        source="Idea of arXiv 2601.16979, on an unseen batch.",
    ),
    # Confirmations and grids
    Word(
        name="arm",
        meaning=(
            "One variant of a confirmation: the baseline, another learning rate, or an "
            "intervention. All arms share the same initializations and batches."
        ),
        spellings=("baseline", "arms"),
    ),
    Word(
        name="fault",
        meaning="A defect that is planted on purpose, to test that a monitor detects it.",
        spellings=("faults",),
    ),
    Word(
        name="undecided",
        meaning=(
            "The verdict of a confirmation that was too short: no run learned more than the "
            "frequencies of its labels."
        ),
    ),
    Word(
        name="Fisher p",
        meaning=(
            "The probability of a difference at least this large between two arms if neither were "
            "better (Fisher's exact test, one-sided)."
        ),
        spellings=("fisher",),
    ),
    Word(
        name="Pareto",
        meaning="The cells that no other cell beats in both learning rate and risk.",
        spellings=("trade-off",),
    ),
)


def find_word(wanted: str) -> Word | None:
    """Return the word of this name or spelling; case, hyphens and underscores do not matter."""
    return _BY_KEY.get(_key(wanted))


def names() -> Iterator[str]:
    """Yield every name and spelling."""
    for word in WORDS:
        yield from (word.name, *word.spellings)


def _key(text: str) -> str:
    return text.strip().lower().replace("_", " ").replace("-", " ")


_BY_KEY = {_key(name): word for word in WORDS for name in (word.name, *word.spellings)}
