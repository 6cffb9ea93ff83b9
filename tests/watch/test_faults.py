"""Faults: each strikes where it says, as the seed says, and nowhere else."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from support.fault_runs import RECIPE, faulty_run, same_run
from support.places import ROOT
from support.small_zoo import small_member
from torch import nn
from torch.nn import functional as F

from lab.tasks.tasks import associative_recall
from rksp.datasets.batch import Batch, task_loss
from rksp.ground.errors import InputError, NotCovered
from rksp.models.resolve import resolve_tiny
from rksp.recipe import Recipe
from rksp.watch.faults.computation import BitFlip, MatmulCorruption, ReplicaCorruption, flip_bit
from rksp.watch.faults.run_faults import LargeRate
from rksp.watch.moment import Moment
from rksp.watch.registry import FAULTS, make_fault

LATE = [
    "low_precision_attention:step=6",
    "large_rate:step=6",
    "bitflip:step=6,where=weights",
    "bitflip:step=6,where=gradients",
    "bitflip:step=6,where=activations",
    "matmul:step=6",
]


def test_faults_before_their_step_leave_a_run_bitwise_unchanged():
    assert same_run(faulty_run(), faulty_run(*map(make_fault, LATE)))
    assert not same_run(faulty_run(), faulty_run(make_fault("bitflip:step=0,bit=30")))


@pytest.mark.parametrize(
    "text",
    [
        "bitflip:step=2,where=weights",
        "bitflip:step=2,where=gradients,bit=30",
        "bitflip:step=2,where=activations,bit=26",
        "low-precision-attention:step=1",
        "large_rate:factor=3,step=2",
        "matmul:step=2",
        "matmul:step=2,product=input_gradient",
        "matmul:step=2,product=weight_gradient",
    ],
)
def test_same_seed_same_fault(text):
    first = faulty_run(make_fault(text), seed=3)
    assert same_run(first, faulty_run(make_fault(text), seed=3))
    assert not same_run(first, faulty_run())


def test_the_fault_of_the_readme_ruins_a_run_at_any_seed():
    [line] = re.findall(
        r"--fault (\S+)` ruins", (ROOT / "rksp/confirm/README.md").read_text(encoding="utf-8")
    )
    model = resolve_tiny("gpt2").build(0)
    tokens = torch.arange(64).view(2, 32) % model.config.vocab_size
    batch = Batch(inputs={"input_ids": tokens}, labels=tokens.roll(-1, 1))
    healthy = copy.deepcopy(model.state_dict())
    for seed in range(12):
        model.load_state_dict(healthy)
        fault = make_fault(line)
        fault.bind(model, seed=seed)
        assert task_loss(model, batch) < 10
        fault.after_update(Moment(step=fault.step, model=model, optimizer=None))
        assert not task_loss(model, batch) < 50  # a run with such a loss, or NaN, has diverged


def test_seeds_strike_different_places():
    struck = set()
    for seed in range(6):
        fault = BitFlip(step=0)
        faulty_run(fault, steps=1, seed=seed)
        struck.add(fault.struck)
    assert len(struck) == 6


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_flip_changes_one_bit_and_twice_restores(dtype):
    integer = {8: torch.int64, 4: torch.int32, 2: torch.int16}[dtype.itemsize]
    original = torch.randn(5, 7, generator=torch.Generator().manual_seed(0)).to(dtype)
    for strides in (original, original.mT):
        for bit in (0, 8 * dtype.itemsize - 2, 8 * dtype.itemsize - 1):
            tensor = strides.clone()
            flip_bit(tensor, 11, bit)
            changed = tensor.view(integer) ^ strides.clone().view(integer)
            words = changed.flatten().tolist()
            mask = (1 << 8 * dtype.itemsize) - 1
            assert [bin(word & mask).count("1") for word in words] == [0] * 11 + [1] + [0] * 23
            assert words[11] & mask == 1 << bit
            flip_bit(tensor, 11, bit)
            assert torch.equal(tensor, strides)


def test_flip_reaches_the_storage_of_a_view_and_checks_its_arguments():
    tensor = torch.zeros(4, 3)
    flip_bit(tensor.mT, 1, 31)  # the transpose's second element is the first of row one
    assert torch.signbit(tensor).nonzero().tolist() == [[1, 0]]
    for index, bit in ((12, 0), (0, 32), (-1, 0)):
        with pytest.raises(InputError, match="no bit"):
            flip_bit(tensor, index, bit)


@pytest.mark.parametrize("where", ["weights", "gradients"])
def test_one_number_of_the_run_is_struck(where):
    fault = BitFlip(step=0, where=where, name="blocks.1.feed_forward.up.weight", element=5, bit=31)
    _, gradients, model = faulty_run(fault, steps=1)
    _, clean_gradients, clean = faulty_run(steps=1)
    if where == "weights":
        pairs = list(zip(model.parameters(), clean.parameters(), strict=True))
    else:
        pairs = list(zip(gradients, clean_gradients, strict=True))
    different = [(a != b).sum().item() for a, b in pairs]
    assert sum(different) == 1
    (struck, clean_one) = next(p for p, n in zip(pairs, different, strict=True) if n)
    assert struck.flatten()[5] == -clean_one.flatten()[5]


def test_an_activation_is_struck_once_and_passes_its_gradient():
    fault = BitFlip(step=1, where="activations", name="blocks.0.feed_forward.down", bit=29)
    struck, clean = faulty_run(fault, steps=3), faulty_run(steps=3)
    assert struck[0][0] == clean[0][0]
    assert struck[0][1] != clean[0][1]
    assert "blocks.0.feed_forward.down" in fault.struck
    linear = nn.Linear(3, 2)
    fault = BitFlip(step=0, where="activations", element=0, bit=31)
    fault.bind(linear, seed=0)
    (hook,) = fault.arm(Moment(step=0, model=linear))
    x = torch.ones(1, 3)
    first, second = linear(x), linear(x)
    hook.remove()
    assert first.tolist() == [[-second[0, 0].item(), second[0, 1].item()]]
    (gradient,) = torch.autograd.grad(first.sum(), linear.bias)
    assert gradient.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("product", ["output", "input_gradient", "weight_gradient"])
def test_a_faulty_multiplier_spoils_one_column_of_one_product(product):
    layer = nn.Sequential(nn.Linear(4, 5))
    x = torch.randn(3, 4, requires_grad=True)
    found = []
    for is_struck in (False, True):
        layer.zero_grad()
        x.grad = None
        fault = MatmulCorruption(step=0, steps=1, product=product)
        fault.bind(layer, seed=1)
        moment = Moment(step=0 if is_struck else 1, model=layer)
        hooks = fault.arm(moment)
        y = layer(x)
        y.square().sum().backward()
        for hook in hooks:
            hook.remove()
        fault.after_backward(moment)
        found.append({"output": y.detach(), "input_gradient": x.grad.clone()})
        found[-1]["weight_gradient"] = layer[0].weight.grad.clone()
    ratio = found[1][product] / found[0][product]
    columns = (ratio != 1).any(0)
    assert int(columns.sum()) == 1
    struck = ratio[:, columns].log2().abs()
    torch.testing.assert_close(struck, torch.full_like(struck, 8.0), rtol=1e-3, atol=0)
    if product != "output":
        assert torch.equal(found[0]["output"], found[1]["output"])


def test_a_faulty_multiplier_stays_or_ends_as_told():
    assert not same_run(faulty_run(), faulty_run(MatmulCorruption(step=5)))
    once, always = (
        faulty_run(MatmulCorruption(step=1, steps=1)),
        faulty_run(MatmulCorruption(step=1)),
    )
    assert not same_run(once, always) and once[0][:2] == always[0][:2]
    with pytest.raises(InputError, match="product='up'"):
        make_fault("matmul:product=up")
    with pytest.raises(NotCovered, match="no linear layer"):
        MatmulCorruption(name="absent").bind(small_member("zoo_pre_ln"), seed=0)


def test_unknown_places_are_not_covered():
    for fault in (BitFlip(name="nowhere"), BitFlip(where="activations", name="nowhere")):
        with pytest.raises(NotCovered, match="nowhere"):
            fault.bind(small_member(), seed=0)


def test_large_rate_equals_the_recipe_at_that_rate():
    high = RECIPE.model_copy(update={"learning_rate": 3e-2})
    assert LargeRate(factor=3).recipe(RECIPE) == high
    assert LargeRate(factor=3, step=2).recipe(RECIPE) == RECIPE
    with pytest.raises(InputError, match="learning-rate"):
        LargeRate().recipe(Recipe())


def test_a_late_large_rate_multiplies_once_whether_or_not_the_loop_sets_rates():
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    fault = LargeRate(factor=4.0, step=1)
    rates = []
    for step in range(4):
        if step == 3:
            optimizer.param_groups[0]["lr"] = 0.05
        fault.after_backward(Moment(step=step, model=nn.Module(), optimizer=optimizer))
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.1, 0.4, 0.4, 0.2])


@pytest.mark.parametrize("family", ["zoo_moe", "mixtral"])
def test_aux_off_removes_the_routers_loss_from_the_next_step_on(family):
    fault = make_fault("aux_off:step=1")
    model = small_member(family, router_aux_loss_coef=0.5)
    fault.bind(model, seed=0)
    batch = associative_recall(length=32, vocab=64).batches(1, 4, seed=1)[0]
    losses = []
    for step in (0, 1):
        fault.arm(Moment(step=step, model=model))
        losses.append(task_loss(model, batch).item())
    logits = model(batch.inputs).logits.detach()
    bare = F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten()).item()
    assert losses[0] > losses[1] + 1e-3
    assert losses[1] == pytest.approx(bare, rel=1e-6)


def test_aux_off_needs_an_auxiliary_loss():
    with pytest.raises(NotCovered, match="auxiliary"):
        make_fault("aux_off").bind(small_member(), seed=0)
    with pytest.raises(NotCovered, match="auxiliary"):
        make_fault("aux_off").bind(small_member("zoo_moe", router_aux_loss_coef=0.0), seed=0)


@pytest.fixture
def second_of_two():
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=1, world_size=2, store=FakeStore())
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("where", ["activations", "gradients"])
def test_only_the_faulty_replica_is_corrupted(second_of_two, where):
    clean = faulty_run()
    assert same_run(clean, faulty_run(ReplicaCorruption(rank=0, step=1, where=where)))
    struck = faulty_run(ReplicaCorruption(rank=1, step=1, where=where))
    assert struck[0][0] == clean[0][0] and not same_run(struck, clean)
    assert same_run(struck, faulty_run(ReplicaCorruption(rank=1, step=1, where=where)))


def test_replica_corruption_ends_and_needs_its_rank(second_of_two):
    fault = ReplicaCorruption(rank=1, step=1, steps=2)
    model = small_member()
    fault.bind(model, seed=0)
    armed = [bool(fault.arm(Moment(step=step, model=model))) for step in range(4)]
    assert armed == [False, True, True, False]
    with pytest.raises(NotCovered, match="torchrun"):
        ReplicaCorruption(rank=2).bind(small_member(), seed=0)


def test_replica_corruption_needs_a_process_group():
    with pytest.raises(NotCovered, match="torchrun"):
        ReplicaCorruption(rank=1).bind(small_member(), seed=0)
    with pytest.raises(NotCovered, match="torchrun"):
        ReplicaCorruption(rank=0).bind(small_member(), seed=0)


def test_faults_combine():
    texts = ("large_rate:factor=2", "bitflip:step=1,where=gradients,bit=28")
    both = faulty_run(*map(make_fault, texts))
    assert not any(same_run(both, faulty_run(make_fault(text))) for text in texts)


def test_lines_are_parsed_and_misspellings_answered():
    fault = make_fault("bitflip: step=50, where=gradients ,bit=3")
    assert (fault.step, fault.where, fault.bit) == (50, "gradients", 3)
    assert set(FAULTS) == {
        "low_precision_attention",
        "large_rate",
        "aux_off",
        "bitflip",
        "matmul",
        "replica",
        "bad_batches",
    }
    for text, message in (
        ("bitflop", "did you mean bitflip"),
        ("bitflip:stp=3", "did you mean step"),
        ("bitflip:step", "key=value"),
        ("bitflip:step=x", "step='x'"),
        ("bitflip:where=biases", "where"),
        ("large_rate:factor=0", "factor"),
    ):
        with pytest.raises(InputError, match=message):
            make_fault(text)


def test_faults_do_not_share_state():
    fault = make_fault("bitflip:step=0")
    twin = copy.deepcopy(fault)
    faulty_run(fault, steps=1)
    assert fault.struck and not twin.struck
