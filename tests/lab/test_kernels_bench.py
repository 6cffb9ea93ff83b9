"""The benchmark of the Triton program times the same work in each implementation."""

from __future__ import annotations

from support.benchmark_scripts import script

bench = script("kernel_ops")


def test_times_on_the_cpu():
    small, large = (bench.timed(2, width, "cpu", seconds=0.01) for width in (8, 256))
    assert set(small) == {"library", "reference"}
    assert 0 < small["reference"] < large["reference"]
