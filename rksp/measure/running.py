"""Run a model on a batch, and say in one sentence why it cannot."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from rksp.batch import Batch, Pass
from rksp.ground.errors import InputError, RkspError, summary
from rksp.ground.model import definite

# Errors that a model may raise when its configuration and the probe do not match.
_CANNOT_RUN = (
    RuntimeError,
    ValueError,
    TypeError,
    IndexError,
    KeyError,
    AttributeError,
    AssertionError,
    ImportError,
    ZeroDivisionError,
)


def run_batch(model: nn.Module, batch: Batch, failures: Sequence[BaseException] = ()) -> object:
    """Run a model on what a batch shows it.

    Args:
        model: In the mode in which it shall run.
        batch: The batch; its own objective runs the model if it has one.
        failures: Errors of hooks, which are raised as they are.

    Returns:
        What the model returns, or the `Pass` of the batch's objective.

    Raises:
        InputError: The model cannot run; the message names what the batch lacks, if it does.
    """
    inputs = batch.inputs
    if batch.objective is not None:
        return _judged(model, batch, failures)
    args = (inputs,) if isinstance(inputs, Tensor) else inputs if isinstance(inputs, tuple) else ()
    kwargs = dict(inputs) if isinstance(inputs, dict) else {}
    if "use_cache" in inspect.signature(model.forward).parameters:
        kwargs.setdefault("use_cache", False)
    try:
        return model(*args, **kwargs)
    except _CANNOT_RUN as error:
        if any(error is failure for failure in failures):
            raise
        if isinstance(inputs, dict) and (lacking := _lacking(model, kwargs)):
            raise InputError(
                f"The model needs {' and '.join(lacking)}, and the probe holds only "
                f"{' and '.join(inputs)}; give a factory (package.module:function) that returns "
                "the model and a batch with all of them."
            ) from error
        raise InputError(
            f"The model cannot run on the probe ({summary(error)}); "
            "check its configuration, or give it another probe."
        ) from error


def _lacking(model: nn.Module, given: Mapping[str, object]) -> list[str]:
    """Return the names of what a model must be shown and is not."""
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(model.forward).parameters
    lacking = [
        name
        for name, parameter in parameters.items()
        if name not in given
        and parameter.default is inspect.Parameter.empty
        and parameter.kind not in variable
    ]
    main = getattr(model, "main_input_name", None)  # of a model of transformers
    is_main = isinstance(main, str) and main in parameters and main not in given
    return lacking or ([str(main)] if is_main else [])


def _judged(model: nn.Module, batch: Batch, failures: Sequence[BaseException]) -> Pass:
    """Run a batch that brings its own loss."""
    try:
        return definite(batch.objective)(model, batch)
    except Exception as error:  # code of the user, which may raise anything
        if isinstance(error, RkspError) or any(error is failure for failure in failures):
            raise
        raise InputError(
            f"The model cannot run on the batch ({summary(error)}); give it a batch "
            "that its forward takes."
        ) from error
