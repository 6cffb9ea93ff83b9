"""Step clip: its bound after the step, where it does nothing, and what it cannot depend on."""

from __future__ import annotations

import copy

import pytest
import torch
from support.intervention_steps import RECIPE, few_batches, take_step
from support.small_zoo import small_member
from torch import nn

from rksp.batch import Batch, task_loss
from rksp.ground.errors import InputError, NotCovered
from lab.zoo import build_member
from rksp.optimizers import make_optimizer
from rksp.watch.interventions.registry import make_intervention
from rksp.watch.interventions.step_clip import StepClip
from rksp.watch.interventions.updates import adam_update
from rksp.watch.moment import Moment

DELTA = 0.03
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
                least = 1.0 if use.is_head else 1e-4
                if x.is_floating_point() and not use.is_head:
                    least *= float(x.square().mean())
                sums[2, part] += least * len(y)
        for part, name in enumerate(use.names):
            if sums[2, part] > 0:
                size = torch.maximum(sums[1, part], sums[2, part])
                found[name] = float((sums[0, part] / size).sqrt())
    return found


@pytest.mark.parametrize("family", ["zoo_pre_ln", "zoo_moe", "zoo_kan", "gpt2", "llama", "mixtral"])
@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd", "lion", "muon", "adafactor", "mars"])
def test_no_matrix_moves_its_outputs_by_more_than_delta(family, optimizer):
    model = build_member(family, SMALL, seed=0)
    model = model if family == "mixtral" else model.double()  # its product of groups has no float64
    rate = 3.0 if optimizer == "sgd" else 0.1
    changes = {"optimizer": optimizer, "learning_rate": rate, "weight_decay": 0.1}
    clip, before = _stepped(model, make_optimizer(model, RECIPE.model_copy(update=changes)))
    ratios, tolerance = _ratios(model, clip, before), 3e-3 if family == "mixtral" else 1e-9
    assert len(ratios) > 5 and max(ratios.values()) <= DELTA * (1 + tolerance)
    assert max(ratios.values()) > 0.999 * DELTA  # or nothing was bounded
