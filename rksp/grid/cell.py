"""One cell of a grid, and the identities by which cells share work."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rksp.assessment.store import initialization
from rksp.models.identity import file_identity, tree_identity
from rksp.options import MeasureOptions
from rksp.recipe import Recipe
from rksp.recipe_files.columns import canonical

_ENCODER = json.JSONEncoder(sort_keys=True, default=str)  # json.dumps would make one a cell


class Options(MeasureOptions):
    """How every cell of a grid is measured and judged.

    Every option that changes an answer is part of every cell's identity. `threshold` only names a
    verdict and is not. The seed comes from the cell.

    Attributes:
        threshold: P(failed) at which a cell's verdict is `risk`.
        risk: Share of the edges that may lie below the rate not to exceed.
        classifier: File of the classifier; None means the shipped one.
        runs: Files and folders of past runs to learn from.
        max_params: The largest number of parameters; larger models are refused.
        allow_hub: Let a Hub id download.
        trust_remote_code: Run code that comes with a model.
        is_cached: Take measurements from the user's cache folder, and keep them there.
    """

    threshold: float = 0.5
    risk: float = 0.05
    classifier: Path | None = None
    runs: tuple[Path, ...] = ()
    max_params: float = 2e9
    allow_hub: bool = False
    trust_remote_code: bool = False
    is_cached: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A target at one seed under one recipe.

    Attributes:
        target: As for `rksp score`.
        overrides: The changed settings of the model.
        seed: The seed of the initialization.
        recipe: How the model is to be trained.
        starts_trained: The run file names weights to start from.
        labels: The values that the grid varies, by the names that the user gave, for tables.
        assumed: What nobody decided about the recipe, in words by field.
    """

    target: str
    recipe: Recipe
    overrides: Mapping[str, object] = field(default_factory=dict)
    seed: int = 0
    starts_trained: bool = False
    labels: Mapping[str, object] = field(default_factory=dict)
    assumed: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def model(self) -> str:
        """The target with its overrides, in one line."""
        return model_name(self.target, self.overrides)

    def init_key(self, options: Options) -> str:
        """Return the identity of the initialization and its measurement.

        Cells with the same identity share one profile.
        """
        at_seed = options.model_copy(update={"seed": self.seed})
        content = initialization(
            self.target,
            self.overrides,
            at_seed,
            allow_hub=options.allow_hub,
            with_code=options.trust_remote_code,
        )
        return _digest(content | {"starts_trained": self.starts_trained})

    def key(
        self,
        options: Options,
        init: str | None = None,
        recipe: Mapping[str, object] | None = None,
    ) -> str:
        """Return the identity of the cell; the same work has the same key in every run.

        Args:
            options: How the cell is measured.
            init: What `init_key` returned, if it was asked before.
            recipe: The recipe as JSON, if it was written before.
        """
        content: dict[str, Any] = {
            "init": init or self.init_key(options),
            "recipe": recipe or self.recipe.model_dump(mode="json"),
            "risk": options.risk,
        }
        if options.classifier is not None:
            content["classifier"] = file_identity(options.classifier)
        if options.runs:
            content["runs"] = [tree_identity(path) for path in options.runs]
        return _digest(content)


def init_keys(cells: Iterable[Cell], options: Options) -> list[str]:
    """Return the `init_key` of each cell; every target is looked at once."""
    known: dict[tuple[str, str, int], str] = {}
    found = []
    for cell in cells:
        changed = json.dumps(dict(cell.overrides), default=repr) if cell.overrides else ""
        which = (cell.target, changed, cell.seed)
        if which not in known:
            known[which] = cell.init_key(options)
        found.append(known[which])
    return found


def recipes_of(cells: Iterable[Cell]) -> list[dict[str, Any]]:
    """Return the recipe of each cell as JSON; those that differ in their rates are written once."""
    known: dict[Hashable, dict[str, Any]] = {}
    found = []
    for cell in cells:
        rest = cell.recipe.but_for_rate
        if rest not in known:
            known[rest] = cell.recipe.model_dump(mode="json")
        found.append(known[rest] | {"learning_rate": cell.recipe.learning_rate})
    return found


def model_name(target: str, overrides: Mapping[str, object]) -> str:
    """Join a target with its overrides, sorted by name, as in `gpt2 n_layer=2`."""
    return " ".join([target, *(f"{key}={value}" for key, value in sorted(overrides.items()))])


def unnamed_settings(
    overrides: Mapping[str, object], labels: Mapping[str, object]
) -> dict[str, object]:
    """Return the settings of a model that no label states, as columns: `set.n_layer`."""
    named = {canonical(name)[1] for name in labels}
    return {f"set.{name}": value for name, value in overrides.items() if name not in named}


def _digest(content: Mapping[str, object]) -> str:
    return hashlib.sha256(_ENCODER.encode(content).encode()).hexdigest()[:16]
