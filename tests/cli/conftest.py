"""Commands that score the same random model at the same options share what was measured of it."""

from __future__ import annotations

import pytest

_MEASURED: dict[tuple, object] = {}


@pytest.fixture(autouse=True)
def _measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from rksp.assessment import pipeline

    gather = pipeline.gather

    def gathered(source, options=None, **more):
        if source.kind != "model_type" or options is None or options.probe is not None:
            return gather(source, options, **more)
        key = (source.target, source.config_hash, source.task, options.model_dump_json())
        if key not in _MEASURED:
            _MEASURED[key] = gather(source, options, **more)
        return _MEASURED[key]

    monkeypatch.setattr(pipeline, "gather", gathered)
