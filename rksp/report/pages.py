"""HTML pages: a template, and inside it the document whose numbers it shows."""

from __future__ import annotations

import json
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from rksp.ground.flags import count
from rksp.ground.text import short
from rksp.recipe_files.said.origin import shown

PERCENT = "percent"  # the form of a probability
# Mastrandrea et al. (2010), guidance note on uncertainties of the IPCC: upper end and words.
LIKELIHOOD = (
    (0.01, "exceptionally unlikely"),
    (0.1, "very unlikely"),
    (0.33, "unlikely"),
    (0.66, "about as likely as not"),
    (0.9, "likely"),
    (0.99, "very likely"),
    (1.0, "virtually certain"),
)


class Numbers:
    """Writes numbers of a document with where they stand in it.

    `{{ n("seeds/0/risk/likely_edge") }}` becomes `<data value="0.00373" data-path="...">0.00373`:
    what a reader sees is short, what a machine reads is the document's own number.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document

    def __call__(self, path: str, form: str = "", digits: int = 3) -> Markup:
        """Return the number at a path of the document, marked with that path."""
        value: Any = self._document
        for part in path.split("/"):
            value = value[int(part)] if isinstance(value, list) else value[part]
        if value is None:
            return Markup('<span class="none">–</span>')
        if form == PERCENT:
            from rksp.report.words import percent

            shown = percent(value)
        else:
            shown = format(value, form) if form else short(value, digits)
        return Markup('<data value="{!r}" data-path="{}">{}</data>').format(value, path, shown)


def page(template: str, document: dict[str, Any], **content: Any) -> str:
    """Fill a template; escape everything but `Markup`, as configurations may be hostile."""
    environment = Environment(
        loader=PackageLoader("rksp.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "n": Numbers(document),
        "short": short,
        "shown": shown,
        "count": count,
    }
    environment.filters["likelihood"] = likelihood
    return environment.get_template(template).render(embedded=_embedded(document), **content)


def likelihood(probability: float) -> str:
    """Return a probability in the words of the IPCC's guidance note."""
    return next(name for end, name in LIKELIHOOD if probability <= end)


def _embedded(document: dict[str, Any]) -> Markup:
    """Return JSON for a script element, with "<" escaped so that the element cannot end early."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))
