"""Run an experiment and print its tables beside the paper's, as Markdown.

python -m lab.experiments kss --folder kss            # trains; resumes in the folder
python -m lab.experiments kss --stored                # the committed results
python -m lab.experiments --publish                   # what `rksp reproduce` prints
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lab.experiments.catalog import EXPERIMENTS
from lab.experiments.run import SPECIAL, reproduce
from rksp.cli.explain import SHIPPED, shipped_file
from rksp.cli.process import live_progress
from rksp.ground.errors import RkspError
from rksp.ground.files import atomic_write, check_writable

NAMES = (*EXPERIMENTS, *SPECIAL)


def main(arguments: list[str] | None = None) -> None:
    """Read the arguments and run; on bad ones, leave with 2."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?", choices=NAMES)
    parser.add_argument("--folder", type=Path, help="one file a trial; the same command resumes")
    parser.add_argument("--workers", type=int, help="processes of one thread; default one a core")
    parser.add_argument("-o", "--output", type=Path, help="write the rows of the table here")
    parser.add_argument("--stored", action="store_true", help="train nothing")
    parser.add_argument("--publish", action="store_true", help="write what rksp reproduce prints")
    given = parser.parse_args(arguments)
    if given.publish:
        for name in SHIPPED:
            atomic_write(shipped_file(name), reproduce(name, stored=True))
        return
    if given.name is None:
        parser.error("give the name of an experiment")
    try:
        if given.output is not None:
            check_writable(given.output)
        with live_progress() as report:
            tables = reproduce(
                given.name,
                folder=given.folder,
                workers=given.workers,
                output=given.output,
                stored=given.stored,
                progress=lambda done, total: report(f"{done} of {total} trials", done, total),
            )
    except RkspError as error:
        parser.error(str(error))
    print(tables, end="")


if __name__ == "__main__":
    main()
