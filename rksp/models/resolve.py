"""Resolve what the user typed: a path, a factory, a model type or a Hub id."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rksp.ground.errors import InputError, UnknownModel, check_kind, nearest
from rksp.ground.factory import is_factory
from rksp.ground.files import absent, with_home
from rksp.ground.model import definite
from rksp.ground.text import has_control, one_line
from rksp.models.checkpoint import find_weights, is_pickle
from rksp.models.config_guard import acts, read_config
from rksp.models.configuration import (
    ModelSettings,
    declared_config,
    known_type,
    make_config,
    model_types,
    notes_of,
    overlay,
    refusals,
    refused,
    remote_config,
    settable,
    types_for,
    working_heads,
)
from rksp.models.declared import Declared
from rksp.models.heads import Choice, choose, has_fresh_head
from rksp.models.names import (
    FILES,
    Published,
    hub_folder,
    is_cached,
    is_explicit,
    is_hub_id,
    is_type,
    nearest_published,
    path_of,
    published,
    published_like,
    said_of_namesake,
)
from rksp.models.source import MAX_PARAMS, Kind, ModelSource, Request, Task, hash_config
from rksp.models.tiny import changed, shrunk
from rksp.models.type_table import TableConfig, type_names, type_row
from rksp.recipe.start import Start

if TYPE_CHECKING:
    from torch import nn

_MOST_BUFFERS = 2e9  # bytes
_PICKLE = "{} is a pickle, which rksp never opens; save it as safetensors."

# Stored in a configuration, and no part of the model's shape.
_NOT_SHAPE = ("model_type", "architectures", "transformers_version", "id2label", "label2id")


def resolve(
    target: str,
    *,
    overrides: Mapping[str, object] | None = None,
    seed: int = 0,
    trust_remote_code: bool = False,
    allow_hub: bool = False,
    max_params: float = MAX_PARAMS,
    task: Task | None = None,
    counts: bool = True,
    fetch: Callable[[str], Path] | None = None,
) -> ModelSource:
    """Resolve a target: a factory, a model type, a path or a Hub id; see `rksp.models.names`.

    Only a skeleton on the meta device is built, to count parameters; a factory is called.

    Args:
        target: See the module.
        overrides: `--set`: value by dotted setting (a string is parsed as in YAML 1.2).
        seed: Seed of the random initialization.
        trust_remote_code: Run Python files that come with the folder or repository.
        allow_hub: Fetch from the Hub what the local cache lacks.
        max_params: Larger models are not built in memory.
        task: Read the model as this; default what its configuration says.
        counts: Build the skeleton. Without it the number of parameters is None, what the
            constructor refuses is not seen, and no modeling file of transformers is loaded.
        fetch: Gives a folder with the config.json of a Hub id that neither the local cache nor
            rksp's table knows, such as `rksp.models.names.fetch_config`; None asks nobody.

    Returns:
        The source.

    Raises:
        InputError: The target is unknown or cannot be used; the message says what to do.
    """
    check_kind("target", target, str | os.PathLike, "text or a path")
    check_kind("overrides", overrides, Mapping | None, "a mapping of settings")
    check_kind("seed", seed, int, "a whole number")
    check_kind("max_params", max_params, int | float, "a number")
    request = Request(
        target=os.fspath(target),
        overrides=dict(overrides or {}),
        seed=seed,
        trust_remote_code=trust_remote_code,
        allow_hub=allow_hub,
        max_params=max_params,
        task=task,
        counts=counts,
    )
    source = _resolved(request, fetch)
    source = replace(source, notes=(*said_of_namesake(request.target), *source.notes))
    has_foreign_code = source.kind == "factory" or trust_remote_code
    return source if has_foreign_code else replace(source, asked=request)


def _resolved(request: Request, fetch: Callable[[str], Path] | None) -> ModelSource:
    target, allow_hub = request.target, request.allow_hub
    _check_name(target)
    found, path = path_of(target, allow_hub=allow_hub), with_home(target)
    if found is not None:
        return _from_path(found, request)
    if is_factory(target):
        return _from_factory(request)
    if target not in type_names() and not is_hub_id(target) and path.suffix not in FILES:
        known = published(target) or published_like(target)
        if known is not None:
            return _from_published(known, request)
    if is_type(target):
        return _from_settings(request, "model_type", {"model_type": target})
    if path.suffix == ".gguf":
        raise InputError(
            f"{target} is quantized for inference; give the config.json or the "
            "folder of the model that they were made from."
        )
    if is_explicit(target):
        raise UnknownModel(absent(target))
    if is_pickle(path):
        raise InputError(_PICKLE.format(target))
    if is_hub_id(target):
        found_here = _on_hub(target, allow_hub, fetch)
        if isinstance(found_here, Published):
            return _from_published(found_here, request)
        return _from_hub(_from_path(found_here, request))
    if re.match(r"\.[A-Za-z]+(\W|$)", path.suffix):
        raise UnknownModel(absent(target))
    hint = absent(target).rpartition("folder")[2]
    if hint == ".":
        near = nearest_published(target.replace(" ", "-"))
        hint = near or nearest(target, types_for(target)) or hint
    raise UnknownModel(
        f"{target!r} is neither a file nor a model type that transformers knows{hint} A model of "
        "the Hub is given as OWNER/NAME with --allow-hub."
    )


def _on_hub(target: str, allow_hub: bool, fetch: Callable[[str], Path] | None) -> Path | Published:
    if fetch is not None:
        import huggingface_hub.constants  # noqa: F401  # before anything keeps it off the network
    known = published(target)
    if known is not None and not allow_hub and not is_cached(target):
        return known
    try:
        if fetch is None or allow_hub or is_cached(target):
            return hub_folder(target, allow_hub)
        return fetch(target)
    except InputError as error:
        known = known or published_like(target)
        if known is None:
            raise UnknownModel(
                f"{str(error).removesuffix('.')}{nearest_published(target) or '.'}"
            ) from None
        return known


def _from_published(known: Published, request: Request) -> ModelSource:
    source = _from_settings(request, "hub", copy.deepcopy(known.settings))
    notes = (known.note(request.target), *source.notes)
    source = replace(source, shape_from=known.origin, notes=notes)
    # No weights fit another shape.
    return _from_hub(source) if all("drop" in one for one in request.overrides) else source


def _start(target: str, kind: Kind, folder: Path | None) -> Start:
    if folder is not None:
        return Start(kind="stored", because="its folder holds weights")
    if kind != "model_type":
        return Start(kind="scratch", because="a configuration without weights")
    return Start(kind="scratch", because=f"{target} the model type; --pretrained for its weights")


def _from_hub(source: ModelSource) -> ModelSource:
    held = source.start
    if not held.is_stored:
        held = Start(kind="elsewhere", because="its Hub weights; --from-scratch without them")
    return replace(source, kind="hub", start=held)


def _is_known(settings: Mapping[str, object]) -> bool:
    name = settings.get("model_type")
    return isinstance(name, str) and name in types_for(name)


def _check_name(target: str) -> None:
    if not target or has_control(target):
        shown = one_line(target, 200)
        raise InputError(f"The target '{shown}' is empty or holds a control character.")
    try:
        with_home(target).exists()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"The target {target[:200]!r} cannot be used: {reason}.") from None


def resolve_tiny(
    target: str,
    *,
    shrink: Callable[[Mapping[str, object]], dict[str, object]] = shrunk,
    task: Task | None = None,
    max_params: float = MAX_PARAMS,
) -> ModelSource:
    """Resolve a model type or a configuration file at tiny size; see `rksp.models.tiny`.

    Args:
        target: A model type or the path of a config.json.
        shrink: Shrinks the complete settings.
        task: Read the model as this; default what its configuration says.
        max_params: Larger models are not built in memory.

    Returns:
        The source.

    Raises:
        InputError: As in `resolve`.
    """
    path = Path(target)
    types = model_types()
    if path.is_dir() and path_of(target) is not None:
        raise InputError(
            "--shrink trains a tiny model of random weights, which says nothing of those in "
            f"{target}; leave out --shrink, or give {path / 'config.json'}."
        )
    if path.suffix == ".json":
        settings, dropped = read_config(path)
        needs_code = "auto_map" in dropped
    else:
        settings, needs_code = {"model_type": target}, False
    settings, _ = known_type(target, settings, needs_code and settings["model_type"] not in types)
    config = make_config(target, settings)
    full = config.to_dict()
    base: Any = settings if settings["model_type"] == config.model_type else settings["text_config"]
    # Rotary factors are lists over dimensions; the shrunk configuration uses plain ones.
    base = {k: v for k, v in base.items() if not (isinstance(v, dict) and "short_factor" in v)}
    small = overlay(base, changed(shrink(full), full))
    for name in ("out_features", "out_indices", "stage_names"):
        small.pop(name, None)
    if settings.get("architectures"):
        small["architectures"] = settings["architectures"]
    kind: Kind = "config" if path.suffix == ".json" else "model_type"
    return _from_settings(Request(target=path.name, max_params=max_params, task=task), kind, small)


def settings_of(target: str, *, allow_hub: bool = False) -> ModelSettings | None:
    """Read the settings that a target has; transformers is imported, and no model is built.

    Args:
        target: As for `rksp.models.resolve.resolve`.
        allow_hub: Fetch a Hub model that the cache lacks.

    Returns:
        The settings; None for a target without a configuration, or whose configuration cannot be
        read: `resolve` says why.
    """
    try:
        settings, folder = stored_settings(target, allow_hub)
        if settings is None:
            return None
        settings, _ = known_type(target, settings, needs_code=False)
        config = declared_config(settings) or make_config(target, settings)
    except (InputError, *refusals()):  # type: ignore[misc]  # an unpacked tuple of classes
        return None
    found = settable(config)
    return replace(
        found,
        known={k: v for k, v in found.known.items() if k not in _NOT_SHAPE and not acts(k)},
        is_stored=folder is not None and any(folder.glob("*.safetensors")),
    )


def stored_settings(
    target: str, allow_hub: bool = False
) -> tuple[dict[str, object] | None, Path | None]:
    """Return the stored settings of a target, and the folder that may hold its weights.

    Raises:
        InputError: The Hub's model is not here, or its file cannot be read.
    """
    path = path_of(target, allow_hub=allow_hub)
    if path is None and is_hub_id(target) and (allow_hub or is_cached(target)):
        path = hub_folder(target, allow_hub)
    if path is None:
        if is_type(target):
            return {"model_type": target}, None
        known = published(target) or published_like(target)
        return (None if known is None else known.settings), None
    file, folder = _config_file(path)
    return read_config(file)[0], folder


def _config_file(path: Path) -> tuple[Path, Path | None]:
    if path.suffix == ".safetensors":
        path = path.parent
    return (path / "config.json", path) if path.is_dir() else (path, None)


def _from_path(path: Path, request: Request) -> ModelSource:
    target = request.target
    if path.is_file() and is_pickle(path):
        raise InputError(_PICKLE.format(target))
    file, folder = _config_file(path)
    if folder is not None and not file.is_file():
        raise InputError(f"{target} holds no config.json; give a folder saved by save_pretrained.")
    settings, dropped = read_config(file)
    weights = () if folder is None else find_weights(folder)
    if weights and "quantization_config" in dropped:
        raise InputError(
            f"{target} holds quantized weights; give the checkpoint in bfloat16 or float32, or "
            "its config.json alone to score the architecture at random initialization."
        )
    if weights and request.overrides:
        raise InputError(
            f"--set changes the architecture, but the weights in {target} fit only the original; "
            "give its config.json to score the changed model at random initialization."
        )
    tokenizer = file.parent / "tokenizer.json"
    remote = "auto_map" in dropped and not _is_known(settings)
    source = _from_settings(
        request,
        "checkpoint" if weights else "config",
        settings,
        folder=folder if weights else None,
        remote=file.parent if request.trust_remote_code and remote else None,
        needs_code=remote,
    )
    acted = [name for name in dropped if not name.endswith(("dtype", "name_or_path"))]
    notes = (f"Dropped from the configuration: {', '.join(acted)}.",) if acted else ()
    return replace(
        source,
        tokenizer_path=tokenizer if folder is not None and tokenizer.is_file() else None,
        notes=source.notes + notes,
    )


def _from_settings(
    request: Request,
    kind: Kind,
    settings: dict[str, object],
    *,
    folder: Path | None = None,
    remote: Path | None = None,
    needs_code: bool = False,
) -> ModelSource:
    """Make a source from sanitized settings, the folder of weights, and that of code that may run.

    A type that `needs_code` is unknown without it.
    """
    target, task = request.target, request.task
    config, settings, notes = _configured(request, settings, remote, needs_code)
    architectures, whole = settings.get("architectures"), replace(request, counts=True)
    counted = partial(_from_settings, whole, kind, settings, folder=folder, remote=remote)
    is_fresh = folder is not None and task is not None and has_fresh_head(task, architectures)
    choices = partial(choose, target, config, architectures, is_stored=folder is not None)
    if isinstance(config, TableConfig):
        chosen = choices(heads=_heads, task=task)
        makers: tuple[Callable[[], nn.Module], Callable[[], nn.Module]] = (
            lambda: counted().construct(),  # transformers makes the source then; most never do
            lambda: definite(counted().construct_empty)(),
        )
    else:
        from rksp.models.heads import make, transformers_heads  # torch

        chosen = choices(heads=transformers_heads, task=task)
        made = partial(make, trust_remote_code=bool(remote))
        makers = (
            partial(made, chosen) if folder is None else partial(_load, chosen, folder, is_fresh),
            # Streaming sets options in the configuration.
            lambda: made(replace(chosen, config=copy.deepcopy(chosen.config))),
        )
        if chosen.task == "text-classification":
            _with_padding(chosen.config)
    notes += chosen.notes
    if is_fresh:
        notes.append(f"The head is fresh: the weights of {target} hold none for {chosen.task}.")
    skeleton = _skeleton(target, makers[1], chosen.config) if request.counts else None
    return ModelSource(
        target=target,
        kind=kind,
        config=chosen.config,
        task=chosen.task,
        num_parameters=None if skeleton is None else sum(p.numel() for p in skeleton.parameters()),
        has_fresh_head=is_fresh,
        max_params=request.max_params,
        config_hash=hash_config(chosen.config),
        start=_start(target, kind, folder),
        model_class=chosen.name if skeleton is None else type(skeleton).__name__,
        notes=tuple(notes),
        seed=request.seed,
        construct=makers[0],
        construct_empty=makers[1],
        folder=folder,
        counted=None if request.counts else counted,
        shown=shown_of_images(chosen.config, chosen.task),
    )


def _configured(
    request: Request, settings: dict[str, object], remote: Path | None, needs_code: bool
) -> tuple[Any, dict[str, object], list[str]]:
    target, overrides = request.target, request.overrides
    if remote is not None:
        note = "Code that came with the model was run (--trust-remote-code)."
        return remote_config(target, remote), settings, [note]
    settings, notes = known_type(target, settings, needs_code)
    config = None if request.counts else declared_config(settings, overrides)
    config = config or make_config(target, settings, overrides)
    if (heads := working_heads(config)) and _divides_by_default(settings):
        raise InputError(f"{target} cannot be built: {heads}")
    return config, settings, notes + notes_of(target, config, overrides)


def _divides_by_default(settings: Mapping[str, object]) -> bool:
    """Tell whether the heads of a type divide its width; some types have another width inside."""
    usual = declared_config({"model_type": settings["model_type"]}, {})
    return usual is not None and not working_heads(usual)


def _heads(kind: str) -> Mapping[str, list[str]]:
    row = type_row(kind)
    return {} if row is None else row.heads


def _skeleton(target: str, construct: Callable[[], nn.Module], config: object) -> nn.Module:
    import torch

    try:
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            skeleton = construct()
    except refusals() as error:
        raise refused(target, error, config) from error
    held = sum(buffer.numel() * buffer.element_size() for buffer in skeleton.buffers())
    if held > _MOST_BUFFERS:
        raise InputError(
            f"{target} holds {held / 1e9:.1f} GB of tables beside its parameters; lower the number "
            "of positions with --set."
        )
    return skeleton


def _with_padding(config: Any) -> None:
    """Name a token for padding: a decoder's classifier reads the last token before it."""
    if getattr(config, "pad_token_id", None) is None:
        end = getattr(config, "eos_token_id", None)
        config.pad_token_id = end if isinstance(end, int) else 0


def _load(chosen: Choice, folder: Path, is_fresh: bool) -> nn.Module:
    from rksp.models.heads import load  # torch

    model, missing, misshapen = load(chosen, folder)
    if is_fresh:  # a pooler is part of a classifier, though it lies in the body
        body = f"{model.base_model_prefix}."
        missing = [name for name in missing if name.startswith(body) and ".pooler." not in name]
    for what, names in (("lack", missing), ("have another shape for", misshapen)):
        if names:
            names = sorted(names)
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise InputError(f"The weights in {folder} {what} {names[0]}{more}.")
    return model


def _from_factory(request: Request) -> ModelSource:
    if request.overrides:
        raise InputError(
            "--set changes a configuration, but a factory has none; change the factory instead."
        )
    from rksp.models.given import factory_source  # torch

    return factory_source(request)


def shown_of_images(config: object, task: str) -> dict[str, int | None]:
    """Return what the configuration of an image classifier shows, as `ModelSource.shown`.

    Its patches are the tokens of a sequence. Without them, and without a stream of declared width
    and depth, the model has no sequence, and the field is None.
    """
    if task != "image-classification":
        return {}
    declared = Declared(config, task)
    if declared.patches is not None:
        return {"sequence_length": max(2, declared.patches)}
    has_stream = declared.width is not None and declared.depth is not None
    return {} if has_stream else {"sequence_length": None}
