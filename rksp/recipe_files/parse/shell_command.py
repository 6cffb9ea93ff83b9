"""The settings of one command: its program, its flags and its `key=value` words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

from rksp.ground.budgets import DEPTH
from rksp.recipe_files.parse.shell_words import ELSEWHERE, Word, is_end, is_flag
from rksp.recipe_files.parse.values import Unresolved, read_number

CHOICE = "()"  # key of the choice of a group that has settings of its own beside it
FURTHER = "further settings"  # key of those that a command takes from a place that is not read
_BELOW = re.compile(rf"{ELSEWHERE}(/[\w.-]+)*/[\w.-]*[A-Za-z][\w.-]*")  # $ROOT/models/Qwen3-8B
_PROGRAM = re.compile(
    r"(?:^|/)([\w.-]+\.py)$|(?:^|/)(train_gpt2\w*|fairseq-(?:hydra-)?train|train_gpt\w*cu)$"
)
_TOOLS = re.compile(
    r"(?:^|/)(swift|llamafactory-cli|litgpt|tune|trl|axolotl|xtuner|composer|opt-baselines)$"
)
_MODULE = ("-m", "--module")
_QUEUES = ("mason.py",)  # the trainer comes later on the line
_TAKES_CODE = re.compile(r"--?\w*(plugin|reward|func|register|path)")  # a flag; no program follows
_PAIR = re.compile(r"\+{0,2}([A-Za-z_][\w.]*)=(.*)", re.S)  # key=value, as Hydra takes it
_FILE = re.compile(r"[^=]*\.(ya?ml|json|toml)|[^=]*config[^=]*\.py")
_CONFIG = re.compile(r"^(--|\+{0,2})(config|cfg|config_file|config-file|config_path)=")
_USES = re.compile(  # names of programs that use a model, and of those that train one
    r"(^|[^a-z])(generat(e|ion)|sampl(es?|ing)|eval(uate|uation)?|infer(ence)?|predict|serve"
    r"|convert|merge|preprocess|tokenize)([^a-z]|$)"
)
_TRAINS = re.compile(r"train|tun(e|ing)|(^|[^a-z])(sft|dpo|main|run)([^a-z]|$)")
RATE = re.compile(r"(^|[._])(lr|learning_rate)$")


class CommandLine(NamedTuple):
    """The settings of the command that starts the trainer.

    Attributes:
        program: Name of the script or tool, with its subcommand: `pretrain_gpt.py`, `swift sft`.
        data: Flag, dashes replaced by underscores → value; `key=value` words are nested by dots.
        lines: The same keys → line.
        launcher: Flags before the program: torchrun's, mpirun's.
        file: The first configuration file that is named after the program; empty without one.
        written: Name of a file that the script writes → its text, after as many lines as stand
            above it in the script; `-` is what it gives Python to run, `-.sh` another shell.
        script: The program with its folder.
    """

    program: str
    data: Mapping[str, object]
    lines: Mapping[str, int]
    launcher: Mapping[str, object]
    file: str = ""
    written: Mapping[str, str] = {}
    script: str = ""


def command_of(words: list[Word]) -> CommandLine:
    """Read a command of whole words."""
    texts = [word.text for word in words]
    at, program = _find_program(texts)
    data: dict[str, object] = {}
    lines: dict[str, int] = {}
    launcher: dict[str, object] = {}
    _take_flags(words[: max(at, 0)], launcher, {})
    launcher = {flag: value[0] if isinstance(value, list) else value
                for flag, value in launcher.items()}  # fmt: skip
    read = [Word(ELSEWHERE, words[at].line)] if "xargs" in texts[: max(at, 0)] else []
    _take_flags(words[at + 1 :] + read, data, lines)
    said = [_CONFIG.sub("", text) for text in texts[at:]] if at >= 0 else []
    named = (
        text
        for before, text in pairwise(said)
        if _FILE.fullmatch(text) and not re.search("deepspeed|data|model|tokenizer", before)
    )
    return CommandLine(
        program=program,
        data=data,
        lines=lines,
        launcher=launcher,
        file=next(named, ""),
        script=texts[at] if at >= 0 else "",
    )


def _find_program(texts: list[str]) -> tuple[int, str]:
    for i, text in enumerate(texts):
        before, after = texts[i - 1] if i else "", texts[i + 1] if i + 1 < len(texts) else ""
        if _TAKES_CODE.match(before):
            continue
        if (match := _PROGRAM.search(text)) and match[1] not in _QUEUES:
            return i, match[1] or match[2]
        is_between = before.startswith("-") and after.startswith("-")  # --model_author swift --lr
        if (match := _TOOLS.search(text)) and after and not is_between:
            return i + 1, f"{match[1]} {after}"
        if text in _MODULE and "." in after and "distributed" not in after:
            return i + 1, after
    return -1, ""


def _take_flags(words: list[Word], data: dict[str, object], lines: dict[str, int]) -> None:
    i = 0
    has_more = len(words) > 1 and words[-1].text == ELSEWHERE and not is_flag(words[-2])
    words = words[:-1] if has_more else words  # "$@", further settings that are not known
    while i < len(words):
        word = words[i]
        i += 1
        match = re.fullmatch(r"--?([A-Za-z][\w.-]*)(?:=(.*))?", word.text, re.S)
        has_more = has_more or word.text == ELSEWHERE
        if match is None:
            pair = _PAIR.fullmatch(word.text)
            if pair:
                _place(data, lines, pair[1], _scalar(pair[2]), word.line)
            continue
        values = [match[2]] if match[2] is not None else []
        while match[2] is None and i < len(words) and not is_flag(words[i]):
            if is_end(words[i]) or (values and _PAIR.fullmatch(words[i].text)):
                break
            if values and words[i].text == ELSEWHERE and not words[i].whole:
                has_more = True
                break
            values.append(words[i].text)
            i += 1
        value = True if not values else _scalar(values[0])
        if len(values) > 1:
            value = [_scalar(part) for part in values]
        _place(data, lines, match[1].replace("-", "_"), value, word.line)
    if has_more and data and not any(RATE.search(key) for key in lines):
        _place(data, lines, FURTHER, Unresolved("set elsewhere"), words[-1].line)


def _place(
    data: dict[str, object], lines: dict[str, int], key: str, value: object, line: int
) -> None:
    parts = key.split(".")
    if len(parts) > DEPTH.most:
        return
    inner = data
    for part in parts[:-1]:
        there = inner.setdefault(part, {})
        if not isinstance(there, dict):  # `model=small model.depth=4` chooses a group first
            there = inner[part] = {CHOICE: there}
        inner = there
    inner[parts[-1]] = value
    lines[key] = line


def _scalar(text: str) -> object:
    if _BELOW.fullmatch(text):
        return text.replace(ELSEWHERE, "/…")
    if ELSEWHERE in text:
        return Unresolved("set elsewhere or on a condition")
    text = text.strip()
    found = read_number(text)
    return {"true": True, "false": False}.get(text.lower(), text) if found is None else found


def only_uses(command: CommandLine) -> bool:
    """Tell whether a program's name says that it uses a model, and nothing that it trains one."""
    name = command.program.lower()
    is_used = _USES.search(name) is not None and _TRAINS.search(name) is None
    return is_used and "do_train" not in command.data


def weight(command: CommandLine) -> tuple[bool, int, bool]:
    """Return how much a command says of a run; `mkdir -p FOLDER` says nothing."""
    size = len(command.lines)
    has_rate = any(RATE.search(key) for key in command.lines)
    return has_rate, size if size > 2 or command.program else 0, bool(command.file)
