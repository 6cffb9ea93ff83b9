"""What a loss should be doing, what is wrong by itself, and what each rule leaves alone."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from support.places import ROOT
from torch import nn
from torch.nn import functional as F

import rksp
from rksp.documents.confirm import Cause
from rksp.ground.model import definite
from rksp.own_runs.record import is_of_old_watch
from rksp.report.glossary import find_word
from rksp.watch.attach.kept import Kept
from rksp.watch.attach.targets import Targets, criteria_of, words_of
from rksp.watch.attach.trial import tried
from rksp.watch.expected import (
    Expected,
    Reference,
    Sibling,
    Word,
    entropy_of,
    information_of,
)
from rksp.watch.training.recorded import schedule_seen

OF = Reference(classes=64, entropy=3.3, pairs=2.4, information=0.8, is_dense=True)


def said(losses, of=OF, **before) -> list[str]:
    expected = Expected(**before)
    return [one.name for x in losses for one in expected.feed(float(x), of, settled=1)]


def falling(steps=160, start=4.2, end=2.5, noise=0.05) -> np.ndarray:
    draw = np.random.default_rng(0)
    return end + (start - end) * np.exp(-np.arange(steps) / 25) + noise * draw.normal(size=steps)


def sibling(losses: np.ndarray, rows: int = 1) -> Sibling:
    return Sibling(range(rows, rows * len(losses) + 1, rows), losses.tolist())


def level(at: float, steps=160) -> np.ndarray:
    return at + 0.03 * np.random.default_rng(1).normal(size=steps)


def test_a_run_that_learns_is_left_alone():
    assert said(falling()) == []
    assert said(falling(noise=0.3)) == []
    assert said(falling(start=2.6, end=2.4), before=2.55) == []
    assert said(falling(), siblings=[sibling(falling(noise=0.06))]) == []


@pytest.mark.parametrize(
    ("losses", "word"),
    [
        (falling(start=19.0), "start_high"),
        (np.concatenate([[4.2], level(9.0, 30)]), "worse_than_nothing"),
        (level(4.15), "not_begun"),
        (np.linspace(4.17, 4.13, 130), "not_begun"),
        (level(3.65), "worse_than_frequencies"),
        (level(3.3), "plateau"),
        (np.concatenate([falling(100), falling(40) * 0 + 4.0]), "above_best"),
        (np.concatenate([falling(100), level(3.4, 5)]), "jump"),
        (falling(end=0.1), "too_good"),
    ],
)
def test_a_run_that_does_not_is_told_of(losses, word):
    assert word in said(losses)


def test_a_run_that_goes_on_is_held_against_the_one_before_it():
    assert said(level(3.6, 20), before=2.5) == ["does_not_continue"]
    assert said(level(2.6, 20), before=2.5) == []


def test_a_run_is_held_against_its_siblings():
    others = [sibling(falling()), sibling(falling(noise=0.06))]
    assert "behind" in said(falling(end=3.2), siblings=others)
    slow = np.repeat(falling(), 4)[:160]  # as a batch of a quarter
    assert "behind" in said(slow, siblings=[sibling(falling())])
    assert said(slow, siblings=[sibling(falling(), rows=4)]) == []


def test_few_targets_may_stay_at_their_frequencies_for_longer():
    sparse = Reference(classes=64, entropy=3.3, is_dense=False)
    assert said(level(3.3, 200), sparse) == [] and said(level(3.3, 450), sparse) == ["plateau"]


SQUARES = Reference(classes=0, spread=4.0)


@pytest.mark.parametrize(
    ("losses", "of", "words"),
    [
        (level(4.0, 200), SQUARES, ["plateau"]),
        (4 * level(2.0, 200), SQUARES, ["not_begun"]),
        (falling(200, 4.0, 1.0), SQUARES, []),
        (level(900.0, 200), Reference(classes=0, spread=math.inf), []),  # it drifts, as of returns
        (falling(160, 9.0, 2.0), OF, ["start_high"]),
        (falling(160, 9.0, 2.0), replace(OF, is_matching=True), []),
    ],
)
def test_a_loss_is_held_against_what_its_kind_can_be(losses, of, words):
    assert said(losses, of) == words


def test_a_warm_up_without_end_is_told_of_and_one_that_learns_is_not():
    expected = [
        {one.name for x in losses for one in Expected().feed(float(x), OF, settled=None)}
        for losses in ([4.16], falling())
    ]
    assert expected == [set(), set()]
    run = Expected()
    flat = 4.2 - 1e-6 * np.arange(160)
    assert [one.name for x in flat for one in run.feed(x, OF, settled=None)] == ["not_begun"]


def test_a_resume_may_differ_by_the_spread_of_the_run_before_it():
    at = {"before": 2.5, "spread_before": 0.3}
    assert said(level(2.9, 20), **at) == [] and said(level(3.6, 20), **at) == ["does_not_continue"]


@pytest.mark.parametrize("drift", [0.0, 5.0])
def test_a_regressions_targets_have_a_variance_unless_they_drift(drift):
    targets, draw = Targets(), torch.Generator().manual_seed(0)
    weight = torch.ones(8, 1, requires_grad=True)
    for step in range(40):
        x = torch.randn(64, 8, generator=draw)
        y = 2 * torch.randn(64, 1, generator=draw) + drift * step
        targets.begin()
        targets.add(criteria_of(F.mse_loss(x @ weight, y)), (x,), {})
        targets.end()
    expected = math.inf if drift else pytest.approx(4.0, rel=0.1)
    assert definite(targets.reference).spread == expected


def test_targets_are_dense_though_the_first_inputs_are_not_seen():
    targets, words = Targets(), torch.arange(24).reshape(2, 12) % 7
    logits = torch.randn(24, 7, requires_grad=True)
    for inputs in ({}, *[{"input_ids": words}] * 3):  # torch's hook on all modules has no keywords
        targets.begin()
        targets.add(criteria_of(F.cross_entropy(logits, words.flatten())), (), inputs)
        targets.end()
    assert definite(targets.reference).is_dense


def test_entropies_are_those_of_the_counts():
    draw = np.random.default_rng(0)
    counts = np.bincount(draw.integers(50, size=4000), minlength=50)
    assert entropy_of(counts) == pytest.approx(math.log(50), abs=0.01)
    x, y = draw.integers(8, size=(2, 20_000))
    alone = np.bincount(8 * x + y, minlength=64).reshape(8, 8)
    assert information_of(alone) == pytest.approx(0.0, abs=0.005)
    assert information_of(np.diag(alone.sum(0))) == pytest.approx(math.log(8), abs=0.01)


class Net(nn.Module):
    """Predicts each word from the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(32, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.mix(self.embed(x)).tanh())


def run(tmp_path: Path, fault: str = "", steps: int = 30) -> tuple[list[float], list[str]]:
    """Train where each word follows its last; return the losses and the causes."""
    torch.manual_seed(0)
    net, following = Net(), torch.randperm(32)
    if fault == "initialization":
        nn.init.normal_(net.head.weight, std=4.0)
    if fault == "precision":
        net.half()
    held = net.head.parameters() if fault == "optimizer" else net.parameters()
    decay = 100.0 if fault == "decay" else 0.01
    rate = 0.0 if fault == "rate" else 3e-3
    if fault == "resting":
        held = [{"params": [p for p in net.parameters() if p.dim() > 1], "lr": 0.0}]
        held.append({"params": [p for p in net.parameters() if p.dim() == 1]})
    optimizer = torch.optim.AdamW(held, lr=rate, weight_decay=decay)
    scaler = torch.amp.GradScaler("cpu", 2.0**127, backoff_factor=0.999, enabled=fault == "skipped")
    losses: list[float] = []
    with rksp.watch(net, optimizer, log=tmp_path / f"{fault}.jsonl") as watched:
        for _ in range(steps):
            x = torch.randint(32, (8, 16))
            y = x if fault == "labels" else following[x]
            logits = net(x)
            if fault == "unreached":
                logits = net.head(net.mix(net.embed(x)).tanh().detach())
            loss = F.cross_entropy(logits.flatten(0, 1).float(), y.flatten())
            if fault == "script" and len(losses) > 20:
                loss = loss + 0.0 * torch.zeros(()).log()
            scaler.scale(loss * (1e6 if fault == "skipped" else 1.0)).backward()
            if fault == "cleared":
                optimizer.zero_grad()
            if fault == "written" and len(losses) == 20:
                net.head.weight.data.copy_(torch.randn(32, 16) * 3)
            scaler.step(optimizer)
            scaler.update()
            if fault != "zero":
                optimizer.zero_grad()
            losses.append(loss.item())
    return losses, [one.cause for one in watched.causes if one.cause != "unknown"]


@pytest.mark.parametrize(
    ("fault", "name"),
    [("resting", "resting"), ("cleared", "no gradient"), ("skipped", "skipped")],
)
def test_a_step_that_moves_nothing_is_told_of(tmp_path, fault, name):
    run(tmp_path, fault)
    log = (tmp_path / f"{fault}.jsonl").read_text()
    assert name in log and name not in (run(tmp_path), (tmp_path / ".jsonl").read_text())[1]


def test_weights_that_are_written_between_two_steps_are_told_of_at_once(tmp_path):
    assert "written" in run(tmp_path, "written")[1] and "written" not in run(tmp_path)[1]


@pytest.mark.parametrize(
    "fault",
    ["initialization", "precision", "optimizer", "decay", "rate", "labels", "unreached", "script"],
)
def test_a_fault_is_named_by_its_number(tmp_path, fault):
    losses, causes = run(tmp_path, fault)
    assert causes[:1] == [fault] and losses


class Attending(nn.Module):
    """Attention over all tokens, or over those before."""

    def __init__(self, *, is_causal: bool) -> None:
        super().__init__()
        self.embed, self.head, self.is_causal = nn.Embedding(32, 16), nn.Linear(16, 32), is_causal

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)[:, None]
        return self.head(F.scaled_dot_product_attention(x, x, x, is_causal=self.is_causal)[:, 0])


@pytest.mark.parametrize(
    ("is_causal", "ahead", "expected"),
    [(False, 1, "looks ahead"), (True, 2, "shifted twice"), (True, 1, None)],
)
def test_a_leak_is_seen_by_what_moves_and_a_double_shift_by_its_labels(
    tmp_path, is_causal, ahead, expected
):
    torch.manual_seed(0)
    net = Attending(is_causal=is_causal)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    with rksp.watch(net, optimizer, log=tmp_path / "watch.jsonl") as watched:
        for _ in range(6):
            rows = torch.randint(32, (8, 18))
            logits = net(rows[:, :16])
            F.cross_entropy(logits.flatten(0, 1), rows[:, ahead:][:, :16].flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert [one.quantity for one in watched.alarms] == ([expected] if expected else [])


class Asked(Attending):
    """It computes its own loss, of targets that it gets by position."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = super().forward(x)
        return logits, F.cross_entropy(logits.flatten(0, 1), y.flatten())


def asked(log: Path, ahead: int = 1, *, steps: int = 6, parts: int = 1, **given: str) -> list[str]:
    """Train in so many parts with one log; return the names of the last part's alarms."""
    torch.manual_seed(0)
    net = Asked(is_causal=True)
    following, state = torch.randperm(32), {}
    for _ in range(parts):
        optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
        if state and given.get("state") == "loaded":
            optimizer.load_state_dict(state)
        with rksp.watch(net, optimizer, log=log) as watched:
            if (prefix := given.get("prefix")) is not None:
                named = {prefix + name: p for name, p in net.state_dict().items()}
                net.load_state_dict(named, strict=False)
            for _ in range(steps):
                rows = torch.randint(32, (8, 1))
                for _ in range(17):
                    rows = torch.cat([rows, following[rows[:, -1:]]], 1)
                net(rows[:, :16], rows[:, ahead:][:, :16])[1].backward()
                optimizer.step()
                optimizer.zero_grad()
        state = optimizer.state_dict()
    return [one.quantity for one in watched.alarms]


def test_targets_given_by_position_are_not_taken_for_inputs(tmp_path):
    assert asked(tmp_path / "a.jsonl") == []
    assert asked(tmp_path / "b.jsonl", ahead=0) == ["labels are inputs"]


def test_a_state_of_which_nothing_fits_is_told_of(tmp_path):
    assert asked(tmp_path / "a.jsonl", prefix="module.") == ["not loaded"]
    assert asked(tmp_path / "b.jsonl", prefix="") == []


def test_a_run_that_goes_on_without_its_optimizers_state_is_told_of(tmp_path):
    assert asked(tmp_path / "a.jsonl", steps=40, parts=2) == ["no state"]
    assert asked(tmp_path / "b.jsonl", steps=40, parts=2, state="loaded") == []


def test_a_shorter_step_is_tried_from_the_first_weights_and_leaves_the_present_ones():
    torch.manual_seed(0)
    net, following = Asked(is_causal=True), torch.randperm(32)
    kept = Kept(net, 1e9, is_compiled=False)
    for step in range(12):
        kept.begin(step)
        x = torch.randint(32, (8, 16))
        kept.add((x, following[x]), {})
    with torch.no_grad():
        for p in net.parameters():
            p.add_(torch.randn_like(p), alpha=30)  # as steps that are far too long
    present = [p.clone() for p in net.parameters()]
    until = math.inf
    now, then = tried(kept, net, 0.05, until=until, is_new=True)
    assert then < 3 < now and tried(kept, net, 1e-9, until=until) is None
    assert tried(kept, net, 0.05, until=0.0, is_new=True) is None
    assert all(map(torch.equal, present, net.parameters()))


def test_gradients_that_stay_are_told_of(tmp_path):
    assert run(tmp_path, "zero")[1][:1] == ["script"]


def test_a_healthy_run_has_no_cause_and_the_same_losses(tmp_path):
    losses, causes = run(tmp_path)
    assert causes == []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rksp.watch.attach.door.Finder, "hook", lambda self: None)  # nothing watches
        assert run(tmp_path)[0] == losses
    lines = [json.loads(x) for x in (tmp_path / ".jsonl").read_text().splitlines()]
    steps = [one for one in lines if one["kind"] == "step"]
    assert len(steps) == 30 and steps[-1]["rate"] == 3e-3
    assert steps[-1]["own"] == pytest.approx(losses[-1], rel=1e-5)


SOURCES = "".join(path.read_text() for path in (ROOT / "rksp/watch/attach").glob("*.py"))
FOUND = set(re.findall(r'(?:_once|Finding)\(\s*(?:name=)?"([^"]+)"', SOURCES))


@pytest.mark.parametrize("word", sorted({*get_args(Cause), *get_args(Word), *FOUND}))
def test_every_word_of_a_cause_or_of_what_is_expected_is_explained(word):
    assert find_word(word) is not None


def test_the_words_of_findings_are_found_and_another_is_unknown():
    assert {"no state", "never zeroed", "looks ahead"} <= FOUND and find_word("no finding") is None


def test_a_schedule_is_what_its_rates_show():
    warm = [1e-3 * (i + 1) / 20 for i in range(20)]
    assert schedule_seen([*warm, *[1e-3] * 60]) == {
        "learning_rate": 1e-3,
        "warmup_steps": 20,
        "schedule": "constant",
    }
    way = np.linspace(0, 1, 200)
    assert schedule_seen(list(1e-3 * (1 - way)))["schedule"] == "linear"
    assert schedule_seen(list(1e-3 * (1 + np.cos(np.pi * way)) / 2))["schedule"] == "cosine"
    steps = [1e-3] * 100 + [1e-4] * 100
    assert "schedule" not in schedule_seen(steps)


def test_rows_of_the_old_watch_are_known_by_what_they_lack():
    old = {"name": "GPT2", "state": "finished", "final_loss": 2.0, "min_lr_ratio": 0.1}
    assert is_of_old_watch(old)
    assert not is_of_old_watch(old | {"seed": 0})
    assert not is_of_old_watch(old | {"rksp.version": "0.12.0"})


def test_labels_are_no_words_wherever_a_pass_gets_them():
    words, labels = torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 3, dtype=torch.long)
    batch = {"input_ids": words, "labels": labels, "attention_mask": labels}
    for args, kwargs in (((), batch), ((batch, 0), {}), (([words, labels.float()],), {})):
        assert [one is words for one in words_of(args, kwargs)] == [True]
