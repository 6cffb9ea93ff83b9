"""`rksp score` over several files: one table, one document, the worst exit code."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.commands import run_rksp

FILE = (
    "config_name: gpt2\nlearning_rate: {}\nper_device_train_batch_size: 32\nmax_steps: 1000\n"
    "warmup_steps: 100\noutput_dir: out\n"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a repository with a calm run, a risky one, an ignored one, and no run."""
    for name, rate in (("calm.yaml", "3.0e-4"), ("wild.yaml", "3.0e-1"), ("old.yaml", "3.0")):
        (tmp_path / name).write_text(FILE.format(rate))
    (tmp_path / "values.yaml").write_text("replicas: 3\nimage: nginx\n")
    (tmp_path / ".gitignore").write_text("old.yaml\n")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    return tmp_path


def scored(*words: str) -> tuple[int, dict]:
    done = run_rksp("score", *words, "--devices", "1", "--format", "json")
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_a_folder_gives_one_document_and_the_worst_exit_code(folder: Path):
    code, document = scored(str(folder))
    verdicts = {Path(row["name"]).name: row["verdict"] for row in document["rows"]}
    assert verdicts == {"calm.yaml": "ok", "wild.yaml": "risk"}  # git ignores old.yaml
    assert document["skipped"] == 1 and document["verdict"] == "risk" and code == 1
    assert "wild.yaml: RKSP001" in document["gate"]["reasons"][0]
    alone, calm = scored(str(folder / "calm.yaml"), "gpt2")
    assert alone == 0 and [row["name"] for row in calm["rows"]][1] == "gpt2"


def test_each_answer_is_that_of_the_file_alone(folder: Path):
    _, document = scored(str(folder))
    name = str(folder / "wild.yaml")
    one = json.loads(
        run_rksp(
            *("score", name, "--devices", "1", "--evidence", "config", "--format", "json")
        ).stdout
    )
    row = next(row for row in document["rows"] if row["name"] == name)
    assert row["report"]["seeds"] == one["seeds"] and row["report"]["verdict"] == one["verdict"]


def test_a_typed_file_that_cannot_be_read_is_a_row(folder: Path):
    code, document = scored(str(folder / "calm.yaml"), str(folder / "values.yaml"), "no/such.yaml")
    calm, *broken = document["rows"]
    assert calm["verdict"] == "ok" and code == 2
    assert [row["verdict"] for row in broken] == ["unreadable"] * 2
    assert all(row["error"].endswith(".") and row["report"] is None for row in broken)


def test_patterns_and_folders_name_a_file_once(folder: Path):
    _, document = scored(str(folder / "c*.yaml"), str(folder / "calm.yaml"), str(folder))
    names = [row["name"] for row in document["rows"]]
    assert len(names) == len(set(names)) == 2
    done = run_rksp("score", str(folder / "x*.yaml"))
    assert done.returncode == 2 and "No file fits" in done.stderr


def test_machines_see_every_file(folder: Path, tmp_path: Path):
    sarif, junit, page = (tmp_path / f"out.{end}" for end in ("sarif", "xml", "html"))
    outputs = [word for path in (sarif, junit, page) for word in ("-o", str(path))]
    run_rksp("score", str(folder), "--devices", "1", *outputs)
    results = json.loads(sarif.read_text())["runs"][0]["results"]
    uris = {one["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for one in results}
    assert {Path(uri).name for uri in uris} == {"wild.yaml"}  # the calm one has no finding
    prints = [one["partialFingerprints"]["rkspIssue/v1"] for one in results]
    assert len(prints) == len(set(prints))
    cases = ElementTree.parse(junit).getroot().findall(".//testcase")
    assert [len(case.findall("failure")) for case in cases] == [0, 1]
    assert "wild.yaml" in page.read_text()


def test_the_table_of_a_terminal_is_whole_at_eighty_columns(folder: Path):
    done = run_rksp("score", str(folder), "--devices", "1")
    text = " ".join(done.stdout.split())
    assert "calm.yaml" in text and "RISK" in text and "Lower the learning rate" in text


def test_what_pre_commit_hands_over_is_skipped_where_it_is_no_run(folder: Path, monkeypatch):
    names = [str(folder / name) for name in ("values.yaml", "calm.yaml")]
    assert scored(*names)[0] == 2
    monkeypatch.setenv("PRE_COMMIT", "1")
    code, document = scored(*names)
    assert code == 0 and document["skipped"] == 1
    assert [Path(row["name"]).name for row in document["rows"]] == ["calm.yaml"]
    assert scored(names[0])[0] == 0  # nothing to score in this commit


def test_a_repository_s_own_watcher_is_not_started(folder: Path):
    spy = folder / "spy.sh"
    spy.write_text(f"#!/bin/sh\ntouch {folder / 'ran'}\n")
    spy.chmod(0o755)
    git = ["git", "-C", str(folder)]
    subprocess.run([*git, "config", "core.fsmonitor", str(spy)], check=True)
    scored(str(folder))
    assert not (folder / "ran").exists()
    subprocess.run([*git, "status"], check=True, capture_output=True)
    assert (folder / "ran").exists()  # where nobody forbids it, git starts it
