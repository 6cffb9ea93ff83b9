"""From what the user typed to a model: type, configuration, checkpoint, Hub id or factory."""

from __future__ import annotations

import copy
import hashlib
import importlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from rksp.errors import InputError, NotCovered, nearest
from rksp.models.checkpoint import check_finite, find_weights, is_pickle
from rksp.models.config_guard import read_config, sanitize
from rksp.models.overrides import merge

if TYPE_CHECKING:
    from transformers import PretrainedConfig

MAX_PARAMS = 2_000_000_000

# Head by head, in the order in which a type is looked for: (task, transformers' auto class).
_HEADS = (
    ("causal-lm", "AutoModelForCausalLM"),
    ("seq2seq", "AutoModelForSeq2SeqLM"),
    ("masked-lm", "AutoModelForMaskedLM"),
    ("image-classification", "AutoModelForImageClassification"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A model that can be built: what it is, and from what.

    Attributes:
        target: As the user typed it.
        kind: `model_type`, `config`, `checkpoint`, `hub` or `factory`.
        task: `causal-lm`, `seq2seq`, `masked-lm`, `image-classification` or `other`.
        config: transformers' configuration; None for a factory.
        num_parameters: Counted before anything is allocated; None for a factory.
        folder: Where weights or a tokenizer lie, or None.
        weights: The safetensors files; empty means random initialization.
    """

    target: str
    kind: str
    task: str
    config: PretrainedConfig | None
    num_parameters: int | None
    folder: Path | None = None
    weights: tuple[Path, ...] = field(default=())
    trust_remote_code: bool = False
    factory: object = None

    @property
    def is_pretrained(self) -> bool:
        return bool(self.weights)

    @property
    def config_hash(self) -> str | None:
        """SHA-256 of the configuration, without the versions that wrote it."""
        if self.config is None:
            return None
        content = self.config.to_dict()
        content.pop("transformers_version", None)
        text = json.dumps(content, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    def build(self, seed: int = 0) -> nn.Module:
        """The model in float32 on the CPU, in evaluation mode; the global generator is untouched.

        Raises:
            InputError: The model cannot be built, or its weights are damaged.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if self.factory is not None:
                model = self.factory()
                if not isinstance(model, nn.Module):
                    raise InputError(
                        f"{self.target} returned a {type(model).__name__}, not an nn.Module."
                    )
                return model.eval()
            if self.weights:
                auto = _auto_class(self.task)
                model = auto.from_pretrained(
                    self.folder,
                    config=copy.deepcopy(self.config),
                    dtype=torch.float32,
                    local_files_only=True,
                    trust_remote_code=self.trust_remote_code,
                )
                check_finite(model.state_dict(), self.target)
                return model.eval()
            return _from_config(self.config, self.task, self.trust_remote_code).eval()


def resolve(
    target: str,
    *,
    overrides: Mapping[str, str] | None = None,
    trust_remote_code: bool = False,
    allow_hub: bool = False,
    max_params: int = MAX_PARAMS,
) -> ModelSource:
    """Finds out what a target is: a path, a factory, a model type, a Hub id, in this order.

    Args:
        target: `gpt2`, `config.json`, a checkpoint folder, `package.module:factory`, `org/name`.
        overrides: Values to set in the configuration, as typed: `{"n_layer": "4"}`.
        trust_remote_code: Lets a configuration bring its own code. Off, its hooks are dropped.
        allow_hub: Lets a Hub id use the network; otherwise only the local cache is looked at.
        max_params: A larger model is refused before it is built.

    Raises:
        InputError: The target is none of these, or is damaged, or is too large.
        NotCovered: transformers knows the type but cannot build it with a known head.
    """
    if not allow_hub:  # before transformers is imported, which reads it once
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    path = Path(target)
    if path.exists():
        source = _from_path(target, path, overrides or {}, trust_remote_code)
    elif ":" in target:
        return _from_factory(target, overrides or {})
    else:
        source = _from_name(target, overrides or {}, trust_remote_code, allow_hub)
    if source.num_parameters > max_params:
        raise InputError(
            f"{target} has {source.num_parameters / 1e9:.1f} billion parameters, more than "
            f"--max-params {max_params / 1e9:.1f} billion; make it shallower "
            "(--set num_hidden_layers=2) or raise the limit."
        )
    return source


def _from_path(
    target: str, path: Path, overrides: Mapping[str, str], trust_remote_code: bool
) -> ModelSource:
    config_path = path / "config.json" if path.is_dir() else path
    if path.is_dir() and not config_path.exists():
        raise InputError(f"{path} holds no config.json; name a checkpoint folder or a config.json.")
    if path.is_file() and is_pickle(path):
        raise InputError(
            f"{path} is a pickle, which can run code when loaded; rksp reads safetensors folders."
        )
    stored, _ = read_config(config_path)
    weights = find_weights(path) if path.is_dir() else ()
    if weights and overrides:
        raise InputError("--set changes the architecture, which stored weights do not follow.")
    config = _make_config(stored, overrides, trust_remote_code, config_path)
    kind = "checkpoint" if weights else "config"
    return _source(target, kind, config, trust_remote_code, config_path.parent, weights)


def _from_factory(target: str, overrides: Mapping[str, str]) -> ModelSource:
    module_name, _, name = target.partition(":")
    if overrides:
        raise InputError("--set works on configurations; a factory takes no overrides.")
    try:
        factory = getattr(importlib.import_module(module_name), name)
    except ImportError as error:
        raise InputError(f"{target}: module {module_name!r} cannot be imported: {error}.") from None
    except AttributeError:
        raise InputError(f"{target}: module {module_name!r} has no {name!r}.") from None
    if not callable(factory):
        raise InputError(f"{target} is not callable; name a function that returns an nn.Module.")
    return ModelSource(
        target=target,
        kind="factory",
        task="other",
        config=None,
        num_parameters=None,
        factory=factory,
    )


def _from_name(
    target: str, overrides: Mapping[str, str], trust_remote_code: bool, allow_hub: bool
) -> ModelSource:
    from transformers import CONFIG_MAPPING  # seconds; only names need it this early

    if target in CONFIG_MAPPING:
        config = _make_config({"model_type": target}, overrides, False, None)
        return _source(target, "model_type", config, False, None, ())
    if target.count("/") == 1 and not target.startswith((".", "/")):
        return _from_hub(target, overrides, trust_remote_code, allow_hub)
    raise InputError(
        f"{target!r} is no file, no package.module:factory and no model type that transformers "
        f"knows{nearest(target, CONFIG_MAPPING)}"
    )


def _from_hub(
    target: str, overrides: Mapping[str, str], trust_remote_code: bool, allow_hub: bool
) -> ModelSource:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    try:
        folder = snapshot_download(
            target,
            local_files_only=not allow_hub,
            allow_patterns=["*.json", "*.safetensors", "tokenizer*"],
        )
    except (LocalEntryNotFoundError, HfHubHTTPError, OfflineModeIsEnabled, OSError) as error:
        hint = "" if allow_hub else "; --allow-hub lets rksp download it"
        raise InputError(
            f"{target} is not in the local Hub cache ({type(error).__name__}){hint}."
        ) from None
    source = _from_path(target, Path(folder), overrides, trust_remote_code)
    return ModelSource(
        **{name: getattr(source, name) for name in source.__slots__} | {"kind": "hub"}
    )


def _make_config(
    stored: dict[str, object],
    overrides: Mapping[str, str],
    trust_remote_code: bool,
    path: Path | None,
) -> PretrainedConfig:
    from transformers import CONFIG_MAPPING, AutoConfig

    model_type = stored.get("model_type")
    where = path.name if path else model_type
    if trust_remote_code and "auto_map" in stored and path is not None:
        return AutoConfig.from_pretrained(
            path.parent, trust_remote_code=True, local_files_only=True
        )
    if model_type not in CONFIG_MAPPING:
        raise InputError(
            f"{where}: model type {model_type!r} is not known to this transformers"
            f"{nearest(str(model_type), CONFIG_MAPPING)}"
        )
    clean, _ = sanitize(stored)
    for key in ("torch_dtype", "dtype", "model_type"):
        clean.pop(key, None)
    kind = CONFIG_MAPPING[model_type]
    if overrides:
        known = kind(**clean).to_dict()
        clean = merge(clean, overrides, known=known, renamed=dict(kind.attribute_map))
    try:
        config = kind(**clean)
    except (ValueError, TypeError, KeyError, AttributeError, ZeroDivisionError) as error:
        raise InputError(f"{where} is not a valid {model_type}: {_first_line(error)}") from None
    except Exception as error:  # strict configurations raise a class of their own
        if type(error).__module__.partition(".")[0] not in ("huggingface_hub", "transformers"):
            raise
        raise InputError(f"{where} is not a valid {model_type}: {_first_line(error)}") from None
    return config


def _source(
    target: str,
    kind: str,
    config: PretrainedConfig,
    trust_remote_code: bool,
    folder: Path | None,
    weights: tuple[Path, ...],
) -> ModelSource:
    text = getattr(config, "text_config", None)
    task = _task_of(config)
    if task is None and text is not None and _task_of(text) is not None and not weights:
        config, task = text, _task_of(text)  # the language part of a vision–language model
    if task is None:
        raise NotCovered(
            f"{target}: transformers builds {config.model_type!r} with none of the heads that rksp "
            "covers (causal, masked or sequence-to-sequence language model, image classification)."
        )
    with torch.device("meta"):
        skeleton = _from_config(copy.deepcopy(config), task, trust_remote_code)
    return ModelSource(
        target=target,
        kind=kind,
        task=task,
        config=config,
        num_parameters=sum(p.numel() for p in skeleton.parameters()),
        folder=folder,
        weights=weights,
        trust_remote_code=trust_remote_code,
    )


def _task_of(config: PretrainedConfig) -> str | None:
    for task, name in _HEADS:
        if type(config) in _auto_class_by_name(name)._model_mapping:
            return task
    return None


def _auto_class(task: str):
    return _auto_class_by_name(dict(_HEADS)[task])


def _auto_class_by_name(name: str):
    import transformers

    return getattr(transformers, name)


def _from_config(config: PretrainedConfig, task: str, trust_remote_code: bool) -> nn.Module:
    auto = _auto_class(task)
    try:
        return _build(auto, config, trust_remote_code, "sdpa")
    except ValueError as error:
        if "scaled_dot_product_attention" not in str(error) and "sdpa" not in str(error).lower():
            raise InputError(f"{config.model_type} cannot be built: {_first_line(error)}") from None
    except (
        TypeError, AttributeError, KeyError, IndexError, RuntimeError, ImportError, AssertionError,
        ZeroDivisionError, NotImplementedError,
    ) as error:  # fmt: skip
        raise InputError(f"{config.model_type} cannot be built: {_first_line(error)}") from None
    return _build(auto, config, trust_remote_code, "eager")


def _build(auto, config: PretrainedConfig, trust_remote_code: bool, attention: str) -> nn.Module:
    return auto.from_config(
        copy.deepcopy(config),
        dtype=torch.float32,
        trust_remote_code=trust_remote_code,
        attn_implementation=attention,
    )


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].rstrip(".") + "."
