"""All readers, and the function that reads a file's recipe."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from rksp.ground.errors import InputError
from rksp.ground.option_lines import known_name
from rksp.recipe import REINFORCED
from rksp.recipe_files.parse.document import (
    Document,
    Found,
    lines_below,
    load_document,
    named_file,
)
from rksp.recipe_files.parse.following import composed, launched, merged, with_defaults
from rksp.recipe_files.parse.python_loop import OPTIMIZERS, OPTIONS
from rksp.recipe_files.parse.shell_command import FURTHER
from rksp.recipe_files.parse.values import Section, is_logged, unwrapped, unwrapped_lines
from rksp.recipe_files.readers import (
    deepspeed,
    gpt2,
    hugging_face,
    jax,
    lightning,
    megatron,
    meta,
    pretraining,
    reinforcement,
    scripts,
)
from rksp.recipe_files.said.origin import DECISIVE, RecipeFile
from rksp.recipe_files.table import by_name
from rksp.recipe_files.table.draft import Draft
from rksp.recipe_files.table.reader import Reader, foreign_format, reader_of, unread
from rksp.recipe_files.table.spellings import misspelt, spoken_of

# Tables of `keys.toml` and the module of their functions. The first whose marks match reads; the
# most particular marks come first.
_HOMES = (
    (reinforcement, "verl verl-sft openrlhf"),
    (pretraining, "nanotron"),
    (meta, "torchtune"),
    (lightning, "litgpt"),
    (megatron, "nemo"),
    (jax, "levanter"),
    (meta, "lingua"),
    (pretraining, "olmo llm-foundry composer"),
    (meta, "fairseq"),
    (hugging_face, "axolotl"),
    (meta, "torchtitan"),
    (gpt2, "modded-nanogpt nanogpt"),
    (megatron, "gpt-neox"),
    (gpt2, "llm.c"),
    (megatron, "megatron"),
    (jax, "maxtext"),
    (hugging_face, "llama-factory-v1 llama-factory ms-swift"),
    (lightning, "lightning timm"),
    (hugging_face, "trl hugging-face"),
    (deepspeed, "deepspeed"),
)
READERS: tuple[Reader, ...] = tuple(
    reader_of(name, vars(home)) for home, names in _HOMES for name in names.split()
)
# Reads what no trainer's reader knows, by the names of the settings alone.
BY_NAME = Reader(name="by name", title="settings found by name", steps=(by_name.fill,))
FIXED = "the model's own weights are not trained"
_EARLY = 0.5  # of a run that is left when the schedule has ended
_LAUNCHED = (
    ("nproc_per_node", ("nnodes", "nnode")),
    ("num_processes", ()),
    ("num_gpus", ("num_nodes",)),
    ("include", ()),
    ("np", ()),
    ("n", ()),
)
_INCLUDED = re.compile(r"[^:@]+:(\d+(?:,\d+)*)")  # DeepSpeed's devices of one host


def read_recipe_file(
    path: Path,
    *,
    trainer: str | None = None,
    devices: int | None = None,
    given: Mapping[str, object] | None = None,
) -> RecipeFile:
    """Read the recipe, and the model if there is one, from a trainer's configuration file.

    Args:
        path: YAML, JSON, TOML, a shell script or Python; `FILE.py::NAME` chooses one of several.
        trainer: Name of the reader; by default it is recognized by its keys.
        devices: Number of devices, for batches that are given per device.
        given: Fields that the user typed. They override the file, and settings of the file that
            depend on them follow them.

    Raises:
        InputError: The file cannot be parsed or no reader matches; one sentence with line and
            column if they are known.
    """
    if devices is not None and devices < 1:
        raise InputError(f"--devices is {devices}; give at least 1.")
    name, _, part = str(path).partition("::")
    document = load_document(Path(name))
    return read_document(document, trainer=trainer, devices=devices, given=given, part=part or None)


def read_document(
    document: Document,
    *,
    trainer: str | None = None,
    devices: int | None = None,
    given: Mapping[str, object] | None = None,
    part: str | None = None,
) -> RecipeFile:
    """Read a recipe as `read_recipe_file` does, from a loaded document.

    Raises:
        InputError: As there, or a value cannot be used in a computation: it is infinite, a
            divisor of zero, or of another type.
    """
    document, notes = unwrap(document, part)
    reader = _named(trainer) if trainer is not None else reader_for(document)

    def read_by(reader: Reader, document: Document) -> Draft:
        title = f"{reader.title} {reader.version}".strip()
        draft = Draft(document, title, devices=devices, given=given)
        draft.by_name = reader is BY_NAME
        for note in notes:
            draft.note(note)
        _launched(draft)
        reader.read(draft)
        return draft

    try:
        draft = read_by(reader, document)
        has_rate = draft.has_rate
        if reader is not BY_NAME:
            knows_objective = draft.knows("objective")
            is_own = has_rate or (reader.matches(document) and not draft.has_rate)
            is_own &= OPTIMIZERS not in document.data  # a loop of its own has no trainer's defaults
            # Any file may have names of TrainingArguments; a command and --as say whose it is.
            is_named = trainer is not None or document.syntax == "shell"
            is_own &= is_named or reader.name != "hugging-face"
            is_believed = draft.explains_a_third or is_own
            if reader.name == "nanogpt" and document.syntax == "shell":  # it refuses other options
                is_believed &= not any(unread(draft, reader.name, reader.known))
            by_name.complete(draft)
            is_own_objective = knows_objective and reader.name != "hugging-face"
            is_foreign = not is_own_objective and draft.value("objective") in REINFORCED
            if trainer is not None and not is_believed:
                raise InputError(
                    f"{document.path} has {draft.explained} of its {len(document.leaves())} "
                    f"settings read as {reader.title}'s and no learning rate; "
                    f"leave out --as {trainer}."
                )
            if trainer is None and (not is_believed or is_foreign) and by_name.gives_rate(document):
                reader = BY_NAME
                draft = read_by(reader, document)
        is_open = document.syntax == "shell" and reader.name in ("hugging-face", "trl")
        if reader is BY_NAME or is_open:  # what the lost file says stands before any default
            for base in document.lost:
                for name in DECISIVE:
                    if name != "objective" and not draft.is_read(name):
                        draft.unknown(name, Found(key=base, value=""), f"{base} is not read")
        _note_an_early_end(draft)
        left = tuple(unread(draft, reader.name, reader.known))
        for one in left:
            found = Found(key=one.key, value="", line=one.line)
            field = "" if one.value or one.why else misspelt(one.key)
            setting = document.find(one.key)
            is_number = setting is not None and not isinstance(setting.value, bool)
            spoken = spoken_of(one.key) if is_number and not one.value and not one.why else ""
            if one.why == FIXED and draft.value("peft") == "none":
                draft.no_target(f"{one.key}: {FIXED}; name the part that is trained as TARGET.")
            if field in DECISIVE and not draft.is_read(field):
                draft.unknown(field, found, f"{one.key} is not read, and may mean it")
            elif (
                spoken and not field and not draft.is_read(spoken) and not draft.is_unknown(spoken)
            ):
                draft.unknown(spoken, found, f"{one.key} is not read, and speaks of it")
            elif by_name.trains_all(draft, setting):
                draft.unknown("peft", found, f"{one.key} is full, and is not read")
            elif by_name.differs(draft, one.key):
                draft.unknown("learning_rate", found, f"{one.key} gives another")
            elif one.key == FURTHER and not draft.has_rate:
                draft.unknown("learning_rate", found, "the command takes settings from elsewhere")
        read = dataclasses.replace(
            draft.finish(), keys=reader.keys, reader=reader.name, unread=left
        )
    except (ArithmeticError, ValueError) as error:  # an infinite number, a divisor of zero
        raise InputError(
            f"{document.path} holds a value that {reader.title} cannot count with ({error!s:.200})."
        ) from error
    return read


def reader_for(document: Document) -> Reader:
    """Return the reader whose marks a document has, else the one that reads by name.

    Raises:
        InputError: It is no run file: it has no learning rate either, or is of a known other kind.
    """
    try:
        return recognize(document)
    except InputError:
        document, _ = unwrap(document)
        known = foreign_format(document)
        is_one = by_name.gives_rate(document) or by_name.gives_run(document)
        if is_one and (known is None or known[2] in ("parts", "typed")):
            return BY_NAME
        raise


def unwrap(document: Document, part: str | None = None) -> tuple[Document, tuple[str, ...]]:
    """Unwrap what W&B logged, a registry's choice, a script, a subcommand, Megatron's arguments."""
    document, notes = composed(document)
    if notes:
        return document, notes
    if meta.is_registry(document):
        return meta.choose(document, part), ()
    if part is not None:
        raise InputError(f"{document.path} holds one configuration; leave out ::{part}.")
    if scripts.is_script(document):
        return scripts.of_script(document)
    document = with_defaults(document)
    if document.syntax == "shell" and document.file:
        return _of_command(document)
    if document.syntax == "shell" and not any(reader.matches(document) for reader in READERS):
        return launched(document)
    if document.syntax == "python":
        return _of_loop(document)
    if is_logged(document.data):
        lines = unwrapped_lines(document.lines)
        logged = dataclasses.replace(document, data=unwrapped(document.data), lines=lines)
        return logged, ("Read from the configuration that W&B logged.",)
    if lightning.is_subcommanded(document):
        return lightning.of_subcommand(document), ()
    arguments = document.data.get("MODEL_ARGS")
    if isinstance(arguments, Mapping):
        return _of_arguments(document, arguments), ()
    return document, ()


def _of_loop(document: Document) -> tuple[Document, tuple[str, ...]]:
    """Return the configuration file that an option of a script names, with what the script builds.

    Without one the options count at their defaults.
    """
    whole, notes = launched(document)
    if notes:
        return whole, notes
    options = document.data.get(OPTIONS)
    for name in options.values() if isinstance(options, Mapping) else ():
        file = None
        if isinstance(name, str) and name.endswith((".yaml", ".yml", ".json", ".toml")):
            with contextlib.suppress(InputError):
                file = named_file(document, name)
        if file is not None and by_name.gives_rate(file):
            data = {**document.data, **file.data}
            both = dataclasses.replace(file, data=data)
            return both, (f"Read from {name}, which an option of {document.path} names.",)
    notes = (
        ("The script's options are read at their defaults.",) if OPTIONS in document.data else ()
    )
    return document, notes


def _of_command(document: Document) -> tuple[Document, tuple[str, ...]]:
    """Return the configuration file that a command names, with the command's own settings.

    A file that is no run file, such as the description of a data set, is left alone.
    """
    is_one = any(reader.matches(document) for reader in READERS)
    try:
        file = named_file(document, document.file)
    except InputError:
        if is_one:
            return document, ()
        raise
    if file is None:
        has_settings = is_one and by_name.gives_rate(document)
        if not has_settings and document.program.startswith(_OF_FILES):
            raise InputError(
                f"{document.path} starts {document.program} with {document.file}, which is not "
                "beside it; give that file, or put it there."
            )
        is_whole = not document.program.startswith(_OF_FILES) and not document.file.endswith(".py")
        lost = f"{document.file}, which the command names, was not found, so it is not read."
        gone = dataclasses.replace(document, lost=(document.file,))
        return (gone, ()) if is_whole else (document, (lost,))
    if is_one and not any(reader.matches(file) for reader in READERS):
        return document, ()
    both = dataclasses.replace(
        file,
        data=merged(file.data, document.data),
        lines={key: line for key, line in file.lines.items() if document.find(key) is None},
        launcher=document.launcher,
        written=document.written,
    )
    whose = "" if file.path == document.path else "the command in "
    verb = "names" if whose else "writes"
    return both, (f"Read from {document.file}, which {whose}{document.path} {verb}.",)


_OF_FILES = ("llamafactory-cli", "trl ", "swift ", "axolotl", "tune ", "litgpt ")


def recognize(document: Document) -> Reader:
    """Find the reader whose marks a document has.

    Raises:
        InputError: None matches; the message names the format if it is clear.
    """
    document, _ = unwrap(document)
    for reader in READERS:
        if reader.matches(document):
            return reader
    known = None if document.syntax == "shell" else foreign_format(document)
    if known is not None:
        title, advice, _ = known
        raise InputError(f"{document.path} is {title}. {advice}")
    if document.syntax == "shell":
        raise InputError(
            f"{document.path} does not hold a command of a trainer that rksp reads"
            f"{f' (found {document.program})' if document.program else ''}; "
            "give the trainer's configuration file, or --as NAME."
        )
    if document.syntax == "python":
        raise InputError(
            f"{document.path} is Python that matches no trainer that rksp reads; give the command "
            "or the configuration that starts it, or for a model of your own write a function that "
            f"returns (model, batch) and give {document.path.stem}:FUNCTION."
        )
    raise InputError(
        f"{document.path} does not match any trainer that rksp reads; if it is one's, name it with "
        "--as NAME (rksp explain trainers lists them)."
    )


def matches_any(document: Document) -> bool:
    """Return True if some reader matches a document."""
    return _is_found(recognize, document)


def is_run(document: Document) -> bool:
    """Return True if a document is a run file, of a known trainer or not."""
    return _is_found(reader_for, document)


def _is_found(find: Callable[[Document], Reader], document: Document) -> bool:
    try:
        find(document)
    except InputError:
        return False
    return True


def _named(name: str) -> Reader:
    found = {reader.name: reader for reader in READERS}
    return found[known_name(found, name, noun="trainer")]


def _note_an_early_end(draft: Draft) -> None:
    parts = ("warmup_steps", "decay_steps", "max_steps")
    if draft.value("schedule") == "wsd" or not all(map(draft.is_read, parts)):
        return
    warm, fall, total = (int(draft.value(name)) for name in parts)
    rest = 1 - (warm + fall) / total
    if rest > _EARLY:
        draft.note(f"The rate is at its lowest from step {warm + fall} on, {rest:.1%} of the run.")


def _launched(draft: Draft) -> None:
    flags = dict(draft.document.launcher)
    with contextlib.suppress(InputError):
        file = named_file(draft.document, str(flags.get("config_file", "")))
        flags = {**(file.data if file is not None else {}), **flags}
    if included := _INCLUDED.fullmatch(str(flags.get("include", ""))):
        flags["include"] = len(included[1].split(","))
    for key, others in _LAUNCHED:
        names = [name for name in (key, *others) if name in flags]
        counts = [count for name in names if type(count := flags[name]) is int and count > 0]
        is_said = key in flags and len(counts) == len(names)
        if draft.devices is None and is_said:
            draft.devices = math.prod(counts)
            draft.devices_text = " × ".join(f"--{name}" for name in names)


def _of_arguments(document: Document, arguments: Section) -> Document:
    data = {_named_flag(key): value for key, value in arguments.items()}
    lines = lines_below(document.lines, "MODEL_ARGS")
    lines = {_named_flag(key): line for key, line in lines.items()}
    return dataclasses.replace(
        document, syntax="shell", data=data, lines=lines, program="pretrain_gpt.py"
    )


def _named_flag(flag: object) -> str:
    return str(flag).lstrip("-").replace("-", "_")
