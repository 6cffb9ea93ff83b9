"""Choose which implementation of an operation runs: its reference or its Triton kernel.

`RKSP_KERNELS` is read at the first choice: `auto` (the default) and `reference` never take Triton,
since no GPU run has measured it to be faster yet; `triton` always does, or raises.
"""

from __future__ import annotations

import importlib.util
import os

import torch
from torch import Tensor

from rksp.ground.errors import InputError, nearest

MODES = ("auto", "reference", "triton")


_mode: str | None = None  # no cache: a compiler traces through


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
    """Forget the mode, as in a fresh process."""
    global _mode
    _mode = None


def interpreting() -> bool:
    """Tell whether programs run in Triton's interpreter, on CPU tensors (`TRITON_INTERPRET=1`)."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def takes_triton(op: str, *tensors: Tensor, limit: str | None = None) -> bool:
    """Decide whether the kernel of an operation runs on `tensors`.

    Args:
        op: Name of the operation, for the message.
        *tensors: The operation's inputs.
        limit: What prevents the kernel in this call, if the operation knows of something.

    Raises:
        InputError: `RKSP_KERNELS=triton`, but Triton cannot run on these tensors.
    """
    if mode() != "triton":
        return False
    if obstacle := limit or _obstacle(tensors):
        raise InputError(
            f"RKSP_KERNELS=triton, but {op} cannot run in Triton: {obstacle}. "
            "Set RKSP_KERNELS=auto."
        )
    return True


def _obstacle(tensors: tuple[Tensor, ...]) -> str | None:
    """Return why Triton cannot run on these tensors; None if it can."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return "gradients are required and the kernel has no backward"
    if any(tensor.dtype == torch.float64 for tensor in tensors):
        return "float64 tensors"
    if all(tensor.is_cuda for tensor in tensors):
        # Looked up, not imported: a broken triton must not break a run on the CPU.
        return None if importlib.util.find_spec("triton") else "triton is not installed"
    if not all(tensor.device.type == "cpu" for tensor in tensors):
        return "tensors on different devices or on one that is not CUDA"
    return None if interpreting() else "tensors on the CPU"
