"""Any file: what is given, absent or unknown; files of nobody's format; objectives by evidence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rksp.calls.score import score
from rksp.ground.errors import InputError
from rksp.recipe_files.parse.shell import read_shell
from rksp.recipe_files.parse.values import Unresolved
from rksp.recipe_files.registry import read_recipe_file
from rksp.recipe_files.table.by_name import misspelt

BASE = "model_name_or_path: gpt2\noutput_dir: o\nmax_steps: 90\nper_device_train_batch_size: 32\n"
TRAIN = "python run_clm.py --model_name_or_path gpt2 --learning_rate $LR --max_steps 9 --bf16\n"
MORE = TRAIN.replace("$LR", "1e-5 --seed 4 --fp16 False --weight_decay 0.1")


def read(folder: Path, text: str, name: str = "a.yaml"):
    (folder / name).write_text(text, "utf-8")
    return read_recipe_file(folder / name)


@pytest.mark.parametrize(
    "line",
    [
        "learning_rate: ${oc.env:LR}",
        "learning_rate: ${learning_rate}",
        "learning_rate: !include x.yaml",
        "learning_rate: auto",
        "learning_rate: 1e-5\nlearning_rate: 3.0e-2",
        "learning-rate: 1e-5\nlearning_rate: 3.0e-2",
        "learnin_rate: 3e-2",
        "l\u0435arning_rate: 3e-2",
        "learning\u200b_rate: 3e-2",
    ],
)
def test_a_rate_that_stands_there_and_is_not_known_has_no_answer(line, tmp_path):
    found = read(tmp_path, f"{BASE}{line}\n")
    assert "learning_rate" in found.unknown and found.unread
    result = score(str(tmp_path / "a.yaml"), evidence="config", fail_on="unknown")
    assert result.answer.verdict == "cannot tell" and result.report.gate.only_unknown
    typed = score(str(tmp_path / "a.yaml"), lr=1e-5, evidence="config", fail_on="unknown")
    assert typed.answer.verdict != "cannot tell"  # what is typed is known


def test_an_absent_rate_is_not_unknown(tmp_path):
    assert not read(tmp_path, f"{BASE}bf16: true\nweight_decay: 0.1\nwarmup_steps: 3\n").unknown


def test_two_equal_keys_of_json_that_differ_are_unknown(tmp_path):
    text = '{"model_name_or_path": "gpt2", "output_dir": "o", "max_steps": 9, "bf16": true, '
    found = read(tmp_path, text + '"learning_rate": 1e-5, "learning_rate": 1e-2}', "a.json")
    assert "as 1e-05 and as 0.01" in found.unknown["learning_rate"]


@pytest.mark.parametrize(
    ("key", "field"),
    [
        ("lerning_rate", "learning_rate"),
        ("optim_conf.learning_rates", "learning_rate"),
        ("optimzer", "optimizer"),
        ("max_length", ""),
        ("min_length", ""),
        ("patch_size", ""),
        ("eval_steps", ""),
    ],
)
def test_a_key_that_nearly_names_a_field_is_seen(key, field):
    assert misspelt(key) == field


@pytest.mark.parametrize(
    ("script", "rate"),
    [
        (f"LR=3e-2\nLR=1e-5 true\n{TRAIN}", 3e-2),
        (f"LR=3e-2\nf() {{ LR=1e-5; }}\n{TRAIN}", 3e-2),
        (f"LR=3e-2\nf() {{ LR=1e-5; }}\nf\n{TRAIN}", 1e-5),
        (f"LR=3e-2\nf() {{ local LR=1e-5; }}\nf\n{TRAIN}", 3e-2),
        (f"LR=3e-2\nfalse && LR=1e-5\n{TRAIN}", 3e-2),
        (f"readonly LR=3e-2; LR=1e-5\n{TRAIN}", 3e-2),
        (f"LR=1e-5\nsource ./x.sh\n{TRAIN}", None),
        (f"LR=1e-5\nsource ~/.bashrc\n{TRAIN}", 1e-5),
        (f"LR=1e-5\nprintf -v LR 3e-2\n{TRAIN}", None),
        (f"LR=1e-5\nread LR <<< 3e-2\n{TRAIN}", None),
        (f"LR=1\nlet LR=3\n{TRAIN}", None),
        (f"LR=3e-2\n{TRAIN}exit 0\n{MORE}", 3e-2),
        (f"LR=3e-2\n{TRAIN}if false; then\n{MORE}fi\n", 3e-2),
        (f"LR=3e-2\n{TRAIN}echo {MORE}", 3e-2),
        (f"LR=3e-2\n{TRAIN}{MORE}", None),
        (f"LR=3e-2\ncase $1 in\n a) LR=1e-5;;\nesac\n{TRAIN}", None),
    ],
)
def test_a_script_is_read_as_the_shell_runs_it(script, rate):
    found = read_shell(script).data["learning_rate"]
    assert isinstance(found, Unresolved) if rate is None else found == rate


RL = (
    "python3 train.py --hf-checkpoint /d/Qwen3-4B --optimizer adam --lr 1e-5 --num-rollout 400 "
    "--advantage-estimator grpo --rollout-batch-size 32 --n-samples-per-prompt 8 "
    "--rollout-max-response-len 8192 --global-batch-size 256 --tensor-model-parallel-size 2\n"
)


def test_rollouts_are_never_read_as_plain_text(tmp_path):
    recipe = read(tmp_path, RL, "a.sh").recipe()
    assert (recipe.objective, recipe.learning_rate, recipe.generations) == ("grpo", 1e-5, 8)
    assert (recipe.batch_size, recipe.sequence_length, recipe.max_steps) == (256, 8192, 400)


@pytest.mark.parametrize(
    ("more", "objective"),
    [
        ("output_dir: ckpt/coldstart-for-grpo\n", "lm"),
        ("task_type: seq_cls\nnum_labels: 3\n", "classification"),
        ("teacher_model: gpt2-xl\nkd_ratio: 0.5\n", "distillation"),
        ("reward_funcs: [accuracy]\nnum_generations: 8\n", "grpo"),
        ("desirable_weight: 1.0\n", "kto"),
        ("beta: 2.5\ngamma_beta_ratio: 0.5\nmax_prompt_length: 1800\n", "dpo"),
        ("rl_algorithm: gae\ndesirable_weight: 1.0\n", None),
    ],
)
def test_the_objective_is_what_stands_in_the_file(more, objective, tmp_path):
    found = read(tmp_path, f"color: red\nlr: 1e-5\nbatch_size: 8\n{more}")
    if objective is None:
        assert "speaks for" in found.unknown["objective"]
    else:
        assert found.recipe().objective == objective


def test_nobodys_file_is_read_by_name(tmp_path):
    found = read(
        tmp_path,
        "trainer: {peakLearningRate: 3e-4, totalSteps: 500, warmup_ratio: 0.1}\n"
        "optim: {type: AdamW, betas: [0.9, 0.95], eps: 1e-9}\n"
        "critic: {lr: 1.0}\n"
        "model: {dim: 512, n_layers: 8, n_heads: 8}\n"
        "data: {global_batch_size: 64, seq_len: 1024}\n",
    )
    recipe = found.recipe()
    assert (recipe.learning_rate, recipe.max_steps, recipe.warmup_steps) == (3e-4, 500, 50)
    assert (recipe.adam_beta2, recipe.adam_epsilon) == (0.95, 1e-9)
    assert (recipe.batch_size, recipe.sequence_length) == (64, 1024)
    assert (found.target.name, found.target.overrides["hidden_size"]) == ("llama", 512)
    assert found.field("learning_rate").origin.by_name


def test_two_rates_that_are_as_good_and_differ_are_unknown(tmp_path):
    found = read(tmp_path, "a: {optimizer: {lr: 1e-3}}\nb: {optimizer: {lr: 1e-4}}\nsteps: 9\n")
    assert "a.optimizer.lr is 0.001, and b.optimizer.lr is 0.0001" in found.unknown["learning_rate"]


@pytest.mark.parametrize("more", ["state_dim: 16", "num_experts: 8", "use_rwkv: true"])
def test_blocks_of_another_kind_are_no_llama(more, tmp_path):
    text = f"lr: 1e-3\nmodel: {{dim: 512, n_layers: 8, n_heads: 8, {more}}}\n"
    assert read(tmp_path, text).target is None


def test_base_files_are_followed_within_the_repository(tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / "optimizer").mkdir()
    (tmp_path / "optimizer" / "adamw.yaml").write_text("lr: 1e-4\nweight_decay: 0.1\n")
    (tmp_path / "base.yaml").write_text("steps: 70\nbatch_size: 4\n")
    (tmp_path.parent / "outside.yaml").write_text("optimizer: {lr: 1.0}\n")
    text = (
        "defaults:\n  - base\n  - optimizer: adamw\n  - outside\noptimizer: {weight_decay: 0.2}\n"
    )
    found = read(tmp_path, text)
    recipe = found.recipe()
    assert (recipe.learning_rate, recipe.weight_decay, recipe.max_steps) == (1e-4, 0.2, 70)
    assert any("outside" in note and "not found" in note for note in found.notes)


def test_a_reader_that_explains_nothing_is_not_believed(tmp_path):
    path = tmp_path / "a.yaml"
    inner = {f"other{i}": i for i in range(16)} | {"maximum": 3.0e-4}
    path.write_text(json.dumps({"training": inner}), "utf-8")
    with pytest.raises(InputError, match="leave out --as trl"):
        read_recipe_file(path, trainer="trl")


@pytest.mark.parametrize(("text", "said"), [
    ("lr: 1e-4\nmax_steps: 50\n", "no setting names a model"),
    ("lr: 1e-4\nmodel_name_or_path: nobody/knows-this-one\n", "nobody/knows-this-one"),
])  # fmt: skip
def test_a_run_whose_model_nobody_knows_has_no_answer_and_says_why(text, said, tmp_path):
    (tmp_path / "a.yaml").write_text(text)
    result = score(str(tmp_path / "a.yaml"))
    assert result.answer.verdict == "cannot tell" and said in result.answer.reasons[0]


def test_a_number_beyond_any_run_is_refused(tmp_path):
    with pytest.raises(InputError, match="larger than any run"):
        read(tmp_path, f"{BASE}learning_rate: 1e-4\n".replace("90", "9" * 200))
