"""Monitors of attention: its logits, their spread, entropy and ties, and the null sum of keys."""

from __future__ import annotations

import math
import statistics
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rksp.documents.spectrum import LayerSpectrum, Status
from rksp.ground.errors import NotCovered
from rksp.models.anatomy.attention_calls import (
    AttentionCall,
    attention_entropies,
    logit_deviations,
    visible_logits,
    watching_attention,
)
from rksp.models.anatomy.chains import block_paths, float_tensors
from rksp.models.anatomy.parts import find_anatomy
from rksp.models.anatomy.weight_view import at_least_float
from rksp.spectra.dmd import fit
from rksp.watch.moment import Moment
from rksp.watch.monitors.base import Monitor, Reading, Rule

_QUERIES = 64  # query positions looked at per attention call, evenly chosen
_SEQUENCES = 2


class AttentionWatcher(Monitor):
    """A monitor that sees every attention call of the pass, in any implementation.

    A torch function mode that lasts for the pass shows fused attention. Attention inside of a
    compiled region is not seen.
    """

    def bind(self, model: nn.Module) -> str | None:
        anatomy = find_anatomy(model)
        self._places = [layer.path for layer in anatomy.attention] or list(anatomy.blocks)
        self._has_attended = False
        return super().bind(model)

    def arm(self, model: nn.Module) -> Sequence[RemovableHandle]:
        handles = [
            model.get_submodule(path).register_forward_pre_hook(partial(self._enter_layer, path))
            for path in self._places
        ]
        enter = model.register_forward_pre_hook(self._enter)
        # Runs first and even if the pass raises, so that torch's functions are always restored.
        leave = model.register_forward_hook(self._leave, prepend=True, always_call=True)
        return [*handles, enter, leave]

    @abstractmethod
    def look(self, layer: str, call: AttentionCall) -> None:
        """Look at one call inside of the pass; never fail, and keep no tensor of the graph."""

    def leave(self) -> None:
        """Process the pass after it ended."""

    def forget(self) -> None:
        super().forget()
        self._layer, self._is_done, self._calls_seen = "", False, 0
        self._open: ExitStack | None = None

    def worst_head(self, quantity: str, step: int, layer: str, by_head: Tensor) -> Reading:
        """Return the reading of a layer from its heads' values `[heads]`; larger ones are worse."""
        largest, head = by_head.max(0)
        detail = {"median": float(by_head.median()), "head": float(head)}
        return self.reading(
            quantity, step, float(largest), layer=layer, heads=float(len(by_head)), **detail
        )

    def _look(self, call: AttentionCall) -> None:
        layer = self._layer or f"attention.{self._calls_seen}"
        self._calls_seen += 1
        self.look(layer, call)

    def read(self, moment: Moment) -> list[Reading]:
        """Return the readings of the pass.

        Raises:
            NotCovered: No attention call was seen.
        """
        self._has_attended |= self._calls_seen > 0
        if not self._has_attended:
            raise NotCovered(
                "no attention call was seen; the model uses an attention that rksp cannot read, or "
                "it runs inside of a compiled region"
            )
        return self.readings(moment)

    @abstractmethod
    def readings(self, moment: Moment) -> list[Reading]:
        """Return the readings of a pass in which attention was seen."""

    def _enter_layer(self, path: str, module: nn.Module, args: object) -> None:
        self._layer = path

    def _enter(self, module: nn.Module, args: object) -> None:
        if self._open is None and not self._is_done:
            self._open = ExitStack()
            self._open.enter_context(watching_attention(module, self._look))

    def _leave(self, module: nn.Module, args: object, output: object) -> None:
        if self._open is not None:
            opened, self._open, self._is_done = self._open, None, True
            opened.close()
            self.leave()


class LogitMonitor(AttentionWatcher):
    """A monitor of attention logits, at up to 64 queries of the first two sequences."""

    _calls: list[tuple[str, AttentionCall]]

    def look(self, layer: str, call: AttentionCall) -> None:
        self._calls.append((layer, call.kept(_SEQUENCES)))

    def leave(self) -> None:
        with torch.no_grad():
            for layer, call in self._calls:
                if layer in self.seen:
                    continue
                logits, visible = visible_logits(call, _late_rows(call))
                if bool((visible.sum(-1) > 1).any()):
                    self.seen[layer] = self.measure(logits, visible)
        self._calls = []

    def readings(self, moment: Moment) -> list[Reading]:
        return [
            reading
            for layer, by_head in self.seen.items()
            for reading in self.readings_of(layer, by_head, moment.step)
        ]

    @abstractmethod
    def measure(self, logits: Tensor, visible: Tensor) -> Mapping[str, Tensor]:
        """Return values for each head by quantity, `[heads]`.

        Args:
            logits: `[batch, heads, queries, keys]`; hidden keys are −inf.
            visible: Bool of the same shape: the visible keys.
        """

    def readings_of(self, layer: str, by_head: Mapping[str, Tensor], step: int) -> list[Reading]:
        readings = [self.worst_head(name, step, layer, values) for name, values in by_head.items()]
        return [reading for reading in readings if math.isfinite(reading.value)]

    def forget(self) -> None:
        super().forget()
        self._calls = []


def _late_rows(call: AttentionCall) -> Tensor:
    """Return the last positions of up to 64 equal parts, because late queries see most keys."""
    length = call.rows.shape[-2]
    count = min(length, _QUERIES)
    return (torch.arange(count, device=call.rows.device) + 1) * length // count - 1


class AttentionLogits(LogitMonitor):
    """Largest scaled query–key product, `attention_max_logit`, and the logits' spread over keys.

    Kimi K2 clips above τ = 100 (arXiv 2507.20534); runs whose logits exceeded 1e4 all diverged
    (Wortsman et al., 2023, arXiv 2309.14322). `worst_head_logit_std` is the standard deviation over
    visible keys, averaged over queries; the attention logit std of a score is its mean over heads.
    Values are the worst head's. Logits include logit caps and additive masks that do not hide keys
    (position biases).
    """

    name = "attention-logits"
    default_every = 20
    quantities: ClassVar = {
        # Kimi K2 clips at 100; its run without clipping passed 1,000 before it became unstable.
        "attention_max_logit": Rule(
            transform="log", floor=0.15, harmless=5.0, warn=100.0, critical=1000.0, advice="qk_clip"
        ),
        "worst_head_logit_std": Rule(transform="log", floor=0.2, harmless=1.0, advice="qk_clip"),
    }
    source = "Kimi K2, arXiv 2507.20534; arXiv 2309.14322"

    def measure(self, logits: Tensor, visible: Tensor) -> Mapping[str, Tensor]:
        deviations, usable = logit_deviations(logits, visible), visible.sum(-1) > 1
        return {
            "attention_max_logit": logits.amax((0, 2, 3)),
            "worst_head_logit_std": torch.where(usable, deviations, torch.nan).nanmean((0, 2)),
        }


_COLLAPSED = 0.01


class AttentionEntropy(LogitMonitor):
    """H / ln(visible keys) of the softmax rows, averaged over queries: `attention_entropy`.

    Its collapse accompanies divergence (Zhai et al., 2023, arXiv 2303.06296). The value is the
    lowest head's. Heads that attend to the first token alone are low in healthy models too.
    `collapsed` therefore counts the heads below 0.01, and `new_collapsed` those that were not at
    the first reading; `collapsed_share` is 1 where no head of a layer mixes tokens any more.
    """

    name = "attention-entropy"
    default_every = 20
    quantities: ClassVar = {
        "attention_entropy": Rule(direction="down", floor=0.03, harmless=0.5, advice="qk_clip"),
        "collapsed_share": Rule(direction=None, warn=1.0, from_start=True, patience=2),
    }
    source = "arXiv 2303.06296"

    def measure(self, logits: Tensor, visible: Tensor) -> Mapping[str, Tensor]:
        entropy = attention_entropies(logits, visible)
        usable = visible.sum(-1) > 1
        return {"attention_entropy": torch.where(usable, entropy, torch.nan).nanmean((0, 2))}

    def readings_of(self, layer: str, by_head: Mapping[str, Tensor], step: int) -> list[Reading]:
        values = by_head["attention_entropy"]
        if not bool(torch.isfinite(values).all()):
            return []
        collapsed = (values < _COLLAPSED).cpu()
        first = self.past.setdefault(layer, collapsed)  # which had at the first reading
        lowest, head = values.min(0)
        detail = {
            "mean": float(values.mean()),
            "median": float(values.median()),
            "collapsed": float(collapsed.sum()),
            "new_collapsed": float((collapsed & ~first).sum()),
            "head": float(head),
            "heads": float(len(values)),
        }
        value, share = max(0.0, float(lowest)), float(collapsed.float().mean())
        return [
            self.reading("attention_entropy", step, value, layer=layer, **detail),
            self.reading("collapsed_share", step, share, layer=layer),
        ]


_NEAR = 1e-3


class MultiMaximum(LogitMonitor):
    """Share of rows with more than one key within 1e-3 of the row's maximum: `multi_max_share`.

    Low-precision fused attention then sums several probabilities of exactly one. Its rounding
    becomes one-sided, and the error of the query weights accumulates (arXiv 2510.04212). Rows that
    see fewer than two keys do not count. The value is the worst head's.
    """

    name = "multi-maximum"
    default_every = 20
    # No limit: repeated tokens tie in healthy small models, at up to 60 % of a head's rows.
    quantities: ClassVar = {"multi_max_share": Rule(floor=0.05, advice="backoff")}
    source = "arXiv 2510.04212"

    def measure(self, logits: Tensor, visible: Tensor) -> Mapping[str, Tensor]:
        usable = visible.sum(-1) > 1
        near = (logits >= logits.amax(-1, keepdim=True) - _NEAR) & visible
        tied = (near.sum(-1) > 1) & usable
        return {"multi_max_share": tied.sum((0, 2)) / usable.sum((0, 2)).clamp(min=1)}


@dataclass(eq=False)
class NearUnitMass(Monitor):
    """RKSP (arXiv 2602.22988) on the states of the sampled step's own forward pass.

    `rksp.spectra.dmd.fit` fits every block when its output leaves it, on at most `states` tokens of
    the first micro-batch, evenly spread, in the `rank` leading directions. The states of two blocks
    are never held at once. `near_unit_mass` and `expansive_mass` are read per block; the model's
    value is the mean over the trusted blocks. If the model trains with dropout, the fit includes
    it. Values then differ from those of `rksp score`, so compare them over time. A block is left
    out if it changes the shape of its states or if its fit is not OK, as for a block that still
    starts from zero. With too few states for every block the monitor is silent.
    """

    name = "near-unit-mass"
    default_every = 100
    quantities: ClassVar = {
        "near_unit_mass": Rule(direction="both", floor=0.05),
        "expansive_mass": Rule(floor=0.05),
    }
    source = "RKSP, arXiv 2602.22988"
    find, missing = block_paths, "no list of blocks was found"

    states: PositiveInt = 512
    rank: PositiveInt = 32

    def arm(self, model: nn.Module) -> Sequence[RemovableHandle]:
        handles = []
        for path in self.found:
            block = model.get_submodule(path)
            handles.append(block.register_forward_pre_hook(self._before, with_kwargs=True))
            handles.append(block.register_forward_hook(partial(self._after, path)))
        return handles

    def read(self, moment: Moment) -> list[Reading]:
        """Return the masses of every trusted block and their means.

        Raises:
            NotCovered: The batch has too few states for every block.
        """
        spectra = [spectrum for spectrum in self._spectra if spectrum.status is Status.OK]
        if not spectra:
            statuses = {spectrum.status for spectrum in self._spectra}
            if statuses <= {Status.TOO_FEW_STATES, Status.RANK_DEFICIENT}:  # from the batch shape
                reasons = sorted(status.value for status in statuses) or ["no block ran"]
                raise NotCovered(f"no block gave a trustworthy spectrum: {', '.join(reasons)}")
            return []
        readings = []
        for quantity in ("near_unit_mass", "expansive_mass"):
            values = {spectrum.name: getattr(spectrum, quantity) for spectrum in spectra}
            mean = statistics.fmean(values.values())
            for layer, value in {"": mean, **values}.items():
                detail = {"blocks": float(len(spectra))} if not layer else {}
                readings.append(self.reading(quantity, moment.step, value, layer=layer, **detail))
        return readings

    def forget(self) -> None:
        self._entering: Tensor | None = None
        self._spectra: list[LayerSpectrum] = []

    def _before(self, module: nn.Module, args: object, kwargs: object) -> None:
        self._entering = self._rows((args, kwargs))

    def _after(self, path: str, module: nn.Module, args: object, output: object) -> None:
        x, y, self._entering = self._entering, self._rows(output), None
        if x is not None and y is not None and x.shape == y.shape:
            self._spectra.append(fit(x, y, rank=min(self.rank, x.shape[1]), name=path))

    def _rows(self, value: object) -> Tensor | None:
        """Copy evenly spread states `[states, width]`, because the next block may add in place."""
        found = next((t for _, t in float_tensors(value) if t.dim() > 1), None)
        if found is None:
            return None
        flat = found.detach().flatten(0, -2)
        count = min(self.states, len(flat))
        return flat[torch.arange(count, device=flat.device) * len(flat) // count]


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
    default_every = 10
    quantities: ClassVar = {
        # Low precision gives 4e-3 and more; below 1e-3 saturated attention leaves float32's
        # rounding.
        "key_null_sum": Rule(
            transform="log", floor=0.3, harmless=1e-3, ratio=5.0, advice="backoff"
        ),
        "key_null_drift": Rule(direction=None, warn=4.0, advice="backoff"),
    }
    source = "rksp, for the fault of arXiv 2510.04212"

    def look(self, layer: str, call: AttentionCall) -> None:
        if call.key is None or call.softcap:
            return
        self._is_covered = True
        if call.key.requires_grad:
            sums = self.seen

            def after(gradient: Tensor) -> None:
                whole = at_least_float(gradient.detach())
                sums.setdefault(layer, (whole.sum(-2), whole.square().sum((-2, -1))))

            call.key.register_hook(after)  # type: ignore[no-untyped-call]  # torch's own

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
        readings = []
        for layer, (total, energy) in self.seen.items():
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
        total, energy = self.past.get(layer, zeros)
        total, energy = total + signed, energy + signed.square().sum(-1)
        self.past[layer] = (total, energy)
        drift: Tensor = total.norm(dim=-1) / energy.clamp(min=1e-38).sqrt()
        return drift

    def forget(self) -> None:
        super().forget()
        self._is_covered = False
