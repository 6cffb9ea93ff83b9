"""Numbers and caveats in the words that every rendering shares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from rksp.documents.score import RiskAssessment, ScoreReport, SeedReport
from rksp.features import FEATURES
from rksp.spectra.status import Status

TITLES = {
    "ok": "OK",
    "risk": "RISK",
    "indeterminate": "INDETERMINATE",
    "not assessed": "NOT ASSESSED",
}

_MEANINGS = {feature.name: feature.meaning for feature in FEATURES}
STATES = ("new", "worse", "unchanged", "better", "fixed")


def count(number: int) -> str:
    """`124 M`: three digits and a letter."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {letter}"
    return str(number)


def size_and_weights(report: ScoreReport) -> str:
    """`124 M parameters, random initialization`."""
    target = report.target
    weights = "stored weights" if target.is_pretrained else "random initialization"
    if target.parameters is None:
        return weights
    return f"{count(target.parameters)} parameters, {weights}"


def blocks(report: ScoreReport) -> str:
    """`transformer.h (12)`, or both chains of an encoder and decoder."""
    return " + ".join(f"{path} ({number})" for path, number in report.target.blocks)


def answer(report: ScoreReport, risk: RiskAssessment) -> str:
    """The probabilities in one line, or the question when the recipe has no rate."""
    rate = report.recipe.learning_rate
    if rate is None or risk.probability_failed is None:
        return "which learning rate is safe?"
    return (
        f"P(failed) {risk.probability_failed:.1%} "
        f"[{risk.probability_failed_low:.1%}, {risk.probability_failed_high:.1%}], "
        f"P(diverged) {risk.probability_diverged:.1%} at learning rate {rate:g}, "
        f"within {risk.horizon_steps} steps"
    )


def safe_rate(risk: RiskAssessment) -> str:
    """The safe rate, or why there is none."""
    return (
        "no rate looked at" if risk.safe_learning_rate is None else f"{risk.safe_learning_rate:.2g}"
    )


def edge(risk: RiskAssessment) -> str:
    """The likely edge, or where it must lie instead."""
    return "beyond the rates looked at" if risk.likely_edge is None else f"{risk.likely_edge:.2g}"


def rates(risk: RiskAssessment) -> str:
    """The safe rate and the likely edge, a line."""
    bound = f"(upper bound of the risk {risk.risk:.0%})"
    if risk.safe_learning_rate is None:
        safe = f"no learning rate looked at is safe {bound}"
    else:
        safe = f"safe learning rate {safe_rate(risk)} {bound}"
    near = "" if risk.likely_edge is None else "most likely near "
    return f"{safe}; edge {near}{edge(risk)}"


def sentence(text: str) -> str:
    """With a capital first letter."""
    return text[:1].upper() + text[1:]


def margin(report: ScoreReport, risk: RiskAssessment) -> str:
    """What an accepted rate above the safe one means; nothing elsewhere."""
    rate, safe = report.recipe.learning_rate, risk.safe_learning_rate
    if report.verdict != "ok" or rate is None or safe is None or rate <= safe:
        return ""
    return (
        f"Below the bar, but {rate / safe:.1f} times the safe rate: the risk may be as high as "
        f"{risk.probability_failed_high:.1%}."
    )


def alone(report: ScoreReport, risk: RiskAssessment) -> str:
    """What the classifier says where rksp cannot tell."""
    rate = [] if report.recipe.learning_rate is None else [answer(report, risk)]
    said = [*rate, f"safe learning rate {safe_rate(risk)}", f"likely edge {edge(risk)}"]
    return f"the classifier alone, not to be relied on: {'; '.join(said)}"


def states(numbers: Mapping[str, int]) -> str:
    """`1 new, 2 unchanged`, in the order of concern; "nothing to compare" if there are none."""
    listed = [f"{numbers[s]} {s}" for s in STATES if numbers.get(s)]
    return ", ".join(listed) or "nothing to compare"


def notes(report: ScoreReport, seed: SeedReport) -> list[str]:
    """What could not be measured, and what limits the numbers that could."""
    found = [*report.target.notes]
    if seed.spectra.reason:
        found.append(f"spectra indeterminate: {seed.spectra.reason}")
    for status, number in Counter(layer.status for layer in seed.spectra.layers).items():
        if status != Status.OK.value and not seed.spectra.reason:
            concerned = "1 block" if number == 1 else f"{number} blocks"
            found.append(f"{concerned} {status.replace('_', ' ')}: {Status(status).remedy}")
    reduced = [layer for layer in seed.spectra.layers if 0 < layer.rank < report.target.width]
    if reduced and len(reduced) == len(seed.spectra.layers):
        found.append(
            f"spectra at reduced rank {reduced[0].rank} of {report.target.width}: compare only "
            "with spectra of the same rank and number of states"
        )
    found += [f"{name} not measured: {why}" for name, why in seed.forward.not_measured.items()]
    if seed.risk is not None and seed.risk.outside:
        worst = sorted(seed.risk.outside.items(), key=lambda item: -item[1])[:4]
        listed = [f"{_MEANINGS.get(n, n)} by {over:.0%}" for n, over in worst if over >= 0.01]
        if listed:
            found.append(f"beyond the labelled runs, in shares of their range: {', '.join(listed)}")
    for name, values in report.spread.items():
        found.append(
            f"over {len(report.seeds)} seeds {name} is {values['mean']:.3g} ± {values['std']:.2g}, "
            f"from {values['low']:.3g} to {values['high']:.3g}"
        )
    return found
