"""Decide from names alone which class of transformers a configuration is built as; build it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rksp.ground.errors import InputError
from rksp.models.configuration import quiet
from rksp.models.type_table import Config

if TYPE_CHECKING:
    from torch import nn

Task = Literal[
    "causal-lm", "masked-lm", "seq2seq", "image-classification", "text-classification", "other"
]
# Model type → head → names of the classes that have it, the default one first.
Heads = Callable[[str], Mapping[str, Sequence[str]]]

# Task → what its table of transformers, and its auto class, are called. The order decides for a
# type in several tables: BERT is first of all a masked model and BART an encoder–decoder, although
# transformers builds causal language models from both.
_TABLES: dict[Task, tuple[str, str]] = {
    "seq2seq": ("SEQ_TO_SEQ_CAUSAL_LM", "Seq2SeqLM"),
    "masked-lm": ("MASKED_LM", "MaskedLM"),
    "causal-lm": ("CAUSAL_LM", "CausalLM"),
    "image-classification": ("IMAGE_CLASSIFICATION", "ImageClassification"),
    "text-classification": ("SEQUENCE_CLASSIFICATION", "SequenceClassification"),
}
# Task → endings of the names of architectures.
_ENDINGS: dict[Task, tuple[str, ...]] = {
    task: (f"For{auto}",) for task, (_, auto) in _TABLES.items()
}
_ENDINGS["causal-lm"] += ("LMHeadModel",)
_OTHER_HEADS = (
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
)
# The heads that are no task: the model without a head, and one of text beside other inputs.
_BASE, _WHOLE = "base", "whole"
_AUTO: dict[str, str] = {
    **{task: f"AutoModelFor{auto}" for task, (_, auto) in _TABLES.items()},
    _BASE: "AutoModel",
    _WHOLE: "AutoModelForImageTextToText",
}
MAPPINGS: dict[str, str] = {
    **{task: f"MODEL_FOR_{table}_MAPPING_NAMES" for task, (table, _) in _TABLES.items()},
    _BASE: "MODEL_MAPPING_NAMES",
    _WHOLE: "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
}


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A class of transformers by name.

    Attributes:
        auto: Name of the auto class that builds it.
        name: Its own name.
        config: The configuration, or the part of it that is built.
        task: What the model predicts.
        notes: What the user should know about the choice, a sentence each.
    """

    auto: str
    name: str
    config: Config
    task: Task
    notes: tuple[str, ...] = ()


def choose(
    target: str,
    config: Config,
    architectures: object,
    heads: Heads,
    task: Task | None = None,
    *,
    is_stored: bool = False,
) -> Choice:
    """Choose a class: the configuration's own architecture, else by `_TABLES`, else the base.

    Args:
        target: The target, for messages.
        config: The configuration.
        architectures: The configuration's own list, of which only known names count.
        heads: Says which classes a model type has.
        task: The task that the user asks for; the model type must have it.
        is_stored: Whether trained weights come with it, all of which the class must take.

    Returns:
        The class with its notes.

    Raises:
        InputError: transformers has no class for this type (and task).
    """
    kind = config.model_type
    own = heads(kind)
    known: list[Task] = [name for name in _TABLES if name in own]
    names = set(_names(architectures))
    notes: tuple[str, ...] = ()
    chosen: Task | None
    if task is not None and task != "other":
        if task not in known:
            raise InputError(
                f"{target} is of model type {kind}, which has no {task} form; "
                f"it has {', '.join(known) or 'none of the known forms'}."
            )
        chosen = task
    else:
        chosen = _by_architecture(architectures, known, own)
        is_base = bool(names) and names <= {*own.get(_BASE, ())}
        if chosen is None and known and task != "other" and not is_base:
            chosen = known[0]
    head = None if chosen == "text-classification" else other_head(architectures)
    if chosen is not None and task is None and head is not None:
        if is_stored:
            notes = (f"Only the model below {head} is scored: rksp has no task for that head.",)
            return _chosen(heads, _BASE, config, "other", notes)
        notes = (f"{head} is scored with a head for {chosen}: rksp has no task for its own head.",)
    if chosen is not None:
        return _chosen(heads, chosen, config, chosen, notes)
    text = getattr(config, "text_config", None)
    text_type = getattr(text, "model_type", None)
    if text_type is not None and "causal-lm" in heads(text_type):
        notes = (f"Only the text model ({text_type}) of {kind} is scored.",)
        return _chosen(heads, "causal-lm", text, "causal-lm", notes)
    if _WHOLE in own:
        notes = (f"{kind} is scored on text alone; its other inputs are not used.",)
        return _chosen(heads, _WHOLE, config, "causal-lm", notes)
    if (tower := _text_tower(config)) is not None:
        return _of_two_towers(target, config, tower, known, heads)
    if _BASE in own:
        return _chosen(heads, _BASE, config, "other", notes)
    if getattr(config, "auto_map", None):
        return _chosen(heads, "causal-lm", config, "causal-lm", notes)
    raise InputError(f"{target} is of model type {kind}, for which transformers has no model.")


def has_fresh_head(task: Task, architectures: object) -> bool:
    """Tell whether a classifier is asked of weights that were saved without its head."""
    endings = _ENDINGS[task] if task.endswith("classification") else ()
    names = _names(architectures)
    return bool(names and endings) and not any(name.endswith(endings) for name in names)


def _names(architectures: object) -> list[str]:
    return list(map(str, architectures)) if isinstance(architectures, list) else []


def _by_architecture(
    architectures: object, known: Sequence[Task], own: Mapping[str, Sequence[str]]
) -> Task | None:
    pairs = ((name, task) for name in _names(architectures) for task in known)
    return next((t for name, t in pairs if name in own[t] or name.endswith(_ENDINGS[t])), None)


def other_head(architectures: object) -> str | None:
    """Return the class name of a text head that is not in `_TABLES`, or None."""
    return next((name for name in _names(architectures) if name.endswith(_OTHER_HEADS)), None)


def _text_tower(config: Config) -> Config | None:
    others = ("vision_config", "audio_config")
    has_other = any(getattr(config, name, None) is not None for name in others)
    return getattr(config, "text_config", None) if has_other else None


def _of_two_towers(
    target: str, config: Config, text: Config, known: Sequence[Task], heads: Heads
) -> Choice:
    images = "; --task image-classification scores the image tower" if known else ""
    if _BASE not in heads(text.model_type):
        raise InputError(
            f"{target} is of model type {config.model_type}, which compares two towers, and "
            f"transformers cannot build its text tower ({text.model_type}) alone{images}."
        )
    notes = (f"Only the text tower ({text.model_type}) of {config.model_type} is scored{images}.",)
    return _chosen(heads, _BASE, text, "other", notes)


def _chosen(heads: Heads, head: str, config: Any, task: Task, notes: tuple[str, ...]) -> Choice:
    if getattr(config, "architectures", None) is None:
        config.architectures = []  # transformers iterates over it where a type has two classes
    names = heads(config.model_type).get(head) or (_AUTO[head],)
    return Choice(auto=_AUTO[head], name=names[0], config=config, task=task, notes=notes)


def make(chosen: Choice, *, trust_remote_code: bool = False) -> nn.Module:
    """Initialize a chosen class randomly under the global generator."""
    import torch

    with quiet():
        made: nn.Module = _auto_class(chosen).from_config(
            chosen.config,
            attn_implementation=_attention(chosen.config),
            trust_remote_code=trust_remote_code,
            dtype=torch.float32,
        )
    return made


def load(chosen: Choice, folder: Path) -> tuple[nn.Module, list[str], list[str]]:
    """Load the trained weights in a folder; tell which it lacks, and which have another shape."""
    import torch

    with quiet():
        model, report = _auto_class(chosen).from_pretrained(
            folder,
            config=chosen.config,
            attn_implementation=_attention(chosen.config),
            dtype=torch.float32,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    return model, [*report["missing_keys"]], [key[0] for key in report["mismatched_keys"]]


def _auto_class(chosen: Choice) -> Any:
    import transformers

    return getattr(transformers, chosen.auto)


def _attention(config: object) -> str | None:
    """Return `eager` for a model that caps its attention logits, which sdpa ignores.

    For the others transformers chooses sdpa, which is faster and whose calls rksp can read, if each
    part of the model has it.
    """
    parts = (config, getattr(config, "text_config", None))
    return "eager" if any(getattr(p, "attn_logit_softcapping", None) for p in parts) else None


def transformers_heads(kind: str) -> Mapping[str, list[str]]:
    """Return the names of the classes that the installed transformers has for a model type."""
    from transformers.models.auto import modeling_auto

    found = {head: getattr(modeling_auto, table, {}).get(kind) for head, table in MAPPINGS.items()}
    return {
        head: list(names) if isinstance(names, list | tuple) else [names]
        for head, names in found.items()
        if names
    }
