"""Fixes as data: what an edit changes in a run file, and that nothing else changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commands import left_with

from lab.bench.recipe_files import CONFIGS, names
from rksp.calls.fix import scored
from rksp.documents.finding import Edit, applied
from rksp.ground.errors import InputError
from rksp.recipe_files.said.edits import RunText
from rksp.recipe_files.said.origin import settings_in

TRAINER = """\
# a comment that stays
model_name_or_path: gpt2
learning_rate: 3.0e-1   # too high
lr_scheduler_type: cosine
per_device_train_batch_size: 32
max_steps: 1000
warmup_steps: 100
"""
FORMS = {
    "run.yaml": TRAINER,
    "run.json": '{\n "model_name_or_path": "gpt2",\n "lr_scheduler_type": "cosine",\n'
    ' "per_device_train_batch_size": 32,\n "warmup_steps": 100,\n "max_steps": 1000,\n'
    ' "learning_rate": 0.3\n}\n',
    "run.toml": 'model_name_or_path = "gpt2"\nlr_scheduler_type = "cosine"\nmax_steps = 1000\n'
    "per_device_train_batch_size = 32\nlearning_rate = 3e-1 # high\nwarmup_steps = 100\n",
    "run.sh": "#!/bin/sh\ntorchrun --nproc_per_node 1 train.py --model_name_or_path gpt2 \\\n"
    "  --learning_rate 3e-1 --warmup_steps 100 \\\n  --lr_scheduler_type cosine "
    "--per_device_train_batch_size 32 \\\n  --max_steps 1000\n",
    "run.py": "from transformers import TrainingArguments, AutoModelForCausalLM\n"
    'model = AutoModelForCausalLM.from_pretrained("gpt2")\n'
    'args = TrainingArguments(output_dir="o", max_steps=1000, warmup_steps=100,\n'
    "    per_device_train_batch_size=32,\n    learning_rate=3e-1,  # high\n)\n",
}
FORMS["run.ipynb"] = json.dumps(
    {
        "cells": [{"cell_type": "code", "source": FORMS["run.py"].splitlines(keepends=True)}],
        "nbformat": 4,
        "metadata": {},
    },
    indent=1,
)


def changed_lines(before: str, after: str) -> list[tuple[str, str]]:
    pairs = zip(before.split("\n"), after.split("\n"), strict=True)
    return [(old, new) for old, new in pairs if old != new]


@pytest.mark.parametrize("name", FORMS)
def test_a_rate_is_lowered_in_its_place_and_nothing_else_moves(name, tmp_path, capsys):
    file = tmp_path / name
    file.write_bytes(FORMS[name].encode())
    assert scored(str(file)).summary.launch == "no"
    assert left_with(["fix", str(file), "--write"]) == 0
    assert f"They are written to {file}." in " ".join(capsys.readouterr().out.split())
    [(old, new)] = changed_lines(FORMS[name], file.read_bytes().decode())
    value = "3e-1" if "3e-1" in old else "3.0e-1" if "3.0e-1" in old else "0.3"
    before, _, after = old.partition(value)
    assert new.startswith(before) and new.endswith(after)
    found = scored(str(file))
    assert found.recipe.learning_rate == float(new[len(before) : len(new) - len(after)])
    assert found.recipe.learning_rate < 0.01 and found.verdict == "ok"


def test_without_write_the_file_stays_and_the_diff_is_shown(tmp_path, capsys):
    file = tmp_path / "run.yaml"
    file.write_text(TRAINER)
    assert left_with(["fix", str(file)]) == 1  # the file on the disk still fails
    assert file.read_text() == TRAINER
    said = capsys.readouterr().out
    assert "-learning_rate: 3.0e-1   # too high" in said and "\n+learning_rate: 2.0e-5" in said
    told = " ".join(said.split())
    assert f"{file} as it is: RISK. " in told and " With these edits: OK. " in told
    assert told.endswith(f" Write them: rksp fix {file} --write")


def test_a_program_gets_the_diff_and_both_answers(tmp_path, capsys):
    file = tmp_path / "run.yaml"
    file.write_text(TRAINER)
    assert left_with(["fix", str(file), "--format", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["before"]["launch"], found["after"]["launch"]) == ("no", "yes")
    assert "+learning_rate: 2.0e-5" in found["diff"] and found["written"] is False


def test_what_is_no_file_is_not_fixed(capsys):
    assert left_with(["fix", "llama"]) == 2
    assert "llama is no file" in capsys.readouterr().err


def test_ends_of_lines_stay(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_bytes(TRAINER.replace("\n", "\r\n").encode())
    assert left_with(["fix", str(file), "--write"]) == 0
    content = file.read_bytes()
    assert content.count(b"\r\n") == content.count(b"\n") == TRAINER.count("\n")


def test_a_missing_setting_is_a_new_line_beside_the_rate(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(TRAINER.replace("warmup_steps: 100\n", ""))
    report = scored(str(file))
    [edit] = [e for f in report.findings for e in f.edit if e.field == "warmup_steps"]
    assert (edit.was, edit.old, edit.line) == (0, "", 3) and edit.new.startswith("warmup_steps: ")
    file.write_text(applied(file.read_text(), [edit]))
    assert scored(str(file)).recipe.warmup_steps == edit.to


def test_a_value_that_means_two_settings_is_not_edited(tmp_path):
    # Negative control: the anchor holds the weight decay too, so that its edit moves two fields.
    file = tmp_path / "run.yaml"
    file.write_text(TRAINER.replace("3.0e-1", "&rate 3.0e-1") + "weight_decay: *rate\n")
    report = scored(str(file))
    edits = [e for f in report.findings for e in f.edit if e.field == "learning_rate"]
    assert edits and all(one.file is None for one in edits)
    assert left_with(["fix", str(file), "--write"]) == 1
    assert "3.0e-1" in file.read_text()


def test_a_typed_value_is_not_looked_for_in_the_file(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(TRAINER)
    report = scored(str(file), recipe={"lr": 0.2})
    edits = [e for f in report.findings for e in f.edit if e.field == "learning_rate"]
    assert edits and all(one.file is None and one.was == 0.2 for one in edits)


@pytest.mark.parametrize(
    ("fix", "fields"),
    [
        ("Lower the learning rate to 2e-4.", {"learning_rate": "2e-4"}),
        ("Clip gradients at 1 (--clip 1), or switch clipping off (--clip 0).", {"clip": "1"}),
        ("Lower the learning rate to 2e-5, or 2e-4 for adapters.", {}),
        ("Scale attention by 1/√head_dim.", {}),
    ],
)
def test_the_first_change_of_a_fix_is_the_edit(fix, fields):
    found = settings_in(fix)
    assert list(found.values()) == list(fields.values())
    assert len(found) == len(fields)


def test_edits_of_one_line_are_applied_from_its_end():
    edits = [
        Edit(field="a", was=1, to=22, line=1, column=3, old="1", new="22"),
        Edit(field="b", was=5, to=6, line=1, column=7, old="5", new="6"),
        Edit(field="c", was=None, to=7, line=1, column=1, old="", new="c=7\n"),
    ]
    assert applied("a=1 b=5\nrest", edits) == "c=7\na=22 b=6\nrest"


def _fixable(every: int) -> list[str]:
    return names()[::every]


def holds(name: str) -> int:
    """Fix each finding of a run file by itself; count those that are gone."""
    try:
        report = scored(str(CONFIGS / name))
    except InputError:
        return 0
    path, mark, part = name.partition("::")
    text, count = (CONFIGS / path).read_bytes().decode(), 0
    for finding in report.findings:
        if not finding.edit or any(edit.file is None for edit in finding.edit):
            continue
        copy = Path("fixed", Path(path).name)
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes(applied(text, finding.edit).encode())
        again = scored(f"{copy}{mark}{part}")
        assert finding.key not in {one.key for one in again.findings}, f"{name} {finding.code}"
        count += 1
    return count


def test_what_was_fixed_is_gone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert sum(map(holds, _fixable(9))) >= 3


@pytest.mark.slow
def test_what_was_fixed_is_gone_in_all_run_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert sum(map(holds, _fixable(1))) >= 40


def test_nothing_is_edited_without_a_text():
    report = scored("gpt2", recipe={"lr": 0.3})
    text = RunText(path="", recipe=report.recipe, origins={})
    assert text.edit("learning_rate", "1e-3") == Edit(field="learning_rate", was=0.3, to=1e-3)


def test_a_key_is_never_taken_for_its_value(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lines = ["base_model: Qwen/Qwen2.5-0.5B", "learning_rate: 2e-2", "warmup_steps: 0"]
    lines += ["max_steps: 1000", "micro_batch_size: 4", "bf16: true", "optimizer: adamw_torch"]
    Path("run.yaml").write_text("\n".join(lines) + "\n")
    assert left_with(["fix", "run.yaml", "--as", "axolotl", "--devices", "1", "--write"]) == 0
    capsys.readouterr()
    after = Path("run.yaml").read_text().splitlines()
    assert [line.partition(":")[0] for line in after] == [line.partition(":")[0] for line in lines]
    assert after[2] == "warmup_steps: 30" and after[1] != lines[1]
