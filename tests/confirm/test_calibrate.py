"""`rksp confirm --sweep`: a ladder of real runs, stored as it goes, that the answer then knows."""

from __future__ import annotations

import json
import math
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from support.commands import run_rksp
from torch.distributed import TCPStore
from transformers import GPT2Config, GPT2LMHeadModel

from rksp.assessment.fine_tuning import fine_tuning_inputs
from rksp.classifiers.fine_tuning.model import load_fine_tuning_model
from rksp.confirm import calibrate as module
from rksp.confirm.calibrate import Ranks, calibrate, make_ladder
from rksp.ground.errors import InputError
from rksp.models.resolve import resolve, resolve_tiny
from rksp.own_runs.history import read_history
from rksp.own_runs.observed import Observed, Tuned
from rksp.own_runs.outcome import OutcomePolicy
from rksp.own_runs.record import append_row, read_record, row_of
from rksp.recipe import Recipe

RECIPE = Recipe(batch_size=2, sequence_length=16, max_steps=4)


def ladder(**more):
    return make_ladder(resolve_tiny("gpt2"), RECIPE, steps=4, **more)


def losses(monkeypatch, edge: float = 1e-2, best: float = 1e-3) -> list[float]:
    """Replace the training by a law, and return the rates that are trained."""
    trained: list[float] = []

    def law(made, rate, data, progress):
        trained.append(rate)
        loss = 3 + 0.2 * math.log10(rate / best) ** 2 + (rate > edge)
        recipe = made.recipe.model_copy(update={"learning_rate": rate})
        return row_of(
            f"{rate}",
            recipe,
            made.shape,
            final_loss=loss,
            state="finished",
            seed=made.seed,
        ) | {"ladder": made.key}

    monkeypatch.setattr(module, "_trained", law)
    return trained


def test_a_ladder_is_trained_and_read_back_as_one(tmp_path):
    record = tmp_path / "runs.jsonl"
    rows = calibrate(ladder(), record)
    assert len(rows) >= 8 and len(read_record(record)) == len(rows)
    found = read_history([record], None, Recipe())
    (one,) = found.ladders
    assert len(one.runs) == len(rows)
    shape = one.runs[0].shape
    assert (shape.family, shape.width, shape.depth) == ("gpt2", 64, 4)
    assert one.recipe.batch_size == 2 and one.recipe.max_steps == 4


def test_what_is_stored_is_not_trained_again(tmp_path, monkeypatch):
    record, trained = tmp_path / "runs.jsonl", losses(monkeypatch)
    whole = calibrate(ladder(), record)
    lines = record.read_text().splitlines()
    record.write_text("\n".join(lines[:3]) + '\n{"name": "gpt2 0.0')  # killed within a line
    first = len(trained)
    assert calibrate(ladder(), record) == whole
    assert sorted(trained[first:]) == sorted(trained[3:first])
    again = len(trained)
    calibrate(ladder(), record)
    assert len(trained) == again
    calibrate(ladder(seed=1), record)  # other runs: the file keeps both ladders
    assert len(trained) == 2 * again - first + 3 or len(trained) > again


@pytest.mark.parametrize("edge", [1e-4, 1.0])
def test_a_ladder_grows_to_where_its_edge_lies(edge, tmp_path, monkeypatch):
    losses(monkeypatch, edge=edge, best=edge / 10)
    rows = calibrate(ladder(), tmp_path / "runs.jsonl")
    rates = [float(row["learning_rate"]) for row in rows]
    assert rates == sorted(rates) and 8 < len(rates) <= 12
    first = ladder().first_rates()
    assert min(rates) < min(first) if edge < 1e-3 else max(rates) > max(first)


def test_a_ladder_of_fine_tuning_needs_the_trained_weights():
    with pytest.raises(InputError, match="give the folder of a checkpoint"):
        make_ladder(resolve_tiny("gpt2"), RECIPE.model_copy(update={"peft": "lora"}))


@pytest.mark.parametrize("peft", ["none", "lora"])
def test_a_ladder_of_a_checkpoint_informs_the_model_of_fine_tuning(peft, tmp_path):
    if peft == "lora":
        pytest.importorskip("peft")
    torch.manual_seed(0)
    sizes = {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 256, "n_positions": 32}
    config = GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "weights")
    source = resolve(str(tmp_path / "weights"))
    recipe = RECIPE.model_copy(update={"peft": peft, "max_grad_norm": None})
    made = make_ladder(source, recipe, steps=2)
    record = tmp_path / "runs.jsonl"
    (rate, *_) = made.first_rates()
    said = load_fine_tuning_model().predict(made.inputs)
    assert rate == pytest.approx(said.start_here / 30, rel=0.01)
    rows = calibrate(made, record)
    assert {row["rksp.is_of_tuning"] for row in rows} == {True}
    found = read_history([record], source, recipe)
    (one,) = found.ladders
    asked = fine_tuning_inputs(source.config, source.task, None, recipe)
    assert asked.parameters == made.inputs.parameters  # or the ladder would be another model's
    assert isinstance(one.observed, Tuned) or "do not change" in one.unused
    assert one.observed is None or one.observed.inputs == made.inputs
    assert not found.used(Observed)


def test_processes_of_a_launcher_share_the_runs(tmp_path, monkeypatch):
    """Two threads stand for two processes: they meet in the store alone."""
    trained = losses(monkeypatch)
    alone = calibrate(ladder(), tmp_path / "alone.jsonl")
    count, record = len(trained), tmp_path / "runs.jsonl"
    trained.clear()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def rank(number: int):
        store = TCPStore("127.0.0.1", port, 2, is_master=number == 0)
        return calibrate(ladder(), record, ranks=Ranks(rank=number, count=2, _store=store))

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(rank, range(2))
    assert first == second and [row["learning_rate"] for row in first] == [
        row["learning_rate"] for row in alone
    ]
    assert len(trained) == count == len(read_record(record)) == len(set(trained))


@pytest.mark.slow
def test_torchrun_trains_one_ladder_and_answers_once(tmp_path):
    record = tmp_path / "runs.jsonl"
    small = ["--shrink", "--steps", "2", "--batch-size", "2", "--sequence-length", "16"]
    small += ["--format", "json"]
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [
            sys.executable,
            *launch,
            "-m",
            "rksp",
            "confirm",
            "gpt2",
            "--sweep",
            *small,
            "--record",
            record,
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["own_runs"]["ladders"]  # one document, of one process
    rates = [row["learning_rate"] for row in read_record(record)]
    assert len(rates) == len(set(rates)) >= 8


def test_a_record_survives_a_line_that_was_cut(tmp_path):
    path = tmp_path / "runs.jsonl"
    assert read_record(path) == []
    path.write_text('{"a": 1}\n{"b": ')
    append_row(path, {"c": 3})
    assert read_record(path) == [{"a": 1}, {"c": 3}]
    path.write_text("no runs at all")
    with pytest.raises(InputError, match="no file of runs"):
        read_record(path)


def test_a_damaged_shape_leaves_its_run_out(tmp_path):
    made = ladder()
    rows = [
        row_of(
            f"{n}",
            RECIPE.model_copy(update={"learning_rate": rate}),
            made.shape,
            final_loss=3.0 + n,
            state="finished",
            seed=0,
        )
        for n, rate in enumerate((1e-3, 1e-2))
    ]
    path = tmp_path / "runs.jsonl"
    for row in (*rows, rows[0] | {"name": "odd", "rksp.width": "wide"}):
        append_row(path, row)
    found = read_history([path], resolve("gpt2", counts=False), Recipe())
    assert [one.name for one in found.left_out] == ["odd"]
    assert sum(len(ladder.runs) for ladder in found.ladders) == 2


def test_the_command_trains_and_answers(tmp_path, monkeypatch):
    """The law says that this model fails ten times earlier than the shipped model thinks."""
    losses(monkeypatch, edge=1e-3, best=2e-4)
    record = tmp_path / "runs.jsonl"
    small = [
        "--shrink",
        "--steps",
        "4",
        "--batch-size",
        "2",
        "--sequence-length",
        "16",
        "--format",
        "json",
    ]
    done = run_rksp("confirm", "gpt2", "--sweep", *small, "--record", str(record))
    assert done.returncode == 0, done.stderr
    assert "8 runs of 4 steps (2 × 16 tokens) of gpt2, width 64, depth 4" in done.stderr
    report = json.loads(done.stdout)
    learned = report["seeds"][0]["risk"]["learned"]
    assert learned["ladders"] == 1 and learned["edge_shift"] < -0.1
    plain = json.loads(
        run_rksp(
            *("score", "gpt2", "--batch-size", "2", "--sequence-length", "16"),
            *("--evidence", "config", "--format", "json", "--runs", str(record)),
        ).stdout
    )
    assert plain["seeds"][0]["risk"]["likely_edge"] == report["seeds"][0]["risk"]["likely_edge"]


def test_where_no_model_answers_the_ladder_does(tmp_path, monkeypatch):
    losses(monkeypatch, edge=1e-2, best=1e-3)
    small = ["--shrink", "--steps", "4", "--batch-size", "2", "--sequence-length", "16"]
    given = ["confirm", "gpt2", "--sweep", *small, "--record", str(tmp_path / "runs.jsonl")]
    untold = [*given, "--optimizer", "adam", "--weight-decay", "0.1"]  # coupled: no labelled run
    page = run_rksp(*untold).stdout
    summary = json.loads(run_rksp(*untold, "--format", "brief").stdout)
    rows = read_record(tmp_path / "runs.jsonl")
    rates = sorted(row["learning_rate"] for row in rows)
    trained = max(rate for rate in rates if rate <= 1e-2)
    assert page.startswith("CANNOT TELL") and page.count("failed") >= 1
    assert all(f"{rate:.2g}"[:3] in page or f"{rate:g}" in page for rate in rates)
    assert summary["do_not_exceed"] == pytest.approx(trained / 2, rel=0.01)
    assert summary["start_here"] <= summary["do_not_exceed"] and "first failure" in summary["why"]
    assert summary["next_command"].startswith("rksp confirm gpt2 --optimizer adam --lr ")
    told = run_rksp(*given).stdout  # of this one the model tells: its rates are the only ones
    assert "best at" in told and "start at" not in told


def test_a_task_of_few_classes_has_a_smaller_margin(tmp_path):
    """Two classes have 0.69 nats in all: runs that end above that have failed."""
    policy = OutcomePolicy()
    assert policy.of_labels(math.log(2)).margin == pytest.approx(math.log(2) / 8)
    assert policy.of_labels(5.0) == policy.of_labels(None) == policy
    shape = replace(ladder().shape, entropy=math.log(2))
    for rate, loss in ((1e-4, 0.55), (1e-3, 0.5), (1e-2, 0.71)):
        fields = RECIPE.model_copy(update={"learning_rate": rate})
        row = row_of(f"{rate}", fields, shape, final_loss=loss, state="finished", seed=0)
        append_row(tmp_path / "runs.jsonl", row)
    found = read_history([tmp_path / "runs.jsonl"], None, Recipe())
    assert [one.label for one in found.ladders[0].labels] == ["healthy", "healthy", "failed"]


def test_confirm_appends_its_runs_to_a_record(tmp_path):
    record, kept = tmp_path / "runs.jsonl", tmp_path / "kept"
    recipe = ["--lr", "1e-3", "--batch-size", "2", "--sequence-length", "16"]
    given = ["confirm", "gpt2", "--shrink", *recipe, "--steps", "4", "--seeds", "1", "--exit-zero"]
    given += ["--evidence", "config", "--monitor", "loss"]
    for arm in ("baseline", "rate=0.1", "clip=0.5", "warmup=2"):
        given += ["--arm", arm]
    done = run_rksp(*given, "--record", str(record), "--keep", str(kept))
    assert done.returncode == 0, done.stderr
    rows = read_record(record)  # an arm's run has the recipe of its arm
    assert [row["learning_rate"] for row in rows] == pytest.approx([1e-3, 1e-4, 1e-3])
    assert [row["warmup_steps"] for row in rows] == [0, 0, 2]
    run_rksp(*given, "--record", str(record), "--keep", str(kept))  # nothing was trained again
    assert len(read_record(record)) == 3
    refused = run_rksp(*given, "--record", str(record), "--fault", "bitflip:step=1")
    assert refused.returncode == 2 and "leave out --record" in refused.stderr
