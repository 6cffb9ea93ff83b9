"""Fit the spectra of blocks as they arrive, in threads."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from rksp.ground.errors import InputError
from rksp.spectra.dmd import FitJob, blas_threads, check_rank, solve
from rksp.spectra.profile import SpectralProfile
from rksp.spectra.spectrum import VARIANTS, LayerSpectrum, Variant
from rksp.spectra.subspace import distinct_states

if TYPE_CHECKING:  # the annotation must not load the modules that open models
    from rksp.measure.snapshots import LayerTransition


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

    def __exit__(self, *error: object) -> None:
        for future in self._pending:
            future.cancel()
        self._pending = set()
        self._stack.close()
        self._pool = None
