"""Tensors that the tests of the kernels share."""

from __future__ import annotations

import torch
from torch import Tensor

# The tensors here are small, and on a busy machine more threads take longer than one.
torch.set_num_threads(1)

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def states(*shape: int, seed: int = 0) -> Tensor:
    """Return Gaussian values."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
