"""The contract of a check: its function and its facts; checks.toml says the rest."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, fields
from functools import cache
from typing import Any, Literal, get_args

from rksp.checks.evidence import CheckEvidence, Need
from rksp.documents.finding import Finding, Level
from rksp.ground.flags import count
from rksp.ground.tables import known_word, packaged_toml
from rksp.ground.text import short


@dataclass(frozen=True, slots=True)
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
    value: float | None = None
    _: KW_ONLY
    level: Level | None = None
    fix: str | None = None
    layer: str = ""
    rate: float | None = None
    is_cause: bool | None = None


Reads = Literal["model", "recipe", "rate"]
Weights = Literal["random", "trained"]  # that a run starts from
Look = Callable[[CheckEvidence], Iterator[Observation]]
_NEEDS = tuple(need.name.lower() for need in Need)
_FACTS = ("name", "level", "needs", "is_cause", "reads")  # fields of `Check`; the others are texts


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """What there is to say about a check.

    Attributes:
        title: Its line in the list of checks.
        measures: What it compares.
        why: Why it matters.
        source: Where the threshold comes from.
        healthy: The range without a finding, in words.
        fix: The smallest change that would remove the finding, one sentence.
        failing, stable: A minimal setting with the finding, and one without.
        field: The recipe's field to blame; empty if there is none.
        settings: Names of the configuration's settings to blame, the usual one first.
    """

    title: str
    measures: str
    why: str
    source: str
    healthy: str
    fix: str
    failing: str
    stable: str
    field: str = ""
    settings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check: a function, and what `checks.toml` has beside its texts.

    Attributes:
        code: Stable: RKSP and three digits; each hundred is one topic.
        name: Stable: lower-case words joined by hyphens.
        level: Its worst level.
        look: The function that yields observations; it yields none without evidence.
        weights: Those that it is about; None for both.
        needs: What must be known besides the recipe; if any is missing, the check does not run.
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
    look: Look
    weights: Weights | None = None
    needs: tuple[Need, ...] = ()
    is_cause: bool = False
    reads: Reads = "rate"

    @property
    def texts(self) -> Texts:
        """Its texts, with the thresholds that its module has."""
        return _texts(self)

    @property
    def explanation(self) -> tuple[tuple[str, str], ...]:
        """What there is to say about it: pairs of a title and a text."""
        said = self.texts
        return (
            ("Measures", said.measures),
            ("Why", said.why),
            ("Healthy", said.healthy),
            ("Fix", said.fix),
            ("Fails", said.failing),
            ("Passes", said.stable),
            ("Source", said.source),
        )

    def report(self, seen: Observation, fix: str | None = None) -> Finding:
        """Return the finding of an observation, with another fix if one is given."""
        said = self.texts
        return Finding(
            code=self.code,
            name=self.name,
            level=self.level if seen.level is None else seen.level,
            message=seen.message,
            value=seen.value,
            healthy=said.healthy,
            fix=fix or seen.fix or said.fix,
            source=said.source,
            layer=seen.layer,
            is_cause=self.is_cause if seen.is_cause is None else seen.is_cause,
        )


def check(code: str, *, weights: Weights | None = None) -> Callable[[Look], Check]:
    """Make a check of the function that looks; `checks.toml` has the rest."""
    where = f"checks.toml [{code}]"
    row = _written()[known_word(code, _written(), where="checks.toml", noun="check")]
    texts = [one.name for one in fields(Texts)]
    for name in row:
        known_word(name, (*_FACTS, *texts), where=where, noun="part")
    facts = {name: value for name, value in row.items() if name in _FACTS}
    said = [known_word(name, _NEEDS, where=where, noun="need") for name in facts.pop("needs", ())]
    needs = tuple(Need[name.upper()] for name in said)
    level = Level(known_word(facts.pop("level"), list(Level), where=where, noun="level"))
    known_word(facts.get("reads", "rate"), get_args(Reads), where=where, noun="reach")
    return lambda look: Check(
        code=code, look=look, weights=weights, level=level, needs=needs, **facts
    )


class _Thresholds(string.Formatter):
    """Puts a module's constants into a text; `!c` writes a count, `!n` a rate."""

    def convert_field(self, value: Any, conversion: str | None) -> Any:
        """Return the value as text where a conversion is named."""
        if conversion == "c":
            return count(value)
        return short(value) if conversion == "n" else value


@cache
def _texts(check: Check) -> Texts:
    constants, written = check.look.__globals__, _written()[check.code]
    said = {name: value for name, value in written.items() if name not in _FACTS}
    settings = said.pop("settings", ())  # a list, or the name of a constant
    named = constants[settings] if isinstance(settings, str) else settings
    filled = {name: _Thresholds().vformat(text, (), constants) for name, text in said.items()}
    return Texts(**filled, settings=tuple(named))


def _written() -> dict[str, dict[str, Any]]:
    return packaged_toml("rksp.checks", "checks.toml")
