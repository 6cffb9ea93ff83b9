"""The audit: all checks against public runs that failed and public runs that succeeded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import yaml
from pydantic import Field

from rksp.checks.evidence import CheckEvidence
from rksp.checks.registry import CHECKS, run_checks
from rksp.documents.finding import Finding, Level
from rksp.documents.shown import AttentionStats, ForwardStats, RouterStats
from rksp.ground.errors import InputError
from rksp.ground.model import Strict
from rksp.recipe import Recipe
from rksp.recipe.start import SCRATCH, Start, decide_start

CORPUS = Path(__file__).parent / "corpus"
_TUNED = Start(kind="elsewhere", because="its source says so")
_SEEN = (Level.ERROR, Level.WARNING)


class PublicRun(Strict):
    """One published run, as its source describes it.

    Attributes:
        source: Where the facts come from.
        config: The model's settings under Hugging Face's names.
        recipe: Fields of `Recipe`.
        measured: Numbers that the source reports and rksp would measure.
        is_pretrained: True if trained weights were trained further.
        inferred: Names of settings that the source does not state.
        cause: The cause of failure that the source states; empty for successes.
        expected: Codes; one of them must be found, at warning or above.
        unseen: Why no check before training can name the cause; empty if one can.
    """

    name: str
    source: str
    config: dict[str, object] = Field(default_factory=dict)
    recipe: dict[str, object] = Field(default_factory=dict)
    measured: dict[str, float | str] = Field(default_factory=dict)
    is_pretrained: bool = False
    inferred: tuple[str, ...] = ()
    cause: str = ""
    expected: tuple[str, ...] = ()
    unseen: str = ""

    def findings(self) -> tuple[Finding, ...]:
        """Return what the checks find in this run."""
        recipe, held = Recipe.parse(self.recipe), _TUNED if self.is_pretrained else SCRATCH
        return run_checks(
            CheckEvidence(
                recipe=recipe,
                config=self.config,
                forward=_forward(self.measured),
                start=decide_start(held, recipe=recipe),
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The results of one check over the corpus.

    Attributes:
        hits: Failures whose documented cause it names.
        misses: Failures whose cause it, or another check, should name, and none does.
        false_alarms: Successes with a warning or error of this check.
    """

    code: str
    name: str
    hits: int
    misses: int
    false_alarms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The outcome of an audit.

    Attributes:
        warned, in_error: Successes with a warning or error, and with an error, with the codes.
        named, missed: Visible failures whose cause is named at warning or above, and the others.
        unseen: Failures that cannot be seen before training, with the reason.
    """

    tallies: tuple[Tally, ...]
    healthy: int
    warned: tuple[tuple[str, str], ...]
    in_error: tuple[tuple[str, str], ...]
    named: tuple[str, ...]
    missed: tuple[tuple[str, str], ...]
    unseen: tuple[tuple[str, str], ...]


@cache
def corpus(kind: Literal["healthy", "failures"]) -> tuple[PublicRun, ...]:
    """Read the published runs of a kind.

    Raises:
        InputError: A row of the file is invalid.
    """
    path = CORPUS / f"{kind}.yaml"
    rows = yaml.safe_load(path.read_text(encoding="utf-8"))
    try:
        return tuple(PublicRun.model_validate(row) for row in rows)
    except ValueError as error:
        raise InputError(f"{path.name} holds an invalid row: {error}") from None


def audit() -> Audit:
    """Run all checks over the corpus; measure nothing."""
    hits, misses, alarms = Counter(), Counter(), Counter()
    warned, in_error, named, missed, unseen = [], [], [], [], []
    for run in corpus("healthy"):
        bad = [finding for finding in run.findings() if finding.level in _SEEN]
        alarms.update({finding.code for finding in bad})
        codes = ", ".join(finding.code for finding in bad)
        if bad:
            warned.append((run.name, codes))
        if any(finding.level is Level.ERROR for finding in bad):
            in_error.append((run.name, codes))
    for run in corpus("failures"):
        seen = {finding.code for finding in run.findings() if finding.level in _SEEN}
        found = [code for code in run.expected if code in seen]
        hits.update(found)
        if found:
            named.append(run.name)
        elif run.unseen:
            unseen.append((run.name, run.unseen))
        else:
            misses.update(run.expected)
            missed.append((run.name, ", ".join(run.expected)))
    tallies = tuple(
        Tally(
            code=check.code,
            name=check.name,
            hits=hits[check.code],
            misses=misses[check.code],
            false_alarms=alarms[check.code],
        )
        for check in CHECKS
    )
    return Audit(
        tallies=tallies,
        healthy=len(corpus("healthy")),
        warned=tuple(warned),
        in_error=tuple(in_error),
        named=tuple(named),
        missed=tuple(missed),
        unseen=tuple(unseen),
    )


def _forward(measured: Mapping[str, float | str]) -> ForwardStats:
    """Build forward statistics from the few numbers that a source reports."""
    attention, routers = (), ()
    if "attention_logit_std" in measured:
        attention = (
            AttentionStats(
                logit_std=measured["attention_logit_std"],
                max_logit=measured["attention_logit_std"] * 4,
                entropy=measured.get("attention_entropy", 1.0),
                collapsed_heads=0,
                block=0,
            ),
        )
    if "router_logit_std" in measured:
        routers = (
            RouterStats(
                name="router",
                entropy=1.0,
                logit_std=measured["router_logit_std"],
                max_violation=0.0,
                dead_experts=None,
            ),
        )
    return ForwardStats(
        loss=measured.get("loss"),
        uniform_loss=measured.get("uniform_loss"),
        logit_std=measured.get("logit_std"),
        attention=attention,
        routers=routers,
        activation_absmax=measured.get("activation_absmax"),
        activation_name=measured.get("activation_name"),
        non_finite=measured.get("non_finite"),
    )
