"""`rksp watch`: a script trains bit for bit as without it, whatever its loop looks like."""

from __future__ import annotations

import copy
import io
import json
import math
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.places import ROOT
from support.watching import read_log, read_losses
from torch import nn
from torch.nn import functional as F

from rksp.confirm.watched import watched_run
from rksp.ground.errors import ArtifactError, InputError
from rksp.own_runs.record import read_record
from rksp.report.formats import render
from rksp.watch.attach import session
from rksp.watch.attach.finder import Finder
from rksp.watch.attach.log import TRACKERS
from rksp.watch.attach.options import Watching
from rksp.watch.attach.session import STOPPED, Session
from rksp.watch.monitors.sinks import JsonLines

SCRIPTS = ROOT / "tests" / "support" / "attached"
STEPS = 12


class Net(nn.Module):
    """A tiny language model with dropout, so that a random number too many shows."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.head = nn.Embedding(32, 16), nn.Linear(16, 16), nn.Linear(16, 32)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(F.dropout(self.mix(self.embed(tokens)).tanh(), 0.1, self.training))


def loss_of(model: Callable, tokens: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def batch() -> torch.Tensor:
    return torch.randint(32, (4, 8))


def plain(rate: float = 1e-2, explodes: int = -1) -> list[float]:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    losses = []
    for step in range(STEPS):
        loss = loss_of(model, batch()) * (math.nan if step == explodes else 1.0)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def evaluated_and_clipped() -> list[float]:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    losses = []
    for step in range(STEPS):
        if step % 3 == 0:
            model.eval()
            with torch.no_grad():
                loss_of(model, batch())
            model.train()
        loss = loss_of(model, batch())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def accumulated() -> list[float]:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu")
    losses = []
    for _ in range(STEPS):
        parts = []
        for _ in range(3):
            loss = loss_of(model, batch()) / 3
            scaler.scale(loss).backward()
            parts.append(loss.item())
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(sum(parts))
    return losses


def two_optimizers() -> list[float]:
    model = Net()
    first = torch.optim.SGD([model.mix.weight, model.head.weight], lr=0.1)
    rest = [model.embed.weight, model.mix.bias, model.head.bias]
    second = torch.optim.AdamW(rest, lr=1e-2)
    losses = []
    for _ in range(STEPS):
        loss = loss_of(model, batch())
        loss.backward()
        for optimizer in (first, second):
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


class Container(torch.optim.Optimizer):
    """Holds optimizers and is one, as torchtitan's is."""

    def __init__(self, optimizers: list[torch.optim.Optimizer]) -> None:
        self.optimizers = optimizers
        super().__init__([p for one in optimizers for p in one.param_groups[0]["params"]], {})

    def step(self) -> None:
        for one in self.optimizers:
            one.step()


def in_a_container() -> list[float]:
    """Two optimizers in one, whose states are filled by a step at rate 0 before training."""
    model = Net()
    parts = [list(model.embed.parameters()), [*model.mix.parameters(), *model.head.parameters()]]
    optimizer = Container([torch.optim.AdamW(part, lr=torch.tensor(0.0)) for part in parts])
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    losses = []
    for one in optimizer.optimizers:
        one.param_groups[0]["lr"] = 1e-2
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, batch())
        loss.backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), 0.1, norm)
        optimizer.step()
        losses.append(loss.item())
    return losses


def with_a_closure() -> list[float]:
    """As Lightning does: the passes run inside of the optimizer's step."""
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, batch())
        loss.backward()
        losses.append(loss.item())
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)
    return losses


def called_by_parts() -> list[float]:
    """No module that holds all parameters is ever called."""
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(STEPS):
        loss = loss_of(lambda tokens: model.head(model.mix(model.embed(tokens)).tanh()), batch())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def beside_another() -> list[float]:
    """A second model trains in turns with the first, as a discriminator does."""
    model, other = Net(), nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    another = torch.optim.AdamW(other.parameters(), lr=1e-2)
    losses = []
    for _ in range(STEPS):
        loss = loss_of(model, batch())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        other(torch.randn(2, 4)).sum().backward()
        another.step()
        another.zero_grad()
        losses.append(loss.item())
    return losses


def with_a_line_search() -> list[float]:
    """LBFGS evaluates its closure several times in a step; the first time is the step's loss."""
    model = Net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.3, max_iter=3)
    tokens = batch()

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, tokens)
        loss.backward()
        return loss

    return [optimizer.step(closure).item() for _ in range(STEPS)]


def without_a_scalar() -> list[float]:
    """Steps differentiate a vector with weights and, in turn, call no backward at all."""
    model = Net()
    weights = list(model.parameters())
    optimizer = torch.optim.AdamW(weights, lr=1e-2)
    losses = []
    for step in range(STEPS):
        tokens = batch()
        each = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten(), reduction="none")
        if step % 2:
            each.backward(torch.full_like(each, 1 / len(each)))
        else:
            for p, grad in zip(
                weights, torch.autograd.grad(each.mean(), iter(weights)), strict=True
            ):
                p.grad = grad
        optimizer.step()
        optimizer.zero_grad()
        losses.append(each.mean().item())
    return losses


def copied_and_saved() -> list[float]:
    """A script keeps copies of its model and saves it whole; an evaluation hangs hooks too."""
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(STEPS):
        loss = loss_of(model, batch())
        saved = io.BytesIO()
        torch.save(model, saved)
        assert b"rksp" not in saved.getvalue()
        for same in (copy.deepcopy(model), copy.copy(model)):
            assert not same._forward_pre_hooks and not same._forward_pre_hooks_with_kwargs
            loss_of(same, batch())
        tokens = batch()
        assert torch.equal(torch.jit.script(model.eval())(tokens), model(tokens))
        model.train()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


LOOPS = (
    plain, evaluated_and_clipped, accumulated, two_optimizers, in_a_container, with_a_closure,
    called_by_parts, beside_another, with_a_line_search, without_a_scalar, copied_and_saved,
)  # fmt: skip


class Holding(Finder):
    """Keeps the watch of a model that its script has dropped, to look at it afterwards."""

    def _meet(self, *args: object) -> None:
        super()._meet(*args)
        self.held = self.session


@pytest.fixture
def attached(tmp_path: Path) -> Iterator[Callable[..., Finder]]:
    """Attach to this process, and detach at the end of the test."""
    made: list[Finder] = []

    def attach(kind: type[Finder] = Holding, **options: object) -> Finder:
        told = {"folder": str(tmp_path), "log": str(tmp_path / "watch.jsonl"), "status": 0}
        told |= {"on_alarm": "log", "monitors": ["all"], "to": [], "record": None, "memory": 1.0}
        made.append(kind(Watching(**told | options)))
        made[-1].hook()
        return made[-1]

    yield attach
    for finder in made:
        finder.close()


def seeded(loop: Callable[..., list[float]], *arguments: object) -> list[float]:
    torch.manual_seed(3)
    return loop(*arguments)


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_a_loop_is_watched_and_stays_the_same(loop, attached, tmp_path):
    expected = seeded(loop)
    after = torch.rand(())
    finder = attached()
    assert seeded(loop) == expected
    assert torch.equal(torch.rand(()), after)
    finder.close()
    assert read_losses(tmp_path / "watch.jsonl") == pytest.approx(expected, rel=1e-6)
    watch = finder.session.watch
    off = {
        name
        for name, why in watch.silent.items()
        if "switched off" in why and "no attention call" not in why  # the models have none
    }
    is_read = loop not in (evaluated_and_clipped, with_a_line_search)
    assert off == (set() if is_read else {"update-rms"})  # as SGD is read
    assert {"gradient-norm", "non-finite"} <= {reading.monitor for reading in watch.readings}


def test_torch_is_left_as_it_was(attached):
    names = (torch.autograd, "backward"), (torch.optim.Optimizer, "__init__")
    before = [getattr(*name) for name in names]
    finder = attached()
    assert all(getattr(*name) is not old for name, old in zip(names, before, strict=True))
    finder.close()
    assert [getattr(*name) for name in names] == before


def test_gradients_are_read_before_they_are_clipped(attached):
    finder = attached(monitors=["gradient-norm"])
    seeded(evaluated_and_clipped)
    norms = [r.value for r in finder.session.watch.readings if r.quantity == "gradient_norm"]
    assert len(norms) == STEPS and min(norms) > 0.11


def test_an_error_of_ours_never_reaches_the_script(attached, monkeypatch, capsys):
    expected = seeded(plain)

    def fails(self, *args: object, **kwargs: object) -> None:
        raise ValueError("ours")

    monkeypatch.setattr(Session, "after_update", fails)
    attached()
    assert seeded(plain) == expected
    assert capsys.readouterr().err.count("detached, the script runs on (ValueError: ours)") == 1


def test_a_tracker_reads_along_and_one_that_is_missing_is_said(
    attached, tmp_path, capsys, monkeypatch
):
    monkeypatch.setitem(TRACKERS, "file", JsonLines)
    finder = attached(to=[f"file={tmp_path / 'copy.jsonl'}", "file", "wandb"], status=1e-9)
    seeded(plain)
    finder.close()
    assert [r.step for r in read_log(tmp_path / "copy.jsonl")[0] if r.quantity == "loss"] == list(
        range(STEPS)
    )
    said = capsys.readouterr().err
    assert "--to file: " in said and "--to wandb: " in said
    assert f"step {STEPS - 1}, loss " in said


def test_a_sink_that_fails_ends_no_watch(attached, monkeypatch, capsys):
    def fails(*args: object) -> None:
        raise OSError("the disk is full")

    finder = attached()
    monkeypatch.setattr(JsonLines, "write", fails)
    seeded(plain)
    assert finder.session.step == STEPS - 1
    assert capsys.readouterr().err.count("RunLog gets nothing more: the disk is full") == 1


def test_an_overflow_skips_a_step_and_is_named(attached):
    finder = attached(monitors=["non-finite"])
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    for _ in range(2):
        scaler.scale(loss_of(model, batch()) * 1e3).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    readings = finder.session.watch.readings
    bad = [r.step for r in readings if r.quantity == "non_finite_gradients" and r.value]
    losses = [r.value for r in readings if r.quantity == "loss"]
    assert bad == [0, 1] and losses == pytest.approx([3.5e3] * 2, rel=0.2)


def test_a_critical_alarm_stops_before_the_weights_move(attached, tmp_path):
    finder = attached(on_alarm="stop")
    with pytest.raises(SystemExit) as ended:
        seeded(plain, 1e-2, 5)
    assert ended.value.code == STOPPED
    assert all(p.isfinite().all() for p in finder.session.model.parameters())
    finder.close()
    report = watched_run(tmp_path / "watch.jsonl")
    assert report.ended.startswith("rksp stopped at step 5") and report.verdict == "failed"
    assert report.trial.onset == 5
    # The script spoiled the loss that its model gave; it also asks for its own inputs.
    (cause,) = (one for one in report.causes if one.cause != "labels")
    assert (cause.step, cause.cause) == (5, "script")
    assert cause.text in render(report, "html")


@pytest.mark.parametrize("error", [None, RuntimeError("ended")])
def test_a_run_is_finished_unless_its_script_raised(attached, tmp_path, monkeypatch, error):
    finder = attached(record=str(tmp_path / "runs.jsonl"))
    seeded(plain)
    if error is not None:
        monkeypatch.setattr(sys, "last_value", error, raising=False)
    finder.close()
    (row,) = read_record(tmp_path / "runs.jsonl")
    assert row["state"] == ("finished" if error is None else "unfinished")


def test_a_run_that_rksp_stopped_is_not_finished(attached, tmp_path):
    finder = attached(on_alarm="stop", record=str(tmp_path / "runs.jsonl"))
    with pytest.raises(SystemExit):
        seeded(spoiled)
    finder.close()
    (row,) = read_record(tmp_path / "runs.jsonl")
    assert row["state"] == "unfinished"


def spoiled(with_loss: bool = True) -> None:
    """The gradient of a step is not finite, and its loss is."""
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(STEPS):
        loss = loss_of(model, batch())
        if with_loss:
            loss.backward()
        for p in model.parameters():
            p.grad = torch.full_like(p, math.nan if with_loss and step == 5 else 0.1)
        optimizer.step()
        optimizer.zero_grad()


def test_a_run_of_which_no_loss_is_known_is_not_called_a_failure(attached, tmp_path):
    finder = attached(monitors=["gradient-norm"])
    seeded(spoiled, False)
    finder.close()
    report = watched_run(tmp_path / "watch.jsonl")
    assert (report.verdict, report.trial.onset, report.trial.final_loss) == ("quiet", None, None)
    assert report.trial.steps == len(report.trial.loss) == STEPS
    assert {loss for _, loss in report.trial.loss} == {None}
    assert render(report, "html")


def test_a_log_without_a_step_is_not_announced(attached, tmp_path):
    """The script trains tensors that take the place of the model's own."""

    def swapped() -> None:
        model = Net()
        weights = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}
        optimizer = torch.optim.AdamW(weights.values(), lr=1e-2)
        for _ in range(2):
            loss_of(lambda x: torch.func.functional_call(model, weights, x), batch()).backward()
            optimizer.step()

    for train, logs in ((swapped, 0), (plain, 1)):
        finder = attached()
        train()
        finder.close()
        assert len(list(tmp_path.glob("*.log"))) == logs


def test_a_model_that_its_script_drops_is_let_go_and_the_next_one_is_watched(attached, tmp_path):
    models: list[weakref.ref[Net]] = []

    def folds() -> list[float]:
        losses = []
        for _ in range(2):
            model = Net()
            models.append(weakref.ref(model))
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
            losses += trained(model, optimizer)
            del model, optimizer
        return losses

    expected = seeded(folds)
    models.clear()
    finder = attached(Finder, record=str(tmp_path / "runs.jsonl"), monitors=["loss"])
    assert seeded(folds) == expected
    assert models[0]() is None
    finder.close()
    lines = list(map(json.loads, (tmp_path / "watch.jsonl").read_text().splitlines()))
    assert [line["kind"] for line in lines if line["kind"] in ("run", "end")] == ["run", "end"] * 2
    losses = [line["value"] for line in lines if line.get("quantity") == "loss"]
    assert losses == pytest.approx(expected, rel=1e-6)
    assert len(read_record(tmp_path / "runs.jsonl")) == 2


def trained(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    losses = []
    for _ in range(STEPS):
        loss = loss_of(model, batch())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_a_cause_that_cannot_be_looked_for_changes_nothing(attached, tmp_path, monkeypatch):
    def fails(*args: object, **kwargs: object) -> None:
        raise RuntimeError("cannot be repeated")

    expected = seeded(plain, 3.0)
    monkeypatch.setattr(session, "diagnose", fails)
    for options in ({}, {"memory": 0.0}):
        finder = attached(monitors=["output-change"], **options)
        assert seeded(plain, 3.0) == expected and finder.session.watch.alarms
        finder.close()
        causes = watched_run(Path(finder.session.voice.log.path)).causes
        found = {one.cause for one in causes} - {"labels"}  # it is asked for its own inputs
        assert found == ({"unknown"} if not options else set())


def test_a_healthy_run_is_not_stopped(attached):
    attached(on_alarm="stop")
    assert len(seeded(plain)) == STEPS


def test_a_checkpoint_is_from_before_the_alarm(attached, tmp_path):
    attached(on_alarm="checkpoint")
    seeded(plain, 1e-2, 5)
    (file,) = tmp_path.rglob("*.safetensors")
    torch.manual_seed(3)
    first = Net().state_dict()  # the state from before step 0
    kept = load_file(file)
    assert {n: kept[f"model.{n}"].tolist() for n in first} == {
        n: t.tolist() for n, t in first.items()
    }


def test_the_update_bound_acts_from_the_step_after_the_alarm(attached):
    expected = seeded(plain, 3.0)
    finder = attached(on_alarm="shape", monitors=["output-change"])
    losses = seeded(plain, 3.0)
    first = finder.session.watch.alarms[0].step
    assert losses[: first + 2] == expected[: first + 2]
    assert losses[first + 2] != expected[first + 2]


def test_a_rate_that_rises_fits_no_baseline(attached):
    finder = attached(monitors=["loss"])
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = 0.1 * min(step + 1, 5)
        loss_of(model, batch()).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert finder.session.watch.rules.warmup_steps == 5


def test_a_log_that_was_cut_off_can_be_read(attached, tmp_path):
    attached().close()
    finder = attached()
    expected = seeded(plain)
    finder.close()
    log = tmp_path / "watch.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:-1]) + lines[-1][:20])  # the line of its end
    report = watched_run(log)
    assert report.trial.steps == STEPS and report.ended == "the run was killed, or still runs"
    assert [loss for _, loss in report.trial.loss] == pytest.approx(expected)
    page = render(report, "html")
    assert "Net" in page and all(name in page for name in report.trial.profiles)
    log.write_text("{}\n" + log.read_text())
    with pytest.raises(ArtifactError, match="Line 1"):
        watched_run(log)
    log.write_text("")
    with pytest.raises(InputError, match="no step"):
        watched_run(log)
