"""Parts of the cases of every kind: words of commands, and files with content."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import strategies as st

from faults.answers import Case

CONFIG = ("--evidence", "config")
JSON = ("--format", "json")
DRY = ("--dry-run", "--max-cells", "500")


def each(
    commands: Sequence[Sequence[str]], files: st.SearchStrategy[Mapping[str, bytes]]
) -> st.SearchStrategy[Case]:
    """Return cases of one of the commands on one of the sets of files."""
    return st.builds(
        lambda command, found: Case(command=tuple(command), files=found),
        st.sampled_from(commands),
        files,
    )


def file_of(name: str, text: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, bytes]]:
    """Return one file of these texts."""
    return text.map(lambda found: {name: encoded(found)})


def encoded(text: str) -> bytes:
    """Return a text as the bytes of a file, unpaired surrogates included."""
    return text.encode("utf-8", errors="surrogatepass")
