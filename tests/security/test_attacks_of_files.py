"""Files that were made to hang, crash or fool a reader; each is refused in a sentence."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from support.attacks import commands_in, refused

from rksp.ground.errors import InputError
from rksp.ground.files import read_limited


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    yield from commands_in(tmp_path, monkeypatch, capsys)


DEEP = "[" * 50_000
TAG = "a: !!python/object/apply:pathlib.Path.touch [!!python/name:evil.run '']\n"
MERGED = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n + 1}: &a{n + 1}\n  <<: [*a{n}, *a{n}, *a{n}, *a{n}]\n  y{n}: [*a{n}, *a{n}, *a{n}]\n"
    for n in range(30)
)

# Case: name and content of the file, and the command that reads it.
REFUSED = {
    "merged mappings": ("x.yaml", MERGED, "explain x.yaml"),
    "an anchor in itself": ("x.yaml", "a: &a [*a]\n", "explain x.yaml"),
    "a tag of Python in a recipe": ("x.yaml", TAG, "explain x.yaml"),
    "a tag of Python in a grid": ("x.yaml", TAG, "grid x.yaml --dry-run"),
    "a tag of Python in a plan": ("x.yaml", TAG, "lab run x.yaml -o y"),
    "UTF-16": ("x.yaml", "a: 1\n".encode("utf-16"), "explain x.yaml"),
    "a deep configuration": ("config.json", DEEP, "score config.json"),
    "a deep table of shards": (
        "model/model.safetensors.index.json",
        '{"weight_map": ' + DEEP,
        "score model",
    ),
    "shards outside the folder": (
        "model/model.safetensors.index.json",
        '{"weight_map": {"lm_head.weight": "../../etc/passwd"}}',
        "score model --lr 1e-3",
    ),
    "deep rows": ("x.jsonl", f'{{"lr": {DEEP}', "grid x.jsonl --dry-run"),
    "a deep setting": (None, "", f"score gpt2 --set a={DEEP[:5000]}"),
    "a long field": ("x.csv", f"lr,target\n1e-4,{'a' * 200_000}\n", "grid x.csv --dry-run"),
    "rows that are no text": ("x.csv", b"lr,target\n\xff\xfe,gpt2\n", "grid x.csv --dry-run"),
    "rows with NUL": ("x.csv", b"lr,target\n1e-4,\0\n", "grid x.csv --dry-run"),
    "no Parquet": ("x.parquet", b"PAR1" + b"\xff" * 99 + b"PAR1", "grid x.parquet --dry-run"),
    "a pickle": ("model/pytorch_model.bin", b"\x80\x04.", "score model --lr 1e-3"),
    "a device as a configuration": ("model/config.json", "/dev/zero", "score model --lr 1e-3"),
    "a device as a target": (None, "", "score /dev/zero"),
    "a rate that is a word": (
        "x.yaml",
        "base_model: gpt2\nlearning_rate: fast\n",
        "explain x.yaml --as axolotl --devices 1",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused(run, case):
    name, content, command = REFUSED[case]
    if name is not None:
        path = Path(name)
        path.parent.mkdir(exist_ok=True)
        if path.parent.name == "model" and name != "model/config.json":
            tiny = {"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 1, "vocab_size": 64}
            Path("model/config.json").write_text(json.dumps(tiny))
        if content == "/dev/zero":
            path.symlink_to(content)
        else:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
    started = time.process_time()
    refused(run(command))
    assert time.process_time() - started < 20
    assert not Path("imported").exists()


def test_a_module_that_prints_when_it_is_imported_leaves_stdout_empty(run):
    code, out, err = run("score this:nothing")
    assert (code, out) == (2, "")
    assert err.splitlines()[-1] == "rksp: this has no function nothing."


def test_a_file_that_blocks_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="not a regular file"):
        read_limited(tmp_path / "pipe", 10)


@pytest.mark.skipif(not os.access("/proc/kmsg", os.R_OK), reason="needs the kernel's log")
def test_the_log_of_the_kernel_is_not_read():
    with pytest.raises(InputError):
        read_limited(Path("/proc/kmsg"), 10)


def test_a_file_that_has_nothing_now_is_refused(monkeypatch, tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"a")
    opened = os.fdopen

    class Silent:  # as the kernel's log between two messages
        def __init__(self, descriptor: int, mode: str) -> None:
            self._file = opened(descriptor, mode)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self._file.close()

        def fileno(self):
            return self._file.fileno()

        def read(self, count):
            return None

    monkeypatch.setattr(os, "fdopen", Silent)
    with pytest.raises(InputError, match="no file that ends"):
        read_limited(path, 10)
