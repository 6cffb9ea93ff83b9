"""What a typed name means, where its files are, and by what a store knows them.

A name is that of a file or folder, of a factory, of a model type, or of a model of the Hub, which
is on this machine or is fetched.

In an identity every byte counts. The header, size and time of a weights file may all be those of
other weights: a copy that keeps times, or a second save at the same shapes. A copy of the same
weights has other times and is the same model. Reading a file costs a second or two for each
gigabyte, once a process, and less than the measurement, which reads the weights too.

Published configurations are found by their models' names without a network, in `published.tsv`.
Its first line is the month in which the facts were collected. Each other line is one shape: its
model type, the settings that differ from the type's own (as JSON), where they were read, and all
Hub ids of that shape: mirrors, quantized copies and models trained further. Shapes that a stored
file states in full come first. `python -m lab hub FILE` writes it.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
import sys
from calendar import month_name
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.machinery import PathFinder
from importlib.resources import files
from pathlib import Path

from rksp.ground.errors import InputError
from rksp.ground.factory import is_factory
from rksp.ground.files import absent, with_home
from rksp.models.configuration import ALIASES, offline, types_for
from rksp.models.type_table import type_names

_ID = re.compile(r"^[\w.-]+/[\w.-]+$")
_PUBLISHED = "published.tsv"
_SIZE = re.compile(r"(?<![a-z0-9])(\d+x)?\d+([._]\d+)?[bm](?![a-z0-9])")
_SIZED = re.compile(r"\d|(^|[-_])(tiny|small|base|large|mini|medium|xl|xxl)($|[-_])")
_NAMED_SIZE = re.compile(r"[-_](tiny|small|base|large|mini|medium|xl|xxl)($|[-_])")
_DOT = re.compile(r"([a-z]\d+)_(\d+)(?=[_-]|$)")  # qwen2_5_7b is qwen2.5-7b
_MOST_WORDS, _LONGEST = 16, 200  # of a name that is searched for a stem
_LARGEST = 2**20  # bytes of a config.json; the largest real one is below 100 kB
_PATIENCE = 5.0  # seconds
_TRUE = ("1", "ON", "YES", "TRUE")  # as the Hub's client reads its variables
_NOT_HERE = (
    "it is neither in the local cache nor in rksp's table of published configurations",
    "pass --allow-hub to fetch it, or give its config.json, or a type such as llama, as the target",
)


def _why(error: Exception) -> tuple[str, str]:
    status = getattr(getattr(error, "response", None), "status_code", None)
    name = type(error).__name__
    if status == 403 or name == "GatedRepoError":
        return "the Hub does not let you read it", "accept its terms and log in: hf auth login"
    if name == "OfflineModeIsEnabled":
        return "the Hub was not asked", "unset HF_HUB_OFFLINE, or give the model's config.json"
    if name in ("RemoteEntryNotFoundError", "EntryNotFoundError"):
        return "the Hub has no config.json of it", "give the model's config.json"
    if status in (401, 404) or name in ("RepositoryNotFoundError", "HFValidationError"):
        return "the Hub shows you no such model", "check the name, or log in: hf auth login"
    return "the Hub cannot be reached", "check the network, or give the model's config.json"


def is_hub_id(target: str) -> bool:
    """Tell whether a target has the form `owner/name`."""
    return _ID.match(target) is not None


def is_cached(target: str) -> bool:
    """Tell whether the local cache holds some of a Hub model."""
    with offline():
        from huggingface_hub.constants import HF_HUB_CACHE
    return (Path(HF_HUB_CACHE) / f"models--{target.replace('/', '--')}").is_dir()


def hub_folder(target: str, allow_hub: bool) -> Path:
    """Return the folder of a Hub model, from the cache unless the network is allowed.

    Raises:
        InputError: The cache lacks it, or the Hub has no such model.
    """
    with nullcontext() if allow_hub else offline():
        import huggingface_hub
    try:
        folder = huggingface_hub.snapshot_download(
            target,
            allow_patterns=["*.json", "*.safetensors"],
            local_files_only=not allow_hub,
        )
    except (OSError, ValueError, huggingface_hub.errors.HfHubHTTPError) as error:
        where, advice = _why(error) if allow_hub else _NOT_HERE
        raise InputError(
            f"{target} looks like a Hub id, but {where} ({type(error).__name__}); {advice}."
        ) from error
    return Path(folder)


def fetch_config(target: str) -> Path:
    """Fetch the config.json of a Hub model into the local cache: no weights and no code.

    Returns:
        The folder that holds it.

    Raises:
        InputError: The Hub does not give it within seconds, or it is larger than 1 MB.
    """
    import huggingface_hub

    try:
        url = huggingface_hub.hf_hub_url(target, "config.json")
        size = huggingface_hub.get_hf_file_metadata(url, timeout=_PATIENCE).size
        if size is None or size <= _LARGEST:
            name = huggingface_hub.hf_hub_download(target, "config.json", etag_timeout=_PATIENCE)
            return Path(name).parent
    except Exception as error:  # of the Hub's client, or of the library that it speaks through
        where, advice = _why(error)
        raise InputError(f"{target} looks like a Hub id, but {where}; {advice}.") from error
    raise InputError(f"The config.json of {target} has {size} bytes; at most {_LARGEST} are read.")


def may_fetch(offline: bool) -> bool:
    """Tell whether the network may be used: neither an option nor HF_HUB_OFFLINE forbids it."""
    return not offline and os.environ.get("HF_HUB_OFFLINE", "").upper() not in _TRUE


FILES = (
    *(".json", ".safetensors", ".yaml", ".yml", ".toml", ".py", ".sh", ".ipynb", ".csv", ".jsonl"),
    *(".db", ".html", ".txt", ".parquet"),
)


def is_explicit(target: str) -> bool:
    """Tell whether a target can only be a path: it begins as one, or ends as a file does."""
    begins = target.startswith((".", "/", "~")) or "\\" in target
    return begins or Path(target).suffix.lower() in FILES


def is_type(target: str) -> bool:
    """Tell whether a target is the name of a model type."""
    return target in ALIASES or ("/" not in target and target in types_for(target))


def path_of(target: str, *, allow_hub: bool = False) -> Path | None:
    """Return the file or folder that a target means; None if it means none, or none is there.

    A folder of a stranger's repository may have the name of something else. So the name of a model
    type or of a factory is never a path, and a folder does not replace a Hub model that is at hand
    or may be fetched, nor what the table of published configurations knows by such a name.

    Args:
        target: What was typed.
        allow_hub: The network may be used.

    Raises:
        InputError: The target may be a folder or a model of the Hub.
    """
    path = with_home(target)
    if is_factory(target) or not path.exists():
        return None
    if is_explicit(target) or not (is_hub_id(target) or path.name == target):
        return path
    if is_type(target):
        return None
    is_of_hub = is_hub_id(target) and (allow_hub or is_cached(target))
    if is_of_hub or published(target) or published_like(target):
        kind = "folder" if path.is_dir() else "file"
        raise InputError(
            f"{target} is a {kind} here and may be a model of the Hub; write ./{target} for "
            f"the {kind}, or remove it."
        )
    return path


def said_of_namesake(target: str) -> tuple[str, ...]:
    """Say which of two meanings a name was given, where a file or folder has the same name."""
    if is_explicit(target) or not with_home(target).exists():
        return ()
    if path_of(target) is None:
        kind = "factory" if is_factory(target) else "model type"
        return (f"{target} is read as the {kind}; write ./{target} for the file or folder.",)
    is_plain = is_hub_id(target) or Path(target).name == target
    return (f"{target} is read as the path ./{target}.",) if is_plain else ()


_READ = ("config.json", "tokenizer.json")  # of a folder, beside its weights

Signature = tuple[tuple[str, int, int, int, int], ...]


def identity(target: str | Path, *, allow_hub: bool = False, with_code: bool = False) -> str | None:
    """Return the digest of everything that is read of a target.

    That is the content of a configuration; of a checkpoint's configuration, weights and tokenizer;
    of a Hub model's files in the cache; of the file that defines a factory, without what that file
    imports.

    Args:
        target: As for `rksp.models.resolve.resolve`.
        allow_hub: Fetch from the Hub what the local cache lacks.
        with_code: The Python files beside a configuration count too.

    Returns:
        The digest; None for a model type, and for a target that cannot be found.
    """
    try:
        path = path_of(str(target), allow_hub=allow_hub)
    except (InputError, RuntimeError):  # a name of two things; `~` of nobody
        return None
    if path is not None:
        if path.is_file() and path.suffix != ".safetensors":
            return file_identity(path)
        return _of_folder(path if path.is_dir() else path.parent, with_code)
    if is_factory(str(target)):
        file = _file_of_module(str(target).partition(":")[0])
        return None if file is None else file_identity(file)
    with suppress(InputError):
        if is_hub_id(str(target)):
            return _of_folder(hub_folder(str(target), allow_hub), with_code)
    return None


def file_identity(path: Path) -> str | None:
    """Return the digest of a file's content; None if there is no such file."""
    return _digest(_signature([path])) if path.is_file() else None


def tree_identity(path: Path) -> str:
    """Return the digest of a file's content, or of all files under a folder.

    Raises:
        InputError: There is nothing at this path.
    """
    if not path.exists():
        raise InputError(absent(path))
    files = [path] if path.is_file() else sorted(f for f in path.rglob("*") if f.is_file())
    return _digest(_signature(files))


def _of_folder(folder: Path, with_code: bool) -> str:
    files = [file for name in _READ if (file := folder / name).is_file()]
    files += sorted(folder.glob("*.py")) if with_code else []
    weights = [*folder.glob("*.safetensors"), *folder.glob("*.safetensors.index.json")]
    read = _read_weights(folder, _signature(sorted(weights))) if weights else ()
    return _digest(_signature([*files, *read]))


@lru_cache(maxsize=4096)
def _read_weights(folder: Path, signature: Signature) -> tuple[Path, ...]:
    from rksp.models.checkpoint import find_weights  # torch

    try:
        return find_weights(folder)
    except InputError:
        return tuple(Path(name) for name, *_ in signature)


def _signature(files: Iterable[Path]) -> Signature:
    stats = [(file, file.stat()) for file in files]
    return tuple((str(f), s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for f, s in stats)


@lru_cache(maxsize=4096)
def _digest(signature: Signature) -> str:
    whole = hashlib.sha256()
    for name, *_ in signature:
        with Path(name).open("rb") as content:  # weights may be larger than the memory
            inner = hashlib.file_digest(content, "sha256").hexdigest()
        whole.update(f"{Path(name).name}\n{inner}\n".encode())
    return whole.hexdigest()


def _file_of_module(name: str) -> Path | None:
    places: list[str] | None = [*sys.path, str(Path.cwd())]
    found = None
    for count in range(1, name.count(".") + 2):
        found = PathFinder.find_spec(".".join(name.split(".")[:count]), places)
        places = None if found is None else found.submodule_search_locations
        if not places:
            break
    if found is None or found.name != name or not found.has_location:
        return None
    return Path(found.origin) if found.origin else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One published configuration.

    Attributes:
        id: The Hub id as the table spells it.
        settings: The settings, `model_type` among them.
        source: The file that states them.
        month: The month of the table, in words.
    """

    id: str
    settings: dict[str, object]
    source: str
    month: str

    def note(self, target: str) -> str:
        """Say where a target's shape comes from, one sentence."""
        is_same = target.lower() == self.id.lower()
        asked = "The shape" if is_same else f"{target} is read as {self.id}, whose shape"
        return f"{asked} is from rksp's table of published models ({self.month}; {self.source})."

    @property
    def origin(self) -> str:
        """The model and where its shape comes from, for a line of the page."""
        return f"shape of {self.id}: rksp's table, {self.month}"


@cache
def _text() -> tuple[str, str]:
    text = files("rksp.models").joinpath(_PUBLISHED).read_text("utf-8")
    return text, text.lower()


def published(name: str) -> Published | None:
    """Return the configuration of a Hub id, in any capitals; None if the table lacks it."""
    return _row(f" {name} ") if len(name) < _LONGEST else None


def published_like(name: str) -> Published | None:
    """Return the configuration that a name or a path speaks of; None if it speaks of none.

    A part of the path is the name of a published model, or holds one that states its size:
    `my-org/Llama-3.1-8B-medical`, `/models/DeepSeek-V3.1`, `qwen2_5/qwen2_5_7b`,
    `me/whisper-small-hi`.
    """
    for part in reversed(name.replace("\\", "/").split("/")):
        words = re.split(r"([-_])", part)[: 2 * _MOST_WORDS]
        spans = sorted(
            ((i, j) for i in range(0, len(words), 2) for j in range(i + 1, len(words) + 1, 2)),
            key=lambda span: span[0] - span[1],
        )
        for i, j in spans:
            stem = "".join(words[i:j]).lower()
            is_name = _NAMED_SIZE.fullmatch(f"-{stem}") is None  # `small` alone is of any family
            is_whole = j - i == len(words) and _SIZED.search(stem) and is_name  # not `model`
            is_sized = _SIZE.search(stem) or _NAMED_SIZE.search(stem)
            if is_whole or (is_sized and not stem[0].isdigit()):
                dotted = _DOT.sub(r"\1.\2", stem).replace("_", "-")
                found = _row(f"/{stem} ") or _row(f"/{dotted} ")
                if found is not None:
                    return found
    return None


def nearest_published(name: str) -> str:
    """Return "; did you mean a, b?" for the ids and model types closest to a name, or ""."""
    ids = [one for line in _text()[0].splitlines()[1:] for one in line.split("\t")[3].split()]
    model = name.rpartition("/")[2].lower()
    named: dict[str, str] = {}
    for one in (*sorted(type_names()), *ids):
        named.setdefault(one.rpartition("/")[2].lower(), one)
    same = [one for one in named if one.replace("-", "") == model.replace("-", "")]
    begun = sorted((one for one in named if one.startswith(f"{model}-")), key=len)
    close = same[:1] or begun[:3] or difflib.get_close_matches(model, named, n=3, cutoff=0.75)
    return f"; did you mean {', '.join(named[one] for one in close)}?" if close else ""


def _row(words: str) -> Published | None:
    text, small = _text()
    at = small.find(words.lower())
    if at < 0:
        return None
    start, end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
    kind, settings, source, _ = text[start:end].split("\t")
    year, month = text[: text.find("\n")].split("-")
    return Published(
        id=text[text.rfind(" ", 0, at + 1) + 1 : text.find(" ", at + 1)],
        settings={"model_type": kind, **json.loads(settings)},
        source=source,
        month=f"{month_name[int(month)]} {year}",
    )
