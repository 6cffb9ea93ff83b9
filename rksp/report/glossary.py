"""Every word that a page prints and that is not a check: what it means, and what is healthy."""

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
        meaning="The learning rate with the lowest expected excess loss. It weighs what a rate "
        "that is too low costs against the chance that a higher one fails.",
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
        meaning="The 5 % quantile of the edge's distribution: of twenty models like this one, "
        "one has its edge below this rate.",
        spellings=("do_not_exceed", "limit"),
    ),
    Word(
        name="P(failed)",
        meaning="The probability that the run diverges, or ends more than 0.25 nats above what a "
        "lower learning rate reaches. The range behind it is an 80 % interval.",
        healthy="Below the bar, 50 % unless --fail-on says otherwise.",
        spellings=("probability_failed", "failed", "risk001"),
    ),
    Word(
        name="bar",
        meaning="The P(failed) from which the verdict is risk and the exit code 1. --fail-on "
        "sets it.",
        spellings=("threshold", "fail-on"),
    ),
    Word(
        name="expected excess",
        meaning="The loss, in nats, that a learning rate is expected to cost compared with the "
        "best rate of the same model and recipe.",
        healthy="At most 0.1 nats.",
        spellings=("expected_excess", "excess loss", "nats"),
    ),
    Word(
        name="ok",
        meaning="The verdict: P(failed) lies below the bar with its whole interval, and the rate "
        "does not exceed the limit.",
    ),
    Word(
        name="caution",
        meaning="The verdict: the interval of P(failed) straddles the bar, or the rate lies above "
        "“do not exceed”. A short run (rksp confirm) decides.",
    ),
    Word(
        name="risk",
        meaning="The verdict: P(failed) is at or above the bar.",
        spellings=("high-risk", "RKSP001"),
    ),
    Word(
        name="cannot tell",
        meaning="The verdict: the evidence does not carry an answer. The reasons stand beside it.",
        spellings=("indeterminate", "RKSP002"),
    ),
    Word(
        name="not assessed",
        meaning="No classifier could be read, so there are measurements but no verdict.",
    ),
    Word(
        name="reasons",
        meaning="What moves this run's edge from that of the average labelled run, each as a "
        "factor on the learning rate.",
        spellings=("contribution", "contributions", "decades", "why"),
    ),
    Word(
        name="evidence",
        meaning="How much was spent on the answer: config reads the configuration, forward adds "
        "one pass with its spectra, response one gradient and a few passes.",
        spellings=("tier", "config", "forward", "response"),
    ),
    Word(
        name="assumed",
        meaning="A field of the recipe that neither a flag nor the run file says. A wrong "
        "assumption makes a wrong answer, so each is printed.",
        spellings=("assumption", "origin"),
    ),
    Word(
        name="beyond the labelled runs",
        meaning="A fact of the model or the recipe, such as the width, lies outside the range of "
        "the runs that the classifier was fitted on. The number is the factor by which it does.",
        spellings=("outside",),
    ),
    Word(
        name="horizon",
        meaning="The steps over which the labelled runs were watched. What fails later is not in "
        "the probability.",
        spellings=("horizon_steps",),
    ),
    # The spectra
    Word(
        name="M≈1",
        meaning="Near-unit mass: the share of a block's eigenvalues with modulus between 0.90 and "
        "1.05. Its mean over the blocks is the published score.",
        healthy="0.1 to 0.4 for Pre-LN at initialization; 0.7 and more for models without norms.",
        spellings=("near-unit mass", "near_unit_mass", "published_score", "m~1"),
        source="RKSP, arXiv 2602.22988.",
    ),
    Word(
        name="M>1",
        meaning="Expansive mass: the share of a block's eigenvalues with modulus above 1.05.",
        healthy="About 0.5 for Pre-LN at initialization.",
        spellings=("expansive mass", "expansive_mass"),
        source="RKSP, arXiv 2602.22988.",
    ),
    Word(
        name="ρ",
        meaning="Spectral radius: the largest modulus of a block's eigenvalues.",
        healthy="1.3 to 2.5 for Pre-LN at initialization.",
        spellings=("rho", "spectral radius", "spectral_radius"),
    ),
    Word(
        name="κ(V)",
        meaning="Condition of the eigenvectors: how far from orthogonal they are. A large value "
        "lets states grow for a while although every eigenvalue says that they shrink.",
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
        meaning="Size of what a block adds, over the size of what it received.",
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
        meaning="How far a block's spectrum can be trusted. Only blocks with status ok enter the "
        "means; every other status comes with its remedy.",
    ),
    # The forward pass and the response
    Word(
        name="initial loss",
        meaning="The loss in nats before the first step.",
        healthy="Close to that of a uniform guess, the logarithm of the vocabulary.",
    ),
    Word(
        name="logit std",
        meaning="Standard deviation of the output logits over the classes.",
        healthy="Below 1 at initialization.",
        spellings=("logit_std",),
    ),
    Word(
        name="attention logit std",
        meaning="Standard deviation of the attention scores that a query can see, in the layer "
        "where it is largest.",
        healthy="Below 2 at initialization.",
        spellings=("attention_logit_std",),
    ),
    Word(
        name="router entropy",
        meaning="Entropy of the router's choice over the experts, in the layer where it is "
        "lowest; 1 is uniform.",
        healthy="Above 0.8 at initialization.",
        spellings=("router_entropy",),
    ),
    Word(
        name="largest activation",
        meaning="The largest absolute value that any module returned, and which one.",
        healthy="Below 1,000; fp16 overflows at 65,504.",
        spellings=("activation_absmax",),
    ),
    Word(
        name="gradient norm",
        meaning="Euclidean norm of the gradient of the first batch.",
        healthy="0.1 to 100 at initialization.",
        spellings=("grad_norm",),
    ),
    Word(
        name="critical rate",
        meaning="The learning rate at which a single first step stops lowering the loss of a "
        "batch that it has not seen.",
        healthy="Far above the recipe's rate.",
        spellings=("critical_rate", "critical sharpness"),
        source="Idea of arXiv 2601.16979, on an unseen batch.",
    ),
    # Confirmations and grids
    Word(
        name="arm",
        meaning="One variant of a confirmed run: the baseline, another rate, or an intervention. "
        "All arms share initializations and batches.",
        spellings=("baseline", "arms"),
    ),
    Word(
        name="fault",
        meaning="A defect planted on purpose, to prove that a monitor sees it.",
        spellings=("faults",),
    ),
    Word(
        name="undecided",
        meaning="The verdict of a confirmation in which no run learned more than the frequencies "
        "of its labels: it was too short to tell.",
    ),
    Word(
        name="Fisher p",
        meaning="Probability of a difference at least this large between two arms if neither "
        "were better: Fisher's exact test, one-sided.",
        spellings=("fisher",),
    ),
    Word(
        name="Pareto",
        meaning="The cells that no other cell beats in both rate and risk.",
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
