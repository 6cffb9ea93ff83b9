"""Describe a resolved target before anything is built."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rksp.ground.errors import InputError, NotCovered
from rksp.ground.flags import count
from rksp.ground.model import definite
from rksp.models.configuration import refusals, refused
from rksp.models.heads import Task as Task
from rksp.models.type_table import Config
from rksp.recipe.start import SCRATCH, Start

if TYPE_CHECKING:  # a configuration is described without torch
    from torch import nn

    from rksp.datasets.batch import Batch

Kind = Literal["model_type", "config", "checkpoint", "hub", "factory", "module"]


MAX_PARAMS = 2e9  # 8 GB in float32


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What `rksp.models.resolve.resolve` was asked for, which says what the model is; see there."""

    target: str
    overrides: Mapping[str, object] = field(default_factory=dict)
    seed: int = 0
    trust_remote_code: bool = False
    allow_hub: bool = False
    max_params: float = MAX_PARAMS
    task: Task | None = None
    counts: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """What a model is and where it comes from; `build` makes it.

    Attributes:
        target: The target as the user wrote it.
        kind: How the target was interpreted.
        config: The Hugging Face configuration; None for another model.
        task: What the model predicts, which decides the probe.
        num_parameters: Number of parameters; a shared one counts once.
        max_params: A larger model is not built in memory.
        config_hash: SHA-256 of the configuration, without names and versions; None without one.
        start: The weights that it holds, or those that the run starts from once that is decided.
        shape_from: What gave the shape of a model whose files are not at hand; else empty.
        has_fresh_head: Whether the weights come from files without those of the head.
        model_class: Name of the class that is built.
        tokenizer_path: `tokenizer.json` beside the target, if there is one.
        notes: What was changed or dropped during resolution, a sentence each.
        seed: Seed of the random initialization.
        construct: Builds the model.
        construct_empty: Builds the model for a skeleton; None for a factory.
        folder: Folder of a checkpoint's weights.
        model: A model that is already in memory; measurements leave it unchanged.
        batch: The model's own batch with its loss; None probes it with text or images.
        loader: Gives the model's own batches; `batch` is its first.
        again: Makes a factory's source at another seed.
        counted: Makes the source with its skeleton, where only the configuration was read.
        asked: What a store knows the model by; None where foreign code has a part in it.
        shown: Fields of the recipe that a model in memory and its batch show, or a configuration;
            None for a field that the model has no use for.
        missing: Why nothing is known of the model, a sentence; empty where something is.
    """

    target: str
    kind: Kind
    config: object | None
    task: Task
    num_parameters: int | None = None
    max_params: float = MAX_PARAMS
    config_hash: str | None = None
    start: Start
    model_class: str
    shape_from: str = ""
    has_fresh_head: bool = False
    tokenizer_path: Path | None = None
    notes: tuple[str, ...] = ()
    seed: int = 0
    construct: Callable[[], nn.Module] = field(repr=False)
    construct_empty: Callable[[], nn.Module] | None = field(default=None, repr=False)
    folder: Path | None = None
    model: nn.Module | None = field(default=None, repr=False)
    batch: Batch | None = field(default=None, repr=False)
    loader: Iterable[object] | None = field(default=None, repr=False)
    again: Callable[[int], ModelSource] | None = field(default=None, repr=False)
    counted: Callable[[], ModelSource] | None = field(default=None, repr=False)
    asked: Request | None = field(default=None, repr=False)
    shown: Mapping[str, object] = field(default_factory=dict)
    missing: str = ""

    @property
    def shown_by(self) -> str:
        """What shows the fields of `shown`, in words."""
        return "the module" if self.kind in ("module", "factory") else "the patches of an image"

    def whole(self) -> ModelSource:
        """Return the source as resolved with its skeleton, which loads torch and transformers.

        Raises:
            InputError: The constructor refuses the configuration.
        """
        if self.counted is None:
            return self
        made = self.counted()
        shown = ("config", "num_parameters", "config_hash", "model_class", "counted")
        makers = ("construct", "construct_empty")
        return replace(self, **{name: getattr(made, name) for name in (*shown, *makers)})

    def at(self, seed: int) -> ModelSource:
        """Return the source at a seed; a factory is called again and makes a new batch."""
        return self if self.again is None or seed == self.seed else self.again(seed)

    def build(self, seed: int | None = None) -> nn.Module:
        """Build the model in evaluation mode, float32, on the CPU.

        The state of the global generator is unchanged.

        Args:
            seed: Seed of the random initialization, default the source's own; a checkpoint ignores
                it.

        Returns:
            The model.

        Raises:
            InputError: The model is too large for memory, the configuration is inconsistent, or
                weights hold NaN or do not fit.
        """
        import torch

        from rksp.models.checkpoint import check_finite

        self.check_size()
        seed = self.seed if seed is None else seed
        if self.again is not None:
            return definite(self.again(seed).model).float().eval()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                model = self._drawn_by_weight(seed)
                if model is None:
                    model = self.construct()
            except refusals() as error:
                raise refused(self.target, error) from error
        if self.start.is_stored:
            check_finite(dict(model.named_parameters()), self.target)
        return model.float().eval()

    def _drawn_by_weight(self, seed: int) -> nn.Module | None:
        """Build the initialization that streaming gives, bit for bit: every weight has its seed.

        The distributions are the model's own; only the order of the draws differs. The result is
        None for a checkpoint, and if a weight's values depend on another's (a few types).
        """
        if self.construct_empty is None or self.start.is_stored:
            return None
        from rksp.models.streaming.weights import build_whole  # depends on this module

        try:
            return build_whole(self.construct_empty, seed)
        except NotCovered:
            return None

    def check_size(self) -> None:
        """Refuse a model that should not be built in memory.

        Raises:
            InputError: It is too large; the message has its size and says what to do.
        """
        if self.num_parameters is not None and self.num_parameters > self.max_params:
            raise InputError(
                f"{self.target} has {count(self.num_parameters)} parameters, more than "
                f"--max-params {self.max_params:.3g}; take a tiny model of its type (--shrink), "
                "set smaller sizes (--set), or raise the limit."
            )


def unfound(target: str, missing: str) -> ModelSource:
    """Return the source of a model that a run file names, or does not, and nobody here knows.

    Args:
        target: Its name, or that of the file.
        missing: Why nothing is known of it, a sentence.
    """

    def construct() -> nn.Module:
        raise InputError(missing)

    return ModelSource(
        target=target,
        kind="config",
        config={},
        task="causal-lm",
        model_class="",
        start=SCRATCH,
        construct=construct,
        missing=missing,
    )


def hash_config(config: Config) -> str:
    """Compute the SHA-256 of a configuration, without names, versions and private keys."""
    settings = config.to_dict()
    text = json.dumps(_plain(settings), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: object) -> object:
    if isinstance(value, dict):
        left_out = ("transformers_version", "name_or_path", "dtype", "torch_dtype")
        return {
            str(k): _plain(v)
            for k, v in value.items()
            if not str(k).startswith("_") and k not in left_out
        }
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
