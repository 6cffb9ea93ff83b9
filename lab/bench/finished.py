"""Judge `rksp why` on logs of finished runs that were labelled by hand.

python -m lab.bench.finished ../shared/data/logs5/labels.jsonl

A label has `id`, `file` (beside the labels), `outcome`, `onset_range` (null: not scored) and, if
numbers are to agree, `best_value` and `final_value`; see the README of `logs5`. The exit code is 1
if a failed run is called fine, a fine one failed, or a log cannot be read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from rksp.ground.errors import RkspError
from rksp.own_runs.course import Fate
from rksp.own_runs.registry import read_raw_runs
from rksp.own_runs.story import Story, course_of

_ALIKE = ({Fate.DIVERGED, Fate.SPIKE_UNRECOVERED}, {Fate.DIVERGED, Fate.NAN})


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What was said of one labelled log.

    Attributes:
        label: Its row.
        story: None where the log could not be read.
        error: Why not; empty if it could.
    """

    label: dict[str, Any]
    story: Story | None
    error: str = ""

    @property
    def fate(self) -> Fate | None:
        """What rksp said."""
        return None if self.story is None else self.story.course.fate

    @property
    def is_right(self) -> bool:
        """Whether it is told rightly as failed or not; *cannot tell* is wrong of both."""
        known = self.fate not in (None, Fate.UNTOLD)
        return known and Fate(self.label["outcome"]).is_failure == bool(
            self.fate and self.fate.is_failure
        )

    @property
    def has_class(self) -> bool:
        """Whether the class is right, or one that is as good."""
        wanted = Fate(self.label["outcome"])
        both = {wanted, self.fate}
        return (
            self.fate is wanted
            or both == _ALIKE[0]
            or (both == _ALIKE[1] and (self.label.get("nonfinite") or 0) > 0)
        )

    @property
    def has_onset(self) -> bool:
        """Whether the onset lies in its range, or at most one record outside; unscored passes."""
        wanted = self.label.get("onset_range")
        if wanted is None:
            return True
        if self.story is None or self.story.course.onset is None:
            return False
        steps, onset = self.story.curve.steps, self.story.course.onset
        if self.fate is Fate.OVERFIT and self.story.held_out is not None:
            steps = self.story.held_out.steps
        gap = float(np.median(np.diff(steps))) if len(steps) > 1 else 0.0
        return bool(wanted[0] - gap <= onset <= wanted[1] + gap)


def tell(labels: Path) -> list[Told]:
    """Return what is said of every log of a file of labels."""
    rows = [json.loads(line) for line in labels.read_text().splitlines() if line.strip()]
    return [_told(row, labels.parent) for row in rows]


def _told(label: dict[str, Any], folder: Path) -> Told:
    try:
        stories = [course_of(raw) for raw in read_raw_runs([folder / label["file"]])]
    except RkspError as error:
        return Told(label=label, story=None, error=str(error))
    if len(stories) != 1:
        return Told(label=label, story=None, error=f"{len(stories)} runs")
    return Told(label=label, story=stories[0])


def summary(told: Sequence[Told]) -> str:
    """Say how many are right, in one line each for the logs, the failed and the fine."""
    failed = [one for one in told if Fate(one.label["outcome"]).is_failure]
    fine = [one for one in told if one not in failed]
    right = sum(one.is_right for one in told)
    whole = sum(one.has_class and one.has_onset for one in failed)
    alarms = sum(bool(one.fate and one.fate.is_failure) for one in fine)
    return (
        f"{right} of {len(told)} told right; class and onset of {whole} of {len(failed)} failed; "
        f"{alarms} of {len(fine)} fine called failed"
    )


def main(
    labels: Annotated[Path, typer.Argument(help="A file of labels; the logs lie beside it.")],
    show: Annotated[bool, typer.Option("--all", help="Show the right ones too.")] = False,
) -> None:
    """Print each log that is told wrongly, and how many are right."""
    told = tell(labels)
    for one in told:
        is_wrong = not one.is_right or (
            Fate(one.label["outcome"]).is_failure and not (one.has_class and one.has_onset)
        )
        if is_wrong or show:
            found = one.story.course if one.story else None
            said = one.error[:120] or (
                f"{one.fate} from {found.onset if found else None} "
                f"({one.story.metric if one.story else ''}, "
                f"{len(one.story.curve.values) if one.story else 0} records)"
            )
            wanted = f"{one.label['outcome']} {one.label.get('onset_range') or ''}"
            print(f"{'WRONG' if is_wrong else 'right'} {one.label['id']:<8} {wanted:<36} {said}")
    print(summary(told))
    raise typer.Exit(0 if all(one.is_right for one in told) else 1)


if __name__ == "__main__":
    typer.run(main)
