"""Run files of Lightning's command line and of timm's train.py."""

from __future__ import annotations

import json

import pytest
from support.places import RUN_CONFIGS as CONFIGS

from rksp.recipe_files.registry import read_recipe_file

LIGHTNING = {
    "seed_everything": 7,
    "trainer": {
        "max_steps": 1000,
        "max_epochs": 3,
        "accumulate_grad_batches": 4,
        "gradient_clip_val": 0.5,
        "precision": "bf16-mixed",
        "devices": 2,
        "num_nodes": 3,
    },
    "model": {"class_path": "a.Model", "init_args": {"hidden": 7}},
    "data": {"class_path": "a.Data", "init_args": {"batch_size": 8, "max_length": 128}},
    "optimizer": {
        "class_path": "torch.optim.AdamW",
        "init_args": {"lr": 3e-4, "weight_decay": 0.1, "betas": [0.9, 0.95], "eps": 1e-6},
    },
}
TIMM = {"opt": "adamw", "sched": "cosine", "warmup_epochs": 5, "epochs": 100, "lr": 1e-3}


@pytest.fixture
def read(tmp_path):
    """Return what reads a mapping as a file, whose trainer is recognized."""

    def reading(data: dict, **more):
        path = tmp_path / "a.json"
        path.write_text(json.dumps(data), encoding="utf-8")
        return read_recipe_file(path, **more)

    return reading


def test_lightning_names_classes_and_their_arguments(read):
    found = read(LIGHTNING)
    recipe = found.recipe()
    assert found.trainer.startswith("Lightning")
    assert (recipe.optimizer, recipe.learning_rate, recipe.schedule) == ("adamw", 3e-4, "constant")
    assert (recipe.weight_decay, recipe.adam_beta2, recipe.adam_epsilon) == (0.1, 0.95, 1e-6)
    assert (recipe.batch_size, recipe.gradient_accumulation_steps) == (8 * 4 * 6, 4)
    assert (recipe.max_steps, recipe.max_grad_norm, recipe.precision) == (1000, 0.5, "bf16")
    assert (recipe.sequence_length, recipe.warmup_steps) == (128, 0)
    assert found.target is None and "a.Model" in found.target_missing


def test_settings_of_a_subcommand_are_read_as_those_without(tmp_path, read):
    plain = read(LIGHTNING)
    inner = {key: value for key, value in LIGHTNING.items() if key != "seed_everything"}
    other = {"trainer": {"max_steps": 9}}
    nested = read({"seed_everything": 7, "fit": inner, "validate": other})
    assert nested.recipe() == plain.recipe()
    path = tmp_path / "b.yaml"
    path.write_text(
        "seed_everything: 7\nvalidate:\n  trainer: {max_steps: 9}\nfit:\n  trainer:\n"
        "    max_steps: 1000\n  model: {class_path: a.Model}\n",
        encoding="utf-8",
    )
    origin = read_recipe_file(path).origins()["max_steps"]
    assert (origin.line, origin.keys) == (6, ("trainer.max_steps",))


def test_a_setting_that_is_called_fit_is_no_subcommand(read):
    found = read({**LIGHTNING, "fit": {"trainer": {"max_steps": 9}}})
    assert found.recipe().max_steps == 1000


@pytest.mark.parametrize(
    ("devices", "count"), [(2, 2), ([0, 3, 5], 3), ("0,1", 2), ("4", 4), ("auto", 1), (-1, 1)]
)
def test_lightning_counts_devices_as_its_trainer_does(read, devices, count):
    found = read(LIGHTNING | {"trainer": {"devices": devices, "max_steps": 10}})
    assert found.recipe().batch_size == 8 * count
    assert (found.field("batch_size").origin.kind == "assumed") == (devices in ("auto", -1))


def test_a_lightning_model_that_builds_its_optimizer_leaves_it_assumed(read):
    data = {k: v for k, v in LIGHTNING.items() if k != "optimizer"}
    data["model"] = {"class_path": "a.Model", "init_args": {"learning_rate": 2e-4}}
    found = read(data)
    assert found.recipe().learning_rate == 2e-4
    for name in ("optimizer", "schedule", "warmup_steps"):
        assert found.field(name).origin.kind == "assumed", name
    inside = {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1, "momentum": 0.8}}
    found = read(data | {"model": {"class_path": "a.Model", "init_args": {"optimizer": inside}}})
    recipe = found.recipe()
    assert (recipe.optimizer, recipe.learning_rate, recipe.momentum) == ("sgd", 0.1, 0.8)
    assert recipe.weight_decay == 0


@pytest.mark.parametrize(
    ("name", "arguments", "wanted"),
    [
        ("CosineAnnealingLR", {"T_max": 3, "eta_min": 3e-5},
         {"schedule": "cosine", "min_lr_ratio": 0.1}),
        ("OneCycleLR", {"max_lr": 1e-2, "pct_start": 0.2},
         {"schedule": "cosine", "learning_rate": 1e-2, "warmup_steps": 200, "min_lr_ratio": 4e-6}),
        ("ExponentialLR", {"gamma": 0.5}, {"schedule": "exponential", "min_lr_ratio": 0.125}),
        ("MultiStepLR", {"milestones": [1, 2], "gamma": 0.3},
         {"schedule": "step", "decay_milestones": (333, 667), "decay_factor": 0.3}),
        ("StepLR", {"step_size": 1}, {"schedule": "step", "decay_milestones": (333, 667)}),
        ("ReduceLROnPlateau", {"monitor": "loss"}, {"schedule": "constant"}),
        ("a.LinearLRSchedulerWithLinearWarmup", {"num_warmup_steps": 50},
         {"schedule": "linear", "warmup_steps": 50}),
    ],
)  # fmt: skip
def test_lightning_schedulers(read, name, arguments, wanted):
    path = name if "." in name else f"torch.optim.lr_scheduler.{name}"
    recipe = read(LIGHTNING | {"lr_scheduler": {"class_path": path, "init_args": arguments}})
    found = {field: recipe.field(field).value for field in wanted}
    assert found == wanted


def test_lightning_trains_the_first_of_steps_and_epochs(read):
    limited = {"max_epochs": 3, "limit_train_batches": 100, "accumulate_grad_batches": 4}
    assert read(LIGHTNING | {"trainer": limited}).recipe().max_steps == 75
    assert read(LIGHTNING | {"trainer": limited | {"max_steps": 60}}).recipe().max_steps == 60
    known = read(LIGHTNING | {"trainer": {"max_epochs": 2, "devices": 1}}, given={"rows": 81})
    assert known.recipe().max_steps == 22
    assert (
        "1000 (the default)"
        in read(LIGHTNING | {"trainer": {"devices": 1}}).field("max_steps").origin.text
    )


def test_what_torch_raises_is_no_decay(read):
    scheduler = {"class_path": "torch.optim.lr_scheduler.LinearLR"}
    origin = read(LIGHTNING | {"lr_scheduler": scheduler}).field("schedule").origin
    assert origin.kind == "assumed" and "LinearLR, which rises" in origin.text


def test_timm_epochs_are_shares_of_the_run(read):
    found = read(TIMM, devices=8, given={"rows": 1_281_167})
    recipe = found.recipe()
    each = 1_281_167 // (8 * 128)  # its loader drops the last, smaller batch
    assert (recipe.batch_size, recipe.max_steps) == (1024, 100 * each)
    assert recipe.warmup_steps == 5 * each
    typed = read(TIMM, given={"max_steps": 2000}).recipe()
    assert (typed.max_steps, typed.warmup_steps) == (2000, 100)
    cooled = read(TIMM | {"cooldown_epochs": 25}, given={"max_steps": 2500}).recipe()
    assert (cooled.warmup_steps, cooled.decay_steps) == (100, 1900)
    before = read(TIMM | {"warmup_prefix": True}, given={"max_steps": 2100}).recipe()
    assert before.warmup_steps == 100


@pytest.mark.parametrize(
    ("more", "rate"),
    [
        ({"lr": None}, 0.1 * 2),  # adamw: the root of 1024 / 256
        ({"lr": None, "opt": "sgd"}, 0.1 * 4),
        ({"lr": None, "lr_base": 0.05, "lr_base_scale": "linear"}, 0.05 * 4),
        ({"lr": 1e-3, "lr_base": 0.05}, 1e-3),
    ],
)
def test_timm_scales_its_base_rate_with_the_batch(read, more, rate):
    found = read({**TIMM, **more, "batch_size": 256, "grad_accum_steps": 2}, devices=2)
    assert found.recipe().learning_rate == pytest.approx(rate)
    assert (found.field("learning_rate").origin.kind == "file") == (more["lr"] is not None)


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({"amp": True}, {"precision": "fp16"}),
        ({"amp": True, "amp_dtype": "bfloat16"}, {"precision": "bf16"}),
        ({"model_dtype": "bfloat16"}, {"precision": "bf16-pure"}),
        ({"clip_grad": 1.0}, {"max_grad_norm": 1.0}),
        ({"clip_grad": 0.02, "clip_mode": "agc"}, {"max_grad_norm": None}),
        ({"opt_betas": [0.9, 0.99]}, {"adam_beta2": 0.99}),
        ({"min_lr": 1e-5}, {"min_lr_ratio": 0.01}),
        ({"sched": "step", "decay_epochs": 40, "decay_rate": 0.2},
         {"schedule": "step", "decay_milestones": (400, 800), "decay_factor": 0.2}),
        ({"sched": "multistep", "decay_milestones": [30, 60, 270]},
         {"decay_milestones": (300, 600), "decay_factor": 0.1}),
        ({"sched": "poly", "decay_rate": 0.9}, {"schedule": "polynomial", "decay_power": 0.9}),
    ],
)  # fmt: skip
def test_timm_settings(read, more, wanted):
    found = read({**TIMM, **more})
    assert {name: found.field(name).value for name in wanted} == wanted


def test_timm_vision_transformers_become_the_target(read):
    found = read(TIMM | {"model": "vit_small_patch16_224", "pretrained": True})
    assert found.target.name == "vit" and found.names_weights
    assert found.target.overrides["hidden_size"] == 384
    other = read(TIMM | {"model": "convnext_tiny"})
    assert other.target is None and "'convnext_tiny' is a model of timm" in other.target_missing


def test_lightning_s_own_trainers_keep_their_files():
    for name in ("litgpt/debug.yaml", "restated/nemo/megatron_llama_config.yaml"):
        assert not read_recipe_file(CONFIGS / name).trainer.startswith("Lightning")


def test_a_command_of_timm_is_read_with_its_processes(tmp_path):
    path = tmp_path / "train.sh"
    path.write_text(
        "torchrun --nproc_per_node=8 train.py --model deit_tiny_patch16_224 --opt adamw \\\n"
        "  --lr 1e-3 --sched cosine --epochs 200 --warmup-epochs 10 --batch-size 128 --amp\n",
        encoding="utf-8",
    )
    recipe = read_recipe_file(path, given={"max_steps": 4000}).recipe()
    assert (recipe.batch_size, recipe.warmup_steps, recipe.precision) == (1024, 200, "fp16")
