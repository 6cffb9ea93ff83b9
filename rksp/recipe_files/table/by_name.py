"""Read a run file by the meaning of its keys, whoever's it is; `thesaurus.toml` has the spellings.

A field is what stands under one of its spellings, at any depth, outside sections of other models
and of evaluation. Two that are as good and differ make it unknown. A model is found by its value: a
name that the table of models, a type or a file resolves, or sizes that stand in the file.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from rksp.ground.model import definite
from rksp.ground.tables import packaged_toml
from rksp.models.names import is_hub_id, is_type, published, published_like
from rksp.recipe import PREFERENCES, REINFORCED
from rksp.recipe_files.parse.document import Document, Found, beside, folders_above
from rksp.recipe_files.parse.python_loop import NAMES, OPTIMIZERS
from rksp.recipe_files.parse.python_source import FUNCTIONS
from rksp.recipe_files.parse.values import Unresolved, read_number
from rksp.recipe_files.said.origin import DECISIVE
from rksp.recipe_files.table import convert
from rksp.recipe_files.table.draft import Draft
from rksp.recipe_files.table.names import hub_id_of, shape_of, shape_published
from rksp.recipe_files.table.reader import elsewhere, foreign_format

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NOT_OFF = ("", "none", "null", "false", "0", "0.0", "no", "off")
_MODEL = re.compile(r"model|llm|weights|checkpoint|ckpt|pretrained|base|load")
_NO_MODEL = re.compile(
    r"data|output|save|log|reward|judge|repo|vision|image|clip|tower|encoder|vae|audio"
)
_OPTIMIZERS = re.compile(r"optim|sched")  # sections whose settings show no objective
_LORA_WORDS = re.compile(r"lora|dora")
_SUPERVISED = ("lm", "classification", "seq2seq", "mlm", "other")  # what sft may stand for
_SHORTEST, _SHORT = 7, 11  # letters of a name that may be misspelt, once or twice
_STORED = re.compile(r"[-_](bf16|fp16)$")  # of weights' names: what they are kept and loaded in
_BLOCKS = re.compile(r"rwkv|mamba|ssm|hyena|lstm|(^|_)gru|retnet|recurrent|conv(?!erter|ert)")
_PASSED = re.compile(
    r"^[A-Za-z_][\w.\[\]'\"]*$"
)  # a name that only passes on what stands elsewhere
_CLASS = re.compile(r"(LMHead)?(For[A-Z]\w+|Model)$")
_OF_DECODERS = ("lm", "distillation", *PREFERENCES, *REINFORCED)
_GENERIC = re.compile(r"gpt|llama|causal|decoder|^transformer|^lm$")  # said of what is read as such
_OTHER_NET = re.compile(r"rwkv|mamba|hyena|retnet|lstm")
_TOKENS = 2**16  # a batch of as many is counted in tokens
_HEAD_WIDTH = 64  # of models that do not say how many heads they have


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leaf:
    """A setting: its dotted key, and the parts of it that tell its meaning."""

    key: str
    parts: tuple[str, ...]
    is_foremost: bool
    is_elsewhere: bool


def thesaurus() -> dict[str, Any]:
    """Return the table: field → unit → spellings; blanks separate spellings."""
    return packaged_toml("rksp.recipe_files", "thesaurus.toml")


@cache
def _words(*path: str) -> tuple[str, ...]:
    found: Any = thesaurus()
    for part in path:
        found = found[part]
    return tuple(found.split())


def plain(name: str) -> str:
    """Return a key in small letters with underscores: `learningRate` and `learning-rate` too."""
    return _HUMP.sub("_", name).lower().replace("-", "_")


class Names:
    """The settings of a document by the meaning of their keys."""

    def __init__(self, document: Document) -> None:
        self.document = document
        elsewhere, foremost = set(_words("elsewhere")), set(_words("foremost"))
        between = set(_words("between"))
        self._by_last: dict[str, list[_Leaf]] = {}
        for key in document.leaves():
            parts = [part for part in map(plain, key.split(".")) if part.strip("()")]
            parts = [*(part for part in parts[:-1] if part not in between), *parts[-1:]]
            if not parts:
                continue
            leaf = _Leaf(
                key=key,
                parts=tuple(parts),
                is_foremost=bool(foremost.intersection(parts[:-1])),
                is_elsewhere=bool(elsewhere.intersection(parts[:-1])),
            )
            self._by_last.setdefault(parts[-1], []).append(leaf)

    def find(self, spellings: Iterable[str], *, anywhere: bool = False) -> list[Found]:
        """Return what stands under these spellings, the best first, references followed.

        What is switched off, or left to the trainer, does not stand there, nor, unless `anywhere`
        counts, what belongs to another model or to evaluation.
        """
        found: list[tuple[tuple[bool, bool, int, int], Found]] = []
        for place, spelling in enumerate(spellings):
            *home, last = spelling.split(".")
            for leaf in self._by_last.get(last, ()):
                above = leaf.parts[:-1]
                if home and list(above[-len(home) :]) != home:
                    continue
                if leaf.is_elsewhere and not (anywhere and home):
                    continue
                one = self.document.find(leaf.key)
                if one is not None:
                    is_passed = isinstance(one.value, Unresolved) and _PASSED.search(one.value.text)
                    found.append(((bool(is_passed), not leaf.is_foremost, place, len(above)), one))
        return [one for _, one in sorted(found, key=lambda pair: pair[0])]

    def strings(self) -> Iterator[Found]:
        """Yield all settings that are words and may name the model."""
        for leaves in self._by_last.values():
            for leaf in (one for one in leaves if not one.is_elsewhere):
                one = self.document.find(leaf.key)
                key = leaf.key.lower()
                may_name = _MODEL.search(key) is not None and _NO_MODEL.search(key) is None
                if one is not None and isinstance(one.value, str) and may_name:
                    yield one


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        value = read_number(value)
    is_one = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_one else None


def _first(
    draft: Draft, names: Names, field: str, spellings: Iterable[str], *, needed: type = float
) -> Found | None:
    """Return what gives a field; None if nothing does, or it is unknown, which is then said.

    `needed` is float for numbers, str for words and object for anything.
    """
    stated = names.find(spellings)
    draft.asked.update(one.key for one in stated)
    usable: list[Found] = []
    for one in stated:
        if isinstance(one.value, Unresolved) or one.value == "auto":
            draft.seen.add(one.key)
            if not usable:
                draft.unknown(field, one)
                return None
            continue
        value = _number(one.value) if needed is float else one.value
        if value is None and field == "learning_rate" and isinstance(one.value, str) and not usable:
            draft.unknown(field, one)
            return None
        if value is None or (needed is str and not isinstance(value, str)):
            continue
        usable.append(dataclasses.replace(one, value=value))
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


def _last(found: Found) -> str:
    return plain(found.key.rpartition(".")[2])


def _depth(found: Found) -> int:
    return found.key.count(".")


def fill(draft: Draft) -> None:
    """Set every field that a document gives, and its model, by the spellings alone."""
    names = Names(draft.document)
    objective(draft, names)
    _devices(draft, names)
    _optimizer(draft, names)
    _rate(draft, names)
    schedule = _first(draft, names, "schedule", _words("schedule", "name"), needed=str)
    if schedule is not None:
        convert.put_schedule(draft, schedule)
    _length(draft, names)
    _batch(draft, names)
    _steps(draft, names)
    _warmup(draft, names)
    for field in ("weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon"):
        _plain_number(draft, names, field)
    pair = _first(draft, names, "adam_beta1", _words("adam_beta1", "pair"), needed=object)
    if pair is not None:
        convert.betas(draft, pair.key)
    norm = _first(draft, names, "max_grad_norm", _words("max_grad_norm", "number"))
    if norm is not None:
        convert.clip(draft, "max_grad_norm", [norm.key])
    _lowest(draft, names)
    adapters(draft, names)
    _held(draft, names)
    model(draft, names)
    _precision(draft, names)


def _held(draft: Draft, names: Names) -> None:
    """Set what a run on preferences or rewards is held by, and to."""
    kinds = ((PREFERENCES, ("preference_beta",)), (REINFORCED, _REWARDED))
    for field in (one for of, more in kinds if draft.value("objective") in of for one in more):
        _plain_number(draft, names, field)
        for one in names.find(_words("reference", "model"), anywhere=True):
            draft.look(one.key)
            draft.note(f"The run is held to the reference model {one.value}.")


_REWARDED = ("kl_coefficient", "generations", "clip_range")
_ALIKE = str.maketrans("аеорсухіјѕԁɡоνιαο", "aeopcyxijsdgoviao")  # letters of other alphabets
_OTHERS = (("max", "min"), ("batch", "patch"), ("train", "eval"))  # words that are no misspellings


def misspelt(key: str) -> str:
    """Return the field without which there is no answer that a key nearly names; mostly empty.

    Two letters may be wrong, one in a short name, and letters may look like others or not be seen.
    """
    name = unicodedata.normalize("NFKC", key.rstrip(".").rpartition(".")[2])
    seen = "".join(c for c in name if unicodedata.category(c) != "Cf").lower().translate(_ALIKE)
    seen = plain(seen)
    for field in DECISIVE:
        units = thesaurus()[field] if field != "objective" else {}
        for spelling in " ".join(units.values()).split():
            if spelling == seen:
                return "" if plain(key).rpartition(".")[2] == seen else field
            if "." not in spelling and len(spelling) >= _SHORTEST and _is_near(seen, spelling):
                return field
    return ""


def differs(draft: Draft, key: str) -> bool:
    """Tell whether a key that is not read gives another learning rate beside the one that is."""
    (home, _, name), other = key.rpartition("."), draft.document.find(key)
    places = {one.rpartition(".")[0]: one for one in draft.keys_of("learning_rate")}
    if other is None or home not in places or plain(name) not in _words("learning_rate", "rate"):
        return False
    return _number(other.value) not in (None, draft.value("learning_rate"))


def _is_near(name: str, spelling: str) -> bool:
    most = 2 if len(spelling) > _SHORT else 1
    is_as_long = name.count("_") == spelling.count("_")  # else it says more, or less
    if abs(len(name) - len(spelling)) > most or name[:1] != spelling[:1] or not is_as_long:
        return False
    if any((a in name) != (a in spelling) and (b in name) != (b in spelling) for a, b in _OTHERS):
        return False
    parts = difflib.SequenceMatcher(None, name, spelling, autojunk=False).get_opcodes()
    edits = sum(max(b - a, d - c) for tag, a, b, c, d in parts if tag != "equal")
    return edits <= most


def gives_rate(document: Document) -> bool:
    """Tell whether a document gives a learning rate, whatever it is."""
    found = Names(document).find(_words("learning_rate", "rate"))
    is_run = document.syntax != "python" or not {OPTIMIZERS, FUNCTIONS}.isdisjoint(document.data)
    return any(is_run or not isinstance(one.value, Unresolved) for one in found)


def gives_run(document: Document) -> bool:
    """Tell whether a document gives the length of a run and its batch, though no rate."""
    names = Names(document)
    if document.syntax not in ("yaml", "json", "toml"):
        return False
    fields = ("max_steps", "batch_size")
    units = thesaurus()
    return all(names.find(" ".join(units[field].values()).split()) for field in fields)


def moved(draft: Draft, known: Iterable[str]) -> dict[str, str]:
    """Return the keys that a reader looked for in vain → those of the file that mean the same.

    They stand at another level, or have another spelling of the same unit. The reader then has
    their unit, and what follows from them. What decides the answer is meant, and the objective's
    word. Two that differ are not taken.
    """
    names, asked = Names(draft.document), {_flat(key) for key in (*draft.asked, *known)}
    absent = asked - {_flat(key) for key in draft.document.leaves()}
    kinds = ((PREFERENCES, ("preference_beta",)), (REINFORCED, _REWARDED))
    fields = [field for of, more in kinds if draft.value("objective") in of for field in more]
    found: dict[str, str] = {}
    for field in ("objective", *_FILLED, *fields):
        if draft.is_read(field):
            continue
        for words in _units(field):
            places: dict[str, list[Found]] = {}
            for one in names.find(words):
                flat = _flat(one.key)
                same = [key for key in absent if plain(key.rpartition(".")[2]) in words]
                key = elsewhere(flat, absent) or min(same, key=lambda k: (len(k), k), default="")
                if flat not in asked and key:
                    places.setdefault(key, []).append(one)
            for key, ones in places.items():
                if all(one.value == ones[0].value for one in ones):
                    found[key] = ones[0].key
    return found


def _units(field: str) -> list[tuple[str, ...]]:
    """Return the spellings of a field by the unit that they imply."""
    if field == "objective":
        signs = thesaurus()["objective"]["signs"]
        return [tuple(sign["names"].split()) for sign in signs if "words" in sign]
    units = thesaurus()[field]
    if field == "batch_size":  # a device's share says nothing of a reader's whole batch
        units = {unit: units[unit] for unit in ("whole", "tokens")}
    return [tuple(spellings.split()) for spellings in units.values()]


def _flat(key: str) -> str:
    return key.replace("-", "_")


def complete(draft: Draft) -> None:
    """Add to what a trainer's reader read what it did not look for: settings of other versions.

    That is the objective that the file shows, what decides the answer, and a model.
    """
    names, asked = Names(draft.document), set(draft.asked)
    draft.by_name = True
    objective(draft, names)
    is_strict = draft.document.syntax == "shell"  # a program refuses flags that it does not know
    for field, fill_in in (*_FILLED.items(), *(_BESIDE.items() if is_strict else ())):
        spellings = [spelling for words in _units(field) for spelling in words]
        keys = {one.key for one in names.find(spellings)}
        if keys and not draft.is_read(field) and not draft.is_unknown(field) and not keys & asked:
            fill_in(draft, names)
    _held(draft, names)
    if draft.lacks_target:
        model(draft, names)
    elif draft.is_literal and (foreign := _foreign(draft.document, asked)):
        draft.no_target(f"its blocks have {foreign}; name a model with such blocks as TARGET.")


def _foreign(document: Document, asked: set[str]) -> str:
    """Return a setting of blocks that no reader asked for, where a model stands in its section."""
    for key in document.leaves():
        home, _, name = key.rpartition(".")
        if plain(home) != "model" or key in asked:
            continue
        is_foreign = plain(name) in _words("shape", "foreign") or _BLOCKS.search(plain(name))
        found = document.find(key) if is_foreign else None
        if found is not None and _is_on(found.value):
            return key
    return ""


def _plain_number(draft: Draft, names: Names, field: str) -> None:
    found = _first(draft, names, field, _words(field, "number"))
    if found is not None and not draft.is_read(field):
        draft.put(field, found.value, found)


def _rate(draft: Draft, names: Names) -> None:
    found = _first(draft, names, "learning_rate", _words("learning_rate", "rate"))
    if found is not None:
        draft.put("learning_rate", found.value, found)


def _devices(draft: Draft, names: Names) -> None:
    count = _first(draft, names, "devices", _words("batch_size", "devices"))
    if count is None or draft.devices or count.value < 1:
        return
    nodes = _first(draft, names, "devices", _words("batch_size", "nodes"))
    draft.devices = int(count.value * max(1, nodes.value if nodes is not None else 1))
    draft.devices_text = " × ".join(one.key for one in (count, nodes) if one is not None)


def _optimizer(draft: Draft, names: Names) -> None:
    found = _first(draft, names, "optimizer", _words("optimizer", "name"), needed=str)
    built = draft.document.data.get(OPTIMIZERS)
    if found is None and isinstance(built, Mapping) and built:
        word = str(next(iter(built)))
        key = f"{OPTIMIZERS}.{word}"
        found = Found(key=key, value=word, line=draft.document.lines.get(key))
    if found is not None:
        convert.put_optimizer(draft, found)


def _length(draft: Draft, names: Names) -> None:
    """Set the length of a sequence: of a prompt and its answer where answers are rewarded."""
    if draft.value("objective") in REINFORCED:
        answer, prompt = (
            _first(draft, names, "sequence_length", _words("sequence_length", part))
            for part in ("answer", "prompt")
        )
        if answer is not None:
            parts = [one for one in (prompt, answer) if one is not None]
            text = "prompt and answer" if prompt is not None else "the answer alone"
            draft.put("sequence_length", int(sum(p.value for p in parts)), *parts, text=text)
            return
    found = _first(draft, names, "sequence_length", _words("sequence_length", "tokens"))
    if found is not None and found.value > 0:
        draft.put("sequence_length", int(found.value), found)


def _batch(draft: Draft, names: Names) -> None:
    """Set the batch: a whole one, one in tokens, or a device's × accumulation × devices."""
    kinds = {
        unit: _first(draft, names, "batch_size", _words("batch_size", unit))
        for unit in ("whole", "tokens", "mini", "prompts", "device", "plain", "accumulation")
    }
    is_rl, answers = draft.value("objective") in REINFORCED, None
    if is_rl:
        answers = _first(draft, names, "generations", _words("generations", "number"))
    total, size, steps = kinds["whole"], kinds["device"], kinds["accumulation"]
    bare = kinds["plain"]
    if size is None:
        size = bare
    elif total is None and bare is not None and "micro" in size.key and bare.value >= size.value:
        total = bare  # a batch beside its share is the whole
    prompts = kinds["mini"] or (kinds["prompts"] if total is None else None)
    if is_rl and prompts is not None and prompts.value > 0:
        each = int(answers.value) if answers is not None else 1
        text = f"{prompts.value:g} prompts × {each} answers"
        draft.put("batch_size", int(prompts.value) * each, prompts, answers, text=text)
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
    """Set the length of the run from steps, samples, tokens or epochs."""
    for unit, short in (("steps", "ba"), ("samples", "sp"), ("tokens", "tok"), ("epochs", "ep")):
        if draft.is_read("max_steps") or draft.is_unknown("max_steps"):
            return
        found = _first(draft, names, "max_steps", _words("max_steps", unit))
        if found is not None and found.value > 0:
            convert.put_steps(draft, "max_steps", found, short)


def _warmup(draft: Draft, names: Names) -> None:
    for unit, short in (("steps", ""), ("share", ""), ("tokens", "tok"), ("epochs", "ep")):
        if draft.is_read("warmup_steps"):
            return
        found = _first(draft, names, "warmup_steps", _words("warmup_steps", unit))
        if found is None or found.value < 0 or (found.value == 0 and unit == "steps"):
            continue
        if short:
            convert.put_steps(draft, "warmup_steps", found, short)
        else:
            convert.put_warmup(draft, found)


def _lowest(draft: Draft, names: Names) -> None:
    share = _first(draft, names, "min_lr_ratio", _words("min_lr_ratio", "share"))
    lowest = _first(draft, names, "min_lr_ratio", _words("min_lr_ratio", "rate"))
    if share is not None and 0 <= share.value <= 1:
        draft.put("min_lr_ratio", share.value, share)
    elif lowest is not None:
        convert.lowest_rate(draft, "min_lr_ratio", [lowest.key])


def _precision(draft: Draft, names: Names) -> None:
    for found in names.find(_words("precision", "on")):
        if str(found.value).lower() in ("true", "1", "yes"):
            draft.look(found.key)
            convert.put_precision(draft, dataclasses.replace(found, value=_of_switch(found)))
            return
    named = _first(draft, names, "precision", _words("precision", "name"), needed=str)
    if named is not None and named.value.lower() not in ("no", "none"):
        convert.put_precision(draft, named)
        return
    for found in names.find([*_words("model", "names"), "model"]):
        kept = _STORED.search(str(found.value))
        if kept is not None and draft.names_weights:
            is_pure = draft.value("peft") == "none"
            stored = dataclasses.replace(found, value=kept[1])
            convert.put_precision(
                draft, stored, is_pure=is_pure, text=f"as {found.value} is stored"
            )
            return


def _of_switch(found: Found) -> str:
    return found.key.removesuffix(".enabled").rpartition(".")[2]


def adapters(draft: Draft, names: Names | None = None, *, by_rank: bool = True) -> None:
    """Set the adapters where a switch is on, a word says so, or they have a rank."""
    names = names or Names(draft.document)
    word = next(
        (
            one
            for one in names.find(_words("peft", "word"))
            if isinstance(one.value, str) and _LORA_WORDS.search(one.value.lower())
        ),
        None,
    )
    on = next(
        (one for one in names.find(_words("peft", "on")) if _is_on(one.value)),
        None,
    )
    rank = next(
        (
            one
            for one in names.find(_words("peft", "rank"))
            if (_number(one.value) or 0) > 0
            and (word or on or "lora" in one.key.lower())
            and one.key not in draft.document.defaults
        ),
        None,
    )
    said = names.find([*_words("peft", "on"), *_words("peft", "word")])
    is_off = any(not _is_on(one.value) or str(one.value).lower() == "full" for one in said)
    sign = word or on or (rank if by_rank and not is_off else None)
    if sign is None:
        return
    bits = next((one for one in names.find(_words("peft", "bits")) if _is_on(one.value)), None)
    is_four = bits is not None or any(
        "qlora" in str(one.value if one is word else one.key).lower()
        for one in (word, on)
        if one is not None
    )
    draft.put("peft", "qlora" if is_four else "lora", sign, bits)
    rank_keys, alpha, targets = (
        " ".join(one.key for one in names.find(_words("peft", part)))
        for part in ("rank", "alpha", "targets")
    )
    convert.put_lora(draft, rank_keys, alpha, targets)


def _is_on(value: Any) -> bool:
    return value is True or str(value).lower() not in _NOT_OFF


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


def objective(draft: Draft, names: Names | None = None) -> None:
    """Set the objective that all signs together allow; if there is none, it is unknown.

    A reader's objective stays, but for one of plain text, which signs of another contradict. What
    the run calls itself chooses among what the signs allow, and is no sign. Weak signs alone need
    that.
    """
    allowed: list[str] = []
    first: Found | None = None
    is_guess = True
    names = names or Names(draft.document)
    if draft.knows("objective"):
        if draft.value("objective") != "lm":
            return
        first, allowed, is_guess = Found(key="", value="lm"), list(_SUPERVISED), False
    for found, means, is_weak in sorted(_signs(draft.document, names), key=lambda sign: sign[2]):
        if not is_weak:
            draft.seen.add(found.key)
        both = [one for one in allowed if one in means] if first is not None else means
        if is_weak and not both:
            continue
        if first is not None and not both:
            said = (
                f"{_words_of(first)} speaks for {allowed[0]}, and {_words_of(found)} for {means[0]}"
            )
            draft.unknown("objective", found, said)
            return
        first, allowed, is_guess = first or found, both, is_guess and is_weak
    if first is None or not allowed or allowed[0] == draft.value("objective"):
        _doubt(draft, names)
        return
    called = {word for one in names.find(_words("objective", "called")) for word in _parts(one)}
    chosen = [one for one in allowed if one in called]
    if len(chosen) != 1 and is_guess:
        said = f"{_words_of(first)} may speak for {' or '.join(allowed)}"
        draft.unknown("objective", first, said)
        return
    meant = chosen[0] if len(chosen) == 1 else allowed[0]
    draft.put("objective", meant, first, text=f"{_words_of(first)} read as {meant}")


def _doubt(draft: Draft, names: Names) -> None:
    """Leave the objective unknown where the run's own name alone speaks for another than text."""
    against, text = set(_words("objective", "against")), set(_words("objective", "for"))
    for one in names.find(_words("objective", "called")):
        found = against.intersection(parts := _parts(one))
        if found and text.isdisjoint(parts):
            said = f"{_words_of(one)} says {min(found)}, and nothing else in the file does"
            draft.unknown("objective", one, said)
            return


def _parts(found: Found) -> list[str]:
    return re.split(r"[^a-z]+", str(found.value).lower())


def _words_of(found: Found | None) -> str:
    return "" if found is None else f"{found.key} {found.value!s:.40}".strip()


def _signs(document: Document, names: Names) -> Iterator[tuple[Found, list[str], bool]]:
    """Yield what shows the objective, the objectives that it allows, and whether it is weak."""
    said = thesaurus()["objective"]
    program = plain(document.program)
    words = [word for word in re.split(r"[^a-z0-9+]+|_", program) if word not in ("py", "")]
    for meaning, listed in said["words"].items():
        if set(words) & set(listed.split()):
            yield Found(key=document.program, value=meaning.split()[0]), meaning.split(), False
            break
    script = plain(str(document.data.get(NAMES, "")))
    for meaning, listed in said["functions"].items():
        found_word = next(
            (w for w in listed.split() if re.search(rf"(?<![a-z]){w}(?![a-z])", script)), None
        )
        if found_word is not None:
            yield Found(key=NAMES, value=found_word), meaning.split(), False
    for key in set(document.leaves()) - document.defaults.keys():
        words_of_key = re.split(r"[_.]", plain(key))
        if (
            not set(_words("objective", "rolled")).isdisjoint(words_of_key)
            and (one := document.find(key)) is not None
        ):
            yield one, ["grpo", "ppo"], not _is_on(one.value)
            break
    for sign in said["signs"]:
        for found in names.find(sign["names"].split(), anywhere=True):
            is_default = found.key in document.defaults
            if isinstance(found.value, Unresolved) or not _is_on(found.value) or is_default:
                continue
            means = _meaning(sign, found.value)
            if means and _OPTIMIZERS.search(found.key.lower().rpartition(".")[0]) is None:
                yield found, means, sign.get("weak", False)
                break


def _meaning(sign: Mapping[str, Any], value: Any) -> list[str]:
    """Return the objectives that a sign with this value allows."""
    if "words" in sign:
        word = str(value).lower().rpartition(".")[2].replace("-", "_")
        listed = thesaurus()["objective"]["words"].items()
        return next((m.split() for m, words in listed if word in words.split()), [])
    least, most, number = sign.get("least"), sign.get("most"), _number(value)
    is_within = (least is None or (number or 0) >= least) and (
        most is None or (number is not None and number <= most)
    )
    allowed: list[str] = sign["allows"].split() if is_within else []
    return allowed


def model(draft: Draft, names: Names | None = None) -> None:
    """Set the model: a name of weights that resolves, sizes, a type, or the tokenizer's model."""
    names = names or Names(draft.document)
    foreign = foreign_format(draft.document)
    if foreign is not None and foreign[2] == "typed":
        draft.no_target(f"it is {foreign[0]}, which builds its own model; name a TARGET.")
        return
    said = names.find(_words("model", "names"))
    named = [one for one in said if isinstance(one.value, str)]
    is_scratch = any(_is_on(one.value) for one in names.find(_words("model", "scratch"))) or any(
        one.value is False for one in names.find(_words("model", "stored"))
    )
    weights = next((one for one in named if _resolves(draft, one.value)), None)
    if weights is None and not any(_is_open(one.value) for one in said):
        others = (one for one in names.strings() if _known(one.value))
        weights = next(others, None)
    if weights is not None:
        _weights(draft, weights, is_scratch)
        _resized(draft, weights)
        return
    if _literal(draft, draft.document.data, ""):
        return
    types = [*named, *names.find(_words("model", "type"))]
    has_path = any("/" in one.value for one in named)  # whose sizes stand there, and not here
    for one in types:
        if isinstance(one.value, str) and is_type(one.value) and not has_path:
            draft.look(one.key)
            if own := _sizes_beside(draft, one.key):
                draft.no_target(f"its {one.value} has its own sizes, such as {own}; name a TARGET.")
                return
            draft.describe(one.value, {})
            return
    hub = next((one for one in named if is_hub_id(one.value)), None)
    if hub is not None and hub.value.count("/") == 1 and hub.value[0].isalnum():
        _weights(draft, hub, is_scratch)  # the Hub's, though not in the table
        return
    last = [o for o in names.find(_words("model", "last")) if isinstance(o.value, str)]
    guess = next((one for one in last if _resolves(draft, one.value)), None)
    if guess is not None:
        draft.look(guess.key)
        draft.describe(guess.value, {}, f"The model is that of {guess.key}; no other is named.")
        return
    hub = next((one for one in named if "/" in one.value), None)
    if hub is not None:
        _weights(draft, hub, is_scratch)
    elif draft.lacks_target:
        draft.no_target("no setting names a model that rksp knows, or gives its sizes.")


def _sizes_beside(draft: Draft, key: str) -> str:
    """Return a setting below the section of a model's type that gives a size; mostly empty."""
    home = key.rpartition(".")[0]
    spellings = {word for listed in thesaurus()["shape"].values() for word in listed.split()}
    spellings.add("variant")
    return next(
        (one for one in draft.document.leaves()
         if home and one.startswith(f"{home}.")
         and plain(one.rpartition(".")[2]).rstrip("s") in {word.rstrip("s") for word in spellings}),
        "",
    )  # fmt: skip


def _resized(draft: Draft, named: Found) -> None:
    """Set a published model with other sizes, where its section has some: no weights fit them."""
    row, home = shape_published(named.value), named.key.rpartition(".")[0]
    if row is None or not home:
        return
    kind, settings = row
    own = {
        setting: found.value
        for setting in ("num_hidden_layers", "hidden_size", "num_attention_heads")
        if (found := draft.document.find(f"{home}.{setting}")) is not None
        and found.value != settings.get(setting, found.value)
    }
    if own:
        draft.look(*(f"{home}.{setting}" for setting in own))
        draft.names_weights = False
        draft.describe(kind, {**settings, **own}, f"{named.value} with other sizes has no weights.")


def _weights(draft: Draft, found: Found, is_scratch: bool) -> None:
    draft.look(found.key)
    shape = shape_published(found.value) if is_scratch else None
    shape = shape or (None if _known(found.value) else shape_of(found.value))
    if shape is not None:  # a trainer's own name of an architecture, not of weights
        draft.describe(*shape)
        return
    draft.names_weights = not is_scratch
    is_id = is_hub_id(found.value) or _known(found.value)
    draft.describe((not is_id and hub_id_of(found.value)) or found.value, {})


def _is_open(value: Any) -> bool:
    """Tell whether a value is not known, or a path that begins with what is not known."""
    return (
        isinstance(value, Unresolved) or str(value).startswith(("/…", "./…")) or "${" in str(value)
    )


def _known(name: str) -> bool:
    return published(name) is not None or published_like(name) is not None


def _resolves(draft: Draft, name: str) -> bool:
    if not name or "\n" in name or "$" in name or len(name) > 300:
        return False
    if _known(name) or (shape_of(name) is not None):
        return True
    there = beside(draft.document.path, f"{name}/config.json")
    return there is not None


def _literal(draft: Draft, data: Any, prefix: str) -> bool:
    """Set the model from sizes that stand in one section, the sections of a model first."""
    if not isinstance(data, Mapping):
        return False
    inner = sorted(data.items(), key=lambda pair: "model" not in plain(str(pair[0])))
    elsewhere = _words("elsewhere")
    for name, value in inner:
        is_own = plain(str(name)) not in elsewhere
        if is_own and _literal(draft, value, f"{prefix}{name}."):
            return True
    return _sized(draft, data, prefix)


def _sized(draft: Draft, data: Mapping[Any, Any], prefix: str) -> bool:
    known = {plain(str(name)): name for name in data}
    sizes: dict[str, int] = {}
    used: dict[str, str] = {}
    for setting, spellings in thesaurus()["shape"].items():
        for spelling in spellings.split() if setting != "foreign" else ():
            found = draft.document.find(f"{prefix}{known[spelling]}") if spelling in known else None
            number = None if found is None else _number(found.value)
            if number is not None and number >= 1 and setting not in sizes:
                sizes[setting], used[setting] = int(number), spelling
                draft.look(definite(found).key)
    needed = {"hidden_size", "num_hidden_layers"}
    if not prefix:  # of settings of all kinds, where a recurrent net has these two as well
        needed.add("num_attention_heads")
    if not needed <= sizes.keys():
        return False
    foreign = [one for one in _words("shape", "foreign") if one in known and data[known[one]]]
    foreign += [one for one in known if _BLOCKS.search(one) and _is_on(data[known[one]])]
    draft.seen.add(f"{prefix}_call")
    call = str(data.get("_call", "")).rpartition(".")[2].removesuffix("Config").lower()
    if draft.document.syntax == "python" and used["hidden_size"] != "n_embd" and not is_type(call):
        draft.no_target("its model is a class of the script's own; name a TARGET.")
        return True
    if foreign or "layer" in known:
        what = (foreign or ["layer"])[0]
        draft.no_target(f"its blocks have {prefix}{what}; name a model with such blocks as TARGET.")
        return True
    folders = [one.name.lower() for one in folders_above(draft.document.path.resolve())]
    if other := next(filter(_OTHER_NET.search, folders), None):
        draft.no_target(f"it stands in {other}, whose blocks differ; name a TARGET.")
        return True
    is_gpt2 = used["hidden_size"] == "n_embd" and "num_key_value_heads" not in sizes
    said = next((data[known[one]] for one in ("model_type", "type", "arch") if one in known), "")
    classes = data[known["architectures"]] if "architectures" in known else ()
    words = (call, str(said).lower(), *(_CLASS.sub("", str(one)).lower() for one in classes))
    kind = next((one for one in words if one and is_type(one)), "")
    is_other = draft.value("objective") not in _OF_DECODERS or (
        said and not _GENERIC.search(str(said).lower())
    )
    if not kind and is_other:
        of = f"is {said!s:.40}, which rksp does not know" if said else "is not said"
        draft.no_target(f"the kind of model of these sizes {of}; name a TARGET.")
        return True
    kind = kind or ("gpt2" if is_gpt2 else "llama")
    heads = sizes.setdefault("num_attention_heads", max(1, sizes["hidden_size"] // _HEAD_WIDTH))
    if kind == "gpt2":
        sizes.pop("num_key_value_heads", None)
        draft.describe(kind, convert.as_gpt2(sizes))
        return True
    if kind == "llama":
        sizes.setdefault("num_key_value_heads", heads)
    draft.describe(
        kind, sizes, f"The sizes under {prefix.rstrip('.') or 'the file'} are read as a {kind}."
    )
    return True
