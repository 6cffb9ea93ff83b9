"""Find weights on disk (safetensors only) and check them for damage before a model reads them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import safe_open

from rksp.ground.budgets import CELLS
from rksp.ground.errors import InputError, foreign
from rksp.ground.files import read_text
from rksp.ground.reading import parse_json

if TYPE_CHECKING:
    from torch import Tensor

_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt", "model.pth")
_PICKLED_ENDINGS = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"})
_LONGEST_NAME = 255  # bytes, on every usual file system
_LARGEST_INDEX = 64 * 2**20  # bytes


def find_weights(folder: Path) -> tuple[Path, ...]:
    """Return the safetensors files of a checkpoint folder; none for a bare configuration.

    Raises:
        InputError: The only weights are pickled, the index names a missing file, or a file is
            damaged.
    """
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        files = tuple(sorted({folder / name for name in _shards(index)}))
        for file in files:
            if file.parent != folder or not file.is_file():
                raise InputError(
                    f"{index.name} names {file.name}, which is not in {folder}; "
                    "copy the missing shard into it."
                )
    else:
        files = tuple(sorted(folder.glob("*.safetensors")))
        if len(files) > 1 and (folder / "model.safetensors").is_file():
            files = (folder / "model.safetensors",)
    if not files:
        pickled = [p.name for p in sorted(folder.iterdir()) if is_pickle(p)]
        if pickled:
            raise InputError(
                f"{folder} holds pickled weights ({pickled[0]}), which run code when they are "
                "loaded; save the model with save_pretrained(..., safe_serialization=True)."
            )
    for file in files:
        _check_file(file)
    return files


def is_pickle(path: Path) -> bool:
    """Tell whether a file is one of the pickled forms of weights, which rksp never opens."""
    return path.name in _PICKLED or (
        path.suffix in _PICKLED_ENDINGS
        and path.name not in ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth")
    )


def _shards(index: Path) -> set[str]:
    try:
        stored = parse_json(read_text(index, _LARGEST_INDEX), index, most=CELLS)
        names = stored["weight_map"].values()
        if not all(isinstance(name, str) and len(name.encode()) <= _LONGEST_NAME for name in names):
            raise TypeError("a file name is not a string, or too long")
        return set(names)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{index} is not a valid safetensors index ({error}).") from error


def _check_file(path: Path) -> None:
    if not path.is_file():  # opening a pipe that nobody writes to would wait without end
        raise InputError(f"{path} is not a regular file.")
    with (
        foreign(f"{path} is truncated or damaged, or no safetensors file; copy it again"),
        safe_open(path, framework="numpy"),
    ):
        pass


def check_finite(tensors: Mapping[str, Tensor], where: str) -> None:
    """Refuse weights that hold NaN or infinity.

    Raises:
        InputError: Some weights are not finite; the message names the first and counts the rest.
    """
    import torch

    bad = []
    for name, tensor in tensors.items():
        # The sum is finite if every entry is, unless it overflows; then check every entry.
        if (
            tensor.is_floating_point()
            and not torch.isfinite(tensor.sum())
            and not torch.isfinite(tensor).all()
        ):
            bad.append(name)
    if bad:
        more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        raise InputError(
            f"{where} holds NaN or infinity in {bad[0]}{more}; use an earlier checkpoint."
        )
