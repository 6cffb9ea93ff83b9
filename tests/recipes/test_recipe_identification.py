"""Whose file it is: two marks a format, foreign formats refused by name, `--as`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.places import RUN_CONFIGS as CONFIGS

from rksp.ground.errors import InputError
from rksp.recipe_files.parse.document import load_document
from rksp.recipe_files.registry import READERS, read_recipe_file, recognize

# Files that people have beside their run files, as they look; name of the format → settings.
FOREIGN = {
    "Accelerate": {"compute_environment": "LOCAL_MACHINE", "distributed_type": "MULTI_GPU",
                   "mixed_precision": "bf16", "num_processes": 8},
    "a finished Hugging Face run": {"log_history": [{"loss": 1.0}], "global_step": 5,
                                    "num_train_epochs": 3, "logging_steps": 5},
    "a PEFT adapter": {"peft_type": "LORA", "base_model_name_or_path": "x", "r": 8,
                       "lora_alpha": 16},
    "a tokenizer": {"tokenizer_class": "LlamaTokenizer", "model_max_length": 4096},
    "generation settings": {"_from_model_config": True, "eos_token_id": 2,
                            "transformers_version": "5.0"},
    "a weight index": {"metadata": {"total_size": 1}, "weight_map": {"a": "b"}},
    "Node.js": {"name": "x", "version": "1", "scripts": {"test": "x"}},
    "GitHub": {"on": "push", "jobs": {"a": {"steps": []}}},
    "pre-commit": {"repos": [{"repo": "x", "rev": "1"}]},
    "Kubernetes": {"apiVersion": "v1", "kind": "Job", "spec": {"template": {}}},
    "Docker Compose": {"services": {"a": {"image": "x"}}},
    "conda": {"name": "x", "channels": ["y"], "dependencies": ["python"]},
    "Read the Docs": {"version": 2, "build": {"os": "ubuntu-22.04"}},
    "YOLO": {"lr0": 0.01, "lrf": 0.01, "momentum": 0.9, "weight_decay": 0.0005, "imgsz": 640,
             "optimizer": "auto"},
    "Detectron2": {"MODEL": {"WEIGHTS": "x"}, "SOLVER": {"BASE_LR": 0.02, "MAX_ITER": 90000}},
    "kohya": {"unet_lr": 1e-4, "network_dim": 32, "learning_rate": 1e-4, "output_dir": "x",
              "network_module": "networks.lora", "train_batch_size": 2, "mixed_precision": "bf16"},
    "ESPnet": {"encoder_conf": {"output_size": 256}, "optim_conf": {"lr": 0.002},
               "optim": "adam", "max_epoch": 50},
    "OpenNMT": {"src_vocab": "x", "train_steps": 100000, "learning_rate": 2, "warmup_steps": 8000,
                "optim": "adam", "batch_size": 4096},
    "any trainer (a Lightning trainer of Hydra's)": {
        "seed": 1, "trainer": {"_target_": "lightning.Trainer", "max_epochs": 3},
        "model": {"_target_": "a.B", "optimizer": {"_target_": "torch.optim.Adam", "lr": 1e-3}}},
    "any trainer (a loop with a scheduler)": {"sched": "cosine", "optimizer": "adamw", "lr": 5e-4},
    "spaCy": {"nlp": {"lang": "en"}, "training": {"max_steps": 20000, "optimizer": {"x": 1}}},
    "MLflow": {"name": "x", "entry_points": {"main": {"command": "x"}}},
    "Hydra": {"defaults": ["_self_", "model: gpt2"], "seed": 1},
    "lm-evaluation-harness": {"task": "hellaswag", "doc_to_text": "{{q}}", "dataset_path": "x"},
    "Stable Baselines": {"n_timesteps": 1e6, "policy": "MlpPolicy", "learning_rate": 3e-4,
                         "batch_size": 64},
    "Jupyter": {"cells": [], "nbformat": 4},
    "Python": {"build-system": {"requires": ["setuptools"]}, "tool": {"ruff": {"x": 1}}},
    "a W&B sweep": {"method": "bayes", "parameters": {"lr": {"min": 1e-5, "max": 1e-2}}},
    "any trainer": {"color": "red", "batch_size": 4},
    "any trainer (a loop of one's own)": {"lr": 1e-3, "epochs": 10, "batch_size": 32,
                                         "hidden_size": 256, "num_layers": 4},
    "any trainer (a DreamBooth run)": {"learning_rate": 1e-4, "resolution": 512, "prior": 1.0},
}  # fmt: skip


# Runs of nobody's format: they are read by the names of their settings.
NOBODYS = ("any trainer (", "ppo.yml", "keras.py", "slurm.sh")


# Runs of programs whose models are their own, with a rate: they have a recipe, and no target.
OTHERS = ("YOLO", "Detectron2", "kohya", "ESPnet", "OpenNMT")


@pytest.mark.parametrize("name", OTHERS)
def test_a_run_of_another_program_is_read_without_a_model(name, tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(FOREIGN[name]), encoding="utf-8")
    read = read_recipe_file(path)
    assert read.recipe().learning_rate and read.target is None and name in read.target_missing


@pytest.mark.parametrize(
    "name", [one for one in FOREIGN if not one.startswith(NOBODYS) and one not in OTHERS]
)
def test_a_foreign_file_is_nobodys_and_named_where_that_is_plain(name, tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(FOREIGN[name]), encoding="utf-8")
    title = name.split(" (")[0]
    with pytest.raises(InputError, match=title) as caught:
        read_recipe_file(path)
    assert "\n" not in str(caught.value)


def test_the_file_of_a_run_that_is_not_read_is_not_asked_for_again(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(FOREIGN["spaCy"]), encoding="utf-8")
    with pytest.raises(InputError, match="type the recipe"):
        read_recipe_file(path)


# The same in their own syntax, as they look: file name → text. None of them is a run of a trainer
# that rksp reads, though several hold a learning rate, a batch size and a number of steps.
FOREIGN_FILES = {
    ".github/workflows/ci.yml": """name: ci
on: {push: {branches: [main]}}
jobs:
  test:
    runs-on: ubuntu-latest
    strategy: {matrix: {python: ["3.11", "3.12"]}}
    steps: [{uses: actions/checkout@v4}, {run: pytest}]
""",
    "docker-compose.yml": """services:
  trainer:
    image: pytorch/pytorch
    command: python train.py --learning_rate 1e-4
    deploy: {resources: {limits: {memory: 8G}}}
""",
    "job.yaml": """apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec:
  template:
    spec:
      containers: [{name: a, image: b, args: ["--max_steps", "1000"]}]
""",
    "mkdocs.yml": """site_name: Docs
theme: {name: material}
nav: [{Home: index.md}]
plugins: [search]
""",
    ".pre-commit-config.yaml": """repos:
  - repo: https://example.org/ruff
    rev: v0.6.0
    hooks: [{id: ruff}]
""",
    "environment.yml": """name: train
channels: [conda-forge]
dependencies: [python=3.11, pytorch, {pip: [transformers]}]
""",
    "tsconfig.json": '{"compilerOptions": {"target": "es2022", "strict": true}}',
    "kernel-metadata.json": '{"id": "a/b", "title": "b", "kernel_type": "script"}',
    "dataset.yaml": "path: ../coco\ntrain: images/train\nval: images/val\nnames: {0: person}\n",
    "schedule_1x.py": """optim_wrapper = dict(optimizer=dict(type='SGD', lr=0.02, momentum=0.9))
param_scheduler = [dict(type='LinearLR', start_factor=0.001, begin=0, end=500)]
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=12, val_interval=1)
""",
    "train_text_to_image.sh": """accelerate launch train_text_to_image.py \\
  --pretrained_model_name_or_path=CompVis/stable-diffusion-v1-4 \\
  --resolution=512 --train_batch_size=1 --max_train_steps=15000 --checkpointing_steps=500
""",
    "whisper.sh": "whisper audio.mp3 --model large --language de --beam_size 5 --temperature 0\n",
    "ppo.yml": """CartPole-v1:
  n_envs: 8
  n_timesteps: !!float 1e5
  policy: MlpPolicy
  learning_rate: lin_0.001
  n_steps: 32
""",
    "tune.py": """from ray import tune

search = {"lr": tune.loguniform(1e-5, 1e-2), "batch_size": tune.choice([16, 32])}
tuner = tune.Tuner(lambda config: None, param_space=search)
""",
    "pipeline.py": """from sklearn.linear_model import SGDClassifier

model = SGDClassifier(learning_rate="adaptive", eta0=0.01, max_iter=1000)
""",
    "playbook.yml": "- hosts: all\n  tasks: [{name: install, apt: {name: nvidia-driver}}]\n",
    "openapi.yaml": """openapi: 3.1.0
info: {title: Training service, version: "1"}
paths:
  /runs:
    post:
      requestBody:
        content:
          application/json:
            schema: {properties: {learning_rate: {type: number}, max_steps: {type: integer}}}
""",
    "values.yaml": """replicaCount: 2
image: {repository: trainer, tag: latest}
resources: {limits: {nvidia.com/gpu: 8}}
""",
    "Cargo.toml": '[package]\nname = "a"\nversion = "0.1.0"\n\n[dependencies]\nserde = "1"\n',
    "tox.toml": 'env_list = ["py311"]\n\n[env_run_base]\ncommands = [["pytest"]]\n',
    "keras.py": """import keras

model = keras.Sequential([keras.layers.Dense(10)])
model.compile(optimizer=keras.optimizers.Adam(learning_rate=1e-3), loss="mse")
model.fit(x=None, epochs=5, batch_size=32)
""",
    "xgboost.json": '{"eta": 0.3, "max_depth": 6, "objective": "binary:logistic"}',
    "prometheus.yml": "global: {scrape_interval: 15s}\nscrape_configs: [{job_name: gpu}]\n",
    "slurm.sh": "#!/bin/bash\n#SBATCH --gres=gpu:8\nsrun python my_train.py --lr 1e-3\n",
}


@pytest.mark.parametrize("name", [one for one in FOREIGN_FILES if not one.startswith(NOBODYS)])
def test_a_foreign_file_in_its_own_syntax_is_refused_in_one_sentence(name, tmp_path):
    path = tmp_path / Path(name).name
    path.write_text(FOREIGN_FILES[name], encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_recipe_file(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [o for o in {**FOREIGN, **FOREIGN_FILES} if o.startswith(NOBODYS)])
def test_a_run_of_nobodys_format_is_read_by_name_and_gets_no_model_that_it_does_not_have(
    name, tmp_path
):
    path = tmp_path / (Path(name).name if name in FOREIGN_FILES else "a.json")
    path.write_text(FOREIGN_FILES.get(name) or json.dumps(FOREIGN[name]), encoding="utf-8")
    read = read_recipe_file(path)
    assert (read.reader, read.target) == ("by name", None)
    rate = read.field("learning_rate")
    assert rate.value in (1e-3, 5e-4, 1e-4) or rate.origin.kind == "unknown"


def test_there_are_fifty_foreign_files():
    assert len(FOREIGN) >= 30
    assert len(FOREIGN) + len(FOREIGN_FILES) >= 50


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_one_mark_is_not_enough(reader, tmp_path):
    """No reader takes a file that bears a single one of its marks."""
    for marks in reader.marks:
        for key in f"{marks.all} {marks.some}".split():
            first, *rest = key.split(".")
            value: object = 1
            for part in reversed(rest):
                value = {part: value}
            path = tmp_path / "a.json"
            path.write_text(json.dumps({first: value, "color": "red"}), encoding="utf-8")
            assert not reader.matches(load_document(path)), key


@pytest.mark.parametrize(
    ("name", "reader"),
    [
        ("restated/maxtext/base.yml", "maxtext"),  # was taken for Hugging Face's
        ("restated/ms-swift/full.sh", "ms-swift"),  # was taken for Hugging Face's
        ("ms-swift/zero2.json", "deepspeed"),  # was taken for GPT-NeoX's
        ("restated/nemo/megatron_gpt_config.yaml", "nemo"),
        ("restated/gpt-neox/llama_train_config.yml", "gpt-neox"),
        ("restated/deepspeed/adam_warmup.json", "deepspeed"),
        ("restated/composer/mosaic-bert-base-uncased.yaml", "composer"),
        ("llm-foundry/mpt-125m.yaml", "llm-foundry"),
        ("levanter/gpt2_nano.yaml", "levanter"),
        ("restated/trl/zephyr_sft_full.yaml", "trl"),
        ("restated/llama-factory/llama3_lora_dpo.yaml", "llama-factory"),
        ("restated/llm.c/run_gpt2_124M.sh", "llm.c"),
        ("litgpt/tinyllama.yaml", "litgpt"),  # built on Lightning, as NeMo is
        ("restated/litgpt/phi-2_full.yaml", "litgpt"),
        ("restated/lightning/lightning_ir_fine_tune.yaml", "lightning"),
        ("restated/timm/mobileone_s1.yaml", "timm"),
    ],
)
def test_lookalikes_are_told_apart(name, reader):
    assert recognize(load_document(CONFIGS / name)).name == reader


def test_a_file_that_is_mostly_not_understood_says_so(tmp_path):
    settings = {"learning_rate": 1e-4, "output_dir": "x", "bf16": True}
    path = tmp_path / "a.json"
    path.write_text(json.dumps(settings | {f"other{i}": i for i in range(40)}), encoding="utf-8")
    read = read_recipe_file(path)
    assert (read.understood, read.settings, len(read.unread)) == (2, 43, 40)
    path.write_text(json.dumps(settings), encoding="utf-8")
    assert not read_recipe_file(path).unread


def test_a_format_can_be_forced(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("color: red\nlearning_rate: 1e-3\n", encoding="utf-8")
    assert read_recipe_file(path).reader == "by name"
    assert read_recipe_file(path, trainer="axolotl").recipe().learning_rate == 1e-3
