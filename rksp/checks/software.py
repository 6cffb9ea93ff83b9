"""The software that trains a run, against the advisories that are known of it."""

from __future__ import annotations

import datetime
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rksp.ground.budgets import reading
from rksp.ground.text import one_line

if TYPE_CHECKING:
    from rksp.checks.advisories import Audit
    from rksp.recipe_files.said.origin import RecipeFile

_MOST_KEYS = 4  # of those that advisories lack, named in the line that counts them


def audited(
    read: RecipeFile | None,
    config: object,
    env: Path | None,
    gpu: str | None,
    *,
    here: bool = False,
) -> tuple[Audit | None, tuple[str, ...]]:
    """Match the advisories with the software of a run; the day is that of the system's clock.

    Args:
        read: The run file, if there is one.
        config: The model's configuration; None if it is not known.
        env: A file that pins the software.
        gpu: The name of the accelerator; default what torch says, if it was loaded anyway.
        here: Judge this Python, whether the run's trainer is installed in it or not.

    Returns:
        What was found, None where the software is not known; and what to say of it, a line each.

    Raises:
        InputError: The file cannot be read.
    """
    from rksp.recipe_files.said.facts import run_facts, trainer_of

    trainer = "" if read is None else trainer_of(read.reader).package
    if env is None and not here and not trainer:
        return None, ()
    from rksp.checks.environment import installed_here, read_environment

    if env is None and not here and not installed_here((trainer,)).releases:
        return None, (
            f"The software of this run is not checked, as {trainer} is not installed here; give "
            "--env FILE, such as what pip freeze prints where you train.",
        )
    from rksp.checks.advisories import audit, gpu_facts, model_facts, packages

    if env is None:
        environment, torch = installed_here(packages()), sys.modules.get("torch")
        if gpu is None and torch is not None and torch.cuda.is_available():
            gpu = torch.cuda.get_device_name(0)
    else:
        with reading(f"the software in {one_line(str(env), 200)}"):
            environment = read_environment(env)
    facts = {**model_facts(config), **gpu_facts(gpu), **({} if read is None else run_facts(read))}
    found = audit(environment, facts, datetime.date.today())
    return found, tuple(_counted(found))


def _counted(found: Audit) -> Iterator[str]:
    if found.more:
        yield f"{found.more} more advisories match; the five worst are shown."
    if found.unsettled:
        lacks = Counter(key for _, lacking in found.unsettled for key in lacking)
        keys = ", ".join(key.replace("_", " ") for key, _ in lacks.most_common(_MOST_KEYS))
        more = " and more" if len(lacks) > _MOST_KEYS else ""
        yield (
            f"{len(found.unsettled)} known bugs could apply; rksp does not know this run's {keys}"
            f"{more} (rksp audit -v lists them)."
        )
    for package, count in found.unpinned.items():
        yield f"Not checked: {count} advisories for {package}, whose release is not pinned."
