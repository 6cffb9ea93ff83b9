"""What a run file states beside the recipe: settings that a fault of a library can depend on.

`facts.toml` has the keys of each trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from rksp.ground.model import Strict
from rksp.ground.tables import packaged_toml
from rksp.recipe_files.parse.document import Document
from rksp.recipe_files.parse.values import Parsed, Unresolved
from rksp.recipe_files.said.origin import OriginKind, RecipeField, RecipeFile


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact of a run.

    Attributes:
        values: What is true of it: mostly one value; None where a setting is left at its default.
        said: Where it was read, such as `packing: true in run.yaml:7`; empty for a default.
    """

    values: tuple[object, ...]
    said: str = ""


Facts = Mapping[str, Fact]  # what is not known has no entry
SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_PAIRED = ("dpo", "kto", "orpo", "reward")  # objectives on rows of different lengths
_PRECISIONS = {"bf16-pure": ("bf16-pure", "bf16"), "fp16-pure": ("fp16-pure", "fp16")}
_RECIPE = ("gradient_accumulation_steps", "max_grad_norm", "learning_rate", "weight_decay",
           "sequence_length", "precision", "optimizer", "peft", "objective")  # fmt: skip

# Of what a DeepSpeed file says or leaves out.
_SETTLED: Mapping[str, Callable[[object], object]] = {
    "zero_stage": lambda stage: 0 if stage is None else stage,
    "offload_optimizer": lambda device: device not in (None, "none"),
    "muon_rates_given": lambda rate: rate is not None,
}


class Trainer(NamedTuple):
    """What a reader's trainer is called in conditions, its package, and its rows on a device."""

    names: tuple[str, ...] = ()
    package: str = ""
    rows: int | None = None


class _Tables(Strict):
    trainers: Mapping[str, Trainer]
    loops: str
    attention: Mapping[str, str | None]
    keys: Mapping[str, Mapping[str, str]]


@cache
def _tables() -> _Tables:
    return _Tables.model_validate(packaged_toml("rksp.recipe_files.said", "facts.toml"))


def trainer_of(reader: str) -> Trainer:
    """Return what is known of a reader's trainer."""
    own = Trainer((reader,)) if reader in _tables().loops.split() else Trainer()
    return _tables().trainers.get(reader, own)


def run_facts(read: RecipeFile) -> dict[str, Fact]:
    """Return what is known of a run from its file: the recipe, and settings beside it.

    What a file of a known trainer leaves out is at its default; what it computes elsewhere is not
    known.
    """
    document, found, names = read.document, dict(_of_fields(read)), trainer_of(read.reader).names
    if document is None:
        return found
    if names:
        found["trainer"] = Fact(names)
    if "hf_trainer" in names:
        loading = _said(document, "loading")
        is_whole = document.syntax != "script"  # a script may load the model in another file
        found |= {k: f for k, f in loading.items() if is_whole or f.values != (None,)}
        found |= _said(document, "arguments")
        if document.find("use_unsloth") is not None:
            found["trainer"] = Fact((*names, "unsloth"))
        found |= _of_launch(document, read.deepspeed)
        found |= _of_padding(read.reader, found)
    elif read.reader in ("megatron", "litgpt", "torchtune"):
        found |= _said(document, read.reader)
    else:
        found |= _by_name(document)
    if read.reader == "megatron":
        engine = _value(found, "transformer_engine")
        found["transformer_engine"] = Fact((engine in (None, "transformer_engine"),))
        if document.find("use_megatron_fsdp") is not None:
            found["distributed"] = Fact(("megatron_fsdp",))
    if read.reader in ("deepspeed", "gpt-neox") or read.deepspeed is not None:
        found |= _of_deepspeed(read.deepspeed or document, found)
    if read.devices is not None:
        found["world_size"] = Fact((read.devices,))
    return found


def _value(known: Facts, name: str, otherwise: object = None) -> object:
    return known[name].values[0] if name in known else otherwise


def _rows(table: str) -> dict[str, str]:
    rows = dict(_tables().keys[table])
    return rows | {name: name for name in rows.pop("own", "").split()}


def _by_name(document: Document) -> dict[str, Fact]:
    """Return what is stated once, in whatever section, under a name that has one meaning."""
    leaves = document.stated().leaves()
    rows = {}
    for name, keys in _rows("anywhere").items():
        named = [one for one in leaves for key in keys.split() if f".{one}".endswith(f".{key}")]
        if len(named) == 1:
            rows[name] = named[0]
    return _said(document, rows)


def _said(document: Document, table: str | Mapping[str, str]) -> dict[str, Fact]:
    facts = {}
    for name, keys in (_rows(table) if isinstance(table, str) else table).items():
        found = document.find(*keys.split())
        if found is None:
            facts[name] = Fact((None,))
        elif not any(isinstance(v, Unresolved) for v in _listed(name, found.value)):
            values = tuple(_plain(name, found.key, value) for value in _listed(name, found.value))
            said = f"{found.key}: {found.value!s:.40}"
            facts[name] = Fact(values, _at(said, document.path, found.line))
    return facts


def _listed(name: str, value: Parsed) -> list[Parsed]:
    if isinstance(value, str) and name in ("target_modules", "modules_to_save"):
        return [*value.split(",")]
    return value if isinstance(value, list) else [value]


def _at(said: str, path: Path, line: int | None) -> str:
    return f"{said} in {path.name}:{line}" if line else f"{said} in {path.name}"


def _plain(name: str, key: str, value: Parsed) -> Parsed:
    if name == "attn_implementation":
        words = {**_tables().attention, "auto": None}
        if isinstance(value, bool):
            return words.get(key.replace("-", "_")) if value else None
        return words.get(str(value), value)
    return SHORT.get(value.removeprefix("torch."), value) if isinstance(value, str) else value


def _of_fields(read: RecipeFile) -> Iterator[tuple[str, Fact]]:
    for field in read.fields:
        name, value, kind = field.name, field.value, field.origin.kind
        if name not in _RECIPE or kind is OriginKind.ASSUMED:
            continue
        values: tuple[object, ...] = (value,)
        if name == "precision":
            values = _PRECISIONS.get(str(value), values)
        elif name == "objective" and value == "lm" and read.names_weights:
            values = ("lm", "sft")
        elif name == "optimizer" and read.document is not None:
            typed = read.document.find("optim", "optimizer")
            if typed is not None and isinstance(typed.value, str):
                values = (typed.value.lower(), value)
        yield name, Fact(values, _origin(read, field))
        if name == "learning_rate":
            yield "learning_rate_given", Fact((kind is OriginKind.FILE,))
        if name == "peft" and (value != "none" or read.names_weights):
            yield "finetuning", Fact(("full" if value == "none" else "adapters",))


def _origin(read: RecipeFile, field: RecipeField) -> str:
    if field.origin.kind not in (OriginKind.FILE, OriginKind.COMPUTED):
        return ""
    return _at(f"{field.name.replace('_', ' ')} {field.value}", read.path, field.origin.line)


def _of_launch(document: Document, deepspeed: Document | None) -> dict[str, Fact]:
    named = document.find("deepspeed", "deepspeed_config")
    sharded = document.find("fsdp", "fsdp_config")
    if deepspeed is not None or (named is not None and named.value):
        return {"distributed": Fact(("deepspeed",))}
    if sharded is None or not sharded.value:
        return {"distributed": Fact((None,))}
    version = document.find("fsdp_config.fsdp_version", "fsdp_version")
    is_second = version is not None and version.value == 2
    return {"distributed": Fact(("fsdp2" if is_second else "fsdp1",), f"{sharded.key} is set")}


def _of_padding(reader: str, known: Facts) -> dict[str, Fact]:
    size = _value(known, "batch_size", "elsewhere")
    usual = trainer_of(reader).rows
    size, found = (usual, {"batch_size": Fact((usual,))}) if size is None else (size, {})
    is_tuning = {"sft", *_PAIRED} & {*known.get("objective", Fact(())).values}
    is_packed = _value(known, "packing", True)
    if is_tuning and not is_packed and isinstance(size, int) and size > 1:
        said = f"{size} rows on a device, which are padded"
        found |= {"padding": Fact((True,)), "attention_mask": Fact((True,), said)}
    return found


def _of_deepspeed(document: Document, known: Facts) -> dict[str, Fact]:
    """Return the settings of a DeepSpeed file; `auto` takes what the arguments say."""
    found = {**_said(document, "deepspeed"), "distributed": Fact(("deepspeed",))}
    for name, settle in _SETTLED.items():
        if name in found:
            found[name] = Fact((settle(found[name].values[0]),), found[name].said)
    if _value(found, "gradient_clipping") == "auto":
        found["gradient_clipping"] = known.get("max_grad_norm", Fact(("auto",)))
    kind = document.find("optimizer.type")
    if kind is not None and isinstance(kind.value, str):
        said = _at(f"{kind.key}: {kind.value}", document.path, kind.line)
        found["optimizer"] = Fact((kind.value.lower(),), said)
    return found
