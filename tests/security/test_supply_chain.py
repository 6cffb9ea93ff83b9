"""What is installed and run in CI is named by content: hashes, digests of actions."""

from __future__ import annotations

import re
import tomllib

import yaml
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
    tools = [(ROOT / ".ci" / f"{name}.hashes.txt").read_text() for name in ("uv", "tools")]
    assert _pins(tools[0]).keys() == {"uv"}
    assert {"build", "cyclonedx-bom", "setuptools", "twine"} <= _pins(tools[1]).keys()
    for part in re.split(r"\n(?=[A-Za-z])", "\n".join([PINS, *tools]))[1:]:
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
    foreign = [name for name in used if not name.startswith("./.github/")]
    assert [name for name in foreign if not BY_DIGEST.fullmatch(name)] == []


def test_a_tag_is_no_digest():
    assert BY_DIGEST.fullmatch("actions/checkout@v4") is None


def test_a_release_is_signed_and_says_what_it_is_made_of():
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    assert "attestations: true" in text
    assert "cyclonedx-py" in text
    assert "SHA256SUMS" in text


def test_a_release_is_built_with_pinned_tools_after_the_tests():
    workflows = ROOT / ".github" / "workflows"
    jobs = yaml.safe_load((workflows / "release.yml").read_text(encoding="utf-8"))["jobs"]
    assert jobs["tests"]["uses"] == "./.github/workflows/tests.yml"
    assert jobs["build"]["needs"] == "tests" and jobs["publish"]["needs"] == "build"
    script = next(step["run"] for step in jobs["build"]["steps"] if "run" in step)
    assert "--no-isolation" in script  # else the newest setuptools would build it
    installed = re.findall(r"pip install.*", script)
    assert installed and all("--require-hashes" in line for line in installed)
    # `on` is a truth value to YAML 1.1.
    assert "workflow_call" in yaml.safe_load((workflows / "tests.yml").read_text())[True]


def test_an_image_takes_in_the_package_and_what_installs_it_alone():
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*" and rules[-1] == "**/__pycache__"
    entering = [rule.removeprefix("!") for rule in rules[1:-1]]
    assert all(rule.startswith("!") for rule in rules[1:-1])
    package = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    places = set(package["tool"]["setuptools"]["package-dir"].values())
    built = {"LICENSE", "README.md", "pyproject.toml", "setup.py"}
    pins = {".ci/uv.hashes.txt", "constraints.hashes.txt", "constraints.txt"}
    assert set(entering) == places | built | pins
    stages = re.findall(r"^FROM (.*)", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.M)
    assert stages == ["${PYTHON} AS build", "${PYTHON}"]  # what was copied stays in the first
