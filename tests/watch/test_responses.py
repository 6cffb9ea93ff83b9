"""Interventions inside other people's trainers: a run that is made to fail is saved in all of them.

The rate is a thousand times its own at one step. Order of the data and weights are the same
everywhere, so that the trainers can be compared with each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.trainers import (
    BACKOFF,
    BATCH,
    LEAP,
    LENGTH,
    MONITORS,
    STEPS,
    TRAINERS,
    Planted,
    Setting,
    gpt2,
    mixture,
    of_lightning,
    of_transformers,
    plain,
    rows,
)
from torch import nn
from torch.utils.data import DataLoader

import rksp
from lab.zoo import build_member
from rksp.datasets.batch import Batch, task_loss
from rksp.ground.errors import InputError
from rksp.recipe import Recipe
from rksp.recipe.optimizers.table import make_optimizer
from rksp.watch.attach.door import Watched
from rksp.watch.attach.stepping import scale_rates
from rksp.watch.interventions.base import Intervention
from rksp.watch.registry import make_intervention
from rksp.watch.training import run

pytestmark = [
    # The libraries' own imports and advice; nothing of ours.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def _fp16(path: Path, factor: float, responses: Sequence[str | Intervention]) -> Watched:
    """A plain loop in fp16 with a loss scaler."""
    setting = Setting(leap=factor, responses=responses)
    model = gpt2()
    optimizer, schedule = setting.optimizer(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    with rksp.watch(model, optimizer, **setting.watching(path)) as watched:
        for batch in DataLoader(rows(), batch_size=BATCH):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = model(**batch).loss
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
            optimizer.zero_grad()
    return watched


def _losses(loop: Watched, *, missing: int = 0) -> np.ndarray:
    """The losses of all steps but those, `missing` at most, in which it was not finite."""
    found = [r.value for r in loop.watch.readings if r.quantity == "loss"]
    assert STEPS - missing <= len(found) <= STEPS
    return np.array(found)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    return _losses(plain(tmp_path_factory.mktemp("twin"), Setting()))


def test_the_leap_ruins_a_run_that_is_only_watched(healthy, tmp_path: Path) -> None:
    assert healthy[-5:].mean() < healthy[0] - 1  # it learns
    ruined = plain(tmp_path, Setting(leap=1e3))
    assert _losses(ruined)[-5:].mean() > healthy[-5:].mean() + 0.5
    assert not ruined.actions


@pytest.mark.parametrize("name", TRAINERS)
def test_back_off_saves_the_run_in_every_trainer(name: str, healthy, tmp_path: Path) -> None:
    loop = TRAINERS[name](tmp_path, Setting(leap=1e3, responses=BACKOFF))
    losses = _losses(loop)
    np.testing.assert_allclose(losses[: LEAP + 1], healthy[: LEAP + 1], rtol=1e-4)
    back = [a for a in loop.actions if a.what.startswith("rolled back")]
    assert [a.step for a in back] == [LEAP + 1]  # the first loss that shows it
    assert back[0].detail["undone"] >= 10
    assert abs(losses[-5:].mean() - healthy[-5:].mean()) < 0.1
    assert loop.watch.silent == {}
    assert not {"written", "state"} & {cause.cause for cause in loop.causes}  # a rollback is ours


@pytest.mark.parametrize("fault", [None, "a bit of a weight"])
def test_back_off_saves_a_run_in_fp16_with_a_loss_scaler(
    fault: str | None, healthy, tmp_path: Path
) -> None:
    planted = [Planted(FAULTS[fault])] if fault else []
    loop = _fp16(tmp_path, 1.0 if fault else 1e3, [*planted, *BACKOFF])
    losses = _losses(loop, missing=3)
    assert any(a.what.startswith("rolled back") for a in loop.actions)
    np.testing.assert_allclose(losses[:LEAP], healthy[:LEAP], rtol=0.05, atol=0.02)
    assert abs(losses[-5:].mean() - healthy[-5:].mean()) < 0.1


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
    loop = TRAINERS[name](tmp_path, Setting(responses=[Planted(FAULTS[fault]), *BACKOFF]))
    losses = _losses(loop, missing=3)
    back = [a.step for a in loop.actions if a.what.startswith("rolled back")]
    assert back and LEAP <= back[0] <= LEAP + 1
    assert abs(losses[-5:].mean() - healthy[-5:].mean()) < 0.1


def test_the_flipped_weight_ruins_a_run_without_back_off(tmp_path: Path) -> None:
    ruined = plain(tmp_path, Setting(responses=[Planted(FAULTS["a bit of a weight"])]))
    assert len(_losses(ruined, missing=STEPS)) == LEAP + 1  # not finite ever after


TRUNCATED = Setting(rate=5e-2, monitors=(*MONITORS, "key-null-sum:every=1"))
_LOW = f"low_precision_attention:step={LEAP},bits=8"


@pytest.fixture(scope="module")
def precise(tmp_path_factory: pytest.TempPathFactory) -> float:
    watch = plain(tmp_path_factory.mktemp("precise"), TRUNCATED)
    assert not watch.watch.alarms
    return _losses(watch)[-5:].mean()


@pytest.mark.parametrize("name", TRAINERS)
def test_low_precision_is_seen_at_its_step_and_back_off_saves_the_run(
    name: str, precise: float, tmp_path: Path
) -> None:
    responses = [Planted(_LOW), "backoff:every=10,lead=10,hold=40,severity=warn"]
    loop = TRAINERS[name](tmp_path, replace(TRUNCATED, responses=responses))
    first = loop.watch.alarms[0]
    assert (first.step, first.monitor) == (LEAP, "key-null-sum")
    assert any(a.what.startswith("rolled back") for a in loop.actions)
    assert abs(_losses(loop)[-5:].mean() - precise) < 0.1


def test_low_precision_ruins_a_run_without_back_off(precise: float, tmp_path: Path) -> None:
    # The mean of all steps since is 0.44 to 0.53 on every processor; the last five have 0.3 to 0.9.
    ruined = plain(tmp_path, replace(TRUNCATED, responses=[Planted(_LOW)]))
    assert _losses(ruined)[LEAP + 1 :].mean() > precise + 0.2


ROUTED = Setting(model=mixture, length=16, monitors=("loss", "router-load:every=1"))


@pytest.mark.parametrize("name", TRAINERS)
def test_a_missing_balance_loss_is_seen_by_the_dead_expert_that_it_leaves(
    name: str, tmp_path: Path
) -> None:
    """No response brings the loss back, and the run's own loss does not suffer."""
    alone = TRAINERS[name](tmp_path, replace(ROUTED, responses=[Planted("aux_off")]))
    dead = [a for a in alone.watch.alarms if a.quantity == "router_dead_experts"]
    assert dead[0].layers == 2 and dead[0].step < STEPS - 20  # in both routers
    assert _losses(alone)[-5:].mean() < 0.1


def test_with_the_balance_loss_no_expert_dies(tmp_path: Path) -> None:
    loop = plain(tmp_path, ROUTED)
    assert not loop.watch.alarms
    seen = {r.quantity: r.value for r in loop.watch.readings}  # the last of each
    assert seen["router_dead_experts"] == 0 and seen["router_max_vio"] < 0.3


def test_the_trainers_own_logs_carry_the_readings(tmp_path: Path) -> None:
    history = of_transformers(tmp_path, Setting(leap=1e3, responses=BACKOFF)).history
    ours = [entry for entry in history if "rksp/loss/loss" in entry]
    assert [entry["step"] for entry in ours] == [25, 50, 75, 100]
    assert ours[0]["rksp/alarms"] == 0 and ours[-1]["rksp/alarms"] >= 1
    assert [entry["step"] for entry in history if "loss" in entry] == [25, 50, 75, 100]
    metrics = of_lightning(tmp_path, Setting()).metrics
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


def test_a_plain_loop_gives_the_numbers_of_the_monitored_run(tmp_path: Path) -> None:
    tokens = torch.stack([row["input_ids"] for row in rows()[: 12 * BATCH]])
    parts = tokens.split(BATCH)
    batches = [Batch(inputs=part, labels=part.roll(-1, 1)) for part in parts]
    theirs = build_member("zoo_pre_ln", SHAPE, seed=0).train()
    record = run(theirs, batches, RECIPE, interventions=[make_intervention(n) for n in LINES])

    ours = build_member("zoo_pre_ln", SHAPE, seed=0).train()
    optimizer = make_optimizer(ours, RECIPE)
    log = tmp_path / "watch.jsonl"
    with rksp.watch(ours, optimizer, log=log, monitors=["loss"], interventions=LINES) as watch:
        for batch in batches:
            task_loss(ours, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    pairs = zip(theirs.parameters(), ours.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    done = {a.intervention for a in watch.actions}
    assert done == {"z_loss", "kss", "zclip", "msign", "qk_clip"}
    assert len(watch.actions) == len(record.actions)


@pytest.mark.parametrize("pieces", [1, 4])
def test_a_penalty_is_shared_among_the_passes_of_a_step(pieces: int, tmp_path: Path) -> None:
    def gradients(pieces: int) -> list[torch.Tensor]:
        """Of the second step, since the first shows how many passes a step has."""
        model = gpt2()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
        log, lines = tmp_path / f"{pieces}.jsonl", ["z_loss:output=10"]
        with rksp.watch(model, optimizer, log=log, monitors=["loss"], interventions=lines):
            for batch in list(DataLoader(rows(), batch_size=BATCH))[:2]:
                optimizer.zero_grad()
                for part in range(pieces):
                    piece = {name: values[part::pieces] for name, values in batch.items()}
                    (model(**piece).loss / pieces).backward()
                optimizer.step()
        return [p.grad for p in model.parameters()]

    for one, other in zip(gradients(1), gradients(pieces), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_an_intervention_that_cannot_act_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="backof"):
        rksp.watch(gpt2(), interventions=["backof"], log=tmp_path / "no.jsonl")
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        pytest.raises(InputError, match="attention"),
        rksp.watch(model, optimizer, log=tmp_path / "no.jsonl", interventions=["qk_clip"]),
    ):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()


def test_a_loss_that_is_not_finite_moves_no_weight_if_something_responds(tmp_path: Path) -> None:
    for responses, is_same in ((["zclip"], True), ([], False)):
        model = nn.Linear(2, 1)
        before = model.weight.detach().clone()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        log = tmp_path / f"{is_same}.jsonl"
        with rksp.watch(model, optimizer, log=log, monitors=["loss"], interventions=responses):
            model(torch.full((1, 2), torch.inf)).sum().backward()
            optimizer.step()
        assert torch.equal(before, model.weight) is is_same


def test_a_schedule_does_not_see_the_scaled_rate() -> None:
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    handles = scale_rates(optimizer, lambda: 0.25)
    weight.grad = torch.ones(1)
    optimizer.step()
    assert weight.item() == -0.25 and optimizer.param_groups[0]["lr"] == 1.0
    for handle in handles:
        handle.remove()
    optimizer.step()
    assert weight.item() == -1.25
