"""Which implementation runs, and that a compiled step keeps one graph."""

from __future__ import annotations

import pytest
import torch
from support.kernel_cases import states

from rksp.ground.errors import InputError
from rksp.kernels.newton_schulz import polar_factor
from rksp.kernels.power_iteration import takes_triton, top_singular
from rksp.watch.monitors.routers import expert_load, router_entropy
from rksp.watch.monitors.weights import alignment


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.delenv("RKSP_KERNELS", raising=False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


@pytest.mark.parametrize("mode", ["auto", "reference"])
def test_the_reference_runs_unless_triton_is_asked_for(mode, monkeypatch):
    monkeypatch.setenv("RKSP_KERNELS", mode)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert not takes_triton([states(2, 3)])
    assert top_singular([states(2, 3)]).is_finite.all()


def test_triton_where_it_cannot_run_is_an_error(monkeypatch):
    monkeypatch.setenv("RKSP_KERNELS", "triton")
    with pytest.raises(InputError, match="top_singular cannot run in Triton: tensors on the"):
        top_singular([states(2, 3)])
    with pytest.raises(InputError, match="float64"):
        top_singular([states(2, 3).double()])
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert takes_triton([states(2, 3)])


def test_an_unknown_mode_is_an_error(monkeypatch):
    monkeypatch.setenv("RKSP_KERNELS", "tritn")
    with pytest.raises(InputError, match="did you mean triton"):
        top_singular([states(1, 1)])


STEPS = {
    "polar_factor": lambda x: polar_factor(x, 3),
    "alignment": lambda x: alignment(x, x[:2]),
    "router_entropy": lambda x: router_entropy(x, is_sigmoid=True),
    "expert_load": lambda x: expert_load(x, 2),
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("is_dynamic", [False, True])
def test_a_compiled_step_is_one_graph(step, is_dynamic):
    torch.compiler.reset()
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph

    compiled = torch.compile(step, fullgraph=True, backend=backend, dynamic=is_dynamic)
    for rows in (6, 9):
        torch.testing.assert_close(compiled(states(rows, 8)), step(states(rows, 8)))
    assert graphs


def test_unknown_attributes_are_refused():
    import rksp.kernels as package

    with pytest.raises(AttributeError, match="nothing_here"):
        _ = package.nothing_here
