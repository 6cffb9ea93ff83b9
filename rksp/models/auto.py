"""Choose the transformers class for a configuration, and its attention implementation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rksp.ground.errors import InputError
from rksp.models.configuration import quiet
from rksp.models.source import Task

# Task → (table of transformers, its auto class, endings of architecture names). The order decides
# for a type in several tables: BERT is first of all a masked model and BART an encoder–decoder,
# although transformers builds causal language models from both.
_TABLES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "seq2seq": (
        "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
        "AutoModelForSeq2SeqLM",
        (),
    ),
    "masked-lm": ("MODEL_FOR_MASKED_LM_MAPPING_NAMES", "AutoModelForMaskedLM", ("ForMaskedLM",)),
    "causal-lm": (
        "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
        "AutoModelForCausalLM",
        ("ForCausalLM", "LMHeadModel"),
    ),
    "image-classification": (
        "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
        "AutoModelForImageClassification",
        ("ForImageClassification",),
    ),
    "text-classification": (
        "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
        "AutoModelForSequenceClassification",
        ("ForSequenceClassification",),
    ),
}
_OTHER_HEADS = (
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
)
_BASE = ("MODEL_MAPPING_NAMES", "AutoModel")
_WHOLE = ("MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES", "AutoModelForImageTextToText")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenClass:
    """A transformers class for a configuration.

    Attributes:
        auto: The auto class that builds it.
        config: The configuration, or the part of it that is built.
        task: What the model predicts.
        notes: What the user should know about the choice, a sentence each.
    """

    auto: Any
    config: Any
    task: Task
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the name of the class without loading its modeling file."""
        names = self.auto._model_mapping._model_mapping.get(self.config.model_type)
        names = names if isinstance(names, list | tuple) else (names,)
        return names[0] or self.auto.__name__

    @property
    def attention(self) -> str:
        """Return `sdpa`, which is faster and whose calls rksp can read, or `eager`.

        A model gets `eager` if it has no other implementation or caps its attention logits, which
        sdpa ignores.
        """
        kind = self.auto._model_mapping.get(type(self.config), None)
        kind = kind[0] if isinstance(kind, list | tuple) else kind
        parts = [self.config, getattr(self.config, "text_config", None)]
        capped = any(getattr(part, "attn_logit_softcapping", None) for part in parts)
        return "sdpa" if getattr(kind, "_supports_sdpa", True) and not capped else "eager"

    def make(self, *, trust_remote_code: bool = False) -> nn.Module:
        """Initialize the model randomly under the global generator."""
        try:
            with quiet():
                return self._make(self.attention, trust_remote_code)
        except ValueError as error:
            if "attention implementation" not in str(error):
                raise
            return self._make("eager", trust_remote_code)  # part of the model lacks sdpa

    def _make(self, attention: str, trust_remote_code: bool) -> nn.Module:
        return self.auto.from_config(
            self.config,
            attn_implementation=attention,
            trust_remote_code=trust_remote_code,
            dtype=torch.float32,
        )

    def load(self, folder: Path) -> tuple[nn.Module, dict]:
        """Load the trained weights in a folder; return the model and what was missing."""
        with quiet():
            return self.auto.from_pretrained(
                folder,
                config=self.config,
                attn_implementation=self.attention,
                dtype=torch.float32,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
            )


def choose_class(
    target: str,
    config: Any,
    architectures: Any,
    task: Task | None = None,
    *,
    has_weights: bool = False,
) -> ChosenClass:
    """Choose a class: the configuration's own architecture, else by `_TABLES`, else the base.

    Args:
        target: The target, for messages.
        config: The transformers configuration.
        architectures: The configuration's own list, of which only known names count.
        task: The task that the user asks for; the model type must have it.
        has_weights: Whether trained weights come with it, all of which the class must take.

    Returns:
        The class with its notes.

    Raises:
        InputError: transformers has no class for this type (and task).
    """
    import transformers
    from transformers.models.auto import modeling_auto

    kind = config.model_type
    tables = {name: getattr(modeling_auto, table, {}) for name, (table, _, _) in _TABLES.items()}
    known: list[Any] = [name for name in _TABLES if kind in tables[name]]
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
        chosen = _by_architecture(architectures, known, tables, kind)
        if chosen is None and known and task != "other" and not _is_base(architectures, kind):
            chosen = known[0]
    if chosen is not None and task is None and (head := _other_head(architectures)) is not None:
        if has_weights:
            notes = (f"Only the model below {head} is scored: rksp has no task for that head.",)
            return _chosen(getattr(transformers, _BASE[1]), config, "other", notes)
        notes = (f"{head} is scored with a head for {chosen}: rksp has no task for its own head.",)
    if chosen is not None:
        auto = getattr(transformers, _TABLES[chosen][1])
        return _chosen(auto, config, chosen, notes)
    text = getattr(config, "text_config", None)
    text_type = getattr(text, "model_type", None)
    if text_type in tables["causal-lm"]:
        notes = (f"Only the text model ({text_type}) of {kind} is scored.",)
        return _chosen(transformers.AutoModelForCausalLM, text, "causal-lm", notes)
    if kind in getattr(modeling_auto, _WHOLE[0], {}):
        notes = (f"{kind} is scored on text alone; its other inputs are not used.",)
        auto = getattr(transformers, _WHOLE[1])
        return _chosen(auto, config, "causal-lm", notes)
    if (tower := _text_tower(config)) is not None:
        return _of_two_towers(target, config, tower, known)
    if kind in getattr(modeling_auto, _BASE[0], {}):
        return _chosen(getattr(transformers, _BASE[1]), config, "other", notes)
    if getattr(config, "auto_map", None):
        return _chosen(transformers.AutoModelForCausalLM, config, "causal-lm", notes)
    raise InputError(f"{target} is of model type {kind}, for which transformers has no model.")


def _by_architecture(
    architectures: Any, known: Sequence[Task], tables: dict[str, dict], kind: str
) -> Task | None:
    for name in architectures if isinstance(architectures, list) else []:
        for task in known:
            entry = tables[task][kind]
            classes = entry if isinstance(entry, list | tuple) else (entry,)
            if name in classes or any(str(name).endswith(end) for end in _TABLES[task][2]):
                return task
    return None


def _other_head(architectures: Any) -> str | None:
    """Return the class name of a text head that is not in `_TABLES`, or None."""
    names = architectures if isinstance(architectures, list) else []
    return next((name for name in names if str(name).endswith(_OTHER_HEADS)), None)


def _text_tower(config: Any) -> Any | None:
    """Return the text part of a configuration that also has an image or audio part."""
    others = ("vision_config", "audio_config")
    has_other = any(getattr(config, name, None) is not None for name in others)
    return getattr(config, "text_config", None) if has_other else None


def _of_two_towers(target: str, config: Any, text: Any, known: Sequence[str]) -> ChosenClass:
    """Choose the text tower alone, because a model that compares two towers has no own loss."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    images = "; --task image-classification scores the image tower" if known else ""
    if text.model_type not in MODEL_MAPPING_NAMES:
        raise InputError(
            f"{target} is of model type {config.model_type}, which compares two towers, and "
            f"transformers cannot build its text tower ({text.model_type}) alone{images}."
        )
    notes = (f"Only the text tower ({text.model_type}) of {config.model_type} is scored{images}.",)
    return _chosen(getattr(transformers, _BASE[1]), text, "other", notes)


def _is_base(architectures: Any, kind: str) -> bool:
    """Tell whether the configuration is of a model without a head, such as `BertModel`."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    entry = MODEL_MAPPING_NAMES.get(kind)
    classes = entry if isinstance(entry, list | tuple) else (entry,)
    return (
        isinstance(architectures, list)
        and bool(architectures)
        and all(name in classes for name in architectures)
    )


def _chosen(auto: type, config: Any, task: Task, notes: tuple[str, ...]) -> ChosenClass:
    if getattr(config, "architectures", None) is None:
        config.architectures = []  # transformers iterates over it where a type has two classes
    return ChosenClass(auto=auto, config=config, task=task, notes=notes)
