"""Releases of the software that trains: read from files that pin them, and from this Python."""

from __future__ import annotations

import pytest
from support.places import TESTS

from rksp.checks.environment import Release, installed_here, name_of, read_environment
from rksp.ground.errors import InputError

FREEZES = TESTS / "checks/freezes"
FREEZE = """\
# a comment
torch==2.9.1+cu128
Transformer_Engine-torch == 2.5  # why
trl==1.9.0 ; python_version >= "3.10" --hash=sha256:00 \\
    --hash=sha256:11
-e git+https://example.org/x.git@abc#egg=axolotl
-r other.txt
peft @ https://example.org/peft-0.18.0-py3-none-any.whl
accelerate>=1.0
datasets==4.*
not a requirement !
"""
UV = """\
version = 1
[[package]]
name = "torch"
version = "2.9.1"
source = { registry = "https://example.org/simple" }
[[package]]
name = "trl"
version = "1.9.0.dev0"
source = { git = "https://example.org/trl.git?rev=main#0" }
"""
POETRY = """\
[[package]]
name = "torch"
version = "2.9.1"
[[package]]
name = "trl"
version = "1.9.0"
[package.source]
type = "git"
url = "https://example.org/trl.git"
"""
CONDA = """\
name: x
channels: [conda-forge]
dependencies:
  - python=3.11
  - conda-forge::pytorch=2.5.1=cuda126_py311
  - deepspeed
  - pip:
      - trl==0.12.0
      - flash-attn>=2.5
"""
DOCKER = """\
FROM nvidia/cuda:12.4
RUN apt-get install -y git && pip install --no-cache-dir "torch==2.5.1" \\
    transformers==4.48.2 peft && echo trl==9
RUN uv pip install trl==0.14.0
"""


def read(tmp_path, name: str, text: str) -> dict[str, Release]:
    file = tmp_path / name
    file.write_text(text)
    return dict(read_environment(file).releases)


def test_what_pip_freeze_prints(tmp_path):
    found = read(tmp_path, "freeze.txt", FREEZE)
    assert found["torch"] == Release("2.9.1+cu128") and found["torch"].build == "cuda"
    assert str(found["torch"].base) == "2.9.1" and not found["torch"].may_differ
    assert found["transformer-engine"] == Release("2.5")
    assert found["trl"] == Release("1.9.0")
    assert found["axolotl"] == found["peft"] == Release(None, is_own=True)
    assert found["accelerate"] == Release(None, range=">=1.0")
    assert found["datasets"] == Release(None, range="==4.*")
    assert len(found) == 7


@pytest.mark.parametrize(("name", "text"), [("uv.lock", UV), ("poetry.lock", POETRY)])
def test_lock_files(tmp_path, name, text):
    found = read(tmp_path, name, text)
    assert found["torch"] == Release("2.9.1")
    assert found["trl"].is_own and found["trl"].may_differ
    assert (found["trl"].version or "").startswith("1.9.0")
    assert read_environment(tmp_path / name).is_whole


def test_conda(tmp_path):
    found = read(tmp_path, "environment.yml", CONDA)
    assert found["torch"] == Release("2.5.1") and found["trl"] == Release("0.12.0")
    assert found["deepspeed"] == Release(None)
    assert found["flash-attn"] == Release(None, range=">=2.5")


def test_the_lines_of_pip_in_a_dockerfile(tmp_path):
    found = read(tmp_path, "Dockerfile.train", DOCKER)
    assert found == {
        "torch": Release("2.5.1"),
        "transformers": Release("4.48.2"),
        "peft": Release(None),
        "trl": Release("0.14.0"),
    }


def test_two_releases_of_one_package_are_none(tmp_path):
    assert read(tmp_path, "r.txt", "torch==2.5\ntorch==2.6\n") == {"torch": Release(None)}


@pytest.mark.parametrize("text", ["", "# nothing\n", "-r other.txt\n", "}{\n"])
def test_a_file_without_a_package_is_refused(tmp_path, text):
    with pytest.raises(InputError, match="pip freeze"):
        read(tmp_path, "r.txt", text)


def test_a_file_is_read_within_limits(tmp_path):
    with pytest.raises(InputError, match="20,000"):
        read(tmp_path, "r.txt", "torch==2.5\n" * 20_002)
    with pytest.raises(InputError, match="larger"):
        read(tmp_path, "r.txt", "torch==2.5 " * 800_000)
    with pytest.raises(InputError, match="cannot be read"):
        read_environment(tmp_path / "absent.txt")
    assert read(tmp_path, "r.txt", f"torch==2.5\nx=={'1' * 5000}\n") == {"torch": Release("2.5")}


def test_the_packages_of_this_python_are_not_imported():
    here = installed_here(["torch", "packaging", "no-such-package"])
    assert here.releases.keys() == {"torch", "packaging"}
    assert here.releases["packaging"].base is not None


@pytest.mark.parametrize("name", ["torch", "pytorch", "Torch", "PyTorch"])
def test_names_are_normalized(name):
    assert name_of(name) == "torch"
    assert name_of("unsloth_zoo") == "unsloth-zoo"


def test_wheels_and_missing_packages_are_facts():
    newest = read_environment(FREEZES / "newest.txt").facts()
    assert newest["device"].values == ("cuda",)  # by the wheel of cuDNN
    assert "without_package" not in newest  # a list of pins may leave something out
    here = installed_here(["torch"]).facts()
    assert here["without_package"].values == ("flash-linear-attention",)
