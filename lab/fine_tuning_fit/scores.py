"""What predictions of ladders, recipes and cards that were left out are worth."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lab.fine_tuning_fit.fit import fit_fine_tuning
from lab.fine_tuning_fit.ladder import LADDER, FineTuningLadder, interpolated
from lab.fine_tuning_fit.left_out import KEYS, LeftOut, left_out, source_of
from rksp.classifiers.fine_tuning.inputs import USUAL
from rksp.classifiers.metrics import auroc, ece
from rksp.documents.terms import DEFAULT_BAR, DEFAULT_RISK
from rksp.documents.verdict import Verdict, word_at
from rksp.ground.model import definite

NEAR = 0.01  # share of the best result by which a rate may fall short, whatever its noise
Rule = Callable[[LeftOut], float]


SETS = {
    "LoRA, QLoRA": "lora",
    "their variants": "variant",
    "encoders, all weights": "encoder",
    "decoders, all weights": "decoder",
    "encoder-decoders, all weights": "encoder_decoder",
    "Whisper, all weights": "whisper",
    "the rest": "",
}


def members(predicted: Sequence[LeftOut], practice: str) -> list[LeftOut]:
    """Return the ladders whose usual rate is of this name, one of `SETS`."""
    return [x for x in predicted if x.ladder.inputs.practice == practice]


def public_formula(ladder: FineTuningLadder) -> float | None:
    """Return 5e-5 · 10 · (2000 / width)^P, with P 0.78 for Llama and 0.08 for Qwen; None elsewhere.

    The formula of a public service for LoRA (`hyperparam_utils` of the Tinker cookbook).
    """
    family = ladder.inputs.family
    power = 0.781 if family == "llama" else 0.0775 if family.startswith("qwen") else None
    if power is None or not ladder.width:
        return None
    return 5e-4 * (2000 / ladder.width) ** power


@dataclass(frozen=True, slots=True, kw_only=True)
class RateScore:
    """What a rule for the starting rate is worth.

    Attributes:
        near: Share of the ladders in which it falls short of the best by 1 % at most, or by less
            than the standard error of that difference.
        strict: Share in which it falls short by 1 % at most.
        macro: As `near`, every source or family counting alike.
        error: Median distance from the best rate, in decades, where that is inside the ladder.
        count, inner: Ladders behind each.
    """

    near: float
    strict: float
    macro: float
    error: float
    count: int
    inner: int


def rate_score(predicted: Sequence[LeftOut], rule: Rule) -> RateScore:
    """Judge a rule, which gives log10 of a rate."""
    by_name = defaultdict(list)
    for one in predicted:
        by_name[one.name].append(is_near(one, rule))
    inner = [abs(rule(x) - definite(x.ladder.chosen)) for x in predicted if not x.ladder.at_border]
    return RateScore(
        near=_mean([hit for hits in by_name.values() for hit in hits]),
        strict=_mean([x.ladder.shortfall(rule(x))[0] <= NEAR for x in predicted]),
        macro=_mean([_mean(hits) for hits in by_name.values()]),
        error=_median(inner),
        count=len(predicted),
        inner=len(inner),
    )


def is_near(one: LeftOut, rule: Rule) -> bool:
    """Say whether a rule falls short by 1 % at most, or by less than its noise."""
    short, doubt = one.ladder.shortfall(rule(one))
    return short <= max(NEAR, doubt)


def starts(one: LeftOut) -> float:
    """Return log10 of *start here*."""
    return math.log10(one.estimate.start_here)


def usual(one: LeftOut) -> float:
    """Return log10 of the usual rate, or of *do not exceed* where that is lower."""
    rate = USUAL[one.ladder.inputs.practice]
    return math.log10(min(rate, one.estimate.rate_at(DEFAULT_RISK)))


def halfway(one: LeftOut) -> float:
    """Return the same, halfway in decades from the usual rate to the model's."""
    rate = (math.log10(USUAL[one.ladder.inputs.practice]) + one.estimate.best.location) / 2
    return min(rate, math.log10(one.estimate.rate_at(DEFAULT_RISK)))


AT_USUAL, MODEL = "usual", "model"
CANDIDATES: dict[str, Rule] = {AT_USUAL: usual, "halfway to the model": halfway, MODEL: starts}


def near_counts(predicted: Sequence[LeftOut], practice: str) -> dict[str, int]:
    """Return by candidate in how many ladders of a practice it `is_near`."""
    part = members(predicted, practice)
    return {name: sum(is_near(x, rule) for x in part) for name, rule in CANDIDATES.items()}


def chosen_starts(predicted: Mapping[str, Sequence[LeftOut]]) -> dict[str, str]:
    """Choose by practice among `CANDIDATES`, by what was left out.

    The usual rate stands unless a candidate is near in more ladders both with sources and with
    families left out; and each candidate has to be that much better than the one before it.

    Args:
        predicted: What was left out, by `KEYS`.
    """
    found = {}
    for practice in USUAL:
        counts = [near_counts(part, practice) for part in predicted.values()]
        chosen = AT_USUAL
        for name in CANDIDATES:
            if all(count[name] > count[chosen] for count in counts):
                chosen = name
        found[practice] = chosen
    return found


def nested_starts(ladders: Sequence[FineTuningLadder]) -> dict[str, list[tuple[LeftOut, str]]]:
    """Return by practice each ladder, and the candidate that all other sources choose for it."""
    found: dict[str, list[tuple[LeftOut, str]]] = {practice: [] for practice in USUAL}
    for name in sorted({source_of(x) for x in ladders if x.kind == LADDER}):
        rest = [x for x in ladders if source_of(x) != name]
        chosen = chosen_starts({by: list(left_out(rest, key)) for by, key in KEYS.items()})
        model = fit_fine_tuning(rest)
        for x in ladders:
            if source_of(x) == name and x.kind == LADDER and x.inputs.practice:
                one = LeftOut(ladder=x, estimate=model.predict(x.inputs), name=name)
                found[x.inputs.practice].append((one, chosen[x.inputs.practice]))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsScore:
    """What *start here* costs in ladders whose results are nats.

    Attributes:
        regret: Median of the held-out loss above the ladder's best.
        high: Its 90 % quantile.
        constant: Median regret of the median best rate of the ladders of other groups.
        lost: Median share of the gain on not training that is lost.
        worse: Ladders that end worse than not training.
    """

    regret: float
    high: float
    constant: float
    lost: float
    worse: int


def nats_score(predicted: Sequence[LeftOut]) -> NatsScore:
    """Judge *start here* against the best run and against not training, on held-out data."""
    regrets, constants, gains = [], [], []
    for one in predicted:
        runs = [
            (rate, result)
            for rate, result in zip(one.ladder.rates, one.ladder.results, strict=True)
            if result is not None
        ]
        best = min(result for _, result in runs)
        others = [definite(x.ladder.chosen) for x in predicted if x.name != one.name]
        usual = _median(others or [definite(one.ladder.chosen)])
        regrets.append(interpolated(starts(one), runs) - best)
        constants.append(interpolated(usual, runs) - best)
        gains.append(definite(one.ladder.untrained) - best)
    lost = [regret / gain for regret, gain in zip(regrets, gains, strict=True)]
    return NatsScore(
        regret=_median(regrets),
        high=float(np.quantile(regrets, 0.9)),
        constant=_median(constants),
        lost=_median(lost),
        worse=sum(share > 1 for share in lost),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeScore:
    """What the edge is worth.

    Attributes:
        error: Median distance from the middle of the bracket, in decades.
        bias: Median of predicted less true.
        spread: Median of the stated spread.
        below: Share of the ladders whose first failed rate lies above *do not exceed*.
        below_last_good: The same for the last rate that trained.
        count: Ladders with an edge.
    """

    error: float
    bias: float
    spread: float
    below: float
    below_last_good: float
    count: int


def edge_score(predicted: Sequence[LeftOut]) -> EdgeScore:
    """Judge the edge of the ladders that have one."""
    known = [x for x in predicted if x.ladder.has_edge]
    misses = [x.estimate.edge.location - sum(x.ladder.edge) / 2 for x in known]
    ceilings = [math.log10(x.estimate.rate_at(DEFAULT_RISK)) for x in known]
    return EdgeScore(
        error=_median(np.abs(misses).tolist()),
        bias=_median(misses),
        spread=_median([x.estimate.edge.spread for x in known]),
        below=_mean([c < x.ladder.edge[1] for c, x in zip(ceilings, known, strict=True)]),
        below_last_good=_mean(
            [c <= x.ladder.edge[0] for c, x in zip(ceilings, known, strict=True)]
        ),
        count=len(known),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunScore:
    """What P(failed) is worth over single runs; `by_rate` ranks them by their rate alone."""

    auroc: float
    by_rate: float
    ece: float
    runs: int
    failed: int


def run_score(predicted: Sequence[LeftOut]) -> RunScore:
    """Judge P(failed) at every run of which it is known how it ended."""
    rows = [
        (failed, x.estimate.failed(10**rate), rate)
        for x in predicted
        for rate, failed in zip(x.ladder.rates, x.ladder.failed, strict=True)
        if failed is not None
    ]
    failed, chance, rate = (np.array(column) for column in zip(*rows, strict=True))
    return RunScore(
        auroc=auroc(failed, chance),
        by_rate=auroc(failed, rate),
        ece=ece(failed, chance),
        runs=len(rows),
        failed=int(failed.sum()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedScore:
    """What is said of runs that are known to have trained: shares at risk, and above ok."""

    at_risk: float
    above_ok: float
    count: int


def trained_score(predicted: Sequence[LeftOut]) -> TrainedScore:
    """Judge rates that trained; above ok is what `rksp score` calls caution or risk."""
    risk, above = [], []
    for x in predicted:
        rate = 10 ** definite(x.ladder.chosen)
        failed, most = x.estimate.failed(rate), x.estimate.rate_at(DEFAULT_RISK)
        word = word_at(rate, most, is_risk=failed >= DEFAULT_BAR)
        risk.append(word is Verdict.RISK)
        above.append(word is not Verdict.OK)
    return TrainedScore(at_risk=_mean(risk), above_ok=_mean(above), count=len(risk))


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def _median(values: Sequence[float]) -> float:
    return float(np.median(values)) if len(values) else math.nan
