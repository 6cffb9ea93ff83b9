"""Monitors of scalars, activations and replicas: against float64 by hand; firing and silent."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lab.zoo import ZooConfig, ZooTransformer
from rksp.datasets.batch import Batch, run_pass
from rksp.ground.errors import NotCovered
from rksp.kernels import cross_entropy, wide_output
from rksp.spectra.dmd import fit
from rksp.watch.groups import block_paths, parameter_groups
from rksp.watch.moment import Moment
from rksp.watch.monitors.attention import NearUnitMass
from rksp.watch.monitors.base import Monitor, Reading
from rksp.watch.monitors.rules import Rules, replay
from rksp.watch.monitors.scalars import (
    ActivationRange,
    GradientNorm,
    LossSpike,
    NonFinite,
    OutputLogZ,
)
from rksp.watch.monitors.silent_corruption import SilentCorruption
from rksp.watch.monitors.watch import Watch
from rksp.watch.monitors.weights import UpdateRMS

VOCABULARY = 31


def _model(**fields: object) -> ZooTransformer:
    torch.manual_seed(0)
    small = {
        "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2,
        "vocab_size": VOCABULARY, "max_position_embeddings": 32, "init_std": 0.2,
    }  # fmt: skip
    return ZooTransformer(ZooConfig(**{**small, **fields}))


def _tokens(seed: int = 0, rows: int = 4, length: int = 16) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCABULARY, (rows, length), generator=generator)


def _loss(model: nn.Module, tokens: Tensor) -> Tensor:
    logits = model(tokens).logits
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def _step(model: nn.Module, monitor: Monitor, step: int = 0, *, scale: float = 1.0, **moment):
    """One armed forward and backward pass; the readings of the gradient phase."""
    watch = Watch([monitor])
    if step == 0:
        assert watch.bind(model) == {}
    else:
        watch._model = model
    watch.begin_step(step)
    loss = scale * _loss(model, _tokens(step))
    loss.backward()
    moment.setdefault("loss", float(loss.detach()))
    watch.after_backward(Moment(step=step, model=model, **moment))
    assert watch.silent == {}
    return watch.readings


def _of(readings: list[Reading], quantity: str) -> dict[str, float]:
    return {r.layer: r.value for r in readings if r.quantity == quantity}


def _alarms(monitor: Monitor, rows: dict[str, list[float]], quantity: str) -> list:
    """Alarms of the default rules on series of one quantity, layer by layer."""
    readings = [
        Reading(monitor=monitor.name, quantity=quantity, step=step, layer=layer, value=values[step])
        for step in range(len(next(iter(rows.values()))))
        for layer, values in rows.items()
    ]
    return replay(readings, Rules())


def _noise(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(count)


# groups


def test_blocks_are_the_children_of_the_outermost_list() -> None:
    model = _model(feed_forward="moe")  # its experts are a list inside of a block
    assert block_paths(model) == ("blocks.0", "blocks.1", "blocks.2")
    groups = parameter_groups(model)
    assert sum(len(group) for group in groups.values()) == len(list(model.parameters()))
    assert {"blocks.0", "blocks.1", "blocks.2", "embed"} <= set(groups)
    assert block_paths(nn.Sequential(nn.Linear(2, 2))) == ()


# gradient-norm


def test_gradient_norm_by_hand() -> None:
    model = _model()
    readings = _step(model, GradientNorm())
    by_hand: dict[str, float] = {}
    for name, p in model.named_parameters():
        parts = name.split(".")
        group = ".".join(parts[:2]) if parts[0] == "blocks" else ".".join(parts[:-1])
        by_hand[group] = by_hand.get(group, 0.0) + float(p.grad.double().square().sum())
    total = sum(by_hand.values())
    assert _of(readings, "gradient_norm") == {"": pytest.approx(math.sqrt(total), rel=1e-6)}
    found = _of(readings, "block_gradient_norm")
    assert found == pytest.approx({k: math.sqrt(v) for k, v in by_hand.items()}, rel=1e-5)
    assert readings[0].detail["top_share"] == pytest.approx(max(by_hand.values()) / total)


def test_gradient_norm_leaves_out_what_is_not_finite_and_what_has_no_gradient() -> None:
    model = _model()
    monitor = GradientNorm()
    assert monitor.bind(model) is None
    assert monitor.read(Moment(step=0, model=model)) == []
    model.blocks[1].attention.qkv.weight.grad = torch.full((48, 16), math.nan)
    model.embed.weight.grad = torch.ones(VOCABULARY, 16)
    found = _of(monitor.read(Moment(step=0, model=model)), "block_gradient_norm")
    assert found == {"embed": pytest.approx(math.sqrt(VOCABULARY * 16))}
    frozen = nn.Linear(2, 2).requires_grad_(False)
    assert monitor.bind(frozen) == "no parameter is trained"


def test_a_sparse_gradient_counts_each_row_once() -> None:
    model = nn.Embedding(8, 2, sparse=True)
    model(torch.tensor([3, 3, 5])).sum().backward()  # row 3 twice: 2 and 2
    watch = Watch([GradientNorm(), NonFinite()])
    watch.bind(model)
    watch.begin_step(0)
    watch.after_backward(Moment(step=0, model=model))
    found = {one.quantity: one.value for one in watch.readings}
    assert found["gradient_norm"] == pytest.approx(math.sqrt(2 * 2**2 + 2 * 1**2))
    assert found["non_finite_gradients"] == 0.0 and not watch.silent


def test_a_gradient_whose_square_overflows_has_a_norm_and_is_finite() -> None:
    model = _model()
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    model.embed.weight.grad[3, 4] = 1e30
    moment = Moment(step=0, model=model, loss=1.0)
    monitors = GradientNorm(), NonFinite()
    readings = []
    for monitor in monitors:
        monitor.bind(model)
        readings += monitor.read(moment)
    assert _of(readings, "gradient_norm")[""] == pytest.approx(1e30, rel=1e-6)
    assert set(_of(readings, "non_finite_gradients").values()) == {0.0}


def test_gradient_norm_fires_at_a_spike_and_not_at_noise() -> None:
    healthy = list(np.exp(0.2 * _noise(200)))
    assert _alarms(GradientNorm(), {"": healthy}, "gradient_norm") == []
    rare = [*healthy[:150], 12.0, *healthy[151:]]  # once, as ordinary runs have it
    assert _alarms(GradientNorm(), {"": rare}, "gradient_norm") == []
    spiked = [*healthy[:150], 60.0, *healthy[151:]]
    (alarm,) = _alarms(GradientNorm(), {"": spiked}, "gradient_norm")
    assert (alarm.step, alarm.advice) == (150, "zclip")
    assert alarm.baseline == pytest.approx(1.0, rel=0.2)


# loss


def test_loss_excess_is_the_mean_over_its_running_minimum() -> None:
    monitor, model = LossSpike(), _model()
    monitor.bind(model)
    losses = [4.0, 3.0, math.nan, 2.0, 9.0, 9.0]
    found = []
    for step, loss in enumerate(losses):
        found += monitor.read(Moment(step=step, model=model, loss=loss))
    excess = {r.step: r.value for r in found if r.quantity == "loss_excess"}
    mean, lowest, expected = None, math.inf, {}
    for step, loss in enumerate(losses):
        if math.isfinite(loss):
            mean = loss if mean is None else 0.98 * mean + 0.02 * loss
            lowest = min(lowest, mean)
            expected[step] = mean - lowest
    assert excess == pytest.approx(expected)
    assert monitor.read(Moment(step=6, model=model)) == []
    monitor.reset()
    again = monitor.read(Moment(step=7, model=model, loss=50.0))
    assert _of(again, "loss_excess")[""] == 0.0


def test_loss_fires_at_a_spike_and_not_at_a_noisy_descent() -> None:
    descent = 2 + 2 * np.exp(-np.arange(300) / 60) + 0.1 * _noise(300)
    assert _alarms(LossSpike(), {"": list(descent)}, "loss") == []
    descent[250] += 2.0
    (alarm,) = _alarms(LossSpike(), {"": list(descent)}, "loss")
    assert alarm.step == 250 and alarm.baseline == pytest.approx(2.0, abs=0.15)


# non-finite


def test_non_finite_names_the_first_bad_module_in_forward_order() -> None:
    model = _model()
    place = dict(model.named_modules())["blocks.1.feed_forward"]
    leaf_name, leaf = next((n, m) for n, m in place.named_modules() if isinstance(m, nn.Linear))

    def poison(module: nn.Module, args: tuple, output: Tensor) -> Tensor:
        output = output.clone()
        output[0, 0, 0] = math.inf
        return output

    handle = leaf.register_forward_hook(poison)
    readings = _step(model, NonFinite())
    first = f"blocks.1.feed_forward.{leaf_name}"
    assert {r.quantity: (r.layer, r.value) for r in readings}["non_finite_loss"] == (first, 1.0)
    (modules,) = [r for r in readings if r.quantity == "non_finite_modules"]
    assert modules.layer == first and modules.value >= 2
    assert [a.step for a in replay(readings, Rules()) if a.severity == "critical"] == [0, 0, 0]
    handle.remove()
    model.zero_grad()
    healthy = _step(model, NonFinite())
    assert {r.quantity: (r.layer, r.value) for r in healthy} == {
        "non_finite_loss": ("", 0.0),
        "non_finite_modules": ("", 0.0),
        "non_finite_gradients": ("", 0.0),
    }
    assert replay(healthy, Rules()) == []


@pytest.mark.parametrize("value", [math.inf, 1.0])
def test_non_finite_names_an_output_layer_that_nobody_else_reads(monkeypatch, value) -> None:
    monkeypatch.setattr(wide_output, "_WIDE", VOCABULARY)
    monkeypatch.setattr(wide_output, "AT_ONCE", 1)
    monkeypatch.setattr(cross_entropy, "ROWS", 1)
    model, batch = _model(tie_word_embeddings=False), _tokens()
    head = next(n for n, m in model.named_modules() if getattr(m, "out_features", 0) == VOCABULARY)
    with torch.no_grad():
        model.get_submodule(head).weight[3, 0] = value
    watch = Watch([NonFinite()])
    watch.bind(model)
    watch.begin_step(0)
    seen = run_pass(model, Batch(inputs=batch, labels=batch.roll(-1, 1)))
    assert not seen.output.is_made
    seen.total.backward()
    watch.after_backward(Moment(step=0, model=model, loss=float(seen.loss.detach())))
    assert seen.output.is_made is False
    named = head if value == math.inf else ""
    assert list(_of(watch.readings, "non_finite_modules")) == [named]


def test_non_finite_gradients_are_found_where_backward_met_them_first() -> None:
    model, monitor = _model(), NonFinite()
    monitor.bind(model)
    for _, p in model.named_parameters():
        p.grad = torch.zeros_like(p)
    names = [name for name, _ in model.named_parameters()]
    for index in (2, 5):
        model.get_parameter(names[index]).grad.view(-1)[-1] = -math.inf
    (_, gradients) = monitor.read(Moment(step=0, model=model))
    assert (gradients.quantity, gradients.layer, gradients.value) == (
        "non_finite_gradients", names[5], 2.0,
    )  # fmt: skip


def test_overflows_of_a_loss_scaler_are_no_alarm_unless_they_last() -> None:
    def row(step: int, bad: float) -> Reading:
        return Reading(
            monitor="non-finite", quantity="overflowed_gradients", step=step,
            layer="a.weight" if bad else "", value=bad,
        )  # fmt: skip

    short = [row(step, float(step < 5)) for step in range(50)]
    assert replay(short, Rules()) == []
    lasting = [row(step, 1.0) for step in range(50)]
    assert replay(lasting, Rules())[0].step == 9
    model = _model().half()
    assert model.embed.weight.dtype is torch.float16
    monitor = NonFinite()
    watch = Watch([monitor])
    watch.bind(model)
    watch.begin_step(0)
    (_loss(model, _tokens()).float() * 1e6).backward()
    watch.after_backward(Moment(step=0, model=model, loss=3.0))
    assert "overflowed_gradients" in {r.quantity for r in watch.readings}


# update-rms


def _adam(model: nn.Module, steps: int = 3, **options) -> torch.optim.AdamW:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **options)
    for step in range(steps):
        optimizer.zero_grad()
        _loss(model, _tokens(step)).backward()
        optimizer.step()
    return optimizer


def test_update_rms_is_stable_adamw_s_by_hand() -> None:
    model = _model()
    optimizer = _adam(model, betas=(0.8, 0.95), eps=1e-6)
    monitor = UpdateRMS(samples=10**9)
    monitor.bind(model)
    readings = monitor.read(Moment(step=0, model=model, optimizer=optimizer))
    rms_t, update = {}, {}
    for group, params in parameter_groups(model).items():
        for p in params:
            state = optimizer.state[p]
            g, m, v = (t.detach().double() for t in (p.grad, state["exp_avg"], state["exp_avg_sq"]))
            m, v = m / (1 - 0.8**3), v / (1 - 0.95**3)
            ratio = float((g**2 / v.clamp(min=1e-12)).mean().sqrt())
            size = float((m / (v.sqrt() + 1e-6)).square().mean().sqrt())
            rms_t[group] = max(rms_t.get(group, 0), ratio)
            update[group] = max(update.get(group, 0), size)
    assert _of(readings, "rms_t") == pytest.approx(rms_t, rel=1e-4)
    assert _of(readings, "update_rms") == pytest.approx(update, rel=1e-4)


def test_update_rms_of_a_sample_is_near_that_of_all() -> None:
    model = _model(hidden_size=64)
    optimizer = _adam(model)
    found = []
    for samples in (512, 10**9):
        monitor = UpdateRMS(samples=samples)
        monitor.bind(model)
        found.append(_of(monitor.read(Moment(step=0, model=model, optimizer=optimizer)), "rms_t"))
    assert found[0] == pytest.approx(found[1], rel=0.15)
    assert found[0] != found[1]
    rows = monitor._sample(torch.arange(64.0 * 64).reshape(64, 64))
    assert len(rows) == 64 * 64
    few = UpdateRMS(samples=64)._sample(torch.arange(64.0 * 64).reshape(64, 64)) % 64
    assert len(set(few.tolist())) > 32  # no few columns stand for all


def test_update_rms_fires_when_the_second_moment_lags() -> None:
    model, monitor = _model(), UpdateRMS()
    optimizer = _adam(model, steps=30)
    monitor.bind(model)
    readings: list[Reading] = []
    for step in range(60):
        optimizer.zero_grad()
        (_loss(model, _tokens(step)) * (40.0 if step == 50 else 1.0)).backward()
        optimizer.step()
        readings += monitor.read(Moment(step=step, model=model, optimizer=optimizer))
    alarms = [a for a in replay(readings, Rules()) if a.quantity == "rms_t"]
    assert [a.step for a in alarms] == [50] and alarms[0].layers >= 3
    assert replay([r for r in readings if r.step < 50], Rules()) == []


def test_update_rms_needs_a_second_moment() -> None:
    model = _model()
    monitor = UpdateRMS()
    monitor.bind(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for bare in (optimizer, None):
        with pytest.raises(NotCovered, match="no second moment"):
            monitor.read(Moment(step=0, model=model, optimizer=bare))


def test_epsilon_share_counts_coordinates_that_hardly_move() -> None:
    model, monitor = _model(), UpdateRMS(samples=10**9)
    monitor.bind(model)
    shares, starved = [], []
    for eps in (1e-12, 1e3):
        optimizer = _adam(model, eps=eps)
        readings = monitor.read(Moment(step=0, model=model, optimizer=optimizer))
        shares.append(max(_of(readings, "epsilon_share").values()))
        starved.extend(_of(readings, "starved_share").values())
    assert shares[0] < 0.1 < 0.9 < shares[1] <= 1.0
    assert starved[0] < 0.1 and starved[1] == pytest.approx(1.0)


# output-log-z


def test_output_log_z_by_hand_and_its_alarm() -> None:
    model = _model()
    readings = _step(model, OutputLogZ(positions=10**6))
    with torch.no_grad():
        logits = model(_tokens()).logits.double().flatten(0, 1)
    log_z = logits.exp().sum(-1).log()
    assert readings[0].value == pytest.approx(float(log_z.mean()), rel=1e-5)
    assert readings[0].detail["p99"] == pytest.approx(float(log_z.abs().quantile(0.99)), rel=1e-4)
    drift = list(3.0 + 0.05 * _noise(80))
    assert _alarms(OutputLogZ(), {"": drift}, "output_log_z") == []
    falling = drift[:60] + [3.0 - 0.5 * k for k in range(20)]
    assert _alarms(OutputLogZ(), {"": falling}, "output_log_z")[0].advice == "z_loss"


def test_output_log_z_takes_the_logits_of_a_pair_as_of_a_tensor() -> None:
    class Paired(nn.Linear):  # logits and a loss, as in nanoGPT
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            logits = super().forward(x)
            return logits, logits.mean()

    model, x = Paired(2, 3), torch.ones(1, 4, 2)
    watch = Watch([OutputLogZ()])
    watch.bind(model)
    watch.begin_step(0)
    logits, loss = model(x)
    loss.backward()
    watch.after_backward(Moment(step=0, model=model))
    (reading,) = watch.readings
    assert reading.value == pytest.approx(float(logits.detach().logsumexp(-1).mean()))


def test_output_log_z_without_logits_is_switched_off_with_a_reason() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"loss": self.linear(x).sum()}

    model = Bare()
    watch = Watch([OutputLogZ()])
    watch.bind(model)
    watch.begin_step(0)
    model(torch.ones(1, 2))["loss"].backward()
    watch.after_backward(Moment(step=0, model=model))
    assert "returns no logits" in watch.silent["output-log-z"]


# activation-range


def test_activation_range_by_hand() -> None:
    model = _model()
    seen: dict[str, float] = {}
    energies = []

    def note(path: str, is_block: bool):
        def hook(module: nn.Module, args: tuple, output: object) -> None:
            tensor = output[0] if isinstance(output, tuple) else output
            seen[path] = max(seen.get(path, 0.0), float(tensor.detach().abs().max()))
            if is_block:
                energies.append(float(tensor.detach().double().square().mean()))

        return hook

    for path in block_paths(model):
        for name, module in model.get_submodule(path).named_modules():
            if not name or isinstance(module, nn.Linear):
                module.register_forward_hook(note(path, not name))
    readings = _step(model, ActivationRange())
    assert _of(readings, "activation_max") == pytest.approx(seen, rel=1e-6)
    growth = (math.log(energies[-1]) - math.log(energies[0])) / 2 / (len(energies) - 1)
    assert _of(readings, "activation_growth") == pytest.approx({"": growth}, rel=1e-4)
    shares = {path: value / torch.finfo(torch.float32).max for path, value in seen.items()}
    assert _of(readings, "activation_share") == pytest.approx(shares)


def test_activation_range_fires_near_the_limit_of_the_type_in_use() -> None:
    def readings(scale: float, dtype: torch.dtype) -> list[Reading]:
        model = _model()
        with torch.no_grad():
            model.blocks[2].attention.qkv.bias.fill_(scale)
        return _step(model.to(dtype), ActivationRange())

    half = replay(readings(40_000.0, torch.float16), Rules())
    assert half == []  # a model that starts there is of that kind
    values = [_of(readings(s, torch.float16), "activation_share") for s in (0.1, 40_000.0)]
    rows = {layer: [values[0][layer], values[1][layer]] for layer in values[0]}
    (alarm,) = _alarms(ActivationRange(), rows, "activation_share")
    assert (alarm.step, alarm.layer) == (1, "blocks.2")
    wide = _of(readings(40_000.0, torch.bfloat16), "activation_share")
    assert max(wide.values()) < 1e-30


# near-unit-mass


def test_near_unit_mass_is_dmd_of_the_steps_own_states() -> None:
    model, pairs = _model(), {}
    for path in block_paths(model):
        model.get_submodule(path).register_forward_hook(
            lambda module, args, output, path=path: pairs.update(
                {path: (args[0].detach().clone(), first(output).detach().clone())}
            )
        )
    first = lambda output: output[0] if isinstance(output, tuple) else output
    readings = _step(model, NearUnitMass(states=64, rank=8))
    expected = {
        path: fit(x.flatten(0, 1), y.flatten(0, 1), rank=8).near_unit_mass
        for path, (x, y) in pairs.items()
    }
    found = _of(readings, "near_unit_mass")
    assert found.pop("") == pytest.approx(statistics.fmean(expected.values()))
    assert found == expected and len(expected) == 3


def test_near_unit_mass_falls_where_the_states_are_scrambled() -> None:
    masses = []
    for std in (0.05, 3.0):
        readings = _step(_model(init_std=std, norm="pre_ln"), NearUnitMass(states=64, rank=8))
        masses.append(_of(readings, "near_unit_mass")[""])
    assert masses[0] > masses[1] + 0.2
    noise = [max(0.0, 0.8 + 0.02 * e) for e in _noise(40)]
    assert _alarms(NearUnitMass(), {"": noise}, "near_unit_mass") == []
    (alarm,) = _alarms(NearUnitMass(), {"": [*noise, 0.0]}, "near_unit_mass")
    assert alarm.advice == ""  # no intervention is known to help


def test_near_unit_mass_says_why_there_is_none() -> None:
    assert NearUnitMass().bind(nn.Linear(2, 2)) == "no list of blocks was found"
    model = _model()
    watch = Watch([NearUnitMass(states=4)])
    watch.bind(model)
    watch.begin_step(0)
    _loss(model, _tokens()).backward()
    watch.after_backward(Moment(step=0, model=model))
    assert "too_few_states" in watch.silent["near-unit-mass"]


# silent-corruption


def test_one_process_has_nothing_to_compare_with() -> None:
    assert "one process" in SilentCorruption().bind(_model())


RANKS, SAMPLES = 5, 80


@pytest.fixture
def gathered(monkeypatch: pytest.MonkeyPatch):
    """Replays gains `[samples, ranks]` as if they had been gathered, one row a sample."""

    def play(gains: np.ndarray, sums: Tensor | None = None) -> list[Reading]:
        module = "rksp.watch.monitors.silent_corruption"
        monkeypatch.setattr(f"{module}.world_size", lambda: RANKS)
        rows = iter(torch.tensor(gains)[..., None])
        found = lambda own: next(rows) if own.dtype.is_floating_point else sums
        monkeypatch.setattr(f"{module}.of_all_ranks", found)
        monitor = SilentCorruption(blocks=1, checksum_every=1 if sums is not None else 10**9)
        assert monitor.bind(_model()) is None
        monitor._samples = 1 if sums is None else 0
        moments = [Moment(step=step, model=nn.Identity()) for step in range(len(gains))]
        return [reading for moment in moments for reading in monitor.read(moment)]

    return play


def test_residual_gain_outlier_by_hand(gathered) -> None:
    gains = 0.3 + 0.05 * np.random.default_rng(0).standard_normal((SAMPLES, RANKS))
    gains[70, 2] += 2.0
    readings = gathered(gains)
    assert [r.step for r in readings] == list(range(16, SAMPLES))
    errors = np.stack(
        [gains[:, i] - np.median(np.delete(gains, i, axis=1), axis=1) for i in range(RANKS)], axis=1
    )
    # The flagged samples before are few; up to the first one the window is everything.
    first = next(r.step for r in readings if r.value >= 2.5)
    for reading in readings[: first - 16]:
        past = errors[max(0, reading.step - 64) : reading.step]
        spread = 1.4826 * np.median(np.abs(past - np.median(past, axis=0)), axis=0)
        scores = np.sort(np.abs(errors[reading.step]) / spread)
        expected = scores[-1] if scores[-1] >= 1.5 * scores[-2] else 0.0
        assert reading.value == pytest.approx(expected)
    (alarm,) = replay(readings, Rules())
    assert (alarm.step, alarm.quantity) == (70, "residual_gain_outlier")
    assert next(r for r in readings if r.step == 70).detail["rank"] == 2


def test_a_hard_batch_on_all_ranks_is_no_corruption(gathered) -> None:
    gains = 0.3 + 0.05 * np.random.default_rng(1).standard_normal((SAMPLES, RANKS))
    gains[70] += 2.0
    assert replay(gathered(gains), Rules()) == []


def test_the_minority_of_checksums_is_named(gathered) -> None:
    model = _model()
    count = len(list(model.parameters()))
    sums = torch.zeros(RANKS, count, dtype=torch.int64)
    sums[3, 2] = 1
    (reading,) = gathered(np.zeros((1, RANKS)), sums)
    name = [name for name, _ in model.named_parameters()][2]
    assert (reading.value, reading.layer, reading.detail["rank"]) == (1.0, name, 3.0)
