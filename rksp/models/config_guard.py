"""Read an untrusted config.json: drop settings that load or run code, and bound the sizes.

A configuration comes from the network into CI. Transformers has run code that a configuration
named (CVE-2026-4372: an attention implementation named a kernel on the Hub). So rksp parses the
JSON itself and passes on only what describes the architecture.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rksp.ground.errors import InputError
from rksp.ground.files import read_text
from rksp.ground.reading import parse_json
from rksp.ground.text import words

_LARGEST_FILE = 8 * 2**20  # bytes; the largest real config seen is below 100 kB
_DEEPEST = 12
_DROPPED = frozenset(
    words(
        "auto_map attn_implementation experts_implementation trust_remote_code name_or_path "
        "quantization_config compression_config custom_pipelines use_pretrained_backbone "
        "output_hidden_states output_attentions dtype torch_dtype"
    )
)
# Not kernel_size or conv_kernel: those are shapes.
_KERNEL = re.compile(r"^(use_)?(hub_)?kernels?(_(config|mapping|id|name|repo|source))?$")
_AT_LEAST_ONE = frozenset(
    words(
        "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers hidden_size "
        "n_embd d_model vocab_size num_attention_heads n_head"
    )
)
# What a setting is called → its most; the first one holds. The last five are sizes that neither
# depth nor width bounds, each of which could fill the memory by itself.
_MOST = (
    (r"vocab_size", 2_000_000),
    (r"^n_.*expert|num.*expert|expert.*num", 4096),
    (r"(^|_)(n_layers?|layers|blocks|depth|depths)$", 1024),
    (r"^(hidden_size|n_embd|d_model|embed_dim|hidden_dim|dim)$", 65_536),
    (r"^num_labels$", 100_000),
    (r"^(head_dim|image_size)$", 8192),
    (r"^(num_channels|in_channels|in_chans|num_frames|num_mel_bins)$", 4096),
    (r"^(num_attention_heads|num_key_value_heads|n_head)$", 4096),
    (r"^(intermediate_size|n_inner|d_ff|ffn_dim)$", 1_048_576),
)
_ABOVE_ZERO = frozenset({"rope_theta", "rotary_emb_base"})
_NOT_NEGATIVE = frozenset({"initializer_range", "init_std"})
_MOST_PATCHES = 65_536  # an image is processed whole, and every patch is a token


def read_config(path: Path) -> tuple[dict[str, object], tuple[str, ...]]:
    """Read and sanitize a configuration; return it with the dotted names of dropped settings.

    Raises:
        InputError: The file is missing, too large, not a JSON object, or sets implausible sizes.
    """
    text = read_text(path, _LARGEST_FILE)
    try:
        stored = parse_json(text, path)
    except InputError as error:
        raise InputError(
            f"{path} is not valid JSON ({error}); give a config.json (of a trainer's run file, the "
            "command line makes a target: rksp score FILE)."
        ) from error
    if not isinstance(stored, dict):
        raise InputError(f"{path} holds a JSON {type(stored).__name__}, not an object of settings.")
    return sanitize(stored)


def sanitize(stored: Mapping[str, object]) -> tuple[dict[str, object], tuple[str, ...]]:
    """Drop settings that could load or run something, at any depth, and check the other sizes.

    Returns:
        The clean settings and the dotted names that were dropped.

    Raises:
        InputError: A size is not positive or beyond that of any real model.
    """
    dropped: list[str] = []
    clean: dict[str, object] = _clean(dict(stored), "", dropped, 0)
    check_sizes(clean)
    return clean, tuple(dropped)


def acts(name: str) -> bool:
    """Tell whether a setting loads or runs something, or is private: it is never read."""
    return name in _DROPPED or name.startswith("_") or _KERNEL.match(name) is not None


def _clean(value: object, prefix: str, dropped: list[str], depth: int) -> Any:
    if not isinstance(value, dict | list):
        return value
    if depth > _DEEPEST:
        raise InputError(f"The configuration nests deeper than {_DEEPEST} levels at {prefix}.")
    if isinstance(value, list):
        return [_clean(item, prefix, dropped, depth + 1) for item in value]
    clean: dict[str, object] = {}
    for key, inner in value.items():
        if acts(key):
            dropped.append(prefix + key)
        else:
            clean[key] = _clean(inner, f"{prefix}{key}.", dropped, depth + 1)
    return clean


def check_sizes(settings: Mapping[str, object], prefix: str = "") -> None:
    """Refuse sizes that no model has, before anything is built.

    Building on the meta device takes little memory but still loops over the depth.

    Raises:
        InputError: A size is out of range; the message names the setting, its value and the range.
    """
    _check_patches(settings, prefix)
    for key, value in settings.items():
        if isinstance(value, Mapping):
            check_sizes(value, f"{prefix}{key}.")
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, bool) or not isinstance(number, int | float):
                continue
            least, most, said = _range(key)
            is_finite = not isinstance(number, float) or math.isfinite(number)
            if said and not (is_finite and least <= number <= most):
                raise InputError(
                    f"The configuration sets {prefix}{key} to {number}; it must be {said}."
                )


def _range(key: str) -> tuple[float, float, str]:
    if key in _ABOVE_ZERO:
        return math.ulp(0.0), math.inf, "above 0"
    if key in _NOT_NEGATIVE:
        return 0.0, math.inf, "at least 0"
    most = next((size for called, size in _MOST if re.search(called, key)), None)
    is_positive = key in _AT_LEAST_ONE
    if most is not None:
        return 1 if is_positive else -math.inf, most, f"from {int(is_positive)} to {most}"
    return (1, math.inf, "at least 1") if is_positive else (-math.inf, math.inf, "")


def _check_patches(settings: Mapping[str, object], prefix: str) -> None:
    image, patch = (_side(settings.get(name)) for name in ("image_size", "patch_size"))
    if image is None or patch is None:
        return
    if patch < 1 or abs(image) > math.isqrt(_MOST_PATCHES) * patch:
        raise InputError(
            f"The configuration cuts images of {prefix}image_size {image} into patches of {patch}; "
            f"there may be at most {_MOST_PATCHES} patches."
        )


def _side(value: object) -> float | None:
    sides = value if isinstance(value, list) else [value]
    numbers = [s for s in sides if isinstance(s, int | float) and not isinstance(s, bool)]
    return max(numbers, default=None)
