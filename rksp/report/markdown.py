"""Blocks as Markdown: a job summary, or a comment on a merge request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rksp.documents.base import Document
from rksp.report import blocks as page

_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~&])")
_MARKS = {"error": "🔴 ", "warning": "🟠 ", "note": "🔵 "}
_MOST = 200  # rows: GitHub drops a summary of more than 1 MiB whole


def render(document: Document) -> str:
    """Return the page of a document; what a reader needs rarely is folded away."""
    return _all(page.blocks_of(document)) + "\n"


def _all(blocks: Sequence[page.Block]) -> str:
    return "\n\n".join(part for block in blocks for part in _drawn(block))


def _drawn(block: page.Block) -> Iterator[str]:
    match block:
        case page.Title():
            yield f"## {block.eyebrow}: {code(block.name)}"
            yield _text(block.about)
        case page.Verdict():
            counted = f" — {_text(block.odds[1])} {block.odds[0]}" if block.odds else ""
            yield f"**{block.word}: {_text(block.headline)}**{counted}"
            yield _all(block.blocks)
        case page.Section():
            body = _all(block.blocks)
            if block.folds and body:
                yield f"<details><summary>{block.title}</summary>\n\n{body}\n\n</details>"
            elif body:
                yield f"### {block.title}\n\n{body}"
        case page.Sentence():
            yield f"➜ {_text(block.said)}" if block.look == "advice" else _text(block.said)
        case page.Notes():
            yield "\n".join(f"- {_text(said)}" for said in block.said)
        case page.Command():
            yield code(block.said)
        case page.Table():
            yield _tabled(block)
        case page.Figure():
            pass


def _tabled(table: page.Table) -> str:
    kept = table.shown
    rows = [[_text(row[n]) for n in kept] for row in table.rows[:_MOST]]
    if table.look == "items":
        rows = [[_MARKS.get(first, "") + first, *rest] for first, *rest in rows]
    lines = [[table.head[n] for n in kept], ["---"] * len(kept), *rows]
    left = len(table.rows) - len(rows)
    more = f"\n\nThe first {len(rows)} of {len(table.rows)} rows." if left else ""
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + more


def _text(said: page.Words) -> str:
    return "".join(
        code(part)
        if isinstance(part, page.Code)
        else part
        if isinstance(part, page.Number)
        else _SPECIAL.sub(r"\\\1", re.sub(r"\s+", " ", part))
        for part in page.pieces(said)
    )


def code(text: str) -> str:
    """Return a code span that is also valid inside a table; empty for empty text."""
    held = " ".join(text.split()).replace("`", "'").replace("|", "\\|")
    return f"`{held}`" if held else ""
