"""The Triton program in Triton's interpreter.

pytest does not collect this file. test_kernels_interpreter.py runs it in a process of its own,
because TRITON_INTERPRET must be set before triton is imported.
"""

from __future__ import annotations

import pytest
import torch
from support import kernel_cases as cases

from rksp.ground.errors import InputError
from rksp.kernels import power_iteration as power
from rksp.kernels import programs


@cases.by_dtype_and_layout
@pytest.mark.parametrize("shape", [(40, 33), (33, 70), (1, 9), (2, 1)], ids=str)
def test_top_singular(dtype, shape, layout):
    cases.check_top_singular("cpu", dtype, shape, layout)


@pytest.mark.parametrize("mode", ["auto", "triton"])
def test_the_program_runs_where_it_is_asked_for(mode, monkeypatch):
    monkeypatch.setenv("RKSP_KERNELS", mode)
    launched, original = [], programs.power_pass

    class Program:
        def __getitem__(self, grid):
            launched.append(grid)
            return original[grid]

    monkeypatch.setattr(programs, "power_pass", Program())
    power.top_singular([cases.states(9, 8)], iterations=1)
    assert bool(launched) == (mode == "triton")


def test_triton_refuses_float64_and_takes_weights_that_train(monkeypatch):
    monkeypatch.setenv("RKSP_KERNELS", "triton")
    with pytest.raises(InputError, match="float64"):
        power.top_singular([torch.ones(3, 3).double()])
    # No gradient is ever returned.
    found = power.top_singular([torch.ones(3, 3, requires_grad=True)], iterations=1)
    assert found.sigma.item() == pytest.approx(3, rel=1e-5)
