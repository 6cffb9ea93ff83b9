"""The committed experiments: plans, stored trials, tables that are known, and what is shipped."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.benchmark_scripts import script
from support.commands import left_with

import rksp.confirm
from lab.experiments import catalog, cost, run, tables, trials
from lab.experiments.__main__ import main
from lab.experiments.catalog import ENERGY, EXPERIMENTS, KSS_RATES, MAIN_ARMS
from lab.experiments.profiles import ProfileRow
from lab.experiments.rows import TrialRow, shipped_rows, to_rows, write_rows
from lab.experiments.trials import Stored, Trial, read_trials, run_trials, store
from rksp.cli.explain import SHIPPED, shipped_file
from rksp.recipe import Recipe
from rksp.watch.monitors.rules import Rules

STORED = ("cost", "rksp", "shaping")  # of no plan of trials
README = Path(rksp.confirm.__file__).with_name("README.md")


def _small(**fields: object) -> Trial:
    recipe = Recipe(learning_rate=1e-3, max_steps=4, batch_size=2, sequence_length=8)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    shape |= {"vocab_size": 32, "max_position_embeddings": 8}
    options = {"length": 8, "vocab": 32, "pairs": 2}
    given = {"family": "zoo_no_norm", "shape": shape, "task": "recall", "task_options": options}
    return Trial(**given | {"recipe": recipe, "seed": 0} | fields)


def _loss(trial: Trial, folder: Path) -> list:
    store(trial, folder)
    return read_trials([trial], folder)[0].result.loss


def test_a_trial_depends_on_nothing_but_itself_and_is_not_run_twice(tmp_path) -> None:
    trial = _small()
    loss = _loss(trial, tmp_path / "a")
    assert loss == _loss(trial, tmp_path / "b")
    assert _small(arm="kss").id != trial.id
    assert _loss(_small(arm="clip=0.01"), tmp_path / "a")[0] == loss[0]
    (stored,) = run_trials([trial], tmp_path, workers=1)
    file = tmp_path / f"{trial.id}.json"
    written = file.stat().st_mtime_ns
    assert run_trials([trial], tmp_path, workers=1) == [stored]
    assert file.stat().st_mtime_ns == written
    write_rows(tmp_path / "rows.json", to_rows([stored]))
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    assert TrialRow.model_validate(row) == to_rows([stored])[0]


def test_alarms_are_judged_anew_from_stored_readings(tmp_path, monkeypatch) -> None:
    recipe = Recipe(
        learning_rate=90.0, optimizer="sgd", max_grad_norm=None, max_steps=4, batch_size=2
    )
    trial = _small(recipe=recipe, monitors=("loss", "non-finite"))
    store(trial, tmp_path)
    stored = Stored.model_validate_json((tmp_path / f"{trial.id}.json").read_text())
    assert read_trials([trial], tmp_path) == [stored]  # the same rules, the same alarms
    assert "non-finite" in stored.result.first_alarms
    monkeypatch.setattr(trials, "alarm_rules", lambda recipe: Rules(table={}))
    quiet = read_trials([trial], tmp_path)[0].result
    assert sum(quiet.alarms.values()) < sum(stored.result.alarms.values())
    assert quiet.loss == stored.result.loss
    assert read_trials([_small(seed=1)], tmp_path) == []


def _row(arm: str, seed: int, outcome: str, rate: float = 0.005, **fields: object) -> TrialRow:
    given = {"faults": (), "final_loss": 1.0, "steps": 300, "onset": None, "fault_step": 0}
    given |= {"first_alarms": {}, "alarms": {}, "silent": {}, "seconds": 1.0}
    given |= {"action_seconds": 0.0, "monitor_seconds": 0.0}
    return TrialRow(arm=arm, seed=seed, outcome=outcome, rate=rate, **given | fields)


def test_the_kss_table_counts_pairs_and_finds_the_largest_stable_rate() -> None:
    rows = [_row("baseline", s, "diverged") for s in range(4)]
    rows += [_row("baseline", s, "healthy", 0.003) for s in range(4)]
    rows += [_row(ENERGY, s, "healthy" if s else "diverged") for s in range(2)]
    printed = EXPERIMENTS["kss"].table(rows)
    assert "| `baseline` | 4/4 | 100% | 0/4 | – | – | 1.000 | 66.7 % |" in printed
    assert f"| `{ENERGY}` | 1/2 | 50% | 0/2 | 1 | -50% |" in printed  # against its own two seeds
    assert "| `baseline` | 0% | 100% | 0.003 |" in printed
    assert f"| `{ENERGY}` | – | 50% | under 0.005 |" in printed
    assert "costs 4.852 nats" in printed  # ln 128: the values are half of the vocabulary
    lost = [_row("baseline", 0, "diverged"), _row(ENERGY, 0, "healthy", final_loss=1.3)]
    lost += [_row("clip=1.0", 0, "diverged", final_loss=None)]
    printed = tables.divergence(lost, {})
    assert "| `baseline` | 1/1 | 100% | 0/1 |" in printed  # a spike that did no harm
    assert f"| `{ENERGY}` | 0/1 | 0% | 1/1 |" in printed and "| 1/1 | 100% | 1/1 |" in printed


def test_where_runs_learn_a_trial_failed_if_it_did_not_get_below_chance() -> None:
    rows = [_row("baseline", 0, "diverged", final_loss=None)]
    rows += [_row("baseline", 1, "diverged", final_loss=1.2)]  # a spike that did no harm
    rows += [_row(ENERGY, seed, "healthy", final_loss=1.9) for seed in range(2)]
    printed = tables.learning(rows, {"baseline": 66.7}, chance=2.079)
    assert "| `baseline` | 2/2 | 1 | 1/2 | 50% | – | 1.200 | 66.7 % |" in printed
    assert f"| `{ENERGY}` | 0/2 | 0 | 2/2 | 100% | 1 | 1.900 | – |" in printed


def test_a_deep_run_fails_where_it_ends_above_its_twin_at_a_lower_rate() -> None:
    rows = [_row("rate=0.1", seed, "healthy", final_loss=2.5) for seed in range(3)]
    rows += [_row("baseline", seed, "healthy", final_loss=2.5 + 0.2 * seed) for seed in range(3)]
    rows += [_row("msign:every=20,scope=all", 2, "diverged", final_loss=None)]
    printed = EXPERIMENTS["msign-deep"].table(rows)
    assert "| `baseline` | 1/3 | – | +0.20 | failed |" in printed
    assert "| `rate=0.1` | 0/3 | 1 | +0.00 | – |" in printed
    assert "| `msign:every=20,scope=all` | 1/1 | 1 | +inf | – |" in printed


def test_the_cross_talk_table_counts_false_alarms_over_healthy_steps() -> None:
    norm, rate = "gradient-norm", tables.FAULTS["rate"]
    rows = [_row("baseline", s, "healthy", alarms={norm: s}, steps=540) for s in range(2)]
    struck = {"faults": rate, "fault_step": 160, "onset": 190}
    rows += [_row("baseline", 0, "failed", first_alarms={norm: 185, "loss": 170}, **struck)]
    lines = EXPERIMENTS["cross-talk"].table(rows).splitlines()
    column = [cell.strip() for cell in lines[0].split("|")].index("rate")
    cells = {line.split("|")[1].strip(): line.split("|") for line in lines[2:] if "|" in line}
    assert cells["*the loss fails in*"][column].strip() == "1/1"
    assert cells["loss"][column].strip() == "1/1, 10 (+20, +15)"
    assert cells[norm][column].strip() == "1/1, 25 (+5, +0)"
    assert cells[norm][-2].strip() == "1.00"  # one alarm in 2 x 500 steps after the warm-up


def test_the_command_knows_the_catalog() -> None:
    assert (*EXPERIMENTS, *STORED) == tuple(SHIPPED)


# Every row a table is made of, by its content: a plan that changes makes shipped results foreign.
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_shipped_rows_are_those_of_the_plan(name) -> None:
    if name == "profiles":
        planned = {(t.family, t.recipe.learning_rate, t.seed) for t in EXPERIMENTS[name].plan()}
        rows = shipped_rows(name, ProfileRow)
        assert {(row.family, row.rate, row.seed) for row in rows} == planned
        return
    planned = {(t.arm, t.recipe.learning_rate, t.seed, t.faults) for t in EXPERIMENTS[name].plan()}
    assert {(r.arm, r.rate, r.seed, r.faults) for r in shipped_rows(name)} == planned


def test_plans_are_paired() -> None:
    for experiment in EXPERIMENTS.values():
        planned = experiment.plan()
        assert len({trial.id for trial in planned}) == len(planned)
    kss = EXPERIMENTS["kss"].plan()
    main = [t for t in kss if t.arm in MAIN_ARMS and t.recipe.learning_rate in KSS_RATES]
    pairs = {arm: set() for arm in MAIN_ARMS}
    for trial in main:
        pairs[trial.arm].add((trial.seed, trial.recipe.learning_rate))
    assert {len(pair) for pair in pairs.values()} == {24}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["kss"], "--folder"),
        (["ksss"], "invalid choice: 'ksss'"),
        (["kss", "--stored", "--folder", "."], "holds no trial"),
        (["cost", "--folder", "."], "has no trials"),
        (["shaping"], "python -m lab run"),
        (["profiles-vit", "--folder", "."], "CIFAR-10's binary version (data_batch_1.bin"),
        (["profiles-gpt2", "--folder", ".", "--data", "no.txt"], "no.txt does not exist"),
        (["kss", "--stored", "--data", "."], "brings its own data"),
        (["kss", "--stored", "-o", "nowhere/rows.json"], "no folder nowhere"),
    ],
)
def test_reproduce_says_what_it_needs(arguments, said, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["ksss"], "did you mean kss"), (["zzzz"], "choose among kss")],
)
def test_the_command_says_which_experiments_there_are(arguments, said, capsys) -> None:
    assert left_with(["reproduce", *arguments]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_tables_are_made_of_the_stored_rows(name) -> None:
    assert shipped_file(name).read_text(encoding="utf-8") == run.reproduce(name, stored=True)


@pytest.mark.parametrize("name", [*EXPERIMENTS, "cost"])
def test_the_tables_of_the_readme_are_those_of_the_command(name, capsys) -> None:
    assert left_with(["reproduce", name, "--stored"]) == 0
    table = capsys.readouterr().out
    assert len(table.splitlines()) > 3
    assert table in README.read_text(encoding="utf-8")


def test_what_is_trained_in_part_can_be_looked_at(tmp_path, monkeypatch, capsys) -> None:
    blocks = (catalog.Block(seeds=range(2)),)
    small = replace(EXPERIMENTS["msign"], setting=_small(), blocks=blocks)
    monkeypatch.setattr(run, "EXPERIMENTS", {"msign": small})
    store(_small(seed=0), tmp_path)
    main(["msign", "--folder", str(tmp_path), "--stored"])
    printed = capsys.readouterr()
    assert "1 of 2 trials so far" in printed.err
    assert "| `baseline` | 0/1 | 0% | 0/1 |" in printed.out


def test_the_cost_of_an_arm_is_spread_over_its_cadence() -> None:
    (cost_of,) = cost._of("kss", _small(), {"clip=1.0": ("clip:norm=1.0", 10)}, rounds=2)
    assert cost_of.bare > 0 and cost_of.acting > 0
    assert cost_of.share == pytest.approx((cost_of.acting / cost_of.bare - 1) / 10)
    assert f"| {cost_of.share:+.1%} |" in tables.cost([cost_of])


def test_the_cost_of_monitors_is_measured_beside_the_bare_step() -> None:
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    shape |= {"vocab_size": 256, "max_position_embeddings": 16}
    rows = {
        row["name"]: row
        for row in script("monitors").monitor_cost(shape, batch_size=2, length=16, rounds=1)
    }
    assert rows["bare step"]["share"] == 1.0
    assert rows["gradient-norm"]["ms"] > 0
    every = rows["near-unit-mass"]["every"]
    share = rows["near-unit-mass"]["ms"] / rows["bare step"]["ms"] / every
    assert every > 1 and rows["near-unit-mass"]["share"] == pytest.approx(share)
    assert "reason" in rows["silent-corruption"]  # one process has no replica
    parts = [r["share"] for r in rows.values() if r["kind"] == "monitor" and "share" in r]
    assert rows["all monitors"]["share"] == pytest.approx(sum(parts))


def test_the_fixed_cost_of_a_watch_is_what_a_tiny_step_takes_longer() -> None:
    row = script("monitors").fixed_cost(steps=2)
    assert row["ms"] == pytest.approx(row["watched"] - row["bare"])
    assert row["bare"] > 0 and row["watched"] > row["bare"]  # both steps sample nearly everything
