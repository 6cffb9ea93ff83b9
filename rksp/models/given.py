"""Make a model source from a model that already exists, from Python or from a factory.

Its loss is a named one, the model's own, or one for the batch.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parameter import is_lazy
from torch.utils.data import DataLoader

from rksp.datasets.batch import IGNORED, Batch, Objective, Pass, call, mapped, tensors
from rksp.datasets.probe import Probe
from rksp.ground.errors import InputError, foreign
from rksp.ground.factory import described, load_factory
from rksp.ground.model import definite
from rksp.kernels.cross_entropy import cross_entropy
from rksp.models.adapters import adapters_of, precision_of, trained_share, unwrapped, weights_show
from rksp.models.as_found import evaluating, left_as_found
from rksp.models.heads import choose, transformers_heads
from rksp.models.source import ModelSource, Request, Task, hash_config
from rksp.recipe import fields_of
from rksp.recipe.start import Start

Loss = Callable[[Any, Any], Tensor]
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
    batch: object = None,
    loss: Loss | None = None,
    *,
    target: str | None = None,
    seed: int = 0,
    is_pretrained: bool | None = None,
) -> ModelSource:
    """Make a source from a model in memory, which is neither copied nor changed.

    Args:
        model: Any module; one in another precision than float32 is measured as a float32 copy.
        batch: See `rksp.score`; a model of Hugging Face needs none.
        loss: See `rksp.score`.
        target: Name in the report; default the name of the model's class.
        seed: As in `ModelSource`.
        is_pretrained: The weights are trained ones; default what they show.

    Returns:
        The source.

    Raises:
        InputError: The model cannot be used, or has no batch or no loss.
    """
    model = unwrapped(model)
    target = target or type(model).__name__
    _check_model(model, target)
    known = _hugging_face(model, is_wrapped=batch is not None)
    config = None if known is None else known.config
    tracked = (getattr(module, "num_batches_tracked", None) for module in model.modules())
    notes = _NEW_STATISTICS if any(n is not None and not int(n) for n in tracked) else ()
    held = weights_show(model, config)
    if is_pretrained is None and held.is_stored:
        notes = (*notes, _TRAINED)
    if is_pretrained is not None:
        said = f"is_pretrained={is_pretrained}"
        held = Start(kind="stored" if is_pretrained else "scratch", because=said)
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
        kind="module",
        config=config,
        task=_task(known),
        num_parameters=sum(p.numel() for p in model.parameters()),
        config_hash=None if config is None else hash_config(config),
        start=held,
        model_class=type(model).__name__,
        notes=notes,
        seed=seed,
        construct=lambda: copy.deepcopy(model),
        model=model,
        batch=own,
        shown=shown if own is None else shown | _sizes_of(own),
        loader=batch if isinstance(batch, DataLoader) else None,
    )


def factory_source(request: Request) -> ModelSource:
    """Call a factory and make a source from its result.

    Args:
        request: Its target is `package.module:callable`, which is called under the seed and returns
            a model, (model, batch), or those and a loss.

    Returns:
        The source.

    Raises:
        InputError: The factory fails, or returns something else.
    """
    target = request.target
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
        own = module_source(*_unpacked(target, result), target=target, seed=seed)
        task, most = request.task or own.task, request.max_params
        source = replace(own, kind="factory", task=task, max_params=most, again=made)
        source.check_size()
        return source

    return made(request.seed)


def given_batch(model: nn.Module, given: object, loss: Loss | None) -> Batch:
    """Make a batch from the user's batch, on the model's device.

    Raises:
        InputError: The batch or the loss cannot be used, or there are fewer than two examples.
    """
    if loss is not None and not callable(loss):
        raise InputError(f"loss is a {type(loss).__name__}; give a function that returns a scalar.")
    batch = one_batch(model, given, partial(judged, loss=loss))
    if batch.count < 2:
        raise InputError(
            f"The batch holds {batch.count} example; give two or more, counted by the first "
            "dimension of its tensors."
        )
    return batch


def one_batch(model: nn.Module, given: object, objective: Objective) -> Batch:
    """Make a batch as the model takes it from one of the user's, on the model's device."""
    device = next(model.parameters()).device
    given = mapped(
        _as_tensors(given),
        lambda t: t.to(device, torch.float32 if t.is_floating_point() else t.dtype),
    )
    inputs, target = split_batch(model, given)
    return Batch(inputs=inputs, labels=target, objective=objective, given=given)


def _as_tensors(given: Any) -> Any:
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
    with left_as_found(model), evaluating(model), torch.no_grad():
        return _runs(model, batch.rows(0, 1)) or not _runs(model, batch)


def _runs(model: nn.Module, batch: Batch) -> bool:
    try:
        definite(batch.objective)(model, batch)
    except Exception:  # code of the user, which may raise anything; measuring says what
        return False
    return True


def _shown_by(model: nn.Module) -> dict[str, Any]:
    shown: dict[str, Any] = {"precision": precision_of(model), "peft": adapters_of(model)}
    optimizer = own_optimizer(model) if is_lightning(model) else None
    if optimizer is not None:
        group = optimizer.param_groups[0]  # a schedule has already scaled its rate
        shown |= {"learning_rate": float(group.get("initial_lr", group["lr"]))}
        shown |= fields_of(optimizer)
    return {name: value for name, value in shown.items() if value is not None}


def _sizes_of(batch: Batch) -> dict[str, Any]:
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


def _unpacked(target: str, result: object) -> tuple[nn.Module, Any, Loss | None]:
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


def _hugging_face(model: nn.Module, *, is_wrapped: bool) -> Any | None:
    """Return the model of Hugging Face that a module is, or holds nearly all parameters of.

    Its class is known by name, without importing transformers. Adapters are always looked into.
    """
    is_adapted = any(kind.__name__ == "PeftModel" for kind in type(model).__mro__)
    inside = model.modules() if is_wrapped or is_adapted else [model]
    size = sum(p.numel() for p in model.parameters())
    for module in inside:
        if any(kind.__name__ == "PreTrainedModel" for kind in type(module).__mro__):
            held = sum(p.numel() for p in module.parameters())
            return module if held >= _NEARLY_ALL * size else None
    return None


def _task(known: Any | None) -> Task:
    if known is None:
        return "other"
    config, name = known.config, type(known).__name__
    try:
        chosen = choose(name, copy.deepcopy(config), [name], transformers_heads)
    except InputError:  # a class of the user's own
        return "other"
    return chosen.task


_NEARLY_ALL = 0.9  # of a module's parameters: the rest may be a head of its own
_MOSTLY = 0.95  # of the targets
_TARGETS = ("labels", "label", "targets", "target", "y")
_TOKENS = ("input_ids", "tokens", "idx")
_HOW = (
    "give loss=, a function of the output and the batch (of the output and the target for a tuple "
    "of inputs and target)"
)


def judged(model: nn.Module, batch: Batch, *, loss: Loss | None) -> Pass:
    """Run the model and compute its loss, the objective of a batch that the user gave.

    Args:
        model: The model.
        batch: The batch.
        loss: The user's; None chooses by the model, its output and the batch, by the rules of
            `rksp.score`.

    Raises:
        InputError: There is no loss, or it cannot be computed.
    """
    if loss is None and is_lightning(model):
        return _training_step(model, batch)
    output = call(model, batch.inputs)
    main = main_output(output)
    logits = main if _is_over_classes(main, batch) else None
    found = _own_loss(output) if loss is None else _by_user(loss, output, batch)
    found = _by_data(main, batch) if found is None else found
    return Pass(output=main, loss=found, logits=logits)


def _by_user(loss: Loss, output: object, batch: Batch) -> Tensor:
    judged_by = batch.given[-1] if isinstance(batch.given, tuple | list) else batch.given
    advice = (
        "it is called with what the model returns and with the batch (the target alone for a tuple "
        "of inputs and target)"
    )
    with foreign("The loss cannot be computed", advice):
        return _scalar(loss(output, judged_by), "The loss")


def is_lightning(model: nn.Module) -> bool:
    """Tell whether a model is a LightningModule, without importing Lightning."""
    return any(kind.__name__ == "LightningModule" for kind in type(model).__mro__)


def own_optimizer(model: Any) -> Any | None:
    """Return the optimizer that a LightningModule configures; None if it is not a single one."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = model.configure_optimizers()
    except Exception:  # code of the user, which may need a trainer
        return None
    if isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], list):
        found = found[0]
    if isinstance(found, Mapping):
        found = found.get("optimizer")
    if isinstance(found, list | tuple):
        found = found[0] if len(found) == 1 else None
    return found if isinstance(found, torch.optim.Optimizer) else None


def main_output(output: object) -> Tensor | None:
    """Return the logits, or else the first floating tensor that is not a scalar."""
    found = output.get("logits") if isinstance(output, Mapping) else None
    found = getattr(output, "logits", None) if found is None else found
    if isinstance(found, Tensor):
        return found
    return next((t for t in tensors(output) if t.is_floating_point() and t.dim()), None)


def split_batch(model: nn.Module, given: Any) -> tuple[Any, Tensor | None]:
    """Split a batch into the model's inputs and the target.

    The target of a tuple is its last entry. The target of a dict is its `labels` (or `targets`,
    `y`, …); the model also receives it if its `forward` takes it. A `forward` of one argument that
    has no such name takes the dict as a whole, as Lightning's modules often do.

    Args:
        model: The model.
        given: The batch as the user wrote it.

    Returns:
        The inputs, and the target or None.

    Raises:
        InputError: The batch is not a tensor, a tuple or a dict, or holds no tensor.
    """
    if not tensors(given):
        raise InputError(
            f"A batch of type {type(given).__name__} holds no tensor; give a tensor, a tuple of "
            "inputs and target, or a dict of keyword arguments."
        )
    if isinstance(given, Tensor):
        return given, None
    if isinstance(given, Mapping):
        name = next((name for name in _TARGETS if name in given), None)
        taken = inspect.signature(model.forward).parameters
        named = [n in given or p.kind is not p.POSITIONAL_OR_KEYWORD for n, p in taken.items()]
        if named == [False]:
            return (given,), given.get(name)
        takes_it = name in taken or any(p.kind is p.VAR_KEYWORD for p in taken.values())
        inputs = {key: part for key, part in given.items() if key != name or takes_it}
        return inputs, given.get(name)
    if len(given) < 2:
        return (given[0] if isinstance(given[0], Tensor) else tuple(given)), None
    first = given[0] if len(given) == 2 else tuple(given[:-1])
    return first, given[-1] if isinstance(given[-1], Tensor) else None


def _own_loss(output: object) -> Tensor | None:
    found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if found is None and isinstance(output, tuple | list):
        scalars = (t for t in output if isinstance(t, Tensor) and t.is_floating_point())
        found = next((t for t in scalars if t.dim() == 0), None)
    return found if isinstance(found, Tensor) and found.dim() == 0 else None


def _by_data(output: Tensor | None, batch: Batch) -> Tensor:
    if output is None:
        raise InputError(f"The model returns no floating tensor to compute a loss from; {_HOW}.")
    target = batch.labels
    if target is None:
        tokens = tokens_of(batch.inputs)
        if tokens is None or output.dim() != 3 or output.shape[:2] != tokens.shape:
            raise InputError(
                f"The batch has no target and the model has no loss of its own; {_HOW}."
            )
        if tokens.max() >= output.shape[-1]:
            raise InputError(
                f"The model's {output.shape[-1]} outputs are no scores of token {tokens.max()}; "
                f"give it with its head, or {_HOW}."
            )
        return cross_entropy(output[:, :-1], tokens[:, 1:])
    shapes = f"the output has shape {tuple(output.shape)} and the target {tuple(target.shape)}"
    if target.is_floating_point():
        if output.numel() != target.numel():
            raise InputError(f"No loss is known: {shapes}; {_HOW}.")
        return F.mse_loss(output.float(), target.reshape(output.shape).float())
    if output.shape[:-1] == target.shape and output.shape[-1] > 1:
        return cross_entropy(output, target.long())
    has_classes_second = output.dim() > 1 and output.shape[1] > 1
    if has_classes_second and output.shape[:1] + output.shape[2:] == target.shape:
        return F.cross_entropy(output.float(), target.long(), ignore_index=IGNORED)
    raise InputError(f"No loss is known: {shapes}; {_HOW}.")


def tokens_of(inputs: Any) -> Tensor | None:
    """Return the token ids `[batch, length]` if the inputs are tokens."""
    if isinstance(inputs, Mapping):
        named = [inputs[name] for name in _TOKENS if name in inputs]
        found = named[:1] or list(inputs.values())
        inputs = found[0] if len(found) == 1 else None
    is_tokens = isinstance(inputs, Tensor) and not inputs.is_floating_point() and inputs.dim() == 2
    return inputs if is_tokens else None


def predicts_next(batch: Batch) -> bool:
    """Tell whether the targets of a batch are the tokens that follow, as far as it shows them."""
    tokens, labels = tokens_of(batch.inputs), batch.labels
    if tokens is None:
        return False
    if labels is None:  # then nothing else could be the target
        return True
    if labels.shape != tokens.shape or labels.is_floating_point() or tokens.shape[1] < 2:
        return False
    asked = labels[:, :-1] >= 0  # a shifted copy, or the tokens themselves, which models shift
    same = (labels[:, :-1] == tokens[:, 1:]) | (labels[:, :-1] == tokens[:, :-1])
    return bool(same[asked].float().mean() > _MOSTLY) if bool(asked.any()) else False


def _is_over_classes(output: Tensor | None, batch: Batch) -> bool:
    if output is None or output.dim() < 2 or output.shape[-1] < 2:
        return False
    target = tokens_of(batch.inputs) if batch.labels is None else batch.labels
    if target is None or target.is_floating_point():
        return False
    return output.shape[:-1] == target.shape


def _training_step(model: Any, batch: Batch) -> Pass:
    """Run a Lightning module's own step; its output is what its last submodule returned."""
    if not getattr(model, "automatic_optimization", True):
        raise InputError(f"{type(model).__name__} optimizes manually in its training_step; {_HOW}.")
    seen: list[Tensor] = []

    def keep(module: nn.Module, args: object, output: object) -> None:
        found = main_output(output)
        if found is not None:
            seen.append(found)

    with ExitStack() as stack, warnings.catch_warnings():
        for module in (model, *model.children()):
            stack.callback(module.register_forward_hook(keep).remove)
        warnings.simplefilter("ignore")  # self.log has no trainer to log to
        with foreign(f"training_step of {type(model).__name__} failed", _HOW):
            result = model.training_step(batch.given, 0)
    loss = result.get("loss") if isinstance(result, Mapping) else result
    output = seen[-1] if seen else None
    logits = output if _is_over_classes(output, batch) else None
    return Pass(output=output, loss=_scalar(loss, "The training_step"), logits=logits)


def _scalar(loss: object, what: str) -> Tensor:
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        shape = f" of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else ""
        raise InputError(
            f"{what} returned a {type(loss).__name__}{shape}, not a scalar tensor; {_HOW}."
        )
    if torch.is_grad_enabled() and not loss.requires_grad:
        raise InputError(f"{what} does not depend on the model's weights; {_HOW}.")
    return loss.reshape(())
