"""What made the numbers of a store."""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from importlib.resources import files


def made_by() -> dict[str, str]:
    """Versions, and a digest of the shipped classifier; neither torch nor sklearn is imported."""
    classifier = files("rksp.classifiers") / "fitted" / "default.json"
    content = classifier.read_bytes() if classifier.is_file() else b""
    return {
        "rksp": version("rksp"),
        "classifier": hashlib.sha256(content).hexdigest()[:12],
        "torch": version("torch"),
        "transformers": version("transformers"),
    }
