"""Build the sources of the documentation site from what the repository already says.

    python .ci/site.py && mkdocs build --strict

Every page is a README, a tutorial, the help of a command, the explanation of a check or a
docstring; nothing is written twice. The gallery and the commands of the tutorials are executed
while the site is built.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SITE = ROOT / "build" / "site-source"
# What the gallery shows: a title, and the arguments of `rksp score` that make the page.
GALLERY = {
    "A small GPT-2 at a usual rate": (
        "gpt2 --set n_layer=4 --set n_embd=256 --set n_head=4 --lr 6e-4 --warmup-steps 100"
    ),
    "The same, a hundred times higher": (
        "gpt2 --set n_layer=4 --set n_embd=256 --set n_head=4 --lr 6e-2 --warmup-steps 100"
    ),
    "A mixture of experts without a balance loss": (
        "mixtral --set num_hidden_layers=2 --set hidden_size=128 --set intermediate_size=256 "
        "--set vocab_size=1000 --lr 1e-3"
    ),
    "An initialization far too large": (
        "gpt2 --set n_layer=4 --set n_embd=128 --set n_head=4 --set initializer_range=1.0 --lr 1e-3"
    ),
}

# Pages of a hundred columns fit, longer lines wrap, and a report is shown as a picture of its top.
STYLE = """
.md-grid { max-width: 66rem; }
.md-typeset code { font-size: 0.8em; }
.md-typeset pre code { white-space: pre-wrap; }
.md-typeset iframe { width: 100%; height: 26rem; border: 1px solid #8888; border-radius: 4px; }
"""


def _rksp(*arguments: str) -> str:
    """Run a command in this process and return what it prints: fifty starts would take minutes."""
    from rksp.cli import main

    printed, code = io.StringIO(), 0
    with contextlib.redirect_stdout(printed):
        try:
            main(list(arguments))
        except SystemExit as leaving:
            code = leaving.code or 0
    if code not in (0, 1):
        raise SystemExit(f"rksp {' '.join(arguments)} ended with {code}")
    return printed.getvalue()


def _tracked(pattern: str) -> list[Path]:
    listed = ["git", "ls-files", "--", pattern]
    found = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [Path(name) for name in found.split()]


def _readmes() -> list[Path]:
    return [path for path in _tracked("*README.md") if path.parts[0] not in ("tests", ".github")]


def _local_links(text: str, page: Path, pages: set[Path]) -> str:
    """Turn links to files that are no pages into code: the site holds pages only."""

    def replaced(match: re.Match[str]) -> str:
        label, target = match[1], match[2]
        if "://" in target or target.startswith("#"):
            return match[0]
        path = (ROOT / page.parent / target.split("#")[0]).resolve().relative_to(ROOT)
        if (ROOT / path).is_dir() and path / "README.md" in pages:
            return f"[{label}]({target.rstrip('/')}/README.md)"
        return match[0] if path in pages or path.suffix == ".svg" else f"`{path}`"

    return re.sub(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)", replaced, text)


def _copy_readmes() -> None:
    pages = set(_readmes()) | {Path(name) for name in _notes()}
    for page in pages:
        target = SITE / page
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_local_links((ROOT / page).read_text(), page, pages))
    for picture in _tracked("*.svg"):
        (SITE / picture).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / picture, SITE / picture)


def _notes() -> list[str]:
    names = ("CHANGELOG.md", "CONCEPTS.md", "CONTRIBUTING.md", "SECURITY.md")
    return [name for name in names if (ROOT / name).is_file()]


def _commands() -> None:
    import typer

    from rksp.cli import app

    group = typer.main.get_command(app)
    text = ["# Commands", ""]

    def walk(command: object, words: list[str]) -> None:
        children = getattr(command, "commands", None)
        if children:
            for name, child in children.items():
                walk(child, [*words, name])
            return
        text.extend([f"## {' '.join(words)}", "", (command.help or "").strip(), ""])
        text.extend(["| option | meaning | default |", "|---|---|---|"])
        for parameter in command.params:
            names = ", ".join(f"`{name}`" for name in parameter.opts)
            meaning = (getattr(parameter, "help", None) or "").replace("|", "\\|")
            default = "" if parameter.default in (None, False, ()) else f"`{parameter.default}`"
            text.append(f"| {names} | {meaning} | {default} |")
        text.append("")

    walk(group, ["rksp"])
    (SITE / "reference" / "commands.md").write_text("\n".join(text) + "\n")


def _checks() -> None:
    """Write one page for every check, so that each has an address, and a table of all."""
    folder = SITE / "reference" / "checks"
    index = ["# Checks", "", "| code | check | at worst |", "|---|---|---|"]
    for check in json.loads(_rksp("explain", "--format", "json")):
        code, title, worst = check["code"], check["title"], check["level"]
        page = [f"# {code}: {title[0].lower()}{title[1:]}", ""]
        page += [f"`{check['name']}`, at worst {worst}.", ""]
        explained = json.loads(_rksp("explain", code, "--format", "json"))
        for part, text in list(explained.items())[2:]:  # behind the word and the title
            shown = f"`{text}`" if text.startswith("rksp ") else text
            page += [f"## {part.capitalize()}", "", shown, ""]
        (folder / f"{code}.md").write_text("\n".join(page))
        index.append(f"| [{code}](checks/{code}.md) | {title} | {worst} |")
    (SITE / "reference" / "checks.md").write_text("\n".join(index) + "\n")


def _gallery() -> None:
    text = [
        "# Gallery",
        "",
        "Each report is what the command above it wrote (`-o report.html`).",
        "",
    ]
    for number, (title, arguments) in enumerate(GALLERY.items(), 1):
        name = f"{number}.html"
        _rksp("score", *arguments.split(), "--exit-zero", "-o", str(SITE / "gallery" / name))
        text += [f"## {title}", "", f"```sh\nrksp score {arguments}\n```", ""]
        text += [f'<iframe src="{name}" title="{title}" loading="lazy"></iframe>', ""]
        text += [f"[The whole page]({name})", ""]
    (SITE / "gallery" / "index.md").write_text("\n".join(text) + "\n")


def _playground() -> None:
    arguments = "gpt2 --lr 6e-4 --warmup-steps 2000 --max-steps 100000 --batch-size 480"
    text = ["# Playground", "", "[Open the playground](page.html): move a setting of the run or of"]
    text += ["the model, and the answer moves with it. The page is what this command printed:", ""]
    text += [f"    rksp report --sliders {arguments}", ""]
    _rksp("report", "--sliders", *arguments.split(), "-o", str(SITE / "playground" / "page.html"))
    (SITE / "playground" / "index.md").write_text("\n".join(text) + "\n")


_BLOCK = re.compile(r'```(\w+)(?: title="([^"]+)")?\n(.*?)```', re.S)


def tutorial(text: str) -> str:
    """Return a tutorial with the output under each of its commands.

    A block with a title is a file, and a `console` block holds commands after `$ `. All run in the
    current folder.
    """

    def ran(match: re.Match[str]) -> str:
        language, title, content = match.groups()
        if title:
            Path(title).write_text(content)
        if language != "console":
            return match[0]
        shown = []
        for line in content.splitlines():
            program, *arguments = shlex.split(line.removeprefix("$ "))
            assert program == "rksp", line
            shown += [line, _rksp(*arguments).rstrip()]
        return "```console\n" + "\n".join(shown) + "\n```"

    return _BLOCK.sub(ran, text)


def _tutorials() -> None:
    for page in sorted((ROOT / ".ci" / "tutorials").glob("*.md")):
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            sys.path.insert(0, folder)
            made = tutorial(page.read_text())
            sys.path.remove(folder)
        (SITE / "tutorials" / page.name).write_text(made)


def main() -> None:
    """Write every source page anew."""
    shutil.rmtree(SITE, ignore_errors=True)
    for folder in ("reference/checks", "gallery", "playground", "tutorials"):
        (SITE / folder).mkdir(parents=True)
    (SITE / "site.css").write_text(STYLE)
    _copy_readmes()
    _commands()
    _checks()
    _gallery()
    _playground()
    _tutorials()
    python = ROOT / ".ci" / "site_python.md"
    shutil.copy(python, SITE / "reference" / "python.md")


if __name__ == "__main__":
    main()
