"""Hostile input: work bounded, exit code 2 in one sentence, nothing printed as it is."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from support.attacks import AXOLOTL, HUGGING_FACE, commands_in, refused
from support.commands import left_with
from support.reports import scored

from rksp.datasets.probe import make_probe
from rksp.ground.errors import InputError
from rksp.ground.text import one_line, printable
from rksp.models.config_guard import sanitize
from rksp.models.resolve import resolve
from rksp.models.streaming import memory
from rksp.report.formats import formats_of


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    yield from commands_in(tmp_path, monkeypatch, capsys)


# At the evidence whose worker starts soonest.
GRID = "grid {} --evidence config -o g.db"


# Input that asks for more work or memory than any configuration


def _doubling(steps: int, value: str) -> str:
    lines = [f"v{n}: {value.replace('NEXT', f'${{v{n + 1}}}')}" for n in range(steps)]
    return "\n".join(["learning_rate: ${v0}", "micro_batch_size: 1", "base_model: gpt2", *lines])


UNUSABLE = {
    "references.yaml": _doubling(38, '"NEXT NEXTa"'),
    "lists.yaml": _doubling(36, '["NEXT", "NEXT"]'),
    "squares.py": "a0 = 9.5\n" + "".join(f"a{n + 1} = a{n} * a{n}\n" for n in range(40)),
    "integers.py": "a0 = 99\n" + "".join(f"a{n + 1} = a{n} * a{n}\n" for n in range(40)),
    "sums.py": "a = " + "1 + " * 20_000 + "1\n",
    "digits.json": '{"learning_rate": ' + "9" * 5000 + "}",
    "digits.toml": "learning_rate = " + "9" * 5000,
    "nul.yaml": "learning_rate: 1e-4\nname: a\0b\n",
    "one.yaml": "learning_rate: 1e-4\nname: a\1b\n",
    "bool.yaml": "learning_rate: !!bool abc\nmicro_batch_size: 1\n",
    "stamp.yaml": "learning_rate: !!timestamp abc\nmicro_batch_size: 1\n",
    "deep.json": "[" * 100_000,
    "deep.yaml": "[" * 100_000,
    "dashes.yaml": "- " * 100_000,
    "many.yaml": "".join(f"k{n}: 1\n" for n in range(150_000)),
    "large.yaml": "#" * (3 * 2**20),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_recipe_that_unfolds_is_refused_in_a_sentence(run, name):
    Path(name).write_text(UNUSABLE[name])
    started = time.process_time()
    refused(run(f"explain {name}"))
    assert time.process_time() - started < 20


INFINITE = {
    "axolotl": AXOLOTL.replace("max_steps: 10", "num_epochs: .inf\nwarmup_ratio: .nan"),
    "hf": HUGGING_FACE.replace("max_steps: 10", "warmup_ratio: .inf\nmax_steps: 1e400"),
    "neox": '{"train_micro_batch_size_per_gpu": 1e400, "train_iters": 1e400, "optimizer": {}}',
    "levanter": "trainer:\n  train_batch_size: 1e400\n  num_train_steps: .inf\n"
    "optimizer: {learning_rate: .nan, warmup: .inf}\n",
    "olmo half": "model:\n  max_sequence_length: 8\nglobal_train_batch_size: 0.5\n"
    "max_duration: 1e400\n",
    "olmo": "model:\n  max_sequence_length: 1e-3\nglobal_train_batch_size: 0\nmax_duration: .inf\n",
    "foundry": "max_duration: .infba\nglobal_train_batch_size: .nan\nmax_seq_len: .inf\n",
}


@pytest.mark.parametrize("trainer", INFINITE)
def test_a_number_that_nothing_can_count_with_is_no_crash(run, trainer):
    names = {"hf": "hugging-face", "neox": "gpt-neox", "foundry": "llm-foundry"}
    names["olmo half"] = "olmo"
    Path("run.yaml").write_text(INFINITE[trainer])
    done = run(f"explain run.yaml --devices 1 --as {names.get(trainer, trainer)}")
    assert done[0] in (0, 2), done
    assert "unexpected" not in done[2]


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/urandom", "/dev/full"])
@pytest.mark.parametrize("reader", ["report {}", "score gpt2 --baseline {}", "diff {} {}"])
def test_a_device_is_not_read(run, device, reader):
    if not Path(device).exists():
        pytest.skip(f"there is no {device}")
    refused(run(reader.format(device, device)), "not a regular file")


@pytest.mark.parametrize("name", ["pipe.yaml", "pipe.json", "pipe.py"])
@pytest.mark.parametrize("command", ["explain {}", "score {}", GRID])
def test_a_pipe_is_not_waited_for(run, name, command):
    os.mkfifo(name)
    code, _, err = run(command.format(name))
    assert code == 2
    assert "regular file" in err or "no file" in err


def test_a_probe_is_a_regular_file_of_bounded_size(tmp_path):
    with pytest.raises(InputError, match="regular file"):
        make_probe(None, text=Path("/dev/zero"))
    with pytest.raises(InputError, match="64 MiB"):
        large = tmp_path / "large"
        with large.open("wb") as file:
            file.truncate(65 * 2**20)
        make_probe(None, text=large)


HUGE = {
    "num_labels": {"model_type": "bert", "num_labels": 10**9},
    "head_dim": {"model_type": "llama", "head_dim": 10**7},
    "patches": {"model_type": "vit", "image_size": 4096, "patch_size": 1},
    "image": {"model_type": "vit", "image_size": 10**5},
    "channels": {"model_type": "vit", "num_channels": 10**6},
    "layers": {"model_type": "gpt2", "n_layer": 2048},
    "infinite": {"model_type": "gpt2", "n_head": float("inf")},
    "zero patch": {"model_type": "vit", "image_size": 32, "patch_size": 0},
    "a negative image": {"model_type": "vit", "image_size": -1e308, "patch_size": 8},
    "no base": {"model_type": "qwen3_vl", "text_config": {"rope_theta": 0}},
    "negative init": {"model_type": "gpt2", "initializer_range": -0.02},
    "infinite init": {"model_type": "gpt2", "initializer_range": float("-inf")},
}


@pytest.mark.parametrize("case", HUGE)
def test_a_configuration_beyond_any_model_is_refused(case):
    with pytest.raises(InputError, match="The configuration"):
        sanitize(HUGE[case])


TABLES = {"max_position_embeddings": 100_000, "num_layers": 2, "hidden_size": 8, "num_heads": 2}
TABLES |= {"attention_types": [[["global", "local"], 1]]}


def test_a_table_of_all_positions_is_counted_before_it_is_made():
    with pytest.raises(InputError, match="tables beside its parameters"):
        resolve("gpt_neo", overrides=TABLES)
    assert resolve("gpt_neo", overrides=TABLES | {"max_position_embeddings": 64})


def test_a_probe_beyond_the_memory_is_refused_before_the_model_is_built(run, monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda: memory.resident_memory() + 2**20)
    monkeypatch.setattr(memory, "fits", lambda *of_the_model: True)
    refused_late = run("score gpt2 --set n_layer=1 --set n_embd=8 --set n_head=1")
    assert refused_late[0] == 2
    assert "logits), more than" in refused_late[2].splitlines()[-1]


@pytest.mark.parametrize("target", ["~nosuchuser/x", "x" * 300, "x" * 300 + ".yaml", "a\tb"])
@pytest.mark.parametrize("command", ["score {}", f"{GRID} lr=1e-4"])
def test_a_name_that_no_system_takes_is_said(run, target, command):
    code = left_with([part.format(target) for part in command.split()])
    assert code == 2


# Text that would move a cursor or forge a log command


HOSTILE = "a\x1b[31m\n::error::forged\u202ex\x9b"


def test_a_file_name_writes_no_line_of_its_own(run, capsys):
    assert left_with(["score", HOSTILE]) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert not set(err) & set("\x1b\x9b\u202e")
    assert "\\u001b[31m\\n::error::" in err


@pytest.mark.parametrize("option", [f"--{HOSTILE}", f"--lr={HOSTILE}", f"--format={HOSTILE}"])
def test_an_option_writes_no_line_of_its_own(run, capsys, option):
    assert left_with(["score", "gpt2", option]) == 2
    err = capsys.readouterr().err
    assert not set(err) & set("\x1b\x9b\u202e")
    assert not any(line.startswith("::error") for line in err.splitlines())


def test_a_value_of_a_file_is_printed_escaped(run, capsys):
    Path("x.yaml").write_text(AXOLOTL.replace("1e-4", '"\\x1b[31m\\n::error::x"'))
    left_with(["explain", "x.yaml", "--devices", "1"])
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err
    assert not any(line.startswith("::") for line in (said.out + said.err).splitlines())


@pytest.mark.parametrize("name", formats_of("score"))
def test_a_stored_report_prints_no_control_character(run, capsys, name):
    report = scored(3.0)
    document = json.loads(report.to_json())
    document["target"]["name"] = HOSTILE
    Path("report.json").write_text(json.dumps(document))
    assert left_with(["report", "report.json", "--format", name]) == 0
    out = capsys.readouterr().out
    assert not set(out) & set("\x1b\x9b\u202e")
    if name != "github":
        assert not any(line.startswith("::error::forged") for line in out.splitlines())


def test_text_of_the_world_stays_as_it_is():
    assert printable("modèle 模型 ρ\n") == "modèle 模型 ρ\n"
    assert json.loads(printable(json.dumps("a\x9b\u202e", ensure_ascii=False))) == "a\x9b\u202e"
    assert one_line("x" * 5000).count("x") == 1000
