"""Any file: what is given, absent or unknown; files of nobody's format; objectives by evidence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rksp.calls.score import score
from rksp.ground.errors import InputError
from rksp.ground.model import definite
from rksp.recipe_files.parse.shell import read_shell
from rksp.recipe_files.parse.values import Unresolved
from rksp.recipe_files.registry import read_recipe_file
from rksp.recipe_files.table.spellings import misspelt

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
        "lr: 3e-2\nlearning_rate: 1e-5",
        "learning_rate.: 3e-2",
        "\uff4c\uff45\uff41\uff52\uff4e\uff49\uff4e\uff47_rate: 3e-2",
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
        (f"LR=1e-5\nenv LR=3e-2 bash -c '{TRAIN.strip()}'\n", 3e-2),
        (f"LR=1e-5\n(LR=3e-2; {TRAIN.strip()})\n", 3e-2),
        (f"LR=3e-2\n(LR=1e-5)\n{TRAIN}", 3e-2),
        (f"LR=3e-2\necho | LR=1e-5\n{TRAIN}", 3e-2),
        (f"LR=1e-5\nnvidia-smi && LR=3e-2\n{TRAIN}", None),
        (f"LR=1e-5\ncd x && LR=3e-2\n{TRAIN}", 3e-2),
        (f"LR=1e-5\nf() {{ LR=3e-2; }}\n[ $A ] && f\n{TRAIN}", None),
        (f"LR=1e-5\ndeclare -n R=LR\nR=3e-2\n{TRAIN}", None),
        (f'LR=1e-5\nN=LR\neval "$N=3e-2"\n{TRAIN}', 3e-2),
        (f"LR=1e-5\nN=LR\nexport $N=3e-2\n{TRAIN}", 3e-2),
        (f'LR=1e-5\neval "$(cat .env)"\n{TRAIN}', None),
        (f'LR=1e-5\neval "$(conda shell.bash hook)"\n{TRAIN}', 1e-5),
        (f"LR=1e-5\nexport $(cat .env | xargs)\n{TRAIN}", None),
        (f"LR=1e-5\nprintf -vLR 3e-2\n{TRAIN}", None),
        (f"LR=1\n((LR = 3))\n{TRAIN}", None),
        (f"LR=1\n((LR == 3))\n{TRAIN}", 1),
        (f"LR=1e-5\ntrap 'LR=3e-2' DEBUG\n{TRAIN}", None),
        (f"LR=1e-5\nalias up='LR=3e-2'\nup\n{TRAIN}", None),
        (
            f"A=(--learning_rate 1e-5)\nA[1]=3e-2\npython a.py {' '.join(['--b 1'] * 3)} ${{A[@]}}",
            ...,
        ),
    ],
)
def test_a_script_is_read_as_the_shell_runs_it(script, rate):
    found = read_shell(script).data.get("learning_rate", ...)
    assert isinstance(found, Unresolved) if rate is None else found == rate


@pytest.mark.parametrize(
    ("more", "is_known"),
    [("", True), ("$ARGS", False), ('"$@"', False), ("$(cat args)", False), ("--seed 1", True)],
)
def test_a_rate_that_a_command_may_take_from_elsewhere_is_not_its_default(more, is_known, tmp_path):
    flags = "--model_name_or_path gpt2 --output_dir o --max_steps 9 --per_device_train_batch_size 8"
    command = f"python run_clm.py {flags} --bf16 True {more}\n"
    assert ("learning_rate" not in read(tmp_path, command, "a.sh").unknown) == is_known


def test_two_equal_keys_of_toml_that_differ_are_unknown(tmp_path):
    text = BASE.replace(": ", "='").replace("\n", "'\n").replace("'90'", "90").replace("'32'", "32")
    assert read(tmp_path, f"{text}learning_rate=3e-2\nlearning-rate=1e-5\n", "a.toml").unknown
    assert not read(tmp_path, f"{text}learning_rate=3e-2\nlearning-rate=3e-2\n", "a.toml").unknown


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


@pytest.mark.parametrize(
    ("more", "objective"),
    [
        ("beta: 0.1\n", None),  # of preferences, or of a KL penalty
        ("beta: 0.1\noutput_dir: runs/zephyr-orpo\n", "orpo"),
        ("beta: 0.1\noutput_dir: runs/orpo-after-dpo\n", None),
        ("teacher: {path: gpt2-xl}\n", "distillation"),
        ("optimizer: {beta: 0.9}\n", "lm"),
        ("classifier_dropout: 0.1\n", "classification"),
    ],
)
def test_weak_signs_need_the_runs_own_name(more, objective, tmp_path):
    found = read(tmp_path, f"color: red\nlr: 1e-5\nbatch_size: 8\n{more}")
    assert found.unknown.get("objective") or found.recipe().objective == objective
    assert ("objective" in found.unknown) == (objective is None)


@pytest.mark.parametrize(
    ("called", "is_known"),
    [
        ("run_name: gpt2_ppo_sentiments", False),
        ("exp_manager: {name: llama-grpo}", False),
        ("output_dir: runs/sft-before-grpo", True),
        ("run_name: gpt2-shakespeare", True),
        ("ppo: false", True),  # no name of the run
    ],
)
def test_a_run_that_calls_itself_another_objective_is_not_known_for_text(
    called, is_known, tmp_path
):
    found = read(tmp_path, f"color: red\nmodel: gpt2\nlr: 1e-5\nbatch_size: 8\n{called}\n")
    assert ("objective" not in found.unknown) == is_known


def test_a_readers_key_at_another_level_is_the_readers(tmp_path):
    flat = "micro_batch_size: 4\nbase_model: gpt2\ndatasets: []\nwarmup_ratio: 0.1\n"
    plain = read(tmp_path, f"{flat}learning_rate: 1e-4\nmax_steps: 500\n")
    moved = read(tmp_path, f"{flat}training: {{learning_rate: 1e-4, max_steps: 500}}\n")
    assert moved.recipe() == plain.recipe() and moved.recipe().warmup_steps == 50
    assert moved.field("learning_rate").origin.by_name
    assert moved.field("max_steps").origin.keys == ("training.max_steps",)


@pytest.mark.parametrize(
    ("name", "text", "peft"),
    [
        ("a.json", '{"learning_rate": 1e-4, "lora_r": 16, "do_train": 1, "bf16": true}', "lora"),
        ("a.json", '{"learning_rate": 1e-4, "train_mode": "qlora", "do_train": 1, "bf16": true}',
         "qlora"),
        ("a.sh", "python train.py --learning_rate 1e-4 --lora_r 8 --output_dir o --bf16 True",
         "none"),
    ],
)  # fmt: skip
def test_a_rank_without_a_switch_is_lora_where_no_program_has_the_switch(
    name, text, peft, tmp_path
):
    assert read(tmp_path, text, name).recipe().peft == peft


def test_a_devices_count_that_stands_elsewhere_is_no_error(tmp_path):
    found = read(tmp_path, "lr: 1e-4\nbatch_size: 8\ntrainer: {devices: '${oc.env:N}'}\n")
    assert found.devices is None and found.recipe().batch_size == 8


def test_sizes_beside_a_type_and_folders_of_other_nets_make_no_model(tmp_path):
    assert read(tmp_path, "lr: 1e-4\nmodel: {type: swin, swin: {depths: [2, 2]}}\n").target is None
    (tmp_path / "rwkv").mkdir()
    text = "lr: 1e-4\nmodel: {num_layers: 8, hidden_size: 512, num_attention_heads: 8}\n"
    assert read(tmp_path / "rwkv", text).target is None
    assert read(tmp_path, text).target.name == "llama"


def test_a_named_file_above_the_folder_is_read_within_the_repository(tmp_path):
    for name in (".git", "a", "a/b"):
        (tmp_path / name).mkdir()
    settings = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.2}}}
    (tmp_path / "ds.json").write_text(json.dumps(settings))
    (tmp_path.parent / "ds.json").write_text(json.dumps(settings))
    text = "learning_rate: 1e-4\noutput_dir: o\nbf16: true\nmax_steps: 9\ndeepspeed: {}\n"
    assert read(tmp_path / "a" / "b", text.format("../../ds.json")).recipe().weight_decay == 0.2
    assert read(tmp_path / "a" / "b", text.format("../../../ds.json")).recipe().weight_decay == 0


@pytest.mark.parametrize(("answers", "is_refused"), [(8, True), (6, False)])
def test_answers_that_do_not_divide_the_step_are_refused_by_the_trainer(
    answers, is_refused, tmp_path
):
    text = (
        "torchrun --nproc_per_node 3 grpo.py --model_name_or_path gpt2 --learning_rate 1e-6 "
        f"--num_generations {answers} --per_device_train_batch_size 4 --reward_funcs accuracy\n"
    )
    assert any("refuses" in note for note in read(tmp_path, text, "a.sh").notes) == is_refused


@pytest.mark.parametrize(("steps", "is_noted"), [(50_000, True), (120, False)])
def test_a_schedule_that_ends_long_before_the_run_is_noted(steps, is_noted, tmp_path):
    text = (
        "general: {run: x}\nparallelism: {dp: 1}\noptimizer:\n  learning_rate_scheduler: "
        "{learning_rate: 1e-3, lr_decay_steps: 90, lr_warmup_steps: 10, lr_decay_style: cosine}\n"
        f"tokens: {{micro_batch_size: 2, train_steps: {steps}, sequence_length: 64}}\n"
        "model: {model_config: {is_llama_config: true}}\n"
    )
    found = read(tmp_path, text)
    assert any("at its lowest from step 100" in note for note in found.notes) == is_noted


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
    assert result.report.next_command == f"rksp score MODEL --recipe {tmp_path / 'a.yaml'}"


def test_a_number_beyond_any_run_is_refused(tmp_path):
    with pytest.raises(InputError, match="larger than any run"):
        read(tmp_path, f"{BASE}learning_rate: 1e-4\n".replace("90", "9" * 200))


@pytest.mark.parametrize(
    ("precision", "read_as"),
    [
        ('"bf16": {"enabled": true}', "bf16"),
        ('"bf16": {"enabled": true}, "zero_optimization": {"stage": 0}', "bf16"),
        ('"bf16": {"enabled": true, "bf16_master_weights_and_grads": true}', "bf16-pure"),
        ('"fp16": {"enabled": true, "fp16_master_weights_and_grads": true}', "fp16-pure"),
        ('"fp16": {"enabled": true, "fp16_master_weights_and_grads": false}', "fp16"),
    ],
)
def test_deepspeed_keeps_master_weights_in_float32_unless_told(precision, read_as, tmp_path):
    text = '{"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}, '
    assert read(tmp_path, f"{text}{precision}}}", "a.json").recipe().precision == read_as


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ("my_optim: Lion2", "optimizer"),
        ("max_num_opt_steps: 500", "max_steps"),
        ("opt_batch_size_x: 8", "batch_size"),
        ("ctx_piece_length_a: 512", "sequence_length"),
        ("use_fused_optim: true", ""),  # a switch gives none
        ("save_num_steps: 5", ""),  # of no field that moves the answer
        ("eval: {my_batch_size: 8}", ""),  # of another run
        ("extends: BASE", "optimizer"),
        ("inherits: BASE", "optimizer"),
        ("train_batch_size: 8\ngradient_accum_steps: 4", "batch_size"),  # of a pass or a step
        ("train: {extends: BASE}", "optimizer"),
    ],
)
def test_what_speaks_of_a_field_leaves_no_default_for_it(more, field, tmp_path):
    found = read(tmp_path, f"lr: 1e-4\nmodel_name: gpt2\n{more}\n").unknown
    assert field in found if field else not found


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        ("data: {train_batch_size: 32}", 128),  # prompts
        ("rollout_batch_size: 32\nglobal_batch_size: 128", 128),  # more than prompts: answers
        ("rollout_batch_size: 32\nglobal_batch_size: 32", None),
        ("batch_size: 32", None),
        ("rollout_batch_size: 32\nper_device_train_batch_size: 2\naccumulation_steps: 4", None),
    ],
)
def test_a_batch_under_rewards_counts_answers_or_is_unknown(batch, size, tmp_path):
    text = f"lr: 1e-6\nmodel_name: gpt2\nadv_estimator: grpo\ngroup_size: 4\n{batch}\n"
    found = read(tmp_path, text)
    assert "batch_size" in found.unknown if size is None else found.recipe().batch_size == size


@pytest.mark.parametrize(("devices", "is_known"), [("num_gpus: 8\n", False), ("", True)])
def test_a_plain_batch_may_be_one_devices_or_all_devices(devices, is_known, tmp_path):
    found = read(tmp_path, f"lr: 1e-4\nmodel_name: gpt2\nbatch_size: 8\n{devices}")
    assert ("batch_size" not in found.unknown) == is_known


@pytest.mark.parametrize(("is_on", "held"), [("true", 0.001), ("false", 0.0)])
def test_a_coefficient_counts_where_its_switch_is_on(is_on, held, tmp_path):
    text = f"lr: 1e-6\nadv_estimator: grpo\nactor: {{use_kl_loss: {is_on}, kl_loss_coef: 0.001}}\n"
    assert read(tmp_path, text).recipe().kl_coefficient == held


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ("policy_name: gpt2\nhub_model_id: openai-community/gpt2-xl", "gpt2"),
        ("a: {base_llm: gpt2}\nb: {other_llm: gpt2-xl}", None),
        ("model: {name: gpt2, freeze_text_layers: true}", None),
        ("model: {name: gpt2, freeze_vision_tower: true}", "gpt2"),
        ("model_type: llama\nadv_estimator: ppo", None),  # rewards need trained weights
    ],
)
def test_a_model_is_the_one_that_is_trained(more, name, tmp_path):
    found = read(tmp_path, f"lr: 1e-4\n{more}\n").target
    assert found is None if name is None else found.name == name


def test_sizes_in_the_parts_of_a_model_count(tmp_path):
    parts = "attn: [{kind: gqa, kwargs: {n_heads: 8, n_kv_heads: 4}}]"
    sizes = "model: {d_model: 512, n_layers: 8, PARTS}\nlr: 1e-3\n"
    found = read(tmp_path, sizes.replace("PARTS", parts)).target.overrides
    assert (found["num_attention_heads"], found["num_key_value_heads"]) == (8, 4)
    experts = f"{parts}, mlp: [{{kwargs: {{n_routed_experts: 64}}}}]"
    assert read(tmp_path, sizes.replace("PARTS", experts)).target is None


@pytest.mark.parametrize(
    ("more", "precision"),
    [("mixed_precision: true", "assumed"), ("use_bf16: true", "file"), ("", "assumed")],
)  # fmt: skip
def test_a_precision_that_is_not_told_is_assumed_with_its_key(more, precision, tmp_path):
    origin = read(tmp_path, f"lr: 1e-4\nmodel_name: gpt2\n{more}\n").field("precision").origin
    assert origin.kind == precision and bool(origin.keys) == bool(more)


TRAIN = "python train.py --model_name_or_path gpt2 --max_steps 9 --learning_rate"


@pytest.mark.parametrize(
    ("script", "rate"),
    [
        (f'if [ -z "$LR" ]; then LR=1e-4; fi\n{TRAIN} $LR\n', 1e-4),
        (f'if [ -z "$X" ]; then LR=1e-4; fi\nLR=2e-4\n{TRAIN} $LR\n', 2e-4),
        (f'LR=1e-4\nif [ -z "$X" ]; then LR=3e-4; fi\n{TRAIN} $LR\n', None),
        (f'LR=1e-4\ncase $1 in\n --lr) LR="$2";;\nesac\n{TRAIN} $LR\n', 1e-4),
        (f'srun bash -c "cd x && \\\n {TRAIN} 5e-4 \\\n --bf16"\n', 5e-4),
        (f"bash prepare.sh 9 5e-5\n{TRAIN} 1e-4\n", None),  # which trains at another rate
        ("bash prepare.sh 9 5e-5\n", 5e-5),
        ("source rates.sh\n" + TRAIN + " $LR\n", 7e-4),
        ("source absent.sh\n" + TRAIN + " $LR\n", None),
        ("python prepare.py --a 1 --b 2 --c 3 --d 4 --e 5 --f 6\n" + TRAIN + " 1e-4\n", 1e-4),
    ],
)
def test_a_shell_starts_and_includes_other_scripts(script, rate, tmp_path):
    (tmp_path / "prepare.sh").write_text(f"steps=$1\nrate=${{2:-1e-3}}\n{TRAIN} $rate\n")
    (tmp_path / "rates.sh").write_text("LR=7e-4\n")
    found = read(tmp_path, script, "a.sh")
    assert (
        "learning_rate" in found.unknown if rate is None else found.recipe().learning_rate == rate
    )


def test_a_command_takes_the_file_and_the_devices_that_it_names(tmp_path):
    (tmp_path / "base.yaml").write_text(
        "model: {name: gpt2}\noptim: {lr: 1e-4, weight_decay: 0.1}\n"
    )
    (tmp_path / "fsdp.yaml").write_text("num_processes: 8\ncompute_environment: LOCAL_MACHINE\n")
    found = read(tmp_path, "python -m own.main config=base.yaml optim.lr=3e-4\n", "a.sh").recipe()
    assert (found.learning_rate, found.weight_decay) == (3e-4, 0.1)
    train = f"{TRAIN.removeprefix('python ')} 1e-4 --per_device_train_batch_size 2\n"
    text = f"accelerate launch --config_file fsdp.yaml {train}"
    assert read(tmp_path, text, "b.sh").devices == 8
    text = f"NUM_GPUS=4\ndeepspeed {train}"
    assert read(tmp_path, text, "c.sh").recipe().batch_size == 8


SIZED = """
max_seq_len: 64
model: {{d_model: 96, n_layers: 2, vocab_size: 500, norm: {norm}, attn: [{{args: {{n_heads: 3}}}}]}}
training: {{batch_size: 4, max_steps: 100, checkpoint_dir: checkpoints/deepseek_v2/}}
optimizer: {{name: adamw, lr: 6e-4}}
"""


@pytest.mark.parametrize(("norm", "kind"), [("layernorm", "gpt2"), ("rmsnorm", "llama")])
def test_what_a_file_leaves_out_of_its_sizes_follows_its_width(norm, kind, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(SIZED.format(norm=norm))
    target = definite(read_recipe_file(path, devices=1).target)
    assert target.name == kind  # and not what the folder of the checkpoints is called
    sizes = target.overrides
    assert sizes.get("n_head", sizes.get("num_attention_heads")) == 3
    assert sizes.get("intermediate_size", 256) == 256 and "n_inner" not in sizes


def test_a_type_with_a_size_beside_it_is_not_the_types_own(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("model: qwen3\nmodel_size: 8b\nlr0: 5e-5\nbatch_size: 2\nmax_steps: 100\n")
    read = read_recipe_file(path, devices=1)
    assert read.target is None and "model_size" in read.target_missing
    assert read.recipe().learning_rate == 5e-5


def test_a_second_width_is_that_of_the_feed_forward(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("model: {embed_dim: 64, depth: 2, heads: 2, hidden_dim: 192}\nlr: 1e-4\n")
    target = definite(read_recipe_file(path, devices=1).target)
    assert (target.overrides["hidden_size"], target.overrides["intermediate_size"]) == (64, 192)


@pytest.mark.parametrize("key", ["pretrain_checkpoint_dir", "checkpoint_dir"])
def test_sizes_with_earlier_weights_start_from_them(key, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(f"model: {{n_embd: 64, n_layer: 2, n_head: 2}}\nlr: 1e-4\n{key}: ckpt/one\n")
    assert read_recipe_file(path, devices=1).names_weights == (key != "checkpoint_dir")


@pytest.mark.parametrize("model", ["gpt2", "${MODEL}"])
def test_a_usual_rate_is_held_against_no_model_that_is_not_known(model, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(
        f"model_name_or_path: {model}\nlearning_rate: 3e-3\nnum_generations: 8\n"
        "beta: 0.04\nmax_steps: 100\nper_device_train_batch_size: 8\nreward_funcs: own\n"
    )
    found = {one.code for one in score(str(path), evidence="config", devices=1).findings}
    assert ("RKSP508" in found) == (model == "gpt2")


@pytest.mark.parametrize("head", ["# @package _global_\n", ""])
def test_what_hydra_lays_over_a_configuration_is_not_the_whole(head, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(f"{head}model: {{d_model: 64, n_layer: 2}}\noptimizer: {{lr: 1e-4}}\n")
    read = read_recipe_file(path, devices=1)
    assert read.recipe().learning_rate == 1e-4
    assert ("optimizer" in read.unknown) == ("sequence_length" in read.unknown) == bool(head)


PARTED = """
model:
  dimensions: {hidden_size: 96, num_layers: 2}
  attention: {num_heads: 6, num_kv_heads: 3}
  misc: {tie_word_embeddings: true}
training: {batch_size: 4, iters: 500, learning_rate: 1e-3, MORE}
"""


def test_sizes_stand_in_any_part_of_the_models_section(tmp_path):
    found = definite(read(tmp_path, PARTED.replace("MORE", "seed: 1")).target)
    heads = [found.overrides[f"num_{of}_heads"] for of in ("attention", "key_value")]
    assert heads == [6, 3] and found.overrides["tie_word_embeddings"] is True
    assert "feed-forward, vocabulary" in found.notes[0]  # which nothing gives
    other = PARTED.replace("MORE", "seed: 1").replace("misc: {", "decoder: {heads: 2, ")
    assert read(tmp_path, other).target is None  # which of the two is not known


NAMED = "model: {name: gpt2}\ntokenizer: gpt2\ntraining: {lr: 1e-4, batch_size: 4, PART}\nREST\n"


@pytest.mark.parametrize(
    ("part", "rest", "field", "value"),
    [
        ("iters: 500, epochs: 3", "", "max_steps", None),
        ("max_steps: 500, epochs: 3", "", "max_steps", 500),  # a limit, whatever comes first
        ("max_steps: 500", "profiles: {dev: {training: {max_steps: 5}}}", "max_steps", None),
        ("max_steps: 500", "profiles: {dev: {training: {max_steps: 500}}}", "max_steps", 500),
        ("max_steps: 500", "testing: {max_length: 200}", "sequence_length", 256),
        ("max_steps: 500", "benchmark: {batch_size: 64}", "batch_size", 4),
        ("seed: 1", "run_name: reward-v1", "objective", None),
        ("seed: 1", "dpo: {max_num_steps: 9}", "objective", "dpo"),
        ("seed: 1", "dpo: {enabled: false, max_num_steps: 9}", "objective", "lm"),
        ("seed: 1", "load_in_4bit: true", "peft", None),
        ("seed: 1", "load_in_4bit: true\nlora: {r: 8}", "peft", "qlora"),
        ("seed: 1", "lora: {r: 8, use_dora: true}", "peft", "dora"),
        ("seed: 1", "bits: 16", "peft", "none"),
        ("lr_scheduler_type: constant, warmup_ratio: 0.1", "", "warmup_steps", 0),
        ("dtype: bf16", "bnb_config: {compute_dtype: fp16}", "precision", "bf16"),
        ("seed: 1", "bnb_config: {compute_dtype: fp16}", "precision", "fp32"),
    ],
)
def test_what_may_mean_another_thing_is_not_read(part, rest, field, value, tmp_path):
    found = read(tmp_path, NAMED.replace("PART", part).replace("REST", rest))
    known = None if field in found.unknown else getattr(found.recipe(), field)
    assert known == value


@pytest.mark.parametrize(("passes", "size"), [(4, None), (1, 8)])
def test_a_batch_for_training_may_be_that_of_one_pass(passes, size, tmp_path):
    text = f"model: gpt2\ntokenizer: gpt2\nlr: 1e-4\ntrain_batch_size: 8\ngrad_accum: {passes}\n"
    found = read(tmp_path, text)
    assert (None if "batch_size" in found.unknown else found.recipe().batch_size) == size


def test_a_default_of_adapters_gives_way_to_the_files_word(tmp_path):
    text = (
        "stage: sft\nmodel_name_or_path: gpt2\ntemplate: qwen\ndo_train: true\nlearning_rate: 1\n"
    )
    assert "peft" not in read(tmp_path, text).unknown
    assert "peft" in read(tmp_path, f"{text}fine_tuning: full\n").unknown


@pytest.mark.parametrize(("more", "is_text"), [("prime: 59", False), ("vocab_size: 99", True)])
def test_sizes_alone_are_of_no_language_model(more, is_text, tmp_path):
    text = f"d_model: 96\nn_layers: 2\nn_heads: 4\nlr: 1e-3\nbatch_size: 8\nmax_steps: 90\n{more}\n"
    assert (read(tmp_path, text).target is not None) == is_text


@pytest.mark.parametrize(("devices", "is_told"), [(None, False), (1, True)])
def test_a_small_batch_is_held_against_no_run_that_does_not_tell_its_devices(
    devices, is_told, tmp_path
):
    path = tmp_path / "run.sh"
    path.write_text(
        "python run_clm.py --model_name_or_path gpt2 --learning_rate 1e-4 --max_steps 100 "
        "--per_device_train_batch_size 1 --do_train --output_dir out\n"
    )
    found = {one.code for one in score(str(path), evidence="config", devices=devices).findings}
    assert ("RKSP509" in found) == is_told


@pytest.mark.parametrize(
    ("more", "steps"),
    [("", 20_000), ("num_epochs: 3", 20_000), ("max_steps: 1500", 1500), ("max_steps: 9000", 9000)],
)
def test_only_a_run_whose_length_is_said_ends_before_its_warmup(more, steps, tmp_path):
    found = read(tmp_path, f"lr: 1e-4\nmodel_name: gpt2\nwarmup_steps: 2000\n{more}\n").recipe()
    assert (found.max_steps, found.warmup_steps) == (steps, 2000)


@pytest.mark.parametrize(
    ("switch", "schedule", "warmup"), [("false", "constant", 0), ("true", "cosine", 100)]
)
def test_a_decay_that_is_off_leaves_no_warmup(switch, schedule, warmup, tmp_path):
    text = f"lr: 1e-4\nmodel_name: gpt2\nwarmup_iters: 100\nmin_lr: 1e-5\ndecay_lr: {switch}\n"
    found = read(tmp_path, text).recipe()
    assert (found.schedule, found.warmup_steps) == (schedule, warmup)


@pytest.mark.parametrize(
    ("other", "is_known"), [("./gpt2-medium-openai-pretrained.pt", True), ("gpt2", False)]
)
def test_a_file_of_weights_beside_a_model_names_no_second_one(other, is_known, tmp_path):
    models = "student_model: gpt2-medium\nbase_model_kind: gpt2-medium\n"
    text = f"lr: 1e-4\n{models}pretrain_ckpt_file: {other}\n"
    assert (read(tmp_path, text).target is not None) is is_known
