"""Write the card of the ladders of fine-tuning; every number in it is computed from the runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from lab.ladders.fine_tuning.as_ladders import GAIN
from lab.ladders.fine_tuning.evidence import evidence_table, what_measuring_adds
from lab.ladders.fine_tuning.ladder import FineTunedLadder
from lab.ladders.fine_tuning.summary import LadderSummary, summarize
from lab.ladders.ladder import POLICY
from lab.ladders.markdown import percent, span, table
from rksp.ground.model import definite

CONSTANTS = (2e-5, 5e-5, 3e-4)  # what is usual for decoders, encoders, and LoRA

Group = Callable[[LadderSummary], str]


def fine_tuning_card(ladders: Sequence[FineTunedLadder]) -> str:
    """Write the Markdown card of ladders of fine-tuning.

    Args:
        ladders: What `read_fine_tuning` returns.

    Returns:
        The card.
    """
    found = [summarize(ladder) for ladder in ladders]
    outcomes = [o for s in found for o in s.ladder.judge().outcomes]
    failed = sum(outcome.is_failure for outcome in outcomes)
    sections = [
        "# Ladders of fine-tuning",
        f"{len(outcomes)} runs in {len(found)} ladders, {percent(failed, len(outcomes))} % failed, "
        f"labelled by policy `{POLICY.name}`. Every ladder starts from a model that the lab "
        "trained before on something else.",
        "## Base models\n\nHeld-out loss on the data of their own training, in nats, beside the "
        "loss of answering with the frequencies of the labels.\n\n" + _bases(ladders),
        "## Best rates and edges\n\nMedians over ladders, and the span from the 10 % to the 90 % "
        "quantile. *Best* is the rate of the lowest held-out loss on new data. *Failed* is the "
        f"first rate above the best whose training loss is {POLICY.margin:g} nats worse, or that "
        f"diverged. *Forgot* is the first rate from which on the old task's held-out loss is "
        f"{POLICY.margin:g} nats above its value before training. *Worse* counts the ladders in "
        "which some rates are worse than not training.\n\n" + _rates(found),
        "## What constants cost\n\nHeld-out loss on new data at a fixed rate minus the ladder's "
        f"best, in nats: median and 90 % quantile, over ladders that gained at least {GAIN:g} "
        "nats, and the share within 1 % of the best loss.\n\n" + _constants(found),
        "## Forgetting\n\n" + _forgetting(found),
        "## What measuring adds\n\nMean absolute error of a rate in decades, whole families left "
        "out: of the median of the other families, and of a linear model of configuration and "
        "recipe without and with what `measure_start` saw before the first step. The difference "
        "has its 95 % interval over families. *Helps*: the interval lies below zero, and the "
        "error below that of the constant.\n\n" + evidence_table(what_measuring_adds(ladders)),
        "## Ranges\n\n" + _ranges(ladders),
        "## What it does not cover\n\n" + _limits(ladders),
    ]
    return "\n\n".join(sections) + "\n"


def _bases(ladders: Sequence[FineTunedLadder]) -> str:
    known = {ladder.spec.base.id: ladder for ladder in ladders}
    lines = []
    for ladder in sorted(known.values(), key=lambda it: (it.spec.family, it.base.parameters)):
        base, spec = ladder.base, ladder.spec.base
        lines.append(
            [
                spec.family,
                str(spec.shape["hidden_size"]),
                f"{base.parameters:,}",
                spec.task,
                f"{base.held_out:.2f}",
                f"{base.trivial:.2f}",
                "yes" if base.has_learned else "no",
                str(sum(other.spec.base.id == spec.id for other in ladders)),
            ]
        )
    header = ["family", "width", "parameters", "task", "loss", "frequencies", "learned", "ladders"]
    return table(header, lines)


def _rates(found: Sequence[LadderSummary]) -> str:
    groups: list[tuple[str, Group]] = [
        ("method", lambda s: s.ladder.spec.method),
        ("method and objective", lambda s: f"{s.ladder.spec.method}, {_objective(s)}"),
        ("method and family", lambda s: f"{s.ladder.spec.method}, {s.ladder.spec.family}"),
        ("method and width", lambda s: f"{s.ladder.spec.method}, {_width(s)}"),
    ]
    lora = [s for s in found if s.ladder.spec.method == "lora"]
    adapters: list[tuple[str, Group]] = [
        ("rank", lambda s: f"rank {s.ladder.spec.recipe.lora_rank:02d}"),
        ("alpha", lambda s: f"alpha {s.ladder.spec.recipe.lora_alpha:02.0f}"),
        ("alpha / rank", lambda s: f"alpha/rank {_ratio(s):05.2f}"),
    ]
    parts = [_rate_table(title, key, found) for title, key in groups]
    return "\n\n".join(parts + [_rate_table(title, key, lora) for title, key in adapters])


def _rate_table(title: str, key: Group, found: Sequence[LadderSummary]) -> str:
    lines = []
    for name in sorted({key(s) for s in found}):
        chosen = [s for s in found if key(s) == name]
        gained = [s for s in chosen if s.gain >= GAIN]
        lines.append(
            [
                name,
                str(len(chosen)),
                str(len(gained)),
                _quantiles([s.best for s in gained]),
                _quantiles([s.best_training for s in chosen]),
                _quantiles([s.first_failed for s in chosen]),
                _quantiles([s.first_forgetting for s in chosen]),
                str(sum(s.first_worse is not None for s in chosen)),
            ]
        )
    header = [title, "ladders", "gained", "best", "best in training", "failed", "forgot", "worse"]
    return table(header, lines)


def _quantiles(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "—"
    low, middle, high = 10 ** np.quantile(np.log10(known), [0.1, 0.5, 0.9])
    absent = f", none {len(values) - len(known)}" if len(known) < len(values) else ""
    return f"{middle:.1e} ({low:.0e} – {high:.0e}{absent})"


def _constants(found: Sequence[LadderSummary]) -> str:
    lines = []
    for method in sorted({s.ladder.spec.method for s in found}):
        gained = [s for s in found if s.ladder.spec.method == method and s.gain >= GAIN]
        for rate in CONSTANTS if gained else ():
            regrets = [s.regret(rate) for s in gained]
            near = sum(
                regret <= 0.01 * min(a.new for a in s.ladder.after if a.new == a.new)
                for s, regret in zip(gained, regrets, strict=True)
            )
            middle, high = np.quantile(regrets, [0.5, 0.9])
            share = percent(near, len(gained))
            lines.append(
                [method, f"{rate:g}", str(len(gained)), f"{middle:.3f}", f"{high:.3f}", share]
            )
    header = ["method", "rate", "ladders", "median", "90 %", "within 1 %: % of ladders"]
    return table(header, lines)


def _forgetting(found: Sequence[LadderSummary]) -> str:
    lines = []
    for method in sorted({s.ladder.spec.method for s in found}):
        chosen = [s for s in found if s.ladder.spec.method == method]
        both = [s for s in chosen if s.first_forgetting is not None]
        before = [
            s
            for s in both
            if s.first_failed is None or definite(s.first_forgetting) < s.first_failed
        ]
        gaps = [
            np.log10(s.first_failed / definite(s.first_forgetting))
            for s in both
            if s.first_failed is not None
        ]
        at_best = [_old_rise(s) for s in chosen if s.best is not None and s.gain >= GAIN]
        lines.append(
            [
                method,
                str(len(chosen)),
                str(len(both)),
                str(len(before)),
                f"{np.median(gaps):+.2f}" if gaps else "—",
                f"{np.median(at_best):+.2f}" if at_best else "—",
            ]
        )
    header = ["method", "ladders", "that forget", "before they fail", "decades before (median)"]
    return (
        "Where the old task's held-out loss rises before the new task's training fails. The last "
        "column is the rise of the old task's loss, in nats, at the rate that is best for the new "
        "task.\n\n" + table([*header, "rise at the best rate (median)"], lines)
    )


def _old_rise(summary: LadderSummary) -> float:
    after = summary.ladder.after[summary.ladder.rates.index(summary.best)]
    return after.old - summary.ladder.before.old


def _ranges(ladders: Sequence[FineTunedLadder]) -> str:
    recipes = [ladder.spec.recipe for ladder in ladders]
    lines = [
        ["learning rate", span(rate for ladder in ladders for rate in ladder.rates)],
        ["steps", span(r.max_steps for r in recipes)],
        ["sequences per batch", span(r.batch_size for r in recipes)],
        ["tokens per sequence", span(r.sequence_length for r in recipes)],
        ["warm-up share", span(r.warmup_steps / r.max_steps for r in recipes)],
        ["examples", span(cast(int, ladder.spec.task_options["examples"]) for ladder in ladders)],
        ["trained parameters", span(ladder.trained_parameters for ladder in ladders)],
    ]
    return table(["", "range"], lines)


def _limits(ladders: Sequence[FineTunedLadder]) -> str:
    largest = max(ladder.base.parameters for ladder in ladders)
    return "\n".join(
        [
            f"- No model has more than {largest:,} parameters, and no base model has seen more "
            "than a few megabytes: the distance to a real checkpoint is large.",
            "- Encoders are trained first as classifiers, because a small one does not learn "
            "masked bytes in a minute.",
            "- There is no preference objective, no reinforcement learning and no quantized base.",
            "- `code` and `docs` are read from the installed Python (PSF-2.0), so a base or a "
            "ladder trained under another version of Python differs a little.",
            "- Held-out data are 64 to 192 rows: enough to rank the rates of one ladder, which "
            "see the same rows.",
        ]
    )


def _objective(summary: LadderSummary) -> str:
    spec = summary.ladder.spec
    return f"{spec.recipe.objective}{' with a fresh head' if spec.fresh_head else ''}"


def _width(summary: LadderSummary) -> str:
    return f"width {summary.ladder.spec.base.shape['hidden_size']:03d}"


def _ratio(summary: LadderSummary) -> float:
    recipe = summary.ladder.spec.recipe
    return definite(recipe.lora_alpha) / definite(recipe.lora_rank)
