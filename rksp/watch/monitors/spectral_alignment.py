"""Spectral Alignment: the side of a weight's first singular direction on which its inputs lie."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rksp.kernels.power_iteration import top_singular
from rksp.kernels.row_cosine import BINS, RowCosine, row_cosine
from rksp.models.anatomy.chains import first_tensor
from rksp.models.anatomy.parts import find_anatomy
from rksp.models.anatomy.weight_view import Matrix
from rksp.watch.moment import Moment, Phase
from rksp.watch.monitors.base import Monitor, Reading

_TOKENS = 4096  # of the first micro-batch, evenly chosen
# Passes over the weights at a warm start. On a small model that trained at 1e-3, 4 passes every 20
# steps gave a median cosine with v_1 of 0.994 at step 20 and 0.999 at step 100, and a least one of
# 0.998 at 200; 4 passes every 100 steps gave 0.946 at step 100 and 0.9997 at 200.
_PASSES = 4
_RESIDUAL = 0.01  # up to which a direction is that of v_1
_ROUNDS = 8  # of as many passes as it takes, at most


class SpectralAlignment(Monitor):
    """Majority sign of cos(x_t, v_1) over tokens: `sign_majority` (arXiv 2510.04202).

    x_t is the input of a matrix, v_1 its first singular vector on that side. The value is one half
    if signs are balanced, and 1 if all inputs lie on one side, the loss of sign diversity that
    precedes failures. The first position is left out, because inputs gather there, and so are
    experts. The detail gives `mean` (its sign is consistent between readings), `std`, `p5` and
    `p95` of the cosines, `gap` = σ_2/σ_1 (near 1 the direction means little) and the `residual` of
    v_1, which is iterated on while it is above 0.01, for up to 32 passes.

    Differences from ports: cosines are taken on the input side, where they have the same sign as on
    the output side; and all tokens are taken together instead of sequence by sequence.
    """

    name = "spectral-alignment"
    phase = Phase.GRADIENT
    default_every = 40
    quantities = ("sign_majority",)
    source = "arXiv 2510.04202"

    def bind(self, model: nn.Module) -> str | None:
        """Find the matrices of the blocks."""
        anatomy = find_anatomy(model)
        modules = dict(model.named_modules())
        self._groups: dict[str, list[Matrix]] = {}
        for matrix in anatomy.attention_matrices() + anatomy.feed_forward:
            path = matrix.name.partition(":")[0]
            if matrix.expert is None and path in modules:
                self._groups.setdefault(path, []).append(matrix)
        self._seen: dict[str, RowCosine] = {}
        self.reset()
        return None if self._groups else "no matrix of a known layout was found in the blocks"

    def reset(self) -> None:
        """Forget the singular vectors of the last reading."""
        self._state: tuple[Tensor, ...] | None = None

    @torch.no_grad()
    def arm(self, model: nn.Module) -> Sequence[RemovableHandle]:
        """Compute the singular vectors, and put hooks on the matrices' inputs."""
        self._seen = {}
        matrices = [matrix for group in self._groups.values() for matrix in group]
        weights = [matrix.read() for matrix in matrices]
        passes = None if self._state is None else _PASSES
        top = top_singular(weights, self._state, iterations=passes)
        for _ in range(_ROUNDS):
            if not bool((top.residual > _RESIDUAL).any()):  # NaN is not
                break
            top = top_singular(weights, top.state, iterations=_PASSES)
        self._state = top.state
        self._residual = dict(zip((m.name for m in matrices), top.residual.tolist(), strict=True))
        self._gap = {m.name: gap for m, gap in zip(matrices, top.gap.tolist(), strict=True)}
        triplets = zip(matrices, top.v, top.is_finite.tolist(), strict=True)
        vectors = {m.name: v for m, v, is_finite in triplets if is_finite}
        self._armed = {
            path: [m for m in group if m.name in vectors] for path, group in self._groups.items()
        }
        return [
            model.get_submodule(path).register_forward_pre_hook(
                self._hook(path, torch.stack([vectors[m.name] for m in group])), with_kwargs=True
            )
            for path, group in self._armed.items()
            if group
        ]

    def read(self, moment: Moment) -> list[Reading]:
        """Return the reading of every matrix that ran."""
        seen, self._seen = self._seen, {}
        return [
            reading
            for path, found in seen.items()
            for index, matrix in enumerate(self._armed[path])
            if (reading := self._of_matrix(moment.step, matrix, found, index)) is not None
        ]

    def _hook(self, path: str, vectors: Tensor):
        def before(module: nn.Module, args: tuple, kwargs: dict) -> None:
            x = first_tensor((args, kwargs))
            if x is None or path in self._seen:
                return
            x = x.detach()
            x = x[:, 1:] if x.dim() == 3 and x.shape[1] > 2 else x
            rows = x.flatten(0, -2)
            self._seen[path] = row_cosine(rows[:: -(-len(rows) // _TOKENS)], vectors)

        return before

    def _of_matrix(self, step: int, matrix: Matrix, found: RowCosine, index: int) -> Reading | None:
        rows = int(found.rows[index])
        signs = [int(found.positive[index]), int(found.negative[index])]
        if rows < 2 or not sum(signs):
            return None  # rows that are zero or overflow have no cosine
        mean = float(found.total[index]) / rows
        square = float(found.total_squares[index]) / rows
        share = found.histogram[index].cumsum(0).double().cpu() / rows
        low, high = (int((share < level).sum()) for level in (0.05, 0.95))
        return self.reading(
            "sign_majority",
            step,
            max(signs) / sum(signs),
            layer=matrix.name,
            mean=mean,
            std=max(0.0, square - mean * mean) ** 0.5,
            p5=2 * (low + 0.5) / BINS - 1,
            p95=2 * (high + 0.5) / BINS - 1,
            gap=self._gap[matrix.name],
            residual=self._residual[matrix.name],
            tokens=float(rows),
        )
