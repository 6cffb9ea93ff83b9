"""A compiled step keeps one graph."""

from __future__ import annotations

import pytest
import torch
from support.kernel_cases import states

from rksp.kernels.newton_schulz import polar_factor
from rksp.watch.monitors.routers import expert_load, router_entropy
from rksp.watch.monitors.weights import alignment

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
