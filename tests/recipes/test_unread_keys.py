"""No key of a run file changes the answer in silence: misspelt, left out, or at another level."""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rksp.ground.errors import InputError
from rksp.question.run import Run
from rksp.recipe.coverage import not_covered
from rksp.recipe_files.parse.document import Document, load_document
from rksp.recipe_files.parse.python_source import FUNCTIONS
from rksp.recipe_files.registry import read_document, read_recipe_file, recognize, unwrap

CONFIGS = Path(__file__).parents[1] / "run_configs"
_NOT_RUNS = ("checked.yaml", "sources.yaml", "scored.json", "README.md")
_SAMPLE = 2  # keys of each file in the default suite


def documents() -> Iterator[tuple[str, Document]]:
    for path in sorted(CONFIGS.rglob("*")):
        if not path.is_file() or path.name in _NOT_RUNS:
            continue
        try:
            document = load_document(path)
        except InputError:
            continue
        inner = document.data.get(FUNCTIONS)
        names = [name for name in inner if isinstance(inner[name], dict)] if inner else [None]
        for name in names if path.parent.name == "torchtitan" and path.suffix == ".py" else [None]:
            title = path.relative_to(CONFIGS).as_posix() + (f"::{name}" if name else "")
            yield title, unwrap(document, name)[0]


DOCUMENTS = dict(documents())


def split(data: dict[str, Any], key: str) -> tuple[dict[str, Any], str] | None:
    """Return the section that holds a dotted key, and its name in there."""
    for name in data:
        if key == str(name):
            return data, name
        if key.startswith(f"{name}.") and isinstance(data[name], dict):
            found = split(data[name], key[len(str(name)) + 1 :])
            if found is not None:
                return found
    return None


def mutants(document: Document, key: str) -> Iterator[tuple[str, Document]]:
    """Yield the document with a key misspelt, left out, one level down, and one level up."""
    _, name = split(document.data, key)
    home = key[: -len(str(name))]
    changes = {
        f"{home}{name[:-1]}": "misspelt",
        f"{home}{name}s": "misspelt",
        "": "left out",
        f"{home}moved.{name}": "moved",
        ".".join((*home.split(".")[:-2], name)): "moved up",
    }
    for new, how in changes.items():
        data = copy.deepcopy(document.data)
        section, _ = split(data, key)
        value = section.pop(name)
        if how == "misspelt":
            section[new.removeprefix(home)] = value
        elif how == "moved":
            section.setdefault("moved", {})[name] = value
        elif how == "moved up":
            above = split(data, home[:-1])[0] if home else {name: None}
            if name in above:
                continue
            above[name] = value
        if how == "misspelt" and len(name) < 4:  # a flag of one letter: others are as near
            continue
        yield new, dataclasses.replace(document, data=data)


def silent(document: Document, keys: list[str]) -> list[str]:
    """Return the mutants that change the recipe and are not named."""
    trainer = recognize(document).name
    plain = read_document(document, trainer=trainer)
    found = []
    for key in keys:
        for new, mutant in mutants(document, key):
            try:
                read = read_document(mutant, trainer=trainer)
            except InputError:
                continue
            was, now = ({f.name: f for f in one.fields} for one in (plain, read))
            moved = [n for n in was if was[n].value != now[n].value]
            # What another key gives by its name is listed with that key, and so is what is unknown;
            # the rest follows from it.
            if any(now[n].origin.by_name or n in read.unknown for n in moved):
                continue
            if any(new in one.origin.keys and one.origin.by_name for one in read.fields):
                continue
            # A model is found by its value, whatever its key; the page names it.
            named = document.find(key)
            if named is not None and read.target is not None and named.value == read.target.name:
                continue
            told = [one for one in read.unread if one.key == new]
            told += set(read.notes) - set(plain.notes)
            told += [one for one in read.unread if one.value]
            if not new:  # then the page gives another origin
                told += [name for name in was if was[name].origin != now[name].origin]
            if moved and not told:
                found.append(f"{key} → {new or 'left out'}: {moved}")
    return found


def keys_of(document: Document) -> list[str]:
    return [key for key in document.leaves() if split(document.data, key) is not None]


def is_readable(document: Document) -> bool:
    try:
        read_document(document)
    except InputError:
        return False
    return True


def test_no_key_of_a_sample_changes_the_recipe_in_silence():
    rng = random.Random(0)
    found = {}
    for title, document in DOCUMENTS.items():
        if is_readable(document):
            keys = keys_of(document)
            found[title] = silent(document, rng.sample(keys, min(_SAMPLE, len(keys))))
    assert len(found) > 170
    assert not {title: bad for title, bad in found.items() if bad}


@pytest.mark.slow
def test_no_key_changes_the_recipe_in_silence():
    found = {
        title: silent(document, keys_of(document))
        for title, document in DOCUMENTS.items()
        if is_readable(document)
    }
    assert not {title: bad for title, bad in found.items() if bad}


def test_the_law_finds_a_key_that_vanishes(monkeypatch):
    document = DOCUMENTS["axolotl/pretrain.yaml"]
    assert not silent(document, ["learning_rate"])
    monkeypatch.setattr("rksp.recipe_files.registry.unread", lambda *_: ())
    assert silent(document, ["learning_rate"])


def test_real_files_have_few_keys_that_nobody_knows():
    unknown = {
        title: [one.key for one in read_document(document).unread if not (one.why or one.value)]
        for title, document in DOCUMENTS.items()
        if is_readable(document)
    }
    assert sum(map(len, unknown.values())) <= 2, unknown


@pytest.mark.parametrize(
    ("text", "key", "nearest"),
    [
        ("warmup_step: 50", "warmup_step", "warmup_steps"),
        ("learning_rates: 1e-3", "learning_rates", "learning_rate"),
        ("training: {weight_decay: 0.1}", "training.weight_decay", "weight_decay"),
        ("gradient-accumulation-step: 8", "gradient-accumulation-step",
         "gradient_accumulation_steps"),
        ("zxcv: 8", "zxcv", ""),
    ],
)  # fmt: skip
def test_an_unknown_key_is_named_with_its_line_and_the_nearest(text, key, nearest, tmp_path):
    path = tmp_path / "a.yaml"
    rest = "num_train_epochs: 1\noutput_dir: x\nbf16: true\n"
    path.write_text(f"per_device_train_batch_size: 8\nlr_scheduler_type: linear\n{text}\n{rest}")
    (one,) = read_recipe_file(path, trainer="hugging-face").unread
    assert (one.key, one.line, one.nearest, one.why) == (key, 3, nearest, "")


@pytest.mark.parametrize(
    ("text", "is_named"),
    [("neftune_noise_alpha: 5", True), ("neftune_noise_alpha: 0", False),
     ("fp8: true", True), ("fp8: false", False), ("tensor_parallel_size: 8", True),
     ("tensor_parallel_size: 1", False), ("relora: true", True), ("wandb_project: x", False)],
)  # fmt: skip
def test_what_changes_the_run_and_is_not_modelled_is_named_while_it_is_on(text, is_named, tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(f"base_model: gpt2\nmicro_batch_size: 2\n{text}\n", encoding="utf-8")
    found = read_recipe_file(path).unread
    assert [bool(one.why) for one in found] == [True] * is_named


def test_strict_refuses_an_unknown_key_and_nothing_else(tmp_path):
    path = tmp_path / "a.yaml"
    known = "base_model: gpt2\nmicro_batch_size: 2\nneftune_noise_alpha: 5\n"
    path.write_text(known)
    assert Run.read(str(path), {}, strict=True).file == path
    path.write_text(f"{known}warmup_step: 5\n")
    assert Run.read(str(path), {}).file == path
    with pytest.raises(InputError, match=r"warmup_step, line 4, .*warmup_steps"):
        Run.read(str(path), {}, strict=True)


@pytest.mark.parametrize("optim", ["rmsprop", "came_pytorch"])
def test_an_optimizer_that_rksp_does_not_have_is_not_covered(optim, tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(f"base_model: gpt2\nmicro_batch_size: 2\noptimizer: {optim}\n")
    read = read_recipe_file(path)
    assert not_covered(read.recipe()) and optim in read.field("optimizer").origin.text
    path.write_text("base_model: gpt2\nmicro_batch_size: 2\noptimizer: adamw_torch\n")
    assert not not_covered(read_recipe_file(path).recipe())


def test_a_path_that_is_not_here_is_handed_over_by_its_last_part(tmp_path):
    path = tmp_path / "a.yaml"
    for name, target in (("/path/to/DeepSeek-V3.1", "DeepSeek-V3.1"), (tmp_path, str(tmp_path))):
        path.write_text(f"base_model: {name}\nmicro_batch_size: 2\n")
        assert read_recipe_file(path).target.name == target
