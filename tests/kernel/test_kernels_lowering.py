"""Every Triton program compiles to machine code of two GPU generations, without a GPU."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

import pytest

triton = pytest.importorskip("triton", reason="triton is not installed")

STATES = {
    "symmetric_product": {"a", "out"},
    "row_cosine": {"x"},
    "router_statistics": {"logits"},
    "power_pass": set(),
}
FLOAT_POINTERS = (
    *("basis", "left", "partial", "vectors", "moments"),
    "entropies",
)
TYPES = {"addresses": "*i64", "counts": "*i32", "histogram": "*i32", "load": "*i32"}
TYPES |= dict.fromkeys(FLOAT_POINTERS, "*fp32")
TYPES |= dict.fromkeys(("alpha", "beta", "low", "high"), "fp32")
CONSTANTS = {
    "symmetric_product": {
        **{"ADD": True, "INTERPRET": False, "BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32}
    },
    "row_cosine": {"VECTORS": 2, "PAD": 16, "BLOCK_M": 32, "BLOCK_K": 64},
    "router_statistics": {"TOP_K": 2, "SIGMOID": True, "PAD": 16, "BLOCK_M": 32},
    "power_pass": {"BLOCK": 4, "PAD": 16, "BLOCK_M": 32, "BLOCK_N": 64},
}


def assembler() -> bool:
    bundled = Path(sysconfig.get_paths()["platlib"]) / "triton/backends/nvidia/bin/ptxas"
    return bundled.exists() or shutil.which("ptxas") is not None


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.parametrize("generation", [80, 90])
@pytest.mark.parametrize("name", STATES)
def test_program_compiles(name, generation, monkeypatch, tmp_path):
    if not assembler():
        pytest.skip("this triton brings no ptxas")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from rksp.kernels import programs

    program = getattr(programs, name)
    constants = dict(CONSTANTS[name])
    if name == "power_pass":
        constants["DTYPE"] = triton.language.bfloat16
    signature = {
        argument: "constexpr"
        if argument in constants
        else "*bf16"
        if argument in STATES[name]
        else TYPES.get(argument, "i32")
        for argument in program.arg_names
    }
    compiled = triton.compile(
        ASTSource(program, signature, constexprs=constants),
        target=GPUTarget("cuda", generation, 32),
        options={"num_warps": 4},
    )
    assert len(compiled.asm["cubin"]) > 0
    # The shared memory of one block: 163 KiB on an A100, 227 KiB on an H100.
    assert compiled.metadata.shared <= {80: 163, 90: 227}[generation] * 1024
