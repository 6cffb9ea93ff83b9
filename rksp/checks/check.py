"""The contract of a check: what it teaches, and what it sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rksp.checks.evidence import CheckEvidence, Need
from rksp.documents.finding import Finding, Level


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What a check saw, before its code and teaching are added.

    Attributes:
        level: How bad it is at this value.
        message: One sentence with the number.
        value: The number that tripped it; None for a missing part.
        fix: Where the numbers allow a more exact advice than the check's own.
        layer: Path of the module; empty for the whole model.
        rate: Highest learning rate that would silence it, where lowering the rate does; all such
            findings of a report then give the same advice.
    """

    level: Level
    message: str
    value: float | None
    fix: str | None = None
    layer: str = ""
    rate: float | None = None


Look = Callable[[CheckEvidence], Iterator[Observation]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that rksp looks for.

    Attributes:
        code: Stable: RKSP and three digits, by hundreds of a kind.
        name: Stable: lower-case words joined by hyphens.
        level: The worst level it can give.
        title: A line for the list.
        measures: What is compared with what.
        why: Why it matters.
        source: Where the threshold comes from.
        healthy: The silent range, in words.
        fix: The smallest change that would silence it, one sentence.
        failing, stable: A minimal setting that trips it, and one that does not.
        look: Yields what it sees; nothing where the evidence does not reach.
        needs: What must be known besides the recipe; without any of it the check does not run.
        field: The recipe's field to blame; empty where it is none.
        settings: Names of the configuration's settings to blame, the usual one first.
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

    def missing(self, evidence: CheckEvidence) -> tuple[Need, ...]:
        """Return what the evidence lacks for this check to run."""
        return tuple(need for need in self.needs if not evidence.has(need))

    def report(self, seen: Observation, fix: str | None = None) -> Finding:
        """Return the finding of an observation, with another fix if one is given."""
        return Finding(
            code=self.code,
            name=self.name,
            level=seen.level,
            message=seen.message,
            value=seen.value,
            healthy=self.healthy,
            fix=fix or seen.fix or self.fix,
            source=self.source,
            layer=seen.layer,
        )
