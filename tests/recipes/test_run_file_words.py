"""A run file's own words: fixes name its keys, and its comments silence findings, never errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commands import run_rksp

from rksp.documents.finding import Finding
from rksp.documents.terms import Gate
from rksp.recipe_files.registry import READERS, read_recipe_file
from rksp.recipe_files.said.ignored import apply_comments
from rksp.recipe_files.said.origin import in_own_words

HUGGING_FACE = """\
learning_rate: 0.0006
lr_scheduler_type: cosine
max_steps: 4000
per_device_train_batch_size: 16
num_train_epochs: 1
"""


def scored(folder: Path, text: str, *more: str, name: str = "train.yaml"):
    (folder / name).write_text(text)
    given = ["gpt2", "--recipe", name, "--devices", "1", "--evidence", "config", *more]
    done = run_rksp("score", *given, "-o", "out.json", cwd=folder)
    return done, json.loads((folder / "out.json").read_text())


def fixes(report: dict) -> dict[str, str]:
    return {finding["code"]: finding["fix"] for finding in report["findings"]}


def test_a_fix_names_the_key_of_the_file(tmp_path):
    _, report = scored(tmp_path, HUGGING_FACE)
    assert fixes(report)["RKSP503"].endswith("(warmup_steps: 120).")
    shares = HUGGING_FACE + "warmup_ratio: 0.001\n"
    assert fixes(scored(tmp_path, shares)[1])["RKSP503"].endswith("(warmup_steps: 120).")
    (tmp_path / "train.yaml").write_text(
        HUGGING_FACE.replace("0.0006", "0.006") + "warmup_steps: 120\n"
    )
    _, high = scored(tmp_path, (tmp_path / "train.yaml").read_text())
    (fix,) = {fix for code, fix in fixes(high).items() if code == "RKSP501"}
    advised = float(fix.rpartition("learning_rate: ")[2].rstrip(")."))
    assert "e" not in fix.rpartition("learning_rate: ")[2] and advised < 0.006


def test_what_was_typed_keeps_its_option(tmp_path):
    _, report = scored(tmp_path, HUGGING_FACE, "--warmup-steps", "1")
    assert fixes(report)["RKSP503"].endswith("(--warmup-steps 120).")


def test_a_fix_without_a_key_keeps_the_option():
    assert in_own_words("Warm up (--warmup-steps 4).", {}, {}) == "Warm up (--warmup-steps 4)."


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_a_key_is_one_of_the_trainers(reader):
    from rksp.recipe import Recipe

    assert set(reader.keys) <= set(Recipe.model_fields)
    assert all(key and " " not in key for key in reader.keys.values())


def test_a_comment_beside_a_setting_silences_what_is_found_there(tmp_path):
    warm = "warmup_steps: 5"
    _, loud = scored(tmp_path, f"{HUGGING_FACE}{warm}\n")
    assert "RKSP503" in fixes(loud)
    _, still = scored(tmp_path, f"{HUGGING_FACE}{warm}  # rksp: ignore RKSP503\n")
    assert "RKSP503" not in fixes(still)
    assert {"reason": "train.yaml:6 ignores it", "code": "RKSP503", "name": "warmup"} in still[
        "not_run"
    ]
    other = HUGGING_FACE.replace("max_steps: 4000", "max_steps: 4000  # rksp: ignore RKSP503")
    assert "RKSP503" in fixes(scored(tmp_path, f"{other}{warm}\n")[1])


def test_a_comment_on_its_own_line_silences_the_whole_recipe(tmp_path):
    _, still = scored(tmp_path, f"# rksp: ignore RKSP502, RKSP503\n{HUGGING_FACE}")
    assert "RKSP503" not in fixes(still)


def test_a_comment_hides_no_error(tmp_path):
    text = HUGGING_FACE.replace("0.0006", "0.5  # rksp: ignore RKSP501 RKSP502")
    done, report = scored(tmp_path, text)
    assert "RKSP501" in fixes(report) and report["verdict"] == "risk" and done.returncode == 1
    assert "train.yaml:1 cannot ignore RKSP501, an error; type --ignore RKSP501" in done.stderr


def test_findings_about_the_model_have_no_place_in_a_run_file(tmp_path):
    path = tmp_path / "train.yaml"
    path.write_text(f"# rksp: ignore RKSP206\n{HUGGING_FACE}")
    origins = read_recipe_file(path, devices=1).origins()
    about = Finding(code="RKSP206", name="rope", level="warning", message="It is off.")
    kept = apply_comments([about], {"RKSP206": ""}, origins, path, Gate.parse("0.5").reaches).kept
    assert kept == [about]


def test_a_comment_hides_nothing_that_fails_the_gate(tmp_path):
    text = f"{HUGGING_FACE}warmup_steps: 5  # rksp: ignore RKSP503\n"
    done, report = scored(tmp_path, text, "--fail-on", "warning")
    assert "RKSP503" in fixes(report) and done.returncode == 1
    assert "cannot ignore RKSP503, a warning, which fails the gate" in done.stderr
    done, report = scored(tmp_path, text, "--fail-on", "0.5")
    assert "RKSP503" not in fixes(report) and done.returncode == 0
