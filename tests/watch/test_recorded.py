"""`record=` of a watch: a finished run is a line from which `--runs` learns."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import rksp
from rksp.ground.errors import InputError
from rksp.own_runs.history import read_history
from rksp.own_runs.observed import Observed, Tuned
from rksp.own_runs.record import read_record
from rksp.recipe import Recipe
from rksp.watch.training.recorded import Recorded


def small_gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=64))


def trained(record: Path, rate: float, steps: int = 12, planned: int | None = None) -> None:
    model = small_gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95))
    # A watch looks for the schedule among the objects of the process.
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, planned) if planned else None
    tokens = torch.randint(64, (2, 16))
    log = record.with_suffix(".log")
    with rksp.watch(model, optimizer, log=log, monitors=["loss"], record=record):
        for _ in range(steps):
            model(tokens, labels=tokens).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert (schedule is None) == (planned is None)


def test_runs_of_a_loop_become_a_ladder(tmp_path):
    record = tmp_path / "runs.jsonl"
    for rate in (1e-4, 1e-2):
        trained(record, rate)
    rows = read_record(record)
    assert [row["learning_rate"] for row in rows] == [1e-4, 1e-2]
    assert {row["state"] for row in rows} == {"finished"}
    (ladder,) = read_history([record], None, Recipe()).ladders
    inputs = ladder.observed.inputs
    assert (inputs.width, inputs.depth, inputs.steps, inputs.optimizer) == (16, 2, 12, "adamw")
    assert inputs.beta2 == 0.95 and inputs.batch_tokens == 32


def noted(path: Path, rate: float, losses: list[float]) -> None:
    model = small_gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    recorded = Recorded(path, model, optimizer)
    for loss in losses:
        recorded.note(loss)
    recorded.write()
    recorded.write()  # twice is once


def test_a_run_from_trained_weights_teaches_nothing_of_random_ones(tmp_path):
    for record, first in (("trained.jsonl", 2.0), ("random.jsonl", math.log(64))):
        for rate in (1e-4, 1e-3):
            noted(tmp_path / record, rate, [first - 0.1 * step for step in range(10)])
        history = read_history([tmp_path / record], None, Recipe())
        assert bool(history.used(Observed)) == (first != 2.0)
        assert isinstance(history.ladders[0].observed, Tuned) == (first == 2.0)


def test_a_run_that_ends_before_its_plan_is_unfinished(tmp_path):
    trained(tmp_path / "runs.jsonl", 1e-3, planned=50)
    (row,) = read_record(tmp_path / "runs.jsonl")
    assert row["state"] == "unfinished" and row["max_steps"] == 50


def test_a_divergence_is_recorded_as_one(tmp_path):
    noted(tmp_path / "runs.jsonl", 1e-3, [3.0, math.nan])
    (row,) = read_record(tmp_path / "runs.jsonl")
    assert row["state"] == "diverged" and row["final_loss"] == "nan"


def test_a_record_that_cannot_be_written_is_refused_before_the_run(tmp_path):
    with pytest.raises(InputError, match="record"):
        rksp.watch(log=tmp_path / "watch.jsonl", record=tmp_path / "no" / "runs.jsonl")
    with pytest.raises(InputError, match="warmup_step"):
        Recorded(tmp_path / "runs.jsonl", small_gpt2(), None, {"warmup_step": 3})


def test_a_trainer_records_its_arguments(tmp_path):
    pytest.importorskip("accelerate")
    from transformers import Trainer, TrainingArguments

    record = tmp_path / "runs.jsonl"
    tokens = torch.randint(64, (16,))
    data = [{"input_ids": tokens, "labels": tokens}] * 8
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "out"),
        max_steps=6,
        learning_rate=1e-3,
        warmup_steps=2,
        per_device_train_batch_size=2,
        lr_scheduler_type="cosine",
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    callback = rksp.watch.Callback(monitors=["loss"], record=record, log=tmp_path / "w.jsonl")
    Trainer(small_gpt2(), arguments, train_dataset=data, callbacks=[callback]).train()
    (row,) = read_record(record)
    assert row["learning_rate"] == pytest.approx(1e-3)
    assert (row["batch_size"], row["warmup_steps"], row["max_steps"]) == (2, 2, 6)
    assert (row["schedule"], row["rksp.width"], row["state"]) == ("cosine", 16, "finished")
