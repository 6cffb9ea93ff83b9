"""The bundled data: Shakespeare, scikit-learn's digits."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import numpy as np
import torch
from torch import Tensor


def shakespeare() -> bytes:
    """Return the bundled text, 1.1 MB of plays in the public domain."""
    return (files("rksp.datasets") / "text" / "shakespeare.txt").read_bytes()


@cache
def digit_images() -> tuple[Tensor, Tensor]:
    """Return images `[1797, 1, 8, 8]` float32 of zero mean and unit variance, and labels `[1797]`.

    Source: Alpaydin and Kaynak (1998), "Optical recognition of handwritten digits", the test set;
    scikit-learn's `load_digits` returns the same images.
    """
    with (files("rksp.datasets") / "images" / "digits.npz").open("rb") as file:
        stored = np.load(file, allow_pickle=False)
        images = torch.tensor(stored["images"], dtype=torch.float32).unsqueeze(1)
        labels = torch.tensor(stored["labels"], dtype=torch.int64)
    return (images - images.mean()) / images.std(), labels
