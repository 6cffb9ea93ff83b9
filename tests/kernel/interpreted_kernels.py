"""Triton programs in Triton's interpreter.

pytest does not collect this file. test_kernels_interpreter.py runs it in a process of its own,
because TRITON_INTERPRET must be set before triton is imported.
"""

from __future__ import annotations

import pytest
import torch
from support import kernel_cases as cases

from rksp.ground.errors import InputError
from rksp.kernels import dispatch, programs
from rksp.kernels import newton_schulz as newton
from rksp.kernels import power_iteration as power
from rksp.kernels import router_statistics as router
from rksp.kernels import row_cosine as cosine


@cases.by_dtype_and_layout
@pytest.mark.parametrize("shape", [(33, 65), (2, 17, 40), (1, 5), (2, 2, 8, 3)], ids=str)
def test_symmetric_product(dtype, shape, layout):
    cases.check_symmetric_product("cpu", dtype, shape, layout)


@pytest.mark.parametrize("tile", [(16, 32), (32, 16)], ids=str)
def test_symmetric_product_with_oblong_tiles(tile):
    a = cases.states(50, 20)
    out = torch.full((50, 50), float("nan"))
    blocks = -(-50 // tile[0]) * -(-50 // tile[1])
    programs.symmetric_product[(blocks,)](
        a, out, 50, 20, 0.0, 1.0, 0, *a.stride(),
        ADD=False, INTERPRET=True, BLOCK_M=tile[0], BLOCK_N=tile[1], BLOCK_K=16,
    )  # fmt: skip
    torch.testing.assert_close(out, a @ a.mT)


def test_symmetric_product_of_nothing():
    assert newton.symmetric_product_triton(torch.zeros(0, 3, 4)).shape == (0, 3, 3)
    assert torch.equal(newton.symmetric_product_triton(torch.zeros(3, 0)), torch.zeros(3, 3))


@pytest.mark.parametrize("shape", [(20, 33), (33, 20), (2, 16, 16), (1, 6)], ids=str)
def test_polar_factor(shape):
    cases.check_polar_factor("cpu", torch.float32, shape)


@cases.by_dtype_and_layout
@pytest.mark.parametrize("shape", [(40, 33), (33, 70), (1, 9), (2, 1)], ids=str)
def test_top_singular(dtype, shape, layout):
    cases.check_top_singular("cpu", dtype, shape, layout)


@cases.by_dtype_and_layout
@pytest.mark.parametrize("shape", [(70, 33), (1, 65), (33, 130)], ids=str)
@pytest.mark.parametrize("vectors", [1, 16])
def test_row_cosine(dtype, shape, vectors, layout):
    cases.check_row_cosine("cpu", dtype, shape, vectors, layout)


def test_row_cosine_of_no_row():
    result = cosine.row_cosine_triton(torch.zeros(0, 5), torch.ones(2, 5))
    assert result.rows.tolist() == [0, 0]


@cases.by_dtype_and_layout
@pytest.mark.parametrize(("shape", "top_k"), [((70, 8), 2), ((33, 5), 5), ((1, 1), 1)], ids=str)
@pytest.mark.parametrize("is_sigmoid", [False, True], ids=["softmax", "sigmoid"])
def test_router_statistics(dtype, shape, top_k, is_sigmoid, layout):
    cases.check_router_statistics("cpu", dtype, shape, top_k, is_sigmoid, layout)


def test_router_statistics_of_no_token():
    result = router.router_statistics_triton(torch.zeros(0, 4))
    assert result.entropy.shape == (0,) and result.load.tolist() == [0, 0, 0, 0]


CALLS = {
    "symmetric_product": lambda x: newton.polar_factor(x),
    "top_singular": lambda x: power.top_singular([x], iterations=1),
    "row_cosine": lambda x: cosine.row_cosine(x, x[0]),
    "router_statistics": lambda x: router.router_statistics(x),
}


@pytest.mark.parametrize("op", CALLS)
@pytest.mark.parametrize("mode", ["auto", "triton"])
def test_path(op, mode, monkeypatch):
    monkeypatch.setenv("RKSP_KERNELS", mode)
    dispatch.forget()
    launched = []
    program = {"top_singular": "power_pass"}.get(op, op)

    class Program:
        def __getitem__(self, grid):
            launched.append(op)
            return original[grid]

    original = getattr(programs, program)
    monkeypatch.setattr(programs, program, Program())
    CALLS[op](cases.states(9, 8))
    assert bool(launched) == (mode == "triton")
    dispatch.forget()


def test_forced_triton_refuses_gradients_and_float64(monkeypatch):
    monkeypatch.setenv("RKSP_KERNELS", "triton")
    dispatch.forget()
    with pytest.raises(InputError, match="no backward"):
        router.router_statistics(torch.zeros(2, 3, requires_grad=True))
    with pytest.raises(InputError, match="float64"):
        router.router_statistics(torch.zeros(2, 3).double())
    with pytest.raises(InputError, match="more than 2048 experts"):
        router.router_statistics(torch.zeros(2, 2049))
    # Weights that train are no obstacle where no gradient is ever returned.
    found = power.top_singular([torch.ones(3, 3, requires_grad=True)], iterations=1)
    assert found.sigma.item() == pytest.approx(3, rel=1e-5)
    dispatch.forget()


CHECKS = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")


def test_opcheck():
    for a in (cases.states(3, 5), cases.states(2, 5, 3).mT, cases.states(0, 4, 3)):
        torch.library.opcheck(newton._operator, (a, 0.0, 1.0), test_utils=CHECKS)


def test_compiled_step_calls_the_operator(monkeypatch):
    monkeypatch.setenv("RKSP_KERNELS", "triton")
    dispatch.forget()
    x = cases.states(6, 8)
    step = lambda x: newton.polar_factor(x, 2)
    operators = []

    def backend(graph, _):
        operators.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    with torch.no_grad():
        compiled = torch.compile(step, fullgraph=True, backend=backend)(x)
        torch.testing.assert_close(compiled, step(x))
    assert any("rksp." in name for name in operators)
    dispatch.forget()
