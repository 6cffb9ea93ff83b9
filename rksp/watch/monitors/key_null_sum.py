"""Key-gradient null sum: an identity that exact attention obeys and inexact attention breaks."""

from __future__ import annotations

import torch
from torch import Tensor

from rksp.ground.errors import NotCovered
from rksp.models.anatomy.attention_calls import AttentionCall
from rksp.models.anatomy.weight_view import at_least_float
from rksp.watch.moment import Moment, Phase
from rksp.watch.monitors.attention_watch import AttentionWatcher
from rksp.watch.monitors.base import Reading


class KeyNullSum(AttentionWatcher):
    """ρ = ‖Σ_j dK_j‖ / ‖dK‖_F, the worst head's mean over sequences: `key_null_sum`.

    A softmax does not change when its logits shift, so the gradient of the keys that enter
    attention sums to zero over positions, per head and sequence. An error in the row sums δ of the
    backward pass leaves a remainder, in the direction that lets query and key weights drift. This
    monitor is rksp's own proposal for the fault of arXiv 2510.04212. Logit caps and learned sinks
    break the identity.

    `key_null_drift` follows the signed sums s over readings: ‖Σ s‖ / √Σ‖s‖². It stays near one for
    rounding and grows like √n for a bias.
    """

    name = "key-null-sum"
    phase = Phase.GRADIENT
    default_every = 10
    quantities = ("key_null_sum", "key_null_drift")
    source = "rksp, for the fault of arXiv 2510.04212"

    def bind(self, model):
        """Find the attention layers."""
        self.reset()
        return super().bind(model)

    _sums: dict[str, tuple[Tensor, Tensor]]

    def reset(self) -> None:
        """Forget the signed sums."""
        self._drift: dict[str, tuple[Tensor, Tensor]] = {}

    def look(self, layer: str, call: AttentionCall) -> None:
        """Watch the gradient of the call's keys."""
        if call.key is None or call.softcap:
            return
        self._is_covered = True
        if call.key.requires_grad:
            sums = self._sums

            def after(gradient: Tensor) -> None:
                whole = at_least_float(gradient.detach())
                sums.setdefault(layer, (whole.sum(-2), whole.square().sum((-2, -1))))

            call.key.register_hook(after)

    @torch.no_grad()
    def readings(self, moment: Moment) -> list[Reading]:
        """Return the null sums and the drifts of every layer.

        Raises:
            NotCovered: Attention caps its logits or does not show its keys.
        """
        if not self._is_covered:
            raise NotCovered(
                "the model's attention caps its logits, or it shows only its logits, not its keys"
            )
        seen, self._sums = self._sums, {}
        readings = []
        for layer, (total, energy) in seen.items():
            total = total.reshape(-1, *total.shape[-2:])
            energy = energy.reshape(-1, energy.shape[-1])
            if not bool((energy > 0).any()) or not bool(torch.isfinite(energy).all()):
                continue
            ratios = (total.norm(dim=-1) / energy.clamp(min=1e-30).sqrt()).mean(0)
            drift = self._drifted(layer, total.sum(0))
            for quantity, values in (("key_null_sum", ratios), ("key_null_drift", drift)):
                readings.append(self.worst_head(quantity, moment.step, layer, values))
        return readings

    def _drifted(self, layer: str, signed: Tensor) -> Tensor:
        zeros = torch.zeros_like(signed), torch.zeros_like(signed[..., 0])
        total, energy = self._drift.get(layer, zeros)
        total, energy = total + signed, energy + signed.square().sum(-1)
        self._drift[layer] = (total, energy)
        return total.norm(dim=-1) / energy.clamp(min=1e-38).sqrt()

    def _clear(self) -> None:
        super()._clear()
        self._is_covered = False
        self._sums = {}
