"""Options of the target: changes to the model, and its permissions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field

from rksp.cli.options import assignments
from rksp.flags import Flag

if TYPE_CHECKING:
    from rksp.models.source import ModelSource


class ModelOptions(BaseModel):
    """Options of the model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    overrides: Annotated[
        list[str],
        Flag(
            "--set", "Change a setting of the model's configuration; repeatable.", unit="key=value"
        ),
    ] = []
    max_params: Annotated[
        float, Flag("--max-params", "Refuse larger models.", unit="parameters")
    ] = Field(default=2e9, gt=0)
    trust_remote_code: Annotated[
        bool, Flag("--trust-remote-code", "Run the model code that a repository brings.")
    ] = False
    allow_hub: Annotated[
        bool, Flag("--allow-hub", "Allow downloads from the Hugging Face Hub.")
    ] = False

    def resolve(self, target: str, overrides: Mapping[str, object]) -> ModelSource:
        """Resolve a target; `--set` replaces what a recipe file changes about it.

        Raises:
            InputError: The model does not exist.
        """
        from rksp.models.resolve import resolve  # torch, not for --help

        return resolve(
            target,
            overrides={**overrides, **assignments(self.overrides)},
            trust_remote_code=self.trust_remote_code,
            allow_hub=self.allow_hub,
            max_params=int(self.max_params),
        )
