"""`record=` of the callbacks: a finished run is a line from which `--runs` learns."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from rksp.ground.errors import InputError
from rksp.own_runs.history import read_history
from rksp.own_runs.observed import Tuned
from rksp.own_runs.record import read_record
from rksp.recipe import Recipe
from rksp.watch.training.callbacks.plain import LoopWatch


def small_gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=64))


def trained(record: Path, rate: float, steps: int = 12, **recipe: object) -> None:
    model = small_gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95))
    watch = LoopWatch(model, optimizer, monitors=["loss"], record=record, recipe=recipe)
    tokens = torch.randint(64, (2, 16))
    for _ in range(steps):
        watch.begin_step()
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        watch.after_backward(loss)
        optimizer.step()
        watch.after_update()
        optimizer.zero_grad()
    watch.close()
    watch.close()  # twice is once


def test_runs_of_a_loop_become_a_ladder(tmp_path):
    record = tmp_path / "runs.jsonl"
    for rate in (1e-4, 1e-2):
        trained(record, rate, batch_size=2, sequence_length=16)
    rows = read_record(record)
    assert [row["learning_rate"] for row in rows] == [1e-4, 1e-2]
    assert {row["state"] for row in rows} == {"finished"}
    (ladder,) = read_history([record], None, Recipe()).ladders
    inputs = ladder.observed.inputs
    assert (inputs.width, inputs.depth, inputs.steps, inputs.optimizer) == (16, 2, 12, "adamw")
    assert inputs.beta2 == 0.95 and inputs.batch_tokens == 32


def test_a_run_from_trained_weights_teaches_nothing_of_random_ones(tmp_path):
    for record, first in (("trained.jsonl", 2.0), ("random.jsonl", math.log(64))):
        for rate in (1e-4, 1e-3):
            optimizer = torch.optim.AdamW((model := small_gpt2()).parameters(), lr=rate)
            watch = LoopWatch(model, optimizer, monitors=["loss"], record=tmp_path / record)
            for step in range(10):
                watch.begin_step()
                watch.after_backward(first - 0.1 * step)
            watch.close()
        history = read_history([tmp_path / record], None, Recipe())
        assert bool(history.seen) == (first != 2.0)
        assert isinstance(history.ladders[0].observed, Tuned) == (first == 2.0)


def test_a_run_that_ends_before_its_plan_is_unfinished(tmp_path):
    trained(tmp_path / "runs.jsonl", 1e-3, max_steps=50)
    (row,) = read_record(tmp_path / "runs.jsonl")
    assert row["state"] == "unfinished" and row["max_steps"] == 50


def test_a_divergence_is_recorded_as_one(tmp_path):
    model = small_gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    watch = LoopWatch(model, optimizer, monitors=["loss"], record=tmp_path / "runs.jsonl")
    for value in (3.0, math.nan):
        watch.begin_step()
        watch.after_backward(value)
    watch.close()
    (row,) = read_record(tmp_path / "runs.jsonl")
    assert row["state"] == "diverged" and row["final_loss"] == "nan"


def test_a_record_that_cannot_be_written_is_refused_before_the_run(tmp_path):
    model = small_gpt2()
    with pytest.raises(InputError, match="record"):
        LoopWatch(model, None, monitors=["loss"], record=tmp_path / "no" / "runs.jsonl")
    with pytest.raises(InputError, match="warmup_step"):
        LoopWatch(
            model,
            None,
            monitors=["loss"],
            record=tmp_path / "runs.jsonl",
            recipe={"warmup_step": 3},
        )


def test_a_trainer_records_its_arguments(tmp_path):
    pytest.importorskip("accelerate")
    from transformers import Trainer, TrainingArguments

    from rksp.watch.training.callbacks.hugging_face import WatchCallback

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
    callback = WatchCallback(monitors=["loss"], record=record)
    Trainer(small_gpt2(), arguments, train_dataset=data, callbacks=[callback]).train()
    (row,) = read_record(record)
    assert row["learning_rate"] == pytest.approx(1e-3)
    assert (row["batch_size"], row["warmup_steps"], row["max_steps"]) == (2, 2, 6)
    assert (row["schedule"], row["rksp.width"], row["state"]) == ("cosine", 16, "finished")
