"""The loss of a model of one's own: its own, a named one, or what the targets choose."""

from __future__ import annotations

import math

import pytest
import torch
from support.given_models import (
    CLASSES,
    FAST,
    TOKENS,
    HandGPT,
    NanoGPT,
    SmallViT,
    hugging_face,
    images,
    tokens,
)
from torch import nn
from torch.nn import functional as F

import rksp
from rksp.datasets.batch import Batch
from rksp.ground.errors import InputError
from rksp.models.given import given_batch, split_batch


def loss_of(model: nn.Module, given: object, loss=None) -> float:
    batch = given_batch(model.eval(), given, loss)
    return float(batch.objective(model, batch).loss.detach())


def test_next_tokens_are_the_labels_of_tokens():
    model, ids = HandGPT().eval(), tokens()
    logits = model(ids).double()
    picked = logits.log_softmax(-1)[:, :-1].gather(-1, ids[:, 1:, None])
    assert loss_of(model, ids) == pytest.approx(float(-picked.mean().detach()), rel=1e-5)
    assert loss_of(model, {"idx": ids}) == loss_of(model, ids)


def test_targets_choose_cross_entropy_or_squared_error():
    model, (x, y) = SmallViT().eval(), images()
    out = model(x).detach()
    assert loss_of(model, (x, y)) == pytest.approx(float(F.cross_entropy(out, y)), rel=1e-6)
    aim = torch.randn(len(x), CLASSES)
    assert loss_of(model, (x, aim)) == pytest.approx(float((out - aim).square().mean()), rel=1e-6)
    assert loss_of(model, {"images": x, "y": y}) == loss_of(model, (x, y))


def test_pixels_have_classes_in_the_second_dimension():
    model = nn.Conv2d(3, 5, 1)
    x, y = torch.randn(4, 3, 6, 6), torch.randint(0, 5, (4, 6, 6))
    assert loss_of(model, (x, y)) == pytest.approx(
        float(F.cross_entropy(model(x), y).detach()), rel=1e-6
    )


def test_a_models_own_loss_counts_first():
    model, ids = NanoGPT().eval(), tokens()
    own = float(model(ids[:, :-1], ids[:, 1:])[1].detach())
    given = {"idx": ids[:, :-1], "targets": ids[:, 1:]}
    assert loss_of(model, given) == pytest.approx(own, rel=1e-6)
    with pytest.raises(InputError, match="No loss is known"):  # its logits are the last token's
        loss_of(model, (ids[:, :-1], ids[:, 1:]))


def test_a_named_loss_counts_before_all_others():
    model, (x, y) = SmallViT().eval(), images()
    assert loss_of(model, (x, y), lambda out, target: (out.sum() + target.sum()) * 0 + 7) == 7
    seen = []
    loss_of(
        model, {"images": x, "y": y}, lambda out, batch: seen.append(sorted(batch)) or out.sum()
    )
    assert seen == [["images", "y"]]


def test_hugging_face_needs_no_batch_and_shifts_its_own_labels():
    model = hugging_face()
    found = rksp.score(model, lr=1e-3, **FAST)
    assert found.task == "causal-lm" and "Shakespeare" in found.probe and found.kind == "score"
    assert found.report.target.kind == "module" and found.model_type == "gpt2"
    ids = torch.randint(0, 300, (4, 16))
    own = float(model.eval()(input_ids=ids, labels=ids).loss.detach())
    assert loss_of(model, {"input_ids": ids, "labels": ids}) == pytest.approx(own, rel=1e-6)
    assert loss_of(model, {"input_ids": ids}) == pytest.approx(own, rel=1e-5)


def test_rows_cut_every_tensor_that_counts_examples():
    inputs = {"x": torch.arange(4), "fixed": torch.arange(3), "name": "n"}
    batch = Batch(inputs=inputs, labels=None, given=(inputs["x"], [inputs["x"]]))
    part = batch.rows(1, 3)
    assert part.inputs["x"].tolist() == [1, 2] and len(part.inputs["fixed"]) == 3
    assert part.given[0].tolist() == part.given[1][0].tolist() == [1, 2]


def test_targets_go_to_a_forward_that_takes_them():
    ids = tokens()
    inputs, target = split_batch(NanoGPT(), {"idx": ids, "targets": ids})
    assert "targets" in inputs and target is ids
    inputs, target = split_batch(HandGPT(), {"idx": ids, "targets": ids})
    assert "targets" not in inputs and target is ids


class OfAWholeBatch(HandGPT):
    def forward(self, batch):
        return super().forward(batch["tokens"])


def test_a_forward_of_one_batch_gets_the_dict_as_a_whole():
    ids = tokens()
    torch.manual_seed(0)
    model = OfAWholeBatch()
    given = {"tokens": ids, "labels": ids}
    inputs, target = split_batch(model, given)
    assert inputs == (given,) and target is ids
    assert loss_of(model, given) == pytest.approx(math.log(TOKENS), rel=0.2)


class Filtered(nn.Module):
    """Filters by complex numbers, one a channel and frequency, as models of states do."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(TOKENS, 16), nn.Linear(16, TOKENS)
        self.mix = nn.Linear(16, 16)
        self.filter = nn.Parameter(torch.randn(5, 16, dtype=torch.complex64) * 0.1 + 1)

    def forward(self, ids):
        x = self.mix(self.embed(ids[:, :8]))
        return self.head(torch.fft.irfft(torch.fft.rfft(x, dim=1) * self.filter, dim=1))


@pytest.mark.parametrize("optimizer", ["adamw", "lion", "muon", "sgd"])
def test_complex_weights_are_pairs_of_numbers(optimizer):
    torch.manual_seed(0)
    ids = tokens()[:, :8]
    result = rksp.score(Filtered(), ids, lr=1e-3, recipe={"optimizer": optimizer}, **FAST)
    assert result.verdict == "cannot tell" and "residual stream" in str(result)


class Lightning:
    """Made in a function: importing Lightning takes seconds."""

    @staticmethod
    def make(*, manual: bool = False) -> nn.Module:
        from lightning import LightningModule

        class Module(LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.net, self.automatic_optimization = SmallViT(), not manual

            def training_step(self, batch, index):
                x, y = batch
                loss = F.cross_entropy(self.net(x), y)
                self.log("loss", loss)
                return {"loss": loss}

        return Module()


def test_lightning_trains_by_its_own_step():
    model, (x, y) = Lightning.make(), images()
    found = rksp.score(model, (x, y), lr=1e-3, **FAST)
    assert found.evidence == "gradient" and found.blocks == [("net.blocks", 2)]
    expected = float(F.cross_entropy(model.net.eval()(x), y).detach())
    assert found.loss == pytest.approx(expected, rel=1e-5)
    model.net.eval()
    batch = given_batch(model, (x, y), None)
    assert torch.equal(batch.objective(model, batch).output, model.net(x))
    with pytest.raises(InputError, match="optimizes manually"):
        rksp.score(Lightning.make(manual=True), (x, y), **FAST)


def test_the_objective_of_a_nan_is_a_certain_failure():
    model = SmallViT()
    with torch.no_grad():
        model.head.weight.fill_(math.nan)
    assert rksp.score(model, images(), lr=1e-3, **FAST).verdict == "risk"


def test_a_regression_is_answered_without_a_uniform_guess():
    x, _ = images()
    found = rksp.score(SmallViT(), (x, x[:, 0, 0, :CLASSES].contiguous()), lr=1e-3, **FAST)
    assert found.loss > 0 and found.uniform_loss is None and found.grad_norm > 0
    assert "cross-entropies" in found.not_measured["logit_std"]
