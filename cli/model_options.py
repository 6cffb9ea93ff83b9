"""Options of the target: what is changed about the model, and what it may do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field

from rksp.cli.options import assignments
from rksp.flags import Flag

if TYPE_CHECKING:
    from rksp.models.source import ModelSource


class ModelOptions(BaseModel):
    """How a target becomes a model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    overrides: Annotated[
        list[str], Flag("--set", "Configuration key=value; repeatable.", unit="key=value")
    ] = []
    max_params: Annotated[
        float, Flag("--max-params", "Refuse larger models.", unit="parameters")
    ] = Field(default=2e9, gt=0)
    trust_remote_code: Annotated[
        bool, Flag("--trust-remote-code", "Run the model code of a repository.")
    ] = False
    allow_hub: Annotated[bool, Flag("--allow-hub", "Let a Hub id download.")] = False

    def resolve(
        self, target: str, overrides: Mapping[str, object], *, counts: bool = True
    ) -> ModelSource:
        """Resolve a target; `--set` replaces what a recipe file changes about it.

        Args:
            target, counts: See `rksp.resolve`.
            overrides: What a recipe file changes about the target.

        Raises:
            InputError: There is no such model.
        """
        from rksp.models.resolve import resolve  # torch, not for --help

        return resolve(
            target,
            overrides={**overrides, **assignments(self.overrides)},
            trust_remote_code=self.trust_remote_code,
            allow_hub=self.allow_hub,
            max_params=int(self.max_params),
            counts=counts,
        )
