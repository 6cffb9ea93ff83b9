"""Failing setups with their lever: which rate fails first, and when a lever has saved a run."""

from __future__ import annotations

import csv
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.benchmark_scripts import script

from rksp.models.resolve import resolve_tiny

saved = script("saved")
EDGE = 0.01


def trained(finals: dict[str, float | None], edge: float):
    """Return a `confirm` whose default arms end at these losses; a ladder diverges above `edge`."""

    def confirm(source, recipe, arms, *, seeds, **options):
        if arms is None:
            ends = finals
        else:
            ends = {a.label: 3.0 if recipe.learning_rate * a.rate <= edge else None for a in arms}
        trials = [
            SimpleNamespace(arm=name, seed=seed, final_loss=loss)
            for name, loss in ends.items()
            for seed in seeds
        ]
        of = [SimpleNamespace(arm=n, final_loss=loss, failed=1) for n, loss in ends.items()]
        return SimpleNamespace(arms=of, trials=trials)

    return confirm


@pytest.fixture(autouse=True)
def known_edge(monkeypatch) -> None:
    risk = SimpleNamespace(likely_edge=EDGE)
    monkeypatch.setattr(saved, "evaluate", lambda *given: SimpleNamespace(risk=risk))


def row(monkeypatch, finals: dict[str, float | None], edge: float = EDGE):
    monkeypatch.setattr(saved, "confirm", trained(finals, edge))
    return saved.saved("gpt2", Path("unused"), seeds=1)


def test_the_lowest_rate_of_the_ladder_that_fails_is_the_setup(monkeypatch) -> None:
    found = row(monkeypatch, {"baseline": 4.0, "rate=0.3": 3.0, "warmup=60": 3.04})
    assert EDGE < found.rate < 1.8 * EDGE
    assert found.lower_rate == pytest.approx(0.3 * found.rate, rel=0.01)


@pytest.mark.parametrize(("loss", "count"), [(3.04, 1), (3.06, 0), (2.5, 1), (None, 0)])
def test_a_lever_saves_a_run_that_ends_as_low_as_at_the_lower_rate(
    loss, count, monkeypatch
) -> None:
    found = row(monkeypatch, {"baseline": 4.0, "rate=0.3": 3.0, "warmup=60": loss})
    assert (found.lever, found.saved, found.failed) == ("warmup=60", count, 1)
    table = saved.markdown(list(csv.DictReader(StringIO(saved.to_csv([found])))))
    assert table.endswith(f"Saved: {count} of 1 setups.")
    assert ("diverges" in table) == (loss is None)


def test_a_setup_without_a_lever_is_not_saved_and_one_that_never_fails_is_none(monkeypatch) -> None:
    found = row(monkeypatch, {"baseline": 4.0, "rate=0.3": 3.0})
    assert (found.lever, found.saved) == ("", 0)
    assert row(monkeypatch, {"baseline": 3.0}, edge=1.0) is None
    assert row(monkeypatch, {"baseline": 3.0}, edge=1e-9) is None


def test_every_target_has_a_tiny_twin() -> None:
    assert [resolve_tiny(name).num_parameters < 1e6 for name in saved.TARGETS] == [True] * 5
