"""What a grid means: sweeps, overrides, unions, rows, run files; and what is refused."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from support.places import RUN_CONFIGS as CONFIGS

from rksp.grid.axes import Choice, Range, read_override, sweep_axis
from rksp.grid.group import Options
from rksp.grid.plan import read_plan
from rksp.ground.errors import InputError
from rksp.recipe_files.columns import canonical


def write(tmp_path: Path, name: str, text: str) -> str:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def rates(plan) -> list[float | None]:
    return [cell.recipe.learning_rate for cell in plan.cells]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("lr=1e-4,3e-4", (1e-4, 3e-4)),
        ("n=range(2,9,2)", (2, 4, 6, 8)),
        ("n=range(3)", (0, 1, 2)),
        ("x=choice(a,'b,c',1)", ("a", "b,c", 1)),
        ("x=[1,2],[3]", ([1, 2], [3])),
        ("lr=logspace(-4,-2,3)", (1e-4, 1e-3, 1e-2)),
        ("x=linspace(0,1,3)", (0.0, 0.5, 1.0)),
        ("+x=true", (True,)),
    ],
)
def test_overrides_are_hydras(text, values):
    assert read_override(text)[1] == Choice(values=values)


def test_overrides_agree_with_hydras_own_parser():
    grammar = pytest.importorskip("hydra.core.override_parser.overrides_parser")
    parser = grammar.OverridesParser.create()
    for text in ("lr=1e-4,3e-4", "n=range(2,9,2)", "x=choice(a,b,1)", "x=a,b"):
        theirs = parser.parse_override(text)
        ours = read_override(text)[1].values
        assert list(ours) == [
            v.text() if hasattr(v, "text") else v for v in theirs.sweep_iterator()
        ] or [str(v) for v in ours] == [str(v) for v in theirs.sweep_iterator()]


@pytest.mark.parametrize(
    "text",
    [
        "lr",
        "lr=range(a)",
        "lr=range(1,2,3,4)",
        "x=choice(a",
        "lr=logspace(1,2,0.5)",
        "lr=range(0)",
        "lr=range(1,9,0)",
        "lr=range(1e12)",
        "lr=logspace(1,999,3)",
        "lr=@",
        "lr=",
        "lr=1,,2",
        "lr=[1",
    ],
)
def test_bad_overrides_are_refused(text):
    with pytest.raises(InputError):
        read_override(text)


def test_names_reach_the_recipe_the_model_and_the_seed():
    assert canonical("lr") == ("recipe", "learning_rate")
    assert canonical("optimizer.lr") == ("recipe", "learning_rate")
    assert canonical("config.train.batch_size") == ("recipe", "batch_size")
    assert canonical("config.optimizer.name") == ("recipe", "optimizer")
    assert canonical("Learning Rate (peak)") == ("recipe", "learning_rate")
    assert canonical("encoder.batch_size") == ("set", "encoder.batch_size")
    assert canonical("params_warmup") == ("recipe", "warmup_steps")
    assert canonical("model") == ("target", "")
    assert canonical("seed") == ("seed", "")
    assert canonical("n_layer") == ("set", "n_layer")
    assert canonical("set.lr") == ("set", "lr")
    assert canonical("text_config.hidden_size") == ("set", "text_config.hidden_size")


def test_a_wandb_grid_is_the_product(tmp_path):
    path = write(
        tmp_path,
        "sweep.yaml",
        "program: train.py\nmethod: grid\nparameters:\n"
        "  lr: {values: [1e-4, 3e-4]}\n  model: {value: gpt2}\n"
        "  optimizer:\n    parameters:\n      weight_decay: {values: [0, 0.1]}\n",
    )
    plan = read_plan(path)
    assert len(plan.cells) == 4
    assert {cell.recipe.weight_decay for cell in plan.cells} == {0, 0.1}
    assert {cell.target for cell in plan.cells} == {"gpt2"}


def test_a_random_sweep_is_drawn_within_its_ranges(tmp_path):
    path = write(
        tmp_path,
        "sweep.yaml",
        "method: random\nparameters:\n"
        "  lr: {distribution: log_uniform_values, min: 1e-5, max: 1e-2}\n"
        "  warmup: {min: 0, max: 500}\n",
    )
    with pytest.raises(InputError, match="--samples"):
        read_plan(path, target="gpt2")
    plan = read_plan(path, target="gpt2", samples=200, seed=3)
    assert len(plan.cells) == 200
    assert all(1e-5 <= rate <= 1e-2 for rate in rates(plan))
    below = sum(rate < 10**-3.5 for rate in rates(plan))
    assert 70 < below < 130  # half of the decades, not half of the numbers
    assert all(0 <= cell.recipe.warmup_steps <= 500 for cell in plan.cells)
    assert rates(plan) == rates(read_plan(path, target="gpt2", samples=200, seed=3))
    assert rates(plan) != rates(read_plan(path, target="gpt2", samples=200, seed=4))


@pytest.mark.parametrize(
    ("definition", "axis"),
    [
        ({"min": 1, "max": 4}, Range(kind="uniform", low=1, high=4, whole=True)),
        ({"min": 0.1, "max": 4}, Range(kind="uniform", low=0.1, high=4)),
        (
            {"distribution": "log_uniform", "min": 0, "max": 0},
            Range(kind="log_uniform", low=1.0, high=1.0),
        ),
        (
            {"distribution": "q_uniform", "min": 0, "max": 10, "q": 5},
            Range(kind="uniform", low=0, high=10, step=5),
        ),
        (
            {"distribution": "normal", "mu": 2, "sigma": 1},
            Range(kind="normal", low=2.0, high=1.0),
        ),
        ({"values": [1, 2], "probabilities": [0, 1]}, Choice(values=(1, 2), weights=(0, 1))),
    ],
)
def test_wandb_distributions(definition, axis):
    assert sweep_axis("x", definition) == axis


def test_draws_follow_weights_and_steps():
    source = random.Random(0)
    assert {Choice(values=(1, 2), weights=(0, 1)).draw(source) for _ in range(20)} == {2}
    stepped = Range(kind="uniform", low=0, high=10, step=5)
    assert {stepped.draw(source) for _ in range(60)} == {0, 5, 10}


def test_a_list_is_a_union_so_axes_can_depend_on_each_other(tmp_path):
    grid = [
        {"lr": [1e-3, 2e-3], "optimizer": ["adamw"], "beta2": [0.95, 0.999]},
        {"lr": [0.1], "optimizer": ["sgd"], "momentum": [0, 0.9]},
    ]
    plan = read_plan(write(tmp_path, "grid.json", json.dumps(grid)), target="gpt2")
    assert [cell.recipe.optimizer for cell in plan.cells] == ["adamw"] * 4 + ["sgd"] * 2
    assert all(cell.recipe.momentum == 0.9 for cell in plan.cells[:4])


def test_draws_choose_among_conditional_blocks(tmp_path):
    grid = [{"optimizer": "adamw", "beta2": [0.9, 0.99]}, {"optimizer": "sgd", "momentum": [0.0]}]
    plan = read_plan([*grid], target="gpt2", samples=60, seed=1)
    kinds = [cell.recipe.optimizer for cell in plan.cells]
    assert {"adamw", "sgd"} == set(kinds)
    assert len(kinds) == 3  # sixty draws of three different cells
    assert "57 cells are left out" in plan.notes[-1]
    assert all(c.recipe.momentum == 0.9 for c in plan.cells if c.recipe.optimizer == "adamw")
    with pytest.raises(InputError, match="10,001 cells"):
        read_plan(grid, target="gpt2", samples=10_001)


def test_a_warm_up_below_one_is_a_share_of_the_run():
    grid = {"warmup_ratio": [0.0, 0.1], "max_steps": [200, 1000]}
    plan = read_plan(grid, target="gpt2")
    assert [cell.recipe.warmup_steps for cell in plan.cells] == [0, 0, 20, 100]


def test_a_stated_grid_has_a_base_and_axes_that_move_together(tmp_path):
    write(tmp_path, "run.yaml", (CONFIGS / "levanter" / "gpt2_nano.yaml").read_text())
    path = write(
        tmp_path,
        "grid.yaml",
        "base: run.yaml\nset: {vocab_size: 512}\nrecipe: {warmup: 7}\n"
        "grid: {optimizer.learning_rate: [1e-3], lr: [2e-3, 4e-3]}\n"
        "zip: {batch_size: [1, 2], steps: [100, 50]}\n",
    )
    plan = read_plan(path)
    assert [(c.recipe.batch_size, c.recipe.max_steps) for c in plan.cells[:2]] == [
        (1, 100),
        (2, 50),
    ]
    assert rates(plan) == [2e-3, 2e-3, 4e-3, 4e-3]
    assert {cell.target for cell in plan.cells} == {"gpt2"}
    assert plan.cells[0].overrides["n_embd"] == 32
    assert plan.cells[0].overrides["vocab_size"] == 512
    assert plan.cells[0].recipe.warmup_steps == 7


def test_a_run_file_is_varied_by_its_own_names():
    path = str(CONFIGS / "gpt-neox" / "19M.yml")
    plan = read_plan(path, ["optimizer.params.lr=1e-3,2e-3", "warmup=0.1", "num-layers=2,3"])
    assert len(plan.cells) == 4
    assert {cell.overrides["num_hidden_layers"] for cell in plan.cells} == {2, 3}
    assert {cell.recipe.warmup_steps for cell in plan.cells} == {
        round(0.1 * plan.cells[0].recipe.max_steps)
    }


def test_rows_of_an_export(tmp_path):
    path = write(
        tmp_path,
        "runs.csv",
        "Name,config.lr,warmup,val_loss,target,set.n_layer\n"
        "a,1e-3,10,3.4,gpt2,2\nb,2e-3,,nan,gpt2,2\nc,1e-3,10,9,gpt2,2\n",
    )
    plan = read_plan(path)
    assert rates(plan) == [1e-3, 2e-3]
    assert plan.cells[1].recipe.warmup_steps == 0
    assert plan.cells[0].overrides == {"n_layer": 2}
    assert "Name, val_loss" in plan.notes[0]
    assert "1 cells are left out" in plan.notes[1]
    lines = '{"lr": 1e-3, "target": "gpt2"}\n\n{"lr": 1e-2, "target": "llama"}\n'
    assert len(read_plan(write(tmp_path, "runs.jsonl", lines)).cells) == 2


def test_only_the_initialization_decides_what_shares_a_profile():
    plan = read_plan("gpt2", ["lr=1e-4,1e-3", "warmup=0,9", "optimizer=adamw,sgd", "seed=0,1"])
    keys = {cell.init_key(Options()) for cell in plan.cells}
    assert len(plan.cells) == 16
    assert len(keys) == 2
    assert len({cell.key(Options()) for cell in plan.cells}) == 16
    assert plan.cells[0].init_key(Options()) != plan.cells[0].init_key(Options(states=9))


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("a.yaml", "method: grid\nparameters: [1]\n", "not a mapping"),
        ("a.yaml", "method: grid\nparameters: {lr: {}}\n", "neither values nor a range"),
        ("a.yaml", "method: grid\nparameters: {lr: {min: 0.1, max: 1.0}}\n", "--samples"),
        ("a.yaml", "grid: {lr: [1]}\ncolour: red\n", "a.yaml has no field 'colour'"),
        ("a.yaml", "grid: {}\nzip: {a: [1], b: [1, 2]}\n", "of the same length"),
        ("a.yaml", "lr: [1e-3]\noptimizer: [came]\n", "'optimizer'"),
        ("a.yaml", "grid: {}\nzip: {a: 1}\n", "of the same length"),
        ("a.yaml", "grid: {seed: [x]}\n", "A seed is 'x'"),
        ("a.yaml", "parameters: {lr: {values: [1, 2], probabilities: [1]}}\n", "probabilities"),
        (
            "a.yaml",
            "parameters: {lr: {distribution: log_uniform_values, min: 0, max: 1}}\n",
            "no log_uniform_values from 0 to 1",
        ),
        (
            "a.yaml",
            "parameters: {lr: {distribution: beta, min: 0, max: 1}}\n",
            "does not know distribution 'beta'",
        ),
        ("a.csv", "lr\n", "no rows"),
        ("a.jsonl", "[1]\n", "a row must be a JSON object"),
        ("a.yaml", "grid: [1, 2]\n", "a mapping of lists"),
    ],
)
def test_bad_grids_are_one_sentence(tmp_path, name, text, complaint):
    with pytest.raises(InputError, match=complaint):
        read_plan(write(tmp_path, name, text), target="gpt2")


def test_too_many_cells_are_refused_before_they_are_made():
    with pytest.raises(InputError, match="1,000,000 cells"):
        read_plan("gpt2", ["lr=logspace(-5,-1,1000)", "warmup=range(1000)"])


def test_a_grid_needs_a_model(tmp_path):
    with pytest.raises(InputError, match="--target"):
        read_plan(write(tmp_path, "a.yaml", "lr: [1e-3]\n"))
    with pytest.raises(InputError, match="nanotron's own experts"):
        read_plan(str(CONFIGS / "nanotron" / "config_qwen_with_moe.yaml"), ["lr=1e-3"])


def test_options_of_the_recipe_hold_for_every_cell(tmp_path):
    fixed = {"warmup_steps": 5, "precision": "bf16"}
    plan = read_plan("gpt2", ["lr=1e-4,1e-3"], recipe=fixed)
    assert {(c.recipe.warmup_steps, c.recipe.precision) for c in plan.cells} == {(5, "bf16")}
    with pytest.raises(InputError, match="--lr and the axis lr set the same field"):
        read_plan("gpt2", ["lr=1e-4"], recipe={"learning_rate": 1e-3})


def test_what_changes_an_answer_changes_the_identity_of_a_cell():
    cell = read_plan("gpt2", ["lr=1e-4"]).cells[0]
    plain = Options()
    assert cell.init_key(plain) != cell.init_key(Options(variant="paper-full-1"))
    assert cell.key(plain) != cell.key(Options(risk=0.1))
    assert cell.init_key(plain) == cell.init_key(Options(risk=0.1, threads=2, seed=3))


def test_the_sweeper_of_a_hydra_file_makes_the_cells(tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text(
        "hydra: {sweeper: {params: {learning_rate: '1e-4,1e-3', "
        "micro_batch_size: 'choice(2,8)'}}}\n"
        "base_model: gpt2\nlearning_rate: 1e-5\nmax_steps: 77\nmicro_batch_size: 4\n"
    )
    cells = read_plan(str(path)).cells
    found = {(cell.recipe.learning_rate, cell.recipe.batch_size) for cell in cells}
    assert found == {(1e-4, 2), (1e-4, 8), (1e-3, 2), (1e-3, 8)}
    assert {cell.recipe.max_steps for cell in cells} == {77}
