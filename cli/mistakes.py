"""What a person meant who typed what a command does not take.

Whatever can be written has spellings: options, the words that they take, the names that trainers'
run files have for the same, arguments, other commands. A slip is read as that whose spelling is
nearest; a word that few of them have counts more, and the value has to fit.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from rksp.cli.options import trainers_word
from rksp.ground.errors import InputError, nearest
from rksp.ground.files import is_file, read_head
from rksp.ground.flags import flags_of
from rksp.ground.text import one_line
from rksp.question.run import RUN_SUFFIXES, is_run_file
from rksp.recipe import Recipe
from rksp.recipe_files.parse.misread import misread
from rksp.recipe_files.table.reader import moves_nothing
from rksp.recipe_files.table.spellings import number, plain, units
from rksp.report.formats import suffixes_of

TYPED = "rksp.typed"  # under which a context keeps the words of its command
_STORE_MARK = b"SQLite format 3\x00"
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
    ("batch_size", "nodes"): "{} counts the devices of all nodes together",
    ("min_lr_ratio", "rate"): "{} is the final rate as a share of the peak, such as 0.1",
    ("adam_beta1", "pair"): "give each its own option, {} and --beta2",
    ("peft", "bits"): "write {} qlora, whose weights have 4 bits",
}
# Units of a field that are another's.
_PARTS = {"rank": "lora_rank", "alpha": "lora_alpha", "targets": "lora_targets"}
_PARTS |= {"accumulation": "gradient_accumulation_steps", "devices": "devices", "nodes": "devices"}
_LARGEST = 2**26  # bytes of a file that is looked through
_UNSEEN = 0.75  # weight of a word that no spelling has, of that of the rarest
_SHORT = 3  # letters of a word of a help that names nothing
_SWITCHES = ("true", "false", "yes", "no", "1", "0")
_FEW = 8  # options that a sentence lists
# What a reading costs beside the distance of its spelling, and what it may cost in all.
_CALLED, _WORD, _ARGUMENT, _ELSEWHERE, _UNFIT = 0.01, 0.05, 0.1, 0.25, 0.3
_SURE, _MOST = 0.3, 0.5  # costs up to which a reading is the one, and is one
# How alike two words are: one and its plural, one begun, misspelt (less is not at all), initials.
_PLURAL, _BEGUN, _MISSPELT, _INITIALS = 0.99, 0.9, 0.75, 0.85


class _Reading(NamedTuple):
    """A spelling, what it costs beside its distance, how to write it, and how to switch it off."""

    spelling: str
    cost: float
    how: str
    off: str = ""


def complaint(error: Any, arguments: Sequence[str]) -> str:
    """Say in one sentence what is wrong with an option or an argument; its fields say which."""
    context, parameter = error.ctx, getattr(error, "param", None)
    if hasattr(error, "possibilities"):  # of an option that is not there
        name = error.option_name  # of `-lr` only `-l`
        whole = next((one for one in arguments if len(name) == 2 and one.startswith(name)), name)
        return _unknown_option(whole, context)
    if context and hasattr(error, "option_name"):  # without its value, or with one too many
        return _wanting(error.option_name, context)
    if parameter is None:
        said = error.format_message().rstrip(".")
        return _unexpected(said, context) if context else f"{said}."
    is_option = parameter.param_type_name == "option"
    name = parameter.opts[0] if is_option else parameter.name.upper()
    if hasattr(error, "param_type"):  # of one that is missing
        return _missing(parameter, name, context)
    said = one_line(error.message)
    return f"{name} {said}" if said.startswith("is ") else f"{name}: {said}"


def _unknown_option(typed: str, context: Any) -> str:
    words = context.meta.get(TYPED, [])
    at = next((n for n, word in enumerate(words) if word.partition("=")[0] == typed), len(words))
    if torn := _torn(words, at, context):
        return torn
    given = [*words[at : at + 2], "", ""]
    value = given[0].partition("=")[2] or ("" if given[1].startswith("-") else given[1])
    name, _, behind = typed.partition(":")
    no_option = f"{context.command_path} has no option {one_line(typed, 60)}"
    how = _meant(name, one_line(behind or value, 60), context)
    if not how and value in words[at + 1 :]:  # which may be right without it
        how = f"write {one_line(value, 60)} as a word of its own, without an option."
        if not _is_target(value) and context.command.name != "grid":
            how = misplaced([value], context)
    return f"{no_option}; {how or _all(context)}"


# What people call a command, by its name.
_COMMANDS = {
    "score": "check validate verify lint predict assess evaluate judge preflight estimate",
    "why": "diagnose doctor postmortem analyze analyse logs log",
    "grid": "sweep search tune",
}


def unknown_command(name: str, commands: Iterable[str]) -> str:
    """Say in one sentence what to type instead of a command that does not exist."""
    shown = one_line(name, 60)
    meant = next((f"; did you mean {n}?" for n, of in _COMMANDS.items() if name in of.split()), "")
    target = f"; did you mean rksp score {shown}?" if _is_target(name) else ""
    return f"There is no command {shown!r}" + (
        meant or nearest(name, commands) or target or "; rksp --help lists them."
    )


def _all(context: Any) -> str:
    long = [one.opts[0] for one in _options(context.command)]
    if len(long) <= _FEW:
        return f"it has {', '.join(long)}."
    return f"{context.command_path} --help lists what there is."


def _options(command: Any) -> list[Any]:
    return [one for one in command.params if one.param_type_name == "option" and not one.hidden]


def _meant(typed: str, value: str, context: Any) -> str:
    """Return how to write what a name and a value are nearest to; empty if nothing is near."""
    name = re.sub(rf"[.{_DASHES}]", "_", plain(typed.strip("-+/‐‑‒–—―−")))
    readings = [*_readings(name, value, context)]
    names = [name] * len(readings)
    if switched := re.match("(?:no|disable)_(.+)", name):
        off = [one._replace(how=one.off) for one in readings if one.off]
        readings, names = [*off, *readings], [switched[1]] * len(off) + names
    held = Counter(w for _, w in {(r.how, w) for r in readings for w in r.spelling.split("_")})
    rare = {word: math.log(1 + len(held) / count) for word, count in held.items()}
    costs = [
        one.cost + _distance(name, one.spelling, rare)
        for name, one in zip(names, readings, strict=True)
    ]
    if (least := min(costs)) <= _MOST:
        how = readings[costs.index(least)].how
        return f"{how} {_all(context)}" if least > _SURE and how.endswith("?") else how
    is_name = name.isidentifier() and not _is_target(value) and "=" not in value
    if value and is_name and any("--set" in one.opts for one in _options(context.command)):
        return f"if it is a setting of the model, write --set {name}={value}."
    return ""


def _readings(name: str, value: str, context: Any) -> Iterator[_Reading]:
    """Yield whatever could be written, the command's own first."""
    own = _options(context.command)
    taken = {option for one in own for option in one.opts}
    for one in own:
        yield from _of_option(one, name, value, context)
    if "--set" in taken:
        yield from _settings(value)
    for one in context.command.params:
        if one.param_type_name == "argument" and value:
            how = f"write {value} as a word of its own, without an option."
            told = re.findall(r"[a-z&]+", f"{one.name} {getattr(one, 'help', '')}".lower())
            yield from (_Reading(word, _ARGUMENT, how) for word in told if len(word) > _SHORT)
            if one.name == "target":
                yield from (_Reading(word, _WORD, how) for word in _called().get("model", {}))
    root = context.find_root().command
    for one in _options(root):
        yield _Reading(plain(one.opts[0].strip("-")), _ELSEWHERE, f"write rksp {one.opts[0]}.")
    commands = root.commands
    yield from (_Reading(plain(n), _WORD, f"rksp {n} is a command of its own.") for n in commands)
    for option, (names, spellings) in _elsewhere(context).items():
        how = f"it belongs to rksp {', '.join(names)}; {_all(context)}"
        if option not in taken:
            yield from (_Reading(one, _ELSEWHERE, how) for one in spellings)
    is_format = f".{name.rpartition('_')[2]}" in suffixes_of().split()  # such as print_json
    if "--evidence" in taken and not is_format and moves_nothing(name):
        yield _Reading(name, _ELSEWHERE, "it moves no answer of rksp; leave it out.")


def _of_option(one: Any, name: str, value: str, context: Any) -> Iterator[_Reading]:
    option, choices, also = one.opts[0], _values(one), getattr(context.command, "also", {})
    said = _complaint(one, value, context) if value else ""
    unfit = (_ARGUMENT if value[0].isdigit() and not choices else _UNFIT) if said else 0.0
    given = f" {value}" if value and not said else ""
    how = f"did you mean {option}{given}?" + f" {said}" * (unfit == _ARGUMENT)
    flag, off = flags_of(Recipe).get(one.name), ""
    if choices:
        off = f"write {option} with one of {', '.join(choices)}."
    elif one.secondary_opts or (flag and (flag.zero_is_off or one.default == 0)):
        off = f"write {next(iter(one.secondary_opts), option + ' 0')}."
    suffix = Path(value).suffix
    if option == "--output" and suffix[1:] and suffix in suffixes_of().split():
        how = f"write -o {value}."
        yield _Reading(suffix[1:], 0.0, how)
    for other in one.opts:
        yield _Reading(plain(other.strip("-")), unfit, how, off)
    if one.name in getattr(context.command, "brief", ()):
        yield _Reading(option[2], unfit + _ARGUMENT, how)
    for other in one.secondary_opts:
        yield _Reading(plain(other.strip("-")), unfit, f"did you mean {other}?")
    yield from (_Reading(word, unfit, how, off) for word, of in also.items() if of == option)
    bare = 0.0 if value.lower() in ("", "true", "1") else _UNFIT  # of what needs no value
    named = [v for v in choices if v in name.replace("float", "fp").replace("bfp", "bf").split("_")]
    for spelling, (field, unit) in _called().get(one.name, {}).items():
        told, cost = _IN_UNITS.get((field, unit), ""), unfit
        if unit == "on":
            told = f"write {{}} {named[0] if named else 'with one of ' + ', '.join(choices)}"
        if told:
            cost = bare * (unit == "on")
        yield _Reading(spelling, cost + _CALLED, f"{told.format(option)}." if told else how, off)
    for choice in choices:
        yield _Reading(plain(choice), _WORD + bare, f"write {option} {choice}.", off)
    for word, cost in ((name, _WORD + bare), (value, _UNFIT)):
        if word and (meant := word if word in choices else trainers_word(one.name)(word)):
            yield _Reading(name, cost, f"write {option} {meant}.")


def _settings(value: str) -> Iterator[_Reading]:
    """Yield what `--set` sets: fields of the recipe without an option, and sizes of the model."""
    shown = value or "VALUE"
    for field in (one for one, flag in flags_of(Recipe).items() if flag.is_set):
        for spelling in (field, *_called().get(field, {})):
            yield _Reading(spelling, _ARGUMENT, f"write --set {field}={shown}.")
    for setting, spellings in units("shape").items():
        for spelling in spellings.split() if setting != "foreign" else ():
            yield _Reading(spelling, _ELSEWHERE, f"write --set {setting}={shown}.")


@cache
def _called() -> dict[str, dict[str, tuple[str, str]]]:
    """Map fields of the recipe to what run files call them: spelling → field and unit there."""
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for field in (one for one in (*Recipe.model_fields, "model") if one != "objective"):
        for unit, spellings in units(field).items():
            for spelling in spellings.split() if field != "model" or unit != "last" else ():
                of = found.setdefault(_PARTS.get(unit, field), {})
                of.setdefault(spelling.replace(".", "_"), (field, unit))
    return found


def _elsewhere(context: Any) -> dict[str, tuple[list[str], list[str]]]:
    """Map the options of other commands to the names of these, and to the spellings."""
    found: dict[str, tuple[list[str], list[str]]] = {}
    for name, command in context.find_root().command.commands.items():
        if name != context.command.name and not command.hidden:
            for one in _options(command):
                spellings = [*(plain(x.strip("-")) for x in one.opts), *_called().get(one.name, {})]
                found.setdefault(one.opts[0], ([], spellings))[0].append(name)
    return found


def _values(parameter: Any) -> list[str]:
    metavar = str(parameter.metavar or "")
    return metavar.strip("[]").split("|") if metavar.startswith("[") else []


def _complaint(parameter: Any, value: str, context: Any) -> str:
    """Return what is said of a value that an option does not take; empty if it takes it."""
    if getattr(parameter, "is_flag", False):
        return "it takes no value." if value else ""
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            parameter.process_value(context, (value,) if parameter.multiple else value)
    except Exception as error:  # whatever a parser raises
        said = str(getattr(error, "message", ""))
        return said.partition("; ")[2] or "it takes another value."
    return ""


def _distance(typed: str, spelling: str, rare: dict[str, float]) -> float:
    """Return 0 for the same name to 1 for one that shares nothing."""
    joined, other = typed.replace("_", ""), spelling.replace("_", "")
    if joined == other:
        return 0.0
    first, second = typed.split("_"), spelling.split("_")
    unseen = _UNSEEN * max(rare.values())
    both = [(w, second) for w in first] + [(w, first) for w in second]
    total = sum(rare.get(word, unseen) for word, _ in both)
    alike = sum(rare.get(word, unseen) * max(_alike(word, w) for w in of) for word, of in both)
    is_kind = _alike(first[-1], second[-1]) > 0  # an output format is a format
    shared = alike / total - (0 if is_kind else _CALLED)
    if len(second) > 1 and joined == "".join(word[:1] for word in second):
        shared = max(shared, _INITIALS)
    return 1 - max(shared, _alike(joined, other))


@cache
def _alike(word: str, other: str) -> float:
    """Return how alike two words are: 1 for one and its plural, 0 where they only share letters."""
    word, other = word.rstrip("s"), other.rstrip("s")
    if word == other:
        return _PLURAL
    short, long = sorted((word, other), key=len)
    if len(short) <= 2:
        return 0.0
    if long.startswith(short):
        return _BEGUN * math.sqrt(math.sqrt(len(short) / len(long)))
    matcher = difflib.SequenceMatcher(None, word, other)
    if matcher.real_quick_ratio() < _MISSPELT or matcher.quick_ratio() < _MISSPELT:
        return 0.0
    return ratio if (ratio := matcher.ratio()) >= _MISSPELT else 0.0


_DASHES = "\\-‐-―−"  # of keys and of text programs
_ASSIGNED = re.compile(
    rf"[+/{_DASHES}]*([A-Za-z_][\w.]*)(?:[=:](.+)|=)|[/{_DASHES}]+([A-Za-z][\w{_DASHES}]*)"
)


def misplaced(words: Sequence[str], context: Any) -> str:
    """Say where a word belongs that is no target; empty if all may be targets.

    Args:
        words: What was typed for targets, or is too much.
        context: Of the command.
    """
    path, typed = context.command_path, [*context.meta.get(TYPED, [])]
    for word in words:
        shown, at = one_line(word, 60), typed.index(word) if word in typed else 0
        pair = None if _is_target(word) else _ASSIGNED.fullmatch(word)
        if pair and (":" not in word or number(pair[2]) is not None):
            value = pair[2] or "".join(typed[at + 1 : at + 2])
            name = (pair[1] or pair[3]).rpartition(".")[2]
            how = _meant(name, one_line(value, 60), context) or _all(context)
            return f"{path} takes no {shown}; {how}"
        if torn := _torn(typed, at, context):
            return torn
        if 0 < (number(word) or 0) < 1 and not is_file(word):
            return f"{path} takes no {shown}; if it is the rate, write --lr {shown}."
    return ""


def _torn(typed: Sequence[str], at: int, context: Any) -> str:
    """Say how to write the value of an option that blanks tore apart, one part of it at `at`."""
    takes = {name: one for one in _options(context.command) for name in one.opts}
    start = next((n for n in range(at - 1, -1, -1) if typed[n] in takes), None)
    if start is None:
        return ""
    is_part = lambda word: not word.startswith("-") or word[1:2].isdigit()
    name, parts = typed[start], [*takewhile(is_part, typed[start + 1 :])]
    option, value = takes[name], one_line(" ".join(parts), 60)
    if getattr(option, "is_flag", False):
        is_switch = parts[:1] == [typed[at]] and parts[0].lower() in _SWITCHES
        return f"{name} takes no value; write it without {parts[0]}." if is_switch else ""
    if at - start > len(parts) or len(parts) < 2 or any(map(_is_target, parts[1:])):
        return ""
    if "=" in str(option.metavar) and "=" not in parts[0]:
        return f"{name} {value}: write {name} {parts[0]}={parts[1]}."
    is_whole = None in map(number, parts) or all(len(part) == 3 for part in parts[1:])
    if is_whole and not _complaint(option, "".join(parts), context):
        return f"{name} {value}: write {name} {''.join(parts)}, with no blank inside."
    is_axis = option.name in Recipe.model_fields and not _values(option)
    if how := misread(value, name.strip("-") if is_axis else ""):
        return f"{name} is {value!r}; {how}"
    return f"{name} {parts[0]} needs no more; leave out {one_line(' '.join(parts[1:]), 60)}."


def _is_target(word: str) -> bool:
    from rksp.models.names import is_type, published_like

    is_named = Path(word).suffix[1:].isalpha() or "/" in word[1:] or os.path.lexists(word)
    return is_named or is_type(word) or published_like(word) is not None


def _unexpected(said: str, context: Any) -> str:
    path = context.command_path
    words = said.partition("(s) (")[2].rstrip(")").split()
    file = next((word for word in words if Path(word).suffix in (*RUN_SUFFIXES, ".json")), None)
    if setting := misplaced(words, context):
        return setting
    if file is not None and any(one.name == "recipe_file" for one in context.command.params):
        return f"{path} takes one target; give the run file with --recipe {one_line(file, 200)}."
    if words:
        shown = one_line(", ".join(words), 200)
        return f"{path} does not take {shown}; {path} --help lists what it takes."
    return f"{said}; {path} --help lists what there is."


def _wanting(name: str, context: Any) -> str:
    option = next(one for one in context.command.params if name in one.opts + one.secondary_opts)
    if getattr(option, "is_flag", False):
        return f"{name} takes no value; write {name} alone."
    values = ", ".join(_values(option))
    return f"{name} needs a value{f' ({values})' if values else ''}: {option.help}"


def _missing(parameter: Any, name: str, context: Any) -> str:
    path = context.command_path
    file = next(filter(is_run_file, context.meta.get(TYPED, []) if name == "TARGET" else ()), "")
    more = f"did you mean {path} {file}?" if file else f"{path} --help says more."
    what = str(parameter.help).partition(":")[0].rstrip(".")
    return f"{path} needs {name} ({what[:1].lower()}{what[1:]}); {more}"


# The command that reads a kind of file, what is such a file, and what to say of it.
_KINDS: dict[str, tuple[Callable[[Path], bool], str]] = {
    "grid": (lambda path: is_store(path), "is the store of a grid; show it with"),
    "report": (lambda path: _has(path, b'"schema_version"'), "is a report; show it with"),
    "score": (lambda path: is_run_file(str(path)), "is a run file; judge it with"),
    "why": (lambda path: _is_log(path), "is neither a run file nor a model; if it is a log, try"),
}


def is_store(path: Path) -> bool:
    """Tell whether a file is the store of a grid."""
    return read_head(path, len(_STORE_MARK)) == _STORE_MARK


def refuse_other(name: str, *takes: str) -> None:
    """Refuse a file that another command reads, and name that command.

    Args:
        name: What was typed.
        takes: Commands whose files this one reads, mostly its own.

    Raises:
        InputError: It is one.
    """
    path = Path(name)
    if not is_file(path):
        return
    command = None
    with suppress(InputError):  # what nothing reads is refused by the command that was typed
        command = next((one for one, (fits, _) in _KINDS.items() if fits(path)), None)
    if command is not None and command not in takes:
        shown = one_line(name, 200)
        raise InputError(f"{shown} {_KINDS[command][1]} rksp {command} {shown}.")


def _has(path: Path, mark: bytes) -> bool:
    return path.suffix == ".json" and mark in read_head(path, _LARGEST)


def _is_log(path: Path) -> bool:
    from rksp.calls.why import is_read

    return _has(path, b'"loss":') or (path.suffix not in (*RUN_SUFFIXES, ".json") and is_read(path))
