"""HTML: one file that needs no network, no script and no font of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from rksp.documents.base import Document
from rksp.ground.versions import version
from rksp.report.blocks import Number, Title, Verdict, blocks_of, pieces


def render(document: Document) -> str:
    """Return the page of a document, with its JSON inside."""
    blocks = blocks_of(document)
    title = next(block for block in blocks if isinstance(block, Title))
    verdict = next(block for block in blocks if isinstance(block, Verdict))
    return page(
        "report.html.j2",
        json.loads(document.to_json()),
        blocks=blocks,
        heading=f"{title.name}: {verdict.headline}",
        version=version("rksp"),
    )


def page(template: str, document: Mapping[str, object], **content: object) -> str:
    """Fill a template; escape everything but `Markup`, as configurations may be hostile."""
    environment = Environment(
        loader=PackageLoader("rksp.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"kind": lambda block: type(block).__name__, "pieces": pieces}
    environment.tests["number"] = lambda cell: isinstance(cell, Number)
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    embedded = Markup(text.replace("<", "\\u003c"))  # so that the element cannot end early
    return environment.get_template(template).render(embedded=embedded, **content)
