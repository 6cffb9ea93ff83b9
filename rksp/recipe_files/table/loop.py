"""What a script with a loop of its own leaves out, and what it says in a way that is not read.

Such a script has no trainer whose defaults stand in: a field that nothing in it sets is at the
default of its optimizer, or off, and one that it mentions without saying it is not known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from rksp.recipe_files.parse.document import Found
from rksp.recipe_files.parse.python_loop import ADAPTED, OF_ADAPTERS, OPTIMIZERS, WORDS
from rksp.recipe_files.table.draft import Draft
from rksp.recipe_files.table.spellings import is_on, plain, spelt

# What torch's optimizers have where their calls leave it out.
_DECAYS = {"AdamW": 0.01, "Adam": 0.0}
_BETAS = {"adam_beta1": 0.9, "adam_beta2": 0.999}
_SIGNS = {
    "peft": OF_ADAPTERS.pattern,
    "schedule": r"sched|get_lr|lr_lambda|_decay_lr|lr_decay|warmup|anneal|param_groups",
    "max_grad_norm": r"clip",
    "precision": r"autocast|amp|half|bfloat16|float16|fp16|bf16|mixed_precision|grad_scaler|fp8",
}
_PART = re.compile(  # keys of prompts, prefixes and heads beside stored weights
    r"(^|\.)(pre_seq_len|train_adapter|num_experts|lora_target_modules|num_virtual_tokens|(soft_)?(prompt|prefix)_(len|length|tokens|tuning)|"
    r"(?!encoder|decoder|vision|text|audio|speech|image|mtp)[a-z]+_num_(heads|layers))$"
)
_ADAPTED = re.compile(r"lora|peft|dora|adapter")  # said of a program
_CAUSAL = re.compile(r"CausalLM|LMHead|FastLanguageModel|SFT(Trainer|Config)")
_SILENT = {"schedule": "constant", "max_grad_norm": None, "precision": "fp32"}


def settle_loop(draft: Draft) -> None:
    """Decide the fields of a loop that are left, of a document that is a script with one."""
    data = draft.document.data
    built = data.get(OPTIMIZERS)
    if WORDS not in data or not isinstance(built, Mapping) or not built:
        return
    words = plain(str(data[WORDS]))
    name = next(iter(built)).split()[0]
    key = f"{OPTIMIZERS}.{name}"
    optimizer = Found(key=key, value=name, line=draft.document.lines.get(key))
    usual = {"weight_decay": _DECAYS[name], **_BETAS} if name in _DECAYS else {}
    for field, value in usual.items():
        if not draft.knows(field):
            draft.put(field, value, optimizer, text=f"the default of {name}")
    for field, sign in _SIGNS.items():
        if draft.knows(field):
            continue
        said = re.search(rf"(?<![a-z])({sign})", words)
        if said is not None:
            draft.unknown(field, optimizer, f"{said[0]} stands in the script, and is not read")
        elif field in _SILENT:
            draft.put(field, _SILENT[field], optimizer, text=f"no {field} is set beside it")
    for field in ("batch_size", "sequence_length"):
        if not draft.knows(field):
            draft.unknown(field, optimizer, "the script says it nowhere that rksp reads")


def settle_adapters(draft: Draft, *, is_module: bool = False) -> None:
    """Leave the adapters unknown that a script names without building any.

    So are those of a module of settings alone, which names weights to tune: the script that it is
    for stands elsewhere, and may add them.
    """
    data = draft.document.data
    if draft.value("peft") != "none":
        return
    key = next((key for key in draft.document.leaves() if _PART.search(plain(key))), "")
    part = draft.document.find(key) if draft.names_weights else None
    program = draft.document.program
    if draft.names_weights and _ADAPTED.search(program.lower()):
        found = Found(key=program, value="")
        draft.unknown("peft", found, f"{program} is named for adapters")
    elif part is not None and is_on(part.value):
        draft.unknown("peft", part, f"{key} is of a part that is added to the weights")
    elif ADAPTED in data:
        found = Found(key=str(data[ADAPTED]), value="")
        draft.unknown("peft", found, f"{found.key} stands in the script")
    elif is_module and draft.names_weights and not draft.knows("peft"):
        found = Found(key=next(iter(data)), value="")
        draft.unknown("peft", found, "the script that trains stands elsewhere")


def doubt_of_text(words: str) -> str:
    """Say why the words of a script do not show that it trains on plain text; mostly empty.

    One that loads a causal language model speaks of other data too.
    """
    parts = {part for part in re.split(r"[^a-z0-9]+|_", plain(words)) if part}
    is_causal = _CAUSAL.search(words) is not None
    speaks = parts.intersection(spelt("objective", "not_likelihood"))
    if not is_causal:
        speaks |= parts.intersection(spelt("objective", "not_text"))
    if speaks:
        return f"{min(speaks)} stands in the script"
    is_text = is_causal or parts.intersection(spelt("objective", "text"))
    return "" if is_text else "nothing in it speaks of text"
