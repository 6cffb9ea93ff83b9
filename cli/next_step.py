"""The next command after a score: the user's own with what is to change in it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import typer

from rksp.cli.commands import CommandTable
from rksp.cli.rendering import command_line
from rksp.ground.model import definite
from rksp.ground.text import short

if TYPE_CHECKING:
    from rksp.documents.score import ScoreReport, SeedReport

_CLEARLY_LOWER = 0.98  # of the recipe's rate; a nearer one would be the same run again
_TRAINED = ("causal-lm", "masked-lm", "seq2seq")  # tasks of which rksp has labels
_TEXTS = "text-classification"
_LIKELIHOODS = ("lm", "mlm", "seq2seq", "classification")  # objectives that it trains
_SHRINKS = ("model_type", "config")
_MOST_TRAINED = 2e9  # parameters of a stored model that a short run on this machine may have


def next_command(context: typer.Context, report: ScoreReport) -> str:
    """Return the command that is most useful after this answer; empty where only -v says more.

    A ladder of short runs where rksp cannot tell, or else past runs to learn from; the explanation
    of an error; another rate, if rksp knows a better one; a measurement, if there was none; else a
    short run of the user's own recipe. Words in capitals are for the user to fill in.
    """
    from rksp.report import words
    from rksp.report.issues import deciding

    seed, error = deciding(report), words.reason(report)
    if seed.risk is None and report.target.probe == "nothing":
        return command_line(context, changed={"evidence": None})
    if seed.risk is None or report.risk_verdict == "cannot tell":
        ladder = _trial(context, report, "calibrate")
        return ladder or command_line(context, changed={"runs": ["RUNS"]})
    if error is None and seed.risk.verdict == "risk" and seed.risk.start_here is None:
        error = report.findings[0] if report.findings else None  # nothing trains
    if error is not None and error.level == "error":
        return f"rksp explain {error.code}"
    better = _better_rate(report, seed)
    if better is not None:
        return command_line(context, changed={"learning_rate": better})
    if seed.risk.evidence == "config" and not report.target.shape_from:
        return command_line(context, changed={"evidence": None})
    return _trial(context, report, "confirm")


def _better_rate(report: ScoreReport, seed: SeedReport) -> str | None:
    """Return the rate to start with, or that of the fix, if there is none or one at risk."""
    risk, rate = seed.risk, report.recipe.learning_rate
    if definite(risk).start_here is None:
        return None
    ceiling = None if rate is None else definite(risk).do_not_exceed
    start = short(min(filter(None, (definite(risk).start_here, ceiling))), 2)
    is_lower = rate is None or float(start) < _CLEARLY_LOWER * rate
    return start if is_lower and (rate is None or definite(risk).verdict == "risk") else None


def _trial(context: typer.Context, report: ScoreReport, name: str) -> str:
    """Return the command of short runs of the same recipe; empty where rksp cannot train it."""
    target, recipe = report.target, report.recipe
    size = math.inf if target.parameters is None else target.parameters
    has_rate = recipe.learning_rate is not None or name == "calibrate"
    if not has_rate or not recipe.can_be_stepped or recipe.objective not in _LIKELIHOODS:
        return ""
    if recipe.peft != "none" and not target.is_pretrained:
        return ""
    table = context.find_root().command
    is_known = target.kind == "factory" or target.task in (*_TRAINED, _TEXTS)
    if not is_known or not isinstance(table, CommandTable):
        return ""
    command = table.commands[name]
    changed: dict[str, object] = {"evidence": None}
    if recipe.precision == "fp8":
        changed["precision"] = "bf16"  # rksp does not train in fp8
    if target.task == _TEXTS and context.params.get("data") is None:
        changed["data"] = "EXAMPLES"  # with labels, of which rksp has none
    if target.starts_trained and not target.is_pretrained:  # the weights are not at hand
        if name == "confirm":
            return ""
        typed = context.params["target"]
        changed |= {"target": "FOLDER"} | ({} if typed == target.name else {"recipe_file": typed})
        return command_line(context, command, changed)
    limit: Any = next(p.default for p in command.params if p.name == "max_params")
    if size > limit and not target.is_pretrained and target.kind in _SHRINKS:
        changed |= {"shrink": True, "overrides": None, "max_params": None}
    elif size > _MOST_TRAINED:
        return ""
    elif size > limit:
        changed["max_params"] = f"{math.ceil(size / 1e6)}e6"
    return command_line(context, command, changed)
