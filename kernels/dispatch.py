"""Choose whether an operation runs in plain torch or in Triton.

`RKSP_KERNELS` decides: `auto` (the default) and `reference` take plain torch, since no GPU run has
measured Triton to be faster yet; `triton` takes Triton, or raises.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable

import torch
from torch import Tensor

from rksp.ground.errors import InputError, nearest

MODES = ("auto", "reference", "triton")


def takes_triton(op: str, tensors: Iterable[Tensor]) -> bool:
    """Decide whether the Triton program of an operation runs on `tensors`.

    Args:
        op: Name of the operation, for the message.
        tensors: The operation's inputs, of which no gradient is asked.

    Raises:
        InputError: `RKSP_KERNELS` is not a mode, or it is `triton` and Triton cannot run on these
            tensors.
    """
    mode = os.environ.get("RKSP_KERNELS", "auto")
    if mode not in MODES:
        raise InputError(
            f"RKSP_KERNELS must be one of {', '.join(MODES)}, got {mode!r}{nearest(mode, MODES)}. "
            "Correct or unset it."
        )
    if mode != "triton":
        return False
    if obstacle := _obstacle(list(tensors)):
        raise InputError(
            f"RKSP_KERNELS=triton, but {op} cannot run in Triton: {obstacle}. "
            "Set RKSP_KERNELS=auto."
        )
    return True


def _obstacle(tensors: list[Tensor]) -> str | None:
    """Return why Triton cannot run on these tensors; None if it can."""
    if any(tensor.dtype == torch.float64 for tensor in tensors):
        return "float64 tensors"
    if all(tensor.is_cuda for tensor in tensors):
        # Looked up, not imported: a broken triton must not break a run on the CPU.
        return None if importlib.util.find_spec("triton") else "triton is not installed"
    if not all(tensor.device.type == "cpu" for tensor in tensors):
        return "tensors on different devices or on one that is not CUDA"
    # Triton's interpreter runs programs on tensors of the CPU.
    return None if os.environ.get("TRITON_INTERPRET") == "1" else "tensors on the CPU"
