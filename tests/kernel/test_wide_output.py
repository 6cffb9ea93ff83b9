"""A wide output layer is made only when it is read, and its loss needs no logits at once."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from rksp.datasets.batch import Batch, logits_of, run_pass, tensors
from rksp.datasets.probe import make_probe
from rksp.kernels import cross_entropy, wide_output
from rksp.kernels.cross_entropy import IGNORED
from rksp.kernels.wide_output import Unmade, UnmadeOutputs
from rksp.measure.snapshots import collect
from rksp.models.resolve import resolve_tiny

_COLUMNS, _WIDTH = 37, 8


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    for module in (wide_output, cross_entropy):
        monkeypatch.setattr(module, "AT_ONCE", 100)
        monkeypatch.setattr(module, "ROWS", 7)
    monkeypatch.setattr(wide_output, "_WIDE", _COLUMNS)
    monkeypatch.setattr(wide_output, "_TILE", 16)


class _Model(nn.Module):
    """Embedding and output layer, tied if there is no bias; `after` changes the logits."""

    def __init__(self, *, bias=False, after=lambda logits: logits, kind=torch.float64):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(_COLUMNS, _WIDTH, dtype=kind)
        self.head = nn.Linear(_WIDTH, _COLUMNS, bias=bias, dtype=kind)
        if not bias:
            self.head.weight = self.embed.weight
        self.after = after

    def forward(self, inputs):
        return type("Output", (), {"logits": self.after(self.head(self.embed(inputs).tanh()))})


def _batch(count=3, length=17):
    tokens = torch.randint(_COLUMNS, (count, length), generator=torch.Generator().manual_seed(1))
    labels = tokens.roll(-1, 1)
    labels[0, ::3] = IGNORED
    return Batch(inputs=tokens, labels=labels)


def _graded(model, loss):
    model.zero_grad()
    loss.backward()
    return [p.grad.clone() for p in model.parameters()]


def _plain(model, batch):
    logits = logits_of(model, batch)[0].flatten(0, -2)
    return F.cross_entropy(logits, batch.labels.flatten(), ignore_index=IGNORED)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_loss_and_gradients_are_those_of_all_logits_at_once(bias, scale):
    model, batch = _Model(bias=bias), _batch()
    seen = run_pass(model, batch)
    assert not seen.output.is_made
    ours = _graded(model, seen.total * scale)
    assert not seen.output.is_made
    whole = _plain(model, batch)
    torch.testing.assert_close(seen.loss, whole, rtol=1e-13, atol=0)
    for ours_, exact in zip(ours, _graded(model, whole * scale), strict=True):
        torch.testing.assert_close(ours_, exact, rtol=1e-12, atol=1e-15)


def test_rows_that_do_not_count_are_not_computed():
    model, batch = _Model(bias=True), _batch()
    batch.labels[:2] = IGNORED
    with _Powers() as powers:
        seen = run_pass(model, batch)
        ours = _graded(model, seen.total)
    assert powers.entries == int((batch.labels != IGNORED).sum()) * _COLUMNS
    for given, exact in zip(ours, _graded(model, _plain(model, batch)), strict=True):
        torch.testing.assert_close(given, exact, rtol=1e-12, atol=1e-15)


def test_no_label_that_counts_gives_no_loss():
    model, batch = _Model(), _batch()
    batch.labels[:] = IGNORED
    assert bool(run_pass(model, batch).loss.isnan())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_so(bad):
    model, batch = _Model(), _batch()
    with torch.no_grad():
        model.embed.weight[int(batch.labels[1, 2]), 3] = bad
    assert not bool(run_pass(model, batch).loss.isfinite())


def test_far_logits_lose_nothing():
    single, batch = _Model(bias=True, kind=torch.float32), _batch()
    with torch.no_grad():
        single.head.weight.mul_(300)
    exact = _Model(bias=True)
    exact.load_state_dict(single.state_dict())
    loss = run_pass(single, batch).total
    ours, whole = _graded(single, loss), _plain(exact, batch)
    torch.testing.assert_close(loss.double(), whole, rtol=1e-5, atol=0)
    for given, right in zip(ours, _graded(exact, whole), strict=True):
        torch.testing.assert_close(given.double(), right, rtol=1e-4, atol=1e-5)


class _Powers(TorchDispatchMode):
    """Counts the powers of two that were computed inside."""

    entries = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.exp2_.default:
            self.entries += args[0].numel()
        return func(*args, **(kwargs or {}))


class _Largest(TorchDispatchMode):
    """Remembers the most entries of a tensor that was made inside."""

    entries = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        made = [t.numel() for t in tensors(found) if not isinstance(t, Unmade)]
        self.entries = max(self.entries, *made, 0)
        return found


def test_a_step_never_holds_all_logits():
    model, batch = _Model(), _batch()
    with _Largest() as largest:
        run_pass(model, batch).total.backward()
    assert 0 < 2 * largest.entries < batch.labels.numel() * _COLUMNS
    with _Largest() as largest:
        _plain(model, batch).backward()
    assert largest.entries == batch.labels.numel() * _COLUMNS


def test_single_precision_keeps_its_digits():
    single, batch = _Model(kind=torch.float32), _batch()
    exact = _Model()
    exact.load_state_dict(single.state_dict())
    ours = _graded(single, run_pass(single, batch).total)
    for given, right in zip(ours, _graded(exact, _plain(exact, batch)), strict=True):
        torch.testing.assert_close(given.double(), right, rtol=1e-5, atol=1e-8)


def test_without_a_graph_the_loss_is_the_same():
    model, batch = _Model(), _batch()
    with torch.no_grad():
        seen = run_pass(model, batch)
        assert not (seen.output.is_made or seen.loss.requires_grad)
        torch.testing.assert_close(seen.loss, _plain(model, batch), rtol=1e-13, atol=0)


def _written(*place):
    def write(logits):
        logits[place] = 1.5
        return logits

    return write


def _written_after_a_look(logits):
    row = logits.detach()[1]
    assert bool(row.isfinite().all())
    logits[1].mul_(2)
    return logits


@pytest.mark.parametrize(
    "after",
    [
        lambda logits: 30 * torch.tanh(logits / 30),
        lambda logits: logits.masked_fill(torch.arange(_COLUMNS) == 3, -100.0),
        lambda logits: logits.div_(2),
        _written(slice(None), 0),
        _written(slice(0, 2), slice(3, 9)),
        _written(Ellipsis, 3),
        _written(torch.tensor([0, 2])),
        _written_after_a_look,
        lambda logits: logits[:, :, :30].mul_(2).new_tensor(0) + logits,
        lambda logits: logits.view(-1).view(logits.shape),
        lambda logits: F.pad(logits, (0, 1)),
    ],
)
def test_what_a_model_does_to_its_logits_counts(after):
    model, batch = _Model(after=after), _batch()
    seen = run_pass(model, batch)
    ours, whole = _graded(model, seen.total), _plain(model, batch)
    torch.testing.assert_close(seen.loss, whole, rtol=1e-13, atol=0)
    for given, exact in zip(ours, _graded(model, whole), strict=True):
        torch.testing.assert_close(given, exact, rtol=1e-12, atol=1e-15)


def test_a_hook_that_reads_the_logits_adds_to_the_gradient():
    model, batch = _Model(), _batch()
    terms = []
    hook = model.register_forward_hook(
        lambda module, args, output: terms.append(output.logits.logsumexp(-1).square().mean())
    )
    ours = _graded(model, run_pass(model, batch).total + terms[0])
    whole = _plain(model, batch)
    exact = _graded(model, whole + terms[1])
    hook.remove()
    for given, right in zip(ours, exact, strict=True):
        torch.testing.assert_close(given, right, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    "take",
    [
        lambda t: t.detach().flatten(0, -2)[::5],
        lambda t: t[1],
        lambda t: t[:, 3:9:2],
        lambda t: t[torch.tensor([0, 2])],
        lambda t: t[torch.arange(51).view(3, 17) % 2 == 0],
    ],
)
def test_rows_that_are_chosen_stay_unmade(take):
    states = torch.randn(3, 17, _WIDTH, dtype=torch.float64)
    weight = torch.randn(_COLUMNS, _WIDTH, dtype=torch.float64)
    with UnmadeOutputs():
        product = F.linear(states, weight)
    rows = take(product)
    assert isinstance(rows, Unmade) and not (rows.is_made or product.is_made)
    torch.testing.assert_close(rows + 0, take(states @ weight.t()), rtol=1e-13, atol=1e-15)
    assert not product.is_made


@pytest.mark.parametrize(
    "take",
    [
        lambda t: t[..., 4],
        lambda t: t[t > 0],
        lambda t: t[:, :, 2:5],
        lambda t: t.flatten(),
        lambda t: t.sum(),
    ],
)
def test_what_reads_columns_makes_them(take):
    states = torch.randn(3, 17, _WIDTH, dtype=torch.float64)
    weight = torch.randn(_COLUMNS, _WIDTH, dtype=torch.float64)
    with UnmadeOutputs():
        product = F.linear(states, weight)
    torch.testing.assert_close(take(product), take(states @ weight.t()), rtol=1e-12, atol=1e-14)
    assert product.is_made


def test_a_second_derivative_is_that_of_a_linear_layer():
    def curvature(model, logits):
        first = torch.autograd.grad(logits.square().sum(), model.embed.weight, create_graph=True)
        return torch.autograd.grad(first[0].square().sum(), model.embed.weight)[0]

    model, batch = _Model(), _batch()
    with UnmadeOutputs():
        ours = curvature(model, model(batch.inputs).logits)
    torch.testing.assert_close(ours, curvature(model, model(batch.inputs).logits))


@pytest.mark.parametrize("change", ["narrow", "few", "half", "autocast"])
def test_other_products_are_torchs_own(change, monkeypatch):
    kind = torch.bfloat16 if change == "half" else torch.float32
    states, weight = torch.randn(20, _WIDTH).to(kind), torch.randn(_COLUMNS, _WIDTH).to(kind)
    if change == "narrow":
        monkeypatch.setattr(wide_output, "_WIDE", _COLUMNS + 1)
    states = states[:2] if change == "few" else states
    with UnmadeOutputs(), torch.autocast("cpu", enabled=change == "autocast"):
        assert type(F.linear(states, weight)) is torch.Tensor


def test_statistics_of_a_pass_do_not_depend_on_it(monkeypatch):
    source = resolve_tiny("gpt2")
    model, batch = source.build(0), make_probe(source, num_sequences=2).batch
    columns = source.config.vocab_size
    late, plain = (_statistics(monkeypatch, wide, model, batch) for wide in (columns, columns + 1))
    assert late.loss == pytest.approx(plain.loss, rel=1e-6)
    assert late.logit_std == pytest.approx(plain.logit_std, rel=1e-6)
    assert late.copied == pytest.approx(plain.copied, rel=1e-5)
    assert late.activation_absmax == pytest.approx(plain.activation_absmax, rel=1e-6)
    assert late.aligned_response == pytest.approx(plain.aligned_response, rel=1e-6)


def _statistics(monkeypatch, wide, model, batch):
    monkeypatch.setattr(wide_output, "_WIDE", wide)
    return collect(model, batch, consume=lambda transition: None).forward
