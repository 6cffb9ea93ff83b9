"""The terms of an answer: what counts as a risk, which findings count, and what fails."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field

from rksp.documents.finding import LEVELS
from rksp.ground.errors import InputError, nearest
from rksp.ground.flags import Flag
from rksp.ground.model import Finite

if TYPE_CHECKING:
    from rksp.documents.grid import Record

DEFAULT_BAR = 0.5  # P(failed) from which the word is risk
DEFAULT_RISK = 0.2  # P(failed) up to which it is ok, since 4 % of healthy recipes lie above
_WORDS = ("error", "warning", "unknown", "never")
_UNKNOWN = ("cannot tell", "not assessed")  # verdicts without an answer

FailOn = Annotated[
    list[str],
    Flag(
        "--fail-on",
        "Exit with 1 if P(failed) is at or above BAR, or at a finding of level error or warning; "
        "never is "
        "off. With unknown, exit with 4 where rksp cannot tell. Repeatable.",
        unit="bar",
        also="bar threshold",
        from_file=True,  # only where it makes the gate stricter
    ),
]
Risk = Annotated[
    float,
    Flag(
        "--risk",
        "P(failed) up to which the word is ok; X is the learning rate that has it.",
        unit="probability",
    ),
    Field(gt=0, lt=1),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """The meaning of `--fail-on`.

    Attributes:
        fail_on: The bars as given, joined by commas.
        bar: P(failed) at which the verdict becomes "risk".
        level: Findings of this level or worse fail too; None if nothing fails.
        stops_unknown: The gate also fails where rksp cannot tell.
    """

    fail_on: str
    bar: float = DEFAULT_BAR
    level: str | None = "error"
    stops_unknown: bool = False

    @classmethod
    def parse(cls, asked: str | Sequence[str]) -> Gate:
        """Parse bars: a probability, `error` or `warning`, and `unknown`; or `never` alone.

        Args:
            asked: One or several, each of which may hold several after commas.

        Raises:
            InputError: One of them is none of these, or two contradict each other.
        """
        return _parsed(asked if isinstance(asked, str) else ",".join(asked))

    def is_at_least(self, other: Gate) -> bool:
        """Tell whether whatever fails the other gate fails this one too."""
        return (
            self.bar <= other.bar
            and (other.level is None or self.reaches(other.level))
            and self.stops_unknown >= other.stops_unknown
        )

    def fails(self, cell: Record) -> bool:
        """Return True if a cell of a grid fails; its verdict must be by `bar`."""
        if self.level is None:
            return False
        return cell.verdict == "risk" or any(map(self.reaches, cell.levels))

    def stops(self, verdict: str) -> bool:
        """Tell whether this verdict has no answer and the gate stops at that."""
        return self.stops_unknown and verdict in _UNKNOWN

    def reaches(self, level: str) -> bool:
        """Tell whether a finding of this level fails the gate."""
        return self.level is not None and LEVELS.index(level) >= LEVELS.index(self.level)


@lru_cache(maxsize=64)  # every cell of a grid asks
def _parsed(text: str) -> Gate:
    if re.fullmatch(r"\d{1,2}%", text):
        raise InputError(f"--fail-on {text}: write it as {int(text[:-1]) / 100:g}.")
    if re.fullmatch(r"0?,\d+", text):
        raise InputError(f"--fail-on {text}: write the decimal point, 0.{text.partition(',')[2]}.")
    found = [one.strip() for one in text.split(",")]
    bars = [_probability(one) for one in found if one not in _WORDS]
    if len(bars) > 1 or ("never" in found and len(found) > 1):
        raise InputError(
            f"--fail-on {text!r:.200} contradicts itself; give one probability, or never alone."
        )
    level = None if "never" in found else "warning" if "warning" in found else "error"
    bar = next(iter(bars), DEFAULT_BAR)
    return Gate(fail_on=text, bar=bar, level=level, stops_unknown="unknown" in found)


def _probability(text: str) -> float:
    try:
        bar = float(text)
    except ValueError:
        hint = nearest(text, _WORDS, count=1) or "."
        raise InputError(
            f"--fail-on {text!r:.200} is neither a probability nor error, warning, unknown or never"
            f"{hint}"
        ) from None
    if not 0 < bar <= 1:
        raise InputError(f"--fail-on is {text}, but must be a probability above 0 and at most 1.")
    return bar


# Accelerators as makers, drivers and clouds name them; letters or a memory size may stand behind.
_ACCELERATOR = (
    r"(a(2|10|16|30|40|100|800)|h(20|100|200|800)|b[123]00|g[bh](10|200|300)|l(2|4|20|40)|v100"
    r"|p(4|40|100)|t4|k80|m60|rtx ?(pro |a)?\d0\d0|gtx ?1[06]\d0|titan|quadro|jetson|mi ?\d{2,3}"
    r"|rx ?[5-9]\d{3}|radeon|gfx\d+|tpu ?v?[2-7]|gaudi|trn[123]|trainium|ascend|m[1-5]|mps)"
)


def _accelerator(name: str | None) -> str | None:
    said = (name or "").lower().replace("-", " ")
    if name is None or re.search(rf"\b{_ACCELERATOR}(?!\d)", said):
        return name
    within = re.search(_ACCELERATOR, said)
    hint = f"did you mean {within[1]}?" if within else "it should be one such as h100 or rtx 4090"
    raise ValueError(f"rksp knows no such accelerator; {hint}")


class Software(Finite):
    """What trains the run.

    Attributes:
        env: The software that trains, where it is not this Python.
        gpu: The accelerator that trains.
    """

    env: Annotated[
        Path | None,
        Flag(
            "--env",
            "The software that trains, where it is not this Python: what pip freeze prints, a "
            "lock file, requirements, environment.yml or a Dockerfile.",
        ),
    ] = None
    gpu: Annotated[
        str | None,
        AfterValidator(_accelerator),
        Flag(
            "--gpu",
            "The accelerator that trains, such as h100.",
            also="accelerator card",
            unit="name",
        ),
    ] = None


class Terms(Software):
    """What an answer is judged by; the only place of these defaults.

    Attributes:
        fail_on: See `Gate.parse`.
        risk: P(failed) up to which the word is ok; X is the rate that has it.
        select: Codes, beginnings of codes or names of the checks to report; none means all.
        ignore: The same of those that are left out.
        levels: `CHECK=LEVEL` in place of the check's own level.

    Example:
        >>> Terms().gate.bar, Terms(fail_on=["0.3", "unknown"]).gate.stops_unknown
        (0.5, True)
    """

    fail_on: FailOn = [str(DEFAULT_BAR)]
    risk: Risk = DEFAULT_RISK
    select: Annotated[
        list[str],
        Flag(
            "--select",
            "Report only these checks: codes, beginnings of codes, or names; repeatable.",
            unit="check",
        ),
    ] = []
    ignore: Annotated[
        list[str], Flag("--ignore", "Do not report these checks; repeatable.", unit="check")
    ] = []
    levels: Annotated[
        list[str],
        Flag(
            "--level",
            "Set the level of a check, such as RKSP503=note; repeatable.",
            unit="check=level",
        ),
    ] = []

    @property
    def gate(self) -> Gate:
        """What fails."""
        return Gate.parse(self.fail_on)
