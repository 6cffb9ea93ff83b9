"""The packed collection: the same bytes, the same labels, and a card that counts right."""

from __future__ import annotations

import builtins
import math
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from lab import commands as cli
from lab.ladders import parquet as parquet_file
from lab.ladders.card import data_card, recall_table
from lab.ladders.collection import build_collection, read_collection, rows
from lab.ladders.grid import LadderGrid
from lab.ladders.ladder import LadderRun
from lab.ladders.plan import LadderSpec
from lab.ladders.store import read_ladder, write_ladder
from rksp.ground.errors import ArtifactError, InputError
from rksp.own_runs.outcome import Curves, Outcome

parquet = pytest.importorskip("pyarrow.parquet")

STEPS = 40
FAMILIES = ("zoo_pre_ln", "zoo_no_norm")


def _spec(seed: int, family: str) -> LadderSpec:
    return LadderSpec.model_validate(
        {
            "family": family,
            "shape": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2},
            "task": "recall",
            "recipe": {"max_steps": STEPS, "batch_size": 2, "sequence_length": 8},
            "seed": seed,
            "first_rate": 1e-4,
            "count": 6,
        }
    )


def _falling(end: float, noise: np.ndarray) -> np.ndarray:
    half = STEPS // 2
    return np.concatenate([np.linspace(5.0, end, half), np.full(half, end)]) + 0.01 * noise


def _ladder(seed: int, *, family: str = "zoo_pre_ln", hopeless: bool = False) -> LadderRun:
    """Slow, good, good, spiked, stuck, diverged; or nothing but divergence."""
    generator = np.random.default_rng(seed)
    noise = generator.standard_normal((6, STEPS))
    losses = [_falling(end, n) for end, n in zip([4, 2, 2.1, 2.1, 4, 2], noise, strict=True)]
    losses[3][24:32] += 3.0
    losses[5] = np.array([5.0, 60.0, 1e31, math.inf])
    if hopeless:
        losses = [np.array([5.0, math.nan])] * 6
    spec = _spec(seed, family)
    curves = tuple(
        Curves(
            loss=np.float32(loss),
            grad_norm=np.where(np.isfinite(loss), np.exp(np.minimum(loss, 5)), math.nan).astype(
                np.float32
            ),
            planned_steps=STEPS,
        )
        for loss in losses
    )
    seconds = tuple(float(x) for x in generator.uniform(0.1, 3, 6).round(3))
    return LadderRun(spec=spec, rates=tuple(spec.rates), curves=curves, seconds=seconds)


@pytest.fixture
def stored(tmp_path: Path) -> list[Path]:
    """Two folders, the second with a copy of a ladder of the first."""
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    for seed in range(5):
        family = FAMILIES[seed % 2]
        ladder = _ladder(seed, family=family, hopeless=seed == 3)
        write_ladder(folders[seed % 2], ladder, {"torch": "2.x", "machine": f"m{seed % 2}"})
    write_ladder(folders[1], _ladder(0), {"torch": "another"})
    return folders


def test_what_is_packed_comes_back(tmp_path: Path, stored: list[Path]) -> None:
    packed = tmp_path / "collection.parquet"
    assert build_collection(stored, packed) == 30
    originals = {
        path.stem: read_ladder(path) for folder in stored for path in folder.glob("*.json")
    }
    found = read_collection(packed)
    assert [ladder.spec.id for ladder in found] == sorted(originals)
    for ladder in found:
        original = originals[ladder.spec.id]
        assert ladder.spec == original.spec
        assert (ladder.rates, ladder.seconds) == (original.rates, original.seconds)
        assert ladder.judge().outcomes == original.judge().outcomes
        for ours, theirs in zip(ladder.curves, original.curves, strict=True):
            assert ours.loss.dtype == ours.grad_norm.dtype == np.float32
            assert ours.planned_steps == theirs.planned_steps
            for a, b in ((ours.loss, theirs.loss), (ours.grad_norm, theirs.grad_norm)):
                np.testing.assert_allclose(a, b, rtol=2**-16)


def test_the_same_input_gives_the_same_bytes(tmp_path: Path, stored: list[Path]) -> None:
    first, second, other = (tmp_path / f"{i}.parquet" for i in range(3))
    files = [path for folder in stored for path in sorted(folder.glob("*.json"))]
    build_collection(stored, first)
    build_collection(files, second)
    assert first.read_bytes() == second.read_bytes()
    build_collection(stored[1:], other)
    assert first.read_bytes() != other.read_bytes()
    assert not list(tmp_path.glob("*.partial"))


def test_stored_labels_are_those_of_the_stored_curves(tmp_path: Path, stored: list[Path]) -> None:
    packed = tmp_path / "collection.parquet"
    build_collection(stored, packed)
    table = parquet.read_table(packed).to_pylist()
    again = [row for ladder in read_collection(packed) for row in rows(ladder)]
    assert len(table) == len(again) == 30
    for ours, theirs in zip(again, table, strict=True):
        for name in set(ours) - {"loss", "grad_norm"}:
            assert ours[name] == theirs[name], name
    kinds = {row["outcome"] for row in table}
    assert kinds == {str(outcome) for outcome in Outcome}
    everything_bad = [row for row in table if row["best_rate"] is None]
    assert len(everything_bad) == 6
    assert {row["edge_low"] for row in everything_bad} == {None}
    assert {row["excess"] for row in everything_bad} == {math.inf}
    assert {row["policy"] for row in table} == {"ladder-1"}
    assert '"m0"' in table[0]["provenance"] + table[-1]["provenance"]
    assert not any("another" in row["provenance"] for row in table)  # the first copy is taken


def test_rounding_keeps_sixteen_bits_and_what_is_not_finite() -> None:
    values = np.float32([1.0, -2.7182817, 1e-30, 3.3e38, 0.0, math.inf, -math.inf, math.nan])
    rounded = parquet_file.rounded(values)
    assert rounded.dtype == np.float32
    np.testing.assert_allclose(rounded, values, rtol=2**-16)
    assert ((rounded[:5].view(np.uint32) & 0xFF) == 0).all()
    assert rounded[0] == 1.0 and rounded[4] == 0.0
    assert (values[1:2].view(np.uint32) & 0xFF != 0).all()  # there was something to round


def test_seven_thousand_such_runs_stay_far_below_forty_megabytes(tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for seed in range(40):
        write_ladder(folder, _ladder(seed), {})
    packed = tmp_path / "many.parquet"
    count = build_collection([folder], packed)
    # 200-step curves would be five times as long as these.
    assert 5 * 7000 * packed.stat().st_size / count < 20e6


def test_bad_input_is_one_sentence(tmp_path: Path, stored: list[Path]) -> None:
    with pytest.raises(InputError, match="no folder or file"):
        build_collection([tmp_path / "nowhere"], tmp_path / "x.parquet")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="No stored ladder"):
        build_collection([tmp_path / "empty"], tmp_path / "x.parquet")
    with pytest.raises(InputError, match="python -m lab pack"):
        read_collection(tmp_path / "x.parquet")
    next(stored[0].glob("*.json")).write_text("{")
    with pytest.raises(ArtifactError, match="not a stored ladder"):
        build_collection(stored, tmp_path / "x.parquet")
    assert not (tmp_path / "x.parquet").exists()


def test_a_damaged_collection_is_an_artifact_error(tmp_path: Path, stored: list[Path]) -> None:
    packed = tmp_path / "collection.parquet"
    build_collection(stored, packed)
    whole = packed.read_bytes()
    packed.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ArtifactError, match="not a collection"):
        read_collection(packed)
    import pyarrow as pa

    parquet.write_table(pa.table({"x": [1]}), packed)
    with pytest.raises(ArtifactError, match="schema"):
        read_collection(packed)


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch) -> None:
    real = builtins.__import__

    def absent(name: str, *args, **kwargs):
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(InputError, match=r"rksp\[lab\]"):
        read_collection(tmp_path / "x.parquet")


# The card


def test_the_card_counts_what_is_there() -> None:
    ladders = [_ladder(0), _ladder(1, family="zoo_no_norm"), _ladder(3, hopeless=True)]
    card = data_card(ladders, plans=[])
    assert "18 runs in 3 ladders, 55.6 % failed" in card  # 2 + 2 + 6 of 18
    lines = card.splitlines()
    assert "| zoo_no_norm | 1 | 6 | 16.7 | 16.7 | 16.7 | 16.7 | 33.3 | 33.3 |" in lines
    assert "| zoo_pre_ln | 2 | 12 | 58.3 | 8.3 | 8.3 | 8.3 | 16.7 | 66.7 |" in lines
    assert "no known plan: 3 ladders" in card
    # The first failure is the stuck run at 1e-2; where all diverged, the lowest rate.
    assert "| zoo_no_norm | 1 | 0.01 | 0.01 | 0.01 | 0.01 | 0.01 | 0 |" in lines
    row = next(line for line in lines if line.startswith("| zoo_pre_ln | 2 | 0.0001"))
    assert row.endswith("| 0.01 | 0 |")
    for heading in ("How it was drawn", "What it does not cover", "Ranges"):
        assert f"## {heading}" in card
    assert "associative-recall" not in card  # no such ladder, so no such section
    assert card == data_card(ladders[::-1], plans=[])  # order is no information


def test_ladders_that_learned_nothing_are_counted() -> None:
    lazy = _ladder(1)
    lazy = LadderRun(
        spec=lazy.spec,
        rates=lazy.rates,
        seconds=lazy.seconds,
        curves=tuple(  # the task's trivial loss is ln 128 = 4.85
            Curves(loss=c.loss + 2.7, grad_norm=c.grad_norm, planned_steps=STEPS)
            for c in lazy.curves
        ),
    )
    lines = data_card([_ladder(0), lazy, _ladder(3, hopeless=True)], plans=[]).splitlines()
    assert "| recall | 3 | 1 | 33.3 |" in lines
    (row, *_) = rows(lazy)
    assert row["trivial_loss"] == pytest.approx(math.log(128))


def test_ladders_that_never_failed_are_counted_apart() -> None:
    ladder = _ladder(0)
    mild = LadderRun(
        spec=ladder.spec,
        rates=ladder.rates[:3],
        curves=ladder.curves[:3],
        seconds=ladder.seconds[:3],
    )
    lines = data_card([mild], plans=[]).splitlines()
    assert "| zoo_pre_ln | 0 | — | — | — | — | — | 1 |" in lines


def test_plans_that_drew_the_ladders_are_named() -> None:
    ladders = [_ladder(0), _ladder(1, family="zoo_no_norm")]
    plan = LadderGrid(
        name="some",
        base=_spec(0, "zoo_pre_ln").model_dump(mode="json"),
        grid={"seed": [0, 7]},
    )
    card = data_card(ladders, plans=[plan])
    assert "plan `some` (grid over seed): 1 of 2 ladders" in card
    assert "no known plan: 1 ladders" in card


def test_the_recall_section_sets_ours_beside_the_published() -> None:
    ladders = [_ladder(0), _ladder(0, family="zoo_no_norm", hopeless=True)]
    plan = LadderGrid(
        name="recall",
        base=_spec(0, "zoo_pre_ln").model_dump(mode="json"),
        grid={"family": list(FAMILIES)},
    )
    lines = recall_table(ladders, plans=[plan]).splitlines()
    no_norm = next(line for line in lines if line.startswith("| zoo_no_norm"))
    pre_ln = next(line for line in lines if line.startswith("| zoo_pre_ln"))
    assert no_norm.endswith("| 100.0 % of 6 | 96.4 % of 84 |")
    assert pre_ln.endswith("| 16.7 % of 6 | 0 % of 25 |")
    assert recall_table(ladders, plans=[]) == ""
    assert "associative-recall" in data_card(ladders, plans=[plan])


# The command line


def test_pack_and_card(tmp_path: Path, stored: list[Path], monkeypatch) -> None:
    # The shipped plans take seconds to expand, and drew none of these ladders.
    monkeypatch.setattr("lab.ladders.card.shipped_plans", list)
    packed = tmp_path / "out" / "collection.parquet"
    runner = CliRunner()
    result = runner.invoke(cli.app, ["pack", *map(str, stored), "-o", str(packed)])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("30 runs in ")
    shown = runner.invoke(cli.app, ["card", str(packed)])
    assert shown.exit_code == 0, shown.output
    assert shown.stdout == data_card(read_collection(packed))
    wrong = runner.invoke(cli.app, ["pack", str(stored[0]), "-o", str(tmp_path / "x.csv")])
    assert isinstance(wrong.exception, InputError)
