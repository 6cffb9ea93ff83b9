"""Measure a stranger's first minutes: the README's command, from nothing to a verdict.

    python .ci/first_minutes.py [--python 3.11 3.12 3.13 3.14] [--route index cpu]

For each Python that this machine has, the script exports the commit into an empty folder, runs
the README's command there word by word, compares the verdict with the README's sample, and prints
megabytes and seconds. pip and uv see no configuration and no variable of this machine. All they
download passes through a tunnel that counts bytes. `--torch-wheels FOLDER` stands in for PyTorch's
own index where that cannot be reached; the bytes of the wheel that was installed are counted too.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
_KEPT = ("LANG", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
_INSTALLED = "--- installed"
_CPU = "--torch-backend=cpu"


class _Tunnel(socketserver.ThreadingTCPServer):
    """An HTTP proxy that passes encrypted connections on and counts what comes back."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.received = 0
        self.lock = threading.Lock()


class _Connection(socketserver.StreamRequestHandler):
    server: _Tunnel

    def handle(self) -> None:
        """Connect to the host that the client names, and copy both directions until one ends."""
        verb, address, _ = self.rfile.readline().decode().split()
        while self.rfile.readline().strip():
            pass
        if verb != "CONNECT":
            self.wfile.write(b"HTTP/1.1 405 Only CONNECT\r\n\r\n")
            return
        host, port = address.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=60) as remote:
            remote.settimeout(None)
            self.wfile.write(b"HTTP/1.1 200 Connected\r\n\r\n")
            back = threading.Thread(target=self._back, args=(remote,), daemon=True)
            back.start()
            while sent := self.rfile.read1(65536):
                remote.sendall(sent)
            remote.shutdown(socket.SHUT_WR)
            back.join()

    def _back(self, remote: socket.socket) -> None:
        try:
            while came := remote.recv(65536):
                with self.server.lock:
                    self.server.received += len(came)
                self.wfile.write(came)
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the client has what it wants


@contextmanager
def _tunnel() -> Iterator[_Tunnel]:
    with _Tunnel() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def interpreter(version: str) -> tuple[str, str] | None:
    """Return the path and the full version of a Python of this machine, or None."""
    candidates = [shutil.which(f"python{version}"), sys.executable]
    candidates += sorted(map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python")))
    asked = "import sys; print(sys._base_executable, sys.version.split()[0])"
    for path in filter(None, candidates):
        told = subprocess.run([path, "-c", asked], capture_output=True, text=True).stdout.split()
        if len(told) == 2 and told[1].startswith(f"{version}."):
            return told[0], told[1]
    return None


def readme_commands() -> dict[str, str]:
    """Return the README's commands that install and score, for each route."""
    text = (ROOT / "README.md").read_text()
    found = [line for line in text.splitlines() if line.startswith("python3 -m venv")]
    scored = [line for line in found if " && rksp score " in line]
    return {"cpu" if _CPU in line else "index": line for line in scored}


def _sample() -> str:
    return re.search(r"^(\w[\w ]*?)  P\(failed\)", (ROOT / "README.md").read_text(), re.M)[1]


def _environment(folder: Path, python: str, port: int) -> dict[str, str]:
    """Return an environment with one Python, an empty home, and no settings of pip or uv."""
    tools = folder / "bin"
    tools.mkdir()
    (tools / "python3").write_text(f'#!/bin/sh\nexec {python} "$@"\n')
    (tools / "python3").chmod(0o755)
    proxy = f"http://127.0.0.1:{port}"
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return kept | {
        "PATH": f"{tools}:/usr/bin:/bin",
        "HOME": str(folder),
        "COLUMNS": "100",
        "PIP_CONFIG_FILE": os.devnull,
        "UV_NO_CONFIG": "1",
        "HTTPS_PROXY": proxy,
        "https_proxy": proxy,
    }


def _megabytes_in(folder: Path) -> float:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files) / 1e6


def _processor_seconds() -> float:
    used = os.times()
    return used.children_user + used.children_system


def _export(folder: Path) -> Path:
    source = folder / "rksp"
    source.mkdir()
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE)
    subprocess.run(["tar", "x", "-C", str(source)], input=archive.stdout, check=True)
    return source


def _wheel_megabytes(wheels: Path | None, source: Path) -> float:
    """Return the size of the stand-in wheel that was installed."""
    if wheels is None:
        return 0.0
    (installed,) = source.glob(".venv/lib/python*/site-packages/torch-*.dist-info")
    stem = installed.name.removesuffix(".dist-info")
    tag = installed.parents[1].name.replace("python", "cp").replace(".", "")
    return sum(p.stat().st_size for p in wheels.glob(f"{stem}-{tag}-*.whl")) / 1e6


def measure(version: str, route: str, wheels: Path | None) -> str:
    """Run one route with one Python and return its line; raise SystemExit where it fails."""
    found = interpreter(version)
    if found is None:
        return f"Python {version}, {route}: not on this machine"
    python, full = found
    install, score = readme_commands()[route].rsplit(" && ", 1)
    if route == "cpu" and wheels:
        install = install.replace(_CPU, f"-f {wheels}")
    print(f"Python {full}, {route}: {install} && {score}", flush=True)
    with tempfile.TemporaryDirectory() as folder, _tunnel() as tunnel:
        source = _export(Path(folder))
        environment = _environment(Path(folder), python, tunnel.server_address[1])
        log, begun, installed, before = [], time.monotonic(), 0.0, _processor_seconds()
        with subprocess.Popen(
            ["bash", "-c", f"{install} && echo '{_INSTALLED}' && {score}"],
            cwd=source, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ) as running:  # fmt: skip
            for line in running.stdout:
                log.append(line)
                if line.strip() == _INSTALLED:
                    installed = time.monotonic() - begun
                    print(f"  installed after {installed:.0f} s", flush=True)
        verdict = [line for line in log if re.match(r"\w[\w ]*?  P\(failed\)", line)]
        if running.returncode or not verdict or not verdict[0].startswith(f"{_sample()}  P"):
            wrong = f"Python {full}, {route}: no verdict as in README"
            raise SystemExit("".join(log[-40:]) + wrong)
        local = _wheel_megabytes(wheels if route == "cpu" else None, source)
        return (
            f"  {verdict[0].strip()}\n"
            f"  {tunnel.received / 1e6 + local:,.0f} MB downloaded, "
            f"{_megabytes_in(source / '.venv'):,.0f} MB installed, {installed:.0f} s to install, "
            f"{time.monotonic() - begun - installed:.0f} s to the verdict, "
            f"{_processor_seconds() - before:.0f} processor s in all"
        )


def main() -> None:
    """Print the measurement of each Python and route as it ends."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", nargs="+", default=["3.11", "3.12", "3.13", "3.14"])
    parser.add_argument("--route", nargs="+", default=["index", "cpu"], choices=["index", "cpu"])
    parser.add_argument("--torch-wheels", type=Path)
    asked = parser.parse_args()
    for version in asked.python:
        for route in asked.route:
            print(measure(version, route, asked.torch_wheels), flush=True)


if __name__ == "__main__":
    main()
