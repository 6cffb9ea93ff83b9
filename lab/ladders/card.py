"""Write the data card: what the collection holds, how it was drawn, and what it lacks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from lab.ladders.collection import trivial_loss
from lab.ladders.grid import LadderGrid, LadderPlan, read_ladder_plan
from lab.ladders.ladder import POLICY, LadderRun
from lab.ladders.markdown import percent, span, table
from lab.ladders.pairs import LadderPairs
from lab.places import DATA
from rksp.own_runs.outcome import Outcome

# Table 1 of arXiv 2602.22988: runs, and the percentage that diverged.
PUBLISHED_RECALL = {
    "zoo_pre_ln": (25, 0.0),
    "zoo_post_ln": (69, 0.0),
    "zoo_rmsnorm": (12, 0.0),
    "zoo_deepnorm": (12, 0.0),
    "zoo_subln": (12, 0.0),
    "zoo_no_norm": (84, 96.4),
}
_ORDER = tuple(Outcome)


def shipped_plans() -> list[LadderPlan]:
    """Return the plans of the collection that are part of rksp, sorted by file name."""
    return [read_ladder_plan(path) for path in sorted((DATA / "plans").glob("*.yaml"))]


def data_card(
    ladders: Sequence[LadderRun],
    *,
    plans: Sequence[LadderPlan] | None = None,
) -> str:
    """Write the Markdown card of a collection; every number in it is computed from the curves.

    Args:
        ladders: What `read_collection` returns.
        plans: The plans that may have drawn the ladders; default the bundled ones.

    Returns:
        The card.
    """
    plans = shipped_plans() if plans is None else plans
    labels = {ladder.spec.id: ladder.judge().outcomes for ladder in ladders}
    outcomes = [outcome for ladder in ladders for outcome in labels[ladder.spec.id]]
    failed = sum(outcome.is_failure for outcome in outcomes)
    sections = [
        "# The collection of labelled training runs",
        f"{len(outcomes)} runs in {len(ladders)} ladders, {percent(failed, len(outcomes))} % "
        f"failed (diverged or on a bad plateau), labelled by policy `{POLICY.name}`.",
        "## Outcomes\n\n" + _outcome_table(ladders, labels, "family", lambda s: s.family),
        _outcome_table(ladders, labels, "task", lambda s: s.task),
        _outcome_table(ladders, labels, "optimizer", lambda s: s.recipe.optimizer),
        "## Where failure begins\n\nLearning rate of the first failing run at or above the best "
        "rate; ladders without a failing run are counted apart.\n\n"
        + _edge_table(ladders, "family", lambda s: s.family),
        _edge_table(ladders, "optimizer", lambda s: s.recipe.optimizer),
        "## What was learned\n\nLadders whose best run ends more than "
        f"{POLICY.margin:g} nats below the task's trivial loss (label frequencies). In the others, "
        "`healthy` means no worse than a model that learned only the label frequencies.\n\n"
        + _learned_table(ladders),
        "## Ranges\n\n" + _ranges(ladders),
        "## How it was drawn\n\n" + _origin(ladders, plans),
        "## What it does not cover\n\n" + _limits(ladders),
    ]
    if recall := recall_table(ladders, plans=plans):
        sections.insert(-1, "## The published associative-recall setting\n\n" + recall)
    return "\n\n".join(sections) + "\n"


def recall_table(
    ladders: Sequence[LadderRun],
    *,
    plans: Sequence[LadderPlan] | None = None,
) -> str:
    """Tabulate divergence by the published thresholds per normalization and rate, next to Table 1.

    Uses the ladders of the plan called `recall`; the table is empty if there are none. Only the
    plan's own rates count, because bisection would add many runs next to the edge.

    Args:
        ladders: What `read_collection` returns.
        plans: The plans that may have drawn the ladders; default the bundled ones.

    Returns:
        The Markdown table, or an empty string.
    """
    plans = shipped_plans() if plans is None else plans
    wanted = {s.id: s.rates for plan in plans if plan.name == "recall" for s in plan.expand()}
    diverged: dict[tuple[str, float], list[bool]] = defaultdict(list)
    for ladder in ladders:
        planned = wanted.get(ladder.spec.id, [])
        for rate, curves in zip(ladder.rates, ladder.curves, strict=True):
            if rate in planned:
                diverged[ladder.spec.family, rate].append(POLICY.has_diverged(curves))
    if not diverged:
        return ""
    rates = sorted({rate for _, rate in diverged})
    lines = []
    for family, (runs, share) in PUBLISHED_RECALL.items():
        cells = [diverged[family, rate] for rate in rates]
        ours = [bad for cell in cells for bad in cell]
        ratios = (f"{sum(cell)}/{len(cell)}" for cell in cells)
        total = f"{percent(sum(ours), len(ours))} % of {len(ours)}"
        lines.append([family, *ratios, total, f"{share:g} % of {runs}"])
    header = ["family", *(f"LR {rate:g}" for rate in rates), "ours", "published"]
    return (
        f"Diverged (loss above {POLICY.max_loss:g}, gradient norm above {POLICY.max_grad_norm:g}, "
        "or not finite) of trained, at the plan's own rates. The published column pools sizes and "
        "rates that the paper does not list run by run, so only the direction can be compared.\n\n"
        + table(header, lines)
    )


def _outcome_table(
    ladders: Sequence[LadderRun], labels: dict, title: str, key: Callable[..., str]
) -> str:
    counts: dict[str, Counter] = defaultdict(Counter)
    sizes: Counter = Counter()
    for ladder in ladders:
        counts[key(ladder.spec)].update(labels[ladder.spec.id])
        sizes[key(ladder.spec)] += 1
    lines = []
    for name in sorted(counts):
        runs = counts[name].total()
        failed = sum(counts[name][o] for o in _ORDER if o.is_failure)
        shares = [percent(counts[name][o], runs) for o in _ORDER]
        lines.append([name, str(sizes[name]), str(runs), *shares, percent(failed, runs)])
    names = [f"{'plateau' if o is Outcome.FAILED_PLATEAU else o} %" for o in _ORDER]
    return table([title, "ladders", "runs", *names, "all failed %"], lines)


def _edge_table(ladders: Sequence[LadderRun], title: str, key: Callable[..., str]) -> str:
    edges: dict[str, list[float]] = defaultdict(list)
    without: Counter = Counter()
    for ladder in ladders:
        name, judged = key(ladder.spec), ladder.judge()
        # If all runs diverged, the first failure is the lowest rate that was tried.
        first = min(ladder.rates) if judged.edge is None else judged.edge[1]
        edges[name] += [] if first is None else [first]
        without[name] += first is None
    lines = []
    for name in sorted(edges):
        cells = ["—"] * 5
        if found := edges[name]:
            cells = [f"{v:.2g}" for v in np.quantile(found, [0, 0.1, 0.5, 0.9, 1])]
        lines.append([name, str(len(edges[name])), *cells, str(without[name])])
    header = [title, "ladders that fail", "lowest", "10 %", "median", "90 %", "highest"]
    return table([*header, "never failed"], lines)


def _learned_table(ladders: Sequence[LadderRun]) -> str:
    total: Counter[str] = Counter()
    learned: Counter[str] = Counter()
    for ladder in ladders:
        task = ladder.spec.task
        best = min(POLICY.final_loss(curves) for curves in ladder.curves)
        total[task] += 1
        learned[task] += best < trivial_loss(ladder.spec) - POLICY.margin
    lines = [
        [task, str(total[task]), str(learned[task]), percent(learned[task], total[task])]
        for task in sorted(total)
    ]
    return table(["task", "ladders", "that learned", "%"], lines)


def _ranges(ladders: Sequence[LadderRun]) -> str:
    specs = [ladder.spec for ladder in ladders]
    recipes = [spec.recipe for spec in specs]
    shapes: list[dict[str, Any]] = [dict(spec.shape) for spec in specs]
    lines = [
        ["learning rate", span(rate for ladder in ladders for rate in ladder.rates)],
        ["width", span(shape["hidden_size"] for shape in shapes)],
        ["depth", span(shape["num_hidden_layers"] for shape in shapes)],
        ["init std", span(shape.get("init_std", 0.02) for shape in shapes)],
        ["init scheme", _census(shape.get("init_scheme", "normal") for shape in shapes)],
        ["steps", span(recipe.max_steps for recipe in recipes)],
        ["warm-up share", span(recipe.warmup_steps / recipe.max_steps for recipe in recipes)],
        ["schedule", _census(recipe.schedule for recipe in recipes)],
        ["sequences per batch", span(recipe.batch_size for recipe in recipes)],
        ["tokens per sequence", span(recipe.sequence_length for recipe in recipes)],
        ["clipping", _census(recipe.max_grad_norm or "none" for recipe in recipes)],
        ["weight decay", _census(recipe.weight_decay for recipe in recipes)],
        ["Adam β1", _census(recipe.adam_beta1 for recipe in recipes)],
        ["Adam β2", _census(recipe.adam_beta2 for recipe in recipes)],
        ["Adam ε", _census(recipe.adam_epsilon for recipe in recipes)],
        ["precision", _census(recipe.precision for recipe in recipes)],
    ]
    return table(["", "range, or values with their ladders"], lines)


def _origin(ladders: Sequence[LadderRun], plans: Sequence[LadderPlan]) -> str:
    present = {ladder.spec.id for ladder in ladders}
    lines = [
        "Each ladder is one model, task, seed and recipe at rates half a decade apart. Up to two "
        "higher rates are added while nothing fails, and the edge is bisected to a factor of 1.5. "
        "Runs therefore cluster around the edge, and the shares of outcomes reflect this design, "
        "not practice.",
        "",
    ]
    for plan in plans:
        planned = {spec.id for spec in plan.expand()}
        if found := planned & present:
            counts = f"{len(found)} of {len(planned)} ladders"
            lines.append(f"- plan `{plan.name}` ({_design(plan)}): {counts}")
            present -= found
    if present:
        lines.append(f"- no known plan: {len(present)} ladders")
    return "\n".join(lines)


def _design(plan: LadderPlan) -> str:
    if isinstance(plan, LadderGrid):
        return f"grid over {', '.join(plan.grid)}"
    if isinstance(plan, LadderPairs):
        return f"{len(plan.levers)} levers on {len(plan.models)} models, in pairs"
    return f"random, stratified over {len(plan.families)} families, seed {plan.seed}"


def _limits(ladders: Sequence[LadderRun]) -> str:
    shapes: list[dict[str, Any]] = [dict(ladder.spec.shape) for ladder in ladders]
    widest = max(shape["hidden_size"] for shape in shapes)
    longest = max(ladder.spec.recipe.max_steps for ladder in ladders)
    tokens = max(
        ladder.spec.recipe.batch_size * ladder.spec.recipe.sequence_length for ladder in ladders
    )
    return "\n".join(
        [
            f"- No model is wider than {widest}, no run is longer than {longest} steps, and no "
            f"batch has more than {tokens} tokens. Slow and large-scale instabilities are missing.",
            "- Each ladder has one seed, which sets the initialization and the batches together: "
            "noise between seeds shows only between ladders.",
            "- There is no real failure of hardware or data: every run is a healthy program with a "
            "choice of hyperparameters.",
            "- There is no reinforcement learning, and every model starts from its initialization; "
            "ladders of fine-tuning are a file of their own.",
            "- A bad final loss counts as undertrained below the best rate and as failed above it: "
            "near the best rate of a flat ladder that distinction is weak.",
        ]
    )


def _census(values: Iterable[object]) -> str:
    counts = Counter(str(value) for value in values)
    return ", ".join(f"{name} ({counts[name]})" for name in sorted(counts))
