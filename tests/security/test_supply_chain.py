"""What is installed and run in CI is named by content: hashes, digests of actions."""

from __future__ import annotations

import re
import tomllib

from support.places import ROOT

PINS = (ROOT / "constraints.hashes.txt").read_text(encoding="utf-8")
USES = re.compile(r"uses:\s*(\S+)")
BY_DIGEST = re.compile(r"[\w./-]+@[0-9a-f]{40}")


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _pins(text: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([A-Za-z][\w.-]*)==([\w.]+)", text, re.MULTILINE):
        found.setdefault(_normal(name), set()).add(version)
    return found


def test_every_pin_has_a_hash():
    for part in re.split(r"\n(?=[A-Za-z])", PINS)[1:]:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", part), part.splitlines()[0]


def test_the_hashes_are_of_the_versions_that_are_tested():
    tested = _pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    hashed = _pins(PINS)
    for name in tested.keys() & hashed.keys():
        assert hashed[name] == tested[name], name


def test_all_that_a_score_needs_is_hashed_but_torch():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = {_normal(re.split(r"[><=;\s\[]", line)[0]) for line in project["dependencies"]}
    assert needed - _pins(PINS).keys() == {"torch"}


def test_actions_are_named_by_digest():
    files = [ROOT / "action.yml", *(ROOT / ".github" / "workflows").glob("*.yml")]
    used = [name for file in files for name in USES.findall(file.read_text(encoding="utf-8"))]
    assert len(used) >= 8
    assert [name for name in used if not BY_DIGEST.fullmatch(name)] == []


def test_a_tag_is_no_digest():
    assert BY_DIGEST.fullmatch("actions/checkout@v4") is None


def test_a_release_is_signed_and_says_what_it_is_made_of():
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    assert "attestations: true" in text
    assert "cyclonedx-py" in text
    assert "SHA256SUMS" in text
