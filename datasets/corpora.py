"""The bundled data: Shakespeare as bytes and as BPE tokens, scikit-learn's digits."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import numpy as np
import torch
from torch import Tensor

from rksp.ground.errors import ArtifactError


def shakespeare() -> bytes:
    """Return the bundled text, 1.1 MB of plays in the public domain."""
    return (files("rksp.datasets") / "text" / "shakespeare.txt").read_bytes()


@cache
def byte_tokens() -> Tensor:
    """Return the bundled text as bytes, one token per byte, `[tokens]` int64."""
    return torch.frombuffer(bytearray(shakespeare()), dtype=torch.uint8).long()


@cache
def bpe_tokens() -> tuple[Tensor, int]:
    """Return the bundled text under the bundled BPE: `[tokens]` int64, and the vocabulary size.

    The byte-level BPE of 1,024 tokens was trained on the same text.
    """
    from tokenizers import Tokenizer  # comes with transformers; only this task needs it

    stored = (files("rksp.datasets") / "tokenizers" / "shakespeare-bpe-1k.json").read_text(
        encoding="utf-8"
    )
    try:
        tokenizer = Tokenizer.from_str(stored)
    except ValueError as error:
        raise ArtifactError(f"The bundled tokenizer cannot be read: {error}") from error
    encoded = tokenizer.encode(shakespeare().decode(), add_special_tokens=False)
    return torch.tensor(encoded.ids), tokenizer.get_vocab_size()


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
