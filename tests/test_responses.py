"""Interventions inside other people's trainers: a run that is made to fail is saved in all of them.

The rate is a thousand times its own at one step. Order of the data and weights are the same
everywhere, so that the trainers can be compared with each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import lightning
import numpy as np
import pytest
import torch
from accelerate import Accelerator
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from torch.utils.hooks import RemovableHandle
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from rksp.batch import Batch
from rksp.errors import InputError
from rksp.faults.registry import make_fault
from rksp.interventions.base import Intervention
from rksp.interventions.registry import make_intervention
from rksp.models.zoo import build_member
from rksp.moment import Moment
from rksp.objective import task_loss
from rksp.optimizers import make_optimizer
from rksp.recipe import Recipe
from rksp.training import run
from rksp.training.callbacks import hugging_face
from rksp.training.callbacks import lightning as lightning_callback
from rksp.training.callbacks.accelerate import AccelerateWatch
from rksp.training.callbacks.plain import LoopWatch
from rksp.training.callbacks.rate_scale import RateScale

pytestmark = [
    # The libraries' own imports and advice; nothing of ours.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
STEPS, LEAP, BATCH, LENGTH = 100, 60, 8, 8
MONITORS = ["loss", "gradient-norm", "non-finite"]
BACKOFF = ["backoff:every=10,lead=10,hold=10"]


@cache
def rows() -> list[dict[str, torch.Tensor]]:
    """Sequences that count up from a random token: their loss falls to that of the first one."""
    first = torch.randint(0, 31, (STEPS * BATCH, 1), generator=torch.Generator().manual_seed(3))
    tokens = (first + torch.arange(LENGTH)) % 31
    labels = tokens.clone()
    labels[:, 0] = -100  # predicted by nothing; the Trainer of transformers would count it
    pairs = zip(tokens, labels, strict=True)
    return [{"input_ids": row, "labels": label} for row, label in pairs]


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    shape = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 32, "n_positions": LENGTH}
    dropout = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(**shape, **dropout, bos_token_id=0, eos_token_id=0))


def _optimizer(model: nn.Module, factor: float) -> tuple[torch.optim.Optimizer, LambdaLR]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return optimizer, LambdaLR(optimizer, lambda step: factor if step == LEAP else 1.0)


def _plain(path: Path, factor: float, responses: Sequence[str | Intervention]) -> LoopWatch:
    model = gpt2()
    optimizer, schedule = _optimizer(model, factor)
    watch = LoopWatch(model, optimizer, monitors=MONITORS, interventions=responses)
    for batch in DataLoader(rows(), batch_size=BATCH):
        watch.begin_step()
        loss = model(**batch).loss
        watch.penalized(loss).backward()
        watch.after_backward(loss)
        optimizer.step()
        schedule.step()
        watch.after_update()
        optimizer.zero_grad()
    watch.close()
    return watch


def _fp16(factor: float, responses: Sequence[str | Intervention]) -> LoopWatch:
    """A plain loop in fp16 with a loss scaler."""
    model = gpt2()
    optimizer, schedule = _optimizer(model, factor)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    watch = LoopWatch(model, optimizer, monitors=MONITORS, interventions=responses)
    for batch in DataLoader(rows(), batch_size=BATCH):
        watch.begin_step()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(**batch).loss
        scaler.scale(watch.penalized(loss)).backward()
        watch.after_backward(loss, scale=scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        watch.after_update()
        optimizer.zero_grad()
    watch.close()
    return watch


def _accelerate(path: Path, factor: float, responses: Sequence[str | Intervention]) -> LoopWatch:
    accelerator = Accelerator(cpu=True)
    model = gpt2()
    optimizer, schedule = _optimizer(model, factor)
    data = DataLoader(rows(), batch_size=BATCH)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    watch = AccelerateWatch(
        accelerator, model, optimizer, monitors=MONITORS, interventions=responses
    )
    for batch in data:
        with accelerator.accumulate(model):
            watch.begin_step()
            loss = model(**batch).loss
            accelerator.backward(watch.penalized(loss))
            watch.after_backward(loss)
            optimizer.step()
            schedule.step()
            watch.after_update()
            optimizer.zero_grad()
    watch.close()
    return watch


def _hugging_face(path: Path, factor: float, responses: Sequence[str | Intervention]) -> LoopWatch:
    model = gpt2()
    callback = hugging_face.WatchCallback(monitors=MONITORS, interventions=responses)
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(path),
            num_train_epochs=1,
            per_device_train_batch_size=BATCH,
            max_grad_norm=0.0,
            train_sampling_strategy="sequential",
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_steps=25,
            disable_tqdm=True,
        ),
        train_dataset=rows(),
        optimizers=_optimizer(model, factor),
        callbacks=[callback],
    )
    trainer.train()
    callback.loop.history = trainer.state.log_history
    assert "training_step" not in vars(trainer) and "backward" not in vars(trainer.accelerator)
    return callback.loop


class _Module(lightning.LightningModule):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.model, self.factor = gpt2(), factor

    def training_step(self, batch: dict, index: int) -> torch.Tensor:
        return self.model(**batch).loss

    def configure_optimizers(self):
        optimizer, schedule = _optimizer(self.model, self.factor)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def _lightning(path: Path, factor: float, responses: Sequence[str | Intervention]) -> LoopWatch:
    callback = lightning_callback.WatchCallback(monitors=MONITORS, interventions=responses)
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=path,
        callbacks=[callback],
    )
    module = _Module(factor)
    trainer.fit(module, DataLoader(rows(), batch_size=BATCH))
    assert "backward" not in vars(module)
    callback.loop.metrics = dict(trainer.callback_metrics)
    return callback.loop


TRAINERS = {
    "plain": _plain,
    "accelerate": _accelerate,
    "hugging_face": _hugging_face,
    "lightning": _lightning,
}


def _losses(loop: LoopWatch, *, missing: int = 0) -> np.ndarray:
    """The losses of all steps but those, `missing` at most, in which it was not finite."""
    found = [r.value for r in loop.watch.readings if r.quantity == "loss"]
    assert STEPS - missing <= len(found) <= STEPS
    return np.array(found)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    return _losses(_plain(tmp_path_factory.mktemp("twin"), 1.0, []))


def test_the_leap_ruins_a_run_that_is_only_watched(healthy, tmp_path: Path) -> None:
    assert healthy[-5:].mean() < healthy[0] - 1  # it learns
    ruined = _plain(tmp_path, 1e3, [])
    assert _losses(ruined)[-5:].mean() > healthy[-5:].mean() + 0.5
    assert not ruined.actions


@pytest.mark.parametrize("name", TRAINERS)
def test_back_off_saves_the_run_in_every_trainer(name: str, healthy, tmp_path: Path) -> None:
    loop = TRAINERS[name](tmp_path, 1e3, BACKOFF)
    losses = _losses(loop)
    np.testing.assert_allclose(losses[: LEAP + 1], healthy[: LEAP + 1], rtol=1e-4)
    back = [a for a in loop.actions if a.what.startswith("rolled back")]
    assert [a.step for a in back] == [LEAP + 1]  # the first loss that shows it
    assert back[0].detail["undone"] >= 10
    assert abs(losses[-5:].mean() - healthy[-5:].mean()) < 0.1
    assert loop.watch.silent == {}


@pytest.mark.parametrize("fault", [None, "a bit of a weight"])
def test_back_off_saves_a_run_in_fp16_with_a_loss_scaler(fault: str | None, healthy) -> None:
    planted = [_Planted(FAULTS[fault])] if fault else []
    loop = _fp16(1.0 if fault else 1e3, [*planted, *BACKOFF])
    losses = _losses(loop, missing=3)
    assert any(a.what.startswith("rolled back") for a in loop.actions)
    np.testing.assert_allclose(losses[:LEAP], healthy[:LEAP], rtol=0.05, atol=0.02)
    assert abs(losses[-5:].mean() - healthy[-5:].mean()) < 0.1


class _Planted(Intervention):
    """A fault at its moments, in the place of an intervention."""

    name = "planted"

    def __init__(self, line: str) -> None:
        super().__init__()
        self.fault = make_fault(line)

    def bind(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.fault.bind(model, seed=0)

    def arm(self, moment: Moment) -> Sequence[RemovableHandle]:
        return self.fault.arm(moment)

    def after_update(self, moment: Moment) -> None:
        self.fault.after_update(moment)


_FLIP = f"bitflip:step={LEAP},bit=30"
FAULTS = {
    "a bit of a weight": f"{_FLIP},where=weights,name=mlp.c_fc.weight",
    # Of a value: what a norm takes back to its size in the forward pass ruins the gradient.
    "a bit of an activation": f"{_FLIP},where=activations,name=h.0.attn.c_attn,element=32",
    "a multiplier": f"matmul:step={LEAP},steps=3,bit=30,name=lm_head",
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", TRAINERS)
def test_back_off_saves_the_run_from_each_fault(name, fault, healthy, tmp_path: Path) -> None:
    loop = TRAINERS[name](tmp_path, 1.0, [_Planted(FAULTS[fault]), *BACKOFF])
    losses = _losses(loop, missing=3)
    back = [a.step for a in loop.actions if a.what.startswith("rolled back")]
    assert back and LEAP <= back[0] <= LEAP + 1
    assert abs(losses[-5:].mean() - healthy[-5:].mean()) < 0.1


def test_the_flipped_weight_ruins_a_run_without_back_off(tmp_path: Path) -> None:
    ruined = _plain(tmp_path, 1.0, [_Planted(FAULTS["a bit of a weight"])])
    assert len(_losses(ruined, missing=STEPS)) == LEAP + 1  # not finite ever after


def test_the_trainers_own_logs_carry_the_readings(tmp_path: Path) -> None:
    history = _hugging_face(tmp_path, 1e3, BACKOFF).history
    ours = [entry for entry in history if "rksp/loss/loss" in entry]
    assert [entry["step"] for entry in ours] == [25, 50, 75, 100]
    assert ours[0]["rksp/alarms"] == 0 and ours[-1]["rksp/alarms"] >= 1
    assert [entry["step"] for entry in history if "loss" in entry] == [25, 50, 75, 100]
    metrics = _lightning(tmp_path, 1.0, []).metrics
    assert metrics["rksp/gradient-norm/gradient_norm"] > 0


RECIPE = Recipe(
    learning_rate=1e-2, max_steps=12, schedule="constant", max_grad_norm=None, batch_size=BATCH
)
SHAPE = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 32,
    "max_position_embeddings": LENGTH,
}
LINES = [
    "z_loss:output=0.1",
    "kss:weight=1",
    "zclip:warmup=3",
    "msign:every=5",
    "qk_clip:tau=0.001",
]


def test_a_plain_loop_gives_the_numbers_of_the_monitored_run() -> None:
    tokens = torch.stack([row["input_ids"] for row in rows()[: 12 * BATCH]])
    parts = tokens.split(BATCH)
    batches = [Batch(inputs=part, labels=part.roll(-1, 1)) for part in parts]
    theirs = build_member("zoo_pre_ln", SHAPE, seed=0).train()
    record = run(theirs, batches, RECIPE, interventions=[make_intervention(n) for n in LINES])

    ours = build_member("zoo_pre_ln", SHAPE, seed=0).train()
    optimizer = make_optimizer(ours, RECIPE)
    watch = LoopWatch(ours, optimizer, monitors=[], interventions=LINES)
    for batch in batches:
        watch.begin_step()
        loss = task_loss(ours, batch)
        watch.penalized(loss).backward()
        watch.after_backward(loss)
        optimizer.step()
        watch.after_update()
        optimizer.zero_grad()
    pairs = zip(theirs.parameters(), ours.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    done = {a.intervention for a in watch.actions}
    assert done == {"z_loss", "kss", "zclip", "msign", "qk_clip"}
    assert len(watch.actions) == len(record.actions)


def test_a_penalty_that_is_not_asked_for_is_refused() -> None:
    model = gpt2()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = LoopWatch(model, optimizer, monitors=[], interventions=["z_loss"])
    watch.begin_step()
    loss = model(**DataLoader(rows(), batch_size=2).__iter__().__next__()).loss
    loss.backward()
    with pytest.raises(InputError, match=r"watch\.penalized\(loss\)"):
        watch.after_backward(loss)
    with pytest.raises(InputError, match="need the optimizer"):
        LoopWatch(model, interventions=["backoff"])


def test_a_loss_that_is_not_finite_moves_no_weight_if_something_responds() -> None:
    for responses, is_same in ((["zclip"], True), ([], False)):
        model = nn.Linear(2, 1)
        before = model.weight.detach().clone()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        watch = LoopWatch(model, optimizer, monitors=["loss"], interventions=responses)
        watch.begin_step()
        loss = model(torch.full((1, 2), torch.inf)).sum()
        loss.backward()
        watch.after_backward(loss)
        optimizer.step()
        watch.after_update()
        assert torch.equal(before, model.weight) is is_same


def test_a_schedule_does_not_see_the_scaled_rate() -> None:
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scale = RateScale(optimizer)
    scale.factor = 0.25
    weight.grad = torch.ones(1)
    optimizer.step()
    assert weight.item() == -0.25 and optimizer.param_groups[0]["lr"] == 1.0
    scale.close()
    optimizer.step()
    assert weight.item() == -1.25
