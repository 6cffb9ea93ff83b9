"""Make text from outside safe to print, numbers short, and a line of words a table."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable

# C0 and C1 controls, DEL, line and paragraph separators, marks that reorder text or have no width,
# and surrogates: these move the cursor, start a line, forge a log command, or hide the real text.
# A runner of GitHub takes `##[` for a command anywhere in a line, and Azure's takes `##vso[`.
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    r"\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb"
    r"\ud800-\udfff\U000e0000-\U000e0fff]|(?<=#)#(?=\[|vso\[)"
)
CLEARLY_LOWER = 0.98  # of a rate: what lies nearer is no other rate to a reader
# What a probe's description calls text whose tokens mean nothing to trained weights.
BYTES_SPREAD, BYTES_FOLDED = "bytes mapped into the vocabulary", "bytes folded into the vocabulary"


def printable(text: str) -> str:
    r"""Escape control characters in a text as `\u001b` and the like; newlines and tabs stay.

    Inside a JSON string the escape means the same character, so JSON may be passed too.
    """
    return text if _is_plain(text) else _CONTROL.sub(_escaped, text)


def one_line(text: str, limit: int = 1000) -> str:
    """Put a text on one line, escape control characters, and cut the middle beyond `limit`."""
    escaped = printable(text.replace("\n", "\\n").replace("\t", " "))
    if len(escaped) <= limit:
        return escaped
    half = limit // 2
    return f"{escaped[:half]} … {escaped[-half:]}"


def has_control(text: str) -> bool:
    """Tell whether a text holds a control character, including newlines and tabs."""
    return one_line(text, limit=len(text) * 6 + 1) != text


def safe_strings(value: object) -> object:
    """Make every string in JSON data printable and one line long, keys included."""
    if isinstance(value, str):
        return _safe(value)
    if isinstance(value, list):
        return [safe_strings(part) for part in value]
    if isinstance(value, dict):
        return {_safe(key): safe_strings(part) for key, part in value.items()}
    return value


def safe_json(text: str) -> object:
    """Parse JSON, and make every string in it printable and one line long, keys included."""
    found = json.loads(text)
    if _is_plain(text) and "\\" not in text:  # then no string needs it
        return found
    return safe_strings(found)


def _safe(text: str) -> str:
    return text if _is_plain(text) else one_line(text, limit=10**7)  # nearly every one is


def short(value: float, digits: int = 3) -> str:
    """Format a number as people write it: 6e-4, 8.8e-3, 0.05, 1.72, 3,740.

    Every output writes learning rates in this form.
    """
    if 1000 <= abs(value) < 1e6:
        return f"{value:,.0f}"
    plain = f"{value:.{digits}g}"
    if "e+" in plain and abs(value) < 1000:
        return f"{float(plain):,.0f}"  # 240, not 2.4e2
    scientific = f"{value:.{digits - 1}e}"
    small = 0 < abs(float(scientific)) < 1e-2
    mantissa, separator, power = (scientific if small else plain).partition("e")
    if not separator:
        return mantissa
    plain = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return f"{plain}e{int(power)}"


def rounded_down(rate: float) -> float:
    """Round down to two digits, as pages print it, so that the printed rate is not above it."""
    if not 0 < rate < math.inf:
        return rate
    step = 10.0 ** (math.floor(math.log10(rate)) - 1)
    return float(f"{math.floor(rate / step * (1 + 1e-12)) * step:.2g}")


def many(number: int, noun: str) -> str:
    """Return `1 run` or `14,000 runs`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def tally(kinds: Iterable[str]) -> str:
    """Return how many there are of each kind, the most first: `3 fine, 1 diverged`."""
    return ", ".join(f"{number} {kind}" for kind, number in Counter(kinds).most_common())


def words(text: str) -> tuple[str, ...]:
    """Return the words of a text: a table of names, written as a line of them."""
    return tuple(text.split())


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable() and "##" not in text


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x10000:
        return f"\\u{code:04x}"
    high, low = divmod(code - 0x10000, 0x400)  # as JSON writes it
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"


def percent(share: float) -> str:
    """Format a probability without decimals; what is neither 0 nor 1 is not rounded to them."""
    if 0 < share < 0.005:
        return "<1%"
    return ">99%" if 0.995 <= share < 1 else f"{share:.0%}"
