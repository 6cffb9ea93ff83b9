"""Python scripts around Hugging Face's trainers, in the words of their arguments.

The names of classes and their arguments: transformers, TRL, PEFT (`LoraConfig`), Unsloth
(`FastLanguageModel`) and Sentence Transformers.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

from rksp.ground.reading import bounded
from rksp.recipe_files.parse.document import Document
from rksp.recipe_files.parse.python_loop import ADAPTED, OF_ADAPTERS, PEFT, WORDS, Parts
from rksp.recipe_files.parse.python_script import LENGTHS, OF_COMMAND_LINE, TRL, Call
from rksp.recipe_files.parse.python_values import ANY
from rksp.recipe_files.parse.values import Unresolved

_LENGTHS = ("max_seq_length", "max_length", "max_prompt_length")
# Of the arguments; none has its default where settings come from elsewhere.
_SETTINGS = (
    *("learning_rate", "per_device_train_batch_size", "gradient_accumulation_steps", "max_steps"),
    *("num_train_epochs", "lr_scheduler_type", "warmup_steps", "weight_decay", "optim"),
)
_CAUSAL = re.compile(r"CausalLM|LMHead|FastLanguageModel|SFT")
_OWN_LOSS = re.compile(r"\b(compute_loss|training_step)\b")  # beside its trainer's


def is_script(document: Document) -> bool:
    """Tell whether a Python file builds the arguments of one of these trainers."""
    return document.syntax == "python" and bool(document.calls)


def of_script(document: Document) -> tuple[Document, tuple[str, ...]]:
    """Return a script's settings as a file of its trainer would hold them, and what to note."""
    calls = document.calls
    found = [call for call in calls if call.makes_arguments]
    first, parts = found[0], Parts(calls, home="")
    parts.keep(first, "", first.given)
    for name in sorted({name for call in found[1:] for name in call.given} - {ANY, "output_dir"}):
        if any(call.given.get(name) != first.given.get(name) for call in found[1:]):
            parts.data[name] = Unresolved(f"{len(found)} calls differ in it")
    if ANY in first.given:
        parts.keep(first, "", dict.fromkeys(_SETTINGS, first.given[ANY]))
    parts.adapters()
    parts.model()
    words, trl = str(document.data[WORDS]), TRL.match(first.short)
    is_causal = any(_CAUSAL.search(call.name) for call in calls)
    if trl is not None and trl[1] != "SFT":
        parts.keep(first, "", {"objective": trl[1].lower()})
    elif first.short.startswith("Seq2Seq") and not is_causal and "CAUSAL_LM" not in words:
        parts.keep(first, "", {"objective": "seq2seq"})
    for call in calls:
        if call.short.endswith("Trainer") or "from_pretrained" in call.name:
            said = {name: call.given[name] for name in _LENGTHS if name in call.given}
            parts.keep(call, "", said)
    if not any(name in parts.data for name in _LENGTHS):
        _cut(parts, calls, is_needed=trl is None)
    adapted = OF_ADAPTERS.search(words.lower())
    if adapted is not None and PEFT not in parts.data:
        parts.data[ADAPTED] = adapted[0]
    if _OWN_LOSS.search(words) or not is_causal:
        parts.data[WORDS] = words
    bounded(parts.data, document.path)
    read = dataclasses.replace(
        document, syntax="script", data=parts.data, lines=parts.lines, program=first.short
    )
    more = f", the first of {len(found)}" if len(found) > 1 else ""
    at = "" if first.line is None else f" of line {first.line}"
    notes = [f"Read from the calls of a script, {first.short}{at}{more}."]
    if any(OF_COMMAND_LINE.match(call.short) for call in calls):
        notes.append("Its command-line options are read at their defaults.")
    return read, tuple(notes)


def _cut(parts: Parts, calls: Iterable[Call], *, is_needed: bool) -> None:
    name = _LENGTHS[0]
    cut = [(call, call.given[one]) for call in calls for one in LENGTHS if call.given.get(one)]
    if any(length != cut[0][1] for _, length in cut):
        parts.data[name] = Unresolved("cut to several lengths")
    elif cut:
        parts.keep(cut[0][0], "", {name: cut[0][1]})
    elif is_needed and parts.data.get("objective", "lm") == "lm":
        parts.data[name] = Unresolved("said nowhere that rksp reads")
