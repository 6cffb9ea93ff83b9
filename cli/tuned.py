"""`rksp score LARGE --tuned SMALL=RATE`: a rate tuned on one model, carried to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rksp.cli.options import Given, answer
from rksp.cli.process import quiet_transformers, stdout_for_us_alone
from rksp.cli.shared_options import ModelOptions, RunOptions, learned
from rksp.ground.errors import InputError
from rksp.ground.text import short
from rksp.recipe import Recipe

if TYPE_CHECKING:
    from rksp.classifiers.edge_inputs import EdgeInputs
    from rksp.question.question import Question


def carry(
    large: str,
    tuned: str,
    recipe: Given[Recipe],
    of: RunOptions,
    model: ModelOptions,
    past: Sequence[Path],
    output_format: str,
) -> int:
    """Scale the learning rate tuned on SMALL to LARGE by the ratio of their edges, and print it.

    Args:
        large: The model to carry the rate to, or its run file.
        tuned: `SMALL=RATE`; without a rate, that of `--lr` or of SMALL's run file.
        recipe: What was typed of both runs.
        of: Likewise.
        model: Likewise.
        past: Runs to learn from.
        output_format: text or json.

    Raises:
        InputError: There is no rate, the configurations give no sizes, or the format is another.
    """
    from rksp.assessment.risk import beyond, uncarried
    from rksp.classifiers.edge_model import CONFIGURED, load_edge_model, shifts
    from rksp.question.question import Question

    if output_format not in ("text", "json"):
        raise InputError(f"--format {output_format!r} has no form with --tuned; use text or json.")
    small, rate = _pair(tuned)
    if rate is not None and "learning_rate" in recipe.typed:
        raise InputError(f"--lr and --tuned {tuned} give the same rate; leave out --lr.")
    runs = [of.run(name, recipe) for name in (small, large)]
    rate = runs[0].recipe.learning_rate if rate is None else rate
    if rate is None:
        raise InputError(f"The rate tuned on {small} is missing; write --tuned {small}=RATE.")
    quiet_transformers()
    with stdout_for_us_alone():
        asked = [
            Question.of(run, model.resolve(run.target, run.overrides, counts=False)) for run in runs
        ]
        origin, aim = inputs = [_inputs(question) for question in asked]
        doubts = {reason for one in asked for reason in uncarried(one.run.recipe, one.source.start)}
    informed = learned(asked[1], past)
    edges, own_runs = informed.classifier or load_edge_model(), informed.own_runs
    doubts |= {text for x in inputs for text in beyond(edges.predict(x), x)}
    moved = shifts(edges, origin, aim)
    rules = {name: rate * 10**by for name, by in moved.items()}
    carried_to, by = rules.pop("rksp"), moved["rksp"]
    answered, shift = (None, None) if doubts else (carried_to, by)
    errors = dict(edges.card.get("transfer", {}))
    errors["rksp"] = errors.pop(CONFIGURED, {})
    document: dict[str, Any] = {"small_rate": rate, "rate": answered, "edge_shift": shift}
    document |= {"rules": rules, "errors": errors, "reasons": sorted(doubts)}
    if own_runs is not None:
        document["own_runs"] = own_runs.model_dump(mode="json")
    sizes = [f"{x.width} wide, {x.depth} deep" for x in inputs]
    carried = "cannot tell the rate" if answered is None else short(answered)
    lines = [f"{carried} for {large} ({sizes[1]}), from {short(rate, 6)} for {small} ({sizes[0]})"]
    lines += [f"  not reliable here: {text}" for text in sorted(doubts)]
    if shift is not None:
        lines.append(f"  the edge moves by {shift:+.2f} decades, from the configurations alone")
    rows: list[tuple[str, ...]] = [("rule", "rate", "edge missed by", "best rate missed by")]
    rows += [_row(name, value, errors) for name, value in {"rksp": answered, **rules}.items()]
    lines += [f"  {''.join(cell.ljust(16) for cell in row).rstrip()}" for row in rows]
    about = "decades, the median over pairs of sizes of teams left out of the fit"
    answer(output_format, document, [*lines, f"  (missed by: {about})"])
    return 0


def _pair(tuned: str) -> tuple[str, float | None]:
    """Return the small model and its rate, None if none was given."""
    name, _, text = tuned.rpartition("=")
    try:
        rate = float(text)
    except ValueError:
        return tuned, None
    if not name or not rate > 0:
        raise InputError(f"--tuned {tuned!r} should be SMALL=RATE, such as gpt2=1e-3.")
    return name, rate


def _inputs(asked: Question) -> EdgeInputs:
    from rksp.assessment.risk import declared_inputs
    from rksp.models.declared import Declared

    declared = Declared(asked.source.config, asked.source.task)
    try:
        return declared_inputs(declared, asked.run.recipe)
    except InputError as error:
        raise InputError(f"{asked.run.target}: {error}; a rate cannot be carried to it.") from None


def _row(
    rule: str, rate: float | None, errors: Mapping[str, Mapping[str, float]]
) -> tuple[str, ...]:
    missed = (errors.get(rule, {}).get(of) for of in ("edge", "best"))
    return (
        rule,
        "–" if rate is None else short(rate),
        *("–" if value is None else f"{value:.2f}" for value in missed),
    )
