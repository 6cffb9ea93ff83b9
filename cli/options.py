"""Options of commands, made from the fields of models that carry a `Flag`."""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import typer
from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from rksp.ground.errors import InputError, nearest
from rksp.ground.flags import COUNT, Flag, checked, flags_of, whole
from rksp.ground.text import one_line, words
from rksp.recipe import Recipe

Model = TypeVar("Model", bound=BaseModel)
_Command = TypeVar("_Command", bound=Callable[..., object])
_LEAST_SIZE = 10**6  # bytes
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_LARGE = ("max_params",)  # shown as 2e+09
_TYPED = ("COMMANDLINE", "ENVIRONMENT")
# What people give of a run, for the brief help of every command that takes one.
RUN = (
    "learning_rate recipe_file warmup_steps max_steps batch_size sequence_length optimizer "
    "overrides"
)

# The fields of the recipe with an option of their own where the run is not the question; --set
# sets the others.
SHORT = words("learning_rate optimizer warmup_steps max_steps batch_size sequence_length schedule")


def as_count(
    least: int | None = None,
    most: int | None = None,
    read: Callable[[object], Any] = whole,
    axis: str = "",
) -> Callable[[object], int]:
    """Return the parser of an option that counts something, such as `--seeds 3` or `--steps 10k`.

    Args:
        least: The least count that is accepted; None leaves that to the model of the option.
        most: The largest.
        read: What reads the text, and raises ValueError.
        axis: The axis of a grid that has several such counts; empty if there is none.
    """

    def parse(value: object) -> int:
        try:
            number: int = read(value)
        except ValueError as error:
            from rksp.recipe_files.parse.misread import misread

            how = misread(str(value), axis)
            if (meant := re.search("write it as (.*).$", how)) and not meant[1].isdigit():
                how = ""
            said = f"is {one_line(str(value), 60)!r}; {error}{': ' + how if how else '.'}"
            raise typer.BadParameter(said) from None
        if least is not None and number < least:
            raise typer.BadParameter(f"is {number}; it should be {least} or more.")
        if most is not None and number > most:
            raise typer.BadParameter(f"is {number}; it should be at most {most}.")
        return number

    return parse


def _as_count_or_share(value: object) -> float:
    text = str(value)
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if (share % 1 or text.endswith("%")) and share >= 1:
        raise typer.BadParameter(f"is {text}; it counts steps, or is a share below 1 such as 0.03.")
    return share if 0 < share < 1 else as_count(axis="warmup")(value)


def as_choice(
    known: Sequence[str], of_trainer: Callable[[str], str | None] = lambda name: None
) -> dict[str, Any]:
    """Return the settings of an option that takes one of these words, in capitals or not.

    Args:
        known: The words.
        of_trainer: Returns the word for what a trainer calls it, such as bf16 for bfloat16.
    """

    def parse(value: str) -> str:
        found = next((one for one in known if one.lower() == value.lower()), None)
        if found is None and (found := of_trainer(value)) is not None:
            print(f"rksp: {one_line(value, 60)} is read as {found}", file=sys.stderr)
        if found is None:
            hint = nearest(value, known, count=1) or "."
            raise typer.BadParameter(
                f"is {one_line(value, 60)!r}, which is unknown; use {', '.join(known)}{hint}"
            )
        return found

    def complete(incomplete: str) -> list[str]:
        return [one for one in known if one.startswith(incomplete)]

    return {"parser": parse, "metavar": f"[{'|'.join(known)}]", "autocompletion": complete}


# What trainers add to the name of an optimizer whose update is the same.
_VARIANT = re.compile(r"paged|bnb|torch|fused|apex|foreach|optim|hf|xla|npu|(4|8|32)-?bit|[_.-]")


def trainers_word(field: str) -> Callable[[str], str | None]:
    """Return what reads a trainer's word for a field of the recipe, as in its run files."""

    def read(name: str) -> str | None:
        from rksp.recipe_files.table import names
        from rksp.recipe_files.table.spellings import plain, spelt

        if field == "precision":
            return names.precision_of(name)
        if field == "objective":
            return "lm" if plain(name) in (*spelt("objective", "for"), "causal_lm") else None
        if field == "schedule":
            return names.schedule_of(name)[0]
        found, loss = names.optimizer_of(name)
        spelled = found is not None and _VARIANT.sub("", name.lower().replace(found, "", 1)) == ""
        return found if spelled and not loss else None

    return (
        read if field in ("precision", "objective", "optimizer", "schedule") else lambda name: None
    )


def _as_size(value: str) -> str:
    """Read a size with its unit; bytes alone are no size that anybody means."""
    if value.replace(".", "").isdigit() and float(value) < _LEAST_SIZE:
        raise typer.BadParameter(f"is {value}, which is bytes; write its unit, such as {value}GB.")
    return value


def _as_number(flag: Flag, axis: str) -> Callable[[object], float]:

    def parse(value: object) -> float:
        text = str(value)
        try:
            return float(re.sub("[‐-―−]", "-", text))
        except ValueError:
            from rksp.recipe_files.parse.misread import misread

            how = misread(text, axis) or "write it as 6e-4 or 0.0006."
            if flag.unit == "seconds" and (time := re.fullmatch(r"([\d.]+) ?([smh])\w*", text)):
                how = f"write it in seconds: {float(time[1]) * _SECONDS[time[2]]:g}."
            if flag.zero_is_off and not any(map(str.isdigit, text)):
                how = f"{flag.name} 0 switches it off."
            said = f"is {one_line(text, 60)!r}, which is no number; {how}"
            raise typer.BadParameter(said) from None

    return parse


NoCache = Annotated[
    bool,
    typer.Option(
        "--no-cache",
        help="Measure anew, and keep nothing for the next score of this model.",
        rich_help_panel="Measurement",
    ),
]
TextOrJson = Annotated[
    Literal["text", "json"],
    typer.Option("--format", help="Format of the output on stdout.", **as_choice(("text", "json"))),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A marker on a model's type: the options that a command makes from the model.

    Attributes:
        title: Title of the panel in `--help`.
        leave_out: Fields without an option here.
        only: The fields that have one; empty means all.
        helps: Help texts that replace the fields' own.
        defaults: Defaults that replace the fields' own.
    """

    title: str
    leave_out: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    helps: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Given(Generic[Model]):
    """The fields of a model on the command line, before a run file fills the others.

    Attributes:
        model: The model.
        values: Field → value; an option that was not typed has its default.
        typed: Fields whose options were typed or set in the environment.
    """

    model: type[BaseModel]
    values: Mapping[str, object]
    typed: frozenset[str]

    def setting(self, pairs: Sequence[str]) -> tuple[Given[Model], list[str]]:
        """Take the fields of the model out of pairs of `--set`; return what they leave, too.

        Raises:
            InputError: A value cannot be used, or an option sets the same field.
        """
        values, typed, others = dict(self.values), set(self.typed), []
        for pair in pairs:
            name, _, text = pair.partition("=")
            if name not in self.model.model_fields:
                others.append(pair)
                continue
            if name in typed:
                raise InputError(f"--set {name}= sets {name} again; leave one out.")
            source = {name: f"--set {name}"}
            found = checked(self.model, {name: text}, noun="recipe", sources=source)
            values[name] = getattr(found, name)
            typed.add(name)
        return replace(self, values=values, typed=frozenset(typed)), others


def with_options(command: _Command) -> _Command:
    """Give a command one option for each field of its parameters that are models.

    A parameter `Annotated[SomeModel, Panel(...)]` becomes the options of the model's flags, and
    the command receives the model; `Annotated[Given[SomeModel], Panel(...)]` receives the values.
    All other parameters stay as they are. The command's `from_file` has the names of the parameters
    that a file of defaults may set.
    """
    hints = get_type_hints(command, include_extras=True)
    found = {name: _Group.of(hint) for name, hint in hints.items()}
    groups = {name: group for name, group in found.items() if group is not None}
    own_names = {flag.name for group in groups.values() for _, flag in group.flags()}
    own = inspect.signature(command).parameters
    parameters: list[inspect.Parameter] = []
    for name, parameter in own.items():
        if name in groups:
            parameters += groups[name].parameters(own_names)
        else:
            parameters.append(
                parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
            )
    if "context" not in own:
        parameters.append(_parameter("context", typer.Context, inspect.Parameter.empty))
    if hasattr(command, "brief"):
        parameters.append(_parameter("help_all", _HELP_ALL, False))

    @functools.wraps(command)
    def run(help_all: bool = False, **values: Any) -> Any:
        context = values["context"] if "context" in own else values.pop("context")
        models: dict[str, Any] = {n: group.read(values, context) for n, group in groups.items()}
        given = next((name for name, one in models.items() if isinstance(one, Given)), None)
        for name, one in models.items():
            if given is not None and getattr(one, "overrides", None):
                models[given], others = models[given].setting(one.overrides)
                models[name] = one.model_copy(update={"overrides": others})
        return command(**values, **models)

    made: Any = run
    made.__signature__ = inspect.Signature(parameters)
    made.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    flags = [pair for group in groups.values() for pair in group.flags()]
    made.from_file = frozenset(name for name, flag in flags if flag.from_file)
    made.also = {word: flag.name for _, flag in flags for word in flag.also.split()}
    with_flags: _Command = made
    return with_flags


def is_typed(context: typer.Context, name: str) -> bool:
    """Tell whether a parameter was typed, or set in the environment."""
    return getattr(context.get_parameter_source(name), "name", "") in _TYPED


def refuse_unused(context: typer.Context, names: str, why: str) -> None:
    """Refuse options that were typed and would have no effect.

    Args:
        context: Of the command.
        names: Names of their parameters, separated by blanks.
        why: Why they have none, a clause.

    Raises:
        InputError: One was typed.
    """
    for parameter in context.command.params:
        if parameter.name in words(names) and is_typed(context, str(parameter.name)):
            raise InputError(f"{parameter.opts[0]} has no effect here: {why}; leave it out.")


def brief(names: str) -> Callable[[_Command], _Command]:
    """Let `--help` of a command show these parameters alone, and `--help-all` all of them."""

    def decorate(command: _Command) -> _Command:
        marked: Any = command
        marked.brief = words(names)
        return command

    return decorate


def _show_all(context: typer.Context, is_asked: bool) -> None:
    if is_asked:
        cast(Any, context.command).brief = ()
        print(context.get_help())
        raise typer.Exit


_HELP_ALL = Annotated[
    bool,
    typer.Option(
        "--help-all", help="Show all options and stop.", is_eager=True, callback=_show_all
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """The options of one model in one command."""

    model: type[BaseModel]
    panel: Panel
    is_given: bool

    @classmethod
    def of(cls, hint: object) -> _Group | None:
        if get_origin(hint) is not Annotated:
            return None
        kind, *markers = get_args(hint)
        panel = next((marker for marker in markers if isinstance(marker, Panel)), None)
        if panel is None:
            return None
        is_given = get_origin(kind) is Given
        return cls(model=get_args(kind)[0] if is_given else kind, panel=panel, is_given=is_given)

    def flags(self) -> Iterator[tuple[str, Flag]]:
        for name, flag in flags_of(self.model).items():
            is_left_out = flag.is_set or name in self.panel.leave_out
            if not is_left_out and (not self.panel.only or name in self.panel.only):
                yield name, flag

    def parameters(self, own_names: set[str]) -> Iterator[inspect.Parameter]:
        """Yield an option a field; a name that is another option's own (`--steps`) stays its."""
        for name, flag in self.flags():
            others = (one for one in flag.options[1:] if one not in own_names)
            definition = self.model.model_fields[name]
            annotation = str | None if flag.is_text else definition.annotation
            default = self.panel.defaults.get(name, definition.default)
            default = None if default == () else default
            option = typer.Option(
                flag.name,
                *others,
                help=replace(flag, help=self.panel.helps.get(name, flag.help)).said,
                **{"metavar": flag.unit.upper() or None, **_parsing(name, flag, definition)},
                show_default=f"{default:.0e}" if name in _LARGE else True,
                rich_help_panel=self.panel.title,
            )
            yield _parameter(name, Annotated[annotation, option], default)

    def read(self, values: dict[str, Any], context: typer.Context) -> BaseModel | Given[BaseModel]:
        """Take the model's values out of those of the command."""
        found, sources = {}, {}
        for name, flag in self.flags():
            value = values.pop(name)
            found[name] = None if flag.zero_is_off and value == 0 else value
            sources[name] = getattr(context.get_parameter_source(name), "name", "")
        if self.is_given:
            typed = {n for n, source in sources.items() if source in _TYPED}
            return Given(model=self.model, values=found, typed=frozenset(typed))
        return checked(self.model, found, noun="command", sources=flag_names(self.model))


def _parsing(name: str, flag: Flag, field: FieldInfo) -> dict[str, Any]:
    kinds = (field.annotation, *get_args(field.annotation))
    choices = next((get_args(one) for one in kinds if get_origin(one) is Literal), ())
    if flag.is_text and flag.unit == "size":
        return {"parser": _as_size}
    if flag.is_text:
        return {}
    if choices:
        return as_choice(choices, trainers_word(name))
    if name == "warmup_steps":
        return {"parser": _as_count_or_share}
    axis = flag.name.strip("-") if name in Recipe.model_fields else ""
    if COUNT in field.metadata or int in kinds:
        readers: Any = (one.func for one in field.metadata if isinstance(one, BeforeValidator))
        return {"parser": as_count(read=next(readers, whole), axis=axis)}
    return {"parser": _as_number(flag, axis)} if float in kinds else {}


def flag_names(model: type[BaseModel]) -> dict[str, str]:
    """Map the fields of a model to their options: how a command's messages name them."""
    return {name: flag.name for name, flag in flags_of(model).items()}


def _parameter(name: str, annotation: object, default: object) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default
    )


def print_json(document: object) -> None:
    """Print a document on stdout, keys in order."""
    sys.stdout.write(json.dumps(document, indent=1, sort_keys=True) + "\n")


def answer(output_format: str, document: object, lines: Iterable[str]) -> None:
    """Print an answer in the format of `TextOrJson`: its document, or its lines."""
    if output_format == "json":
        print_json(document)
    else:
        print_lines(lines)


def print_lines(lines: Iterable[str]) -> None:
    """Print lines, which go on indented where a terminal ends; a file has them whole."""
    is_told = sys.stdout.isatty() or "COLUMNS" in os.environ
    width = shutil.get_terminal_size().columns if is_told else sys.maxsize
    wrapper = textwrap.TextWrapper(  # names of files stay whole, to be copied
        width, subsequent_indent="    ", break_on_hyphens=False, break_long_words=False
    )
    for line in map(one_line, lines):
        print(wrapper.fill(line))
    sys.stdout.flush()
