"""Reading a stranger's config.json: what may not act is dropped, what may not grow is bounded.

A configuration comes from the network into CI. Transformers has run code on its word before
(CVE-2026-4372: an attention implementation named a kernel on the Hub), so rksp parses the JSON
itself and hands on only what describes the architecture.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from rksp.errors import InputError

_LARGEST_FILE = 8 * 2**20  # bytes; the largest real config seen is below 100 kB
_DEEPEST = 12
_DROPPED = frozenset(
    {
        "auto_map",
        "attn_implementation",
        "experts_implementation",
        "trust_remote_code",
        "name_or_path",
        "quantization_config",
        "compression_config",
        "custom_pipelines",
        "use_pretrained_backbone",
        "output_hidden_states",
        "output_attentions",
        "dtype",
        "torch_dtype",
    }
)
# Not kernel_size or conv_kernel: those are shapes.
_KERNEL = re.compile(r"^(use_)?(hub_)?kernels?(_(config|mapping|id|name|repo|source))?$")
_COUNTED = re.compile(r"(^|_)(n_layers?|layers|blocks|depth|depths)$")
_AT_LEAST_ONE = frozenset(
    {
        "num_hidden_layers",
        "n_layer",
        "n_layers",
        "num_layers",
        "encoder_layers",
        "decoder_layers",
        "hidden_size",
        "n_embd",
        "d_model",
        "vocab_size",
        "num_attention_heads",
        "n_head",
    }
)
_MOST = {"layers": 2048, "width": 65_536, "vocab": 2_000_000, "experts": 4096}
_WIDTHS = frozenset({"hidden_size", "n_embd", "d_model", "embed_dim", "hidden_dim", "dim"})


def read_config(path: Path) -> tuple[dict[str, object], tuple[str, ...]]:
    """The configuration in a file, sanitized, with the dotted names of what was dropped.

    Raises:
        InputError: The file is missing, too large, no JSON object, or asks for absurd sizes.
    """
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise InputError(f"{path} is larger than 8 MiB and no model configuration.")
        stored = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"There is no file {path}; give the path of a config.json.") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON ({error}); give a config.json.") from error
    if not isinstance(stored, dict):
        raise InputError(f"{path} holds a JSON {type(stored).__name__}, not an object of settings.")
    return sanitize(stored)


def sanitize(stored: Mapping[str, object]) -> tuple[dict[str, object], tuple[str, ...]]:
    """Drops what could load or run something, at any depth, and checks the sizes of the rest.

    Returns:
        The clean settings and the dotted names that were dropped.

    Raises:
        InputError: A size is not positive or beyond any real model's.
    """
    dropped: list[str] = []
    clean = _clean(stored, "", dropped, 0)
    check_sizes(clean)
    return clean, tuple(dropped)


def _clean(settings: Mapping, prefix: str, dropped: list[str], depth: int) -> dict:
    if depth > _DEEPEST:
        raise InputError(f"The configuration nests deeper than {_DEEPEST} levels at {prefix}.")
    clean = {}
    for key, value in settings.items():
        if key in _DROPPED or key.startswith("_") or _KERNEL.match(key):
            dropped.append(prefix + key)
        elif isinstance(value, dict):
            clean[key] = _clean(value, f"{prefix}{key}.", dropped, depth + 1)
        elif isinstance(value, list):
            clean[key] = [
                _clean(item, f"{prefix}{key}.", dropped, depth + 1)
                if isinstance(item, dict)
                else item
                for item in value
            ]
        else:
            clean[key] = value
    return clean


def check_sizes(settings: Mapping[str, object], prefix: str = "") -> None:
    """Refuses sizes that no model has, before anything is built.

    Building on the meta device is cheap in memory but still loops over the depth.

    Raises:
        InputError: With the setting, its value and the range.
    """
    for key, value in settings.items():
        if isinstance(value, Mapping):
            check_sizes(value, f"{prefix}{key}.")
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, bool) or not isinstance(number, int | float):
                continue
            least = 1 if key in _AT_LEAST_ONE else None
            most = _most(key)
            if (least is not None and number < least) or (most is not None and number > most):
                allowed = f"from {least or 0} to {most}" if most else f"at least {least}"
                raise InputError(
                    f"The configuration sets {prefix}{key} to {number}; it must be {allowed}."
                )


def _most(key: str) -> int | None:
    if "vocab_size" in key:
        return _MOST["vocab"]
    if "expert" in key and ("num" in key or key.startswith("n_")):
        return _MOST["experts"]
    if _COUNTED.search(key) or key in ("n_layer", "num_hidden_layers"):
        return _MOST["layers"]
    if key in _WIDTHS:
        return _MOST["width"]
    return None
