"""Other steps, tried on what is kept of a run, and judged on passes that they did not see."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence

import torch
from torch import nn

from rksp.watch.attach.kept import Kept, Pass
from rksp.watch.groups import local

STEPS = 36  # of a trial
_BETTER = 0.08  # of the loss
_LEAST, _ASIDE = 6, 3  # passes without which there is no trial; newest ones that it does not see


def tried(
    kept: Kept, called: nn.Module, length: float, *, until: float, is_new: bool = False
) -> tuple[float, float] | None:
    """Take steps against the gradient, as far in every tensor; then put the weights back.

    Args:
        kept: What is kept of the run.
        called: What the script calls.
        length: Root mean square of a step.
        until: Time (`time.monotonic`) after which a trial would end too late.
        is_new: Begin with the first weights of the run instead of the present ones.

    Returns:
        The loss of passes that the trial did not see, with the run's weights and with its own; None
        if that is no better, is unknown, or time is short.
    """
    passes = [one for step in kept.steps for one in step.passes if one.is_whole]
    seen, unseen = passes[:-_ASIDE], passes[-_ASIDE:]
    if len(passes) < _LEAST or (is_new and not kept.first):
        return None
    parameters = list(kept.parameters.values())
    with kept.repeating(), kept.held():
        now = _loss(called, unseen)
        if is_new:
            kept.begin_again()
        for number in range(STEPS):
            started = time.monotonic()
            with torch.enable_grad():
                loss = seen[number % len(seen)].run(called)[0]
                if loss is None or not loss.requires_grad or not bool(loss.isfinite()):
                    return None
                grads = torch.autograd.grad(loss, parameters, allow_unused=True)
            for p, grad in zip(parameters, grads, strict=True):
                if grad is not None and (size := float(local(grad).square().mean().sqrt())) > 0:
                    local(p.detach()).sub_(local(grad), alpha=length / size)
            if time.monotonic() + (STEPS - number) * (time.monotonic() - started) > until:
                return None
        then = _loss(called, unseen)
    return (now, then) if now - then > _BETTER * abs(now) else None


@torch.no_grad()
def _loss(called: nn.Module, passes: Sequence[Pass]) -> float:
    found = [one.run(called)[0] for one in passes]
    return statistics.fmean([math.nan if loss is None else float(loss) for loss in found])
