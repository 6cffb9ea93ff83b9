"""Load a base model for a ladder: with its own head or a fresh one, whole or with adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from lab.ladders.fine_tuning.spec import FineTuningSpec
from lab.tasks.domain_tasks import PADDING
from rksp.ground.errors import InputError
from rksp.models.adapters import heads_of, with_adapters
from rksp.models.configuration import quiet


def load_base(home: Path) -> nn.Module:
    """Load a base model with the head that it learned with, in training mode."""
    import transformers  # seconds, which listing a plan does not need

    config = transformers.AutoConfig.from_pretrained(home)
    with quiet():
        model = getattr(transformers, config.architectures[0]).from_pretrained(home)
    return model.train()


def model_to_tune(spec: FineTuningSpec, home: Path) -> nn.Module:
    """Load the model of a ladder as every run starts from it; only what is trained has gradients.

    Beside adapters a fresh head is trained whole, as peft does for classifiers.
    """
    model = _with_fresh_head(spec, home) if spec.fresh_head else load_base(home)
    if spec.method == "all":
        return model
    heads = heads_of(model) if spec.fresh_head else ()
    return with_adapters(model, spec.recipe, seed=spec.seed, whole=heads)


def _with_fresh_head(spec: FineTuningSpec, home: Path) -> nn.Module:
    import transformers

    task = spec.new_task("held_out")
    if task.num_classes == spec.base.old_task("held_out").num_classes:
        raise InputError(
            f"{task.name} has as many classes as the base model's own task, so its head would be "
            "loaded and not fresh; take another task."
        )
    kind = (
        transformers.AutoModelForImageClassification
        if task.head == "image"
        else transformers.AutoModelForSequenceClassification
    )
    # A decoder's classifier reads the last token before the padding.
    padding = {} if task.head == "image" else {"pad_token_id": PADDING}
    # Quiet, because that the head is fresh is what we ask for.
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        model = kind.from_pretrained(
            home, num_labels=task.num_classes, ignore_mismatched_sizes=True, **padding
        )
    return model.train()


class OldAbility:
    """Shows a tuned model as a model of its old task: the tuned body under the old head.

    Args:
        base: The base model with its own head; its body is replaced.
        fresh_head: Whether the tuned models have another head; without one they are shown as
            they are.
    """

    def __init__(self, base: nn.Module, fresh_head: bool) -> None:
        self._base: Any = base if fresh_head else None

    def __call__(self, tuned: Any) -> nn.Module:
        """Return the model to judge on the old task; it shares the tuned model's weights."""
        if self._base is None:
            return tuned
        inner = tuned.get_base_model() if hasattr(tuned, "get_base_model") else tuned
        setattr(self._base, self._base.base_model_prefix, getattr(inner, inner.base_model_prefix))
        return self._base
