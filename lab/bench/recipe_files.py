"""Write rksp/recipe_files/README.md: the settings read from real run files, and their accuracy.

python -m lab.bench.recipe_files

The exit code is 1 if a field differs from `tests/run_configs/checked.yaml`, which holds the recipes
that were read off the files by eye.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rksp.ground.errors import InputError
from rksp.recipe_files.parse.content import parse_yaml
from rksp.recipe_files.parse.document import load_document
from rksp.recipe_files.parse.python_source import FUNCTIONS
from rksp.recipe_files.readers.meta import is_registry
from rksp.recipe_files.registry import READERS, read_recipe_file
from rksp.recipe_files.said.origin import OriginKind, RecipeFile, assumed_line

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "tests" / "run_configs"
PAGE = ROOT / "rksp" / "recipe_files" / "README.md"
_HEAD = """# Recipes from trainers' own files

`rksp explain FILE` shows every field of the recipe in a file, its origin, and what was
assumed. `rksp score TARGET --recipe FILE` and `rksp grid` read files in the same way. A reader is
a table in `keys.toml`, with the marks of its files and the keys and defaults of its fields,
functions in `readers/` for what no row can say, and a line in `registry.py`; `--as NAME` chooses a
reader.

Files are parsed, never executed. YAML follows the rules of YAML 1.2 (`3e-4` is a number). Python is
read as a syntax tree of literal assignments, or by the calls that build Hugging Face's arguments
(`TrainingArguments`, `SFTConfig`, `LoraConfig`, Unsloth's), or by what a script with a loop of its
own builds (optimizer, schedule, loader, adapters, model). What such a loop leaves out is off, or
the default of its optimizer; what it only names is unknown. Options of a script are read at their
defaults, also those that a command leaves out, and names are followed into the repository's
modules. A notebook is read as the script of its cells, or their commands; shell scripts, makefiles
and Dockerfiles as the shell runs them, with the files that they write, include and start. Base
files (Hydra's `defaults`, `_base_`, `extends`, `inherits`) are followed within the repository, and
Hydra's commands composed.

A field is *given*, *absent* or *unknown*. What stands in the file and cannot be followed
(`${{oc.env:LR}}`, `!include`, `auto`, a value set on a condition, two keys or two commands that
disagree, a key that nearly names a field or speaks of one, a base file that is not there, a batch
that may be one device's or all devices', prompts or answers, a rate that a command may take from
`$ARGS`) is unknown;
without a rate, an optimizer, an objective, a batch, a length that the answer uses, the answer is
*cannot tell* (exit code 4 under `--fail-on unknown`), as it is for a model that nobody here knows.
What a script has a default for (`${{LR:-1e-5}}`) is read at it, and its tests are decided where all
their words are known; an unknown test leaves what it sets unknown. A command's own program has no
other trainer's defaults, and what it adds to stored weights leaves open what is trained.

A file of no known trainer is read *by name*: `thesaurus.toml` has the spellings of each field and
their units, searched at any depth. The objective comes from what stands in the file (estimators,
rewards, rollouts, pairs, tasks, the program), never from the name of a folder; signs that
contradict each other make it unknown. A trainer's reader adds units, aliases and defaults, and is
not believed where it explains less than a third of the keys and no rate.

## Tables

A table of `keys.toml` has the trainer's names and defaults:

- `source`: the repository and files that they were read in; `unverified`: what was not.
- `marks`: alternatives that identify a file (`table/reader.py`, `Marks`).
- `steps`, in order, so that later ones may use what earlier ones set. Each is one of
  - `{{ FIELD = "KEYS", as = CONVERTER, default = VALUE, text = "WHY" }}`: a field of the recipe,
    from the first of these keys that has a value. The converter is one of `table/convert.py` or of
    the reader's module, or a table from words of the file to rksp's, else the field's usual one.
    The default is the trainer's: `"off"` is none, and `"NAME()"` is computed by a function. With
    `by = "FIELD"` and `where = {{ WORD = VALUE }}` it depends on another field.
  - `{{ STEP = "KEYS", SETTING = … }}`: what sets several fields, a function of `table/convert.py`.
  - `{{ like = "TABLE", at = "KEY", defaults = {{ FIELD = {{ default = VALUE }} }} }}`: the steps of
    another table, in which `{{at}}` stands for a key, with other settings.
  - `"_NAME"`: a function of the reader's module in `readers/`.
- `written`: field → the key that takes its value in rksp's units, where no row says it.
- `muon`: the scale of Muon's update where the file gives none, its formula and where it was read; a
  scale with another formula is the same for a square matrix.
- `words`: of keys that do not move the answer (data, places, logging, speed), without a plural's s;
  `idle`: other such keys, where `*` is any text.
- `changes`: how keys change a run in a way that rksp does not model, and which.
- `extends`: tables that hold for this trainer too. `every` holds for all.

`thesaurus.toml` has the spellings of each field by the unit that they imply: small letters, `_` for
`-` and for a change of case; `a.b` is b in a section a, where sections such as `params` and
`init_args` between them do not count. The first of several that are there counts, and two of them
with different values count as none. Under `spoken` are words of a key, one of each group, that
speaks of a field where none of its names is known: the field is then unknown, and no default stands
for it. Each sign of `objective` has the objectives that it allows, the likeliest first; what all
signs allow is the objective. `words` of a value decide, else it is enough that the key has a value
that is not off. What only weak signs show is unknown, unless the run's name for itself, under
`called`, chooses among it; where that name has a word of `against`, and none of `for`, text is not
what the run is known to be trained on.

## Readers

Names and defaults were read in these sources. The last column lists the exceptions.

| `--as` | trainer | version | source | from knowledge |
|---|---|---|---|---|
{readers}
## {count} real runs of {formats} formats

rksp reads {read} of the runs and refuses {refused} with one sentence. {checked} runs were checked
by hand against file and source: {right} fields are right, {wrong} are wrong. A second reading used
the lines of source that `tests/run_configs/sources.yaml` names. {silent} assumed fields are missing
from the printed assumptions. The version is the one whose defaults were read.
`lab/bench/recipe_files.py` writes this page, and a test compares it.

{described} runs describe their model, and {scored} of these become a target without another
argument. `lab/bench/run_configs.py` ran `rksp score FILE --evidence config` on {tried} of these
without a network: {done} end with a verdict ({verdicts}), {hub} name a model on the Hub
that is not in the local cache, and {failed} end in another sentence.

| run | read as | settings read | right | wrong | assumed | model |
|---|---|--:|--:|--:|---|---|
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One run: the settings read, and the fields that agree with the checked ones or differ."""

    name: str
    read: RecipeFile | None
    refusal: str
    right: int
    wrong: tuple[str, ...]
    is_checked: bool


def names() -> list[str]:
    """Return every run's path under `run_configs`; a registry has one entry per run."""
    found = []
    for path in sorted(CONFIGS.rglob("*")):
        if not path.is_file() or path.parent == CONFIGS:
            continue
        name = path.relative_to(CONFIGS).as_posix()
        document = load_document(path) if path.suffix == ".py" else None
        if document is not None and is_registry(document):
            found += [f"{name}::{part}" for part in document.data[FUNCTIONS]]
        else:
            found.append(name)
    return found


@cache
def checked() -> dict[str, dict[str, object]]:
    """Return run → field → value, as read by eye."""
    return parse_yaml((CONFIGS / "checked.yaml").read_text(encoding="utf-8"))


def row(name: str) -> Row:
    """Read one run and compare it."""
    wanted = dict(checked().get(name, {}))
    try:
        read = read_recipe_file(CONFIGS / name)
        recipe = read.recipe()
    except InputError as error:
        sentence = str(error).replace(f"{CONFIGS}/", "")
        return Row(name, None, sentence, 0, tuple(wanted), bool(wanted))
    found = {field: getattr(recipe, field) for field in wanted if field != "assumed"}
    found["assumed"] = _assumed(read)
    differ = tuple(
        f"{field} is {found[field]}, not {value}"
        for field, value in wanted.items()
        if not _same(found[field], value)
    )
    return Row(name, read, "", len(wanted) - len(differ), differ, bool(wanted))


def _assumed(read: RecipeFile) -> list[str]:
    kinds = (OriginKind.ASSUMED, OriginKind.UNKNOWN)
    return [f.name for f in read.fields if f.origin.kind in kinds]


def _same(found: object, wanted: object) -> bool:
    if isinstance(wanted, list):
        plain = [list(part) if isinstance(part, tuple) else part for part in found]
        return sorted(map(str, plain)) == sorted(map(str, wanted))
    if isinstance(wanted, float) and isinstance(found, int | float):
        return abs(found - wanted) <= 1e-5 * abs(wanted)
    return found == wanted


def silent(read: RecipeFile) -> list[str]:
    """Return the assumed fields that are missing from the line of assumptions.

    What is unknown has its own line.
    """
    line = assumed_line(read.recipe(), read.origins())
    roots = {root for f in read.fields for root in f.origin.assumes}
    roots -= read.unknown.keys()
    return [root for root in sorted(roots) if f"--{root}".replace("_", "-") not in _long(line)]


def _long(line: str) -> str:
    for short, field in (("--lr", "--learning-rate"), ("--clip", "--max-grad-norm"),
                         ("--beta1", "--adam-beta1"), ("--beta2", "--adam-beta2"),
                         ("--epsilon", "--adam-epsilon")):  # fmt: skip
        line = line.replace(short, field)
    return line


def page(rows: list[Row] | None = None) -> str:
    """Return the page as it should be."""
    rows = rows if rows is not None else [row(name) for name in names()]
    read = [r for r in rows if r.read is not None]
    titles = Counter(r.read.trainer for r in read)
    described = [r for r in read if r.read.target is not None or "not describe" not in _missing(r)]
    scored = [r for r in described if r.read.target is not None]
    head = _HEAD.format(
        readers="".join(
            f"| {reader.name} | {reader.title} | {reader.version} | {reader.source} "
            f"| {reader.unverified} |\n"
            for reader in READERS
        ),
        count=len(rows),
        formats=len(titles) + any("wandb" in r.name for r in read),
        read=len(read),
        refused=len(rows) - len(read),
        checked=sum(r.is_checked for r in rows),
        right=sum(r.right for r in rows),
        wrong=sum(len(r.wrong) for r in rows),
        silent=sum(len(silent(r.read)) for r in read),
        described=len(described),
        scored=len(scored),
        **_ends({r.name for r in described}),
    )
    return head + "".join(_line(r) for r in rows)


def _ends(described: set[str]) -> dict[str, object]:
    """Count how the scores of `scored.json` ended, over the runs that describe their model."""
    found = json.loads((CONFIGS / "scored.json").read_text(encoding="utf-8"))
    ends = [end for name, end in found.items() if name in described]
    verdicts = Counter(end["verdict"] for end in ends if "verdict" in end)
    hub = sum("Hub" in end.get("why", "") for end in ends)
    return {
        "tried": len(ends),
        "done": verdicts.total(),
        "verdicts": ", ".join(f"{count} {name}" for name, count in verdicts.most_common()),
        "hub": hub,
        "failed": len(ends) - verdicts.total() - hub,
    }


def _missing(r: Row) -> str:
    text = r.read.target_missing
    return "does not describe" if "does not give depth" in text else text


def _line(r: Row) -> str:
    if r.read is None:
        return (
            f"| {r.name} | refused | | {r.right or ''} | {len(r.wrong) or ''} | | {r.refusal} |\n"
        )
    right, wrong = (r.right, len(r.wrong)) if r.is_checked else ("", "")
    target = r.read.target
    model = target.name if target is not None else f"none: {r.read.target_missing}"
    part = f"{r.read.understood} of {r.read.settings}"
    assumed = ", ".join(_assumed(r.read))
    return f"| {r.name} | {r.read.trainer} | {part} | {right} | {wrong} | {assumed} | {model} |\n"


if __name__ == "__main__":
    every = [row(name) for name in names()]
    PAGE.write_text(page(every), encoding="utf-8")
    for one in every:
        for fault in one.wrong:
            print(f"{one.name}: {fault}", file=sys.stderr)
    sys.exit(any(one.wrong for one in every))
