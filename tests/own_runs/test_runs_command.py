"""`rksp why` of many runs, and `--runs`: what was learned stands on every page."""

from __future__ import annotations

import json
import math
import re

import pytest
from support.commands import run_rksp
from support.past_runs import LOSSES, RATES, write_table

import rksp
from rksp.grid.cell import Cell
from rksp.grid.group import Options
from rksp.recipe import Recipe
from rksp.report.runs import summary

SMALL = [
    "--set",
    "n_layer=4",
    "--set",
    "n_embd=256",
    "--set",
    "n_head=4",
    "--max-steps",
    "2000",
    "--evidence",
    "config",
]


def early_edge(path):
    """A history in which the edge comes thirty times earlier than the shipped model thinks."""
    return write_table(path, [rate / 30 for rate in RATES], LOSSES)


def refused(done) -> str:
    """Check exit code 2 and nothing on stdout; return the one sentence on stderr."""
    assert (done.returncode, done.stdout) == (2, "")
    (sentence,) = done.stderr.splitlines()
    return sentence


def scored(*arguments: str) -> dict:
    done = run_rksp("score", "gpt2", "--lr", "1e-3", *SMALL, "--format", "json", *arguments)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def risk(report: dict) -> dict:
    return report["seeds"][0]["risk"]


def test_runs_prints_labels_ladders_and_the_scorecard(tmp_path):
    path = write_table(tmp_path / "runs.csv")
    done = run_rksp("why", str(path), "--target", "gpt2")
    assert done.returncode == 0
    for said in (
        "5 runs (1 sweep): 3 healthy, 1 undertrained, 1 failed",
        "edge between 0.01 and 0.03, best rate 3e-3; rksp predicted edge",
        "unknown of some runs, so assumed: batch_size, optimizer",
        "How well rksp, which saw none of these runs, would have predicted them",
    ):
        assert said in " ".join(done.stdout.split())
    document = json.loads(run_rksp("why", str(path), "--target", "gpt2", "--format", "json").stdout)
    assert document["kind"] == "why" and document["verdict"] == "read"
    assert document["scorecard"]["runs"] == 5 and document["scorecard"]["failed"] == 1
    (ladder,) = document["history"]["ladders"]
    assert ladder["edge"] == pytest.approx([0.01, 0.03])


def test_runs_without_a_target_are_labelled_and_not_judged(tmp_path):
    done = run_rksp("why", str(write_table(tmp_path / "runs.csv")))
    assert "5 runs (1 sweep)" in done.stdout and "give --target" in done.stdout
    assert "would have predicted" not in done.stdout


def test_a_stored_report_of_runs_is_shown_again(tmp_path):
    path = write_table(tmp_path / "runs.csv")
    stored = tmp_path / "runs.json"
    made = run_rksp("why", str(path), "--target", "gpt2", "--format", "json")
    stored.write_text(made.stdout)
    assert "5 runs (1 sweep)" in run_rksp("report", str(stored)).stdout


def test_a_score_learns_from_runs_and_says_so(tmp_path):
    path = early_edge(tmp_path / "runs.csv")
    before, after = scored(), scored("--runs", str(path))
    for rate in ("likely_edge", "do_not_exceed", "start_here"):
        assert risk(after)[rate] < risk(before)[rate]
    assert risk(after)["probability_failed"] > risk(before)["probability_failed"]
    learned = risk(after)["learned"]
    assert (learned["runs"], learned["ladders"], learned["shares"]) == (5, 1, "ladder")
    assert risk(before)["learned"] is None and before["own_runs"] is None
    labels = [run["label"] for run in after["own_runs"]["ladders"][0]["runs"]]
    assert labels[-1] == "failed"
    assert f"--runs {path}" in after["provenance"]["command"]


def test_every_page_says_what_was_learned(tmp_path):
    path = early_edge(tmp_path / "runs.csv")
    files = [tmp_path / name for name in ("page.html", "page.md", "page.txt")]
    outputs = [part for file in files for part in ("-o", str(file))]
    done = run_rksp("score", "gpt2", "--lr", "1e-3", *SMALL, "--runs", str(path), *outputs)
    assert "your 5 runs" in done.stdout
    html, markdown, text = (file.read_text() for file in files)
    assert "our 5 runs (1 sweep) lower the edge" in html
    assert html.count("past bad") >= 2 and html.count("past good") >= 2
    assert "our 5 runs (1 sweep) lower the edge" in markdown
    assert "your 5 runs" in text
    full = run_rksp("score", "gpt2", "--lr", "1e-3", *SMALL, "--runs", str(path), "-v").stdout
    assert "Your own runs" in full and "edge between" in " ".join(full.split())


def test_a_grid_learns_from_runs(tmp_path):
    path = early_edge(tmp_path / "runs.csv")
    common = ["grid", "gpt2", "lr=1e-3,3e-3", *SMALL, "--format", "json", "--exit-zero"]
    said = {}
    for name, more in (("before", []), ("after", ["--runs", str(path)])):
        done = run_rksp(*common, "-o", str(tmp_path / f"{name}.db"), *more)
        cells = json.loads(done.stdout)["cells"]
        said[name] = {cell["lr"]: cell["probability_failed"] for cell in cells}
    assert all(said["after"][rate] > said["before"][rate] for rate in said["before"])


def test_a_resumed_grid_sees_other_runs(tmp_path):
    path, cell = early_edge(tmp_path / "runs.csv"), Cell(target="gpt2", recipe=Recipe())
    before = cell.key(Options(runs=(path,)))
    assert cell.key(Options()) != before == cell.key(Options(runs=(path,)))
    write_table(path)
    assert cell.key(Options(runs=(path,))) != before


def test_a_rate_is_carried_with_runs(tmp_path):
    """A team whose small model fails early: less of the distance is put down to the size."""
    path = early_edge(tmp_path / "runs.csv")
    common = ["score", "llama", "--tuned", "gpt2=1e-3", "--evidence", "config"]
    before = json.loads(run_rksp(*common, "--format", "json").stdout)
    after = json.loads(run_rksp(*common, "--format", "json", "--runs", str(path)).stdout)
    assert after["own_runs"]["ladders"] and before["own_runs"] is None
    assert after["carried"]["edge_shift"] != before["carried"]["edge_shift"]


def test_python_learns_from_runs(tmp_path):
    path = early_edge(tmp_path / "runs.csv")
    recipe = {"max_steps": 2000}
    before = rksp.score("gpt2", recipe=recipe, lr=1e-3, evidence="config")
    after = rksp.score("gpt2", recipe=recipe, lr=1e-3, evidence="config", runs=path)
    assert after.likely_edge < before.likely_edge
    assert "your 5 runs" in repr(after) and "your 5 runs" not in repr(before)
    assert after.own_runs.ladders[0].runs[0].learning_rate == pytest.approx(1e-5)


def test_what_cannot_be_read_is_one_sentence(tmp_path):
    missing = "there is no such file or folder"
    assert missing in refused(run_rksp("why", str(tmp_path / "nothing")))
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    assert "The run cannot be used" in refused(run_rksp("why", str(tmp_path / "a.csv")))
    done = run_rksp("score", "gpt2", "--lr", "1e-3", *SMALL, "--runs", str(tmp_path / "no.csv"))
    assert missing in refused(done)


def test_a_doubtful_history_changes_no_answer(tmp_path):
    """Ladders in disorder: the losses of the rates were exchanged."""
    exchanged = (3.6, 5.2, 3.7, 5.1, 4.1)
    for layers in (4, 5, 6):
        write_table(tmp_path / f"{layers}.csv", RATES, exchanged, layers=layers)
    before = scored()
    done = run_rksp(
        "score", "gpt2", "--lr", "1e-3", *SMALL, "--format", "json", "--runs", str(tmp_path)
    )
    assert "nothing is learned from the runs" in done.stderr
    after = json.loads(done.stdout)
    assert risk(after)["likely_edge"] == risk(before)["likely_edge"]
    assert "do not follow the rate" in after["own_runs"]["doubt"]


def tuning_table(path, peft: str):
    """Runs of the target, of which those with adapters fail at a thirtieth of the usual rates."""
    rows = [f"{rate / 30},{loss},{peft}" for rate, loss in zip(RATES, LOSSES, strict=True)]
    path.write_text("\n".join(["learning_rate,loss,peft", *rows]) + "\n")
    return path


def tuned(*arguments: str) -> tuple[dict, str]:
    given = ["score", "gpt2", "--lr", "2e-4", "--peft", "lora", "--evidence", "config"]
    done = run_rksp(*given, "--format", "json", *arguments)
    assert done.stdout, done.stderr
    return json.loads(done.stdout), done.stderr


def test_runs_of_fine_tuning_move_its_model(tmp_path):
    path = tuning_table(tmp_path / "runs.csv", "lora")
    before, _ = tuned()
    after, said = tuned("--runs", str(path))
    assert "nothing is learned" not in said
    moved = risk(after)["learned"]
    assert moved["runs"] == 5 and moved["ladders"] == 1
    shift = math.log10(risk(after)["likely_edge"] / risk(before)["likely_edge"])
    assert shift == pytest.approx(moved["edge_shift"], abs=0.01) and shift < -0.1
    assert all(ladder["is_of_tuning"] for ladder in after["own_runs"]["ladders"])
    of_adapters = ["score", "gpt2", "--lr", "2e-4", "--peft", "lora", "--evidence", "config"]
    page = run_rksp(*of_adapters, "--runs", str(path)).stdout
    assert re.search(r"your \d+ runs", page)


def test_runs_from_random_weights_say_nothing_of_trained_ones(tmp_path):
    path = tuning_table(tmp_path / "runs.csv", "none")
    before, _ = tuned()
    after, said = tuned("--runs", str(path))
    assert "they start from random weights, the target from trained ones" in said
    assert risk(after)["likely_edge"] == risk(before)["likely_edge"]
    assert risk(after)["learned"] is None


def test_no_rate_is_said_where_a_score_cannot_tell(tmp_path):
    path = early_edge(tmp_path / "runs.csv")
    told = json.loads(run_rksp("why", str(path), "--target", "gpt2", "--format", "json").stdout)
    more = ["--target", "gpt2", "--optimizer", "lamb"]
    untold = json.loads(run_rksp("why", str(path), *more, "--format", "json").stdout)
    assert told["history"]["ladders"][0]["likely_edge"] and told["scorecard"]
    (ladder,) = untold["history"]["ladders"]
    assert "lamb" in ladder["untold"] and ladder["likely_edge"] is None
    assert all(run["said"] is None for run in ladder["runs"]) and untold["scorecard"] is None
    assert "rksp cannot tell" in run_rksp("why", str(path), *more).stdout.replace("\n", " ")


def test_the_summary_counts():
    from rksp.documents.own_runs import HistoryReport

    assert summary(HistoryReport(ladders=[], left_out=[], ignored=[])) == "0 runs (0 sweeps): "
