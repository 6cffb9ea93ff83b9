"""The bundled text as tokens: its bytes, and a small BPE."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from lab.places import DATA
from rksp.datasets.probe import shakespeare
from rksp.ground.errors import ArtifactError


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

    stored = (DATA / "tokenizers" / "shakespeare-bpe-1k.json").read_text(encoding="utf-8")
    try:
        tokenizer = Tokenizer.from_str(stored)
    except ValueError as error:
        raise ArtifactError(f"The bundled tokenizer cannot be read: {error}") from error
    encoded = tokenizer.encode(shakespeare().decode(), add_special_tokens=False)
    return torch.tensor(encoded.ids), tokenizer.get_vocab_size()
