"""Which implementation runs, and that a compiled step keeps one graph."""

from __future__ import annotations

import pytest
import torch
from support.kernel_cases import states

from rksp.ground.errors import InputError
from rksp.kernels import dispatch
from rksp.kernels.newton_schulz import polar_factor
from rksp.kernels.router_statistics import router_statistics
from rksp.kernels.row_cosine import row_cosine


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.delenv("RKSP_KERNELS", raising=False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    dispatch.forget()
    yield
    dispatch.forget()


@pytest.mark.parametrize("mode", ["auto", "reference"])
def test_the_reference_runs_unless_triton_is_asked_for(mode, monkeypatch):
    monkeypatch.setenv("RKSP_KERNELS", mode)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert not dispatch.takes_triton("row_cosine", states(2, 3))
    assert row_cosine(states(2, 3), states(3)).rows.tolist() == [2]


def test_triton_where_it_cannot_run_is_an_error(monkeypatch):
    monkeypatch.setenv("RKSP_KERNELS", "triton")
    with pytest.raises(InputError, match="router_statistics cannot run in Triton: tensors on the"):
        router_statistics(states(2, 3))
    with pytest.raises(InputError, match="float64"):
        router_statistics(states(2, 3).double())
    with pytest.raises(InputError, match="more than 2048 experts"):
        router_statistics(states(2, 2049))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert dispatch.takes_triton("router_statistics", states(2, 3))


def test_an_unknown_mode_is_an_error(monkeypatch):
    monkeypatch.setenv("RKSP_KERNELS", "tritn")
    with pytest.raises(InputError, match="did you mean triton"):
        dispatch.takes_triton("row_cosine", states(1))


def test_the_mode_is_read_at_the_first_dispatch_and_not_again(monkeypatch):
    assert dispatch.mode() == "auto"
    monkeypatch.setenv("RKSP_KERNELS", "reference")
    assert dispatch.mode() == "auto"


STEPS = {
    "polar_factor": lambda x: polar_factor(x, 3),
    "row_cosine": lambda x: row_cosine(x, x[0]).total_squares,
    "row_cosine_histogram": lambda x: row_cosine(x, x[:2]).histogram,
    "router_entropy": lambda x: router_statistics(x, 2).entropy,
    "router_load": lambda x: router_statistics(x, 2, is_sigmoid=True).load,
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("is_dynamic", [False, True])
def test_a_compiled_step_on_the_cpu_traces_to_the_reference(step, is_dynamic):
    torch.compiler.reset()
    names = []

    def backend(graph, _):
        calls = (node for node in graph.graph.nodes if node.op == "call_function")
        names.extend(str(node.target) for node in calls)
        return graph

    compiled = torch.compile(step, fullgraph=True, backend=backend, dynamic=is_dynamic)
    for rows in (6, 9):
        torch.testing.assert_close(compiled(states(rows, 8)), step(states(rows, 8)))
    assert names and not any("rksp" in name for name in names)


def test_a_compiled_step_trains():
    torch.compiler.reset()
    weight = states(6, 8, seed=2).requires_grad_()

    def loss(weight, x):
        return router_statistics(x @ weight, 2).entropy.square().mean()

    x = states(5, 6, seed=3)
    torch.compile(loss, fullgraph=True, backend="aot_eager")(weight, x).backward()
    compiled, weight.grad = weight.grad, None
    loss(weight, x).backward()
    torch.testing.assert_close(weight.grad, compiled)
    assert compiled.abs().max() > 0


def test_unknown_attributes_are_refused():
    import rksp.kernels as package

    assert package.dispatch is dispatch
    with pytest.raises(AttributeError, match="nothing_here"):
        _ = package.nothing_here
