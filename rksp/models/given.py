"""Make a model source from a model that already exists, from Python or from a factory."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils.data import DataLoader

from rksp.datasets.batch import Batch, Objective, mapped
from rksp.datasets.probe import Probe
from rksp.ground.errors import InputError
from rksp.ground.factory import described, load_factory
from rksp.ground.model import definite
from rksp.models.adapters import (
    adapters_of,
    is_trained,
    precision_of,
    trained_share,
    unwrapped,
)
from rksp.models.as_found import evaluating, left_as_found
from rksp.models.given_loss import (
    GivenLoss,
    Loss,
    is_lightning,
    own_optimizer,
    split_batch,
    tokens_of,
)
from rksp.models.heads import choose, transformers_heads
from rksp.models.source import MAX_PARAMS, Kind, ModelSource, Task, hash_config
from rksp.recipe import fields_of

_NEW_STATISTICS = (
    "Batch norms were measured with their initial statistics, not with those of a batch.",
)


_TRAINED = (
    "The weights were trained before, by their norms, their name or their frozen part; if not, "
    "give is_pretrained=False."
)
_WHOLE = "The model cannot run on a part of the batch, cut along dimension 0: it was used whole."


def module_source(
    model: nn.Module,
    batch: Any = None,
    loss: Loss | None = None,
    *,
    target: str | None = None,
    kind: Kind = "module",
    task: Task | None = None,
    seed: int = 0,
    max_params: float = MAX_PARAMS,
    is_pretrained: bool | None = None,
) -> ModelSource:
    """Make a source from a model in memory, which is neither copied nor changed.

    Args:
        model: Any module; one in another precision than float32 is measured as a float32 copy.
        batch: See `rksp.score`; a model of Hugging Face needs none.
        loss: See `rksp.score`.
        target: Name in the report; default the name of the model's class.
        kind: As in `ModelSource`.
        task: As in `ModelSource`.
        seed: As in `ModelSource`.
        max_params: As in `ModelSource`.
        is_pretrained: As in `ModelSource`; default what the weights show.

    Returns:
        The source.

    Raises:
        InputError: The model cannot be used, or has no batch or no loss.
    """
    model = unwrapped(model)
    target = target or type(model).__name__
    _check_model(model, target)
    config = _config(model)
    notes = _NEW_STATISTICS if any(map(_has_new_statistics, model.modules())) else ()
    if is_pretrained is None and (is_pretrained := is_trained(model, config)):
        notes = (*notes, _TRAINED)
    if (share := trained_share(model)) < 1:
        notes = (*notes, f"{share:.2g} of the parameters are trained; the others are frozen.")
    shown = _shown_by(model)
    if any(p.is_floating_point() and p.dtype != torch.float32 for p in model.parameters()):
        model = copy.deepcopy(model).float()
        notes = (*notes, "A copy of the model in float32 was measured.")
    if batch is None and loss is not None:
        raise InputError(f"{target} has a loss but no batch; give the batch for the loss.")
    own = None if batch is None else given_batch(model, batch, loss)
    if own is not None and not _can_be_cut(model, own):
        own, notes = replace(own, is_whole=True), (*notes, _WHOLE)
    return ModelSource(
        target=target,
        kind=kind,
        config=config,
        task=task or _task(model, config),
        num_parameters=sum(p.numel() for p in model.parameters()),
        max_params=max_params,
        config_hash=None if config is None else hash_config(config),
        is_pretrained=bool(is_pretrained),
        model_class=type(model).__name__,
        notes=notes,
        seed=seed,
        construct=lambda: copy.deepcopy(model),
        model=model,
        batch=own,
        shown=shown if own is None else shown | _sizes_of(own),
        loader=batch if isinstance(batch, DataLoader) else None,
    )


def factory_source(
    target: str, *, task: Task | None = None, seed: int = 0, max_params: float = MAX_PARAMS
) -> ModelSource:
    """Call a factory and make a source from its result.

    Args:
        target: `package.module:callable`; it returns a model, (model, batch), or those and a loss.
        task: As in `ModelSource`.
        seed: As in `ModelSource`; the factory runs under the seed.
        max_params: As in `ModelSource`.

    Returns:
        The source.

    Raises:
        InputError: The factory fails, or returns something else.
    """
    factory = load_factory(target)

    def made(seed: int) -> ModelSource:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                result = factory()
            except InputError:
                raise
            except Exception as error:  # code of the user, which may raise anything
                raise InputError(f"{target} failed ({described(error)}).") from error
        model, batch, loss = _unpacked(target, result)
        source = module_source(
            model,
            batch,
            loss,
            target=target,
            kind="factory",
            task=task,
            seed=seed,
            max_params=max_params,
        )
        source.check_size()
        return replace(source, again=made)

    return made(seed)


def given_batch(model: nn.Module, given: Any, loss: Loss | None) -> Batch:
    """Make a batch from the user's batch, on the model's device.

    Raises:
        InputError: The batch or the loss cannot be used, or there are fewer than two examples.
    """
    if loss is not None and not callable(loss):
        raise InputError(f"loss is a {type(loss).__name__}; give a function that returns a scalar.")
    batch = one_batch(model, given, GivenLoss(loss))
    if batch.count < 2:
        raise InputError(
            f"The batch holds {batch.count} example; give two or more, counted by the first "
            "dimension of its tensors."
        )
    return batch


def one_batch(model: nn.Module, given: Any, objective: Objective) -> Batch:
    """Make a batch as the model takes it from one of the user's, on the model's device."""
    device = next(model.parameters()).device
    given = mapped(
        _as_tensors(given),
        lambda t: t.to(device, torch.float32 if t.is_floating_point() else t.dtype),
    )
    inputs, target = split_batch(model, given)
    return Batch(inputs=inputs, labels=target, objective=objective, given=given)


def _as_tensors(given: Any) -> Any:
    """Return a batch of tensors: the first of a loader, and arrays of numpy as tensors."""
    if isinstance(given, DataLoader):
        with torch.random.fork_rng(devices=[]):
            return _as_tensors(next(iter(given)))
    if isinstance(given, np.ndarray):
        return torch.as_tensor(given)
    if isinstance(given, Mapping):
        return {key: _as_tensors(part) for key, part in given.items()}
    if type(given) in (tuple, list):
        return type(given)(_as_tensors(part) for part in given)
    return given


def _can_be_cut(model: nn.Module, batch: Batch) -> bool:
    """Tell whether a model that runs on a batch also runs on its first example."""
    with left_as_found(model), evaluating(model), torch.no_grad():
        return _runs(model, batch.rows(0, 1)) or not _runs(model, batch)


def _runs(model: nn.Module, batch: Batch) -> bool:
    try:
        definite(batch.objective)(model, batch)
    except Exception:  # code of the user, which may raise anything; measuring says what
        return False
    return True


def _shown_by(model: nn.Module) -> dict[str, Any]:
    """Return the fields of the recipe that a module shows, by name."""
    shown: dict[str, Any] = {"precision": precision_of(model), "peft": adapters_of(model)}
    optimizer = own_optimizer(model) if is_lightning(model) else None
    if optimizer is not None:
        group = optimizer.param_groups[0]  # a schedule has already scaled its rate
        shown |= {"learning_rate": float(group.get("initial_lr", group["lr"]))}
        shown |= fields_of(optimizer)
    return {name: value for name, value in shown.items() if value is not None}


def _sizes_of(batch: Batch) -> dict[str, Any]:
    """Return the fields of the recipe that a batch shows, by name."""
    tokens = tokens_of(batch.inputs)
    length = {} if tokens is None else {"sequence_length": max(2, tokens.shape[1])}
    return {"batch_size": batch.count} | length


def given_probe(batch: Batch) -> Probe:
    """Make a probe from the batch that came with a model."""
    return Probe(
        inputs=cast(Any, batch.inputs),
        labels=batch.labels,
        description=f"the given batch of {batch.count}",
        num_tokens=batch.count,
        own=batch,
    )


def _unpacked(target: str, result: Any) -> tuple[nn.Module, Any, Loss | None]:
    parts = result if isinstance(result, tuple) else (result,)
    model, batch, loss = (*parts[:3], None, None, None)[:3]
    if isinstance(model, nn.Module) and len(parts) <= 3:
        return model, batch, loss
    kinds = ", ".join(type(part).__name__ for part in parts[:4]) or "nothing"
    raise InputError(
        f"{target} returned {kinds}, not a torch.nn.Module, (model, batch) or (model, batch, loss)."
    )


def _check_model(model: nn.Module, target: str) -> None:
    params = list(model.parameters())
    if any(is_lazy(p) for p in params):
        raise InputError(f"{target} has lazy parameters; run it once on a batch first.")
    if not any(p.requires_grad for p in params):
        raise InputError(f"{target} has no parameters to train.")
    if any(p.is_meta for p in params):
        raise InputError(f"{target} is on the meta device; give it weights first.")


def _has_new_statistics(module: nn.Module) -> bool:
    seen = getattr(module, "num_batches_tracked", None)
    return seen is not None and not int(seen)


def _config(model: Any) -> Any | None:
    """Return the configuration of a Hugging Face model, without importing transformers."""
    if any(kind.__name__ == "PeftModel" for kind in type(model).__mro__):
        model = model.get_base_model()
    is_hugging_face = any(kind.__name__ == "PreTrainedModel" for kind in type(model).__mro__)
    return model.config if is_hugging_face else None


def _task(model: nn.Module, config: Any | None) -> Task:
    if config is None:
        return "other"
    try:
        name = type(model).__name__
        chosen = choose(name, copy.deepcopy(config), [name], transformers_heads)
    except InputError:  # a class of the user's own
        return "other"
    return chosen.task
