"""Comments in a run file that silence findings: `# rksp: ignore RKSP503`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rksp.documents.finding import Finding, Level
from rksp.ground.errors import InputError
from rksp.ground.files import read_text
from rksp.ground.model import definite
from rksp.recipe_files.said.origin import Origin

_CODE = r"RKS(?:P\d{3}|A-\d{4}-\d{4})"
_COMMENT = re.compile(rf"#\s*rksp:\s*ignore\s+({_CODE}(?:[\s,]+{_CODE})*)")
_LARGEST = 16 * 2**20  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Ignored:
    """The findings of a report after the comments of its run file.

    Attributes:
        kept: Findings that count.
        silenced: Findings that a comment silences, each with the place of the comment.
        refused: The same of findings that fail the gate, which are kept: a file cannot hide one.
    """

    kept: list[Finding] = field(default_factory=list)
    silenced: list[tuple[Finding, str]] = field(default_factory=list)
    refused: list[tuple[Finding, str]] = field(default_factory=list)


def apply_comments(
    findings: Iterable[Finding],
    fields: Mapping[str, str],
    origins: Mapping[str, Origin],
    file: Path | None,
    is_held: Callable[[Level], bool],
) -> Ignored:
    """Part the findings by the comments of a run file.

    A comment beside a setting silences the findings about the field that this line sets. A comment
    on a line of its own silences the findings about any field of the recipe. Findings about the
    model have no place in a run file.

    Args:
        findings: What the checks found, at their final levels.
        fields: Code of a check -> the recipe's field to blame; empty where there is none.
        origins: Field -> where it comes from.
        file: The run file; None without one.
        is_held: Tells which levels fail the gate; these stay, and so does every error.
    """
    found = Ignored()
    comments = {} if file is None else _comments(file)
    for finding in findings:
        name = fields.get(finding.code, "")
        origin = origins.get(name)
        lines = [0] if origin is None or origin.line is None else [origin.line, 0]
        at = next((comments[finding.code, n] for n in lines if (finding.code, n) in comments), None)
        if not name or at is None:
            found.kept.append(finding)
            continue
        place = f"{definite(file).as_posix()}:{at}"
        if finding.level is Level.ERROR or is_held(finding.level):
            found.kept.append(finding)
            found.refused.append((finding, place))
        else:
            found.silenced.append((finding, place))
    return found


def _comments(file: Path) -> dict[tuple[str, int], int]:
    try:
        text = read_text(file, _LARGEST)
    except InputError:
        return {}
    found: dict[tuple[str, int], int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        match = _COMMENT.search(line)
        if match is None:
            continue
        meant = number if line[: match.start()].strip() else 0
        for code in re.findall(_CODE, match[1]):
            found.setdefault((code, meant), number)
    return found
