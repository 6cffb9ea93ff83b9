"""Published configurations by the name of their model, without a network: `published.tsv`.

The first line is the month in which the facts were collected. Each other line is one shape: its
model type, the settings that differ from the type's own (as JSON), where they were read, and all
Hub ids of that shape: mirrors, quantized copies and models trained further. Shapes that a stored
file states in full come first. `python -m lab hub FILE` writes it.
"""

from __future__ import annotations

import difflib
import json
import re
from calendar import month_name
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

FILE = "published.tsv"
_SIZE = re.compile(r"(?<![a-z0-9])(\d+x)?\d+([._]\d+)?[bm](?![a-z0-9])")
_SIZED = re.compile(r"\d|(^|[-_])(tiny|small|base|large|mini|medium|xl|xxl)($|[-_])")
_DOT = re.compile(r"([a-z]\d+)_(\d+)(?=[_-]|$)")  # qwen2_5_7b is qwen2.5-7b
_MOST_WORDS, _LONGEST = 16, 200  # of a name that is searched for a stem


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One published configuration.

    Attributes:
        id: The Hub id as the table spells it.
        settings: The settings, `model_type` among them.
        source: The file that states them.
        month: The month of the table, in words.
    """

    id: str
    settings: dict[str, object]
    source: str
    month: str

    def note(self, target: str) -> str:
        """Say where a target's shape comes from, one sentence."""
        is_same = target.lower() == self.id.lower()
        asked = "The shape" if is_same else f"{target} is read as {self.id}, whose shape"
        return f"{asked} is from rksp's table of published models ({self.month}; {self.source})."

    @property
    def origin(self) -> str:
        """The model and where its shape comes from, for a line of the page."""
        return f"shape of {self.id}: rksp's table, {self.month}"


@cache
def _text() -> tuple[str, str]:
    """Return the table, and the same in small letters; both have a space around every id."""
    text = files("rksp.models").joinpath(FILE).read_text("utf-8")
    return text, text.lower()


def published(name: str) -> Published | None:
    """Return the configuration of a Hub id, in any capitals; None if the table lacks it."""
    return _row(f" {name} ") if len(name) < _LONGEST else None


def published_like(name: str) -> Published | None:
    """Return the configuration that a name or a path speaks of; None if it speaks of none.

    A part of the path is the name of a published model, or holds one that states its size:
    `my-org/Llama-3.1-8B-medical`, `/models/DeepSeek-V3.1`, `qwen2_5/qwen2_5_7b`.
    """
    for part in reversed(name.replace("\\", "/").split("/")):
        words = re.split(r"([-_])", part)[: 2 * _MOST_WORDS]
        spans = sorted(
            ((i, j) for i in range(0, len(words), 2) for j in range(i + 1, len(words) + 1, 2)),
            key=lambda span: span[0] - span[1],
        )
        for i, j in spans:
            stem = "".join(words[i:j]).lower()
            is_whole = j - i == len(words) and _SIZED.search(stem)  # not `model`, `checkpoint`
            if is_whole or (_SIZE.search(stem) and not stem[0].isdigit()):
                dotted = _DOT.sub(r"\1.\2", stem).replace("_", "-")
                found = _row(f"/{stem} ") or _row(f"/{dotted} ")
                if found is not None:
                    return found
    return None


def nearest_published(name: str) -> str:
    """Return "; did you mean a, b?" for the ids closest to a name, or ""."""
    ids = [one for line in _text()[0].splitlines()[1:] for one in line.split("\t")[3].split()]
    model = name.rpartition("/")[2].lower()
    named: dict[str, str] = {}
    for one in ids:
        named.setdefault(one.rpartition("/")[2].lower(), one)
    close = difflib.get_close_matches(model, named, n=3, cutoff=0.75)
    return f"; did you mean {', '.join(named[one] for one in close)}?" if close else ""


def _row(words: str) -> Published | None:
    """Return the first row that holds these words among its ids."""
    text, small = _text()
    at = small.find(words.lower())
    if at < 0:
        return None
    start, end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
    kind, settings, source, _ = text[start:end].split("\t")
    year, month = text[: text.find("\n")].split("-")
    return Published(
        id=text[text.rfind(" ", 0, at + 1) + 1 : text.find(" ", at + 1)],
        settings={"model_type": kind, **json.loads(settings)},
        source=source,
        month=f"{month_name[int(month)]} {year}",
    )
