"""Read an HTML page: its numbers, their places in the document, and its addresses."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """Checks nesting, and collects `data` elements, all addresses and the viewport.

    Attributes:
        numbers: (path in the document, exact value, text shown) of each `data` element.
        addresses: Values of every `src`, `href` and `action`.
        viewport: Content of the meta element, or None.
    """

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.numbers: list[tuple[str, str, str]] = []
        self.addresses: list[str] = []
        self.viewport: str | None = None
        self._number: list[str] | None = None
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.addresses += [found[a] for a in ("src", "href", "xlink:href", "action") if a in found]
        if found.get("name") == "viewport":
            self.viewport = found["content"]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "data":
            self._number = [found["data-path"], found["value"], ""]

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag == "data":
            self.numbers.append(tuple(self._number))
            self._number = None

    def handle_data(self, data):
        if self._number is not None:
            self._number[2] += data


def embedded(text: str) -> str:
    """Return the JSON document in the page."""
    return re.search(r'<script type="application/json" id="report">(.*?)</script>', text)[1]


def look_up(document: object, path: str) -> float:
    """Return a number of the document."""
    for part in path.split("/"):
        document = document[int(part)] if isinstance(document, list) else document[part]
    return document


def wrong_numbers(text: str, document: object) -> list[str]:
    """Return the paths whose exact value differs, or whose text is not the rounded value."""
    return [
        path
        for path, value, shown in Page(text).numbers
        if float(value) != look_up(document, path) or not _rounds(float(value), shown)
    ]


def check_self_contained(text: str) -> None:
    """Check that the page loads nothing from elsewhere and has a viewport."""
    page = Page(text)
    assert page.addresses == ["data:,"]
    assert page.viewport == "width=device-width, initial-scale=1"
    styled = text.replace(embedded(text), "")
    assert not re.search(r"https?://|@import|url\(", styled)
    assert re.findall(r"<script[^>]*>", styled) == ['<script type="application/json" id="report">']
    assert "default-src 'none'" in text
    json.loads(embedded(text))


def _rounds(exact: float, shown: str) -> bool:
    """Return whether the text is within half a unit of its last digit of the number."""
    percent = shown.endswith("%")
    if shown in ("<1%", ">99%"):
        return 0 < exact < 0.005 if shown == "<1%" else 0.995 <= exact < 1
    written = Decimal(shown.rstrip("%").replace(",", ""))
    unit = 10.0 ** written.as_tuple().exponent
    return abs(float(written) - exact * (100 if percent else 1)) <= 0.500001 * unit
