"""The bundled data, and inputs of the forward pass made of them: text or images, as models take."""

from __future__ import annotations

import subprocess
import sys
from array import array
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rksp.datasets import encode
from rksp.datasets.batch import Batch
from rksp.ground.budgets import ENCODER, ENCODING, PROBE, TOKENIZER
from rksp.ground.errors import InputError
from rksp.ground.files import read_limited
from rksp.ground.text import BYTES_FOLDED, BYTES_SPREAD

_SEQUENCES, _LENGTH = 16, 128  # 2,048 states, the sample of the published measurements
_IMAGE_STATES = 2048
_MOST_IMAGES = 64
_MOST_IMAGE_TOKENS = 131_072  # over all images, where eight images would have more
# Settings that hold a model's maximum input length; ids beyond it have no position.
_PARTS = ("text_config", "decoder", "encoder", "vision_config", "backbone_config")
_LONGEST = ("max_position_embeddings", "n_positions", "max_sequence_length", "n_ctx", "seq_length")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Inputs and the labels that line up with the logits.

    Attributes:
        inputs: Keyword arguments of the model, or one tensor for a model without a configuration.
        labels: One class per row of logits; None if unknown.
        description: What the inputs are and how they were made.
        num_tokens: Number of tokens (or images).
        own: The batch that came with the model, if any.
    """

    inputs: dict[str, Tensor] | Tensor
    labels: Tensor | None
    description: str
    num_tokens: int
    own: Batch | None = None

    @property
    def batch(self) -> Batch:
        """The model's own batch if there is one, else inputs and labels as a batch."""
        return self.own or Batch(inputs=self.inputs, labels=self.labels)


def make_probe(
    source: object,
    *,
    num_sequences: int | None = None,
    sequence_length: int | None = None,
    seed: int = 0,
    text: str | Path | None = None,
) -> Probe:
    """Make a probe for a model source or a configuration.

    The default is text: sequences cut from evenly spaced places of the bundled Shakespeare. The
    target's own tokenizer encodes it if available; otherwise every byte is a token, spread over
    the vocabulary. Vision models get scikit-learn's digits at the model's image size.

    Args:
        source: A `ModelSource`, a transformers configuration, or None for a bare token model.
        num_sequences: Number of sequences; default 16, more if the model takes shorter ones.
        sequence_length: Tokens per sequence; default 128, or the model's limit if that is lower.
        seed: Chooses the places in the text, the images, and the spread of bytes.
        text: A text file to probe with.

    Raises:
        InputError: The text is missing, unreadable or too short; there are fewer than two tokens;
            or token ids lie outside the vocabulary.
    """
    config = getattr(source, "config", source)
    task = getattr(source, "task", None) or _task_of(config)
    for name, value in (("sequences", num_sequences), ("tokens a sequence", sequence_length)):
        if value is not None and value < 1:
            raise InputError(f"A probe of {value} {name} is empty; ask for at least one.")
    if task == "image-classification" or (_image_size(config) and not vocabulary_of(config)):
        return _images(config, num_sequences, seed)
    if config is not None and not vocabulary_of(config) and not hasattr(config, "vocab_size"):
        raise InputError(
            f"{getattr(config, 'model_type', 'The model')} takes neither tokens nor images of a "
            "stated size, and rksp has no other probe; give a factory (package.module:function) "
            "that returns the model and a batch."
        )
    count = num_sequences or _SEQUENCES
    length = sequence_length or _LENGTH
    notes = []
    limit = position_limit(config)
    if limit is not None and length > limit:
        length = limit
        notes.append(f"shortened to the model's {limit} positions")
        if num_sequences is None:
            count = min(-(-_SEQUENCES * _LENGTH // length), 4 * _SEQUENCES)
    if count * length < 2:
        raise InputError(
            f"The probe has {count * length} token; at least two are needed: use a longer one."
        )
    content, name = _content(text)
    tokenizer = getattr(source, "tokenizer_path", None)
    ids, how = _tokens(content, vocabulary_of(config), seed, tokenizer)
    if len(ids) <= length:
        if text is None or len(ids) < 2:
            raise InputError(
                f"{name} gives {len(ids)} tokens, fewer than {length + 1}: use a longer text."
            )
        length, count = len(ids) - 1, 1
        notes.append(f"one sequence of {length}, all that {name} has")
        if length < 2:
            raise InputError(f"{name} gives {len(ids)} tokens; at least three are needed.")
    windows = _windows(ids, count, length, seed)
    tokens, following = windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    labels: Tensor | None = tokens if task == "masked-lm" else following
    if task == "seq2seq":
        inputs |= {f"decoder_{part}": value.clone() for part, value in inputs.items()}
    if task == "text-classification":  # arbitrary: the model has not seen the task's texts
        labels = torch.arange(count) % max(2, getattr(config, "num_labels", 2))
    if task == "other":
        labels = None
    described = "; ".join([f"{name}, {how}, {count} × {length} tokens", *notes])
    read = tokens if config is None else inputs
    return Probe(inputs=read, labels=labels, description=described, num_tokens=tokens.numel())


def _windows(ids: Tensor, count: int, length: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    room = len(ids) - length
    start = int(torch.randint(0, max(1, room // count), (1,), generator=generator))
    starts = (start + torch.arange(count) * room // count) % room
    return ids[starts[:, None] + torch.arange(length + 1).clamp(max=len(ids) - 1)]


def _content(text: str | Path | None) -> tuple[bytes, str]:
    if text is None:
        return shakespeare(), "bundled Shakespeare"
    path = Path(text)
    content = read_limited(path, PROBE)
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"The probe {path} is not UTF-8 text ({error.reason}).") from error
    return content, path.name


def _tokens(
    content: bytes, vocabulary: int, seed: int, tokenizer: Path | None
) -> tuple[Tensor, str]:
    if tokenizer is not None:
        # 400 kB are enough for any default probe, and encoding a megabyte takes seconds.
        text = content[:400_000].decode("utf-8", errors="ignore")
        ids = torch.tensor(encoded(text, tokenizer), dtype=torch.long)
        if len(ids) and int(ids.max()) >= vocabulary:
            raise InputError(
                f"{tokenizer} gives token id {int(ids.max())}, but the model's vocabulary has "
                f"{vocabulary} entries; give the tokenizer of this model."
            )
        return ids, "the target's tokenizer"
    how = BYTES_SPREAD if vocabulary >= 256 else f"{BYTES_FOLDED} of {vocabulary}"
    if not content:
        return torch.zeros(0, dtype=torch.long), how
    raw = torch.frombuffer(bytearray(content), dtype=torch.uint8).long()
    return spread_bytes(vocabulary, seed)[raw], how


def spread_bytes(vocabulary: int, seed: int = 0) -> Tensor:
    """Map every byte to a token id, `[256]` int64.

    The ids are distinct and spread over the vocabulary if it has room, else bytes modulo its size.
    Low ids are often special tokens, and adjacent rows of trained embeddings are alike, so bytes
    are not used as ids directly. Many models embed the padding id 0 as zero. So id 0 is left out,
    and the last ids too, if there is room.

    Raises:
        InputError: The vocabulary has fewer than two entries.
    """
    if vocabulary < 2:
        raise InputError(f"A vocabulary of {vocabulary} cannot be probed; at least 2 are needed.")
    if vocabulary < 256:
        return torch.arange(256) % vocabulary
    low, high = (8, vocabulary - 8) if vocabulary >= 512 else (0, vocabulary)
    generator = torch.Generator().manual_seed(seed)
    if high - low <= 1 << 22:
        return low + torch.randperm(high - low, generator=generator)[:256]
    return low + torch.arange(256) * ((high - low) // 256)


def encoded(text: str, tokenizer: Path) -> array[int]:
    """Return the token ids of a text, from a process that may hold and take only so much.

    Raises:
        InputError: It is no tokenizer, or it takes more.
    """
    stored = read_limited(tokenizer, TOKENIZER)
    given = b"%d\n%b%b" % (len(stored), stored, text.encode())
    # By its path and -P: nothing is imported from the working folder, nor from beside the file.
    command = [sys.executable, "-P", encode.__file__, str(ENCODER), str(ENCODING)]
    done = subprocess.run(command, input=given, capture_output=True, check=False)
    if done.returncode == encode.REFUSED:
        said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise InputError(f"{tokenizer} cannot be read as a tokenizer ({said}).")
    if done.returncode:
        raise InputError(
            f"{tokenizer} takes more than {ENCODER >> 30} GiB or {ENCODING} processor seconds for "
            f"{len(text):,} characters; give a tokenizer that does not make texts longer."
        )
    return array("i", done.stdout)


def _images(config: object, count: int | None, seed: int) -> Probe:
    height, width = _image_size(config) or (32, 32)
    channels = _setting(config, "num_channels") or 3
    patch = _setting(config, "patch_size")
    side = patch[0] if isinstance(patch, list | tuple) else patch
    tokens = (height // side) * (width // side) if isinstance(side, int) and side > 0 else 16
    least = max(1, min(8, _MOST_IMAGE_TOKENS // max(1, tokens)))
    count = count or min(_MOST_IMAGES, max(least, -(-_IMAGE_STATES // max(1, tokens))))
    digits, labels = digit_images()
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(digits), generator=generator)[:count]
    pixels = F.interpolate(digits[chosen], size=(height, width), mode="bilinear")
    pixels = pixels.expand(-1, channels, -1, -1).contiguous()
    pixels = (pixels - pixels.mean()) / pixels.std()
    classes = getattr(config, "num_labels", 0)
    known = isinstance(classes, int) and classes >= 10
    return Probe(
        inputs={"pixel_values": pixels},
        labels=labels[chosen] if known else None,
        description=(
            f"{len(chosen)} of scikit-learn's digits at {height} × {width}, {channels} channels"
        ),
        num_tokens=len(chosen),
    )


def _setting(config: object, name: str) -> Any:
    parts = [config, *(getattr(config, part, None) for part in _PARTS)]
    found = (getattr(part, name, None) for part in parts)
    return next((value for value in found if value is not None), None)


def vocabulary_of(config: object) -> int:
    """Return the number of tokens that a configuration knows; 0 if it does not say."""
    if config is None:
        return 256
    size = _setting(config, "vocab_size")
    return size if isinstance(size, int) else 0


def position_limit(config: object) -> int | None:
    """Return the longest sequence that a configuration has positions for, or None."""
    found = (_setting(config, name) for name in _LONGEST)
    sizes = [size for size in found if isinstance(size, int) and size > 0]
    if not sizes:
        return None
    # RoBERTa and related models start counting positions after the padding id.
    reserved = 2 if "roberta" in str(getattr(config, "model_type", "")) else 0
    return max(2, min(sizes) - reserved)


def _image_size(config: object) -> tuple[int, int] | None:
    size = _setting(config, "image_size")
    if isinstance(size, dict):
        size = (size.get("height"), size.get("width"))
    if isinstance(size, int):
        return size, size
    if isinstance(size, list | tuple) and len(size) == 2 and all(isinstance(s, int) for s in size):
        return size[0], size[1]
    return None


def _task_of(config: object) -> str:
    if getattr(config, "is_encoder_decoder", False):
        return "seq2seq"
    if _image_size(config) and not vocabulary_of(config):
        return "image-classification"
    return "causal-lm"
