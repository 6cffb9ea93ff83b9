"""Two runs: which fields differ, where each stands, and what each difference moves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commands import left_with

import rksp
from rksp.documents.options import MeasureOptions
from rksp.documents.score import DiffReport
from rksp.ground.errors import ArtifactError, InputError
from rksp.report.formats import render

SHELL = """python run_clm.py --model_type gpt2 --learning_rate {rate} --max_steps 2000 \\
  --per_device_train_batch_size 32 --block_size 1024 --warmup_steps {warmup} --bf16
"""
FOUNDRY = """max_seq_len: 1024
model:
  name: hf_causal_lm
  pretrained: false
  pretrained_model_name_or_path: gpt2
optimizer:
  name: decoupled_adamw
  lr: 6.0e-4
scheduler:
  name: cosine_with_warmup
  t_warmup: {warmup}
max_duration: {steps}
global_train_batch_size: 64
precision: amp_bf16
"""
CONFIG = MeasureOptions(evidence="config")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _shell(name: str, rate: str = "1e-3", warmup: int = 100) -> str:
    Path(name).write_text(SHELL.format(rate=rate, warmup=warmup))
    return name


def test_one_planted_difference_is_found_with_its_places_and_what_it_moves():
    a, b = _shell("a.sh"), _shell("b.sh", warmup=3)
    found = rksp.diff(a, b)
    assert found.target == (a, b)
    assert found.settings == {"warmup_steps": ("100", "3")}
    assert found.places == {"warmup_steps": ("a.sh:2", "b.sh:2")}
    (effect,) = found.effects
    assert effect.name == "warmup_steps"
    for at, run in enumerate((a, b)):  # the numbers are those of a score of each
        own = rksp.score(run, options=CONFIG)
        assert [pair[at] for pair in effect.numbers.values()] == [
            own.probability_failed,
            *(own.start_here, own.likely_edge, own.do_not_exceed),
        ]
    assert effect.numbers["likely edge"][1] < effect.numbers["likely edge"][0]
    assert rksp.diff(b, a).effects[0].numbers["likely edge"] == (
        *reversed(effect.numbers["likely edge"]),
    )


def test_each_difference_is_put_in_alone_and_then_all():
    a, b = _shell("a.sh"), _shell("b.sh", "1e-2", 3)
    alone = {
        "learning_rate": rksp.score(_shell("c.sh", "1e-2"), options=CONFIG),
        "warmup_steps": rksp.score(_shell("d.sh", warmup=3), options=CONFIG),
        "all together": rksp.score(b, options=CONFIG),
    }
    found = {one.name: one.numbers["P(failed)"][1] for one in rksp.diff(a, b).effects}
    assert found == {name: run.probability_failed for name, run in alone.items()}


def test_fields_in_other_units_are_no_difference():
    tokens = 64 * 1024  # a step
    Path("a.yaml").write_text(FOUNDRY.format(warmup="100ba", steps="2000ba"))
    Path("b.yaml").write_text(FOUNDRY.format(warmup=f"{100 * tokens}tok", steps="2000ba"))
    Path("c.yaml").write_text(FOUNDRY.format(warmup="100ba", steps=f"{4000 * tokens}tok"))
    same, longer = rksp.diff("a.yaml", "b.yaml"), rksp.diff("a.yaml", "c.yaml")
    assert (same.settings, same.effects) == ({}, [])
    assert longer.settings["max_steps"] == ("2000", "4000")
    assert longer.places["max_steps"] == ("a.yaml:12", "c.yaml:12")


def test_equal_files_have_no_difference():
    found = rksp.diff(_shell("a.sh"), _shell("b.sh"))
    assert (found.settings, found.places, found.effects) == ({}, {}, [])
    assert "What each difference moves" not in render(found, "text")


def test_a_report_stands_for_its_run():
    a, b = _shell("a.sh"), _shell("b.sh", "1e-2")
    stored = rksp.score(a, options=CONFIG).report
    Path("a.json").write_text(stored.to_json())
    files = rksp.diff(a, b)
    for given in (stored, "a.json"):
        mixed = rksp.diff(given, b)
        assert (mixed.settings, mixed.places) == (files.settings, files.places)
        assert mixed.effects == files.effects
    assert rksp.diff("a.json", "a.json").effects == []


def test_a_report_of_another_model_than_its_name_has_no_effects():
    small = rksp.resolve("gpt2", overrides={"n_layer": 2, "n_embd": 64, "n_head": 2})
    found = rksp.diff(rksp.score(small, lr=1e-3, options=CONFIG), _shell("b.sh"))
    assert found.settings["width"] == ("64", "768")
    assert found.effects == []
    assert any("run file" in note for note in found.notes)


def test_the_model_is_a_difference_too():
    Path("small.json").write_text('{"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 2}')
    a = _shell("a.sh")
    text = Path(a).read_text().replace("--model_type gpt2", "--config_name small.json")
    Path("b.sh").write_text(text)
    (effect,) = rksp.diff(a, "b.sh").effects
    assert effect.name == "the model"
    own = rksp.score("b.sh", options=CONFIG)
    assert effect.numbers["likely edge"][1] == own.likely_edge != effect.numbers["likely edge"][0]


def test_the_command_prints_what_python_returns(capsys):
    a, b = _shell("a.sh"), _shell("b.sh", "3")
    assert left_with(["diff", a, b, "--format", "json"]) == 1
    printed = DiffReport.model_validate_json(capsys.readouterr().out)
    assert printed == rksp.diff(a, b, fail_on="error").finite()
    assert left_with(["diff", b, a]) == 0
    out = capsys.readouterr().out
    assert "3 (b.sh:1)" in out and "1e-3 (a.sh:1)" in out
    assert left_with(["diff", a, b, "--format", "markdown", "--exit-zero"]) == 0
    assert "### What each difference moves" in capsys.readouterr().out


def test_what_cannot_be_compared_is_one_sentence(capsys):
    a = _shell("a.sh")
    Path("b.yaml").write_text("learning_rate: 1e-4\nper_device_train_batch_size: 8\n")
    assert left_with(["diff", a, "b.yaml"]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert "b.yaml" in sentence and "no setting names a model" in sentence
    with pytest.raises(InputError, match="no setting names a model"):
        rksp.diff("b.yaml", a)
    Path("c.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(ArtifactError, match="neither a report"):
        rksp.diff(a, "c.json")
    with pytest.raises(InputError, match="cannot be read"):
        rksp.diff(a, "nothing.yaml")
