"""Define one word of the output."""

from __future__ import annotations

from dataclasses import dataclass

NO_RANGE = "no known range"


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One word of the output.

    Attributes:
        name: As the pages print it.
        meaning: One or two sentences, with the unit.
        healthy: What a run that trains well shows; empty where a check or nothing says it.
        check: Code of the check whose threshold is the healthy range.
        usual: The middle 90 % of the labelled models before training, where nothing better is
            known; two significant digits.
        feature: Column of the labelled models that `usual` comes from.
        is_quantity: Whether it is a measured number, which has a healthy range.
        spellings: Other ways to type it.
        source: Who defined it; empty where rksp did.
    """

    name: str
    meaning: str
    healthy: str = ""
    check: str = ""
    usual: tuple[float, float] | None = None
    feature: str = ""
    is_quantity: bool = False
    spellings: tuple[str, ...] = ()
    source: str = ""

    @property
    def range(self) -> str:
        """The healthy range in words: the check's own, or the usual one, or that none is known."""
        if self.check:
            from rksp.checks.registry import find_check

            return find_check(self.check).healthy
        if self.usual is not None:
            return f"usually {self.usual[0]:,g} to {self.usual[1]:,g}"
        return self.healthy or NO_RANGE
