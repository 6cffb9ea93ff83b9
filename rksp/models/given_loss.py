"""Compute the loss of a user's model: a named loss, the model's own, or one for the batch."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rksp.datasets.batch import IGNORED, Batch, Pass, call, tensors
from rksp.ground.errors import InputError, RkspError, summary
from rksp.ground.model import definite
from rksp.kernels.cross_entropy import cross_entropy

Loss = Callable[[Any, Any], Tensor]
_TARGETS = ("labels", "label", "targets", "target", "y")
_TOKENS = ("input_ids", "tokens", "idx")
_HOW = (
    "give loss=, a function of the output and the batch (of the output and the target for a tuple "
    "of inputs and target)"
)


@dataclass(frozen=True, slots=True)
class GivenLoss:
    """The objective of a batch that the user gave; the rules are those of `rksp.score`.

    Attributes:
        loss: The user's loss; None chooses by the model, its output and the batch.
    """

    loss: Loss | None = None

    def __call__(self, model: nn.Module, batch: Batch) -> Pass:
        """Run the model and compute its loss.

        Raises:
            InputError: There is no loss, or it cannot be computed.
        """
        if self.loss is None and is_lightning(model):
            return _training_step(model, batch)
        output = call(model, batch.inputs)
        main = main_output(output)
        logits = main if _is_over_classes(main, batch) else None
        if self.loss is not None:
            loss = self._named(output, batch)
        else:
            own = _own_loss(output)
            loss = _by_data(main, batch) if own is None else own
        return Pass(output=main, loss=loss, logits=logits)

    def _named(self, output: Any, batch: Batch) -> Tensor:
        judged_by = batch.given[-1] if isinstance(batch.given, tuple | list) else batch.given
        try:
            loss = definite(self.loss)(output, judged_by)
        except RkspError:
            raise
        except Exception as error:  # code of the user, which may raise anything
            raise InputError(
                f"The loss cannot be computed ({summary(error)}); it is called with what the model "
                "returns and with the batch (the target alone for a tuple of inputs and target)."
            ) from error
        return _scalar(loss, "The loss")


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


def main_output(output: Any) -> Tensor | None:
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
        if len(taken) == 1 and not _takes_any(taken, given):
            return (given,), given.get(name)
        takes_it = name in taken or any(p.kind is p.VAR_KEYWORD for p in taken.values())
        inputs = {key: part for key, part in given.items() if key != name or takes_it}
        return inputs, given.get(name)
    if len(given) < 2:
        return (given[0] if isinstance(given[0], Tensor) else tuple(given)), None
    first = given[0] if len(given) == 2 else tuple(given[:-1])
    return first, given[-1] if isinstance(given[-1], Tensor) else None


def _takes_any(taken: Mapping[str, inspect.Parameter], given: Mapping[str, Any]) -> bool:
    """Tell whether a `forward` takes a dict's entries by name, and not the dict as a whole."""
    return any(name in given or p.kind is not p.POSITIONAL_OR_KEYWORD for name, p in taken.items())


def _own_loss(output: Any) -> Tensor | None:
    """Return the loss that the model returned: `.loss`, `["loss"]`, or a scalar of a tuple."""
    found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if found is None and isinstance(output, tuple | list):
        scalars = (t for t in output if isinstance(t, Tensor) and t.is_floating_point())
        found = next((t for t in scalars if t.dim() == 0), None)
    return found if isinstance(found, Tensor) and found.dim() == 0 else None


def _by_data(output: Tensor | None, batch: Batch) -> Tensor:
    """Compute the loss from the target, or from the next token."""
    if output is None:
        raise InputError(f"The model returns no floating tensor to compute a loss from; {_HOW}.")
    target = batch.labels
    if target is None:
        tokens = tokens_of(batch.inputs)
        if tokens is None or output.dim() != 3 or output.shape[:2] != tokens.shape:
            raise InputError(
                f"The batch has no target and the model has no loss of its own; {_HOW}."
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


def _is_over_classes(output: Tensor | None, batch: Batch) -> bool:
    """Tell whether an output is logits: integer targets or tokens line up with its rows."""
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

    def keep(module: nn.Module, args: Any, output: Any) -> None:
        found = main_output(output)
        if found is not None:
            seen.append(found)

    modules = (model, *model.children())
    with _hooked(modules, keep), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # self.log has no trainer to log to
        try:
            result = model.training_step(batch.given, 0)
        except RkspError:
            raise
        except Exception as error:  # code of the user, which may raise anything
            raise InputError(
                f"training_step of {type(model).__name__} failed ({summary(error)}); {_HOW}."
            ) from error
    loss = result.get("loss") if isinstance(result, Mapping) else result
    output = seen[-1] if seen else None
    logits = output if _is_over_classes(output, batch) else None
    return Pass(output=output, loss=_scalar(loss, "The training_step"), logits=logits)


@contextmanager
def _hooked(
    modules: tuple[nn.Module, ...], keep: Callable[[nn.Module, Any, Any], None]
) -> Iterator[None]:
    hooks = [module.register_forward_hook(keep) for module in modules]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _scalar(loss: Any, what: str) -> Tensor:
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        shape = f" of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else ""
        raise InputError(
            f"{what} returned a {type(loss).__name__}{shape}, not a scalar tensor; {_HOW}."
        )
    if torch.is_grad_enabled() and not loss.requires_grad:
        raise InputError(f"{what} does not depend on the model's weights; {_HOW}.")
    return loss.reshape(())
