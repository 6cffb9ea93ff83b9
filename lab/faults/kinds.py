"""The kinds of input that a stranger controls, each as a strategy of commands with files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hypothesis import strategies as st

from lab.faults import bomb_kinds, grid_kinds, originals, score_kinds, stored_kinds
from lab.faults.answers import DRY, Case
from lab.faults.commands import CONFIG, JSON, TINY
from lab.faults.damage import damaged_json, damaged_text, file_of

_CONFIGURATION = re.compile(r"^def ([a-z]\w*)\(\) -> Trainer.Config", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of input.

    Attributes:
        name: In the table.
        cases: What to run.
        inputs: How many the full harness tries.
    """

    name: str
    cases: st.SearchStrategy[Case]
    inputs: int


def kinds(part: str = "") -> list[Kind]:
    """Return the kinds whose names hold `part`; each makes the whole files that it damages."""
    found = [
        Kind(name=name, cases=make(), inputs=inputs)
        for name, make, inputs in _KINDS
        if part in name
    ]
    return [*(kind for kind in _recipes() if part in kind.name), *found]


def _recipes() -> list[Kind]:
    found = []
    for trainer, texts in originals.recipes().items():
        files = st.one_of(
            *(file_of(f"run{suffix}", damaged_text(whole)) for suffix, whole in texts.items())
        )
        with_json = [json.loads(text) for text in texts.get(".json", ())]
        if with_json:
            files = st.one_of(files, file_of("run.json", damaged_json(with_json)))
        cases = files.flatmap(_reader_of_a_recipe)
        found.append(Kind(name=f"recipe: {trainer}", cases=cases, inputs=180))
    return found


def _reader_of_a_recipe(files: Mapping[str, bytes]) -> st.SearchStrategy[Case]:
    ((file, content),) = files.items()
    # A registry of torchtitan holds several configurations; one is named after its file.
    parts = [f"{file}::{name}" for name in _CONFIGURATION.findall(content.decode())]
    return st.sampled_from(parts or [file]).flatmap(lambda name: _reading(name, files))


def _reading(name: str, files: Mapping[str, bytes]) -> st.SearchStrategy[Case]:
    commands = (
        ("explain", name, "--devices", "8"),
        ("explain", name, "--devices", "8", *JSON),
        ("score", *TINY, *CONFIG, *JSON, "--recipe", name, "--devices", "8"),
        ("score", *TINY, *CONFIG, "--recipe", name, "--devices", "3", "--lr", "1e-3"),
        ("score", name, *CONFIG, *JSON, "--devices", "8"),
        ("grid", name, "lr=1e-4,1e-3", "--devices", "8", *DRY),
    )
    return st.sampled_from(commands).map(lambda words: Case(command=words, files=files))


_KINDS: tuple[tuple[str, Callable[[], st.SearchStrategy[Case]], int], ...] = (
    ("configurations", score_kinds.configurations, 900),
    ("checkpoints", score_kinds.checkpoints, 400),
    ("grids and sweeps", grid_kinds.grids, 700),
    ("rows of a grid", grid_kinds.rows, 500),
    ("axes typed", grid_kinds.axes, 400),
    ("--set", score_kinds.settings, 700),
    ("rates and recipe options", score_kinds.options, 900),
    ("words typed", score_kinds.typed_words, 500),
    ("probes and tokenizers", score_kinds.probes, 250),
    ("reports fed back", stored_kinds.reports, 900),
    ("baselines", stored_kinds.baselines, 300),
    (".rksp.toml", stored_kinds.defaults, 600),
    ("lab plans", stored_kinds.plans, 400),
    ("lab files", stored_kinds.lab_files, 250),
    ("sweep databases", grid_kinds.stores, 500),
    ("bombs", bomb_kinds.bombs, 500),
    ("poisoned names", bomb_kinds.poisoned_names, 400),
)
