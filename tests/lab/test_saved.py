"""Failing setups with their levers: which rate fails first, and when a lever has saved a run."""

from __future__ import annotations

import csv
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.benchmark_scripts import script
from support.places import ROOT

from rksp.confirm.arms import parse_arms

saved = script("saved")
README = ROOT / "lab" / "EVALUATION.md"
EDGE = 0.02  # between the rates 0.01 and 0.0316


@pytest.fixture
def train(monkeypatch):
    """Return what makes runs at a rate diverge above an edge, and end with levers as told."""

    def train(ends: dict[str, float | None], edge: float = EDGE) -> list:
        levers = [SimpleNamespace(arm=arm) for arm in ("", *ends)]  # a run takes up no batch

        def confirm(source, recipe, options, **more):
            arms, seeds = parse_arms(options.arms), range(options.seeds)
            rates = {arm.label: recipe.learning_rate * arm.rate for arm in arms}
            finals = {n: 3.0 + 0.1 * (r < 0.009) if r <= edge else None for n, r in rates.items()}
            finals |= {n: loss for n, loss in ends.items() if n in rates}
            trials = [
                SimpleNamespace(arm=name, seed=seed, final_loss=loss)
                for name, loss in finals.items()
                for seed in seeds
            ]
            of = [SimpleNamespace(arm=n, final_loss=x, failed=1) for n, x in finals.items()]
            prediction = SimpleNamespace(levers=levers)
            return SimpleNamespace(arms=of, trials=trials, prediction=prediction)

        monkeypatch.setattr(saved, "confirm", confirm)
        return saved.saved("gpt2", Path("unused"), seeds=1)

    return train


def printed(rows: list) -> str:
    return saved.markdown(list(csv.DictReader(StringIO(saved.to_csv(rows)))))


def test_the_lowest_rate_that_fails_is_set_beside_the_best_one(train) -> None:
    (row,) = train({"warmup=48": 3.0})
    assert row.rate == 0.0316 and row.lower_rate == 0.01
    assert train({"warmup=48": 3.0}, edge=0.015)[0].rate == 0.0178


@pytest.mark.parametrize(
    ("loss", "count", "trained"),
    [(3.04, 1, 1), (3.06, 0, 1), (2.5, 1, 1), (3.3, 0, 0), (None, 0, 0)],
)
def test_a_lever_saves_a_run_that_ends_as_low_as_at_the_lower_rate(
    train, loss, count, trained
) -> None:
    (row,) = train({"warmup=48": loss})
    assert (row.lever, row.saved, row.trained, row.failed) == ("warmup=48", count, trained, 1)
    said = printed([row])
    assert f"saves {count} of 1 setups" in said and f"with it {trained} do not fail" in said


def test_every_lever_is_counted_by_itself(train) -> None:
    rows = train({"qk_norm": 4.0, "warmup=48": 3.0})
    assert [row.lever for row in rows] == ["qk_norm", "warmup=48", "qk_norm+warmup=48"]
    said = printed(rows)
    assert "`qk_norm` saves 0 of 1 setups" in said and "`warmup=48` saves 1 of 1 setups" in said


def test_a_setup_without_a_lever_is_not_saved_and_one_that_never_fails_is_none(train) -> None:
    (row,) = train({})
    assert (row.lever, row.saved) == ("", 0)
    assert "saves 0 of 1" in printed([row])
    assert train({}, edge=1.0) == [] == train({}, edge=1e-9)


def test_what_is_said_of_the_levers_is_what_was_trained() -> None:
    rows = list(csv.DictReader(StringIO(saved.TABLE.read_text(encoding="utf-8"))))
    assert {row["target"] for row in rows} == set(saved.TARGETS)
    assert saved.markdown(rows) in README.read_text(encoding="utf-8")
