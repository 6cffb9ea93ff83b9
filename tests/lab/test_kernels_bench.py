"""The benchmark's rows."""

from __future__ import annotations

import json

import pytest
import torch
from support.benchmark_scripts import script

from rksp.ground.errors import InputError

bench = script("kernel_ops")
NO_GPU, run, to_markdown = bench.NO_GPU, bench.run, bench.to_markdown


@pytest.mark.parametrize("op", bench.OPERATIONS)
def test_rows_on_the_cpu(op):
    rows = run(device="cpu", ops=[op], repeats=3)
    assert {row["op"] for row in rows} == {op}
    for row in rows:
        assert 0 < row["ms_p20"] <= row["ms_p50"] <= row["ms_p80"]
        assert (row["gb_per_s"] is None) != (row["tflop_per_s"] is None)
        rate = row["gb_per_s"] or row["tflop_per_s"]
        assert row["share_of_ceiling"] == pytest.approx(rate / row["ceiling"])
        assert row["note"] == NO_GPU and row["torch"] == torch.__version__
        if row["implementation"] == "library":
            assert row["ratio_to_library"] == pytest.approx(1)
    assert {"library", "reference"} <= {row["implementation"] for row in rows}
    json.dumps(rows, allow_nan=False)
    text = to_markdown(rows)
    assert NO_GPU in text and text.count("\n| ") == len(rows) + 1


def test_the_benchmark_refuses():
    with pytest.raises(InputError, match="did you mean row_cosine"):
        run(ops=["row_cosin"])
    with pytest.raises(InputError, match="repeats"):
        run(repeats=1)
    with pytest.raises(InputError, match="device"):
        run(device="tpu")
    assert to_markdown([]) == "No measurement."
