"""Make the table of model types that `--evidence config` reads instead of transformers.

    python -m lab.bench.type_table [--only TYPE …]

With `--only` the rows of other types stay as they are. Each type's default configuration is stored.
Then each setting is changed alone: a rule of one of three kinds describes what follows it, if one
fits. A setting whose changes the reader of the table does not follow as transformers does is
marked, so that its change goes to transformers.
"""

from __future__ import annotations

import inspect
import json
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from itertools import permutations
from pathlib import Path
from typing import Annotated

import typer

from rksp.cli.process import quiet_transformers
from rksp.ground.errors import RkspError
from rksp.models import type_table
from rksp.models.configuration import make_config, model_types
from rksp.models.heads import transformers_heads
from rksp.models.resolve import resolve
from rksp.models.type_table import (
    ACTIVATIONS,
    TypeRow,
    rope_parameters,
    table_config,
    type_names,
    type_row,
)

TABLE = Path(type_table.__file__).with_name(type_table.FILE)
_DEPTH = 48  # to which a pattern of layers is seen
_READERS = ("models/declared.py", "checks")
_WORD = re.compile(r'"([a-z][a-z0-9_]*)"')
_TAKEN = re.compile(r"""kwargs(?:\.\w+\(|\[)\s*["'](\w+)["']|["'](\w+)["'] (?:not )?in kwargs""")
Seen = Mapping[str, tuple[object, Mapping[str, object] | None]]  # name → new value, what followed
_UNSTORED = ("transformers_version", "_name_or_path", "model_type")


def asked_names() -> tuple[str, ...]:
    """Return every name that rksp may ask a configuration for."""
    root = TABLE.parents[1]
    paths = [
        path
        for part in _READERS
        for path in ((root / part).rglob("*.py") if (root / part).is_dir() else [root / part])
    ]
    return tuple(sorted({word for path in paths for word in _WORD.findall(path.read_text())}))


def plain(value: object) -> object:
    """Return a value as JSON gives it back."""
    return json.loads(json.dumps(value, default=str))


class Prober:
    """Asks transformers for the configurations of one model type."""

    def __init__(self, kind: str, asked: tuple[str, ...]) -> None:
        self.kind = kind
        default = self.make({})
        self.type = type(default)
        self.settings = plain(default.to_dict())
        self.aliases = {
            alias: name
            for alias, name in dict(getattr(self.type, "attribute_map", {})).items()
            if name in self.settings and alias not in self.settings
        }
        parts = [name for name in self.settings if hasattr(getattr(default, name, None), "to_dict")]
        self.parts = tuple(parts)
        own = {*self.settings, *self.aliases}
        names = [name for name in asked if name not in own]
        self.attributes = {
            name: value
            for name in names
            if isinstance(value := _attribute(default, name), int | float | str | list)
        }

    def make(self, changes: Mapping[str, object]) -> object:
        """Return the configuration after changes."""
        return make_config(self.kind, {"model_type": self.kind, **changes})

    def state(self, changes: Mapping[str, object]) -> dict[str, object] | None:
        """Return the settings and attributes after changes; None if transformers refuses."""
        try:
            config = self.make(changes)
        except Exception:  # a type's own code, which may raise anything on settings it dislikes
            return None
        return plain(config.to_dict()) | {n: plain(_attribute(config, n)) for n in self.attributes}


def _attribute(config: object, name: str) -> object:
    try:
        return getattr(config, name, None)
    except Exception:  # a property of the type, computed of settings that may not suit it
        return None


def changes_of(
    settings: Mapping[str, object], parts: tuple[str, ...]
) -> Iterator[tuple[str, object]]:
    """Yield a change of every plain setting."""
    for name, value in settings.items():
        if name.startswith("_") or name in (*parts, *_UNSTORED, "architectures"):
            continue
        if isinstance(value, bool):
            yield name, not value
        elif isinstance(value, int):
            yield name, 2 * value if value > 0 else 3
        elif isinstance(value, float):
            yield name, value / 2 if value else 0.25
        elif value is None and not name.endswith("_token_id"):
            yield name, 4
        elif isinstance(value, str) and name.endswith(ACTIVATIONS):
            yield name, "relu" if value != "relu" else "gelu"


def row_of(kind: str, asked: tuple[str, ...]) -> tuple[dict[str, object], Seen]:
    """Return the table's row of a model type, and how transformers followed each change."""
    prober = Prober(kind, asked)
    default = prober.settings | prober.attributes
    seen = {
        name: (value, prober.state({name: value}))
        for name, value in changes_of(prober.settings, prober.parts)
    }
    sources: dict[str, list[str]] = {}
    for source, (_, after) in seen.items():
        for name in default if after is not None else ():
            if name != source and after.get(name) != default[name]:
                sources.setdefault(name, []).append(source)
    rules = {name: rule_of(prober, name, found, seen, default) for name, found in sources.items()}
    row = {
        "settings": prober.settings,
        "aliases": prober.aliases,
        "attributes": prober.attributes,
        "parts": prober.parts,
        "rules": {name: rule for name, rule in rules.items() if rule is not None},
        "optional": stored_as_given(prober, default, _none),
        "zeros": stored_as_given(prober, default, _zero),
        "lists": stored_as_given(prober, default, _fewer),
        "interpreted": interpreted_names(prober),
        "off": [n for n, (_, after) in seen.items() if after == default and default[n] is None],
        "fixed_parts": fixed_parts(prober),
        "has_rope": rope_is_plain(prober, default),
        "heads": transformers_heads(kind),
        "counted": counted(kind),
    }
    return row, seen


def counted(kind: str) -> int | None:
    """Return the parameters of the default model, built without storage; None if it cannot be."""
    try:
        return resolve(kind).num_parameters
    except RkspError:
        return None


def rule_of(prober, name, sources, seen, default) -> list | None:
    """Return the rule that gives a setting from others, if one of the three kinds fits."""
    value = default[name]
    if isinstance(value, list):
        depths = [source for source in sources if len(seen[source][1][name] or ()) != len(value)]
        if len(depths) != 1:
            return None
        (source,) = depths
        after = prober.state({source: _DEPTH})
        if not isinstance(default[source], int) or after is None:
            return None
        for size in range(1, _DEPTH // 2 + 1):
            pattern = after[name][:size]
            depths = (1, 2, 3, 7, _DEPTH // 2 + 5, default[source])
            states = [prober.state({source: depth}) for depth in depths]
            if all(
                state is not None and state[name] == [pattern[i % size] for i in range(depth)]
                for depth, state in zip(depths, states, strict=True)
            ):
                return ["cycle", source, pattern]
        return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    states = [default, *(seen[source][1] for source in sources)]
    if len(sources) == 1 and isinstance(default[sources[0]], int | float) and default[sources[0]]:
        ratio = value / default[sources[0]]
        if all(state[name] == ratio * state[sources[0]] for state in states):
            return ["ratio", int(ratio) if ratio.is_integer() else ratio, sources[0]]
    if len(sources) == 2:
        for first, second in permutations(sources):
            if all(
                isinstance(state[first], int)
                and isinstance(state[second], int)
                and state[second]
                and state[name] == state[first] // state[second]
                for state in states
            ):
                return ["quotient", first, second]
    return None


_LINEAR = {"type": "linear", "factor": 2.0}
_YARN = {"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 128}
_ROPES: tuple[dict[str, object], ...] = (
    {"rope_theta": 12345.0},
    {"rope_theta": 12345.0, "rope_scaling": None},
    {"rope_theta": 12345.0, "rope_scaling": _LINEAR},
    {"rope_scaling": _YARN},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 12345.0}},
)
_PARTLY = {"partial_rotary_factor": 0.25}


def rope_is_plain(prober: Prober, default: Mapping[str, object]) -> bool:
    """Tell whether the reader's rule of rotary positions holds for a type."""
    rope = prober.settings.get("rope_parameters")
    if not isinstance(rope, dict) or not {"rope_theta", "rope_type"} <= {*rope}:
        return False
    cases = [*_ROPES, *({**case, **_PARTLY} for case in _ROPES)]
    return all(
        prober.state(plain(case)) == {**default, "rope_parameters": rope_parameters(rope, case)}
        for case in cases
    )


def stored_as_given(
    prober: Prober, default: Mapping[str, object], changed: Callable[[object], object]
) -> list[str]:
    """Return the settings whose new value transformers stores without changing anything else.

    Args:
        prober: Asks transformers.
        default: The type's default settings.
        changed: Returns another value; the value itself where the setting is not asked about.
    """
    values = {name: changed(value) for name, value in prober.settings.items()}
    return [
        name
        for name, value in values.items()
        if value != prober.settings[name]
        and prober.state({name: value}) == {**default, name: value}
    ]


def _none(value: object) -> object:
    return None if isinstance(value, int | float) and not isinstance(value, bool) else value


def _zero(value: object) -> object:
    return 0 if isinstance(value, int) and not isinstance(value, bool) else value


def _fewer(value: object) -> object:
    return value[1:] if isinstance(value, list) and len(value) > 1 else value


def fixed_parts(prober: Prober) -> list[str]:
    """Return the parts whose type the class decides."""
    from transformers import PreTrainedConfig

    specs = getattr(prober.type, "sub_configs_defaults", None) or {}
    fixed = {
        name for name, spec in specs.items() if issubclass(spec.config_class, PreTrainedConfig)
    }
    return [name for name in prober.parts if name in fixed]


def interpreted_names(prober: Prober) -> list[str]:
    """Return what a type interprets without naming it: arguments it takes out, and properties."""
    found: set[str] = set()
    for base in prober.type.__mro__:
        if base.__module__.startswith("transformers.models."):
            found |= {a or b for a, b in _TAKEN.findall(inspect.getsource(base))}
            found |= {name for name, value in vars(base).items() if isinstance(value, property)}
    return sorted(found - {*prober.settings, *prober.aliases})


def follows(kind: str, row: Mapping, changes: Mapping[str, object], after: object) -> bool:
    """Tell whether the reader of the table makes of changes what transformers makes of them."""
    config = table_config({"model_type": kind, **changes}, TypeRow(**row))
    if config is None:
        return False
    mine = plain(config.to_dict()) | {name: getattr(config, name) for name in row["attributes"]}
    return mine == after


def row_or_none(kind: str) -> tuple[dict[str, object], Seen] | None:
    """Return a type's row; None if transformers cannot make its default configuration."""
    quiet_transformers()
    warnings.simplefilter("ignore")
    try:
        return row_of(kind, asked_names())
    except Exception:  # whatever a type of transformers raises
        return None


def main(only: Annotated[list[str] | None, typer.Option()] = None, processes: int = 4) -> None:
    """Write the table."""
    kinds = sorted(only or model_types())
    with ProcessPoolExecutor(processes) as pool:
        rows = dict(zip(kinds, pool.map(row_or_none, kinds, chunksize=4), strict=True))
    found = {kind: row for kind, row in rows.items() if row is not None}
    kept = {kind: (asdict(type_row(kind)), {}) for kind in (type_names() if only else ())}
    write(kept | found)  # parts are read with their own rows
    left = [kind for kind in kinds if kind not in found]
    for kind, (row, seen) in found.items():
        row["unsure"] = [
            name
            for name, (value, after) in seen.items()
            if not follows(kind, row, {name: value}, after)
        ]
        if not follows(kind, row, {}, row["settings"] | row["attributes"]):
            left.append(kind)
    write({kind: rest for kind, rest in (kept | found).items() if kind not in left})
    print(f"{len(found)} types; the table cannot describe {', '.join(left) or 'none of them'}.")


def write(found: Mapping[str, tuple[dict[str, object], Seen]]) -> None:
    """Write the rows; what most types share is written once."""
    import transformers
    from transformers import GenerationConfig

    counts = Counter(
        (name, json.dumps(value))
        for row, _ in found.values()
        for name, value in row["settings"].items()
    )
    shared = {
        name: json.loads(value)
        for (name, value), count in counts.items()
        if count > 0.9 * len(found)
    }
    head = {
        "transformers": transformers.__version__,
        "settings": shared,
        "generation": sorted(GenerationConfig._get_default_generation_params()),
    }
    lines = [f"\t{compact(head)}"]
    for kind, (row, _) in sorted(found.items()):
        own = {n: v for n, v in row["settings"].items() if n not in shared or v != shared[n]}
        without = [name for name in shared if name not in row["settings"]]
        kept = {k: v for k, v in row.items() if v and k != "settings"}
        kept |= {"settings": own} | ({"without": without} if without else {})
        lines.append(f"{kind}\t{compact(kept)}")
    TABLE.write_text("\n".join(lines) + "\n", "utf-8")
    for kept in (type_table._lines, type_table.common, type_table.type_row):
        kept.cache_clear()


def compact(value: object) -> str:
    """Write JSON without spaces."""
    return json.dumps(value, separators=(",", ":"))


if __name__ == "__main__":
    typer.run(main)
