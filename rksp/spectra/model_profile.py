"""Profile a given model: one forward pass, every block's spectrum."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from html import escape
from typing import TYPE_CHECKING, Literal

from rksp.documents.shown import Collected
from rksp.documents.spectrum import VARIANTS, SpectralProfile
from rksp.ground.errors import InputError

if TYPE_CHECKING:  # a stored profile is read without torch
    from torch import nn

    from rksp.ground.model import Progress
    from rksp.measure.snapshots import Inputs, LayerTransition

Fitted = Literal["all", "some", "none"]
_SOME = 4  # blocks
_COLUMNS = (
    ("M≈1", "near_unit_mass"),
    ("M>1", "expansive_mass"),
    ("ρ", "spectral_radius"),
    ("κ(V)", "eigenvector_condition"),
    ("η", "nonlinearity"),
    ("update", "update_ratio"),
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Profile(Collected):
    """What one forward pass of one model showed, with one spectrum per block."""

    spectra: SpectralProfile

    def __repr__(self) -> str:
        spectra, forward = self.spectra, self.forward
        chains = " + ".join(f"{path} ({length})" for path, length in self.chains)
        where = f"blocks {chains}, width {self.width}" if chains else "no residual stream"
        means = ", ".join(
            f"{title} {spectra.aggregates[name]['mean']:.3g}"
            for title, name in _COLUMNS
            if name in spectra.aggregates
        )
        lines = [
            f"rksp profile: {where}, {self.states} states, {spectra.variant}",
            f"  means over {spectra.coverage:.0%} of the blocks: {means}" if means else "",
            f"  initial loss {forward.loss:.3g}" if forward.loss is not None else "",
            f"  {spectra.reason}" if spectra.reason else "",
        ]
        return "\n".join(filter(None, lines))

    def _repr_html_(self) -> str:
        heads = "".join(f"<th>{title}</th>" for title in ("block", *(t for t, _ in _COLUMNS)))
        rows = "".join(
            f"<tr><td>{escape(layer.name)}</td>"
            + "".join(f"<td>{_shown(getattr(layer, name))}</td>" for _, name in _COLUMNS)
            + "</tr>"
            for layer in self.spectra.layers
        )
        table = f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
        return f"<pre>{escape(repr(self))}</pre>{table if rows else ''}"


def _blocks_do(spectra: SpectralProfile, seen: Collected) -> str:
    gain = spectra.aggregates.get("energy_gain", {}).get("mean")
    grows = (
        "The blocks have"
        if gain is None
        else f"The energy of the states grows {gain:.2g} times a block:"
    )
    return f"{grows} {seen.placement or 'where it normalizes could not be read'}."


def _chosen(fitted: Fitted, count: int) -> Collection[int]:
    if fitted == "none" or not count:
        return ()
    if fitted == "all" or count <= _SOME:
        return range(count)
    return {round(i * (count - 1) / (_SOME - 1)) for i in range(_SOME)}


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def profile(
    model: nn.Module,
    inputs: Inputs,
    *,
    variant: str = "rksp-1",
    rank: int | None = None,
    fitted: Fitted = "all",
    num_states: int | None = None,
    blocks: str | None = None,
    workers: int = 1,
    needs_chain: bool = True,
    progress: Progress | None = None,
) -> Profile:
    """Profile a given model: one forward pass, every block's spectrum.

    Args:
        model: Any `nn.Module` with a chain of blocks; left bitwise unchanged.
        inputs: Input of the model: a tensor, keyword arguments, or a `Batch` with labels for the
            initial loss. Positions with a zero in `attention_mask` are left out.
        variant: A name in `rksp.documents.spectrum.VARIANTS`, such as those of the published
            definitions.
        rank: Keep this many principal directions; default decided from the data.
        fitted: Whose spectra are fitted: those of all blocks, of at most four, or of none.
        num_states: Use this many token states; default all.
        blocks: Module path of the list of blocks; default the one that is found.
        workers: Threads for the eigenproblems; the result does not depend on their number.
        needs_chain: Whether to refuse a model without a chain of blocks; if false, its spectra are
            not measured.
        progress: Called after every block; see `Progress`.

    Returns:
        The profile.

    Raises:
        InputError: An option or the inputs cannot be used.
        NotCovered: The model has no residual stream of constant width.
    """
    from rksp.measure.snapshots import collect
    from rksp.spectra.dmd import SpectralAccumulator

    if variant not in VARIANTS:
        raise InputError(f"No variant is called {variant!r}; choose one of {', '.join(VARIANTS)}.")
    with SpectralAccumulator(variant=VARIANTS[variant], rank=rank, workers=workers) as spectra:

        def consume(transition: LayerTransition) -> None:
            if fitted == "all" or transition.layer in _chosen(fitted, transition.of):
                spectra.consume(transition)
            if progress is not None:
                progress(transition.layer + 1, transition.of, "forward and spectra")

        seen = collect(
            model,
            inputs,
            consume=consume,
            num_states=num_states,
            blocks=blocks,
            needs_chain=needs_chain,
        )
        reason = "none were asked for" if seen.chains else "no residual stream of constant width"
        count = sum(length for _, length in seen.chains)
        chosen = _chosen(fitted, count)
        missing = SpectralProfile(variant=variant, reason=reason)
        fitted_ones, notes = spectra.finish() if chosen else missing, seen.notes
        if seen.chains:
            notes = (*notes, _blocks_do(fitted_ones, seen))
        if 0 < len(chosen) < count:
            notes = (*notes, f"The spectra are those of {len(chosen)} of {count} blocks.")
        found = {one.name: getattr(seen, one.name) for one in fields(seen)}
        return Profile(**{**found, "notes": notes, "spectra": fitted_ones})
