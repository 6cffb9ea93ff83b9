"""The versions that the numbers of a store come from."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from pathlib import Path

from rksp.ground.versions import version


def made_by(classifier: Path | None = None) -> dict[str, str]:
    """Return the versions and a digest of the classifier, without importing torch or sklearn.

    Args:
        classifier: The classifier's file; the shipped one by default.
    """
    source = classifier or files("rksp.classifiers") / "fitted" / "edge.json"
    content = source.read_bytes() if source.is_file() else b""
    return {
        "rksp": version("rksp"),
        "classifier": hashlib.sha256(content).hexdigest()[:12],
        "torch": version("torch"),
        "transformers": version("transformers"),
    }
