"""Step clip: its bound after the step, where it does nothing, and what it cannot depend on."""

from __future__ import annotations

import pytest
import torch
from support.intervention_steps import RECIPE, few_batches, take_step
from support.small_zoo import small_member
from torch import nn

from lab.tasks.tasks import make_task
from lab.zoo import build_member
from rksp.datasets.batch import Batch, task_loss
from rksp.ground.errors import InputError, NotCovered
from rksp.recipe.optimizers.table import make_optimizer
from rksp.watch.interventions.step_clip import StepClip
from rksp.watch.interventions.updates import Updates
from rksp.watch.moment import Moment
from rksp.watch.output_change import FLOOR, OutputChange
from rksp.watch.registry import make_intervention
from rksp.watch.training import run

DELTA = 0.03
PATCHES = "vit.embeddings.patch_embeddings.projection"
SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 32,
}


def _stepped(model, optimizer, steps=3, **options):
    """Take steps; return the intervention and the weights before the last one."""
    clip = StepClip(**{"delta": DELTA} | options)
    clip.bind(model, optimizer)
    for step, batch in enumerate(few_batches(steps)):
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        take_step(model, optimizer, clip, step, batch)
    return clip, before


def _ratios(model, clip, before):
    """Measure every part of every sampled matrix anew, without the code under test."""
    names = {id(p): name for name, p in model.named_parameters()}
    found = {}
    for use in clip._outputs.uses:
        old, new = before[names[id(use.parameter)]], use.parameter.detach()
        sums = torch.zeros(3, len(use.names), dtype=torch.float64)
        for expert, x, _ in use.sampled:
            was, moved = (w if expert is None else w[expert] for w in (old, new - old))
            if use.is_transposed:
                was, moved = was.mT, moved.mT
            if not x.is_floating_point():
                y, dy = was[x], moved[x]
            elif was.dim() == 4:
                y, dy = (nn.functional.conv2d(x, w, stride=was.shape[-1]) for w in (was, moved))
                y, dy = (t.transpose(0, 1).flatten(1).T for t in (y, dy))
            else:
                y, dy = x @ was.T, x @ moved.T
            owners = use.owners.view(-1, y.shape[1])[expert or 0]
            for row, part in enumerate(owners.tolist()):
                sums[0, part] += dy[:, row].square().sum()
                sums[1, part] += y[:, row].square().sum()
                is_unit = use.is_head or not x.is_floating_point()
                least = 1.0 if is_unit else float(x.square().mean())
                sums[2, part] += least * len(y)
        for part, name in enumerate(use.names):
            if sums[2, part] > 0:
                size = torch.maximum(sums[1, part], sums[2, part])
                found[name] = float((sums[0, part] / size).sqrt())
    return found


@pytest.mark.parametrize("family", ["zoo_pre_ln", "zoo_moe", "zoo_kan", "gpt2", "llama", "mixtral"])
@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd", "lion", "muon", "adafactor"])
def test_no_matrix_moves_its_outputs_by_more_than_delta(family, optimizer):
    model = build_member(family, SMALL, seed=0)
    model = model if family == "mixtral" else model.double()  # its product of groups has no float64
    rate = {"sgd": 3.0, "adafactor": 3.0}.get(optimizer, 0.1)
    changes = {"optimizer": optimizer, "learning_rate": rate, "weight_decay": 0.1}
    clip, before = _stepped(model, make_optimizer(model, RECIPE.model_copy(update=changes)))
    ratios, tolerance = _ratios(model, clip, before), 3e-3 if family == "mixtral" else 1e-9
    assert len(ratios) > 5 and max(ratios.values()) <= DELTA * (1 + tolerance)
    assert max(ratios.values()) > 0.999 * DELTA  # or nothing was bounded


@pytest.mark.parametrize("family", ["zoo_pre_ln", "bert", "vit", "gpt2", "mixtral"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_run_in_which_nothing_is_scaled_is_bitwise_the_optimizers_own(family, optimizer):
    def trained(line: str | None) -> tuple[list, StepClip | None]:
        model = build_member(family, SMALL | {"vocab_size": 256}, seed=0)
        recipe = RECIPE.model_copy(update={"optimizer": optimizer, "max_steps": 3})
        task = {"bert": "masked_bytes", "vit": "noise"}.get(family, "bytes")
        batches = _images() if task == "noise" else make_task(task, length=16).batches(3, 4, seed=0)
        acting = [] if line is None else [make_intervention(line)]
        run(model, batches, recipe, interventions=acting)
        return [p.detach() for p in model.parameters()], acting[0] if acting else None

    bare, _ = trained(None)
    idle, clip = trained("step_clip:delta=1e6")
    acting, busy = trained("step_clip:delta=0.001")
    assert all(map(torch.equal, bare, idle)) and clip.actions == []
    assert clip.closing() == "step_clip scaled no update in 3 steps."
    assert not all(map(torch.equal, bare, acting)) and len(busy.actions) == 3
    assert "in 3 steps, most" in busy.closing()


def _images() -> list[Batch]:
    draws = torch.Generator().manual_seed(0)
    return [
        Batch(
            inputs=torch.randn(2, 1, 8, 8, generator=draws),
            labels=torch.randint(0, 10, (2,), generator=draws),
        )
        for _ in range(3)
    ]


def test_patches_are_bounded_as_the_convolution_that_they_are():
    model = build_member("vit", SMALL, seed=0).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=30.0)
    clip = StepClip(delta=DELTA)
    clip.bind(model, optimizer)
    batch = _images()[0]
    batch = Batch(inputs=batch.inputs.double(), labels=batch.labels)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    take_step(model, optimizer, clip, 0, batch)
    assert _ratios(model, clip, before)[PATCHES] == pytest.approx(DELTA, rel=1e-6)


def test_other_tensors_move_by_a_share_of_their_norm_and_biases_of_their_outputs():
    model = small_member(bias=True).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=100.0)
    clip, before = _stepped(model, optimizer, steps=1)
    moved = {n: p.detach() - before[n] for n, p in model.named_parameters()}
    gain, position = "blocks.0.norm_1.weight", "positions.weight"
    assert 0 < float(moved[gain].norm() / before[gain].norm()) <= DELTA * (1 + 1e-6)
    # Positions start at entries of 0.02, and count as entries of one.
    assert float(moved[position].square().mean().sqrt()) == pytest.approx(DELTA, rel=1e-6)
    bias = "blocks.0.attention.qkv.bias"
    use = next(u for u in clip._outputs.uses if u.path == "blocks.0.attention.qkv")
    size = use.sampled[0][2].square().mean().sqrt()  # a bias starts at zero
    assert float(moved[bias].square().mean().sqrt()) <= DELTA * max(1.0, float(size)) * (1 + 1e-6)
    assert float(moved[bias].norm()) > 0


def test_a_weight_that_starts_at_zero_leaves_it():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).double()
    nn.init.zeros_(model[1].weight)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    clip = StepClip(delta=DELTA)
    clip.bind(model, optimizer)
    x = torch.randn(32, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    sizes = []
    for step in range(60):
        moment = Moment(step=step, model=model, optimizer=optimizer)
        hooks = clip.arm(moment)
        (model(x) - x.flip(1)).square().mean().backward()
        for hook in hooks:
            hook.remove()
        clip.before_update(moment)
        optimizer.step()
        optimizer.zero_grad()
        clip.after_update(moment)
        sizes.append(float(model[1].weight.detach().norm()))
    assert 0 < sizes[0] < 0.5 < sizes[-1]  # by at most δ of unit size a step


class Positions(nn.Embedding):
    """A table of positions that is given what it counts: states, or tokens beyond its rows."""

    def forward(self, inputs):
        counted = torch.arange(inputs.shape[1])
        return super().forward(counted.expand(inputs.shape))


@pytest.mark.parametrize("inputs", [torch.ones(2, 3), torch.full((2, 3), 9), torch.full((2, 3), 2)])
def test_a_table_of_positions_that_counts_its_inputs_is_not_sampled(inputs):
    model, outputs = Positions(4, 8), OutputChange()
    outputs.bind(model)
    hooks = outputs.arm(0)
    model(inputs)
    for hook in hooks:
        hook.remove()
    assert [use.sampled for use in outputs.uses] == [[]]


def test_small_outputs_count_as_of_unit_size_in_the_clip_and_as_they_are_in_the_monitor():
    model = nn.Sequential(nn.Linear(8, 8, bias=False)).double()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(16, 8, dtype=torch.float64, generator=generator)
    with torch.no_grad():
        model[0].weight.copy_(0.05 * torch.randn(8, 8, dtype=torch.float64, generator=generator))
    outputs = OutputChange()
    outputs.bind(model)
    hooks = outputs.arm(0)
    size = model(x).detach().norm() / (x.square().mean() * x.numel()).sqrt()
    for hook in hooks:
        hook.remove()
    with torch.no_grad():
        model[0].weight.mul_(1.1)
    outputs.measure()
    assert float(size) < 0.5
    assert outputs.shares(FLOOR).tolist() == pytest.approx([0.1], rel=1e-9)
    assert outputs.shares().tolist() == pytest.approx([0.1 * float(size)], rel=1e-9)


@pytest.mark.parametrize("factor", [10.0, 1e6])
def test_the_bound_does_not_depend_on_the_scale_of_a_normalized_matrix(factor):
    """A matrix before a norm and its update scaled alike: the factor of the clip is the same.

    Its outputs are at least of the size at which features are learned.
    """
    found = []
    for scale in (1.0, factor):
        model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.LayerNorm(8, eps=0.0)).double()
        torch.manual_seed(0)
        nn.init.normal_(model[0].weight)
        with torch.no_grad():
            model[0].weight.mul_(scale)
        optimizer = torch.optim.SGD(model[:1].parameters(), lr=5.0 * scale**2)
        clip = StepClip(delta=DELTA)
        clip.bind(model, optimizer)
        x = torch.randn(16, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        moment = Moment(step=0, model=model, optimizer=optimizer)
        hooks = clip.arm(moment)
        model(x)[:, 0].sum().backward()
        for hook in hooks:
            hook.remove()
        clip.before_update(moment)
        optimizer.step()
        clip.after_update(moment)
        found.append((model[0].weight.detach() / scale, clip.actions[0].detail["least"]))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-9, atol=1e-12)
    assert found[1][1] == pytest.approx(found[0][1], rel=1e-9) and found[0][1] < 1


def test_parts_of_a_fused_projection_are_scaled_apart():
    model = small_member().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    clip = StepClip(delta=1e-3)
    clip.bind(model, optimizer)
    weight = model.blocks[0].attention.qkv.weight
    moment = Moment(step=0, model=model, optimizer=optimizer)
    hooks = clip.arm(moment)
    task_loss(model, few_batches(1)[0]).backward()
    for hook in hooks:
        hook.remove()
    weight.grad[:16] = 0.0
    weight.grad[16:32] *= 1e-9 / weight.grad[16:32].norm()
    weight.grad[32:] *= 10.0 / weight.grad[32:].norm()
    before, update = weight.detach().clone(), -weight.grad
    clip.before_update(moment)
    optimizer.step()
    clip.after_update(moment)
    moved = weight.detach() - before
    assert torch.equal(moved[:16], torch.zeros_like(moved[:16]))
    torch.testing.assert_close(moved[16:32], update[16:32], rtol=1e-6, atol=1e-15)
    shares = (moved[32:] / update[32:]).flatten()
    assert float(shares.max()) < 0.1 and float(shares.std()) < 1e-9  # the value alone, and evenly


@pytest.mark.parametrize(
    "options",
    [
        {"amsgrad": True},
        {"maximize": True},
        {"foreach": True},
        {"fused": True},
        {"decoupled_weight_decay": True},
        {"weight_decay": 0.3},
    ],
)
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adam])
def test_a_step_that_is_scaled_to_nothing_is_undone_from_the_state(kind, options):
    if kind is torch.optim.AdamW and "decoupled_weight_decay" in options:
        pytest.skip("AdamW always decouples")
    weight = nn.Parameter(torch.randn(5, 7, generator=torch.Generator().manual_seed(0)))
    optimizer = kind([weight], lr=0.1, **options)
    for step in range(5):
        weight.grad = torch.randn(5, 7, generator=torch.Generator().manual_seed(step))
        before = weight.detach().clone()
        optimizer.step()
        after = weight.detach().clone()
        updates = Updates()
        updates.bind(optimizer)
        updates.remember([weight], measured={weight})
        assert not updates.copies
        factor = torch.tensor([0.0, 0.25, 0.5, 0.75, 1 - 1e-6])
        updates.scale(weight, factor, is_transposed=False)
        expected = before + factor[:, None] * (after - before)
        torch.testing.assert_close(weight.detach(), expected, rtol=1e-5, atol=1e-6)


def test_samples_come_from_the_first_pass_and_accumulate_to_the_quota():
    model = small_member()
    optimizer = make_optimizer(model, RECIPE)
    clip = StepClip(tokens=200)
    clip.bind(model, optimizer)
    moment = Moment(step=0, model=model, optimizer=optimizer)
    hooks = clip.arm(moment)
    for batch in few_batches(3):
        task_loss(model, batch).backward()
    for hook in hooks:
        hook.remove()
    counts = {use.path: sum(len(x) for _, x, _ in use.sampled) for use in clip._outputs.uses}
    assert counts.pop("positions") == 0  # the model reads its rows without calling it
    assert set(counts.values()) == {200} and len(counts) > 5  # of 3 times 128


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_rounding_of_a_low_precision_scales_nothing(precision):
    """Outputs of bfloat16 differ by 0.4 % from those of float32, and no update is that small."""
    model = small_member("llama")
    recipe = RECIPE.model_copy(
        update={"precision": precision, "learning_rate": 1e-7, "max_steps": 3}
    )
    clip = StepClip(delta=0.01)
    run(model, few_batches(3), recipe, interventions=[clip])
    assert clip.actions == []
    busy = StepClip(delta=0.01)
    faster = recipe.model_copy(update={"learning_rate": 1e-2})
    run(small_member("llama"), few_batches(3), faster, interventions=[busy])
    assert len(busy.actions) == 3


def test_weights_in_bfloat16_are_bounded_up_to_their_rounding():
    model = small_member().to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.03)
    clip, before = _stepped(model, optimizer, delta=0.1)
    weight = model.blocks[0].feed_forward.up.weight.detach()
    was = before["blocks.0.feed_forward.up.weight"]
    use = next(u for u in clip._outputs.uses if u.path.endswith("0.feed_forward.up"))
    x = use.sampled[0][1].float()
    moved, outputs = x @ (weight - was).float().T, x @ was.float().T
    unit = x.square().mean().sqrt() * outputs.numel() ** 0.5
    ratio = moved.norm() / torch.maximum(outputs.norm(), unit)
    assert float(ratio) == pytest.approx(0.1, rel=0.1)


def test_a_compiled_model_is_clipped_or_refused_but_never_ignored():
    model = small_member()
    optimizer = make_optimizer(model, RECIPE.model_copy(update={"learning_rate": 0.1}))
    compiled = torch.compile(model, backend="eager")
    batches = few_batches(3)
    task_loss(compiled, batches[0]).backward()  # compiled without the hooks
    clip = StepClip(delta=DELTA)
    clip.bind(model, optimizer)
    moment = Moment(step=1, model=model, optimizer=optimizer)
    hooks = clip.arm(moment)
    task_loss(compiled, batches[1]).backward()
    for hook in hooks:
        hook.remove()
    seen = [use for use in clip._outputs.uses if use.sampled]
    if not seen:
        with pytest.raises(InputError, match=r"torch\.compile"):
            clip.before_update(moment)
    else:
        assert len(seen) == len(clip._outputs.uses)


def test_a_step_without_an_update_changes_nothing():
    model = small_member()
    optimizer = make_optimizer(model, RECIPE)
    clip, _ = _stepped(model, optimizer, delta=1e-4)
    count, before = len(clip.actions), [p.detach().clone() for p in model.parameters()]
    moment = Moment(step=3, model=model, optimizer=optimizer)
    for hook in clip.arm(moment):
        hook.remove()
    clip.after_update(moment)  # the loss was not finite: no gradient, no step
    assert len(clip.actions) == count
    assert all(map(torch.equal, before, (p.detach() for p in model.parameters())))


def test_delta_follows_the_rate():
    clip = StepClip(delta=0.1)
    model = small_member()
    rates = [0.5, 1.0, 0.5, 0.1]
    bounds = [
        clip._bound(Moment(step=step, model=model, learning_rate=rate))
        for step, rate in enumerate(rates)
    ]
    assert bounds == pytest.approx([0.1, 0.1, 0.05, 0.01])


def test_what_it_refuses():
    with pytest.raises(InputError, match="delta=0"):
        StepClip(delta=0.0)
    frozen = small_member().requires_grad_(False)
    with pytest.raises(NotCovered, match="matrix"):
        StepClip().bind(frozen, torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0))
    assert make_intervention("step_clip=0.1").delta == 0.1


def _of_rate(model, batch, scaled):
    """Take one step of Adam, and return by what part of it each named parameter moved."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
    clip = StepClip(delta=DELTA if scaled else 1e6)
    clip.bind(model, optimizer)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    take_step(model, optimizer, clip, 0, batch)
    return {name: float((p.detach() - before[name]).norm()) for name, p in model.named_parameters()}


def test_what_all_tokens_share_moves_no_faster_than_the_matrices():
    batch = make_task("masked_repeats", length=16, vocab=16).batches(1, 4, seed=0)[0]
    shape = SMALL | {"vocab_size": 16}
    whole, held = (_of_rate(build_member("bert", shape, seed=0), batch, s) for s in (False, True))
    share = {name: held[name] / whole[name] for name in held if whole[name] > 1e-6}
    matrices = [
        value
        for name, value in share.items()
        if name.endswith("weight") and ("encoder" in name or "dense" in name) and "Norm" not in name
    ]
    lowest, mean = min(matrices), torch.tensor(matrices).log().mean().exp()
    assert lowest < mean < 1
    for name, value in share.items():
        if "embeddings.weight" in name:
            assert value <= lowest * (1 + 1e-4), name
        if "bias" in name or "LayerNorm.weight" in name:
            assert value <= mean * (1 + 1e-4), name


def test_embeddings_that_no_norm_reads_at_once_keep_their_own_bound():
    model = build_member("gpt2", SMALL, seed=0)
    clip = StepClip()
    clip.bind(model, torch.optim.Adam(model.parameters()))
    assert not clip._normed
    bert = build_member("bert", SMALL, seed=0)
    clip.bind(bert, torch.optim.Adam(bert.parameters()))
    assert len(clip._normed) == 3
