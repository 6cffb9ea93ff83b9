"""Read a run file by the meaning of its keys, whoever's it is; `thesaurus.toml` has the spellings.

A field is what stands under one of its spellings, at any depth, outside sections of other models
and of evaluation. Two that are as good and differ make it unknown. A model is found by its value: a
name that the table of models, a type or a file resolves, or sizes that stand in the file.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeVar

from rksp.recipe import LOW_RANK, PREFERENCES, REINFORCED, Recipe
from rksp.recipe_files.parse.document import Document, Found, FoundNumber
from rksp.recipe_files.parse.python_loop import BY_HAND, NAMES, OPTIMIZERS, WORDS
from rksp.recipe_files.parse.python_source import FUNCTIONS
from rksp.recipe_files.parse.values import Unresolved
from rksp.recipe_files.table import convert
from rksp.recipe_files.table.draft import Draft
from rksp.recipe_files.table.loop import settle_adapters, settle_loop
from rksp.recipe_files.table.model import foreign_blocks, model
from rksp.recipe_files.table.names import optimizer_of, precision_of
from rksp.recipe_files.table.objective import set_objective
from rksp.recipe_files.table.spellings import (
    PREFERRED,
    REWARDED,
    Names,
    is_on,
    number,
    plain,
    spelt,
    texts,
    units,
)

_Taken = TypeVar("_Taken", bound=Found)
_TUNING = re.compile(r"method|type|mode|tun")  # keys whose value may be a kind of adapters
_LORA_WORDS = re.compile(r"lora|dora")
_PLAIN_LORA = re.compile(r"(?<![a-z])((q|rs|use)?lora|dora)")  # GLoRA and AdaLoRA are others
_KINDS = ("peft_type", "peft_method", "peft_scheme")  # keys whose value is one
_FOUR_BITS = re.compile(r"4[-_]?bit", re.I)  # of weights' names
_STORED = re.compile(r"[-_](bf16|fp16)$")  # of weights' names: what they are kept and loaded in
_OF_PRECISION = re.compile(r"(precision|dtype|(^|[_.])(amp|bf16|fp16|half)($|_))[^.]*$")
_OF_LENGTH = re.compile(r"(max|seq|context|ctx|block)\w*_(len|length|size|window)(_|$)")
_QUANTIZED = re.compile(r"(bits|bnb|quant|lora)\w*\.")
_NOT_LOW = (
    "ia3",
    "prefix",
    "prefix_tuning",
    "prompt",
    "prompt_tuning",
    "p_tuning",
    "adapter",
    "bitfit",
)
_OF_DATA = re.compile(r"data|corpus|text|file", re.I)
_NAME = re.compile(r"[A-Za-z_]\w*")
_FEWEST = 8  # bits of weights that are not trained themselves
_TOKENS = 2**16  # a batch of as many is counted in tokens
_OF_ROLLOUTS = ("n_steps", "iterations", "num_iterations")  # steps within one, passes over one


def _first(draft: Draft, names: Names, field: str, spellings: Iterable[str]) -> FoundNumber | None:
    """Return the number that gives a field; None if nothing does or it is unknown."""
    return _first_that(_as_number, draft, names, field, spellings)


def _as_number(found: Found) -> FoundNumber | None:
    return found.as_number(number(found.value))


def _first_that(
    takes: Callable[[Found], _Taken | None],
    draft: Draft,
    names: Names,
    field: str,
    spellings: Iterable[str],
) -> _Taken | None:
    """Return what gives a field, taken like this; None if nothing does or it is unknown."""
    spellings = list(spellings)
    stated = names.find(spellings)
    draft.asked.update(one.key for one in stated)
    usable: list[_Taken] = []
    for one in stated:
        if isinstance(one.value, Unresolved) or one.value == "auto":
            draft.seen.add(one.key)
            if not usable or _passes_another(one, usable[0], field):
                draft.unknown(field, one)
                return None
            continue
        taken = takes(one)
        if taken is None and field == "learning_rate" and isinstance(one.value, str) and not usable:
            draft.unknown(field, one)
            return None
        usable += [] if taken is None else [taken]
    values = [one.value for one in usable[:1]]
    for other in names.laid_over(spellings) if field in Recipe.model_fields else ():
        if other.value not in values:
            draft.unknown(field, other, f"{other.key} gives {other.value}")
            return None
    if not usable:
        return None
    first = usable[0]
    draft.seen.update(one.key for one in usable)
    for other in usable[1:]:
        is_same = field == "learning_rate" or _last(other) == _last(first)
        if is_same and other.value != first.value and _depth(other) == _depth(first):
            said = f"{first.key} is {first.value}, and {other.key} is {other.value}"
            draft.unknown(field, first, said)
            return None
    return first


def _passes_another(passed: Found, first: Found, field: str) -> bool:
    if field != "learning_rate" or not isinstance(passed.value, Unresolved):
        return False
    name = plain("".join(_NAME.findall(passed.value.text)[-1:]))
    return name not in (_last(first), "lr", "learning_rate")


def _last(found: Found) -> str:
    return plain(found.key.rpartition(".")[2])


def _depth(found: Found) -> int:
    return found.key.count(".")


def fill(draft: Draft) -> None:
    """Set every field that a document gives, and its model, by the spellings alone."""
    set_objective(draft)
    names = _names(draft)
    _devices(draft, names)
    _optimizer(draft, names)
    _rate(draft, names)
    schedule = _first_that(Found.as_text, draft, names, "schedule", spelt("schedule", "name"))
    fixed = [one for one in names.find(spelt("schedule", "decays")) if one.value is False]
    if fixed:
        convert.put_fixed(draft, fixed[0])
    elif schedule is not None:
        convert.put_schedule(draft, schedule)
    _length(draft, names)
    _batch(draft, names)
    _steps(draft, names)
    if draft.value("objective") in REINFORCED and not draft.knows("max_steps"):
        rolled = Found(key=", ".join(draft.keys_of("objective")), value="")
        draft.unknown("max_steps", rolled, "answers are sampled, and nothing says how long")
    _warmup(draft, names)
    for field in ("weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon"):
        _plain_number(draft, names, field)
    pair = _first_that(lambda one: one, draft, names, "adam_beta1", spelt("adam_beta1", "pair"))
    if pair is not None:
        convert.betas(draft, pair.key)
    norm = _first(draft, names, "max_grad_norm", spelt("max_grad_norm", "number"))
    if norm is not None:
        convert.clip(draft, "max_grad_norm", [norm.key])
    _lowest(draft, names)
    adapters(draft, names)
    _held(draft, names)
    model(draft, names)
    _precision(draft, names)
    _doubt_part(draft)
    settle_loop(draft)
    is_module = draft.document.syntax == "python" and WORDS not in draft.document.data
    settle_adapters(draft, is_module=is_module)


def _doubt_part(draft: Draft) -> None:
    """Leave the objective unknown of sections without data and batch: the file is but a part."""
    sections = [one for one in draft.document.data.values() if isinstance(one, Mapping)]
    is_open = not any(map(draft.knows, ("objective", "batch_size"))) and draft.names_weights
    if len(sections) > 1 and is_open and not any(map(_OF_DATA.search, draft.document.leaves())):
        found = Found(key=str(draft.document.path.name), value="")
        draft.unknown("objective", found, "the file says nothing of the data that it trains on")


def _names(draft: Draft) -> Names:
    is_later = draft.value("objective") in (*PREFERENCES, *REINFORCED)  # than plain text
    return Names(draft.document, spelt("objective", "for") if is_later else ())


def _held(draft: Draft, names: Names) -> None:
    fields = _holding(draft)
    for field in fields:
        _plain_number(draft, names, field)
        off = next((s for key in draft.keys_of(field) if (s := _switch_off(draft, key))), None)
        if off is not None:
            draft.put(field, 0.0, off, text=f"{off.key} is off")
    for one in names.find(spelt("reference", "model"), anywhere=True) if fields else ():
        draft.look(one.key)
        draft.note(f"The run is held to the reference model {one.value}.")


def _switch_off(draft: Draft, key: str) -> Found | None:
    """Return the switch of a coefficient that is off: `use_kl_loss` beside `kl_loss_coef`."""
    home, _, name = key.rpartition(".")
    term = plain(name).rpartition("_")[0]
    places = [f"{home}." if home else "", f"{home.rpartition('.')[0]}." if "." in home else ""]
    switches = [f"{place}use_{term}{end}" for place in places for end in ("", "_in_reward")]
    found = draft.document.find(*switches) if term else None
    return None if found is None or is_on(found.value) else found


def _holding(draft: Draft) -> tuple[str, ...]:
    kinds = ((PREFERENCES, PREFERRED), (REINFORCED, REWARDED))
    return next((fields for of, fields in kinds if draft.value("objective") in of), ())


def differs(draft: Draft, key: str) -> bool:
    """Tell whether a key that is not read gives another learning rate beside the one that is."""
    (home, _, name), other = key.rpartition("."), draft.document.find(key)
    places = {one.rpartition(".")[0]: one for one in draft.keys_of("learning_rate")}
    if other is None or home not in places or plain(name) not in spelt("learning_rate", "rate"):
        return False
    return number(other.value) not in (None, draft.value("learning_rate"))


def trains_all(draft: Draft, setting: Found | None) -> bool:
    """Tell whether a setting that is not read speaks against a trainer's default adapters."""
    if setting is None or draft.is_read("peft") or not draft.knows("peft"):
        return False
    return str(setting.value).lower() == "full" and _TUNING.search(_last(setting)) is not None


def gives_rate(document: Document) -> bool:
    """Tell whether a document gives a learning rate, whatever it is."""
    found = Names(document).find(spelt("learning_rate", "rate"))
    is_run = document.syntax != "python" or not {OPTIMIZERS, FUNCTIONS}.isdisjoint(document.data)
    return any(is_run or not isinstance(one.value, Unresolved) for one in found)


def gives_run(document: Document) -> bool:
    """Tell whether a document gives the length of a run and its batch, though no rate."""
    names = Names(document)
    if document.syntax not in ("yaml", "json", "toml"):
        return False
    return all(names.find(spelt(field)) for field in ("max_steps", "batch_size"))


def _passed_over(draft: Draft) -> tuple[str, ...]:
    return _OF_ROLLOUTS if draft.value("objective") in REINFORCED else ()


def complete(draft: Draft) -> None:
    """Add to what a trainer's reader read what it did not look for: settings of other versions.

    That is the objective that the file shows, what decides the answer, and a model.
    """
    asked = set(draft.asked)
    draft.by_name = True
    set_objective(draft)
    names = _names(draft)
    is_strict = draft.document.syntax == "shell"  # a program refuses flags that it does not know
    for field, fill_in in (*_FILLED.items(), *(_BESIDE.items() if is_strict else ())):
        # A device's share says nothing of a reader's whole batch.
        known = ("whole", "tokens") if field == "batch_size" else units(field)
        passed = _passed_over(draft)
        spellings = [one for unit in known for one in spelt(field, unit) if one not in passed]
        keys = {one.key for one in names.find(spellings)}
        if keys and not draft.is_read(field) and not draft.is_unknown(field) and not keys & asked:
            fill_in(draft, names)
            if field == "max_steps" and not draft.is_read("warmup_steps"):
                _warmup(draft, names)  # which may be a share of them
    _held(draft, names)
    settle_adapters(draft)
    if draft.lacks_target:
        model(draft, names)
    elif draft.is_literal and (foreign := foreign_blocks(draft.document, asked)):
        draft.no_target(f"its blocks have {foreign}; name a model with such blocks as TARGET.")


def _plain_number(draft: Draft, names: Names, field: str) -> None:
    found = _first(draft, names, field, spelt(field, "number"))
    if found is not None and not draft.is_read(field):
        draft.put(field, found.value, found)


def _rate(draft: Draft, names: Names) -> None:
    """Set the rate; what an optimizer is built with is not it where the script sets it again."""
    found = _first(draft, names, "learning_rate", spelt("learning_rate", "rate"))
    if found is None:
        return
    is_built = found.key.startswith(f"{OPTIMIZERS}.")
    other = names.find(spelt("learning_rate", "rate"))[-1]
    is_alone = number(other.value) != found.value or other.key == found.key
    if is_built and found.value == 0:
        draft.unknown("learning_rate", found, f"{found.key} is 0 until it is set elsewhere")
    elif is_built and is_alone and BY_HAND in draft.document.data:
        draft.unknown("learning_rate", found, "the script sets the rate again by hand")
    else:
        draft.put("learning_rate", found.value, found)


def _devices(draft: Draft, names: Names) -> None:
    counts = [_first(draft, names, "devices", spelt("batch_size", unit))
              for unit in ("devices", "nodes")]  # fmt: skip
    if counts[0] is not None:
        convert.devices(draft, " ".join(one.key for one in counts if one is not None))


def _optimizer(draft: Draft, names: Names) -> None:
    built = draft.document.data.get(OPTIMIZERS)
    words = [str(one) for one in built if one != "critic"] if isinstance(built, Mapping) else []
    found: Found | None = None
    if not words:
        found = _first_that(Found.as_text, draft, names, "optimizer", spelt("optimizer", "name"))
    else:
        kinds = {optimizer_of(word)[0]: word for word in reversed(words)}
        word = kinds.get("muon", words[0])
        key = f"{OPTIMIZERS}.{word}"
        found = Found(key=key, value=word.split()[0], line=draft.document.lines.get(key))
        if (len(kinds) > 1 and "muon" not in kinds) or word == "configure_optimizers":
            draft.unknown("optimizer", found, f"the script builds {' or '.join(words)}")
            return
    if found is not None:
        convert.put_optimizer(draft, found)


def _length(draft: Draft, names: Names) -> None:
    if draft.value("objective") in REINFORCED:
        answer, prompt = (
            _first(draft, names, "sequence_length", spelt("sequence_length", part))
            for part in ("answer", "prompt")
        )
        if answer is not None:
            parts = [one for one in (prompt, answer) if one is not None]
            text = "prompt and answer" if prompt is not None else "the answer alone"
            draft.put("sequence_length", int(sum(p.value for p in parts)), *parts, text=text)
            return
    is_rl = draft.value("objective") in REINFORCED  # whose blocks are those of an answer
    words = [one for one in spelt("sequence_length", "tokens") if not is_rl or one != "block_size"]
    found = _first(draft, names, "sequence_length", words)
    if found is not None and found.value > 0:
        draft.put("sequence_length", int(found.value), found)
    elif draft.document.syntax == "python" and not draft.is_unknown("sequence_length"):
        keys = (key for key in draft.document.leaves() if _OF_LENGTH.search(plain(key)))
        other = draft.document.find(*keys)
        if other is not None:
            draft.unknown("sequence_length", other, f"{other.key} may mean it")


def _batch(draft: Draft, names: Names) -> None:
    kinds = {
        unit: _first(draft, names, "batch_size", spelt("batch_size", unit))
        for unit in ("whole", "tokens", "mini", "prompts", "device", "plain", "accumulation")
    }
    is_rl, answers = draft.value("objective") in REINFORCED, None
    if is_rl:
        answers = _first(draft, names, "generations", spelt("generations", "number"))
    parts = _first(draft, names, "batch_size", spelt("batch_size", "parts")) if is_rl else None
    total, size, steps = kinds["whole"], kinds["device"], kinds["accumulation"]
    bare = kinds["plain"]
    if size is None:
        size = bare
    elif total is None and bare is not None and "micro" in size.key and bare.value >= size.value:
        total = bare  # a batch beside its share is the whole
    of_all = total is not None and _last(total) != "train_batch_size"
    vague = None if of_all or kinds["tokens"] else total or (bare if size == bare else None)
    rolled = kinds["prompts"]
    is_rolled = rolled is not None and (total is None or total.key == rolled.key)
    prompts = kinds["mini"] or (rolled if is_rolled else None)
    counted, several = total or bare, answers if answers and answers.value > 1 else None
    is_split = not is_rl and size is None and steps is not None and steps.value > 1
    is_more = rolled and counted and counted.value > rolled.value  # than a rollout's prompts
    if is_rl and size is not None and steps is not None and kinds["mini"] is None and total is None:
        said = f"{size.key} and {steps.key} are those of devices that are not told"
        draft.unknown("batch_size", size, said)
    elif is_rl and prompts and size and "mini" in size.key and size.value > prompts.value:
        draft.unknown("batch_size", size, f"{size.key} is more than {prompts.key}")
    elif is_rl and prompts is not None and prompts.value > 0:
        each = int(answers.value) if answers is not None else 1
        share = max(1, int(parts.value)) if parts is not None else 1
        text = f"{prompts.value:g} prompts × {each} answers{f' / {share} steps' if parts else ''}"
        count = max(1, int(prompts.value) * each // share)
        draft.put("batch_size", count, prompts, answers, parts, text=text)
    elif several is not None and counted is not None and not is_more:
        said = f"{counted.key} may count prompts or their {several.value:g} answers"
        draft.unknown("batch_size", counted, said)
    elif total is not None and is_split and _last(total) == "train_batch_size":
        draft.unknown("batch_size", total, f"{total.key} may be that of one pass or of a step")
    elif vague is not None and (draft.devices or 1) > 1:
        said = f"{vague.key} may be the batch of one device or of all {draft.devices}"
        draft.unknown("batch_size", vague, said)
    elif total is not None and total.value > 0:
        length = int(draft.value("sequence_length")) if draft.is_read("sequence_length") else 1
        is_tokens = length > 1 and total.value >= _TOKENS and total.value % length == 0
        count = int(total.value) // (length if is_tokens else 1)
        text = f"{total.value:g} tokens / {length} a sequence" if is_tokens else ""
        draft.put("batch_size", count, total, text=text)
    elif kinds["tokens"] is not None:
        tokens, length = kinds["tokens"], int(draft.value("sequence_length"))
        text = f"{tokens.value:g} tokens / {length} a sequence"
        count = max(1, int(tokens.value / length))
        draft.put("batch_size", count, tokens, text=text, after=("sequence_length",))
    elif size is not None and size.value >= 1 and not draft.is_unknown("batch_size"):
        convert.put_batch(draft, size, steps, max(1, draft.devices or 1))
    if steps is not None and steps.value >= 1:
        draft.put("gradient_accumulation_steps", int(steps.value), steps)


def _steps(draft: Draft, names: Names) -> None:
    for unit, short in (("steps", "ba"), ("samples", "sp"), ("tokens", "tok"), ("epochs", "ep")):
        if draft.is_read("max_steps") or draft.is_unknown("max_steps"):
            return
        passed = _passed_over(draft)
        spellings = [one for one in spelt("max_steps", unit) if one not in passed]
        found = _first(draft, names, "max_steps", spellings)
        if found is not None and found.value > (1 if unit == "steps" else 0):
            convert.put_steps(draft, "max_steps", found, short)
            if unit == "steps" and "max" not in _last(found) and draft.is_read("max_steps"):
                times = _first(draft, names, "max_steps", spelt("max_steps", "epochs"))
                if times is not None and times.value > 0:  # either may end the run
                    draft.unknown("max_steps", found, f"{found.key} or {times.key} ends the run")


def _warmup(draft: Draft, names: Names) -> None:
    for key in draft.keys_of("schedule"):
        if key.rpartition(".")[2] == "lr_scheduler_type" and convert.ignores_warmup(draft, key):
            return  # as in transformers, whose name this is
    shorts = {"steps": "", "share": "", "tokens": "tok", "samples": "sp", "epochs": "ep"}
    for unit, short in shorts.items():
        if draft.is_read("warmup_steps"):
            return
        found = _first(draft, names, "warmup_steps", spelt("warmup_steps", unit))
        if found is None or found.value < 0 or (found.value == 0 and unit == "steps"):
            continue
        if short:
            convert.put_steps(draft, "warmup_steps", found, short)
        else:
            convert.put_warmup(draft, found)


def _lowest(draft: Draft, names: Names) -> None:
    share = _first(draft, names, "min_lr_ratio", spelt("min_lr_ratio", "share"))
    lowest = _first(draft, names, "min_lr_ratio", spelt("min_lr_ratio", "rate"))
    if share is not None and 0 <= share.value <= 1:
        draft.put("min_lr_ratio", share.value, share)
    elif lowest is not None:
        convert.lowest_rate(draft, "min_lr_ratio", [lowest.key])


def _precision(draft: Draft, names: Names) -> None:
    for found in names.find(spelt("precision", "on")):
        if str(found.value).lower() in ("true", "1", "yes"):
            draft.look(found.key)
            word = found.key.removesuffix(".enabled").rpartition(".")[2]
            convert.put_precision(draft, dataclasses.replace(found, value=word))
            return
    named = _first_that(Found.as_text, draft, names, "precision", spelt("precision", "name"))
    if named is not None and _QUANTIZED.search(named.key):  # what its weights are unpacked to
        draft.unknown("precision", named)
    elif named is not None and precision_of(named.value) is not None:
        convert.put_precision(draft, named)
        return
    for found in names.find([*spelt("model", "names"), "model"]):
        kept = _STORED.search(str(found.value))
        if kept is not None and draft.names_weights:
            is_pure = draft.value("peft") == "none"
            stored = dataclasses.replace(found, value=kept[1])
            convert.put_precision(
                draft, stored, is_pure=is_pure, text=f"as {found.value} is stored"
            )
            return

    doubtful = next(names.like(_OF_PRECISION), None)
    if doubtful is not None:
        draft.unknown("precision", doubtful, f"{doubtful.key} is {doubtful.value!s:.40}")


def _is_other(found: Found) -> bool:
    value = str(found.value).lower()
    return value in _NOT_LOW or (found.key.endswith(_KINDS) and is_on(value) and value != "full")


def adapters(draft: Draft, names: Names | None = None, *, by_rank: bool = True) -> None:
    """Set the adapters where a switch is on, a word says so, or they have a rank."""
    names = names or Names(draft.document)
    said = {part: names.find(spelt("peft", part)) for part in units("peft")}
    named = (one for one in names.like(_TUNING) if str(one.value).lower() in LOW_RANK)
    words = texts([*said["word"], *named])
    word = next((one for one in words if _LORA_WORDS.search(one.value.lower())), None)
    on = next((one for one in said["on"] if is_on(one.value)), None)
    ranks = (one for one in said["rank"] if one.key not in draft.document.defaults)
    ranks = (one for one in ranks if word or on or "lora" in one.key.lower())
    rank = next((one for one in ranks if (number(one.value) or 0) > 0), None)
    switches = [*said["on"], *said["word"]]
    is_off = any(not is_on(one.value) or str(one.value).lower() == "full" for one in switches)
    sign = word or on or (rank if by_rank and not is_off else None)
    low = (one for one in said["bits"] if (number(one.value) or 0) <= _FEWEST)
    is_whole = any(one.value is False for one in said["bits"])  # `q_lora` off, whatever its bits
    bits = next((one for one in low if is_on(one.value) and not is_whole), None)
    if sign is None:
        if by_rank and bits is not None and not draft.knows("peft"):
            draft.unknown("peft", bits, f"{bits.key} is {bits.value}: only adapters train on it")
        others = [one for one in said["word"] if _is_other(one)]
        if others:
            draft.put("peft", "other", others[0])  # such as peft's `C3A`
        elif rank is not None and not is_off:
            draft.unknown("peft", rank, f"{rank.key} is {rank.value}")
        elif not switches and all(number(one.value) != 0 for one in said["rank"]):
            _doubt_adapters(draft)
        return
    if not said["bits"]:
        draft.get(*spelt("peft", "bits"))  # asked for, so that a misspelt key is told
    marks = [str(word.value) if word else "", sign.key]
    is_four = bits is not None or any("qlora" in mark.lower() for mark in marks)
    whole = [sign, *names.find([*spelt("model", "names"), "model"])]
    is_four |= any(_FOUR_BITS.search(str(one.value)) is not None for one in whole)
    is_other = word is not None and _PLAIN_LORA.search(word.value.lower()) is None
    place = (said["rank"] or [sign])[0].key.rpartition(".")[0]
    home = f"{place}." if place else ""
    plainly = str(sign.value).lower() if str(sign.value).lower() in LOW_RANK else "lora"
    kind, switch = convert.kind_of_adapters(draft, plainly, home=home)
    kind = "other" if is_other else "qlora" if is_four else kind
    draft.put("peft", kind, sign, bits if is_four else switch)
    rank_keys, alpha, targets = (
        " ".join(one.key for one in said[part])
        or " ".join(f"{at}{one}" for at in ("", home) for one in spelt("peft", part))
        for part in ("rank", "alpha", "targets")
    )  # what is absent is asked for too: a misspelt key is then told
    convert.put_lora(draft, rank_keys, alpha, targets)


def _doubt_adapters(draft: Draft) -> None:
    """Leave the adapters unknown that a command's program builds, or that a flag is named for."""
    document = draft.document
    if document.syntax != "shell" or draft.knows("peft"):
        return
    built = _BUILDS.search(str(document.data.get(NAMES, "")))
    stated = {key: document.find(key) for key in document.stated().leaves()}
    named = (key for key, one in stated.items() if one is not None and _LORA_FLAG.search(key)
             and (is_on(one.value) or key.startswith("no")))  # fmt: skip
    key = built[0] if built else next(named, "")
    if key:
        said = f"{document.program} calls {key}" if built else f"{key} is not read"
        draft.unknown("peft", Found(key=key, value=""), said)


_BUILDS = re.compile(r"\b(\w*LoraConfig|get_peft_model)\b")
_LORA_FLAG = re.compile(r"^(?!(q|kv)_)\w*lora", re.I)  # attention may have a low rank of its own

_FILLED = {
    "optimizer": _optimizer,
    "learning_rate": _rate,
    "sequence_length": _length,
    "batch_size": _batch,
    "max_steps": _steps,
}  # what decides an answer
_BESIDE = {
    "warmup_steps": _warmup,
    "min_lr_ratio": _lowest,
    "precision": _precision,
    **{
        name: partial(_plain_number, field=name)
        for name in ("weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon")
    },
}  # what a trainer has a default for, and a program may set otherwise
