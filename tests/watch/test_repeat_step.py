"""Repeated steps: a transient defect is undone, an erratic one drops the step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from lab.tasks.tasks import make_task
from lab.zoo import build_member
from rksp.ground.errors import InputError
from rksp.recipe import Recipe
from rksp.watch.faults.base import Fault
from rksp.watch.interventions.base import Action
from rksp.watch.moment import Moment
from rksp.watch.registry import make_fault, make_intervention
from rksp.watch.training import run
from rksp.watch.training.loop import RunRecord

STRUCK, STEPS = 14, 20
SHAPE = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 256,
    "max_position_embeddings": 16,
}  # fmt: skip
RECIPE = Recipe(
    learning_rate=1e-3, max_steps=STEPS, schedule="constant", max_grad_norm=None, batch_size=4,
    gradient_accumulation_steps=2,
)  # fmt: skip
FLIP = f"bitflip:step={STRUCK},where=gradients,bit=30,name=head"


class _Noise(Fault):
    """A multiplier that is wrong in another way each time, at one step."""

    name = "noise"
    generator = torch.Generator().manual_seed(0)

    def after_backward(self, moment: Moment) -> None:
        if moment.step == STRUCK:
            gradient = moment.model.head.weight.grad
            gradient += 100 * torch.rand(gradient.shape, generator=self.generator)


def _run(faults: Sequence[Fault], *lines: str) -> tuple[RunRecord, list[Action]]:
    batches = make_task("bytes", length=16).batches(2 * STEPS, 4, seed=0)
    model = build_member("zoo_pre_ln", SHAPE, seed=0)
    record = run(
        model, batches, RECIPE, faults=faults, interventions=[make_intervention(n) for n in lines]
    )
    return record, [a for a in record.actions if a.intervention == "repeat_step"]


def test_a_transient_flip_leaves_no_trace() -> None:
    healthy, none = _run([])
    assert none == []
    struck, _ = _run([make_fault(FLIP)])
    saved, actions = _run([make_fault(FLIP)], "repeat_step")
    assert [(a.step, a.what) for a in actions] == [(STRUCK, "took the repeated gradient")]
    assert not np.array_equal(struck.curves.loss, healthy.curves.loss)
    assert np.array_equal(saved.curves.loss, healthy.curves.loss)
    assert actions[0].detail["distance"] > 1 and actions[0].detail["rank"] == -1


def test_a_defect_that_differs_each_time_drops_the_step() -> None:
    saved, actions = _run([_Noise()], "repeat_step")
    assert [(a.step, a.what) for a in actions] == [(STRUCK, "dropped the step")]
    assert saved.curves.grad_norm[STRUCK] > 100 * saved.curves.grad_norm[STRUCK + 1]


def test_a_hard_batch_and_a_defect_that_stays_are_not_told_apart() -> None:
    lasting = make_fault(f"matmul:step={STRUCK},product=weight_gradient,name=attention.out")
    _, actions = _run([lasting], "repeat_step")
    assert actions and {a.what for a in actions} == {"repeated a hard step"}
    assert actions[0].detail["distance"] == 0.0


def test_a_repetition_leaves_the_step_as_it_was() -> None:
    class Asks(type(make_intervention("clip"))):
        def before_update(self, moment: Moment) -> None:
            before = [p.grad.clone() for p in moment.model.parameters()]
            again = moment.repeat()
            assert again.moved == 0.0
            for p, kept, repeated in zip(
                moment.model.parameters(), before, again.gradients, strict=True
            ):
                assert torch.equal(p.grad, kept) and torch.equal(repeated, kept)

    batches = make_task("bytes", length=16).batches(4, 4, seed=0)
    recipe = RECIPE.model_copy(update={"max_steps": 2})
    plain = build_member("zoo_pre_ln", SHAPE, seed=0)
    asked = build_member("zoo_pre_ln", SHAPE, seed=0)
    run(plain, batches, recipe)
    run(asked, batches, recipe, interventions=[Asks()])
    pairs = zip(plain.parameters(), asked.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_repeated_steps_refuse_constants_that_cannot_work() -> None:
    with pytest.raises(InputError, match="ratio='1'"):
        make_intervention("repeat_step:ratio=1")
