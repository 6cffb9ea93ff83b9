"""Trainers' defaults and units that were wrong from memory, as their own source has them.

Each line holds a small file, a field, its value, and where the trainer's source says so.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rksp.recipe_files.registry import read_recipe_file

SWIFT = "swift sft --model Qwen/Qwen2-7B --train_type full --learning_rate 1e-5"
HF = "learning_rate: 1e-4\noutput_dir: x\nbf16: true\nmax_steps: 100\n"
AXOLOTL = "base_model: gpt2\nlearning_rate: 1e-4\nmicro_batch_size: 2\nmax_steps: 50\n"
TRL = "learning_rate: 1e-4\ndataset_name: x\npacking: true\n"
DEEPSPEED = (
    "steps_per_print: 10\ntrain_batch_size: 8\noptimizer: {type: AdamW, params: {lr: 1e-4}}\n"
)
LITGPT = "train: {global_batch_size: 8, micro_batch_size: 2}\n"
OLMO = (
    "max_duration: 100\nmodel: {d_model: 64, n_heads: 4, n_layers: 2, rope: true}\n"
    "optimizer: {learning_rate: 1e-4}\n"
)
FOUNDRY = (
    "max_duration: 100ba\nglobal_train_batch_size: 8\nmax_seq_len: 128\n"
    "model: {name: mpt_causal_lm}\n"
)
COMPOSER = "max_duration: 100ba\nglobal_train_batch_size: 8\nmodel: {name: mosaic_bert}\n"
LEVANTER = "trainer: {train_batch_size: 8, num_train_steps: 1000, mp: p=f32,c=bfloat16}\n"
NEMO = "trainer: {max_steps: 100, precision: 16}\nmodel: {optim: {name: adamw, lr: 2.0, %s}}\n"
NEOX = "train_iters: 1000\nnum_layers: 2\nhidden_size: 64\nnum_attention_heads: 4\nwarmup: 0.1\n"
FAIRSEQ = "fairseq-train d --arch transformer --optimizer adam --max-tokens 4096 --lr-scheduler "
NANOTRON = (
    "tokens: {micro_batch_size: 2, sequence_length: 64, train_steps: 10}\n"
    "optimizer: {accumulate_grad_in_fp32: true, "
    "learning_rate_scheduler: {learning_rate: 1e-4}}\n"
)

CASES = [
    # YAML 1.1, by which PyYAML reads: on and yes are true
    ("a.yaml", HF.replace("true", "on"), "precision", "bf16"),
    ("a.yaml", f"{HF.replace('true', 'off')}fp16: yes\n", "precision", "fp16"),
    # fairseq 0.12.2, fairseq/optim/lr_scheduler/polynomial_decay_schedule.py: zero from there on
    (
        "a.sh",
        f"{FAIRSEQ}polynomial_decay --lr 3e-5 --total-num-update 20000 --warmup-updates 500",
        "max_steps",
        20000,
    ),
    # huggingface/transformers 5.23.0, src/transformers/optimization.py, get_scheduler
    ("a.yaml", f"{HF}lr_scheduler_type: constant\nwarmup_steps: 10\n", "warmup_steps", 0),
    (
        "a.yaml",
        f"{HF}lr_scheduler_type: constant_with_warmup\nwarmup_steps: 10\n",
        "warmup_steps",
        10,
    ),
    # axolotl 0.19.0, src/axolotl/core/builders/base.py:235-257 and utils/schedulers.py:224-249
    ("a.yaml", f"{AXOLOTL}warmup_ratio: 0.07\n", "warmup_steps", 3),
    ("a.yaml", f"{AXOLOTL}warmup_ratio: 0.03\n", "warmup_steps", 2),
    (
        "a.yaml",
        f"{AXOLOTL}warmup_steps: 5\ncosine_min_lr_ratio: 0.1\ncosine_constant_lr_ratio: 0.8\n",
        "decay_steps",
        35,
    ),
    # axolotl 0.19.0, src/axolotl/utils/schemas/config.py:284-298 and enums.py:31
    ("a.yaml", f"{AXOLOTL}reward_model: true\n", "objective", "reward"),
    ("a.yaml", f"{AXOLOTL}process_reward_model: true\n", "objective", "reward"),
    ("a.yaml", f"{AXOLOTL}rl: gdpo\n", "objective", "grpo"),
    # TRL 1.16.0, trl/experimental/orpo/orpo_config.py:74 and trl/trainer/model_config.py:111
    ("orpo.sh", "python orpo.py --dataset_name x --output_dir y", "learning_rate", 1e-6),
    ("a.yaml", f"{TRL}use_peft: true\n", "lora_alpha", 32.0),
    # ms-swift 4.6.0, swift/trainers/arguments.py:289-291 and swift/arguments/rlhf_args.py:233, 528
    ("a.sh", SWIFT, "batch_size", 16),
    ("a.sh", f"{SWIFT} --per_device_train_batch_size 6", "gradient_accumulation_steps", 3),
    ("a.sh", SWIFT.replace("sft", "rlhf"), "objective", "dpo"),
    # DeepSpeed 0.19.8, runtime/constants.py:203, lr_schedules.py:725-871, ops/adam/fused_adam.py:76
    ("a.yaml", DEEPSPEED, "max_grad_norm", 1.0),
    ("a.yaml", DEEPSPEED, "weight_decay", 0.0),
    ("a.yaml", f"{DEEPSPEED}scheduler: {{type: WarmupLR, params: {{}}}}\n", "warmup_steps", 1000),
    (
        "a.yaml",
        f"{DEEPSPEED}scheduler: {{type: WarmupDecayLR, params: {{total_num_steps: 5000}}}}\n",
        "learning_rate",
        1e-3,
    ),
    (
        "a.yaml",
        f"{DEEPSPEED}scheduler: {{type: WarmupCosineLR, params: {{total_num_steps: 5000}}}}\n",
        "min_lr_ratio",
        1e-4,
    ),
    # litgpt 0.5.13, litgpt/pretrain.py:51-66 and 127, litgpt/utils.py, litgpt/finetune/full.py:445
    ("a.yaml", LITGPT, "precision", "bf16"),
    ("a.yaml", LITGPT, "max_grad_norm", 1.0),
    ("a.yaml", f"checkpoint_dir: x\n{LITGPT}", "max_grad_norm", None),
    # nanotron 0.4, src/nanotron/config/config.py:184
    ("a.yaml", NANOTRON, "precision", "bf16"),
    # OLMo 0.6.0, olmo/optim.py:1011
    ("a.yaml", f"{OLMO}scheduler: {{name: constant, t_warmup: 10}}\n", "warmup_steps", 0),
    # llm-foundry 0.22.0, llmfoundry/optim/lion.py:35 and llmfoundry/utils/config_utils.py:80
    ("a.yaml", f"{FOUNDRY}optimizer: {{name: decoupled_lionw, lr: 1e-4}}\n", "adam_beta2", 0.99),
    ("a.yaml", f"{FOUNDRY}optimizer: {{name: decoupled_lionw, lr: 1e-4}}\n", "weight_decay", 0.0),
    ("a.yaml", f"{FOUNDRY}optimizer: {{name: decoupled_adamw, lr: 1e-4}}\n", "precision", "bf16"),
    # Composer 0.32.1, composer/trainer/trainer.py:1129 and composer/optim/scheduler.py:913
    ("a.yaml", f"{COMPOSER}optimizer: {{name: adamw, lr: 1e-4}}\n", "precision", "fp16"),
    (
        "a.yaml",
        f"{COMPOSER}optimizer: {{name: adamw, lr: 1e-4}}\n"
        "scheduler: {name: polynomial_with_warmup, t_warmup: 10ba}\n",
        "decay_power",
        2.0,
    ),
    # stanford-crfm/levanter, src/levanter/optim/config.py@00816d0f and muon.py@094aeccf
    ("a.yaml", f"{LEVANTER}optimizer: {{type: muon}}\n", "weight_decay", 0.0),
    ("a.yaml", f"{LEVANTER}optimizer: {{decay: 0.2}}\n", "decay_steps", 200),
    ("a.yaml", f"{LEVANTER}optimizer: {{decay: 0.2, lr_schedule: linear}}\n", "schedule", "wsd"),
    # NeMo 1.23.0, nemo/core/optim/lr_scheduler.py:490 and torch.optim.AdamW
    (
        "a.yaml",
        NEMO % "sched: {name: NoamAnnealing, d_model: 256, warmup_steps: 10000}",
        "learning_rate",
        2.0 / (256 * 10000) ** 0.5,
    ),
    ("a.yaml", NEMO % "betas: [0.9, 0.98]", "weight_decay", 0.01),
    # EleutherAI/gpt-neox, megatron/training.py@00400bc0, get_learning_rate_scheduler
    ("a.yaml", f"{NEOX}lr_decay_iters: 500\n", "warmup_steps", 50),
    ("a.yaml", f"{NEOX}lr_decay_fraction: 0.5\n", "decay_steps", 400),
    # fairseq 0.12.2, fairseq/optim/lr_scheduler, fairseq/dataclass/configs.py, fairseq/options.py
    ("a.sh", f"{FAIRSEQ} inverse_sqrt", "warmup_steps", 4000),
    ("a.sh", f"{FAIRSEQ} fixed", "learning_rate", 0.25),
    ("a.sh", f"{FAIRSEQ} fixed --task language_modeling", "sequence_length", 1024),
    ("a.sh", f"{FAIRSEQ} fixed", "objective", "seq2seq"),
    ("a.sh", f"{FAIRSEQ} tri_stage --decay-steps 50 --warmup-steps 10", "warmup_steps", 10),
    # karpathy/llm.c, train_gpt2.py (its arguments) and train_gpt2.cu@5afc5706, main
    ("a.sh", "python train_gpt2.py --input_bin x --total_batch_size 256 --val_loss_every 5",
     "learning_rate", 1e-4),
    ("a.sh", "./train_gpt2cu -b 4", "learning_rate", 3e-4),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    CASES,
    ids=[f"{n}-{case[2]}" for n, case in enumerate(CASES)],
)
def test_a_default_is_the_trainers_own(name, text, field, value, tmp_path: Path):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    found = read_recipe_file(path).field(field).value
    assert found == (pytest.approx(value, rel=1e-5) if isinstance(value, float) else value)


def test_a_noam_rate_without_its_width_is_assumed(tmp_path: Path):
    path = tmp_path / "a.yaml"
    path.write_text(NEMO % "sched: {name: NoamAnnealing, warmup_steps: 10}", encoding="utf-8")
    field = read_recipe_file(path).field("learning_rate")
    assert field.value is None and "NoamAnnealing" in field.origin.text


def test_the_length_of_completions_is_assumed_for_grpo(tmp_path: Path):
    path = tmp_path / "a.yaml"
    path.write_text(f"{TRL}num_generations: 8\nmax_completion_length: 256\n", encoding="utf-8")
    assert read_recipe_file(path).field("sequence_length").origin.kind == "assumed"


@pytest.mark.parametrize(
    "text",
    [
        f"{HF}warmup_steps: ${{oc.env:WARM}}\n",
        f"{HF}warmup_ratio: ${{warm}}\n",
        f"{LITGPT}".replace("{global", "{lr_warmup_steps: '${warm}', global"),
    ],
)
def test_a_warm_up_that_is_set_elsewhere_is_no_default(text, tmp_path: Path):
    path = tmp_path / "a.yaml"
    path.write_text(text, encoding="utf-8")
    assert read_recipe_file(path).field("warmup_steps").origin.kind == "assumed"


def test_a_length_of_null_is_no_default(tmp_path: Path):
    path = tmp_path / "a.yaml"
    path.write_text(f"{TRL}max_length: null\n", encoding="utf-8")
    field = read_recipe_file(path).field("sequence_length")
    assert field.origin.kind == "assumed" and "null" in field.origin.text


@pytest.mark.parametrize(
    ("setting", "is_said"),
    [("loraplus_lr_ratio: 16.0", True), ("lr_groups: [{name: x, lr: 1e-5}]", True),
     ("loraplus_lr_ratio: null", False), ("warmup_init_lr: 1e-7", False)],
)  # fmt: skip
def test_another_rate_of_some_weights_is_said(setting, is_said, tmp_path: Path):
    path = tmp_path / "a.yaml"
    path.write_text(f"{AXOLOTL}{setting}\n", encoding="utf-8")
    assert any("one rate for all" in one.why for one in read_recipe_file(path).unread) is is_said


def test_a_warm_up_by_a_logarithm_is_said(tmp_path: Path):
    path = tmp_path / "a.yaml"
    path.write_text(f"{DEEPSPEED}scheduler: {{type: WarmupLR, params: {{}}}}\n", encoding="utf-8")
    assert any("logarithm" in note for note in read_recipe_file(path).notes)
