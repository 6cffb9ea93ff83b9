"""What a person meant who typed an option that is not there, or a word too many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rksp.ground.errors import nearest
from rksp.ground.flags import flags_of
from rksp.ground.text import one_line
from rksp.question.run import RUN_SUFFIXES
from rksp.recipe import Recipe
from rksp.recipe_files.table.spellings import plain, thesaurus

# What trainers count otherwise than rksp does, and how to say it; `{}` is rksp's own option.
_IN_UNITS = {
    ("max_steps", "epochs"): "rksp counts optimizer steps: {} is epochs × examples / batch size",
    ("max_steps", "samples"): "rksp counts optimizer steps: {} is samples / batch size",
    ("max_steps", "tokens"): "rksp counts optimizer steps: {} is tokens / (batch size × length)",
    ("warmup_steps", "share"): "{} takes a share of the run too, such as 0.03",
    ("warmup_steps", "epochs"): "{} counts optimizer steps, or is a share of the run such as 0.03",
    ("warmup_steps", "tokens"): "{} counts optimizer steps, or is a share of the run such as 0.03",
    ("batch_size", "device"): "{} counts the sequences of a step, of all devices together",
    ("batch_size", "tokens"): "{} counts sequences: tokens / length",
}
_PARTS = {"rank": "lora_rank", "alpha": "lora_alpha", "targets": "lora_targets"}
_ALSO = {"config": "--recipe", "yaml": "--recipe", "gpus": "--devices", "nproc": "--devices"}
_ALSO |= {"amp": "--precision", "loss": "--metric"}
_FIRST = ("model", "log", "logs", "file", "path")  # what a command takes without an option
_SHORT = 4  # characters with which many options begin
_PARTS |= {"accumulation": "gradient_accumulation_steps"}  # units of a field that are another's


def unknown_option(typed: str, context: Any) -> str:
    """Say in one sentence what to type instead of an option that a command does not have."""
    said = f"{context.command_path} has no option {one_line(typed, 60)}"
    parameters = context.command.params
    known = [one for x in parameters if x.param_type_name == "option" for one in x.opts]
    for field, unit in _meanings(typed):
        option = flags_of(Recipe)[field].name
        if flags_of(Recipe)[field].is_set and "--set" in known:
            return f"{said}; give {option}VALUE."
        if option in known and option != typed:
            how = _IN_UNITS.get((field, unit))
            return f"{said}; {how.format(option)}." if how else f"{said}; did you mean {option}?"
    if typed.strip("-").isdigit():
        return f"{said}; write a number without blanks."
    if close := _part(typed, context, known) or _begun(typed, known):
        return f"{said}{close}"
    if owners := [owner for owner, options in _others(context) if typed in options]:
        return f"{said}; it belongs to rksp {', '.join(owners)}."
    more = f"; {context.command_path} --help lists what there is."
    if "--set" in known:
        more = f"; a setting of the model is given with --set NAME=VALUE{more}"
    near = nearest(typed.strip("-"), [one.strip("-") for one in known], count=1, cutoff=0.7)
    return f"{said}{near.replace('mean ', 'mean --') or more}"


def _meanings(typed: str) -> Iterator[tuple[str, str]]:
    """Yield the fields of the recipe, with the unit, that a trainer's run file calls so."""
    name = plain(typed.lstrip("-"))
    for field in Recipe.model_fields:
        if field == name and flags_of(Recipe)[field].is_set:
            yield field, ""
        for unit, spellings in thesaurus().get(field, {}).items():
            if unit in ("devices", "nodes"):
                continue
            if isinstance(spellings, str) and name in spellings.split():
                yield _PARTS.get(unit, field), unit


def _begun(typed: str, known: list[str]) -> str:
    """Return a hint if one option begins with what was typed, or is a slip of the keys away."""
    words = f"--{plain(typed.lstrip('-')).replace('_', '-')}"
    found = [one for one in known if one == words or one.startswith(f"{words}-")]
    found = found or [one for one in known if len(words) > _SHORT and one.startswith(words)]
    is_one = len(found) == 1
    return f"; did you mean {found[0]}?" if is_one else nearest(typed, known, count=1, cutoff=0.8)


def _part(typed: str, context: Any, known: list[str]) -> str:
    """Return a hint if it is a value of an option, the first word, or another name of an option."""
    name, parameters = typed.strip("-").lower(), context.command.params
    for one in parameters:
        values = str(one.metavar or "").strip("[]").split("|")
        if name in values and name not in _ALSO:
            return f"; write {one.opts[0]} {name}."
    if name.partition("-")[0] in _FIRST and parameters[0].param_type_name == "argument":
        return f"; the {name.partition('-')[0]} is the first word, without an option."
    words = name.split("-")
    found = {also for part, also in _ALSO.items() if part in words and also in known}
    found |= {one for one in known if one.strip("-") in words and len(words) > 1}
    return f"; did you mean {', '.join(sorted(found))}?" if found else ""


def _others(context: Any) -> Iterator[tuple[str, set[str]]]:
    for name, command in context.find_root().command.commands.items():
        if name != context.command.name and not command.hidden:
            yield name, {one for parameter in command.params for one in parameter.opts}


def misplaced(words: Sequence[str], path: str) -> str:
    """Say where a setting belongs that was typed as a word of its own; empty if none was.

    Args:
        words: What was typed.
        path: The command, such as `rksp score`.
    """
    for word in words:
        name, sign, value = word.partition("=")
        if sign and name.isidentifier():
            return (
                f"{path} takes no {one_line(word, 60)}; write --{name.replace('_', '-')} {value}."
            )
        if _is_rate(word):
            return f"{path} takes no {one_line(word, 60)}; if it is the rate, write --lr {word}."
    return ""


def _is_rate(word: str) -> bool:
    try:
        return not Path(word).exists() and 0 < float(word) < 1
    except (ValueError, OSError):
        return False


def unexpected_words(said: str, context: Any) -> str:
    """Say what to do with words that a command does not take."""
    path = context.command_path
    words = said.partition("(s) (")[2].rstrip(")").split()
    file = next((word for word in words if Path(word).suffix in (*RUN_SUFFIXES, ".json")), None)
    if setting := misplaced(words, path):
        return setting
    takes = any(parameter.name == "recipe_file" for parameter in context.command.params)
    if file is not None and takes:
        return f"{path} takes one target; give the run file with --recipe {one_line(file, 200)}."
    if words:
        shown = one_line(", ".join(words), 200)
        return f"{path} does not take {shown}; {path} --help lists what it takes."
    return f"{said}; {path} --help lists what there is."
