"""What a program ends with that obeys `summary` and `rksp fix`: sabotaged and healthy run files.

python -m lab.gate [COUNT]

Healthy ones are real run files as their authors published them, evenly chosen from those that state
a learning rate which can be edited. Each is sabotaged once: its rate times 30, 100 or 1,000. The
program does as the skill says: it launches on yes, applies `rksp fix` on no or above the rate not
to exceed, looks once more, and asks a person else. A sabotaged file ends healthy if it is launched
with a rate from a thirtieth of the authors' own to three times it: their choice is the judge, not
rksp's.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from lab.bench.recipe_files import CONFIGS, names
from rksp.calls.fix import fix as fixed
from rksp.calls.fix import scored
from rksp.documents.finding import applied
from rksp.documents.score import ScoreReport
from rksp.ground.errors import InputError
from rksp.ground.model import definite
from rksp.recipe_files.registry import read_recipe_file
from rksp.recipe_files.said.edits import RunText

FACTORS = (30, 100, 1000)
_ENDS = {"yes": "launched", "no": "blocked", "unknown": "asked"}
LOWEST, HIGHEST = 1 / 30, 3.0  # of the authors' rate


def candidates() -> Iterator[tuple[str, float]]:
    """Yield run files that can be scored and whose learning rate can be edited, and the rate."""
    for name in names():
        try:
            rate = scored(str(CONFIGS / name)).recipe.learning_rate
        except InputError:
            continue
        if rate is not None and all(sabotaged(CONFIGS / name, f * rate) for f in FACTORS):
            yield name, rate


def sabotaged(file: Path, rate: float) -> str | None:
    """Return the text of a run file with another learning rate; None where that is not sure."""
    read = read_recipe_file(file)
    known = {"recipe": read.recipe(), "origins": read.origins(), "keys": read.keys}
    text = RunText.of(str(file), **known)
    edit = text.edit("learning_rate", f"{rate:.6g}")
    return None if edit.file is None else applied(text.text, [edit])


def obeyed(file: str) -> tuple[str, ScoreReport]:
    """Do what the summary says; return launched, blocked or asked, and the last answer."""
    report = scored(file)
    if definite(report.summary).launch == "no" or _is_high(report):
        report = fixed(file)[1]
    launch = definite(report.summary).launch
    return "asked" if launch == "yes" and _is_high(report) else _ENDS[launch], report


def _is_high(report: ScoreReport) -> bool:
    """Tell whether the rate is above the one not to exceed, at which the skill launches nothing."""
    rate, most = report.recipe.learning_rate, definite(report.summary).do_not_exceed
    return rate is not None and most is not None and rate > most


def ended(name: str, rate: float, factor: float) -> str:
    """Return how one run file ends, at the authors' rate (factor 1) or sabotaged."""
    if factor == 1:
        return _ENDS[definite(scored(str(CONFIGS / name)).summary).launch]
    path, mark, part = name.partition("::")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, Path(path).name)
        text = sabotaged(CONFIGS / name, factor * rate)
        copy.write_bytes(definite(text).encode())
        end, report = obeyed(f"{copy}{mark}{part}")
    if end != "launched":
        return end
    share = definite(report.recipe.learning_rate) / rate
    return "healthy" if LOWEST <= share <= HIGHEST else "harmed"


def main(count: int) -> None:
    """Print how the sabotaged and the healthy files end."""
    found = list(candidates())
    chosen = found[:: max(1, len(found) // count)][:count]
    bad = [(name, ended(name, rate, FACTORS[i % 3])) for i, (name, rate) in enumerate(chosen)]
    good = [(name, ended(name, rate, 1)) for name, rate in chosen]
    print(f"{len(chosen)} sabotaged: {dict(Counter(end for _, end in bad))}")
    print(f"{len(chosen)} healthy: {dict(Counter(end for _, end in good))}")
    for title, ends, fine in (("sabotaged", bad, "healthy"), ("healthy", good, "launched")):
        for name, end in ends:
            if end != fine:
                print(f"{title}: {name}: {end}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 50)
