"""Show what a stranger's installation resolves to on the plain package index.

    python .ci/resolve.py [--python 3.11 3.12 3.13 3.14]

It uses no configuration and no variable of this machine, resolves the newest and the lowest
versions of every direct dependency from wheels alone, and adds up the download. The CPU route
counts torch without the CUDA packages: the size of its CPU wheel is that of `--torch-cpu-mb`.
No interpreter of a version is needed to resolve for it; `first_minutes.py` installs for real.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[1]
_CUDA = ("nvidia-", "cuda-", "triton", "torch")


def _plain() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "UV_"))}
    return kept | {"PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "1"}


def _resolve(python: str, resolution: str) -> list[str]:
    command = ["uv", "pip", "compile", "--quiet", "--no-build", "--no-header", "--no-annotate"]
    command += ["--resolution", resolution, "--python-version", python]
    command += ["--python-platform", "x86_64-manylinux_2_28", "pyproject.toml"]
    if resolution == "highest":
        command += ["--constraint", "constraints.txt"]
    done = subprocess.run(command, cwd=ROOT, env=_plain(), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"Python {python}, {resolution}: {done.stderr.strip()}")
    return [line.split(";")[0].strip() for line in done.stdout.splitlines() if "==" in line]


def _megabytes(pins: list[str], python: str) -> dict[str, float]:
    """Return the size of each wheel, asked of the index and not downloaded."""
    with tempfile.TemporaryDirectory() as folder:
        listed, report = Path(folder) / "pins.txt", Path(folder) / "report.json"
        listed.write_text("\n".join(pins))
        command = [sys.executable, "-m", "pip", "install", "-qq", "--dry-run", "--no-deps"]
        command += ["--ignore-installed", "--only-binary=:all:", "--python-version", python]
        command += ["--ignore-requires-python", "--target", folder, "--report", str(report)]
        for platform in [*(f"manylinux_2_{n}" for n in range(34, 4, -1)), "manylinux2014"]:
            command += ["--platform", f"{platform}_x86_64"]
        subprocess.run([*command, "-r", str(listed)], env=_plain(), check=True)
        items = json.loads(report.read_text())["install"]
    sizes = {}
    for item in items:
        request = urllib.request.Request(item["download_info"]["url"], method="HEAD")
        with urllib.request.urlopen(request, timeout=60) as answer:
            sizes[item["metadata"]["name"]] = int(answer.headers["Content-Length"]) / 1e6
    return sizes


def main() -> None:
    """Print one line for each Python and resolution."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", nargs="+", default=["3.11", "3.12", "3.13", "3.14"])
    parser.add_argument("--torch-cpu-mb", type=float, default=190.0)
    asked = parser.parse_args()
    for python in asked.python:
        for resolution in ("highest", "lowest-direct"):
            start = time.monotonic()
            print(f"Python {python}, {resolution}:", end=" ", flush=True)
            pins = _resolve(python, resolution)
            print(f"{len(pins)} packages", end="", flush=True)
            if resolution == "highest":
                sizes = _megabytes(pins, python)
                rest = sum(mb for name, mb in sizes.items() if not name.startswith(_CUDA))
                print(f", {sum(sizes.values()):.0f} MB with CUDA", end="")
                print(f", {rest + asked.torch_cpu_mb:.0f} MB with torch for the CPU", end="")
            print(f" ({time.monotonic() - start:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
