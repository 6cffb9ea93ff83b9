"""All readers, and the way from a file to its recipe."""

from __future__ import annotations

from pathlib import Path

from rksp.errors import InputError, nearest
from rksp.recipe_files import (
    axolotl,
    gpt_neox,
    hugging_face,
    levanter,
    litgpt,
    llm_foundry,
    nanogpt,
    nanotron,
    olmo,
    torchtitan,
    torchtune,
)
from rksp.recipe_files.document import Document, load_document
from rksp.recipe_files.origin import Draft, RecipeFile
from rksp.recipe_files.reader import Reader

# The first that matches reads; the most particular marks come first.
READERS: tuple[Reader, ...] = (
    nanotron.READER,
    torchtune.READER,
    litgpt.READER,
    levanter.READER,
    olmo.READER,
    llm_foundry.READER,
    axolotl.READER,
    torchtitan.READER,
    nanogpt.READER,
    gpt_neox.READER,
    hugging_face.READER,
)


def read_recipe_file(
    path: Path, *, trainer: str | None = None, devices: int | None = None
) -> RecipeFile:
    """Reads the recipe, and the model if there is one, from a trainer's configuration file.

    Args:
        path: YAML, JSON, TOML, or nanoGPT's Python.
        trainer: Name of the reader; default recognized by its keys.
        devices: Devices of the run, for batches that are given per device.

    Raises:
        InputError: The file cannot be parsed or is no trainer's; one sentence with line and column
            where there is one.
    """
    if devices is not None and devices < 1:
        raise InputError(f"--devices is {devices}; give at least 1.")
    document = load_document(path)
    reader = _named(trainer) if trainer is not None else recognize(document)
    return read_document(document, reader, devices=devices)


def read_document(document: Document, reader: Reader, *, devices: int | None) -> RecipeFile:
    """Read a document as a trainer does.

    Raises:
        InputError: A value cannot be counted with: it is infinite, zero where something is divided
            by it, or of another kind.
    """
    draft = Draft(document, reader.title, devices=devices)
    try:
        reader.read(draft)
        return draft.finish()
    except (ArithmeticError, ValueError, TypeError) as error:
        raise InputError(
            f"{document.path} holds a value that {reader.title} cannot count with ({error!s:.200})."
        ) from error


def recognize(document: Document) -> Reader:
    """The reader whose marks a document bears.

    Raises:
        InputError: None matches.
    """
    for reader in READERS:
        if reader.matches(document):
            return reader
    if document.has("parameters", "method"):
        raise InputError(f"{document.path} is a sweep, not one recipe; give it to rksp grid.")
    names = ", ".join(reader.name for reader in READERS)
    raise InputError(
        f"{document.path} bears the marks of no trainer that rksp reads ({names}); "
        "rksp explain-config --as NAME shows what one of them would make of it."
    )


def _named(name: str) -> Reader:
    found = {reader.name: reader for reader in READERS}
    if name not in found:
        hint = nearest(name, found) or f"; there are {', '.join(found)}."
        raise InputError(f"No trainer is called {name!r}{hint}")
    return found[name]
