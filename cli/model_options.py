"""Options of the target: changes to the model, and its permissions."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

from pydantic import Field

from rksp.cli.options import assignments
from rksp.ground.budgets import reading
from rksp.ground.errors import InputError, nearest
from rksp.ground.factory import is_factory
from rksp.ground.flags import COUNT, Flag
from rksp.ground.model import Finite
from rksp.ground.text import one_line
from rksp.report.formats import one_of

if TYPE_CHECKING:
    from rksp.models.source import ModelSource


class ModelOptions(Finite):
    """Options of the model."""

    overrides: Annotated[
        list[str],
        Flag(
            "--set", "Change a setting of the model's configuration; repeatable.", unit="key=value"
        ),
    ] = []
    task: Annotated[
        str | None,
        Flag("--task", "Read the model as this, such as image-classification.", unit="task"),
    ] = None
    max_params: Annotated[
        float, COUNT, Flag("--max-params", "Refuse larger models.", unit="parameters")
    ] = Field(default=2e9, gt=0)
    trust_remote_code: Annotated[
        bool, Flag("--trust-remote-code", "Run the model code that a repository brings.")
    ] = False
    offline: Annotated[
        bool, Flag("--offline", "Ask the Hub for nothing, not even a typed model's configuration.")
    ] = False
    allow_hub: Annotated[
        bool, Flag("--allow-hub", "Allow downloads from the Hugging Face Hub.")
    ] = False

    def resolve(
        self,
        target: str,
        overrides: Mapping[str, object],
        *,
        counts: bool = True,
        is_typed: bool = False,
    ) -> ModelSource:
        """Resolve a target; `--set` replaces what a recipe file changes about it.

        Args:
            target: See `rksp.resolve`.
            overrides: What a recipe file changes about the target.
            counts: See `rksp.resolve`.
            is_typed: A person typed the target, so the Hub may be asked for its configuration.

        Raises:
            InputError: The model does not exist.
        """
        from rksp.models.names import fetch_config, may_fetch, said_of_namesake
        from rksp.models.resolve import resolve  # torch, not for --help
        from rksp.models.source import Task

        if self.task is not None and self.task not in get_args(Task):
            hint = nearest(self.task, get_args(Task), count=1) or "."
            raise InputError(f"--task {self.task!r} is unknown; use {one_of(get_args(Task))}{hint}")

        runs_code = is_factory(target) or self.trust_remote_code  # which may take its time
        with nullcontext() if runs_code else reading(f"the model {one_line(target, 200)}"):
            source = resolve(
                target,
                overrides={**overrides, **assignments(self.overrides)},
                trust_remote_code=self.trust_remote_code,
                allow_hub=self.allow_hub and not self.offline,
                max_params=int(self.max_params),
                counts=counts,
                fetch=fetch_config if is_typed and may_fetch(self.offline) else None,
                task=cast(Any, self.task),
            )
        for said in said_of_namesake(target):
            print(f"rksp: {one_line(said)}", file=sys.stderr)
        return source
