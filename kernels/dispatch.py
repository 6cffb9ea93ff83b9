"""Choose which implementation of an operation runs, and record why.

`RKSP_KERNELS` is read at the first dispatch: `auto` (the default) takes Triton only where a GPU
run has measured it to be faster, `reference` never takes it, `triton` always does or raises.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from rksp.ground.errors import InputError, nearest

MODES = ("auto", "reference", "triton")
UNMEASURED = "not measured: no GPU run yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The implementation that ran for an operation.

    Attributes:
        op: Name of the operation, a key of `THRESHOLDS`.
        implementation: `"reference"` or `"triton"`.
        reason: The reason in a few words.
    """

    op: str
    implementation: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """The size from which `auto` prefers Triton on a GPU.

    Attributes:
        measure: The size that is compared: `"rows"` (the last dimension but one) or `"elements"` of
            the first tensor.
        at_least: The size from which Triton was measured to be faster; None if no GPU run has
            measured it, and then `auto` keeps the reference.
        provenance: Device, versions and command of the measurement.
    """

    measure: str
    at_least: int | None
    provenance: str


def _unmeasured(measure: str) -> Threshold:
    return Threshold(measure=measure, at_least=None, provenance=UNMEASURED)


# `python -m lab.bench.kernel_ops` on a GPU prints the ratios that belong here. No kernel is
# switched on before it has been timed.
THRESHOLDS: Mapping[str, Threshold] = MappingProxyType(
    {
        "symmetric_product": _unmeasured("rows"),
        "top_singular": _unmeasured("elements"),
        "row_cosine": _unmeasured("elements"),
        "router_statistics": _unmeasured("elements"),
        "normal_fill": _unmeasured("elements"),
    }
)

# The module is looked up, not imported: a broken triton must not break a run on the CPU.
_HAS_TRITON = importlib.util.find_spec("triton") is not None

_mode: str | None = None
_choices: dict[Choice, None] = {}  # a dict, because it keeps the order of first use


def mode() -> str:
    """Return the value of `RKSP_KERNELS`, which is read once.

    Raises:
        InputError: The value is not `auto`, `reference` or `triton`.
    """
    global _mode
    if _mode is None:
        value = os.environ.get("RKSP_KERNELS", "auto")
        if value not in MODES:
            raise InputError(
                f"RKSP_KERNELS must be one of {', '.join(MODES)}, got {value!r}"
                f"{nearest(value, MODES)}. Correct or unset it."
            )
        _mode = value
    return _mode


def forget() -> None:
    """Forget the mode and the recorded choices, as in a fresh process."""
    global _mode
    _mode = None
    _choices.clear()


def interpreting() -> bool:
    """Tell whether programs run in Triton's interpreter, on CPU tensors (`TRITON_INTERPRET=1`)."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def choose(op: str, *tensors: Tensor, limit: str | None = None) -> Choice:
    """Decide which implementation runs on `tensors`, and record it for `explain`.

    Args:
        op: A key of `THRESHOLDS`.
        *tensors: The operation's inputs; the first one is measured against the threshold.
        limit: What prevents the kernel in this call, if the operation knows of something.

    Returns:
        The choice. A choice made while `torch.compile` traces is not recorded.

    Raises:
        InputError: `RKSP_KERNELS=triton`, but Triton cannot run on these tensors.
    """
    wanted = mode()
    if wanted == "reference":
        implementation, reason = "reference", "RKSP_KERNELS=reference"
    else:
        obstacle = limit or _obstacle(tensors)
        if wanted == "triton":
            if obstacle is not None:
                raise InputError(
                    f"RKSP_KERNELS=triton, but {op} cannot run in Triton: {obstacle}. "
                    "Set RKSP_KERNELS=auto."
                )
            unmeasured = "" if THRESHOLDS[op].at_least else "; unmeasured on a GPU"
            implementation, reason = "triton", f"RKSP_KERNELS=triton{unmeasured}"
        elif obstacle is not None:
            implementation, reason = "reference", obstacle
        elif not tensors[0].is_cuda:
            implementation, reason = "reference", "tensors on the CPU"
        else:
            implementation, reason = _by_size(THRESHOLDS[op], tensors[0])
    choice = Choice(op=op, implementation=implementation, reason=reason)
    if not torch.compiler.is_compiling():
        _choices[choice] = None
    return choice


def explain() -> list[Choice]:
    """Return every distinct choice made in this process, in the order of first use."""
    return list(_choices)


def _obstacle(tensors: tuple[Tensor, ...]) -> str | None:
    """Return why Triton cannot run on these tensors; None if it can."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return "gradients are required and the kernel has no backward"
    if any(tensor.dtype == torch.float64 for tensor in tensors):
        return "float64 tensors"
    if all(tensor.is_cuda for tensor in tensors):
        return None if _HAS_TRITON else "triton is not installed"
    if not all(tensor.device.type == "cpu" for tensor in tensors):
        return "tensors on different devices or on one that is not CUDA"
    return None if interpreting() else "tensors on the CPU"


def _by_size(threshold: Threshold, tensor: Tensor) -> tuple[str, str]:
    if threshold.at_least is None:
        return "reference", threshold.provenance
    size = tensor.numel() if threshold.measure == "elements" else tensor.shape[-2]
    if size < threshold.at_least:
        return "reference", f"{threshold.measure} below {threshold.at_least}"
    return "triton", f"{threshold.measure} at least {threshold.at_least}"
