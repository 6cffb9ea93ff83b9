"""Make a transformers configuration from settings: known types, aliases, and `--set key=value`.

transformers is imported inside functions, here and in the modules next to this one. The import
takes seconds, and the Hub client decides then whether it may go online (`offline`).
"""

from __future__ import annotations

import copy
import json
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

from rksp.ground.errors import InputError, nearest, summary
from rksp.ground.flags import field_of, flags_of
from rksp.models.config_guard import check_sizes
from rksp.models.declared import setting
from rksp.models.type_table import Config, TableConfig, table_config, type_names, type_row
from rksp.recipe import Recipe

# Configurations with remote code whose architecture transformers has under another name. Each one
# builds from a published config.json.
ALIASES = {
    "kimi_k2": "deepseek_v3",
    "mimo": "qwen2",
}
_DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
# What a forward pass drops; not the layers that only a classification head has.
_DROPOUT = re.compile(r"^(?!(summary|classifier|pooler)_).*?(^|_)(dropout|pdrop)(_|$)")
_WORDS = {"true": True, "false": False, "null": None, "none": None, "~": None}
_MISSING = object()
_Entry = TypeVar("_Entry")
_DECODER_DEPTHS = ("decoder_layers", "num_decoder_layers")


@contextmanager
def offline() -> Iterator[None]:
    """Keep the Hub client off the network if it is first imported inside this block."""
    before = os.environ.get("HF_HUB_OFFLINE")
    if "huggingface_hub.constants" not in sys.modules:
        os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("HF_HUB_OFFLINE", None)
        else:
            os.environ["HF_HUB_OFFLINE"] = before


@contextmanager
def quiet() -> Iterator[None]:
    """Silence progress bars and advice from transformers; rksp raises or notes what matters."""
    with offline():
        from transformers import utils
    logging: Any = utils.logging  # it states no types
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def types_for(name: object) -> Collection[str]:
    """Return the known model types: the table's if they include `name`, else transformers' own."""
    known = type_names()
    return known if name in known or ALIASES.get(str(name)) in known else model_types()


def model_types() -> Mapping[str, str]:
    """Return the configuration classes that transformers has, by model type."""
    with offline():
        from transformers.models.auto import configuration_auto
    names: Mapping[str, str] = vars(configuration_auto)["CONFIG_MAPPING_NAMES"]
    return names


def known_type(
    target: str, settings: dict[str, object], needs_code: bool
) -> tuple[dict[str, object], list[str]]:
    """Return the settings under a model type that transformers has, at every level."""
    name = settings.get("model_type")
    if not isinstance(name, str):
        raise InputError(f"{target} has no model_type; add one that transformers knows.")
    types = types_for(name)
    notes = []
    settings = {
        key: known_type(target, value, needs_code)[0]
        if isinstance(value, dict) and value.get("model_type") in ALIASES
        else value
        for key, value in settings.items()
    }
    if name in ALIASES and name not in types:
        settings = settings | {"model_type": ALIASES[name]}
        notes.append(f"Model type {name} is read as {ALIASES[name]}.")
    elif name not in types:
        text = settings.get("text_config")
        if isinstance(text, dict) and text.get("model_type") in types:
            return text, [f"Model type {name} is unknown; its text_config is scored alone."]
        if needs_code:
            raise InputError(
                f"{target} is of model type {name}, which exists only as remote code; run the code "
                "that comes with the model with --trust-remote-code if you trust it."
            )
        raise InputError(
            f"{target} is of model type {name!r}, which the installed transformers does not know"
            f"{nearest(name, types) or '; a newer transformers may.'}"
        )
    return settings, notes


def make_config(
    target: str, settings: Mapping[str, object], overrides: Mapping[str, object] | None = None
) -> Any:
    """Make a transformers configuration from sanitized settings and overrides.

    Raises:
        InputError: A setting is unknown, out of range, or refused by transformers.
    """
    with offline():
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    kind = CONFIG_MAPPING[str(settings["model_type"])]
    inner = settings.get("text_config")
    if isinstance(inner, dict) and "model_type" in inner and not kind.sub_configs:
        # A language model's type that wraps a whole multimodal configuration.
        settings, kind = inner, CONFIG_MAPPING.get(inner["model_type"], kind)
        overrides = {k.removeprefix("text_config."): v for k, v in (overrides or {}).items()}
    settings = {k: v for k, v in settings.items() if k != "architectures" or isinstance(v, list)}
    try:
        config = _from_dict(kind, settings)
        if overrides:
            config = _from_dict(kind, _merged(config, settings, overrides))
    except refusals() as error:
        raise refused(target, error) from error
    return config


def declared_config(
    settings: Mapping[str, object], overrides: Mapping[str, object] | None = None
) -> TableConfig | None:
    """Make a configuration as `make_config` does, without transformers.

    Returns:
        The configuration; None where the shipped table of model types cannot vouch for it.

    Raises:
        InputError: A setting is unknown or out of range.
    """
    row = type_row(str(settings.get("model_type")))
    if row is None or (isinstance(settings.get("text_config"), dict) and not row.parts):
        return None
    settings = {k: v for k, v in settings.items() if k != "architectures" or isinstance(v, list)}
    config = table_config(settings)
    if config is None or not overrides:
        return config
    return table_config(_merged(config, settings, overrides))


def _merged(
    config: Config, settings: Mapping[str, object], overrides: Mapping[str, object]
) -> dict[str, object]:
    merged = settable(config).merged(settings, overrides)
    check_sizes(merged)
    return merged


def settable(config: Config) -> ModelSettings:
    """Return everything that `--set` can change about a configuration, with its value."""
    # The depth may be a property, and many classes use an undeclared head_dim.
    hidden = {"head_dim": None, "num_hidden_layers": getattr(config, "num_hidden_layers", None)}
    renamed = getattr(config, "attribute_map", {})
    return ModelSettings(known=hidden | config.to_dict(), renamed=renamed)


def notes_of(target: str, config: Config, overrides: Mapping[str, object]) -> list[str]:
    """Explain `--set dropout` and `--set num_hidden_layers` where a type has several of these.

    Raises:
        InputError: The depth has no effect, because the type has other names for both depths.
    """
    names = settable(config).dropouts if "dropout" in overrides else ()
    said = [f"dropout sets {', '.join(names)}."] if names else []
    return _depth_notes(target, config, overrides) + said


def _depth_notes(target: str, config: object, overrides: Mapping[str, object]) -> list[str]:
    if "num_hidden_layers" not in overrides or not getattr(config, "is_encoder_decoder", False):
        return []
    decoder = [name for name in _DECODER_DEPTHS if hasattr(config, name)]
    encoder = getattr(config, "attribute_map", {}).get("num_hidden_layers")
    if not decoder:
        return []
    encoder_depth = getattr(config, encoder or "encoder_layers", None)
    if str(encoder_depth) != str(overrides["num_hidden_layers"]):
        raise InputError(
            f"--set num_hidden_layers has no effect in {target}, which has an encoder and a "
            f"decoder; set encoder_layers and {decoder[0]}."
        )
    depth = getattr(config, decoder[0])
    if depth == encoder_depth:
        return []
    return [f"num_hidden_layers is the encoder's depth; the decoder keeps {decoder[0]} {depth}."]


def _from_dict(kind: Any, settings: Mapping[str, object]) -> Any:
    with quiet():
        return kind.from_dict(copy.deepcopy(dict(settings)))


def overlay(settings: Mapping[str, object], changes: Mapping[str, object]) -> dict[str, object]:
    """Merge nested changes into settings."""
    result = dict(settings)
    for key, value in changes.items():
        inner = result.get(key)
        if isinstance(value, Mapping) and isinstance(inner, Mapping):
            value = overlay(inner, value)
        result[key] = value
    return result


def remote_config(target: str, folder: Path) -> object:
    """Load a configuration with its own code, which the user has allowed."""
    with offline():
        from transformers import AutoConfig
    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=True, local_files_only=True)
    except refusals() as error:
        raise refused(target, error) from error


_REFUSALS = (
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    RuntimeError,
    ImportError,
    AssertionError,
    IndexError,
    ZeroDivisionError,
    OSError,
)
# What transformers puts before the sentence of a check of its own.
_STRICT = re.compile(
    r"StrictDataclass\w+: (Class v|V)alidation error for \w+ '\w+': ((Value|Type)Error: )?"
)
_LIBRARY = re.compile(r"requires the (\w+) library")


def refusals() -> tuple[type[Exception], ...]:
    """Return the errors that transformers raises for an inconsistent configuration.

    Its strict configurations have their own error, which is not a ValueError and exists only after
    the import.
    """
    errors = sys.modules.get("huggingface_hub.errors")
    strict: type[Exception] | None = getattr(errors, "StrictDataclassError", None)
    return (*_REFUSALS, strict) if strict else _REFUSALS


def refused(target: str, error: BaseException, config: object = None) -> InputError:
    """Make one sentence from an error of transformers; a configuration may show what would work."""
    said = _STRICT.sub("", summary(error, 300))
    if isinstance(error, ImportError) and (library := _LIBRARY.search(said)):
        return InputError(
            f"{target} is built with the library {library[1]}, which is not installed; install it."
        )
    return InputError(
        f"{target} cannot be built ({said}); "
        f"{working_heads(config) or 'correct the configuration, or change it with --set.'}"
    )


def working_heads(config: object) -> str:
    """Advise the nearest lower number of heads that divides the width; empty if all is well."""
    config = setting(config, "text_config") or config
    if setting(config, "head_dim") is not None:  # the width of a head is a setting of its own
        return ""
    width, heads = (setting(config, name) for name in ("hidden_size", "num_attention_heads"))
    if not isinstance(width, int) or not isinstance(heads, int) or heads < 1 or not width % heads:
        return ""
    name = getattr(config, "attribute_map", {}).get("num_attention_heads", "num_attention_heads")
    fits = next(count for count in range(heads, 0, -1) if width % count == 0)
    return f"{heads} heads do not divide the width {width}: try --set {name}={fits}."


def parse_value(text: str) -> object:
    """Parse a scalar by the rules of YAML 1.2, or a JSON list or object.

    Unlike in PyYAML (YAML 1.1), `1e-4` is a number and `no` is a string.
    """
    stripped = text.strip()
    if stripped.lower() in _WORDS:
        return _WORDS[stripped.lower()]
    for parse in (json.loads, lambda digits: int(digits.replace("_", "")), float):
        with suppress(ValueError, RecursionError):
            return parse(stripped)
    return stripped


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """What can be set about a model.

    Attributes:
        known: Value by name, complete with its defaults, nested.
        renamed: Other name → name that the model type accepts too: `hidden_size` for GPT-2's
            `n_embd`.
        is_stored: The target has stored weights, which fit its own settings only.
    """

    known: Mapping[str, Any]
    renamed: Mapping[str, str] = field(default_factory=dict)
    is_stored: bool = False

    def __contains__(self, name: str) -> bool:
        is_group = name == "dropout" and bool(self.dropouts)
        return is_group or self._has(name)

    def _has(self, name: str) -> bool:
        return self._found(name) is not _MISSING

    def _found(self, name: str) -> object:
        found: object = self.known
        for part in self.renamed.get(name, name).split("."):
            found = found.get(part, _MISSING) if isinstance(found, Mapping) else _MISSING
        return found

    @property
    def dropouts(self) -> tuple[str, ...]:
        """The settings that `dropout` means; none where it is a setting itself."""
        if self._has("dropout"):
            return ()
        found = (
            n for n, v in self.known.items() if _DROPOUT.match(n) and isinstance(v, int | float)
        )
        return tuple(sorted(found))

    def close(self, name: str) -> str:
        """Return `; did you mean a, b?`, or a full stop."""
        group = {"dropout": None} if self.dropouts else {}
        if (meant := field_of(Recipe, name)) in Recipe.model_fields:
            return f"; {flags_of(Recipe)[meant].name} sets it for the recipe."
        of_recipe = " ".join(flag.names for flag in flags_of(Recipe).values()).split()
        names = [*_dotted({**self.known, **group}), *self.renamed, *Recipe.model_fields, *of_recipe]
        last, same = name.split(".")[-1], self.renamed
        return nearest(name, names, same=same) or nearest(last, names, same=same) or "."

    def value(self, name: str) -> object:
        """Return the target's own value of a setting; None for one that has none."""
        return self._found(name) if self._has(name) else None

    def merged(
        self, settings: Mapping[str, object], overrides: Mapping[str, object]
    ) -> dict[str, object]:
        """Apply overrides to explicit settings; lists with an entry per layer follow a new depth.

        Args:
            settings: The explicit settings of the configuration.
            overrides: Value by dotted name; a string is parsed by `parse_value`.

        Returns:
            The new settings.

        Raises:
            InputError: A name is not a setting of this model.
        """
        result: dict[str, Any] = copy.deepcopy(dict(settings))
        for name, given in self._spread(overrides).items():
            value = parse_value(given) if isinstance(given, str) else given
            own = self.known.get(self.renamed.get(name, name))
            is_count = isinstance(own, int) and not isinstance(own, bool)
            if isinstance(value, float) and value.is_integer() and is_count:
                value = int(value)  # 1e3 of a number of layers
            if not self._has(name):
                raise InputError(f"--set {name}: this model has no such setting{self.close(name)}")
            *parents, last = name.split(".")
            target, reference = result, self.known
            for parent in parents:
                inner = reference[parent]
                if not isinstance(target.get(parent), dict):
                    target[parent] = copy.deepcopy(inner)
                target, reference = target[parent], inner
            if not parents:
                last = self.renamed.get(last, last)
            if last in _DEPTHS and isinstance(value, int):
                _follow_depth(target, reference[last], value)
            target[last] = value
        return result

    def _spread(self, overrides: Mapping[str, object]) -> dict[str, object]:
        """Replace `dropout` by what it means; a setting that is given by its own name stays."""
        if "dropout" not in overrides or not self.dropouts:
            return dict(overrides)
        rest = {name: value for name, value in overrides.items() if name != "dropout"}
        return dict.fromkeys(self.dropouts, overrides["dropout"]) | rest


def _follow_depth(target: dict[str, object], old: object, new: int) -> None:
    for key, value in list(target.items()):
        if isinstance(value, list) and isinstance(old, int) and len(value) == old and new >= 1:
            target[key] = resized(value, new)
        elif isinstance(value, str) and "pattern" in key and len(value) == old and new >= 1:
            target[key] = "".join(resized(list(value), new))  # one letter per layer
        elif is_by_layer(value):
            target[key] = {layer: item for layer, item in value.items() if int(layer) < new}


def is_by_layer(value: object) -> TypeGuard[Mapping[str, object]]:
    """Tell whether a setting is a table by layer index."""
    return isinstance(value, Mapping) and bool(value) and all(str(key).isdigit() for key in value)


def resized(per_layer: list[_Entry], depth: int) -> list[_Entry]:
    """Cut or repeat a list with an entry per layer; keep every kind of layer if possible."""
    result = [per_layer[i % len(per_layer)] for i in range(depth)]
    try:
        kinds = list(dict.fromkeys(per_layer))
    except TypeError:  # entries that are lists or objects
        return result
    lost = [kind for kind in kinds if kind not in result]
    if lost and len(kinds) <= depth:
        result[-len(lost) :] = lost
    return result


def _dotted(settings: Mapping[str, object], prefix: str = "") -> Iterable[str]:
    for key, value in settings.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{prefix}{key}.")
