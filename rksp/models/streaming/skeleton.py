"""Build a model without weights: modules and small buffers are real, parameters are on meta."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from rksp.models.streaming.seeds import seed_of

_LARGE = 1 << 20  # entries; larger tensors are created on the meta device
_FACTORIES = frozenset({torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn})


class _SmallOnly(TorchFunctionMode):
    """Creates large tensors without storage, and fills empty small ones with NaN."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in _FACTORIES and kwargs.get("device") in (None, "cpu", torch.device("cpu")):
            if _entries(func, args, kwargs) >= _LARGE:
                return func(*args, **kwargs | {"device": "meta"})
            made = func(*args, **kwargs)
            if func is torch.empty and made.is_floating_point():
                made.fill_(math.nan)
            return made
        return func(*args, **kwargs)


def _entries(func: Callable, args: tuple, kwargs: dict) -> int:
    size = kwargs.get("size", args[:1] if func is torch.full else args)
    if len(size) == 1 and not isinstance(size[0], int):
        size = size[0]
    return math.prod(int(length) for length in size)


@contextmanager
def _uninitialized() -> Iterator[None]:
    from transformers.initialization import no_init_weights

    with no_init_weights():
        yield


def make_skeleton(make: Callable[[], nn.Module], seed: int) -> tuple[nn.Module, dict[str, Tensor]]:
    """Run a constructor without allocating the weights.

    The values that the constructor computes (rotary frequencies, masks) are computed; its draws
    follow the seed. Weights that the constructor shares are shared. Weights that `tie_weights`
    would share are not shared yet, because transformers initializes each before it ties them. The
    state of the global generator is unchanged.

    Args:
        make: Builds a transformers model; called once.
        seed: Seed of the constructor's draws.

    Returns:
        The model with its parameters on the meta device, and the values that the constructor itself
        gave to small parameters, by name.
    """
    with torch.random.fork_rng(devices=[]), _uninitialized(), _SmallOnly(), torch.no_grad():
        torch.manual_seed(seed_of(seed, "constructor"))
        model = make()
    given: dict[str, Tensor] = {}
    empty: dict[int, nn.Parameter] = {}
    for name, parameter in model.named_parameters():
        value = parameter.detach()
        if not value.is_meta and not (value.is_floating_point() and value.isnan().any()):
            given[name] = value
        empty[id(parameter)] = nn.Parameter(
            torch.empty_like(value, device="meta"), requires_grad=parameter.requires_grad
        )
    for module in model.modules():
        for name, held in module._parameters.items():
            if held is not None:
                module._parameters[name] = empty[id(held)]
    return model.eval(), given


def share_weights(model: nn.Module) -> None:
    """Tie the weights that the configuration ties, such as the output layer to the embedding."""
    if hasattr(model, "tie_weights"):
        cast(Any, model).tie_weights()
