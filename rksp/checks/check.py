"""The contract of a check: its texts and its function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from rksp.checks.evidence import CheckEvidence, Need
from rksp.documents.finding import Finding, Level


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What a check saw, before its code and texts are added.

    Attributes:
        message: One sentence with the number.
        value: The number that caused it; None for a missing part.
        level: The severity at this value; None is the check's own.
        fix: More exact advice than the check's own, where the numbers allow it.
        layer: Path of the module; empty for the whole model.
        rate: Highest learning rate without the finding, if a lower rate removes it. All such
            findings of a report give the same advice.
        is_cause: As in `Check`, where it differs from the check's own.
    """

    message: str
    value: float | None
    level: Level | None = None
    fix: str | None = None
    layer: str = ""
    rate: float | None = None
    is_cause: bool | None = None


Reads = Literal["model", "recipe", "rate"]
Look = Callable[[CheckEvidence], Iterator[Observation]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check.

    Attributes:
        code: Stable: RKSP and three digits; each hundred is one topic.
        name: Stable: lower-case words joined by hyphens.
        level: Its worst level.
        title: Its line in the list of checks.
        measures: What it compares.
        why: Why it matters.
        source: Where the threshold comes from.
        healthy: The range without a finding, in words.
        fix: The smallest change that would remove the finding, one sentence.
        failing, stable: A minimal setting with the finding, and one without.
        look: The function that yields observations; it yields none without evidence.
        needs: What must be known besides the recipe; if any is missing, the check does not run.
        field: The recipe's field to blame; empty if there is none.
        settings: Names of the configuration's settings to blame, the usual one first.
        is_cause: Public failures, or arithmetic, name what it looks at as their cause: a precision,
            an initialization, a configuration, of which P(failed) knows little or nothing. Rates,
            warm-up and batch are judged by P(failed) itself, so checks of them are no cause.
        reads: The most that it reads: of the `model` alone it sees the same in all recipes, of the
            `recipe` without its learning rate the same at every `rate`. What rksp answers, such as
            the likely edge, counts as a rate.
    """

    code: str
    name: str
    level: Level
    title: str
    measures: str
    why: str
    source: str
    healthy: str
    fix: str
    failing: str
    stable: str
    look: Look
    needs: tuple[Need, ...] = ()
    field: str = ""
    settings: tuple[str, ...] = ()
    is_cause: bool = False
    reads: Reads = "rate"

    @property
    def explanation(self) -> tuple[tuple[str, str], ...]:
        """What there is to say about it: pairs of a title and a text."""
        return (
            ("Measures", self.measures),
            ("Why", self.why),
            ("Healthy", self.healthy),
            ("Fix", self.fix),
            ("Fails", self.failing),
            ("Passes", self.stable),
            ("Source", self.source),
        )

    def missing(self, evidence: CheckEvidence) -> tuple[Need, ...]:
        """Return what the evidence lacks for this check to run."""
        return tuple(need for need in self.needs if not evidence.has(need))

    def report(self, seen: Observation, fix: str | None = None) -> Finding:
        """Return the finding of an observation, with another fix if one is given."""
        return Finding(
            code=self.code,
            name=self.name,
            level=self.level if seen.level is None else seen.level,
            message=seen.message,
            value=seen.value,
            healthy=self.healthy,
            fix=fix or seen.fix or self.fix,
            source=self.source,
            layer=seen.layer,
            is_cause=self.is_cause if seen.is_cause is None else seen.is_cause,
        )
