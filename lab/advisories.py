"""Draft an advisory from facts that somebody read in its sources."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version
from pydantic import ValidationError

from rksp.checks.advisories import Advisory, advisories, audit
from rksp.checks.environment import Environment, Release, name_of
from rksp.ground.budgets import DEFAULTS
from rksp.ground.errors import InputError
from rksp.ground.files import parse_toml, read_text
from rksp.recipe_files.said.facts import Fact

_OF_OSV = ("summary", "severity", "affected", "together", "references", "published")


def draft(path: Path) -> tuple[str, str]:
    """Return the line of the data and the line of its two recipes.

    Args:
        path: TOML with the fields of an `Advisory` and of its details, `modified` (default today),
            and tables `match` and `near`, each with `versions` and `facts`. `near` changes what it
            names in `match`.

    Raises:
        InputError: A field is wrong, or the recipes do not show the condition's two sides.
    """
    said = parse_toml(path, read_text(path, DEFAULTS))
    recipe = {"match": said.pop("match", {}), "near": said.pop("near", {})}
    today = datetime.date.today()
    last = max((one.id for one in advisories() if one.id[5:9] == str(today.year)), default="0000")
    row = {
        "id": f"RKSA-{today.year}-{int(last[-4:]) + 1:04d}",
        "modified": said.pop("modified", today),
        **{name: said.pop(name) for name in _OF_OSV if name in said},
        "database_specific": {"source": "given by hand", **said},
    }
    try:
        made = Advisory.model_validate(row)
    except (ValidationError, InvalidVersion) as error:
        raise InputError(f"{path}: {error!s:.300}.") from error
    versions, facts = recipe["match"].get("versions", {}), recipe["match"].get("facts", {})
    line = {"id": made.id, "versions": versions, "facts": facts, "near": recipe["near"]}
    if not matches(made, line, is_near=False) or matches(made, line, is_near=True):
        raise InputError(f"{path}: the advisory must match [match], and not with [near] in it.")
    entry = made.model_dump(mode="json", exclude_defaults=True)
    return json.dumps(entry, ensure_ascii=False), json.dumps(line)


def matches(one: Advisory, recipe: Mapping[str, Any], *, is_near: bool) -> bool:
    """Tell whether an advisory is found in one of its two recipes.

    Args:
        one: The advisory.
        recipe: `versions` by package and `facts` by key; `near` has what the near miss changes.
        is_near: Take the near miss.
    """
    change = recipe["near"] if is_near else {}
    versions = {**recipe["versions"], **change.get("versions", {})}
    facts = {**recipe["facts"], **change.get("facts", {})}
    for version in versions.values():
        Version(version)
    environment = Environment(
        releases={name_of(name): Release(version) for name, version in versions.items()},
        where="a recipe",
        is_whole=False,
    )
    known = {key: Fact((value,)) for key, value in facts.items()}
    return bool(audit(environment, known, one.modified, [one]).findings)
