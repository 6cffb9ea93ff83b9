"""What a person meant who typed what a command does not take: one rule for each kind of slip."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rksp.cli.options import trainers_word
from rksp.ground.errors import InputError, nearest
from rksp.ground.files import is_file, read_head
from rksp.ground.flags import field_of, flags_of
from rksp.ground.text import one_line
from rksp.question.run import RUN_SUFFIXES, is_run_file
from rksp.recipe import Recipe
from rksp.recipe_files.table.spellings import plain, units
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
    ("min_lr_ratio", "rate"): "{} is the final rate as a share of the peak, such as 0.1",
    ("adam_beta1", "pair"): "give each its own option, {} and --beta2",
    ("peft", "bits"): "write {} qlora, whose weights have 4 bits",
}
# Units of a field that are another's.
_PARTS = {"rank": "lora_rank", "alpha": "lora_alpha", "targets": "lora_targets"}
_PARTS |= {"accumulation": "gradient_accumulation_steps"}
_LARGEST = 2**26  # bytes of a file that is looked through
_SHORT, _LONG = 4, 5  # characters with which many options begin, and of words of many names
_MOST_NAMED, _FEW = 2, 8  # options that a sentence offers, and that it lists


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slip:
    """An option that a command does not have: its name and value, and what the command has."""

    typed: str
    value: str
    context: Any

    @property
    def name(self) -> str:
        """The name in small letters, with underscores."""
        return plain(self.typed.strip("-"))

    @property
    def parameters(self) -> list[Any]:
        """Options and arguments of the command."""
        return [one for one in self.context.command.params if not one.hidden]

    @property
    def known(self) -> list[str]:
        """Names of the options."""
        options = [one for one in self.parameters if one.param_type_name == "option"]
        return [name for one in options for name in (*one.opts, *one.secondary_opts)]


def unknown_option(typed: str, context: Any) -> str:
    """Say in one sentence what to type instead of an option that a command does not have."""
    words = context.meta.get(TYPED, [])
    at = next((n for n, word in enumerate(words) if word.partition("=")[0] == typed), len(words))
    given = [*words[at : at + 2], "", ""]
    value = given[0].partition("=")[2] or ("" if given[1].startswith("-") else given[1])
    slip = _Slip(typed=typed, value=one_line(value, 60), context=context)
    first = (_digits, _also, _field, _choice, _named, _bare, _owned)
    rules = (*first, _begun, _short, _near, _setting)
    how = next(filter(None, (rule(slip) for rule in rules)), None)
    how = how or _all(slip)
    return f"{context.command_path} has no option {one_line(typed, 60)}; {how}"


def _all(slip: _Slip) -> str:
    long = [one.opts[0] for one in slip.parameters if one.param_type_name == "option"]
    if len(long) <= _FEW:
        return f"it has {', '.join(long)}."
    return f"{slip.context.command_path} --help lists what there is."


def _digits(slip: _Slip) -> str:
    return "write a number without blanks." if slip.name.isdigit() else ""


def _field(slip: _Slip) -> str:
    """Name the option of a field of the recipe that a trainer's run file calls so."""
    name = slip.name.removeprefix("no_").removeprefix("disable_")
    return _option_of(slip, _meanings(name))


def _option_of(slip: _Slip, meanings: Iterable[tuple[str, str]]) -> str:
    for field, unit in meanings:
        flag = flags_of(Recipe).get(field)
        option = flag.name if flag else f"--{field}"
        if flag and flag.is_set and "--set" in slip.known:
            return f"give {option}{slip.value or 'VALUE'}."
        if option not in slip.known or option == slip.typed:
            continue
        if how := _IN_UNITS.get((field, unit)):
            return f"{how.format(option)}."
        if unit == "on":
            return f"write {option} {_switched(slip, option)}."
        return f"did you mean {option}?"
    return ""


def _switched(slip: _Slip, option: str) -> str:
    values = next(_values(one) for one in slip.parameters if option in one.opts)
    name = slip.name if not slip.name.startswith(("no_", "disable_")) else ""
    parts = name.replace("float", "fp").replace("bfp", "bf").split("_")
    named = [value for value in values if value in parts]
    return named[0] if named else f"with one of {', '.join(values)}"


def _values(parameter: Any) -> list[str]:
    metavar = str(parameter.metavar or "")
    return metavar.strip("[]").split("|") if metavar.startswith("[") else []


def _meanings(name: str) -> Iterator[tuple[str, str]]:
    """Yield the fields of the recipe, with the unit, that a trainer's run file calls so."""
    joined = name.replace("_", "")
    for field in (one for one in Recipe.model_fields if one != "objective"):
        if field == name and flags_of(Recipe)[field].is_set:
            yield field, ""
        for unit, spellings in units(field).items():
            if joined in spellings.replace("_", "").split():
                yield ("devices", unit) if unit == "devices" else (_PARTS.get(unit, field), unit)


def _abbreviated(name: str) -> list[tuple[str, str]]:
    """Return the one field that a name begins, has the initials of, or shares a word with."""
    words = name.split("_")
    for is_short in (
        lambda spelling: len(name) > 2 and spelling.startswith(f"{name}_"),
        lambda spelling: len(name) > 1 and "".join(w[0] for w in spelling.split("_") if w) == name,
        lambda spelling: any(len(word) > _LONG and word in spelling.split("_") for word in words),
    ):
        fit = {
            _PARTS.get(unit, field): unit
            for field in (*_of - {"objective"},)
            for unit, spellings in units(field).items()
            if any(map(is_short, spellings.split()))
        }
        if len(fit) == 1:
            return [*fit.items()]
    return []


def _short(slip: _Slip) -> str:
    return _option_of(slip, _abbreviated(slip.name))


def _choice(slip: _Slip) -> str:
    """Name the option of which this is a value; a file is written by -o."""
    suffix = Path(slip.value).suffix
    is_format = suffix in suffixes_of().split() and slip.name.startswith(suffix[1:])
    is_format = is_format or suffix in (".html", ".md", ".sarif", ".xml")
    if is_format and "-o" in slip.known:
        return f"write -o {slip.value}."
    for word in (slip.name, slip.value):
        fit = [(one, word) for one in slip.parameters if word in _values(one)]
        fit = fit or [(x, v) for x in slip.parameters if (v := trainers_word(x.name)(word))]
        if len(fit) == 1:
            return f"write {fit[0][0].opts[0]} {fit[0][1]}."
    return ""


def _named(slip: _Slip) -> str:
    words = slip.name.split("_")
    for one in slip.parameters:
        if words[0] == "no" and f"--{'-'.join(words[1:])}" in one.opts and one.secondary_opts:
            return f"did you mean {one.secondary_opts[0]}?"
    found = [one for one in slip.known if one.startswith("--") and one.strip("-") in words]
    return f"did you mean {found[0]}?" if len(words) > 1 and len(found) == 1 else ""


def _owned(slip: _Slip) -> str:
    commands = slip.context.find_root().command.commands
    if slip.name in commands:
        return f"rksp {slip.name} is a command of its own."
    meant = {slip.typed, *(flags_of(Recipe)[f].name for f, _ in _meanings(slip.name) if f in _of)}
    owners = [
        name
        for name, command in commands.items()
        if name != slip.context.command.name and not command.hidden
        if meant & {one for parameter in command.params for one in parameter.opts}
    ]
    return f"it belongs to rksp {', '.join(owners)}; {_all(slip)}" if owners else ""


_of = frozenset(Recipe.model_fields)


def _begun(slip: _Slip) -> str:
    words = f"--{slip.name.replace('_', '-')}"
    found = [one for one in slip.known if one == f"{words}s"]
    starts = [one for one in slip.known if one.startswith(f"{words}-") or one.endswith(words[1:])]
    found = found or starts
    found = found or [one for one in slip.known if len(one) > _SHORT - 1 and words.startswith(one)]
    found = found or [one for one in slip.known if len(words) > _SHORT and one.startswith(words)]
    return f"did you mean {found[0]}?" if len(found) == 1 else ""


def _also(slip: _Slip) -> str:
    calls = getattr(slip.context.command, "also", {})
    return f"did you mean {calls[slip.name]}?" if slip.name in calls else ""


def _bare(slip: _Slip) -> str:
    """Say that it is a word, if the help of an argument speaks of it, and no option's name."""
    words = slip.name.split("_")
    if _begun(slip):
        return ""
    for one in slip.parameters:
        told = f"{one.name} {getattr(one, 'help', '')}".lower()
        is_argument = one.param_type_name == "argument"
        if is_argument and words[0].rstrip("s") in re.findall(r"[a-z&]+", told.replace("s ", " ")):
            return f"write {slip.value or 'it'} as a word of its own, without an option."
    return ""


def _near(slip: _Slip) -> str:
    names = [one.strip("-") for one in slip.known if one.startswith("--")]
    close = nearest(slip.name.replace("_", "-"), names, count=1, cutoff=0.75)
    return close.removeprefix("; ").replace("mean ", "mean --")


def _setting(slip: _Slip) -> str:
    setting = f"--set {slip.name}={slip.value}"
    is_value = (
        len(slip.name) > 1
        and not slip.value.isupper()
        and slip.value != ""
        and not Path(slip.value).suffix[1:].isalpha()
    )
    is_taken = "--set" in slip.known and slip.name.isidentifier() and is_value
    return f"if it is a setting of the model, write {setting}." if is_taken else ""


def misplaced(words: Sequence[str], context: Any) -> str:
    """Say where a word belongs that is no target; empty if all may be targets.

    Args:
        words: What was typed for targets, or is too much.
        context: Of the command.
    """
    path = context.command_path
    for word in words:
        shown = one_line(word, 60)
        name, sign, value = word.partition("=")
        if sign and name.isidentifier():
            return f"{path} takes no {shown}; write {_as_option(name, value, context)}."
        if flag := _behind_flag(word, context):
            return f"{flag} takes no value; write it without {shown}."
        if before := _left_behind(word, context):
            return f"{shown} stands alone; {before}."
        if _is_rate(word):
            return f"{path} takes no {shown}; if it is the rate, write --lr {shown}."
    return ""


def _as_option(name: str, value: str, context: Any) -> str:
    slip = _Slip(typed=f"--{name}", value=value, context=context)
    fields = [field_of(Recipe, name), *(field for field, _ in _meanings(slip.name))]
    flags = (flags_of(Recipe)[field] for field in fields if field in _of)
    if flag := next((one for one in flags if one.is_set or one.name in slip.known), None):
        return " ".join(flag.typed(value))
    option = name.replace("_", "-")
    return f"--set {name}={value}" if "--set" in slip.known else f"--{option} {value}"


def _behind_flag(word: str, context: Any) -> str:
    typed = [*context.meta.get(TYPED, []), ""]
    before = typed[typed.index(word) - 1] if word in typed else ""
    flags = [one for one in context.command.params if before in (*one.opts, *one.secondary_opts)]
    is_one = any(getattr(one, "is_flag", False) for one in flags)
    return before if is_one and word.lower() in ("true", "false", "yes", "no", "1", "0") else ""


def _left_behind(word: str, context: Any) -> str:
    """Return the option and value behind which a part of the value was left, put together."""
    typed = [*context.meta.get(TYPED, [])]
    at = typed.index(word) if word in typed else 0
    if at < 2 or Path(word).suffix[1:].isalpha() or "/" in word or is_file(word):
        return ""
    option, value = typed[at - 2 : at]
    takes = next((one for one in context.command.params if option in one.opts), None)
    if takes is None or getattr(takes, "is_flag", True) or _is_model(word):
        return ""
    shown, more = f"{option} {one_line(value, 60)}", one_line(word, 60)
    if "=" in str(takes.metavar) and "=" not in value:
        return f"write {shown}={more}"
    is_part = (
        not _values(takes) and len(word) < _SHORT and not (_is_number(word) and not word.isdigit())
    )
    return f"write {shown}{more}, with no blank inside" if is_part else f"{shown} needs no more"


def _is_model(word: str) -> bool:
    from rksp.models.names import is_type, published_like

    return is_type(word) or published_like(word) is not None


def _is_rate(word: str) -> bool:
    return _is_number(word) and not is_file(word) and 0 < float(word) < 1


def _is_number(word: str) -> bool:
    try:
        return bool(float(word)) or True
    except ValueError:
        return False


def unexpected_words(said: str, context: Any) -> str:
    """Say what to do with words that a command does not take."""
    path = context.command_path
    words = said.partition("(s) (")[2].rstrip(")").split()
    file = next((word for word in words if Path(word).suffix in (*RUN_SUFFIXES, ".json")), None)
    if setting := misplaced(words, context):
        return setting
    takes = any(parameter.name == "recipe_file" for parameter in context.command.params)
    if file is not None and takes:
        return f"{path} takes one target; give the run file with --recipe {one_line(file, 200)}."
    if words:
        shown = one_line(", ".join(words), 200)
        return f"{path} does not take {shown}; {path} --help lists what it takes."
    return f"{said}; {path} --help lists what there is."


def wanting(name: str, context: Any) -> str:
    """Say what an option lacks that was typed without its value, or has too much."""
    option = next(one for one in context.command.params if name in one.opts + one.secondary_opts)
    if getattr(option, "is_flag", False):
        return f"{name} takes no value; write {name} alone."
    values = ", ".join(_values(option))
    return f"{name} needs a value{f' ({values})' if values else ''}: {option.help}"


def given_twice(context: Any, order: Sequence[Any]) -> Iterator[str]:
    """Yield a note on every option of which only the last value counts, as scripts append them.

    Args:
        context: Of the command.
        order: The parameters as they were typed.

    Raises:
        InputError: A flag and its opposite were typed.
    """
    typed = context.meta.get(TYPED, [])
    for one in dict.fromkeys(order):
        if getattr(one, "is_flag", False):
            both = [n for n in (*one.opts, *one.secondary_opts) if n in typed]
            if {*both} & {*one.opts} and {*both} & {*one.secondary_opts}:
                raise InputError(f"{' and '.join(both)} contradict each other; leave one out.")
        elif one.param_type_name == "option" and not one.multiple and order.count(one) > 1:
            vary = f"; rksp grid TARGET {one.name}=A,B judges several values"
            yield f"{one.opts[0]} is given twice; the last counts{vary if one.name in _of else ''}."


def missing(name: str, context: Any) -> str:
    """Say what a command lacks; a run file among its words may be what it wants."""
    path = context.command_path
    file = next((one for one in context.meta.get(TYPED, []) if is_run_file(one)), None)
    wants = any(one.name == "recipe_file" for one in context.command.params)
    is_meant = file is not None and wants and name == "TARGET"
    more = f"did you mean {path} {file}?" if is_meant else f"{path} --help says more."
    return f"{path} needs {name}; {more}"


# The command that reads a kind of file, what is such a file, and what to say of it.
_KINDS: dict[str, tuple[Callable[[Path], bool], str]] = {
    "grid": (lambda path: is_store(path), "is the store of a grid; show it with"),
    "report": (lambda path: _is_report(path), "is a report; show it with"),
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


def _is_report(path: Path) -> bool:
    return path.suffix == ".json" and b'"schema_version"' in read_head(path, _LARGEST)


def _is_log(path: Path) -> bool:
    from rksp.calls.why import is_read

    if path.suffix == ".json":
        return b'"loss":' in read_head(path, _LARGEST)
    return path.suffix not in RUN_SUFFIXES and is_read(path)
