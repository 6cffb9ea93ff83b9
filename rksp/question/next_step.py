"""What to run next after an answer, as data; the command line and Python each write it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rksp.documents.answer import CertainFailure
from rksp.documents.verdict import Verdict, decisive_finding
from rksp.ground.flags import flags_of
from rksp.ground.text import CLEARLY_LOWER, short
from rksp.question.gate import deciding, is_fixable
from rksp.recipe import Recipe
from rksp.recipe_files.said.origin import OriginKind

if TYPE_CHECKING:
    from rksp.documents.score import ScoreReport
    from rksp.question.run import Run

MAX_TRAINED = 2e7  # parameters of what short runs train unless asked for more
_MOST_TRAINED = 2e9  # parameters of a stored model that a short run on this machine may have
_TRAINED = ("causal-lm", "masked-lm", "seq2seq")  # tasks of which rksp has labels
_TEXTS = "text-classification"
_LIKELIHOODS = ("lm", "mlm", "seq2seq", "classification")  # objectives that it trains
_SHRINKS = ("model_type", "config")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A command that comes next.

    Attributes:
        command: Its name.
        changed: Option -> value in place of the user's own; None leaves it out. Words in capitals
            are for the user to fill in.
        word: What it explains, of `explain` alone.
    """

    command: str
    changed: Mapping[str, object] = field(default_factory=dict)
    word: str = ""


def next_step(
    report: ScoreReport, *, target: str, has_recipe_file: bool, has_data: bool
) -> Step | None:
    """Return the command that is most useful after an answer; None where only -v says more.

    The edits of a run file that is not to be launched; its model, if nobody knows it; a ladder of
    short runs where rksp cannot tell, or else past runs to learn from; the explanation of an error;
    another rate, if rksp knows a better one; a measurement, if there was none; else a short run of
    the user's own recipe.

    Args:
        report: The answer.
        target: What the user asked about.
        has_recipe_file: The recipe came from a file beside it.
        has_data: The user's own data were named.
    """
    if is_fixable(report) and not has_recipe_file:
        return Step(command="fix", changed={"file": target})
    if report.target.kind == "config" and report.target.config_hash is None:  # a model nobody knows
        return Step(command="score", changed={"target": "MODEL", "recipe_file": target})
    seed, error = deciding(report), decisive_finding(report.risk_verdict, report.findings)
    if report.risk_verdict == "not assessed" and report.target.probe == "nothing":
        return Step(command="score", changed={"evidence": None})
    if not seed.risk.is_told:
        ladder = _trial(report, target, has_data=has_data, is_sweep=True)
        return ladder or Step(command="score", changed={"runs": ["RUNS"]})
    if error is None and isinstance(seed.risk, CertainFailure):
        error = report.findings[0] if report.findings else None  # nothing trains
    if error is not None and error.level == "error":
        return Step(command="explain", word=error.code)
    first, rate = seed.risk.number("start_here"), report.recipe.learning_rate
    if first is not None and (rate is None or seed.risk.verdict is not Verdict.OK):
        ceiling = None if rate is None else seed.risk.number("do_not_exceed")
        better = short(min(filter(None, (first, ceiling))), 2)
        if rate is None or float(better) < CLEARLY_LOWER * rate:
            return Step(command="score", changed={"learning_rate": better})
    if seed.risk.evidence == "config" and not report.target.shape_from:
        return Step(command="score", changed={"evidence": None})
    return _trial(report, target, has_data=has_data)


def _trial(
    report: ScoreReport, typed: str, *, has_data: bool, is_sweep: bool = False
) -> Step | None:
    target, recipe = report.target, report.recipe
    size = math.inf if target.parameters is None else target.parameters
    has_rate = recipe.learning_rate is not None or is_sweep
    if not has_rate or not recipe.can_be_stepped or recipe.objective not in _LIKELIHOODS:
        return None
    if recipe.peft != "none" and not target.start.is_stored:
        return None
    if target.kind != "factory" and target.task not in (*_TRAINED, _TEXTS):
        return None
    changed: dict[str, object] = {"evidence": None}
    if is_sweep:
        changed |= {"sweep": True, "runs": None, "seeds": None}
    if recipe.precision == "fp8":
        changed |= {"precision": "bf16"}  # rksp does not train in fp8
    if target.task == _TEXTS and not has_data:
        changed |= {"data": "EXAMPLES"}  # with labels, of which rksp has none
    if target.start.kind == "elsewhere":  # the weights are not at hand
        if not is_sweep:
            return None
        changed |= {"target": "CHECKPOINT"} | (
            {"recipe_file": typed} if typed != target.name else {}
        )
    elif size > MAX_TRAINED and not target.start.is_stored and target.kind in _SHRINKS:
        changed |= {"shrink": True, "overrides": None, "max_params": None}
    elif size > _MOST_TRAINED:
        return None
    elif size > MAX_TRAINED:
        changed |= {"max_params": f"{math.ceil(size / 1e6)}e6"}
    return Step(command="confirm", changed=changed)


def written(step: Step | None, run: Run) -> str:
    """Write a step of a question from Python as a command: its target, and what it was given."""
    if step is None:
        return ""
    changed = dict(step.changed)
    if step.word or step.command == "fix":
        return shlex.join(["rksp", step.command, step.word or str(changed["file"])])
    typed = run.target if run.is_typed else run.named
    words = ["rksp", step.command, str(changed.pop("target", typed))]
    if run.is_typed and run.named:
        words += ["--recipe", run.named]
    asked = {
        name: getattr(run.recipe, name)
        for name, origin in run.origins.items()
        if origin.kind is OriginKind.FLAG and name in flags_of(Recipe)
    }
    for name, value in (asked | changed).items():
        value = value[0] if isinstance(value, list) else value
        if name in flags_of(Recipe) and value is not None:
            words += flags_of(Recipe)[name].typed(as_typed(value))
        elif name in _OPTIONS and value is not None:
            words += [_OPTIONS[name]] if value is True else [_OPTIONS[name], as_typed(value)]
    return shlex.join(words)


_OPTIONS = {
    "sweep": "--sweep",
    "shrink": "--shrink",
    "data": "--data",
    "runs": "--runs",
    "max_params": "--max-params",
    "recipe_file": "--recipe",
}


def as_typed(value: object) -> str:
    """Write a value as people type it: 6e-4 and not 0.0006; it reads back as the same number."""
    brief = short(value, 12) if isinstance(value, float) and 0 < value < 0.01 else str(value)
    return brief if isinstance(value, float) and float(brief) == value else str(value)
