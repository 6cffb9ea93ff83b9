"""Activation range: how close activations come to the largest number of their type."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rksp.models.anatomy.attention_layouts import is_linear
from rksp.models.anatomy.chains import block_paths, float_tensors
from rksp.watch.moment import Moment, Phase
from rksp.watch.monitors.base import Monitor, Reading

FP16_MAX = torch.finfo(torch.float16).max
FP8_MAX = 448.0  # of float8_e4m3fn, without a scale


class ActivationRange(Monitor):
    """Largest magnitude among the outputs of a block and of its linear layers, per block.

    `activation_max` is that magnitude, with its share of the fp16, bf16 and fp8 (e4m3) maxima.
    `activation_share` is its share of the maximum of the type in use (of the worst one, since
    autocast mixes types). `activation_growth` of the whole model is λ = ln(rms last / rms first) /
    blocks over the outputs of the blocks (OLMo 2, 2025: near zero in stable models).
    """

    name = "activation-range"
    phase = Phase.GRADIENT
    default_every = 20
    quantities = (
        "activation_max",
        "activation_share",
        "activation_growth",
    )
    source = "OLMo 2, arXiv 2501.00656"

    def bind(self, model: nn.Module) -> str | None:
        """Find the blocks."""
        self._blocks = dict.fromkeys(block_paths(model))
        self._clear()
        return None if self._blocks else "no list of blocks was found"

    def arm(self, model: nn.Module) -> Sequence[RemovableHandle]:
        """Put hooks on the blocks and their linear layers."""
        self._clear()
        handles = []
        for path in self._blocks:
            block = model.get_submodule(path)
            for module in block.modules():
                if module is block or is_linear(module):
                    handles.append(module.register_forward_hook(self._hook(path, module is block)))
        return handles

    def read(self, moment: Moment) -> list[Reading]:
        """Return the magnitudes of every block and the growth of the whole model."""
        readings, step = [], moment.step
        for path, seen in self._seen.items():
            values = torch.stack([extreme.float() for extreme, _ in seen]).tolist()
            share = max(v / limit for v, (_, limit) in zip(values, seen, strict=True))
            top = max(values)
            detail = {
                "fp16_share": top / FP16_MAX,
                "bf16_share": top / torch.finfo(torch.bfloat16).max,
                "fp8_share": top / FP8_MAX,
            }
            readings.append(self.reading("activation_max", step, top, layer=path, **detail))
            readings.append(self.reading("activation_share", step, share, layer=path))
        if len(self._energies) > 1:
            energies = torch.stack(self._energies).tolist()
            if min(energies) > 0 and math.isfinite(max(energies)):
                growth = 0.5 * math.log(energies[-1] / energies[0]) / (len(energies) - 1)
                readings.append(self.reading("activation_growth", step, growth))
        self._clear()
        return readings

    def _clear(self) -> None:
        self._seen: dict[str, list[tuple[Tensor, float]]] = {}
        self._energies: list[Tensor] = []

    def _hook(self, path: str, is_block: bool):
        def after(module: nn.Module, args: tuple, output: object) -> None:
            for place, (_, tensor) in enumerate(float_tensors(output)):
                tensor = tensor.detach()
                if not tensor.numel() or (place and is_block):
                    continue  # a block's later outputs are caches and attention weights
                low, high = torch.aminmax(tensor)
                extreme = torch.maximum(low.abs(), high.abs())
                self._seen.setdefault(path, []).append((extreme, torch.finfo(tensor.dtype).max))
                if is_block:
                    mean = tensor.square().mean(dtype=torch.float32)
                    self._energies.append(mean)

        return after
