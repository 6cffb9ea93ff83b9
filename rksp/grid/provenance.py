"""What made the numbers of a store."""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path


def made_by(classifier: Path | None = None) -> dict[str, str]:
    """Return versions, and a digest of the classifier; neither torch nor sklearn is imported.

    Args:
        classifier: Its file; default the shipped one.
    """
    source = classifier or files("rksp.classifiers") / "fitted" / "default.json"
    content = source.read_bytes() if source.is_file() else b""
    return {
        "rksp": version("rksp"),
        "classifier": hashlib.sha256(content).hexdigest()[:12],
        "torch": version("torch"),
        "transformers": version("transformers"),
    }
