"""Encode a text with a stranger's tokenizer, in a process of its own that may hold only so much.

A tokenizer can make a text longer at each step, or search it in exponential time. Run by path:
`python -P encode.py BYTES SECONDS`, where stdin holds the size of the tokenizer on a line, the
tokenizer, and the text; stdout gets the token ids, 32 bits each.
"""

from __future__ import annotations

import contextlib
import os
import sys
from array import array

REFUSED, TOO_MUCH = 3, 4  # exit codes, with a reason on stderr
_GROWTH = 8  # tokens for each byte of text; those that split bytes need one
_FREE = 1000  # tokens


def _limit(memory: int, seconds: int) -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    for kind, most in ((resource.RLIMIT_DATA, memory), (resource.RLIMIT_CPU, seconds)):
        _, hard = resource.getrlimit(kind)
        allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (allowed, allowed))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _main(memory: int, seconds: int) -> int:
    _limit(memory, seconds)
    from tokenizers import Tokenizer  # comes with transformers; bytes need no tokenizer

    stored = sys.stdin.buffer.read(int(sys.stdin.buffer.readline())).decode("utf-8-sig")
    text = sys.stdin.buffer.read().decode()
    try:
        tokenizer = Tokenizer.from_str(stored)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        ids = tokenizer.encode(text, add_special_tokens=False).ids
    except MemoryError:
        return TOO_MUCH
    except BaseException as error:  # the Rust side raises bare Exception, and panics beside it
        print(" ".join(str(error).split())[:300], file=sys.stderr)
        return REFUSED
    if len(ids) > _GROWTH * len(text) + _FREE:
        return TOO_MUCH
    sys.stdout.buffer.write(array("i", ids).tobytes())
    return 0


if __name__ == "__main__":
    left = _main(int(sys.argv[1]), int(sys.argv[2]))
    sys.stdout.flush()
    os._exit(left)
