"""Python scripts around Hugging Face's trainers, in the words of their arguments.

The names of classes and their arguments: transformers, TRL, PEFT (`LoraConfig`), Unsloth
(`FastLanguageModel`) and Sentence Transformers.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Any

from rksp.ground.reading import bounded
from rksp.models.names import is_type
from rksp.recipe_files.parse.document import Document
from rksp.recipe_files.parse.python_loop import WORDS
from rksp.recipe_files.parse.python_script import CALLS, LENGTHS, OF_COMMAND_LINE, TRL, Call
from rksp.recipe_files.parse.python_values import ANY
from rksp.recipe_files.parse.values import Unresolved

_MODEL = re.compile(r"Model|For[A-Z]|SentenceTransformer|CrossEncoder")
_NO_MODEL = re.compile(r"Tokenizer|Processor|Extractor|Config")
_OBJECTIVES = (
    (r"(Sequence|Image|Token|Audio|Video)Classification|MultipleChoice", "classification"),
    (r"MaskedLM", "mlm"),
    (r"Seq2Seq|ForConditionalGeneration", "seq2seq"),
    (r"SentenceTransformer|CrossEncoder|For(?!CausalLM)[A-Z]", "other"),
)
_PEFT = "peft_config"  # the adapters, by the name of the call that makes them
_LENGTHS = ("max_seq_length", "max_length", "max_prompt_length")
_NAMES = ("model_name", "pretrained_model_name_or_path", "model_name_or_path", "model")
_ADAPTERS = re.compile(
    r"^(Lora|IA3|PromptTuning|PrefixTuning|AdaLora|LoHa|LoKr|Vera|OFT|BOFT|FourierFT)Config$"
)
# Of the arguments; none has its default where settings come from elsewhere.
_SETTINGS = (
    *("learning_rate", "per_device_train_batch_size", "gradient_accumulation_steps", "max_steps"),
    *("num_train_epochs", "lr_scheduler_type", "warmup_steps", "weight_decay", "optim"),
)
_USUAL = {"r": 8, "lora_alpha": 8}  # of PEFT's LoraConfig


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

    def take(self, call: Call, names: Iterable[str]) -> None:
        """Note some of a call's arguments."""
        for name in names:
            if name in call.given:
                self.say(name, call.given[name], call.lines.get(name))

    def number(self, section: str, settings: Iterable[str], call: Call) -> None:
        """Note the lines of what a call gives, which stands in a section."""
        for name in settings:
            line = call.lines.get(name, call.line)
            if line is not None:
                self.lines[f"{section}.{name}"] = line


def is_script(document: Document) -> bool:
    """Tell whether a Python file builds the arguments of one of these trainers."""
    return document.syntax == "python" and CALLS in document.data


def of_script(document: Document) -> tuple[Document, tuple[str, ...]]:
    """Return a script's settings as a file of its trainer would hold them, and what to note."""
    calls = document.data[CALLS]
    found = [call for call in calls if call.makes_arguments]
    first, words = found[0], _Words()
    words.take(first, [name for name in first.given if name != ANY])
    for name in {name for call in found[1:] for name in call.given} - {ANY, "output_dir"}:
        if any(call.given.get(name) != first.given.get(name) for call in found[1:]):
            words.data[name] = Unresolved(f"{len(found)} calls differ in it")
    for name in _SETTINGS if ANY in first.given else ():
        words.say(name, first.given[ANY], first.line)
    _adapters(calls, words)
    _model(calls, words)
    _sizes(calls, words)
    _objective(calls, first.short, first.line, words)
    for call in calls:
        if call.short.endswith("Trainer") or "from_pretrained" in call.name:
            words.take(call, _LENGTHS)
    _cut(calls, words, TRL.match(first.short) is None)
    if _has_own_loss(document) or not any(map(_is_causal, calls)):
        words.data[WORDS] = document.data[WORDS]
    bounded(words.data, document.path)
    read = dataclasses.replace(
        document, syntax="script", data=words.data, lines=words.lines, program=first.short
    )
    more = f", the first of {len(found)}" if len(found) > 1 else ""
    notes = [f"Read from the calls of a script, {first.short}{_at(first)}{more}."]
    if any(OF_COMMAND_LINE.match(call.short) for call in calls):
        notes.append("Its command-line options are read at their defaults.")
    return read, tuple(notes)


def _is_causal(call: Call) -> bool:
    return re.search(r"CausalLM|LMHead|FastLanguageModel|SFT", call.name) is not None


def _has_own_loss(document: Document) -> bool:
    """Tell whether a script has a loss of its own beside its trainer's."""
    return re.search(r"\b(compute_loss|training_step)\b", str(document.data[WORDS])) is not None


def _at(call: Call) -> str:
    return "" if call.line is None else f" of line {call.line}"


def _adapters(calls: Iterable[Call], words: _Words) -> None:
    """Note the first adapters of PEFT, or of Unsloth's function, as Transformers logs them."""
    for call in calls:
        is_unsloth = call.short == "get_peft_model" and "r" in call.given
        made = _ADAPTERS.match("LoraConfig" if is_unsloth else call.short)
        if made is not None and _PEFT not in words.data:
            usual = _USUAL if made[1] == "Lora" else {}
            settings = {"peft_type": made[1].upper(), **usual, **call.given}
            words.say(_PEFT, {call.short: settings}, call.line)
            words.number(f"{_PEFT}.{call.short}", settings, call)


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
        words.take(call, ("torch_dtype", "dtype", "attn_implementation"))
        if call.name.startswith("Fast"):  # Unsloth's, which loads 4 bits unless told otherwise
            words.take(call, ("load_in_4bit",))
            words.say("load_in_4bit", True, call.line)
            words.say("use_unsloth", True, call.line)
        _in_four_bits(call, words)
        for pattern, objective in _OBJECTIVES:
            if re.search(pattern, call.name):
                words.say("objective", objective, call.line)


def _sizes(calls: Iterable[Call], words: _Words) -> None:
    """Note the sizes of a model that a script makes and does not load."""
    for call in calls:
        kind = call.short.removesuffix("Config").lower()
        if kind != call.short.lower() and is_type(kind) and "model_name_or_path" not in words.data:
            words.say("model_config", {"_call": call.short, **call.given}, call.line)
            words.number("model_config", call.given, call)


def _cut(calls: Iterable[Call], words: _Words, is_needed: bool) -> None:
    """Note the length to which a script cuts its rows, where the trainer is given none."""
    if any(name in words.data for name in _LENGTHS):
        return
    cut = [(call.given[name], call.lines.get(name))
           for call in calls for name in LENGTHS if call.given.get(name) is not None]  # fmt: skip
    value, line = cut[0] if cut else (Unresolved("said nowhere that rksp reads"), None)
    is_one = all(one == value for one, _ in cut)
    if cut or (is_needed and words.data.get("objective", "lm") == "lm"):
        words.say("max_seq_length", value if is_one else Unresolved("cut to several"), line)


def _in_four_bits(call: Call, words: _Words) -> None:
    """Note a base in four bits; without adapters nothing is trained on one."""
    if _PEFT in words.data:
        words.take(call, ("load_in_4bit",))


def _objective(calls: Iterable[Call], arguments: str, line: int | None, words: _Words) -> None:
    """Note what the class of the arguments minimizes."""
    trl = TRL.match(arguments)
    if trl is not None and trl[1] != "SFT":
        words.say("objective", trl[1].lower(), line)
    elif arguments.startswith("Seq2Seq"):
        words.say("objective", "seq2seq", line)
