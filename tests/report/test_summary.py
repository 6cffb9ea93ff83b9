"""The summary at the top of a report, the schema that describes it, and the words as JSON."""

from __future__ import annotations

import json

import pytest
from support.commands import left_with

import rksp
from lab.bench.recipe_files import CONFIGS
from rksp.documents.score import ScoreReport
from rksp.report.formats import KINDS, schema_of
from rksp.report.glossary import described

CONFIG = ["--evidence", "config"]


@pytest.mark.parametrize(
    ("asked", "launch"),
    [
        (["gpt2", "--lr", "6e-4", "--warmup-steps", "100"], "yes"),
        (["gpt2", "--lr", "0.3"], "no"),
        (["gpt2"], "unknown"),
        (["gpt2", "--lr", "1e-6", "--objective", "dpo"], "yes"),
        (["llama", "--lr", "1e-3", "--objective", "grpo", "--peft", "lora"], "no"),
        (["llama", "--lr", "1e-6", "--objective", "grpo", "--peft", "lora"], "yes"),
        (["llama", "--lr", "1e-4", "--objective", "distillation"], "unknown"),
    ],
)
def test_the_summary_says_whether_to_launch(asked, launch, capsys):
    left_with(["score", *asked, *CONFIG, "--format", "json"])
    text = capsys.readouterr().out
    assert text.startswith('{\n "summary": {')
    report = ScoreReport.model_validate_json(text)
    summary = report.summary
    assert summary.launch == launch and summary.why
    assert summary.probability_failed == report.seeds[0].risk.number("probability_failed")
    assert report.to_json() == text
    left_with(["score", *asked, *CONFIG, "--format", "brief"])
    brief = json.loads(capsys.readouterr().out)
    assert list(brief)[:2] == ["launch", "why"] and brief["launch"] == launch


def test_where_published_runs_answer_the_reason_names_them(capsys):
    asked = ["llama", "--pretrained", "--lr", "5e-7", "--objective", "dpo", *CONFIG]
    left_with(["score", *asked, "--format", "brief"])
    summary = json.loads(capsys.readouterr().out)
    assert summary["launch"] == "yes" and "published runs of DPO" in summary["why"]
    assert summary["start_here"] < summary["do_not_exceed"] and summary["likely_edge"] is None


@pytest.mark.parametrize("times", [0.9, 1.1])
def test_a_launch_above_the_rate_not_to_exceed_says_so(times):
    at_most = rksp.score("gpt2", lr=1e-4, evidence="config").do_not_exceed
    summary = rksp.score("gpt2", lr=times * at_most, evidence="config").summary
    assert summary.launch == ("caution" if times > 1 else "yes")
    assert ("times the one not to exceed" in summary.why) == (times > 1)


def test_a_gate_that_never_fails_does_not_make_a_launch(capsys):
    for options in ([], ["--fail-on", "never"]):
        left_with(["score", "gpt2", "--lr", "0.3", *options, *CONFIG, "--format", "brief"])
        assert json.loads(capsys.readouterr().out)["launch"] == "no"


def test_a_brief_is_at_most_two_kilobytes(capsys):
    names = ("axolotl/pretrain.yaml", "torchtune/8B_full_single_device.yaml")
    for name in names:
        left_with(["score", str(CONFIGS / name), *CONFIG, "--format", "brief"])
        assert 50 < len(capsys.readouterr().out.encode()) <= 2000


def test_a_result_in_python_has_the_summary():
    result = rksp.score("gpt2", lr=0.3, evidence="config")
    assert result.summary.launch == "no" and result.verdict == "risk"
    assert result.summary.start_here == result.start_here < result.do_not_exceed * 10
    [edit] = [e for e in result.summary.edits if e.field == "learning_rate"]
    assert edit.was == 0.3 and edit.to <= result.start_here * 1.02


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_of_every_document_is_described(kind):
    schema = described(schema_of(kind))
    assert schema["$id"] and schema["$schema"] and schema["examples"]
    parts = {**schema.get("$defs", {}), kind: schema}
    missing = [
        f"{name}.{field}"
        for name, part in parts.items()
        for field, entry in part.get("properties", {}).items()
        if len(entry.get("description", "")) < 5
    ]
    assert sum(len(part.get("properties", {})) for part in parts.values()) > 10
    assert missing == []


def test_words_are_explained_as_json(capsys):
    assert left_with(["explain", "RKSP501", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["word"] == "RKSP501" and {"title", "fix"} <= set(told)
