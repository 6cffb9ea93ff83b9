"""Keep what was measured of a model, so that another recipe for it is answered at once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rksp.documents.options import MeasureOptions
from rksp.ground.errors import ArtifactError
from rksp.ground.files import Cache, digest, user_cache
from rksp.ground.versions import version
from rksp.models.configuration import parse_value
from rksp.models.names import file_identity, identity, tree_identity

if TYPE_CHECKING:
    from rksp.assessment.measurement import Measurement
    from rksp.models.source import ModelSource

MOST_BYTES = 256 * 2**20  # some 300 models of GPT-2's size: its spectra are 0.8 MB
_SPECTRUM = {"blocks", "variant", "rank", "spectra"}  # options that change the profile
_HOLDING = {"streaming", "max_memory"}  # these change a sentence
_LIBRARIES = ("rksp", "torch", "transformers", "numpy", "scipy")
_PACKAGES = ("rksp", "rksp.datasets", "rksp.kernels")  # the code that measures


class MeasurementStore:
    """Measurements by the model, the seed, the options and the versions that they depend on.

    Args:
        folder: Where they are kept.
    """

    def __init__(self, folder: Path) -> None:
        self._cache = Cache(folder, MOST_BYTES)

    @classmethod
    def of(cls, place: bool | str | Path) -> MeasurementStore | None:
        """Return the store in a folder, or in the user's cache for True; None where there is none.

        Args:
            place: The folder; False for no store.
        """
        if not isinstance(place, bool):
            return cls(Path(place))
        cached = user_cache() if place else None
        return None if cached is None else cls(cached / "measurements")

    def find(self, source: ModelSource, options: MeasureOptions) -> Measurement | None:
        """Return what was measured of a source at the options' seed; None if nothing is kept.

        A damaged entry counts as none, and the next measurement replaces it.
        """
        key = self._key(source, options)
        content = None if key is None else self._cache.read(key)
        if content is None:
            return None
        from rksp.assessment.measurement import Measurement

        try:
            found = Measurement.from_json(content)
        except ArtifactError:
            return None
        size = found.source.get("num_parameters")
        return None if size is not None and size > source.max_params else found

    def keep(self, source: ModelSource, options: MeasureOptions, measurement: Measurement) -> None:
        """Keep a measurement in place of an older one."""
        key = self._key(source, options)
        if key is not None:
            self._cache.write(key, measurement.to_json().encode())

    def _key(self, source: ModelSource, options: MeasureOptions) -> str | None:
        """Return the name of an entry; None for a model that no name tells apart.

        Those are modules in memory, code that is not rksp's own (a factory, or code that came with
        a model), and folders of the user's examples. What is behind them may change without notice.
        """
        asked = source.asked
        if asked is None or options.data is not None:
            return None
        changed = {  # a command gives texts, and Python what they mean
            name: parse_value(value) if isinstance(value, str) else value
            for name, value in asked.overrides.items()
        }
        content = initialization(asked.target, changed, options, allow_hub=asked.allow_hub)
        content |= options.model_dump(mode="json", include=_HOLDING)
        content |= {
            "task": asked.task,
            "workers": options.workers,  # their number changes the last digits
            "probe name": options.probe and options.probe.name,
            "versions": _versions(),
            "code": _code(),
        }
        return digest(json.dumps(content, sort_keys=True, default=str), length=32)


def initialization(
    target: str,
    overrides: Mapping[str, object],
    options: MeasureOptions,
    *,
    allow_hub: bool = False,
    with_code: bool = False,
) -> dict[str, object]:
    """Return everything that the measurement of an initialization depends on, but versions.

    Args:
        target: As for `rksp.resolve`.
        overrides: The changed settings of the model.
        options: How it is measured, and at which seed.
        allow_hub: See `rksp.models.names.identity`.
        with_code: Likewise.
    """
    own = {} if options.data is None else {"data": tree_identity(options.data)}
    return (
        own
        | {
            "target": target,
            "content": identity(target, allow_hub=allow_hub, with_code=with_code),
            "overrides": dict(overrides),
            "seed": options.seed,
            "evidence": options.evidence,
            "states": options.states,
            "probe": file_identity(options.probe) if options.probe else None,
        }
        | options.model_dump(include=_SPECTRUM, exclude_defaults=True)
    )


@cache
def _versions() -> dict[str, str]:
    return {name: version(name) for name in _LIBRARIES}


@cache
def _code() -> str:
    """Return a digest of the code that measures: an edit changes it and not the version."""
    whole = hashlib.sha256()
    for found in filter(None, map(find_spec, _PACKAGES)):
        # The first place alone: in a checkout rksp has the repository's root for a second one.
        for folder in (found.submodule_search_locations or ())[:1]:
            for file in sorted(p for p in Path(folder).rglob("*") if p.suffix in (".py", ".toml")):
                state = file.stat()
                whole.update(f"{file.name} {state.st_size} {state.st_mtime_ns}\n".encode())
    return whole.hexdigest()
