"""The releases of a training's software: of this Python, or of a file that pins them."""

from __future__ import annotations

import importlib.metadata
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from rksp.ground.budgets import SETTINGS, SOFTWARE
from rksp.ground.errors import InputError
from rksp.ground.files import parse_toml, read_text
from rksp.recipe_files.parse.content import parse_yaml
from rksp.recipe_files.said.facts import Fact

_ALIASES = {  # other names of the same code
    "pytorch": "torch", "llmtuner": "llamafactory", "pytorch-triton": "triton",
    "triton-rocm": "triton", "pytorch-triton-rocm": "triton", "fla": "flash-linear-attention",
    **{f"transformer-engine-{part}": "transformer-engine" for part in ("torch", "cu12", "cu13")},
}  # fmt: skip
_LONGEST = 4096  # characters of a line that may name a package
_CONDA = re.compile(r"(?:[\w.-]+::)?([\w.-]+)\s*==?\s*([\w.]+)(?:=[\w.]+)?")
_BUILDS = {"cu": "cuda", "rocm": "rocm", "cpu": "cpu", "xpu": "xpu"}  # local parts of wheels
_EDITABLE = re.compile(r"-(e|-editable)\s")
_INSTALL = re.compile(r"\b(?:pip3?|uv\s+pip)\s+install\s+([^&|;]*)")


@lru_cache(maxsize=1024)
def _parsed(version: str) -> Version | None:
    try:
        return Version(version)
    except InvalidVersion:
        return None


@dataclass(frozen=True, slots=True)
class Release:
    """The release of one package.

    Attributes:
        version: As written; None where the file does not pin one.
        is_own: Installed from a folder or a repository, so that it may hold other code.
        range: The releases that the file allows where it pins none, as PEP 440 writes them.
    """

    version: str | None
    is_own: bool = False
    range: str = ""

    def __str__(self) -> str:
        return self.version or self.range

    @property
    def base(self) -> Version | None:
        """The public release that it is, or comes before; None if it is not known."""
        found = _parsed(self.version or "")
        return None if found is None else _parsed(found.base_version)

    @property
    def build(self) -> str:
        """The device that a wheel was built for: cuda, rocm, cpu or xpu; empty if none is said."""
        local = (self.version or "").partition("+")[2]
        return next((device for tag, device in _BUILDS.items() if local.startswith(tag)), "")

    @property
    def may_differ(self) -> bool:
        """True for what is not the public release itself: of a branch, or before a release."""
        found = _parsed(self.version or "")
        has_own_part = found is not None and found.local is not None and not self.build
        return self.is_own or has_own_part or (found is not None and found.is_prerelease)


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Releases by the normalized names of packages (PEP 503).

    Attributes:
        is_whole: A package that is not listed is not installed.
    """

    releases: Mapping[str, Release]
    is_whole: bool

    def facts(self) -> dict[str, Fact]:
        """Return the facts in the releases: the device of the wheels, and a missing package."""
        torch = self.releases.get("torch")
        device = "" if torch is None else torch.build
        if not device and any(name.startswith("nvidia-cudnn") for name in self.releases):
            device = "cuda"
        missing = {"flash-linear-attention"} - self.releases.keys()
        found = {"device": Fact((device,))} if device else {}
        return found | ({"without_package": Fact(tuple(missing))} if self.is_whole else {})


def name_of(text: str) -> str:
    """Return the one name of a package in this house, such as `torch` for conda's `pytorch`."""
    name = canonicalize_name(text)
    return _ALIASES.get(name, name)


def installed_here(names: Iterable[str]) -> Environment:
    """Return the releases of some packages in this Python; none of them is imported."""
    aliases = {alias: name for alias, name in _ALIASES.items() if name in names}
    found: dict[str, Release] = {}
    for name, ours in ({name: name for name in names} | aliases).items():
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
        is_own = "vcs_info" in origin or "dir_info" in origin
        found.setdefault(ours, Release(distribution.version, is_own))
    return Environment(releases=found, is_whole=True)


def read_environment(path: Path) -> Environment:
    """Read the releases that a file pins.

    Args:
        path: What `pip freeze` printed, requirements, uv.lock, poetry.lock, pylock.toml, conda's
            environment.yml, or a Dockerfile with lines of pip.

    Raises:
        InputError: The file cannot be read, or it names no package.
    """
    text = read_text(path, SOFTWARE)
    SETTINGS.check(text.count("\n"), path)
    suffix = path.suffix.lower()
    is_lock = suffix in (".lock", ".toml")
    if is_lock:
        found = _locked(parse_toml(path, text))
    elif suffix in (".yml", ".yaml"):
        found = _conda(parse_yaml(text))
    elif "dockerfile" in path.name.lower() or suffix == ".dockerfile":
        found = _docker(text)
    else:
        found = _required(_lines(text))
    releases: dict[str, Release] = {}
    for name, release in found:
        known = releases.get(name)
        releases[name] = release if known in (None, release) else Release(None)
    if not releases:
        raise InputError(
            f"{path} names no package with a release; give what pip freeze prints, a lock file, "
            "requirements, environment.yml or a Dockerfile."
        )
    return Environment(releases=releases, is_whole=is_lock)


def _locked(data: Mapping[str, object]) -> Iterator[tuple[str, Release]]:
    packages = data.get("package", data.get("packages"))
    for package in packages if isinstance(packages, list) else ():
        if isinstance(package, dict) and isinstance(package.get("name"), str):
            source, version = package.get("source"), package.get("version")
            said = {*source, source.get("type")} if isinstance(source, dict) else set()
            is_own = bool(said & {"git", "editable", "directory"})
            pinned = version if isinstance(version, str) else None
            yield name_of(package["name"]), Release(pinned, is_own)


def _conda(data: object) -> Iterator[tuple[str, Release]]:
    listed = data.get("dependencies") if isinstance(data, dict) else None
    for entry in listed if isinstance(listed, list) else ():
        pip = entry.get("pip") if isinstance(entry, dict) else [entry]
        for line in map(str, pip if isinstance(pip, list) else ()):
            pinned = _CONDA.fullmatch(line[:_LONGEST].strip())
            if pinned is not None:
                yield name_of(pinned[1]), Release(pinned[2])
            else:
                yield from _required((line,))


def _docker(text: str) -> Iterator[tuple[str, Release]]:
    for line in _lines(text):
        for command in _INSTALL.findall(line[:_LONGEST]):
            try:
                words = shlex.split(command)
            except ValueError:  # a quotation without an end
                continue
            yield from _required(word for word in words if not word.startswith("-"))


def _lines(text: str) -> list[str]:
    return re.sub(r"\\\r?\n", " ", text).splitlines()


def _required(lines: Iterable[str]) -> Iterator[tuple[str, Release]]:
    for line in lines:
        text = re.split(r"\s#|^#|\s--", line.strip(), maxsplit=1)[0].strip()
        is_editable = _EDITABLE.match(text) is not None
        if is_editable:
            text = text.rpartition("#egg=")[2] if "#egg=" in text else ""
        if not text or text.startswith("-") or len(text) > _LONGEST:
            continue
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        pins = [one.version for one in requirement.specifier if one.operator in ("==", "===")]
        is_exact = len(pins) == 1 and "*" not in pins[0]
        version = pins[0] if is_exact else None
        is_own = is_editable or requirement.url is not None
        allowed = "" if is_exact else str(requirement.specifier)
        yield name_of(requirement.name), Release(version, is_own, allowed)
