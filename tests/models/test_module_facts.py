"""What a module says about itself is heard: number format, adapters, training, its batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.given_models import CLASSES, HandGPT, images, tokens
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel

import rksp
from rksp.models.adapters import weights_show
from rksp.models.given import given_batch, module_source

FAST = {"states": 128, "evidence": "forward"}


def gpt(**more) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 256, "n_positions": 64}
    return GPT2LMHeadModel(GPT2Config(**sizes, **more))


def learned(model: nn.Module) -> nn.Module:
    """Move the gains of the norms, as training does."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.weight.add_(0.1 * torch.randn_like(module.weight))
    return model


def told(result: rksp.Result) -> str:
    """Return what is said of the risk, whatever the findings add."""
    return result.report.seeds[0].risk.verdict.value


class Graph(nn.Module):
    """A graph network: its batch is one graph, whose adjacency cannot be cut by rows."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.answer = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x, adjacency):
        return self.answer(adjacency @ torch.relu(adjacency @ self.read(x)))


@pytest.mark.parametrize(
    ("kind", "precision"), [(torch.float16, "fp16-pure"), (torch.bfloat16, "bf16-pure")]
)
def test_half_precision_parameters_are_the_recipes_precision(kind, precision):
    found = rksp.score(HandGPT().to(kind), tokens(), lr=1e-3, **FAST)
    assert found.report.recipe.precision == precision
    assert "RKSP304" in {finding.code for finding in found.findings}


def test_a_recipe_that_contradicts_the_module_is_told_so():
    recipe = {"precision": "bf16"}
    found = rksp.score(HandGPT().half(), tokens(), recipe, lr=1e-3, **FAST)
    assert found.report.recipe.precision == "bf16"
    assert any("shows precision fp16-pure" in note for note in found.report.target.notes)
    plain = rksp.score(HandGPT(), tokens(), recipe, lr=1e-3, **FAST)
    assert not any("shows precision" in note for note in plain.report.target.notes)


def test_the_batch_gives_its_own_shape_unless_the_recipe_does():
    ids = torch.randint(61, (8, 32))
    found = rksp.score(HandGPT(), ids, lr=1e-3, **FAST).report
    assert (found.recipe.batch_size, found.recipe.sequence_length) == (8, 32)
    assert found.recipe_origins["batch_size"].text == "the module"
    typed = rksp.score(HandGPT(), ids, {"batch_size": 64}, lr=1e-3, **FAST).report
    assert (typed.recipe.batch_size, typed.recipe.sequence_length) == (64, 32)


def test_images_are_not_compared_by_tokens():
    net = nn.Sequential(nn.Flatten(), nn.Linear(768, 32), nn.LayerNorm(32), nn.Linear(32, CLASSES))
    found = rksp.score(net, images(), {"warmup_steps": 100}, lr=0.05, **FAST)
    assert not {"RKSP502", "RKSP504"} & {finding.code for finding in found.findings}
    read = rksp.score(HandGPT(), tokens(), {"warmup_steps": 100}, lr=0.05, **FAST)
    assert {"RKSP502", "RKSP504"} & {finding.code for finding in read.findings}


def is_trained_on(found) -> bool:
    """Whether the model of fine-tuning was asked, and says why it cannot tell."""
    return any(reason.startswith("trained weights: ") for reason in found.reasons)


@pytest.mark.parametrize("is_given", [True, None])
def test_trained_weights_are_recognized(is_given):
    model = gpt() if is_given else learned(gpt())
    found = rksp.score(model, lr=1e-3, is_pretrained=is_given, **FAST)
    assert found.report.seeds[0].risk.kind == "fine-tuning"


def test_random_weights_are_not_taken_for_trained_ones(tmp_path):
    assert told(rksp.score(gpt(), lr=1e-3, **FAST)) != "cannot tell"
    config = GPT2Config.from_dict(gpt().config.to_dict() | {"_name_or_path": "gpt2"})
    config.name_or_path = "gpt2"
    assert weights_show(GPT2LMHeadModel(config), config).is_scratch
    assert weights_show(learned(GPT2LMHeadModel(config)), config).is_stored
    random = rksp.score(learned(gpt()), lr=1e-3, is_pretrained=False, **FAST)
    assert told(random) != "cannot tell"


def test_a_loss_far_below_a_uniform_guess_was_learned():
    class Fitted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(8, 4, bias=False)
            with torch.no_grad():
                self.head.weight.copy_(9.0 * torch.eye(4, 8))

        def forward(self, x):
            return self.head(x)

    labels = torch.arange(32) % 4
    given = (torch.eye(8)[labels], labels)
    assert is_trained_on(rksp.score(Fitted(), given, lr=1e-3, **FAST))
    raw = rksp.score(nn.Linear(8, 4), given, lr=1e-3, **FAST)
    assert not is_trained_on(raw)


def test_frozen_parts_and_adapters_cannot_be_told():
    model = gpt()
    model.transformer.requires_grad_(False)
    model.transformer.h[1].requires_grad_(True)
    found = rksp.score(model, lr=1e-3, **FAST)
    assert told(found) == "cannot tell" and is_trained_on(found)
    assert any("the others are frozen" in note for note in found.report.target.notes)
    adapted = HandGPT()
    adapted.requires_grad_(False)
    adapted.head.lora_A = nn.Linear(24, 2, bias=False)
    adapted.head.lora_B = nn.Linear(2, 61, bias=False)
    found = rksp.score(adapted, tokens(), lr=1e-3, **FAST)
    assert found.report.recipe.peft == "lora" and found.start_here is None


def test_a_compiled_module_is_scored_as_the_module_inside():
    model = HandGPT()
    compiled = torch.compile(model)
    assert module_source(compiled, tokens()).model is model
    found = [rksp.score(m, tokens(), lr=1e-3, **FAST) for m in (model, compiled)]
    assert found[0].report.seeds == found[1].report.seeds


def test_a_graph_is_measured_whole():
    given = (torch.randn(30, 8), torch.rand(30, 30), torch.arange(30) % 3)
    found = rksp.score(Graph(), given, lr=1e-3, states=128)
    assert any("cut along dimension 0" in note for note in found.report.target.notes)
    assert found.grad_norm is not None
    assert not module_source(HandGPT(), tokens()).batch.is_whole


def test_a_loader_and_arrays_count_as_a_batch():
    x, y = torch.randn(8, 4), torch.arange(8) % 3
    loader = DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True)
    net, state = nn.Linear(4, 3), torch.get_rng_state()
    first = given_batch(net, loader, None)
    assert first.count == 4 and torch.equal(torch.get_rng_state(), state)
    arrays = given_batch(nn.Linear(4, 3), {"input": np.zeros((5, 4), np.float32)}, None)
    assert arrays.count == 5 and isinstance(arrays.inputs["input"], torch.Tensor)
