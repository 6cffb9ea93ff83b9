"""Names and values of a stranger's files: they open no other file, and start no command."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path

import pytest
from support.attacks import HUGGING_FACE, commands_in, refused
from support.reports import finding, with_findings

from rksp.cli.training import _record
from rksp.documents.grid import Record
from rksp.grid.cell import Cell
from rksp.grid.group import Options
from rksp.grid.store import GridStore
from rksp.grid.table import to_csv
from rksp.ground.errors import ArtifactError, InputError
from rksp.ground.files import ResultFolder, atomic_write, check_writable
from rksp.ground.text import has_control, one_line, printable
from rksp.own_runs.record import append_row
from rksp.recipe import Recipe
from rksp.report.formats import formats_of, render

OK = "score gpt2 --lr 1e-4 --warmup-steps 100 --evidence config"
links = pytest.mark.skipif(os.name != "posix", reason="needs links")


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    folder = tmp_path / "repository"
    folder.mkdir()
    yield from commands_in(folder, monkeypatch, capsys)


@pytest.mark.parametrize("name", ["a.db?mode=rwc", "50%25 off.db", "a#b.db", "ü &x=1.db"])
def test_the_name_of_a_database_opens_no_other_file(run, tmp_path, name):
    before = set(tmp_path.rglob("*"))
    with GridStore(Path(name)) as store:
        store.fill([Cell(target="gpt2", recipe=Recipe(learning_rate=1e-4))], Options())
    with GridStore(Path(name), read_only=True) as store:
        assert [row.target for row in store.rows()] == ["gpt2"]
    made = {path.name for path in set(tmp_path.rglob("*")) - before}
    assert name in made <= {name, f"{name}-wal", f"{name}-shm"}


@links
def test_a_link_of_the_repository_leads_no_writer_outside(run, tmp_path):
    victim, new = tmp_path / "victim", tmp_path / "new.json"
    victim.write_text("mine")
    Path("out").mkdir()
    Path("out/report.md").symlink_to(victim)
    Path("out/report.json").symlink_to(new)
    Path("away").symlink_to(tmp_path)
    for place in ("out/report.md", "out/report.json", "away/new.json"):
        refused(run(f"{OK} -o {place}"), "is a link that leads to")
    refused(run(f"{OK} -o away/../new.json"), "leads to")
    Path("here.db").symlink_to(victim)
    for more in ("-o here.db", "-o g.db --export out/report.json"):
        code, out, err = run(f"grid gpt2 lr=1e-4 {more}")
        assert (code, out, "is a link that leads to" in err) == (2, "", True)
    Path("g.db-wal").symlink_to(victim)
    with pytest.raises(InputError, match=r"g\.db-wal"):
        GridStore(Path("g.db"))
    Path("rows.jsonl").symlink_to(new)
    with pytest.raises(InputError, match="link"):
        append_row(Path("rows.jsonl"), {"a": 1})
    with pytest.raises(InputError, match="link"):
        ResultFolder(Path("away/kept"))
    assert victim.read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["repository", "victim"]


@links
def test_a_link_within_its_folder_and_a_folder_that_was_typed_whole_are_used(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    latest = tmp_path / "run" / "latest.json"
    latest.symlink_to("r3.json")
    check_writable(Path("run/latest.json"))
    atomic_write(Path("run/latest.json"), "{}")
    assert (tmp_path / "run" / "r3.json").read_text() == "{}" and latest.is_symlink()
    (tmp_path / "scratch").symlink_to(tmp_path / "run")
    atomic_write(tmp_path / "scratch" / "a.json", "{}")
    if Path("/dev/stdout").exists():
        check_writable(Path("/dev/stdout"))


def test_a_record_that_nobody_typed_is_neither_read_nor_added_to(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert _record(None) == Path("runs.jsonl")
    Path("runs.jsonl").write_text('{"learning_rate": 1e-3}\n')
    with pytest.raises(InputError, match=r"type --record runs\.jsonl"):
        _record(None)
    assert _record(Path("runs.jsonl")) == Path("runs.jsonl")
    Path("runs.jsonl").unlink()
    if os.name == "posix":
        Path("runs.jsonl").symlink_to("nowhere")
        with pytest.raises(InputError, match=r"type --record runs\.jsonl"):
            _record(None)


EVIL = "[click](https://evil.example) <img src=x>"


def test_a_stored_code_is_a_code(tmp_path):
    stored = json.loads(with_findings(finding("RKSP101", "error")).to_json())
    path = tmp_path / "r.json"
    for code in (EVIL, "RKSP1", "RKSP101\n", "xRKSP101"):
        stored["findings"][0]["code"] = code
        path.write_text(json.dumps(stored))
        from rksp.cli.rendering import load

        with pytest.raises(ArtifactError, match=r"findings\.0\.code"):
            load(path)


@pytest.mark.parametrize(
    "text", ["##[stop-commands]t", "a ###[error]b", "x ##vso[task.setvariable]y", "##[##["]
)
def test_commands_in_the_middle_of_a_line_are_broken(text):
    for safe in (printable(text), one_line(text)):
        assert "##[" not in safe and "##vso[" not in safe
        assert json.loads(f'"{safe}"') == text
    assert has_control(text)
    assert printable("## a heading, #1 [x], C#[T]") == "## a heading, #1 [x], C#[T]"


@pytest.mark.parametrize("letter", "\u200b\u2060\ufeff\u00ad\u180e\u3164\U000e0041")
def test_letters_without_width_are_shown(letter):
    safe = printable(f"a{letter}b")
    assert letter not in safe and json.loads(f'"{safe}"') == f"a{letter}b"


def test_a_value_of_a_run_file_starts_no_command_on_either_stream(run):
    rate = '"##[set-output name=verdict]ok"'
    Path("t.yaml").write_text(HUGGING_FACE.replace("1e-4", rate).replace("evil:run", "gpt2"))
    err = refused(run("score gpt2 --recipe t.yaml --devices 1"), "t.yaml:2")
    assert "set-output name=verdict" in err and "##[" not in err


@pytest.mark.parametrize("name", formats_of("score"))
def test_no_format_prints_a_command_of_the_runner(name):
    report = with_findings(finding("RKSP101", "error"))
    target = report.target.model_copy(update={"notes": ["##[error]x"]})
    bad = report.findings[0].model_copy(update={"message": "##[error]x", "layer": "##[add-mask]y"})
    report = report.model_copy(update={"target": target, "findings": [bad]})
    assert "##[" not in printable(render(report, name))


def test_a_cell_of_a_table_is_no_formula():
    def cell(target: str, **more: object) -> Record:
        return Record(position=0, model="gpt2", target=target, seed=0, verdict="ok", **more)

    cells = [cell(target, lr=-1.0) for target in ("=HYPERLINK(1)", "@a", "gpt2")]
    rows = list(csv.DictReader(io.StringIO(to_csv(cells))))
    assert [row["target"] for row in rows] == ["'=HYPERLINK(1)", "'@a", "gpt2"]
    assert {row["lr"] for row in rows} == {"-1.0"}
    assert "'=cmd()" in to_csv([cell("gpt2", **{"=cmd()": "a"})]).splitlines()[0].split(",")
