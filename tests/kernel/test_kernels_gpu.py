"""The same checks as in the interpreter, on a CUDA device and at sizes that users meet."""

from __future__ import annotations

import pytest
import torch
from support import kernel_cases as cases

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]


@cases.by_dtype_and_layout
@pytest.mark.parametrize("shape", [(1024, 4096), (333, 130)], ids=str)
def test_top_singular(dtype, shape, layout):
    cases.check_top_singular("cuda", dtype, shape, layout)
