"""The monitors inside other people's trainers, in real trainings of two epochs."""

from __future__ import annotations

import math
from pathlib import Path

import lightning
import pytest
import torch
from accelerate import Accelerator
from support.watching import read_log
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import rksp
from rksp.ground.errors import InputError
from rksp.watch.attach.door import Watched
from rksp.watch.attach.stepping import unscaled
from rksp.watch.monitors.rules import replay
from rksp.watch.monitors.sinks import JsonLines
from rksp.watch.registry import MONITORS, ON_REQUEST

pytestmark = [
    # Lightning's own imports and advice; nothing of ours.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
EPOCHS, ROWS, BATCH = 2, 16, 4
STEPS = EPOCHS * ROWS // BATCH


class Tokens(Dataset):
    """Random sequences; `bad` is the row whose presence makes the loss NaN."""

    def __init__(self, length: int = 12) -> None:
        generator = torch.Generator().manual_seed(3)
        self.rows = torch.randint(0, 31, (ROWS, length), generator=generator)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def gpt2(seed: int = 0) -> GPT2LMHeadModel:
    torch.manual_seed(seed)
    config = GPT2Config(
        n_embd=16,
        n_layer=2,
        n_head=2,
        vocab_size=32,
        n_positions=16,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config)  # dropout 0.1, and a cache of keys, as is their default


def _hugging_face(path: Path, model: nn.Module, **options: object) -> Trainer:
    arguments = {
        "num_train_epochs": EPOCHS,
        "per_device_train_batch_size": BATCH,
        "learning_rate": 1e-2,
        "max_grad_norm": 0.05,
        "use_cpu": True,
        "report_to": [],
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "seed": 5,
        **options,
    }
    return Trainer(
        model=model,
        args=TrainingArguments(output_dir=str(path), **arguments),
        train_dataset=Tokens(),
    )


def _poisoned(model: GPT2LMHeadModel, call: int) -> GPT2LMHeadModel:
    """The second block's feed-forward returns NaN in one forward pass."""
    calls = {"count": -1}

    def after(module: nn.Module, args: tuple, output: torch.Tensor) -> torch.Tensor:
        calls["count"] += 1
        return output * math.nan if calls["count"] == call else output

    model.transformer.h[1].mlp.c_fc.register_forward_hook(after)
    return model


def _weights(model: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def _same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def _values(watch, quantity: str) -> list[float]:
    return [r.value for r in watch.readings if r.quantity == quantity and not r.layer]


@pytest.mark.parametrize("accumulation", [1, 2])
def test_hugging_face_two_epochs_bitwise_equal(tmp_path: Path, accumulation: int) -> None:
    options = {"gradient_accumulation_steps": accumulation, "logging_strategy": "steps"}
    plain = _hugging_face(tmp_path, gpt2(), logging_steps=1, **options)
    plain.train()
    trainer = _hugging_face(tmp_path, gpt2(), logging_steps=1, **options)
    log = tmp_path / "monitor.jsonl"
    callback = rksp.watch.Callback(sinks=[JsonLines(log)], log=tmp_path / "watch.jsonl")
    trainer.add_callback(callback)
    trainer.train()

    assert _same(_weights(plain.model), _weights(trainer.model))
    assert not _same(_weights(plain.model), _weights(gpt2()))  # it did train
    watch = callback.watch
    assert set(watch.seconds) == set(MONITORS) - ON_REQUEST - {
        "silent-corruption"
    }  # of several ranks
    assert not [reason for reason in watch.silent.values() if "switched off" in reason]
    history = [entry for entry in trainer.state.log_history if "grad_norm" in entry]
    assert len(history) == STEPS // accumulation
    norms = [entry["grad_norm"] for entry in history]
    assert min(norms) > 0.05  # clipping was at work, and the monitor saw none of it
    assert _values(watch, "gradient_norm") == pytest.approx(norms, rel=1e-5)
    losses = [entry["loss"] for entry in history]
    assert _values(watch, "loss") == pytest.approx(losses, abs=2e-4)  # rounded in their log
    assert read_log(log) == (watch.readings, watch.alarms)
    assert replay(watch.readings, watch.rules) == watch.alarms
    assert not any(module._forward_hooks for module in trainer.model.modules())


def test_hugging_face_reports_a_nan_loss_before_the_weights_are_touched(tmp_path: Path) -> None:
    options = {"lr_scheduler_type": "constant", "max_steps": 5}
    trainer = _hugging_face(tmp_path, _poisoned(gpt2(), 5), **{**options, "max_steps": 8})
    callback = rksp.watch.Callback(on_alarm="stop", memory=0.0, log=tmp_path / "watch.jsonl")
    trainer.add_callback(callback)
    trainer.train()
    first = callback.watch.alarms[0]
    assert (first.step, first.quantity, first.severity) == (5, "non_finite_loss", "critical")
    assert first.layer == "transformer.h.1.mlp.c_fc"
    assert trainer.state.global_step == 6  # the trainer counts the step whose update was empty
    untouched = _hugging_face(tmp_path, gpt2(), **options)
    untouched.train()
    assert _same(_weights(trainer.model), _weights(untouched.model))


def test_hugging_face_only_watches_unless_told_to_stop(tmp_path: Path) -> None:
    trainer = _hugging_face(tmp_path, _poisoned(gpt2(), 5))
    callback = rksp.watch.Callback(
        monitors=["non-finite"], memory=0.0, log=tmp_path / "watch.jsonl"
    )
    trainer.add_callback(callback)
    trainer.train()
    assert trainer.state.global_step == STEPS
    assert [alarm.step for alarm in callback.watch.alarms if "loss" in alarm.quantity] == [5]
    assert not all(torch.isfinite(w).all() for w in _weights(trainer.model))  # as without us


def test_a_watch_that_saw_nothing_says_so(tmp_path: Path) -> None:
    callback = rksp.watch.Callback(log=tmp_path / "watch.jsonl")
    with pytest.raises(InputError, match="Nothing has trained"):
        callback.watch  # noqa: B018
    assert not callback.should_stop and not callback.alarms


class _Module(lightning.LightningModule):
    def __init__(self, model: GPT2LMHeadModel) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: dict, index: int) -> torch.Tensor:
        return self.model(**batch).loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def _lightning(path: Path, model: nn.Module, callbacks=(), **options: object) -> lightning.Trainer:
    torch.manual_seed(7)
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        gradient_clip_val=0.05,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=path,
        callbacks=list(callbacks),
        **options,
    )
    trainer.fit(_Module(model), DataLoader(Tokens(), batch_size=BATCH))
    return trainer


@pytest.mark.parametrize("accumulation", [1, 2])
def test_lightning_two_epochs_bitwise_equal(tmp_path: Path, accumulation: int) -> None:
    plain, watched = gpt2(), gpt2()
    _lightning(tmp_path, plain, accumulate_grad_batches=accumulation)
    callback = rksp.watch.LightningCallback(log=tmp_path / "watch.jsonl")
    trainer = _lightning(tmp_path, watched, [callback], accumulate_grad_batches=accumulation)
    assert _same(_weights(plain), _weights(watched))
    assert not _same(_weights(plain), _weights(gpt2()))
    watch = callback.watch
    assert set(watch.seconds) == set(MONITORS) - ON_REQUEST - {
        "silent-corruption"
    }  # of several ranks
    assert not [reason for reason in watch.silent.values() if "switched off" in reason]
    steps = [r.step for r in watch.readings if r.quantity == "loss"]
    assert steps == list(range(STEPS // accumulation)) and trainer.global_step == len(steps)
    assert min(_values(watch, "gradient_norm")) > 0.05  # not the clipped ones
    assert {r.quantity for r in watch.readings} >= {"update_rms", "near_unit_mass", "output_log_z"}


def test_lightning_reports_a_nan_loss_before_the_weights_are_touched(tmp_path: Path) -> None:
    bad, good = _poisoned(gpt2(), 5), gpt2()
    callback = rksp.watch.LightningCallback(
        on_alarm="stop", memory=0.0, log=tmp_path / "watch.jsonl"
    )
    trainer = _lightning(tmp_path, bad, [callback])
    first = callback.watch.alarms[0]
    assert (first.step, first.quantity, first.layer) == (
        5, "non_finite_loss", "transformer.h.1.mlp.c_fc",
    )  # fmt: skip
    assert trainer.global_step == 6
    _lightning(tmp_path, good, max_steps=5)
    assert _same(_weights(bad), _weights(good))


def test_a_lightning_module_that_optimizes_by_hand_is_followed(tmp_path: Path) -> None:
    class ByHand(_Module):
        def __init__(self, model: GPT2LMHeadModel) -> None:
            super().__init__(model)
            self.automatic_optimization = False

        def training_step(self, batch: dict, index: int) -> None:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(self.model(**batch).loss)
            optimizer.step()

    callback = rksp.watch.LightningCallback(monitors=["loss"], log=tmp_path / "watch.jsonl")
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
        callbacks=[callback],
    )  # fmt: skip
    trainer.fit(ByHand(gpt2()), DataLoader(Tokens(), batch_size=BATCH))
    assert len(_values(callback.watch, "loss")) == ROWS // BATCH


def _by_hand(model: GPT2LMHeadModel, optimizer) -> None:
    torch.manual_seed(11)
    for batch in DataLoader(Tokens(), batch_size=BATCH):
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def _under_accelerate(log: Path, accumulation: int) -> Watched:
    torch.manual_seed(11)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation)
    model = gpt2()
    torch.manual_seed(11)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, loader = accelerator.prepare(
        model, optimizer, DataLoader(Tokens(), batch_size=BATCH)
    )
    with rksp.watch(model, optimizer, log=log) as watched:
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.05)
                optimizer.step()
                optimizer.zero_grad()
    return watched


def test_plain_loop_is_bitwise_equal_and_accelerate_sees_the_same(tmp_path: Path) -> None:
    alone, watched = gpt2(), gpt2()
    _by_hand(alone, torch.optim.AdamW(alone.parameters(), lr=1e-2))
    optimizer = torch.optim.AdamW(watched.parameters(), lr=1e-2)
    with rksp.watch(watched, optimizer, log=tmp_path / "own.jsonl") as watch:
        _by_hand(watched, optimizer)
    assert _same(_weights(alone), _weights(watched))
    assert _values(watch.watch, "loss")[0] == pytest.approx(math.log(32), abs=0.2)
    theirs = _under_accelerate(tmp_path / "theirs.jsonl", 1).watch
    assert {r.quantity for r in theirs.readings} == {r.quantity for r in watch.watch.readings}
    assert _values(theirs, "loss")[0] == pytest.approx(_values(watch.watch, "loss")[0], rel=0.05)


@pytest.mark.filterwarnings("error:Converting a tensor with requires_grad")
def test_accelerate_counts_optimizer_steps(tmp_path: Path) -> None:
    watch = _under_accelerate(tmp_path / "watch.jsonl", 2)
    assert watch.session.step == ROWS // BATCH // 2 - 1
    norms = _values(watch.watch, "gradient_norm")
    assert len(norms) == ROWS // BATCH // 2 and min(norms) > 0.05


def test_an_alarm_can_stop_a_loop(tmp_path: Path) -> None:
    model = _poisoned(gpt2(), 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with (
        pytest.raises(SystemExit) as ended,
        rksp.watch(model, optimizer, log=tmp_path / "watch.jsonl", on_alarm="stop") as watch,
    ):
        _by_hand(model, optimizer)
    assert ended.value.code == 75 and watch.should_stop
    assert watch.alarms[0].quantity == "non_finite_loss"


def test_unscaled_gradients_stand_as_they_were() -> None:
    model = nn.Linear(3, 2)
    (model(torch.ones(1, 3)).sum() * 1024).backward()
    before = model.weight.grad
    kept = before.clone()
    with unscaled(model, 1024.0):
        assert torch.equal(model.weight.grad, kept / 1024)
    assert model.weight.grad is before and torch.equal(before, kept)
