"""Commands that score the same random model at the same options share what was measured of it."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def measured_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("measured")


@pytest.fixture(autouse=True)
def _measured_once(_own_cache: None, measured_once: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RKSP_CACHE", str(measured_once))
