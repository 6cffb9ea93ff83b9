"""Python scripts around Hugging Face's trainers, in the words of their arguments.

The names of classes and their arguments: transformers, TRL, PEFT (`LoraConfig`), Unsloth
(`FastLanguageModel`) and Sentence Transformers.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

from rksp.recipe_files.parse.document import Document
from rksp.recipe_files.parse.python_calls import CALLS, TRL, Call

_MODEL = re.compile(r"Model|For[A-Z]|SentenceTransformer|CrossEncoder")
_NO_MODEL = re.compile(r"Tokenizer|Processor|Extractor|Config")
_OBJECTIVES = (
    (r"(Sequence|Image|Token|Audio|Video)Classification|MultipleChoice", "classification"),
    (r"MaskedLM", "mlm"),
    (r"Seq2Seq", "seq2seq"),
    (r"SentenceTransformer|CrossEncoder|ForCTC|QuestionAnswering", "other"),
)
_LENGTHS = ("max_seq_length", "max_length", "max_prompt_length")
_NAMES = ("model_name", "pretrained_model_name_or_path", "model_name_or_path", "model")
_ADAPTERS = {  # of LoRA, in TRL's words
    "r": "lora_r",
    "lora_alpha": "lora_alpha",
    "target_modules": "lora_target_modules",
    **{name: name for name in ("use_dora", "use_rslora", "init_lora_weights")},
}
_USUAL = {"lora_r": 8, "lora_alpha": 8}  # of PEFT
_OTHER_ADAPTERS = re.compile(
    r"^(IA3|PromptTuning|PrefixTuning|AdaLora|LoHa|LoKr|Vera|OFT|BOFT|FourierFT)Config$"
)


class _Words:
    """The settings of a script, in the words of its trainer, with their lines."""

    def __init__(self) -> None:
        self.data: dict[str, Any] = {}
        self.lines: dict[str, int] = {}

    def say(self, name: str, value: object, line: int | None) -> None:
        """Note a setting; what was said first stays."""
        if name in self.data:
            return
        self.data[name] = value
        if line is not None:
            self.lines[name] = line

    def take(self, call: Call, names: Mapping[str, str] | Iterable[str]) -> None:
        """Note some of a call's arguments, under other names."""
        words = names if isinstance(names, Mapping) else {name: name for name in names}
        for name, word in words.items():
            if name in call.given:
                self.say(word, call.given[name], call.lines.get(name))


def is_script(document: Document) -> bool:
    """Tell whether a Python file builds the arguments of one of these trainers."""
    return document.syntax == "python" and CALLS in document.data


def of_script(document: Document) -> tuple[Document, tuple[str, ...]]:
    """Return a script's settings as a file of its trainer would hold them, and what to note."""
    calls = document.data[CALLS]
    found = [call for call in calls if call.makes_arguments]
    first, words = found[0], _Words()
    words.take(first, list(first.given))
    _adapters(calls, words)
    _model(calls, words)
    _objective(calls, first.short, first.line, words)
    for call in calls:
        if call.short.endswith("Trainer") or "from_pretrained" in call.name:
            words.take(call, _LENGTHS)
    read = dataclasses.replace(
        document, syntax="script", data=words.data, lines=words.lines, program=first.short
    )
    more = f", the first of {len(found)}" if len(found) > 1 else ""
    return read, (f"Read from the calls of a script, {first.short}{_at(first)}{more}.",)


def _at(call: Call) -> str:
    return "" if call.line is None else f" of line {call.line}"


def _adapters(calls: Iterable[Call], words: _Words) -> None:
    """Note the adapters that `LoraConfig`, another of PEFT's, or Unsloth's function makes."""
    for call in calls:
        name = call.short
        if name == "LoraConfig" or (name == "get_peft_model" and "r" in call.given):
            words.say("use_peft", True, call.line)
            words.take(call, _ADAPTERS)
            for word, usual in _USUAL.items():
                words.say(word, usual, call.line)
            if str(call.given.get("task_type")).endswith("SEQ_CLS"):
                words.say("objective", "classification", call.line)
        elif _OTHER_ADAPTERS.match(name):
            kind = name.removesuffix("Config").upper()
            words.say("peft_config", {"default": {"peft_type": kind}}, call.line)


def _model(calls: Iterable[Call], words: _Words) -> None:
    """Note the weights that a script loads, and how."""
    for call in calls:
        loads = "from_pretrained" in call.name or call.short in ("SentenceTransformer",
                                                                    "CrossEncoder")  # fmt: skip
        is_model = loads and _MODEL.search(call.name) and not _NO_MODEL.search(call.name)
        if not is_model and not (call.short.endswith("Trainer") and "model" in call.given):
            if call.short == "BitsAndBytesConfig":
                _in_four_bits(call, words)
            continue
        name = next((call.given[key] for key in _NAMES if key in call.given), call.first)
        if isinstance(name, str):
            words.say("model_name_or_path", name, call.line)
        words.take(call, ("torch_dtype", "dtype"))
        if call.name.startswith("Fast"):  # Unsloth's, which loads 4 bits unless told otherwise
            words.take(call, ("load_in_4bit",))
            words.say("load_in_4bit", True, call.line)
        _in_four_bits(call, words)
        for pattern, objective in _OBJECTIVES:
            if re.search(pattern, call.name):
                words.say("objective", objective, call.line)


def _in_four_bits(call: Call, words: _Words) -> None:
    """Note a base in four bits; without adapters nothing is trained on one."""
    if "use_peft" in words.data:
        words.take(call, ("load_in_4bit",))


def _objective(calls: Iterable[Call], arguments: str, line: int | None, words: _Words) -> None:
    """Note what the class of the arguments minimizes."""
    trl = TRL.match(arguments)
    if trl is not None and trl[1] != "SFT":
        words.say("objective", trl[1].lower(), line)
    elif arguments.startswith("Seq2Seq"):
        words.say("objective", "seq2seq", line)
