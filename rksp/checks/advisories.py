"""Advisories: releases and settings that are known to train wrongly, as data, and their matcher.

`advisories.jsonl` has one advisory a line, in OSV's words where they fit. Its conditions are each
true, false or not known of a run.
"""

from __future__ import annotations

import datetime
import json
import operator
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

from packaging.specifiers import SpecifierSet
from packaging.version import Version
from pydantic import Field

from rksp.checks.environment import Environment, name_of
from rksp.documents.finding import LEVELS, Finding, Level
from rksp.ground.errors import InputError, nearest
from rksp.ground.model import Strict
from rksp.models.declared import EXPERTS, Declared, setting
from rksp.recipe_files.said.facts import SHORT, Fact, Facts

_COMPARED = re.compile(r"(>=|<=|!=|>|<)\s*(\d[\d.e+-]*)")
_OPERATORS = {">=": operator.ge, "<=": operator.le, "!=": operator.ne, ">": operator.gt,
              "<": operator.lt}  # fmt: skip
GIVEN = ("given", "set")  # the setting has a value, whatever it is


@dataclass(frozen=True, slots=True)
class Answer:
    """What is known of some conditions together.

    Attributes:
        holds: True, False, or None where that is not known.
        by: The keys that made it true.
        lacks: The keys whose values are not known and would decide.
    """

    holds: bool | None
    by: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()


def answer(when: Mapping[str, object], facts: Facts) -> Answer:
    """Return whether all conditions hold; `any` holds a list of alternatives.

    A condition is a value, a list of which one must be there (null: left at the default), a
    comparison such as `>1`, or `given`. What one condition makes false stays false, whatever is not
    known of the others.
    """
    found = [_one(key, wanted, facts) for key, wanted in when.items()]
    if any(one.holds is False for one in found):
        return Answer(False)
    lacks = _joined(one.lacks for one in found)
    is_known = all(one.holds for one in found)
    return Answer(True if is_known else None, _joined(one.by for one in found), lacks)


def _one(key: str, wanted: object, facts: Facts) -> Answer:
    choices = wanted if isinstance(wanted, list) else [wanted]
    if key == "any":
        found = [answer(choice, facts) for choice in choices if isinstance(choice, Mapping)]
    elif (fact := facts.get(key)) is None:
        found = [Answer(None, (), (key,))]
    else:
        seen = {_matches(key, choice, value) for choice in choices for value in fact.values}
        found = [Answer(holds, (key,) * bool(holds), (key,) * (holds is None)) for holds in seen]
    unknown = [one.lacks for one in found if one.holds is None]
    otherwise = Answer(None, (), _joined(unknown)) if unknown else Answer(False)
    return next((one for one in found if one.holds), otherwise)


def _joined(parts: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for part in parts for name in part))


def _matches(key: str, wanted: object, value: object) -> bool | None:
    compared = _COMPARED.fullmatch(wanted) if isinstance(wanted, str) else None
    if compared is not None:
        if value is None:  # a default that is off; a comparison with a usual value needs it
            return None if compared[1] == "!=" else False
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return bool(_OPERATORS[compared[1]](value, float(compared[2])))
    if wanted in GIVEN:
        return value is not None
    if key == "gpu":
        return re.search(rf"\b{re.escape(str(wanted))}", str(value), re.IGNORECASE) is not None
    if wanted is None or value is None:
        return wanted is value or (wanted is False and value is None)
    if isinstance(wanted, str) and isinstance(value, str):
        return wanted.lower() == value.lower()
    return type(wanted) is type(value) and wanted == value


def in_force(settings: Mapping[str, object], facts: Facts) -> bool:
    """Return True if all settings of a fix are known to be there already."""
    known = [facts.get(key.rpartition(".")[2]) for key in settings]
    return bool(known) and all(
        fact is not None and wanted in fact.values
        for wanted, fact in zip(settings.values(), known, strict=True)
    )


def model_facts(config: object, task: str | None = None) -> dict[str, Fact]:
    """Return the facts of a model's configuration; none without one."""
    if config is None:
        return {}
    said = Declared(config, task)
    types = {str(setting(part, "model_type") or "") for part in (said.config, said.part)} - {""}
    scaling = said.get("rope_scaling", "rope_parameters")
    stored = str(said.get("dtype", "torch_dtype") or "").removeprefix("torch.")
    kind = scaling.get("rope_type", scaling.get("type")) if isinstance(scaling, dict) else None
    names = ("head_dim", "num_key_value_heads", "output_router_logits")
    found = {name: said.get(name) for name in names} | {
        "stored_dtype": SHORT.get(stored),
        "tied_weights": said.get("tie_word_embeddings"),
    }
    facts = {name: Fact((value,)) for name, value in found.items() if value is not None} | {
        "moe": Fact((bool(said.get(*EXPERTS)),)),
        "vision": Fact((setting(config, "vision_config") is not None,)),
        "rope_type": Fact((kind,)),
    }
    named = Fact(tuple(sorted(types)), f"model type {', '.join(sorted(types))}")
    return facts | ({"model_type": named} if types else {})


def gpu_facts(name: str | None) -> dict[str, Fact]:
    """Return the facts in the name of an accelerator, such as `h100` or `NVIDIA H100 80GB HBM3`."""
    if not name:
        return {}
    is_amd = re.search(r"\bMI[0-9]{3}|\bRX |Radeon|gfx", name, re.IGNORECASE)
    is_apple = re.search(r"\bM[1-9]\b|apple|mps", name, re.IGNORECASE)
    device = "rocm" if is_amd else "mps" if is_apple else "cuda"
    return {"gpu": Fact((name,), f"GPU {name}"), "device": Fact((device,))}


_FILE = Path(__file__).with_name("advisories.jsonl")
_LAPSE = datetime.timedelta(days=90)  # after the last check of a range without an end
_MOST = 5  # findings of one run
_NAME = "known-fault"
_PATCHING = ("unsloth", "axolotl", "ms-swift", "llama-factory")  # they replace parts of others
_BREAKS = ("nan", "diverges", "no learning", "wrong loss", "wrong rollouts", "wrong weights")
ESTABLISHED = ("maintainer confirmed", "reproduced by several", "single report")


class Affected(Strict):
    """Releases of one package: a range of PEP 440, or a list of versions."""

    package: str
    range: str = ""
    versions: tuple[str, ...] = ()

    @cached_property
    def _specifiers(self) -> SpecifierSet:
        return SpecifierSet(self.range)

    @property
    def has_end(self) -> bool:
        """True if a release without the fault is known, or the releases are listed."""
        return bool(self.versions) or any(one.operator in ("<", "==") for one in self._specifiers)

    @property
    def shown(self) -> str:
        """The releases in words."""
        return self.range or ", ".join(self.versions)

    def includes(self, environment: Environment) -> bool | None:
        """Return whether the installed release is among them; None if it is not known."""
        release = environment.releases.get(name_of(self.package))
        if release is None:
            return False
        if release.base is None:
            return self._holds(release.range) if release.range and self.range else None
        if self.versions:
            return str(release.base) in self.versions
        is_exact = self._specifiers.prereleases  # the range itself names one before a release
        compared = Version(release.version or "") if is_exact else release.base
        return self._specifiers.contains(compared, prereleases=True)

    def _holds(self, allowed: str) -> bool | None:
        """Return whether all of the allowed releases are among them, or none; None for a part.

        Membership changes at the versions that a range names alone, so these are tried, and what
        lies just above each.
        """
        theirs = SpecifierSet(allowed)
        named = {one.version.removesuffix(".*") for one in (*theirs, *self._specifiers)}
        tried = [Version("0"), *map(Version, named)]
        tried += [Version(f"{one.base_version}.0.0.1") for one in tried]
        found = {
            self._specifiers.contains(one, prereleases=True)
            for one in tried
            if theirs.contains(one, prereleases=True)
        }
        return found.pop() if len(found) == 1 else None


class Details(Strict):
    """What OSV has no field for.

    Attributes:
        source: Its number in the collection that it was taken from.
        cause: Shared by advisories of one cause, of which one is shown.
        when: The conditions; see `answer`.
        symptom: What goes wrong, in two or three words.
        range_is_certain: Both ends of the range were read in the repository or its releases.
        fix: One sentence; `upgrade` has the releases without the fault, `set` the settings.
    """

    source: str
    when: Mapping[str, Any]
    symptom: str
    established: Literal["maintainer confirmed", "reproduced by several", "single report"]
    fix: str
    cause: str = ""
    range_is_certain: bool = False
    upgrade: Mapping[str, str] = Field(default_factory=dict)
    set: Mapping[str, Any] = Field(default_factory=dict)


class Advisory(Strict):
    """One advisory.

    Attributes:
        id: RKSA, the year of its entry and a number; it stays.
        summary: What goes wrong, one sentence.
        severity: The worst level of its finding.
        affected: Releases, of which one must be installed, or all if they are `together`. Without
            any, the settings alone are the fault.
        references: Links to the sources.
        modified: The day of the last check.
        published: The first report, where it was looked for.
        withdrawn: The day from which it counts no more.
    """

    id: str = Field(pattern=r"^RKSA-[0-9]{4}-[0-9]{4}$")
    summary: str
    severity: Level
    affected: tuple[Affected, ...]
    together: bool = False
    references: tuple[str, ...] = Field(min_length=1)
    modified: datetime.date
    published: datetime.date | None = None
    withdrawn: datetime.date | None = None
    database_specific: Details

    @property
    def fix(self) -> str:
        """The advice with the releases that have no such fault."""
        about = self.database_specific
        pins = " ".join(f'"{name}{range_}"' for name, range_ in about.upgrade.items())
        return f"{about.fix.rstrip('.')} (pip install {pins})." if pins else about.fix

    @property
    def source(self) -> str:
        """The links in one line."""
        return ", ".join(self.references)

    @property
    def ranges(self) -> str:
        """The affected releases in words; empty where the settings alone are the fault."""
        mode = " and " if self.together else " or "
        return mode.join(f"{one.package} {one.shown}" for one in self.affected)

    @property
    def explanation(self) -> tuple[tuple[str, str], ...]:
        """What there is to say about it: pairs of a title and a text."""
        about = self.database_specific
        return (
            ("Releases", self.ranges or "any: the settings alone are the cause"),
            ("Conditions", in_words(about.when)),
            ("Symptom", about.symptom),
            ("Fix", self.fix),
            ("Established", f"{about.established}; the range is "
             f"{'certain' if about.range_is_certain else 'inferred'}"),
            ("Checked", f"{self.modified}, {about.source}"),
            ("Source", "\n".join(self.references)),
        )  # fmt: skip

    def is_installed(self, environment: Environment) -> bool | None:
        """Return whether releases with the fault are installed; None if that is not known."""
        found = [one.includes(environment) for one in self.affected]
        if not found:
            return True
        decisive = not self.together
        if decisive in found:
            return decisive
        return None if None in found else not decisive

    def level(self, environment: Environment, facts: Facts, today: datetime.date) -> Level:
        """Return the level of the finding: the severity, or less by what is known of the fault."""
        about = self.database_specific
        trainers = {*facts.get("trainer", Fact(())).values} & {*_PATCHING}
        is_patched = (
            about.symptom == "wrong loss"
            and {one.package for one in self.affected} == {"transformers"}
            and bool(trainers)
            and trainers.isdisjoint(about.when.get("trainer", ()))
        )
        installed = (environment.releases.get(name_of(one.package)) for one in self.affected)
        may_differ = any(release is not None and release.may_differ for release in installed)
        is_single = about.established == "single report"
        most = Level.ERROR
        # No release without the fault is known, and nobody looked for 90 days.
        is_open = bool(self.affected) and not any(one.has_end for one in self.affected)
        has_lapsed = is_open and today - self.modified > _LAPSE
        if is_single or is_patched or may_differ or has_lapsed:
            most = Level.NOTE
        elif not about.range_is_certain or not (
            self.affected or about.established == "maintainer confirmed"
        ):
            most = Level.WARNING
        return min(self.severity, most, key=LEVELS.index)


Unsettled = tuple[Advisory, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What the advisories say of one run.

    Attributes:
        findings: One for each cause, at most five, worst first.
        more: How many findings there are beyond these.
        unsettled: Advisories for what is installed, each with the facts that would decide.
        unpinned: Package → number of advisories that were not checked, as no release is known.
    """

    findings: tuple[Finding, ...]
    more: int
    unsettled: tuple[Unsettled, ...]
    unpinned: Mapping[str, int]


def settings_of(code: str) -> Mapping[str, Any]:
    """Return the settings that avoid an advisory's fault, where they are single plain values."""
    wanted = next((one.database_specific.set for one in advisories() if one.id == code), {})
    return {} if any(isinstance(value, Mapping) for value in wanted.values()) else wanted


@lru_cache(maxsize=1)
def advisories() -> tuple[Advisory, ...]:
    """Return all advisories that were not withdrawn, by id."""
    lines = _FILE.read_text(encoding="utf-8").splitlines()
    found = (Advisory.model_validate(json.loads(line), strict=False) for line in lines)
    return tuple(one for one in found if one.withdrawn is None)


def find_advisory(wanted: str) -> Advisory:
    """Find an advisory by its id.

    Raises:
        InputError: There is none; the message names the nearest ones.
    """
    found = {one.id: one for one in advisories()}
    if wanted.upper() not in found:
        hint = nearest(wanted.upper(), found) or "."
        raise InputError(f"No advisory is called {wanted!r}{hint}")
    return found[wanted.upper()]


def packages() -> tuple[str, ...]:
    """Return the names of all packages that an advisory is about."""
    return tuple(sorted({name_of(a.package) for one in advisories() for a in one.affected}))


def audit(
    environment: Environment,
    facts: Facts,
    today: datetime.date,
    known: Iterable[Advisory] | None = None,
) -> Audit:
    """Match the advisories against the releases and settings of a run.

    Args:
        environment: The releases.
        facts: What is known of the run.
        today: The day that lapses are counted from.
        known: The advisories; default all.
    """
    found: dict[str, tuple[tuple[int, ...], Finding]] = {}
    unsettled, unpinned = [], Counter[str]()
    facts = {**environment.facts(), **facts}
    for one in advisories() if known is None else known:
        about, is_installed = one.database_specific, one.is_installed(environment)
        if is_installed is False or in_force(about.set, facts):
            continue
        conditions = answer(about.when, facts)
        if conditions.holds is not False and is_installed is None:
            parts = (part for part in one.affected if part.includes(environment) is None)
            unpinned.update(part.package for part in parts)
        elif conditions.holds is None and one.affected:
            unsettled.append((one, conditions.lacks))
        elif conditions.holds:
            finding = _finding(one, conditions, environment, facts, today)
            said, first = ESTABLISHED.index(about.established), one.published or today
            ranked = ((-finding.severity, said, -first.toordinal(), int(one.id[-4:])), finding)
            cause = about.cause or one.id
            found[cause] = min(found.get(cause, ranked), ranked, key=itemgetter(0))
    findings = tuple(finding for _, finding in sorted(found.values(), key=itemgetter(0)))
    return Audit(
        findings=findings[:_MOST],
        more=len(findings[_MOST:]),
        unsettled=tuple(unsettled),
        unpinned=unpinned,
    )


def _finding(
    one: Advisory, conditions: Answer, environment: Environment, facts: Facts, today: datetime.date
) -> Finding:
    named = [
        f"{part.package} {environment.releases[name_of(part.package)]}, affected {part.shown}"
        for part in one.affected
        if part.includes(environment)
    ]
    read = [facts[key].said for key in conditions.by if facts[key].said]
    because = "; ".join((*named, *dict.fromkeys(read)))
    shown = f"{one.summary.rstrip('.')}{f' ({because})' if because else ''}"
    return Finding(
        code=one.id,
        name=_NAME,
        level=one.level(environment, facts, today),
        message=f"{shown}; checked {one.modified}.",
        healthy="a release without the fault, or another setting",
        fix=one.fix,
        source=one.source,
        is_cause=one.database_specific.symptom in _BREAKS,
    )


def in_words(wanted: object) -> str:
    """Return conditions, or the values of one, in words: `zero stage 1 or 2; compile on`."""
    if isinstance(wanted, Mapping):
        said = (f"{key.replace('_', ' ')} {in_words(value)}" for key, value in wanted.items())
        return "; ".join(clause.removeprefix("any ") for clause in said)
    if isinstance(wanted, list):
        return " or ".join(map(in_words, wanted))
    if wanted is None:
        return "at its default"
    return {True: "on", False: "off"}[wanted] if isinstance(wanted, bool) else str(wanted)
