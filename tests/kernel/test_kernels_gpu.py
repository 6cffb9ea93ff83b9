"""The same checks as in the interpreter, on a CUDA device and at sizes that users meet."""

from __future__ import annotations

import pytest
import torch
from support import kernel_cases as cases

from rksp.kernels import dispatch
from rksp.kernels import newton_schulz as newton

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]


@cases.by_dtype_and_layout
@pytest.mark.parametrize("shape", [(1024, 2048), (7, 333, 130)], ids=str)
def test_symmetric_product(dtype, shape, layout):
    cases.check_symmetric_product("cuda", dtype, shape, layout)


@pytest.mark.parametrize("shape", [(256, 512), (3, 333, 130)], ids=str)
def test_polar_factor(shape):
    cases.check_polar_factor("cuda", torch.float32, shape)


@cases.by_dtype_and_layout
@pytest.mark.parametrize("shape", [(1024, 4096), (333, 130)], ids=str)
def test_top_singular(dtype, shape, layout):
    cases.check_top_singular("cuda", dtype, shape, layout)


@cases.by_dtype_and_layout
@pytest.mark.parametrize("shape", [(65536, 1024), (333, 130)], ids=str)
@pytest.mark.parametrize("vectors", [1, 4, 16])
def test_row_cosine(dtype, shape, vectors, layout):
    cases.check_row_cosine("cuda", dtype, shape, vectors, layout)


@cases.by_dtype_and_layout
@pytest.mark.parametrize(("shape", "top_k"), [((65536, 256), 8), ((333, 60), 4)], ids=str)
@pytest.mark.parametrize("is_sigmoid", [False, True], ids=["softmax", "sigmoid"])
def test_router_statistics(dtype, shape, top_k, is_sigmoid, layout):
    cases.check_router_statistics("cuda", dtype, shape, top_k, is_sigmoid, layout)


def test_symmetric_product_past_two_to_the_31_elements():
    if torch.cuda.get_device_properties(0).total_memory < 40 << 30:
        pytest.skip("needs 40 GiB of GPU memory for a stack of more than 2^31 elements")
    stack = torch.zeros(2100, 256, 4096, dtype=torch.bfloat16, device="cuda")
    stack[-1] = cases.states(256, 4096, device="cuda", dtype=torch.bfloat16)
    result = newton.symmetric_product_triton(stack)
    last = stack[-1].double()
    cases.assert_as_good(result[-1], stack[-1] @ stack[-1].mT, last @ last.mT)


def test_compiled_step(monkeypatch):
    monkeypatch.setenv("RKSP_KERNELS", "triton")
    dispatch.forget()
    x = cases.states(64, 96, device="cuda")
    step = lambda x: newton.polar_factor(x, 4)
    with torch.no_grad():
        compiled = torch.compile(step, fullgraph=True)(x)
        torch.testing.assert_close(compiled, step(x), rtol=1e-3, atol=1e-4)
    dispatch.forget()
