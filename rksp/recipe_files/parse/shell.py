"""A shell script that starts a trainer, as the settings on its command line.

Nothing is run. Words, quotes, assignments and `${NAME}` are read as the shell reads them; what a
command would print, and a variable that the script sets on a condition, are `Unresolved`.
"""

from __future__ import annotations

import ast
import re
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product

from rksp.recipe_files.parse.python_values import literal
from rksp.recipe_files.parse.shell_command import RATE, CommandLine, command_of, only_uses, weight
from rksp.recipe_files.parse.shell_tests import Block, decided
from rksp.recipe_files.parse.shell_words import (
    ASSIGNMENT,
    ELSEWHERE,
    JOINED,
    Word,
    WordReader,
    balanced,
    is_end,
    is_flag,
)
from rksp.recipe_files.parse.values import Unresolved

_NESTED = 3  # expansions within expansions
_MOST = 2**20  # characters that one line of a script may unfold to
_MOST_IN_ALL = 2**23
_VARIABLE = re.compile(
    r"\$\{([A-Za-z_][A-Za-z0-9_]*|[0-9]+)(?:\[[@*]\])?(?::?[-=]([^{}]*))?\}|\$([A-Za-z_][A-Za-z0-9_]*|[1-9])"
    r"|\$\(\(([^()]*(?:\([^()]*\)[^()]*)*)\)\)"
)
_GIVEN = re.compile(r"\$\{([A-Za-z_]\w*):?=([^{}]*)\}")
_LOOPS = {"for", "while", "until", "select"}
_OPENS = {"if", "case", "{", "(", *_LOOPS}
_CLOSES = {"fi": {"if"}, "esac": {"case"}, "}": {"{"}, ")": {"("}, "done": _LOOPS}
_KEYWORDS = _OPENS | {"then", "else", "elif", "do", *_CLOSES}
_PROCESSES = {"NPROC_PER_NODE": "nproc_per_node", "NNODES": "nnodes"}


class _Variables(ChainMap[str, list[Word]]):
    """The values of a script's variables, those of a subshell before those around it."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[str, int] = {}
        self.fixed: set[str] = set()  # names that cannot be set again
        self.spent = 0  # characters expanded so far
        self.in_function = False  # whose arguments are not the script's
        self.empty: set[str] = set()  # names whose defaults are set now, where they have no value
        self.is_open = False  # a file that is not read may have set any of them

    def forget(self, line: int, *names: str) -> None:
        """Make variables unknown; without names all of them, which another file may set."""
        self.is_open = self.is_open or not names
        for name in names or tuple(self):
            self[name] = [Word(ELSEWHERE, line)]

    def set_defaults(self, word: Word) -> None:
        """Set what `${NAME:=VALUE}` gives a variable that has no value."""
        for name, value in _GIVEN.findall(word.text):
            if name not in self and not self.is_open:
                self[name] = [Word(value, word.line)]

    def keep(self, name: str, words: list[Word], line: int, *, is_added: bool) -> None:
        """Set a variable, or add to it; what grows beyond any script is not known."""
        if not is_added:
            self[name], self.sizes[name] = [], 0
        elif name not in self.maps[0]:
            self[name] = list(self.get(name, ()))
        self.sizes[name] = self.sizes.get(name, 0) + sum(len(word.text) + 1 for word in words)
        if self.sizes[name] > _MOST:
            self.forget(line, name)
        else:
            self[name].extend(words)


_Statement = tuple[list[Word], str]  # and what stands behind it: a line's end, ;, |, && or ||
_SAYING = ("echo", "printf", ":", "cat", "true", "false")  # they run nothing that they name
_SURE = (*_SAYING[:-1], "cd", "mkdir", "export", "source", ".")  # they hardly ever fail
_SETTING = ("read", "let", "mapfile", "readarray", "getopts", "trap", "alias")  # to the unknown
_DECLARING = ("export", "declare", "typeset", "local", "readonly", "set", "eval")
_ENVIRONMENT = re.compile(
    r"(^|[/.])(activate|(ba|z)sh_?rc|profile|conda\.sh|bash_profile|setvars\.sh)$|\bhook\b"
)
_SET_BY_SUM = re.compile(r"([A-Za-z_]\w*)\s*(?:[-+*/%]?=(?!=)|\+\+|--)|(?:\+\+|--)([A-Za-z_]\w*)")
_ELEMENT = re.compile(r"([A-Za-z_]\w*)\[[^]=]*\]\+?=")
_OF_ARGUMENTS = re.compile(r"\$([1-9]|OPTARG)|\$\{([1-9]|OPTARG)(#\*=)?\}")
_EMPTY = re.compile(
    r"\[{1,2} (?:-z|!) \$\{?([A-Za-z_]\w*)(?::?-)?\}? \]{1,2}"
)  # a test for a default
_DEVICES = re.compile(r"(?i)^(num|n)_?(devices|gpus?)$")
_INNER = re.compile(r"(^|/)(ba|z|da)?sh$")
_CALLS = 200  # of functions, in all


def read_shell(text: str, find: Callable[[str], str] | None = None) -> CommandLine:
    """Return the command of a script that has the most settings, as the shell would start it.

    A number that another command gives otherwise, where both give a learning rate, is not known.

    Args:
        text: The script.
        find: Returns the text of a file that the script includes; empty where there is none.
    """
    script = _Script(find)
    script.include(text)
    if not any(command.program for command in script.commands):
        for name in list(script.bodies):  # perhaps called in a way that is not followed
            script.call(name)
    if not script.commands:
        return CommandLine(program="", data={}, lines={}, launcher={}, written=script.written)
    best = max(script.commands, key=weight)
    return _agreed(best, script.commands)._replace(written=script.written)


def _agreed(best: CommandLine, commands: Sequence[CommandLine]) -> CommandLine:
    rates = {key for key in best.data if RATE.search(key)}
    if not rates:
        return best
    data = dict(best.data)
    for other in commands:
        if not any(RATE.search(key) for key in other.data):
            continue
        theirs = [value for key, value in other.data.items() if RATE.search(key)]
        for key, value in best.data.items():
            same = (
                theirs[0] if key in rates and key not in other.data else other.data.get(key, value)
            )
            is_number = isinstance(value, int | float) or isinstance(same, int | float)
            if is_number and same != value:
                data[key] = Unresolved(
                    f"{_word(value)} in one command and {_word(same)} in another"
                )
    return best._replace(data=data)


def _word(value: object) -> str:
    return "unknown" if isinstance(value, Unresolved) else str(value)


class _Script:
    def __init__(self, find: Callable[[str], str] | None) -> None:
        self.variables = _Variables()
        self.variables["HOME"] = [Word("~", 1)]
        self.commands: list[CommandLine] = []
        self.written: dict[str, str] = {}
        self.bodies: dict[str, list[_Statement]] = {}
        self._find = find
        self._documents: dict[int, tuple[bool, int, str]] = {}
        self._has_ended, self._calls = False, 0
        self._outer: dict[str, list[Word]] = {}  # what local variables stand before

    def include(self, text: str, *, at: int = 0, is_conditional: bool = False) -> None:
        """Follow a text: the whole, a file that it includes `at` a line, or `bash -c TEXT`."""
        outer = self._documents
        text, self._documents = _without_documents(text)
        reader = WordReader(text)
        statements = [(words, reader.ended_by) for words in reader.statements()]
        if at:
            statements = [([replace(word, line=at) for word in words], end)
                          for words, end in statements]  # fmt: skip
        self.run(statements, is_conditional=is_conditional)
        self._documents = outer

    def run(self, statements: Sequence[_Statement], *, is_conditional: bool = False) -> None:
        """Follow statements in their order; the bodies of functions where they are called."""
        blocks, at = [Block("", None if is_conditional else True)], 0
        chained = is_skipped = is_piped = False
        while at < len(statements) and not self._has_ended:
            words, ended_by = list(statements[at][0]), statements[at][1]
            at += 1
            if name := _defined(words):
                self.bodies[name], at = _body(statements, at - 1)
                continue
            while words and words[0].text in _KEYWORDS:
                first = words.pop(0).text
                self._keyword(first, words, blocks, None if chained else not is_skipped)
                if first in _LOOPS:
                    words = []
                elif first == "case":
                    words = words[2:] if words[1:] and words[1].text == "in" else []
            while words and blocks[-1].takes(words, ended_by, self.fill):
                words.pop(0)
            is_dead = any(block.is_taken is False for block in blocks)
            if not words or is_dead or is_skipped:
                is_skipped = is_skipped and ended_by in ("&&", "|")
                continue
            truth = None if _goes_round(blocks) else decided(words, self.fill)
            blocks[-1].test(truth, ended_by)
            is_sure = (
                truth is not None or words[0].text in _SURE or bool(ASSIGNMENT.match(words[0].text))
            )
            is_piped = is_piped or ended_by == "|"
            if is_piped:  # what it sets ends with it
                self.variables.maps.insert(0, {})
            is_open = any(block.is_taken is None for block in blocks)
            self._statement(words, is_conditional=is_open or chained)
            if is_piped:
                self.variables.maps.pop(0)
            is_piped = ended_by == "|"
            is_skipped = (truth, ended_by) in ((False, "&&"), (True, "||"))
            chained = ended_by == "||" or (ended_by == "&&" and (chained or not is_sure))

    def _keyword(
        self, first: str, words: list[Word], blocks: list[Block], is_reached: bool | None
    ) -> None:
        if first in _OPENS:
            blocks.append(Block(first, is_reached if first in "({" else None))
        elif blocks[-1].kind in _CLOSES.get(first, ()):
            blocks.pop()
        else:
            blocks[-1].branch(first)
        if first == "(":
            self.variables.maps.insert(0, {})
        elif first == ")" and len(self.variables.maps) > 1:
            self.variables.maps.pop(0)
        if first in ("if", "else", "elif", "fi"):
            tested = _EMPTY.fullmatch(" ".join(word.text for word in words))
            self.variables.empty = {tested[1]} if tested and first == "if" else set()
        if first in ("for", "select") and words:
            values = _expand(words[2:], self.variables)
            is_one = len(values) == 1 and first == "for"
            self.variables[words[0].text] = values if is_one else [Word(ELSEWHERE, words[0].line)]
        if first == "case" and words:
            is_open = _goes_round(blocks)
            blocks[-1].subject = ELSEWHERE if is_open else self.fill(words[0].text)

    def fill(self, text: str) -> str:
        """Fill the known variables into a text."""
        return _filled(text, self.variables)

    def call(self, name: str, *, is_conditional: bool = False) -> None:
        """Follow the body of a function, whose local variables end with it."""
        self._calls += 1
        variables = self.variables
        before, variables.in_function = variables.in_function, True
        body, self.bodies[name] = self.bodies[name], []  # it does not call itself
        outer, self._outer = self._outer, {}
        self.run(body, is_conditional=is_conditional)
        for local, words in self._outer.items():
            variables[local] = words
        self._outer = outer
        self.bodies[name], variables.in_function = body, before

    def _statement(self, words: list[Word], *, is_conditional: bool) -> None:
        variables = self.variables
        if words[0].text == "local":
            for word in words[1:]:
                name, _, _ = word.text.partition("=")
                self._outer.setdefault(name, variables.get(name, [Word(ELSEWHERE, word.line)]))
        line = words[0].line
        for word in words:
            variables.set_defaults(word)
        words, own = _assign(words, variables, is_conditional=is_conditional)
        _keep_document(words, self._documents, variables, self.written)
        first = words[0].text if words else ""
        if first in ("exit", "exec") and not is_conditional:
            self._has_ended = first == "exit" or any(not is_end(word) for word in words[1:])
            words = words[1:] if first == "exec" else []
        if first in ("source", "."):
            if len(words) > 1 and not _ENVIRONMENT.search(words[1].text):
                self._include_file(words[1], is_conditional=is_conditional)
            return
        for name in _set_unseen(words):
            variables.forget(line, name)
        if first == "unset":
            for scope, word in product(variables.maps, words[1:]):
                scope.pop(word.text, None)
        if first in self.bodies and self._calls < _CALLS:
            self.call(first, is_conditional=is_conditional)
            return
        if not words or first in _SAYING or first.startswith("(("):
            return
        variables.maps.insert(0, dict(own) if first in ("bash", "sh") else {})
        found = None if self._starts_inner(words) else self._command(words)
        if found is not None and any(weight(found)):
            launcher = _counts(found, {**variables, **own}) | dict(found.launcher)
            self.commands.append(found._replace(launcher=launcher))
        variables.maps.pop(0)

    def _command(self, words: list[Word]) -> CommandLine | None:
        """Read a command that may train; a line that begins with an option starts nothing."""
        words = _expand(words, self.variables)
        found = None if words and is_flag(words[0]) else command_of(words)
        return None if found is not None and only_uses(found) else found

    def _starts_inner(self, words: list[Word]) -> bool:
        """Follow `bash -c TEXT` or `bash FILE ARGUMENTS`; tell whether a command is either."""
        at = next((i for i, word in enumerate(words[:-1]) if _INNER.search(word.text)), None)
        if at is None or self._calls >= _CALLS:
            return False
        first, *rest = _expand(words[at + 1 :], self.variables)
        text, line = "", first.line
        if re.fullmatch(r"-\w*c", first.text) and rest:
            inner = words[at + 2].text.replace(JOINED, "\\\n")
            text, line = "\n" * (rest[0].line - 1) + re.sub(r'\\(["$`])', r"\1", inner), 0
        elif first.text.endswith((".sh", ".bash")) and self._find is not None:
            text = self._find(first.text.rpartition(ELSEWHERE)[2].lstrip("/"))
            self.variables.update({str(i): [word] for i, word in enumerate(rest[:9], start=1)})
        self._calls += 1
        self.include(text, at=line)
        self._has_ended = False
        return bool(text)

    def _include_file(self, word: Word, *, is_conditional: bool) -> None:
        named = "".join(part.text for part in _expand_word(word, self.variables))
        name = named.rpartition(ELSEWHERE)[2].lstrip("/")
        text = self._find(name) if self._find is not None and name and self._calls < _CALLS else ""
        if not text:
            self.variables.forget(word.line)
            return
        self._calls += 1
        self.include(text, at=word.line, is_conditional=is_conditional)


def _goes_round(blocks: Sequence[Block]) -> bool:
    """Tell whether what is tested may differ from one round of a loop to the next."""
    return any(block.kind in ("while", "until") for block in blocks)


def _set_unseen(words: Sequence[Word]) -> Iterator[str]:
    first, second = ([word.text for word in words] + ["", ""])[:2]
    if first.startswith("(("):
        yield from (a or b for a, b in _SET_BY_SUM.findall(first))
    if first in _SETTING or (first == "printf" and second.startswith("-v")):
        for word in words[1:]:
            named = re.findall(r"^(?:-v)?([A-Za-z_]\w*)|\b([A-Za-z_]\w*)=", word.text)
            yield from (a or b for a, b in named)
    yield from (element[1] for word in words[:1] if (element := _ELEMENT.match(word.text)))


def _defined(words: Sequence[Word]) -> str:
    if words[0].text == "function" and len(words) > 1:
        return words[1].text.removesuffix("()")
    named = words[0].text.endswith("()") and not words[0].whole
    is_apart = len(words) > 1 and words[1].text == "()"
    return words[0].text.removesuffix("()") if named or is_apart else ""


def _body(statements: Sequence[_Statement], at: int) -> tuple[list[_Statement], int]:
    found: list[_Statement] = []
    depth, has_begun = 0, False
    while at < len(statements):
        words, ended_by = statements[at]
        at += 1
        start = 0 if has_begun else next((i for i, w in enumerate(words) if w.text == "{"), -1)
        if start < 0:
            if found or len(words) > 3:  # a body of one command, without braces
                return found, at
            continue
        rest = list(words[start:])
        while rest and rest[0].text in ("{", "}") and not rest[0].whole:
            depth += 1 if rest.pop(0).text == "{" else -1
            has_begun = True
            if depth <= 0:
                return found, at
        if rest:
            found.append((rest, ended_by))
    return found, at


_HERE = re.compile(r"(?<!<)<<-?[ \t]*(['\"\\]?)([A-Za-z_]\w*)")
_READ = re.compile(r"\bread (?:-\w+ (?:'' )?)*(\w+) <<.*")  # keeps the lines in a variable


def _without_documents(text: str) -> tuple[str, dict[int, tuple[bool, int, str]]]:
    """Return a script without its here-documents, and these by the line of their command.

    Each has a mark if the shell fills variables into it, the lines above it, and its text.
    """
    lines = text.split("\n")
    last = {line.strip(): i for i, line in enumerate(lines)}  # where a word could end one, at most
    found: dict[int, tuple[bool, int, str]] = {}
    i = 0
    while i < len(lines):
        begins = None if lines[i].lstrip().startswith("#") else _HERE.search(lines[i])
        i += 1
        if begins is None or last.get(begins[2], -1) < i:
            continue
        end = next(j for j in range(i, len(lines)) if lines[j].strip() == begins[2])
        lines[i - 1], is_kept = _READ.subn(r'\1="', lines[i - 1])
        if is_kept:
            lines[end] = '"'
            continue
        found[i] = (not begins[1], i, "\n".join(lines[i:end]))
        lines[i : end + 1] = [""] * (end + 1 - i)
        i = end + 1
    return "\n".join(lines), found


def _keep_document(
    words: list[Word],
    documents: Mapping[int, tuple[bool, int, str]],
    variables: _Variables,
    written: dict[str, str],
) -> None:
    at = next((i for i, word in enumerate(words) if _HERE_WORD.match(word.text)), None)
    if at is None or words[at].line not in documents:
        return
    is_filled, above, text = documents[words[at].line]
    if is_filled:
        text = _filled(text, variables).replace(ELSEWHERE, "${unknown}")
    del words[at + (words[at].text in ("<<", "<<-")) : at + 1]
    texts = [word.text for word in _expand(words, variables)]
    names = [after for before, after in pairwise(texts) if before in (">", ">>", "tee", "1>")]
    names += [name.lstrip(">") for name in texts if re.match(r">>?[^>&]", name)]
    is_run = bool(texts) and re.search(r"(^|/)python[0-9.]*$", texts[0]) is not None
    for name in ["-"] if is_run else names[:1] or ["-.sh"]:
        written[name] = "\n" * above + text


_HERE_WORD = re.compile(r"<<(?!<)")


def _counts(command: CommandLine, variables: Mapping[str, list[Word]]) -> dict[str, object]:
    counts = {name: int(words[0].text) for name, words in variables.items()
              if words and words[0].text.isdecimal()}  # fmt: skip
    if command.program.startswith(("swift ", "megatron ", "llamafactory-cli ")):
        return {flag: counts[name] for name, flag in _PROCESSES.items() if name in counts}
    devices = {count for name, count in counts.items() if _DEVICES.search(name)}
    return {"num_gpus": devices.pop()} if len(devices) == 1 else {}


def _assign(
    words: list[Word], variables: _Variables, *, is_conditional: bool
) -> tuple[list[Word], dict[str, list[Word]]]:
    """Record the assignments of a statement; return the words of its command and what is its own.

    Assignments before a command are that command's alone.
    """
    own: dict[str, list[Word]] = {}
    is_fixed = bool(words) and words[0].text == "readonly"
    is_kept = all(ASSIGNMENT.match(word.text) for word in words) or any(
        word.text.endswith("=(") for word in words
    )
    if words and words[0].text == "env":
        words, is_kept = [word for word in words[1:] if not word.text.startswith("-")], False
    elif words and words[0].text in _DECLARING:
        words, is_kept = _declared(words, variables), True
    while words and (match := ASSIGNMENT.match(words[0].text)):
        first, name = words.pop(0), match[1]
        rest = first.text[match.end() :]
        if rest == "(":
            ends = (i for i, word in enumerate(words) if word.text == ")" and not word.whole)
            end = next(ends, len(words))
            value, words = words[:end], words[end + 1 :]
        else:
            value = [Word(rest, first.line, first.whole)]
        is_added = bool(match[2])
        if rest.startswith((f"${name}", f"${{{name}}}")):  # NAME="$NAME --more" adds to it
            tail = rest.removeprefix(f"${{{name}}}").removeprefix(f"${name}")
            value, is_added = [Word(tail, first.line)], True
        value = _expand(value, variables)
        if is_conditional and is_added:
            value = _perhaps(value)
        elif is_conditional and (known := variables.get(name)) and value[: len(known)] != known:
            if _OF_ARGUMENTS.fullmatch(rest):  # an option of the script, read at its default
                value = known
            elif name not in variables.empty or known[0].text != ELSEWHERE:
                value = [Word(ELSEWHERE, first.line)]
        if not is_kept:
            own[name] = value
        elif name not in variables.fixed:
            variables.keep(name, value, first.line, is_added=is_added)
            variables.fixed |= {name} if is_fixed else set()
    return words, own


def _declared(words: list[Word], variables: _Variables) -> list[Word]:
    first, *rest = words
    is_eval = first.text == "eval"
    if not is_eval and any(re.match(r"-\w*n", word.text) for word in rest):
        variables.forget(first.line)  # one name stands for another
    found: list[Word] = []
    for word in rest:
        name, _, _ = word.text.partition("=")
        is_named = "$" in name and (not is_eval or re.match(r"\$\w+=|\$\(", word.text))
        parts = list(_expand_word(word, variables)) if is_named else [word]
        if parts and parts[0].text == ELSEWHERE and not _ENVIRONMENT.search(word.text):
            variables.forget(first.line)
        found += [part for part in parts if is_eval or not part.text.startswith("-")]
    return found


def _perhaps(words: list[Word]) -> list[Word]:
    flags = filter(is_flag, words)
    return [part for word in flags for part in (word, Word(ELSEWHERE, word.line))]


def _expand(words: list[Word], variables: _Variables) -> list[Word]:
    found: list[Word] = []
    size = 0
    for word in words:
        if variables.spent > _MOST_IN_ALL:  # nobody's script: the rest is not read
            return []
        for part in _expand_word(word, variables):
            size += len(part.text) + 1
            variables.spent += len(part.text) + 1
            if size > _MOST or variables.spent > _MOST_IN_ALL:
                return found
            found.append(part)
    return found


def _expand_word(word: Word, variables: _Variables) -> Iterator[Word]:
    lone = _VARIABLE.fullmatch(word.text)
    if lone and (lone[1] or lone[3]) in variables:
        for part in variables[lone[1] or lone[3]]:  # keeps the lines where its words stand
            yield from _split(part if word.whole else replace(part, whole=False))
        return

    chunks = word.text.split()
    if word.whole and len(chunks) > 1 and any(_is_options(chunk, variables) for chunk in chunks):
        line = word.line  # a command line in quotes: its words keep their own lines
        for piece in re.split(r"(\s+)", word.text):
            if piece.strip():
                yield from _expand_word(Word(piece, line), variables)
            line += piece.count("\n")
        return

    text = _filled(word.text, variables)
    yield from _split(Word(text, word.line, word.whole and " -" not in text))


def _filled(text: str, variables: _Variables) -> str:
    """Fill the known variables into a text; what is not known becomes its mark."""

    def value(match: re.Match[str]) -> str:
        if match[4] is not None:
            return _arithmetic(_VARIABLE.sub(value, match[4]), variables)
        name = match[1] or match[3]
        if name.isdecimal() and variables.in_function:
            return ELSEWHERE
        if name in variables and variables.spent <= _MOST_IN_ALL:
            known = " ".join(part.text for part in variables[name])
            variables.spent += len(known)
            return known
        has_default = match[2] is not None and not variables.is_open
        return match[2].strip("\"'") if has_default else ELSEWHERE

    for _ in range(_NESTED):  # the default of a variable may be another variable
        text, before = _VARIABLE.sub(value, text), text
        if text == before or len(text) > _MOST:
            break
    if len(text) > _MOST:
        text = ELSEWHERE
    text = re.sub(r"`#[^`]*`", "", text)  # a comment within a command
    return re.sub(r"`[^`]*`|\$[@*#0-9?]|\$\{[^{}]*\}", ELSEWHERE, _without_commands(text))


def _without_commands(text: str) -> str:
    parts, i = [], 0
    while (j := text.find("$(", i)) >= 0:
        end = balanced(text, j + 1)
        sum_ = re.fullmatch(r"\s*expr\s+([\d\s()*/+%\\-]+)", text[j + 2 : end])
        value = _arithmetic(sum_[1].replace("\\", ""), {}) if sum_ else ELSEWHERE
        parts += [text[i:j], value]
        i = end + 1
    return "".join((*parts, text[i:]))


def _is_options(chunk: str, variables: _Variables) -> bool:
    lone = _VARIABLE.fullmatch(chunk)
    words = variables.get(lone[1] or lone[3], []) if lone else []
    return len(words) > 1 and any(word.text.startswith("--") for word in words)


def _split(word: Word) -> Iterator[Word]:
    if word.whole and not re.search(r"(^| )--?[A-Za-z][^ ]* ", word.text):
        yield word
        return
    line = word.line
    for part in re.split(r"(\s+)", word.text):
        if part.strip():
            yield Word(part.strip("\"'"), line)
        line += part.count("\n")


def _arithmetic(text: str, variables: Mapping[str, list[Word]]) -> str:
    try:
        tree = ast.parse(re.sub("/+", "//", text.strip()), mode="eval")
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        known = {name: int(variables[name][0].text) for name in names & variables.keys()}
        value = literal(tree.body, known)
    except (ValueError, SyntaxError, IndexError, RecursionError, MemoryError):
        return ELSEWHERE
    return str(value) if isinstance(value, int) else ELSEWHERE
