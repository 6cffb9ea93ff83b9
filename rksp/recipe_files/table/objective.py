"""What a run is trained for, by all that its file shows of it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping

from rksp.recipe import REINFORCED
from rksp.recipe_files.parse.document import Document, Found
from rksp.recipe_files.parse.python_loop import NAMES, WORDS
from rksp.recipe_files.parse.values import Parsed, Unresolved
from rksp.recipe_files.table.draft import Draft
from rksp.recipe_files.table.loop import doubt_of_text
from rksp.recipe_files.table.spellings import (
    Names,
    Sign,
    is_on,
    meant_by,
    number,
    plain,
    signs,
    spelt,
    units,
)

_OPTIMIZERS = re.compile(r"optim|sched")  # sections whose settings show no objective
_OWN_SECTIONS = ("lm", "dpo", "kto", "orpo", "grpo", "ppo")
_SUPERVISED = ("lm", "classification", "seq2seq", "mlm", "other")  # what sft may stand for


def set_objective(draft: Draft, names: Names | None = None) -> None:
    """Set the objective that all signs together allow; if there is none, it is unknown.

    A reader's objective stays, but for one of plain text, which signs of another contradict. What
    the run calls itself chooses among what the signs allow, and is no sign. Weak signs alone need
    that.
    """
    allowed: list[str] = []
    first: Found | None = None
    is_guess = True
    names = names or Names(draft.document)
    if draft.is_unknown("objective"):
        return
    if draft.knows("objective"):
        if draft.value("objective") != "lm":
            _taught(draft, names)
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
        if first is None:
            _doubt_script(draft)
        return
    called = {word for one in names.find(spelt("objective", "called")) for word in _parts(one)}
    chosen = [one for one in allowed if one in called]
    if len(chosen) != 1 and is_guess:
        said = f"{_words_of(first)} may speak for {' or '.join(allowed)}"
        draft.unknown("objective", first, said)
        return
    meant = chosen[0] if len(chosen) == 1 else allowed[0]
    draft.put("objective", meant, first, text=f"{_words_of(first)} read as {meant}")


def _taught(draft: Draft, names: Names) -> None:
    signs = _signs(draft.document, names) if draft.value("objective") in REINFORCED else ()
    for found, means, is_weak in signs:
        if means == ["distillation"] and not is_weak and found.key != NAMES:
            said = f"{_words_of(found)} speaks for distillation beside rewards"
            draft.unknown("objective", found, said)
            return


def _doubt(draft: Draft, names: Names) -> None:
    """Leave the objective unknown where the run's own name alone speaks for another than text."""
    against, text = set(spelt("objective", "against")), set(spelt("objective", "for"))
    if draft.trainer == "by name":
        against |= set(spelt("objective", "taught"))
    called = names.find(spelt("objective", "called"))
    if draft.document.syntax == "python":  # a module of settings names what else it is for
        stated = map(draft.document.find, draft.document.leaves())
        plainly = [one for one in stated if one is not None and isinstance(one.value, str | float)]
        called += [dataclasses.replace(one, value=f"{one.key} {one.value}") for one in plainly]
    for key in () if draft.document.syntax == "python" else draft.document.stated().leaves():
        home = key.rpartition(".")[0]
        spoken = against.intersection(map(plain, home.split(".")))
        if spoken and not _is_off(draft.document, home):
            found = Found(key=home, value="", line=draft.document.lines.get(key))
            draft.unknown("objective", found, f"{home} has settings, and {min(spoken)} is not read")
            return
    for one in called:
        spoken = against.intersection(parts := _parts(one))
        if spoken and text.isdisjoint(parts):
            said = f"{_words_of(one)} says {min(spoken)}, and nothing else in the file does"
            draft.unknown("objective", one, said)
            return


def _doubt_script(draft: Draft) -> None:
    """Leave the objective unknown where a script's own words do not speak for text."""
    words = draft.document.data.get(WORDS)
    why = "" if words is None else doubt_of_text(str(words))
    if why and not draft.knows("objective"):
        found = Found(key=WORDS, value="")
        draft.unknown("objective", found, f"{why}, and no objective is named")


def _is_off(document: Document, home: str) -> bool:
    switch = document.find(f"{home}.enabled", f"{home}.enable", f"{home}.use")
    return switch is not None and not is_on(switch.value)


def _parts(found: Found) -> list[str]:
    return re.split(r"[^a-z]+", str(found.value).lower())


def _words_of(found: Found | None) -> str:
    return "" if found is None else f"{found.key} {found.value!s:.40}".strip()


def _signs(document: Document, names: Names) -> Iterator[tuple[Found, list[str], bool]]:
    program = plain(document.program)
    named = [word for word in re.split(r"[^a-z0-9+]+|_", program) if word not in ("py", "")]
    meaning = meant_by({*named})
    if meaning:
        yield Found(key=document.program, value=meaning[0]), meaning, False
    script = plain(str(document.data.get(NAMES, "")))
    for shown, listed in units("objective", "functions").items():
        found_word = next(
            (w for w in listed.split() if re.search(rf"(?<![a-z]){w}(?![a-z])", script)), None
        )
        if found_word is not None:
            yield Found(key=NAMES, value=found_word), shown.split(), bool(meaning)
    if re.search(r"critic(?![a-z])", plain(str(document.data.get(WORDS, "")))):
        yield Found(key=WORDS, value="critic"), ["ppo"], True
    for home, settings in document.data.items():
        means = _meaning(Sign(names="", words=True), home) if isinstance(settings, Mapping) else []
        if means and means[0] in _OWN_SECTIONS and not _is_off(document, home):
            # A section of its own: `dpo: {max_num_steps: 20}`.
            yield Found(key=str(home), value=""), means, False
    rolled = set(spelt("objective", "rolled"))
    for key in document.stated().leaves():
        one = document.find(key)
        if one is not None and not rolled.isdisjoint(re.split(r"[_.]", plain(key))):
            yield one, ["grpo", "ppo"], not is_on(one.value)
            break
    for sign in signs():
        for found in names.find(sign.names.split(), anywhere=True):
            is_default = found.key in document.defaults
            if isinstance(found.value, Unresolved) or not is_on(found.value) or is_default:
                continue
            means = _meaning(sign, found.value)
            if means and _OPTIMIZERS.search(found.key.lower().rpartition(".")[0]) is None:
                yield found, means, sign.weak
                break


def _meaning(sign: Sign, value: Parsed) -> list[str]:
    if sign.words:
        word = str(value).lower().rpartition(".")[2].replace("-", "_")
        return meant_by({word, *({*word.split("_")} & {*sign.parts.split()})})
    amount = number(value)
    is_within = (sign.least is None or (amount or 0) >= sign.least) and (
        sign.most is None or (amount is not None and amount <= sign.most)
    )
    return sign.allows.split() if is_within else []
