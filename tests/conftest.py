"""The settings and fixtures of all tests."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import distributions
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from support.cpu_time import judge, stopwatch
from support.places import ROOT

# With the dependencies alone, without an installation of rksp, the checkout itself is tested.
if not [*distributions(name="rksp")]:
    os.environ["PYTHONPATH"] = str(ROOT)  # of the processes that tests start
sys.path.append(str(ROOT))  # for `lab`; last: its names hide no package

_tests = 0

# What collecting makes stays: to look for garbage in it took a third of that time.
gc.disable()

# What a test says does not depend on how busy the machine is.
settings.register_profile("rksp", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("rksp")

# Before torch and numpy load: threads that wait for each other cost more than they give here.
# `OMP_NUM_THREADS=4 pytest` tries the tests with others.
THREADS = int(os.environ.setdefault("OMP_NUM_THREADS", "1"))
os.environ.setdefault("MKL_NUM_THREADS", str(THREADS))

# No test asks the network: what it would fetch, it gives.
os.environ["HF_HUB_OFFLINE"] = "1"

# Nothing that a test measures is kept where a person's is, not even by a fixture of a module.
os.environ["RKSP_CACHE"] = tempfile.mkdtemp(prefix="rksp-tests-")
atexit.register(shutil.rmtree, os.environ["RKSP_CACHE"], ignore_errors=True)


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test finds what another has measured."""
    global _tests
    _tests += 1
    monkeypatch.setenv("RKSP_CACHE", str(tmp_path_factory.getbasetemp() / f"cache-{_tests}"))


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    import torch

    torch.set_num_threads(THREADS)
    yield
    torch.set_num_threads(THREADS)


def pytest_collection_finish() -> None:
    """Collect the garbage of tests from now on, and look no more at what was there before."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Let Python free all objects at its end; libraries complain of those that stay."""
    gc.unfreeze()


@pytest.fixture
def one_thread(_threads: None) -> None:
    """A stream multiplies on one thread, so what it is compared with does: sums have an order."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are NaN before they are drawn, so that no entry is left out unseen."""
    from rksp.models.streaming.weights import InitialWeights

    original = InitialWeights.jobs

    def poisoning(self: InitialWeights, name: str, out: Any, start: int | None = None) -> object:
        if out.is_floating_point():
            out.fill_(float("nan"))
        return original(self, name, out, start)

    monkeypatch.setattr(InitialWeights, "jobs", poisoning)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Return the number of processes of `-n auto`; a file is the work of one."""
    given = [argument for argument in config.args if ".py" in argument]
    if given and len({argument.partition("::")[0] for argument in given}) < 2:
        return 0
    return None  # one for each core


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    stopwatch(item)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    return judge(item, (yield))
