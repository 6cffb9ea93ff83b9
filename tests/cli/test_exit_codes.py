"""Exit codes: the same in every format, and 0, 1, 2 or 3 by what happened."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.reports import finding, scored, with_findings

from rksp.cli import main
from rksp.documents.score import ScoreReport
from rksp.grid.group import CellAnswer, Options
from rksp.grid.plan import read_plan
from rksp.grid.store import GridStore
from rksp.report.formats import formats_of, render

TINY = "--set n_layer=2 --set n_embd=32 --set n_head=2 --set vocab_size=512 --snapshots 256"


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Runs a command in an empty folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(list(arguments))
        return left.value.code, *capsys.readouterr()

    return call


def _stored(report: ScoreReport, name: str) -> str:
    Path(name).write_text(report.to_json())
    return name


@pytest.mark.parametrize(("rate", "code"), [("3.0", 1), ("6e-4", 0)])
def test_a_score_exits_alike_in_every_format(run, rate, code):
    codes = {}
    for name in formats_of("score"):
        codes[name], out, _ = run("score", "gpt2", "--lr", rate, *TINY.split(), "--format", name)
        assert out
    assert set(codes.values()) == {code}, codes


UNTOLD = "score gpt2 --lr 6e-4 --objective other --evidence config"


@pytest.mark.parametrize(
    ("bars", "code"),
    [
        ("", 0),
        ("--fail-on unknown", 4),
        ("--fail-on 0.3,unknown", 4),
        ("--fail-on warning --fail-on unknown", 1),  # there is a warning too
        ("--fail-on never", 0),
        ("--fail-on unknown --exit-zero", 0),
    ],
)
def test_what_cannot_be_told_fails_only_where_it_was_asked_for(run, bars, code):
    found, out, err = run(*UNTOLD.split(), *bars.split())
    assert found == code
    assert ("exit 0 although rksp cannot tell" in out) == (code == 0 and "--exit-zero" not in bars)
    assert ("RKSP002" in err) == ("unknown" in bars and code != 1)
    if code:
        assert f"rksp: exit {code}: " in err


@pytest.mark.parametrize("bars", ["never,error", "0.1,0.2", "unknow", "", "0.5,", "unknown,inf"])
def test_bars_that_mean_nothing_are_refused(run, bars):
    code, out, err = run("score", "gpt2", "--lr", "1e-3", "--fail-on", bars)
    assert (code, out) == (2, "") and "--fail-on" in err


def test_a_grid_with_a_cell_that_cannot_be_told(run):
    store = _grid("grid.db", [0.01, 0.02])
    with GridStore(Path(store)) as file:
        row = next(iter(file.rows()))
        answer = row.result.model_copy(update={"verdict": "cannot tell"}).model_dump_json()
        file._base.execute("UPDATE cells SET result = ? WHERE key = ?", (answer, row.key))
    assert run("grid", store)[0] == 0
    code, _, err = run("grid", store, "--fail-on", "unknown")
    assert (code, "rksp cannot tell of 1 of 2 cells" in err) == (4, True)


def test_exit_zero_says_what_it_overrides(run):
    command = ["score", "gpt2", "--lr", "3.0", *TINY.split(), "--format", "json", "--exit-zero"]
    code, out, err = run(*command)
    assert code == 0
    assert json.loads(out)["gate"]["failed"]
    assert "rksp: exit 0: RKSP001" in err.splitlines()[-1]


def test_with_a_baseline_only_what_is_new_or_worse_breaks_the_build(run):
    score = ["score", "gpt2", *TINY.split(), "--format", "github"]
    assert run(*score, "--lr", "3.0", "-o", "risky.json")[0] == 1
    code, out, err = run(*score, "--lr", "3.0", "--baseline", "risky.json", "-o", "same.sarif")
    assert code == 0, err
    assert out == "::notice title=rksp::gpt2: risk\n"
    results = json.loads(Path("same.sarif").read_text())["runs"][0]["results"]
    assert {result["baselineState"] for result in results} == {"unchanged"}
    launched = [
        json.loads(run(*score[:-1], "brief", "--lr", "3.0", *more)[1])["launch"]
        for more in ((), ("--baseline", "risky.json"))
    ]
    assert launched == ["no", "caution"]  # as the exit code
    assert run(*score, "--lr", "6e-4", "--exit-zero", "-o", "calm.json")[0] == 0
    code, out, err = run(*score, "--lr", "3.0", "--baseline", "calm.json")
    assert code == 1
    assert out.startswith("::error title=RKSP001")
    assert "exit 1: RKSP001" in err.splitlines()[-1]


def test_what_is_to_blame_is_shown_at_its_line(run):
    lines = ["weight_decay: 0.1", "warmup_steps: 0", "learning_rate: 3.0", "max_grad_norm: 1.0"]
    lines += ["per_device_train_batch_size: 32", "gradient_accumulation_steps: 1"]
    lines += ["adam_beta2: 0.95", "max_steps: 1000", "lr_scheduler_type: cosine"]
    Path("a, b.yaml").write_text("\n".join(lines) + "\n")
    recipe = ["--recipe", "a, b.yaml", "--devices", "1", "--sequence-length", "256", *TINY.split()]
    files = ["-o", "r.sarif", "-o", "gitlab=r.json", "-o", "r.html"]
    code, out, err = run("score", "gpt2", *recipe, "--format", "github", *files)
    assert code == 1, err
    shown = re.findall(r"^::\w+ file=a%2C b.yaml,line=(\d+),title=(RKSP\d+)", out, re.M)
    assert {("3", "RKSP001"), ("2", "RKSP503")} <= set(shown), out
    sarif = json.loads(Path("r.sarif").read_text())["runs"][0]["results"][0]
    place = sarif["locations"][0]["physicalLocation"]
    assert place["region"] == {"startLine": 3}
    assert place["artifactLocation"] == {"uri": "a%2C%20b.yaml", "uriBaseId": "SRCROOT"}
    location = json.loads(Path("r.json").read_text())[0]["location"]
    assert location == {"path": "a, b.yaml", "lines": {"begin": 3}}
    assert "a, b.yaml:3" in Path("r.html").read_text()
    typed = run("score", "gpt2", *recipe, "--lr", "2.0", "--format", "github")[1]
    assert "RKSP001" in typed
    assert not re.search(r"file=.*RKSP001", typed)  # what was typed stands in no file


def _grid(name: str, probabilities: list[float | None]) -> str:
    """A store whose cells have these answers; None could not run."""
    rates = ",".join(f"{k + 1}e-4" for k in range(len(probabilities)))
    with GridStore(Path(name)) as store:
        store.fill(read_plan("gpt2", [f"lr={rates}"]).cells, Options())
        for cell, probability in zip(store.claim(60).cells, probabilities, strict=True):
            if probability is None:
                store.fail([cell.key], "invalid", "gpt2 cannot be built.")
                continue
            answer = CellAnswer(
                verdict="ok",
                probability_failed=probability,
                probability_failed_low=0.0,
                probability_failed_high=probability,
                do_not_exceed=1e-3,
                expected_excess=0.1,
            )
            assert store.finish(cell.key, answer)
    return name


@pytest.mark.parametrize(
    ("probabilities", "code"),
    [((0.01, 0.02), 0), ((0.01, 0.9), 1), ((0.01, None, 0.9), 3), ((None, None), 2)],
)
def test_a_grid_exits_alike_in_every_format_and_keeps_the_good_cells(run, probabilities, code):
    store = _grid("grid.db", list(probabilities))
    codes = {}
    for name in formats_of("grid"):
        codes[name], out, err = run("grid", store, "--format", name)
        known = [p for p in probabilities if p is not None]
        if name in ("sarif", "github", "gitlab"):  # these list what fails
            known = [p for p in known if p >= 0.5]
        shown = [p for p in known if f"{p:.0%}" in out or f"{p}" in out]
        assert shown == known, name
        assert ("could not run" in out.lower()) == (None in probabilities), name
        assert ("could not run" in err) == (None in probabilities), name
    assert set(codes.values()) == {code}, codes


def test_a_report_renders_as_the_score_did(run):
    report = scored(3.0)
    file = _stored(report, "report.json")
    for name in formats_of("score"):
        code, out, err = run("report", file, "--format", name)
        assert (code, err) == (0, ""), name
        # On a terminal lines are as long as it is wide.
        assert out == render(report, name) or name in ("text", "full"), name
    code, out, _ = run("report", file, "-o", "a.html", "-o", "gitlab=b.json", "--format", "sarif")
    assert code == 0
    assert out == render(report, "sarif")
    assert Path("a.html").read_text() == render(report, "html")
    assert Path("b.json").read_text() == render(report, "gitlab")


def test_a_diff_exits_by_what_is_new_or_worse(run):
    mild = _stored(with_findings(finding("RKSP101", "error")), "mild.json")
    bad = _stored(
        with_findings(finding("RKSP101", "error"), finding("RKSP102", "error")), "bad.json"
    )
    for name in ("text", "json", "markdown"):
        assert run("diff", mild, bad, "--format", name)[0] == 1, name
        assert run("diff", bad, mild, "--format", name)[0] == 0, name
        assert run("diff", mild, bad, "--format", name, "--exit-zero")[0] == 0, name
        assert run("diff", mild, bad, "--format", name, "--fail-on", "never")[0] == 0, name
    _, out, err = run("diff", mild, bad, "--format", "json")
    assert [c["state"] for c in json.loads(out)["changes"]] == ["new", "unchanged"]
    assert err == "rksp: exit 1: RKSP102 RKSP102 is off\n"
    Path("diff.json").write_text(out)
    stored, fresh = (
        run(*command, "--format", "markdown")[1].splitlines()
        for command in (("report", "diff.json"), ("diff", mild, bad))
    )
    assert sorted(stored) == sorted(fresh)  # the file's keys are sorted


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("report absent.json", "absent.json cannot be read"),
        ("report broken.json", "broken.json is not a report"),
        ("diff good.json broken.json", "broken.json is not a report"),
        ("report good.json --format csv", "use text, full, json, markdown"),
        ("diff good.json good.json --fail-on 0.5", "use error, warning or never"),
        ("score gpt2 --baseline absent.json", "absent.json cannot be read"),
        ("score gpt2 --fail-on high", "neither a probability"),
        ("score gpt2 -o absent/x.html", "the folder absent does not exist"),
        ("report --schema soup", "no report of 'soup'"),
    ],
)
def test_bad_input_is_two_with_one_sentence_and_nothing_on_stdout(run, command, sentence):
    _stored(scored(), "good.json")
    Path("broken.json").write_text('{"schema_version": "1.0"}')
    code, out, err = run(*command.split())
    assert (code, out) == (2, "")
    assert sentence in err
    assert len(err.splitlines()) == 1
