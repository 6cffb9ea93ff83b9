"""What a score loads before it measures anything, in multiples of `import torch`."""

from __future__ import annotations

import subprocess
import sys

# The second and the fourth are what transformers itself loads, a lower bound of the lines after.
_CODE = {
    "import torch": "import torch",
    "a configuration alone": "from transformers.models.gpt2 import configuration_gpt2",
    "load for --evidence config": (
        "import rksp.assessment.pipeline, rksp.assessment.report; "
        "from rksp.models.resolve import resolve; "
        "resolve('gpt2', counts=False)"
    ),
    "a model class alone": "from transformers.models.gpt2 import modeling_gpt2",
    "load for a score": (
        "import rksp.assessment.measuring, rksp.assessment.measured, rksp.assessment.report; "
        "from rksp.models.resolve import resolve; "
        "resolve('gpt2')"
    ),
}
_CLOCK = "import gc, time; gc.disable(); {}; print(time.process_time())"


def import_cost(rounds: int = 1) -> list[dict[str, object]]:
    """Time imports in processes of their own.

    Args:
        rounds: The least of so many measurements counts.

    Returns:
        A row a purpose: `stage`, `seconds` of processor time with the interpreter's own start, and
        `torches`, the ratio to `import torch` alone.
    """
    seconds = {name: min(_run(code) for _ in range(rounds)) for name, code in _CODE.items()}
    torch = seconds["import torch"]
    return [
        {"stage": name, "seconds": value, "torches": value / torch}
        for name, value in seconds.items()
    ]


def _run(code: str) -> float:
    command = [sys.executable, "-c", _CLOCK.format(code)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
