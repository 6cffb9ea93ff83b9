"""The cause of an alarm: what is named on planted faults, and what is not on healthy steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rksp.watch.attach.arithmetic import first_bad
from rksp.watch.attach.audit import audited
from rksp.watch.attach.cause import Evidence, diagnose
from rksp.watch.attach.checks import Checks
from rksp.watch.attach.kept import Kept
from rksp.watch.attach.settings import Settings
from rksp.watch.attach.targets import Targets, criteria_of
from rksp.watch.faults.computation import LowPrecisionAttention, MatmulCorruption, flip_bit
from rksp.watch.moment import Moment

WORDS = 24


class Mixer(nn.Module):
    """Embedding, one causal attention, two linear maps; returns logits."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.value = nn.Embedding(WORDS, 16), nn.Linear(16, 16)
        self.out, self.head = nn.Linear(16, 16), nn.Linear(16, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        q, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in (x, self.value(x)))
        mixed = F.scaled_dot_product_attention(q, q, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return self.head(x + self.out(x).tanh())  # a module that is called twice


class Run:
    """A loop that keeps what `rksp watch` keeps, and learns that each word follows its last."""

    def __init__(self, memory: float = 1e9) -> None:
        torch.manual_seed(0)
        self.model = Mixer()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.kept = Kept(self.model, memory, is_compiled=False)
        self.step = 0

    def batch(self) -> Tensor:
        return (torch.randint(WORDS, (8, 1)) + torch.arange(9)) % WORDS

    def backward(self, rows: Tensor | None = None, *, is_sum: bool = False) -> None:
        """Take the passes of a step, without its update."""
        rows = self.batch() if rows is None else rows
        self.kept.begin(self.step)
        self.optimizer.zero_grad()
        self.kept.add((rows[:, :-1],), {})
        loss = F.cross_entropy(self.model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        self.kept.add_criterion(criteria_of(loss))
        loss.backward()
        self.kept.steps[-1].loss = loss.item() * (rows[:, 1:].numel() if is_sum else 1)
        self.step += 1

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.backward()
            self.optimizer.step()

    def cause(self, **more: object) -> tuple[str, str]:
        targets, optimizers = Targets(), [self.optimizer]
        evidence = Evidence(
            kept=self.kept,
            called=self.model,
            optimizers=optimizers,
            checks=Checks(self.model, lambda: optimizers, targets),
            settings=Settings(self.model),
            targets=targets,
            is_faithful=True,
        )
        for name, value in more.items():
            setattr(evidence, name, value)
        found = diagnose(evidence)
        return found.cause, found.module


@pytest.fixture
def run() -> Iterator[Run]:
    made = Run()
    made.train(30)
    yield made


def test_a_healthy_step_has_no_cause_and_is_left_as_it_was(run):
    run.backward()
    before = {n: t.clone() for n, t in run.model.state_dict().items()}
    gradients = [p.grad.clone() for p in run.model.parameters()]
    random = torch.get_rng_state()
    assert run.cause() == ("unknown", "")
    after = run.model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert all(
        torch.equal(p.grad, g) for p, g in zip(run.model.parameters(), gradients, strict=True)
    )
    assert torch.equal(torch.get_rng_state(), random)


def test_a_flipped_bit_of_a_weight_names_the_weight(run):
    flip_bit(run.model.out.weight.data, 7, 30)
    run.backward()
    assert run.cause() == ("weight", "out.weight")


def test_a_flipped_bit_of_a_gradient_names_the_gradient(run):
    run.backward()
    flip_bit(run.model.value.weight.grad, 7, 30)
    assert run.cause() == ("gradient", "value.weight")


def test_a_bad_batch_stands_out_among_its_neighbors(run):
    run.backward(torch.randint(WORDS, (8, 9)))
    assert run.cause() == ("data", "")


@pytest.mark.parametrize("has_warmed_up", [True, False])
def test_steps_that_are_too_long_are_told_from_the_same_batches(run, has_warmed_up):
    run.optimizer.param_groups[0]["lr"] = 3.0
    run.train(2)
    run.backward()
    expected = "rate" if has_warmed_up else "warm-up"
    assert run.cause(has_warmed_up=has_warmed_up) == (expected, "")


def test_a_loss_may_be_the_sum_over_its_words(run):
    for _ in range(12):  # as torchtune's, which divides gradients afterwards
        run.backward(is_sum=True)
    assert run.cause() == ("unknown", "")
    run.kept.steps[-1].loss *= 1.2
    assert run.cause() == ("passing", "")


def test_of_several_criteria_those_of_one_kind_are_taken(run):
    logits = torch.zeros(2, WORDS, requires_grad=True)
    one, two = (F.cross_entropy(logits, torch.full((2,), target)) for target in (1, 2))
    other = F.cross_entropy(logits[:, :-1], torch.ones(2, dtype=torch.long))
    square = F.mse_loss(logits, torch.ones_like(logits))
    losses = (one, one + two, one + other, square, square + one, square + 2 * square)
    assert [len(criteria_of(loss)) for loss in losses] == [1, 2, 0, 1, 0, 1]
    assert [float(part) for part in criteria_of(square)[0][1:]] == [2.0 * WORDS] * 2


def test_a_nan_that_the_model_is_given_is_the_datas(run):
    for given, expected in ((math.nan, "data"), (1.0, "unknown")):
        scale = torch.tensor(given)
        run.kept.begin(run.step)
        run.kept.add((run.batch()[:, :-1],), {"scale": scale})
        assert run.cause(loss=math.nan, called=None)[0] == expected


def test_a_step_that_was_wrong_once_is_told_from_its_repetition(run):
    run.backward()
    run.kept.steps[-1].loss = math.inf
    assert run.cause() == ("passing", "")


def test_inputs_that_the_script_wrote_over_are_not_repeated(run):
    run.backward(torch.randint(WORDS, (8, 9)))
    for step in run.kept.steps:
        step.passes[0].args[0].zero_()
    assert run.cause() == ("unknown", "")


def test_without_room_no_weights_are_copied_and_old_inputs_go():
    run = Run(memory=1200.0)
    run.train(10)
    assert not run.kept.earlier and len(run.kept.steps) == 2
    run.train(1)
    flip_bit(run.model.out.weight.data, 7, 30)
    run.backward()
    assert run.cause() == ("weight", "out.weight")  # it needs no copy


@pytest.fixture(params=[False, True], ids=["apart", "tied"])
def audit(request) -> Callable[[torch.dtype | None], list]:
    torch.manual_seed(0)
    model, rows = Mixer(), torch.randint(WORDS, (16, 33))
    if request.param:
        model.head.weight = model.embed.weight

    def found(low: torch.dtype | None = None, scale: float = 1.0, look: Callable = audited) -> list:
        def step() -> Tensor:
            with torch.autocast("cpu", low, enabled=low is not None):
                logits = model(rows[:, :-1])
            return F.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten()) * scale

        seen = look(model, step)
        return [(one.module, one.what) for one in seen] if look is audited else seen

    found.model = model
    return found


@pytest.mark.parametrize("low", [None, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [1.0, 1e-41])  # gradients below the normal numbers of float32
def test_products_of_a_sound_step_are_exact(audit, low, scale):
    assert audit(low, scale) == []


@pytest.mark.parametrize("name", ["out", "head"])
@pytest.mark.parametrize("product", ["output", "input_gradient", "weight_gradient"])
def test_a_wrong_product_is_named(audit, product, name):
    fault = MatmulCorruption(step=0, product=product, name=name)
    fault.bind(audit.model, seed=0)
    if product == "weight_gradient":
        audit.model.get_submodule(name).weight.register_hook(fault._changed)
    fault.arm(Moment(step=0, model=audit.model))
    assert audit()[0] == (name, product.replace("_", " "))


def test_a_loss_that_reads_the_tied_weight_itself_is_no_defect(audit):
    model, tokens = audit.model, torch.arange(8)[None]

    def step() -> Tensor:
        return F.linear(model.embed(tokens), model.head.weight).square().mean()

    assert audited(model, step) == []


def test_attention_in_too_few_bits_is_named(audit):
    (tap,) = LowPrecisionAttention(bits=7).arm(Moment(step=0, model=audit.model))
    found = audit()
    tap.remove()
    assert {one[1] for one in found} == {"attention"}


def test_an_overflow_of_float16_is_told_from_a_wrong_product(audit):
    half = torch.float16
    for scale in (2.0**40, 1.0):
        assert audit(half, scale) == []
        assert audit(half, scale, first_bad).kind == half
        audit.model.value.weight.data.mul_(2.0**20)
    assert audit(half, 1.0, first_bad).module == "value"


def test_weights_that_overflow_float32_are_no_wrong_product(audit):
    with torch.no_grad():
        audit.model.out.weight.fill_(1e38)
        audit.model.value.weight.fill_(1e38)
    assert audit() == []
