"""The settings and fixtures of all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

# Before torch and numpy load: threads that wait for each other cost more than they give here.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    import torch

    torch.set_num_threads(1)
    yield
    torch.set_num_threads(1)
