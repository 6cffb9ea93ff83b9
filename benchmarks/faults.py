"""Feed damaged input to rksp and count exit codes.

Unusable input must give exit code 2 and one sentence. The inputs are mutations of real files: bytes
are flipped, cut or repeated; values are replaced by ones that break parsers and arithmetic; lines
are swapped between files. The same seed gives the same inputs.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from rksp.cli import main as rksp
from rksp.errors import InputError
from rksp.recipe_files.document import parse_file

_TESTS = Path(__file__).parents[1] / "tests"
RUNS, CONFIGS = _TESTS / "run_configs", _TESTS / "configs"
EXPECTED = (0, 1, 2)
MOST_SECONDS = 60.0
_VALUES = (
    *("0", "-1", "1e400", ".inf", ".nan", "1e-400", "9" * 5000, "null", "true", "''", "[]", "{}"),
    *("!!bool x", "!!python/object:os.system x", "&a [*a]", "*a", "${a.b}", "${learning_rate}"),
    *("evil:run", "/dev/zero", "\x1b[31m", "a\x00b", "\u202e", "2024-01-01", "0x1F", "1_000", "~"),
)
_VALUE = re.compile(r"(?<=[:=])\s*[^\s#,}\]]+")


@dataclass(slots=True)
class Tally:
    """Exit codes, complaints and the slowest run for the inputs of one kind."""

    codes: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    slowest: float = 0.0


def mutations(texts: Sequence[bytes], count: int, *, seed: int) -> Iterator[bytes]:
    """Yield `count` damaged files, each made of one of `texts` by one to three changes."""
    source = random.Random(seed)
    changes = (_flipped, _cut, _repeated, _replaced, _replaced, _replaced, _spliced)
    for _ in range(count):
        text = source.choice(texts)
        for _ in range(source.randint(1, 3)):
            text = source.choice(changes)(text, source, texts)
        yield text


def judge(arguments: Sequence[str]) -> tuple[int, str, str, float]:
    """Run a command in this process; return exit code, stdout, stderr and processor seconds."""
    out, err = io.StringIO(), io.StringIO()
    started, code = time.process_time(), 3
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            rksp(list(arguments))
        except SystemExit as left:
            code = left.code
        except BaseException as error:  # whatever escapes is the finding
            err.write(f"Traceback: {error!r}")
    return code, out.getvalue(), err.getvalue(), time.process_time() - started


def complaint(code: int, out: str, err: str, seconds: float) -> str | None:
    """Say what is wrong with an answer to damaged input; return None if nothing is."""
    if code not in EXPECTED or "Traceback" in err:
        return f"exit {code}: {err.strip()[-200:]}"
    sentences = [line for line in err.splitlines() if not line.endswith("…")]  # no progress lines
    if code == 2 and (out or len(sentences) != 1):
        return f"exit 2 with {len(out)} characters on stdout and {len(sentences)} sentences"
    if any(c in out + err for c in "\x1b\x00\u202e"):
        return "a control character was printed"
    if seconds > MOST_SECONDS:
        return f"{seconds:.0f} CPU seconds"
    return None


def recipes(count: int, *, seed: int = 0) -> Tally:
    """Explain damaged run files of every trainer, as YAML and as JSON."""
    files = sorted(path for path in RUNS.rglob("*") if path.suffix in (".yaml", ".yml"))
    texts = {"yaml": [path.read_bytes() for path in files]}
    texts["json"] = [text for path in files if (text := _as_json(path)) is not None]
    return _tried(texts, count, seed, ["explain-config", "{}", "--devices", "8"])


def _as_json(path: Path) -> bytes | None:
    try:
        return json.dumps(parse_file(path)[1], default=str, indent=1).encode()
    except InputError:  # some of the real files are not valid YAML
        return None


def configurations(count: int, *, seed: int = 0) -> Tally:
    """Resolve damaged configurations of models, up to a skeleton without weights."""
    texts = {"json": [path.read_bytes() for path in sorted(CONFIGS.glob("*.json"))]}
    command = ["score", "{}", "--lr", "1e-4", "--stream", "never", "--max-memory", "1MB"]
    return _tried(texts, count, seed, command)


def reports(count: int, *, seed: int = 0) -> Tally:
    """Show damaged reports; the undamaged report describes a tiny model."""
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "report.json"
        small = ("n_layer=1", "n_embd=16", "n_head=2", "vocab_size=300")
        told = [word for setting in small for word in ("--set", setting)]
        judge(["score", "gpt2", *told, "--lr", "1e-4", "--snapshots", "256", "-o", str(whole)])
        texts = {"json": [whole.read_bytes()]}
    return _tried(texts, count, seed, ["report", "{}", "--format", "markdown"])


KINDS = {"recipes": recipes, "configurations": configurations, "reports": reports}


def _tried(
    texts: Mapping[str, Sequence[bytes]], count: int, seed: int, command: Sequence[str]
) -> Tally:
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for suffix, originals in texts.items():
            share = max(1, count // len(texts))
            for number, text in enumerate(mutations(originals, share, seed=seed)):
                file = f"input.{suffix}"
                Path(file).write_bytes(text)
                found = judge([word.format(file) for word in command])
                tally.codes[found[0]] += 1
                tally.slowest = max(tally.slowest, found[3])
                wrong = complaint(*found)
                if wrong is not None:
                    tally.wrong.append(f"{suffix} seed {seed} number {number}: {wrong}")
    return tally


def _flipped(text: bytes, source: random.Random, texts: Sequence[bytes]) -> bytes:
    if not text:
        return b"\0"
    place = source.randrange(len(text))
    return text[:place] + bytes([source.randrange(256)]) + text[place + 1 :]


def _cut(text: bytes, source: random.Random, texts: Sequence[bytes]) -> bytes:
    return text[: source.randrange(len(text) + 1)]


def _repeated(text: bytes, source: random.Random, texts: Sequence[bytes]) -> bytes:
    start = source.randrange(len(text) + 1)
    return text[:start] + text[start : start + 40] * source.choice((2, 50)) + text[start:]


def _replaced(text: bytes, source: random.Random, texts: Sequence[bytes]) -> bytes:
    decoded = text.decode(errors="replace")
    places = list(_VALUE.finditer(decoded))
    if not places:
        return text
    place = source.choice(places)
    value = source.choice(_VALUES)
    return f"{decoded[: place.start()]} {value}{decoded[place.end() :]}".encode()


def _spliced(text: bytes, source: random.Random, texts: Sequence[bytes]) -> bytes:
    lines, other = text.splitlines(True), source.choice(texts).splitlines(True)
    start = source.randrange(len(lines) + 1)
    return b"".join([*lines[:start], *other[: source.randrange(len(other) + 1)], *lines[start:]])


def main(
    count: Annotated[int, typer.Option(help="Inputs of every kind.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of the mutations.")] = 0,
    kind: Annotated[str, typer.Option(help=f"{', '.join(KINDS)}; default all.")] = "",
) -> None:
    """Print how many damaged inputs gave which exit code, and what was wrong."""
    for name in [kind] if kind else KINDS:
        tally = KINDS[name](count, seed=seed)
        codes = ", ".join(f"{n} with exit {code}" for code, n in sorted(tally.codes.items()))
        typer.echo(f"{name}: {tally.codes.total()} inputs, {codes}")
        typer.echo(f"  slowest {tally.slowest:.1f} CPU seconds; {len(tally.wrong)} wrong")
        for line in tally.wrong:
            typer.echo(f"  {line}")


if __name__ == "__main__":
    typer.run(main)
