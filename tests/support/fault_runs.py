"""Short runs with faults, and whether two of them are the same."""

from __future__ import annotations

import torch
from support.small_zoo import small_member

from lab.tasks.tasks import associative_recall
from rksp.datasets.batch import task_loss
from rksp.recipe import Recipe
from rksp.recipe.optimizers.table import make_optimizer
from rksp.watch.faults.base import Fault
from rksp.watch.moment import Moment

RECIPE = Recipe(learning_rate=1e-2, schedule="constant", max_steps=6, max_grad_norm=None)


def faulty_run(*faults: Fault, family: str = "zoo_pre_ln", steps: int = 6, seed: int = 0, **more):
    """A plain run with faults; returns losses, gradients of the last step, and the model."""
    recipe = RECIPE
    for fault in faults:
        recipe = fault.recipe(recipe)
    model = small_member(family, **more)
    optimizer = make_optimizer(model, recipe)
    for fault in faults:
        fault.bind(model, seed=seed)
    losses = []
    batches = associative_recall(length=32, vocab=64).batches(steps, 4, seed=1)
    for step, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate_at(step)
        moment = Moment(step=step, model=model, optimizer=optimizer)
        hooks = [hook for fault in faults for hook in fault.arm(moment)]
        optimizer.zero_grad()
        loss = task_loss(model, batch)
        loss.backward()
        for hook in hooks:
            hook.remove()
        losses.append(loss.item())
        for fault in faults:
            fault.after_backward(moment)
        optimizer.step()
        for fault in faults:
            fault.after_update(moment)
    gradients = [p.grad.clone() for p in model.parameters()]
    return losses, gradients, model


def same_run(first, second) -> bool:
    weights = zip(first[2].parameters(), second[2].parameters(), strict=True)
    return first[0] == second[0] and all(torch.equal(a, b) for a, b in weights)
