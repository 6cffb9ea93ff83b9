"""The Triton program compiles to machine code of two GPU generations, without a GPU."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

import pytest

triton = pytest.importorskip("triton", reason="triton is not installed")

POINTERS = {"addresses": "*i64", "basis": "*fp32", "left": "*fp32", "partial": "*fp32"}
CONSTANTS = {"BLOCK": 4, "PAD": 16, "BLOCK_M": 32, "BLOCK_N": 64}


def assembler() -> bool:
    bundled = Path(sysconfig.get_paths()["platlib"]) / "triton/backends/nvidia/bin/ptxas"
    return bundled.exists() or shutil.which("ptxas") is not None


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.parametrize("generation", [80, 90])
def test_program_compiles(generation, monkeypatch, tmp_path):
    if not assembler():
        pytest.skip("this triton brings no ptxas")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from rksp.kernels.programs import power_pass

    constants = CONSTANTS | {"DTYPE": triton.language.bfloat16}
    signature = {
        name: "constexpr" if name in constants else POINTERS.get(name, "i32")
        for name in power_pass.arg_names
    }
    compiled = triton.compile(
        ASTSource(power_pass, signature, constexprs=constants),
        target=GPUTarget("cuda", generation, 32),
        options={"num_warps": 4},
    )
    assert len(compiled.asm["cubin"]) > 0
    # The shared memory of one block: 163 KiB on an A100, 227 KiB on an H100.
    assert compiled.metadata.shared <= {80: 163, 90: 227}[generation] * 1024
