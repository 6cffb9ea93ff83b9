"""The tables of the model of fine-tuning, as Markdown."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from lab.fine_tuning_fit.fit import fit_fine_tuning
from lab.fine_tuning_fit.ladder import FineTuningLadder
from lab.fine_tuning_fit.left_out import KEYS, LeftOut, left_out
from lab.fine_tuning_fit.public_rows import (
    Row,
    chosen_rate,
    is_trained_card,
    is_trained_recipe,
    public_ladders,
)
from lab.fine_tuning_fit.scores import (
    AT_USUAL,
    CANDIDATES,
    MODEL,
    SETS,
    Rule,
    chosen_starts,
    edge_score,
    members,
    nats_score,
    nested_starts,
    public_formula,
    rate_score,
    run_score,
    starts,
    trained_score,
    usual,
)
from rksp.ground.files import digest
from rksp.ground.model import definite


def evaluation(
    rows: Sequence[Row], lab: Sequence[FineTuningLadder] = (), *, tried: bool = False
) -> str:
    """Return every table.

    Args:
        rows: Of `read_public_rows`.
        lab: Ladders of the lab, which have nats.
        tried: Also leave the choice of the start out: twenty times the work.
    """
    ladders = public_ladders(rows)
    predicted = {name: list(left_out(ladders, key)) for name, key in KEYS.items()}
    parts = [
        *([_of_lab(lab, ladders)] if lab else []),
        _rates(predicted),
        _edges(predicted),
        _runs(predicted),
        _lora(predicted["families"]),
        _trained(rows),
    ]
    if tried:
        parts.append(_nested(ladders))
    return "\n".join(parts)


def _of_lab(lab: Sequence[FineTuningLadder], public: Sequence[FineTuningLadder]) -> str:
    """Say what *start here* costs in the lab's ladders, whole families left out."""
    lines = [
        "### The lab's tiny models, whole families left out\n",
        "Regret is the held-out loss at *start here* above the ladder's best, in nats; *gain lost* "
        "is its share of what the best run gained on not training. The constant is the median of "
        "the other families' best rates.\n",
        "| ladders | regret | 90 % | of the constant | gain lost | worse than not training "
        "| best, decades | edge | *do not exceed* below the first failed rate |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    found = list(left_out([*lab, *public], KEYS["families"]))
    groups: dict[str, list[LeftOut]] = {}
    for one in found:
        inputs = one.ladder.inputs
        if inputs.is_tiny:
            head = ", classification" if inputs.objective == "classification" else ""
            groups.setdefault(f"{inputs.trained}, {inputs.kind}{head}", []).append(one)
    for name, alike in sorted(groups.items()):
        edges, nats = edge_score(alike), nats_score(alike)
        lines.append(
            f"| {name} ({len(alike)}) | {nats.regret:.3f} | {nats.high:.3f} "
            f"| {nats.constant:.3f} | {nats.lost:.0%} | {nats.worse} "
            f"| {rate_score(alike, starts).error:.2f} | {edges.error:.2f} | {edges.below:.0%} |"
        )
    return "\n".join(lines) + "\n"


def _rates(predicted: Mapping[str, Sequence[LeftOut]]) -> str:
    lines = [
        "### The starting rate, whole sources or families left out\n",
        "*Near* is within 1 % of the best result, or within one standard error of the difference; "
        "*strict* is within 1 % whatever the noise, *macro* is near with sources or families "
        "counting alike. Results between two runs are on a straight line, and a rate more than a "
        "step beyond the ladder is not near. The error is over ladders whose best is inside.\n",
        "| left out | ladders | rule | near | strict | macro | error, decades |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, everything in predicted.items():
        for chosen, practice in SETS.items():
            part = members(everything, practice)
            for rule, judge in _rules(chosen).items():
                kept = [x for x in part if rule != "public formula" or public_formula(x.ladder)]
                if not kept:
                    continue
                score = rate_score(kept, judge)
                error = "–" if math.isnan(score.error) else f"{score.error:.2f} of {score.inner}"
                lines.append(
                    f"| {name} | {chosen} ({score.count}) | {rule} | {score.near:.0%} "
                    f"| {score.strict:.0%} | {score.macro:.0%} | {error} |"
                )
    starts_at = chosen_starts(predicted)
    lines += [
        "",
        f"Of {len(CANDIDATES)} candidates each, chosen: the usual rate, unless another is near in "
        "more ladders both with sources and with families left out.\n",
        *(f"* {name}: {starts_at[practice]}" for name, practice in SETS.items() if practice),
        "",
        "All of these together, near and strict:\n",
    ]
    for name, everything in predicted.items():
        part = [x for x in everything if x.ladder.inputs.practice]
        rules = {"chosen": lambda x: CANDIDATES[starts_at[x.ladder.inputs.practice]](x)}
        for rule, judge in ({AT_USUAL: usual} | rules).items():
            score = rate_score(part, judge)
            lines.append(
                f"* {name} left out ({score.count}), {rule}: {score.near:.1%}, {score.strict:.1%}"
            )
    return "\n".join(lines) + "\n"


def _nested(ladders: Sequence[FineTuningLadder]) -> str:
    """Return what the choice itself is worth: each source has the choice of all others."""
    lines = [
        "### The choice of the starting rate, left out too\n",
        "Each source is told by the candidate that all other sources choose, near and strict.\n",
        "| ladders | near | of the usual rate | strict | of the usual rate | chosen |",
        "|---|---|---|---|---|---|",
    ]
    found = nested_starts(ladders)
    for name, practice in SETS.items():
        if practice:
            seen = [one for one, _ in found[practice]]
            told = {one.ladder.name: CANDIDATES[rule](one) for one, rule in found[practice]}
            own, constant = rate_score(seen, _looked_up(told)), rate_score(seen, usual)
            chosen = Counter(rule for _, rule in found[practice])
            lines.append(
                f"| {name} ({len(seen)}) | {own.near:.0%} | {constant.near:.0%} | {own.strict:.0%} "
                f"| {constant.strict:.0%} | {', '.join(f'{n} {r}' for r, n in chosen.items())} |"
            )
    return "\n".join(lines) + "\n"


def _looked_up(told: Mapping[str, float]) -> Rule:
    return lambda one: told[one.ladder.name]


def _rules(chosen: str) -> dict[str, Rule]:
    if not SETS[chosen]:
        return {MODEL: starts}
    rules = dict(CANDIDATES)
    if chosen == "LoRA, QLoRA":
        rules["public formula"] = lambda x: math.log10(definite(public_formula(x.ladder)))
    return rules


def _edges(predicted: Mapping[str, Sequence[LeftOut]]) -> str:
    lines = [
        "### The edge of the same ladders\n",
        "| left out | ladders with an edge | error | bias | stated spread "
        "| *do not exceed* below the first failed rate | at or below the last good one |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, everything in predicted.items():
        for chosen, practice in SETS.items():
            part = members(everything, practice)
            score = edge_score(part)
            if score.count:
                lines.append(
                    f"| {name} | {chosen} ({score.count}) | {score.error:.2f} | {score.bias:+.2f} "
                    f"| {score.spread:.2f} | {score.below:.0%} | {score.below_last_good:.0%} |"
                )
    return "\n".join(lines) + "\n"


def _runs(predicted: Mapping[str, Sequence[LeftOut]]) -> str:
    lines = [
        "### P(failed) over the runs of the ladders\n",
        "| left out | runs | failed | AUROC | of the rate alone | ECE |",
        "|---|---|---|---|---|---|",
    ]
    for name, everything in predicted.items():
        score = run_score(everything)
        lines.append(
            f"| {name} | {score.runs} | {score.failed} | {score.auroc:.3f} "
            f"| {score.by_rate:.3f} | {score.ece:.3f} |"
        )
    return "\n".join(lines) + "\n"


def _lora(predicted: Sequence[LeftOut]) -> str:
    """LoRA by family and by rank, the family left out."""
    part = members(predicted, "lora")
    lines = [
        "### LoRA by family and by rank, the family left out\n",
        "| ladders | *start here* | near | 3e-4 near |",
        "|---|---|---|---|",
    ]
    constant = lambda x: math.log10(3e-4)
    for word, key in (("family", "family"), ("rank", "rank")):
        values = {getattr(x.ladder.inputs, key) for x in part}
        for value in sorted(values, key=lambda v: (v is None, 0 if v is None else v)):
            mine = [x for x in part if getattr(x.ladder.inputs, key) == value]
            rates = sorted(x.estimate.start_here for x in mine)
            shown = value if isinstance(value, str) else "?" if value is None else f"{value:g}"
            lines.append(
                f"| {word} {shown or '?'} ({len(mine)}) | {rates[len(rates) // 2]:.1e} "
                f"| {rate_score(mine, starts).near:.0%} | {rate_score(mine, constant).near:.0%} |"
            )
    return "\n".join(lines) + "\n"


def _trained(rows: Sequence[Row]) -> str:
    lines = [
        "### Rates that are known to have trained\n",
        "| runs | number | at risk | above ok |",
        "|---|---|---|---|",
    ]
    for name, part in trained_predictions(rows).items():
        score = trained_score(part)
        lines.append(f"| {name} | {score.count} | {score.at_risk:.1%} | {score.above_ok:.1%} |")
    return "\n".join(lines) + "\n"


def trained_predictions(rows: Sequence[Row]) -> dict[str, list[LeftOut]]:
    """Return recipes with their source left out, and cards with half of them left out."""
    ladders = public_ladders(rows)
    recipes = [chosen_rate(row) for row in rows if is_trained_recipe(row)]
    found: dict[str, list[LeftOut]] = {"recipes, their source left out": []}
    for source in sorted({x.inputs.source for x in recipes}):
        rest = [x for x in ladders if x.inputs.source != source]
        mine = [x for x in recipes if x.inputs.source == source]
        found["recipes, their source left out"] += _predicted(rest, mine)
    cards: list[LeftOut] = []
    for half in (0, 1):
        held = [row for row in rows if is_trained_card(row) and _half(row) == half]
        names = {row["id"] for row in held}
        rest = public_ladders([row for row in rows if row["id"] not in names])
        cards += _predicted(rest, [chosen_rate(row) for row in held])
    known = [x for x in cards if x.ladder.inputs.family and x.ladder.inputs.parameters]
    found["cards, half of the checkpoints left out"] = cards
    found["of these, with a known family and size"] = known
    return found


def _predicted(rest: Sequence[FineTuningLadder], mine: Sequence[FineTuningLadder]) -> list[LeftOut]:
    model = fit_fine_tuning(rest)
    return [LeftOut(ladder=x, estimate=model.predict(x.inputs), name=x.name) for x in mine]


def _half(row: Row) -> int:
    return int(digest(str(row["arch"].get("model") or row["id"]), length=2), 16) % 2
