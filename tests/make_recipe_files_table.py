"""Writes rksp/recipe_files/README.md: which fields are found in which real configuration file.

python tests/make_recipe_files_table.py
"""

from __future__ import annotations

from pathlib import Path

from rksp.errors import InputError
from rksp.recipe import Recipe
from rksp.recipe_files.registry import READERS, read_recipe_file

ROOT = Path(__file__).parents[1]
CONFIGS = ROOT / "tests" / "run_configs"
PAGE = ROOT / "rksp" / "recipe_files" / "README.md"
_SHORT = {
    "optimizer": "optimizer",
    "learning_rate": "rate",
    "schedule": "schedule",
    "warmup_steps": "warm-up",
    "max_steps": "steps",
    "min_lr_ratio": "lowest",
    "adam_beta2": "β₂",
    "adam_epsilon": "ε",
    "weight_decay": "decay",
    "max_grad_norm": "clip",
    "batch_size": "batch",
    "sequence_length": "length",
    "precision": "precision",
}
_MARKS = {"file": "●", "trainer": "○", "assumed": "·"}
_HEAD = """# Recipes from trainers' own files

`rksp explain-config FILE` shows every field of the recipe that a file means, where it comes from,
and what was assumed; `rksp score TARGET --recipe FILE` and `rksp grid` read the same way. Readers:
{readers}. A reader is one file here and one line in `registry.py`.

Files are parsed, never executed: YAML by the rules of YAML 1.2 (`3e-4` is a number), Python as a
syntax tree of literal assignments, `!include` and unknown references as "stands elsewhere".

## What was found in {count} real files

● in the file · ○ the file is silent and the trainer's default is used · `·` assumed by rksp.
This table is written by `tests/make_recipe_files_table.py`, and a test compares it.

"""


def page() -> str:
    """The page as it should be."""
    files = sorted(path for path in CONFIGS.rglob("*") if path.suffix in (".yaml", ".yml"))
    readers = ", ".join(reader.title for reader in READERS)
    lines = [_HEAD.format(readers=readers, count=len(files))]
    lines.append(f"| file | {' | '.join(_SHORT.values())} | model |\n")
    lines.append(f"|---|{':-:|' * len(_SHORT)}---|\n")
    lines += [_row(path) for path in files]
    return "".join(lines)


def _row(path: Path) -> str:
    name = path.relative_to(CONFIGS).as_posix()
    try:
        read = read_recipe_file(path)
    except InputError as error:
        sentence = str(error).replace(str(path), path.name)
        return f"| {name} | {' | '.join('' for _ in _SHORT)} | {sentence} |\n"
    assert set(_SHORT) <= set(Recipe.model_fields)
    marks = [_MARKS[read.field(field).origin] for field in _SHORT]
    model = read.target.name if read.target is not None else f"none: {read.target_missing}"
    return f"| {name} | {' | '.join(marks)} | {model} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
