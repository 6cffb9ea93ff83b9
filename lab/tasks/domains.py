"""Texts of several kinds, each split in two parts: what a model reads, and what judges it.

Nothing is downloaded. `plays` and `late_plays` are the bundled Shakespeare (public domain). `docs`
is the language reference and `code` the source of modules in the installed Python's own library
(PSF-2.0), so they differ a little between versions of Python. `cipher` is the bundled text in an
alphabet of its own, as a language with known grammar and unknown words.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from rksp.datasets.probe import shakespeare
from rksp.ground.errors import InputError, nearest

Part = Literal["training", "held_out"]

_EARLY = 0.6  # of the plays
_HELD_OUT = 0.1  # of every domain
_ALPHABET = b"abcdefghijklmnopqrstuvwxyz"
_CIPHER = b"qmzhdnrxgtbvkpelwcofajyuis"  # the same letters in an order without meaning
# Modules that every supported Python has, each of 30 to 150 kB.
MODULES = (
    *("argparse", "difflib", "ipaddress", "mailbox", "pickle", "statistics", "tarfile"),
    *("turtle", "inspect", "doctest", "subprocess", "threading", "traceback", "typing"),
)


def _plays() -> bytes:
    text = shakespeare()
    return text[: int(_EARLY * len(text))]


def _late_plays() -> bytes:
    text = shakespeare()
    return text[int(_EARLY * len(text)) :]


def _docs() -> bytes:
    from pydoc_data import topics  # half a megabyte that only this domain needs

    text = "\n".join(topics.topics[name] for name in sorted(topics.topics))
    return text.encode("ascii", "ignore")


def module_source(name: str) -> bytes:
    """Return the source of a module of Python's library, without letters outside of ASCII.

    Raises:
        InputError: This Python has no sources.
    """
    path = Path(sysconfig.get_path("stdlib")) / f"{name}.py"
    if not path.is_file():
        raise InputError(
            f"This Python has no {name}.py among its sources, which the domain 'code' reads; "
            "use another Python, or another domain."
        )
    return path.read_text(encoding="utf-8").encode("ascii", "ignore")


def _code() -> bytes:
    return b"\n".join(module_source(name) for name in MODULES)


def enciphered(text: bytes) -> bytes:
    """Replace every letter by another one, small by small and capital by capital."""
    table = bytes.maketrans(_ALPHABET + _ALPHABET.upper(), _CIPHER + _CIPHER.upper())
    return text.translate(table)


DOMAINS: dict[str, Callable[[], bytes]] = {
    "plays": _plays,
    "late_plays": _late_plays,
    "docs": _docs,
    "code": _code,
    "cipher": lambda: enciphered(_late_plays()),
}


@cache
def domain_tokens(name: str, part: Part) -> Tensor:
    """Return one part of a domain, one token per byte, `[tokens]` int64.

    Raises:
        InputError: The domain is unknown, or this Python has no sources.
    """
    if name not in DOMAINS:
        raise InputError(f"No domain is called {name!r}{nearest(name, DOMAINS)}")
    return tokens_of(DOMAINS[name](), part)


def tokens_of(text: bytes, part: Part) -> Tensor:
    """Return the first nine tenths of a text (`training`) or the rest, one token per byte."""
    cut = int((1 - _HELD_OUT) * len(text))
    chosen = text[:cut] if part == "training" else text[cut:]
    return torch.frombuffer(bytearray(chosen), dtype=torch.uint8).long()
