"""Profiles of whole models: aggregates, readings, and the accumulator."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from support.oracles import noisy_pair, same_bits
from threadpoolctl import threadpool_info

from rksp.documents.spectrum import QUANTITIES, VARIANTS, SpectralProfile, Status
from rksp.ground.errors import InputError
from rksp.measure.snapshots import LayerTransition
from rksp.spectra.dmd import SpectralAccumulator, fit

OURS = VARIANTS["rksp-1"]


def _transition(layer: int, *, width: int = 16, states: int = 120, update: float = 1.0):
    x, y = noisy_pair(states, width, seed=layer)
    return LayerTransition(
        layer=layer,
        name=f"blocks.{layer}",
        x=x.float(),
        y=(x + update * (y - x)).float(),
    )


def _profile(*updates: float, variant=OURS, workers: int = 1) -> SpectralProfile:
    spectra = SpectralAccumulator(variant=variant, workers=workers)
    for layer, update in enumerate(updates):
        spectra.consume(_transition(layer, update=update))
    return spectra.finish()


def test_aggregates_are_over_the_ok_layers() -> None:
    profile = _profile(1.0, 2.0, 1e-5, 3.0)
    ok = [s for s in profile.layers if s.status is Status.OK]
    assert [s.layer for s in ok] == [0, 1, 3]
    radii = [s.spectral_radius for s in ok]
    found = profile.aggregates["spectral_radius"]
    assert found["mean"] == pytest.approx(np.mean(radii))
    assert found["std"] == pytest.approx(np.std(radii))
    assert (found["min"], found["max"], found["count"]) == (min(radii), max(radii), 3)
    assert profile.coverage == 0.75
    assert profile.reading == "measured"
    assert profile.reason == ""


def test_what_was_never_measured_is_absent_and_names_are_known() -> None:
    assert set(_profile(1.0, 1.0).aggregates) == set(QUANTITIES)
    assert set(_profile(0.0).aggregates) < set(QUANTITIES)


def test_the_published_score_follows_the_variant() -> None:
    ours, paper = (_profile(1.0, 2.0, 1e-5, variant=v) for v in (OURS, VARIANTS["paper-full-1"]))
    masses = [s.near_unit_mass for s in ours.layers]
    assert masses[2] == 1.0
    assert ours.published_score == pytest.approx(np.mean(masses[:2]))
    assert paper.published_score == pytest.approx(np.mean(masses))
    assert (ours.variant, paper.variant) == ("rksp-1", "paper-full-1")
    assert all(s.variant == "paper-full-1" for s in paper.layers)


def test_degenerate_models_are_indeterminate_not_risky() -> None:
    profile = _profile(1e-5, 1e-5, 1.0)
    assert profile.reading == "indeterminate"
    assert "2 of 3 layers are vanishing update" in profile.reason
    assert Status.VANISHING_UPDATE.remedy in profile.reason
    assert profile.aggregates["near_unit_mass"]["count"] == 1
    nothing = _profile(1e-5, 1e-5)
    assert nothing.aggregates == {}
    assert nothing.published_score is None


def test_layers_may_come_in_any_order() -> None:
    spectra = SpectralAccumulator()
    for layer in (2, 0, 1):
        spectra.consume(_transition(layer))
    assert [s.name for s in spectra.finish().layers] == ["blocks.0", "blocks.1", "blocks.2"]


@pytest.mark.parametrize("workers", [2, 3])
def test_results_do_not_depend_on_the_number_of_workers(workers: int) -> None:
    updates = (1.0, 0.5, 2.0, 1.5, 1e-5)
    serial, pooled = _profile(*updates), _profile(*updates, workers=workers)
    assert all(map(same_bits, serial.layers, pooled.layers))
    assert serial.aggregates == pooled.aggregates


def test_consumed_tensors_may_be_overwritten() -> None:
    transition = _transition(0)
    expected = fit(transition.x, transition.y, name="blocks.0")
    spectra = SpectralAccumulator(workers=1)
    spectra.consume(transition)
    transition.x.zero_()
    transition.y.zero_()
    assert same_bits(spectra.finish().layers[0], expected)


def test_threads_and_limits_are_given_back() -> None:
    before = [(p["filepath"], p["num_threads"]) for p in threadpool_info()]
    with pytest.raises(KeyError), SpectralAccumulator(workers=2) as spectra:
        spectra.consume(_transition(0))
        raise KeyError
    _profile(1.0, workers=2)
    assert [(p["filepath"], p["num_threads"]) for p in threadpool_info()] == before
    assert not [t for t in threading.enumerate() if t.name.startswith("rksp-spectra")]


def test_empty_profiles_are_refused() -> None:
    with pytest.raises(InputError, match="no spectra of blocks"):
        SpectralAccumulator().finish()
    with pytest.raises(InputError, match="workers"):
        SpectralAccumulator(workers=0)
    with pytest.raises(InputError, match="fixes its own rank"):
        SpectralAccumulator(variant=VARIANTS["paper-full-1"], rank=3)
