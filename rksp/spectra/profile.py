"""Aggregate the spectra of all blocks of a model over the layers that can be trusted."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rksp.ground.errors import InputError
from rksp.ground.text import words
from rksp.spectra.dmd import (
    VARIANTS,
    FitJob,
    LayerSpectrum,
    Variant,
    blas_threads,
    check_rank,
    solve,
)
from rksp.spectra.status import Status
from rksp.spectra.subspace import distinct_states

if TYPE_CHECKING:  # the annotation must not load the modules that open models
    from rksp.measure.snapshots import LayerTransition

QUANTITIES = words(
    "near_unit_mass expansive_mass contractive_mass middle_mass soft_near_unit_mass "
    "spectral_radius eigenvector_condition nonnormality largest_singular_value max_growth "
    "energy_gain nonlinearity nonlinearity_whitened update_ratio update_ratio_centered "
    "noise_radius held_out_residual condition discarded_energy kreiss"
)
MIN_COVERAGE = 0.5  # with a smaller share of trusted layers, the profile is indeterminate

Aggregates = Mapping[str, Mapping[str, float | int]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SpectralProfile:
    """One spectrum per block, and their aggregates.

    Attributes:
        layers: Spectra by position in the chain, with any status.
        variant: Name of the definition that all of them follow.
        aggregates: For each quantity of `QUANTITIES` measured on at least one OK layer, its `mean`,
            `max`, `min`, `std` (population) and `count` over the OK layers.
        coverage: Share of layers that are OK.
        published_score: Layer mean of the near-unit mass, over the layers that the variant counts;
            None if no such layer has one.
        reading: `"measured"`, `"indeterminate"` if the profile must not be read as risk, or
            `"not measured"`.
        reason: Why it is not measured, with numbers and a remedy; otherwise empty.
    """

    layers: tuple[LayerSpectrum, ...]
    variant: str
    aggregates: Aggregates
    coverage: float
    published_score: float | None
    reading: str
    reason: str

    @classmethod
    def not_measured(cls, variant: str, reason: str) -> SpectralProfile:
        """Return the profile of a model that has no blocks to measure."""
        return cls(
            layers=(),
            variant=variant,
            aggregates={},
            coverage=0.0,
            published_score=None,
            reading="not measured",
            reason=reason,
        )

    @classmethod
    def of(cls, layers: Iterable[LayerSpectrum], variant: Variant) -> SpectralProfile:
        """Sort the layers and aggregate them.

        Raises:
            InputError: There are no layers, or one follows another variant.
        """
        ordered = tuple(sorted(layers, key=lambda s: s.layer))
        if not ordered:
            raise InputError(
                "There are no spectra of blocks; give a model with at least one block."
            )
        others = sorted({s.variant for s in ordered} - {variant.name})
        if others:
            raise InputError(
                f"Layers use {', '.join(others)} as well as {variant.name}; use one variant."
            )
        trusted = [s for s in ordered if s.status is Status.OK]
        counted = trusted if variant.layers == "ok" else ordered
        masses = [s.near_unit_mass for s in counted if s.near_unit_mass is not None]
        reason = _reason(ordered, len(trusted))
        return cls(
            layers=ordered,
            variant=variant.name,
            aggregates=_aggregate(trusted),
            coverage=len(trusted) / len(ordered),
            published_score=statistics.fmean(masses) if masses else None,
            reading="indeterminate" if reason else "measured",
            reason=reason,
        )


def _aggregate(layers: Iterable[LayerSpectrum]) -> Aggregates:
    trusted = list(layers)
    found: dict[str, dict[str, float | int]] = {}
    for quantity in QUANTITIES:
        values = [v for s in trusted if (v := getattr(s, quantity)) is not None]
        if values and all(map(math.isfinite, values)):
            found[quantity] = {
                "mean": statistics.fmean(values),
                "max": max(values),
                "min": min(values),
                "std": statistics.pstdev(values),
                "count": len(values),
            }
    return found


def _reason(layers: tuple[LayerSpectrum, ...], trusted: int) -> str:
    if trusted >= MIN_COVERAGE * len(layers):
        return ""
    failures = Counter(s.status for s in layers if s.status is not Status.OK)
    status, count = failures.most_common(1)[0]
    example = next(s for s in layers if s.status is status)
    return (
        f"{count} of {len(layers)} layers are {status.value.replace('_', ' ')} "
        f"(layer {example.layer}: {example.status_detail}). {status.remedy}"
    )


class SpectralAccumulator:
    """Fits each block when it arrives and keeps only its spectrum.

    With `workers`, threads solve blocks while the forward pass continues. At most that many blocks
    wait with their states, so memory stays bounded. Each solve uses one BLAS thread, so results do
    not depend on the number of workers.

    It is also a context manager, which drops pending work if the forward pass fails.

    Args:
        variant: The definition; see `rksp.spectra.dmd.VARIANTS`.
        rank: As for `rksp.spectra.dmd.fit`.
        kreiss: As for `rksp.spectra.dmd.fit`.
        extras: As for `rksp.spectra.dmd.fit`.
        workers: Number of threads; 0 solves inside `consume`.
    """

    def __init__(
        self,
        *,
        variant: Variant = VARIANTS["rksp-1"],
        rank: int | None = None,
        kreiss: bool = False,
        extras: bool = True,
        workers: int = 0,
    ) -> None:
        check_rank(rank, variant)
        if workers < 0:
            raise InputError(f"workers is {workers}; give 0 or more.")
        self._variant = variant
        self._options: dict[str, Any] = {
            "rank": rank,
            "kreiss": kreiss,
            "extras": extras,
            "variant": variant,
        }
        self._workers = workers
        self._spectra: list[LayerSpectrum] = []
        self._pending: set[Future[LayerSpectrum]] = set()
        self._stack = ExitStack()
        self._pool: ThreadPoolExecutor | None = None

    def consume(self, transition: LayerTransition) -> None:
        """Fit one block; its tensors may change or be freed after this returns."""
        job = FitJob(
            states=distinct_states(transition.x, transition.y, transition.sequence),
            name=transition.name,
            layer=transition.layer,
            **self._options,
        )
        if self._workers == 0:
            with blas_threads(1):
                self._spectra.append(solve(job))
            return
        if self._pool is None:
            # One limit around all solves: nested limits in threads restore each other's values.
            self._stack.enter_context(blas_threads(1))
            self._pool = self._stack.enter_context(
                ThreadPoolExecutor(self._workers, thread_name_prefix="rksp-spectra")
            )
        while len(self._pending) >= self._workers:
            self._collect(wait(self._pending, return_when=FIRST_COMPLETED).done)
        self._pending.add(self._pool.submit(solve, job))

    def finish(self) -> SpectralProfile:
        """Wait for pending work and aggregate.

        Raises:
            InputError: No block was consumed.
        """
        with self:
            self._collect(wait(self._pending).done)
        return SpectralProfile.of(self._spectra, self._variant)

    def _collect(self, done: set[Future[LayerSpectrum]]) -> None:
        self._pending -= done
        self._spectra.extend(future.result() for future in done)

    def __enter__(self) -> SpectralAccumulator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for future in self._pending:
            future.cancel()
        self._pending = set()
        self._stack.close()
        self._pool = None
