"""Scripts with a loop of their own, commands that start them, and Hydra's commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from rksp.ground.errors import InputError
from rksp.recipe import Recipe
from rksp.recipe_files.registry import read_recipe_file

SCRIPT = """
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=3e-4)
parser.add_argument("--disc-lr", type=float, default=9e-4)
parser.add_argument("--batch_size", type=int, default=24)
parser.add_argument("--max_seq_len", type=int, default=512)
parser.add_argument("--dtype", default="bfloat16")
parser.add_argument("--model_name", default="gpt2")
args = parser.parse_args()
optimizer = torch.optim.AdamW(model.parameters(), lr={rate}, betas=(0.9, 0.97), weight_decay=0.2)
disc_optimizer = torch.optim.AdamW(discrim.parameters(), lr=args.disc_lr)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=9, eta_min=3e-5)
torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
{more}
loss.backward()
"""


def read(folder: Path, text: str, name: str = "train.py"):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return read_recipe_file(path)


def script(rate: str = "args.lr", more: str = "") -> str:
    return SCRIPT.replace("{rate}", rate).replace("{more}", more)


def test_a_script_is_read_by_its_options_and_by_what_it_builds_with_them(tmp_path):
    read_of = read(tmp_path, script())
    recipe = read_of.recipe()
    assert (recipe.learning_rate, recipe.adam_beta2, recipe.weight_decay) == (3e-4, 0.97, 0.2)
    assert (recipe.batch_size, recipe.sequence_length, recipe.precision) == (24, 512, "bf16")
    assert (recipe.schedule, recipe.min_lr_ratio, recipe.max_grad_norm) == ("cosine", 0.1, 0.5)
    assert read_of.target is not None and read_of.target.name == "gpt2"
    assert read_of.field("learning_rate").origin.line == 11
    assert (recipe.optimizer, read_of.unknown, read_of.unread) == ("adamw", {}, ())


@pytest.mark.parametrize(
    ("rate", "known"),
    [
        ("args.lr * torch.cuda.device_count()", None),  # computed of what nobody knows
        ("2 * args.lr", 6e-4),
        ("config['lr']", 3e-4),  # a name that only passes on; the option of that name stands
    ],
)
def test_the_rate_is_what_the_optimizer_is_built_with(rate, known, tmp_path):
    read_of = read(tmp_path, script(rate))
    assert read_of.field("learning_rate").value == known
    assert ("learning_rate" in read_of.unknown) == (known is None)


@pytest.mark.parametrize(
    ("more", "objective"),
    [
        ("", "lm"),
        ("def dpo_loss(policy, reference): pass", "dpo"),
        ("rewards = compute_rewards(rollout(model))", "grpo"),
        ("loss = distillation_loss(student, teacher)", "distillation"),
        ("model = AutoModelForMaskedLM.from_pretrained('bert-base-uncased')", "mlm"),
    ],
)
def test_what_a_script_defines_and_calls_shows_its_objective(more, objective, tmp_path):
    assert read(tmp_path, script(more=more)).field("objective").value == objective


def test_a_command_has_the_defaults_of_its_script_and_they_are_no_signs(tmp_path):
    (tmp_path / ".git").mkdir()
    options = 'parser.add_argument("--dpo_beta", type=float, default=0.1)'
    read(tmp_path, script(more=options))
    read_of = read(tmp_path, "python train.py --lr 1e-5 --model_name gpt2\n", "scripts/run.sh")
    recipe = read_of.recipe()
    assert (recipe.learning_rate, recipe.batch_size, recipe.sequence_length) == (1e-5, 24, 512)
    assert recipe.objective == "lm"
    assert "the default of train.py" in read_of.field("sequence_length").origin.text
    assert read_of.settings == 2


@pytest.mark.parametrize(
    ("builds", "flags", "peft"),
    [
        ("LoraConfig(r=a.r)", "", "unknown"),
        ("use(LoraConfig(r=a.r))", "--use_lora False", "none"),
        ("print(a.r)", "", "none"),
        ("TrainingArguments(bf16=True)", "--use_lora True --q_lora False --bits 4", "lora"),
    ],
)
def test_adapters_that_a_commands_program_builds_are_unknown(builds, flags, peft, tmp_path):
    (tmp_path / "train.py").write_text(f"a = parse()\n{builds}\n")
    text = "python train.py --learning_rate 1e-5 --model_name_or_path gpt2 --save_steps 9"
    found = read(tmp_path, f"{text} --output_dir o --per_device_train_batch_size 4 {flags}", "a.sh")
    assert ("unknown" if "peft" in found.unknown else found.recipe().peft) == peft
    assert found.recipe().precision == ("bf16" if "bf16" in builds else "fp32")


def test_a_branch_on_an_option_is_the_one_that_its_default_takes(tmp_path):
    text = """
import argparse
from transformers import TrainingArguments, AutoModelForCausalLM
from peft import LoraConfig
parser = argparse.ArgumentParser()
parser.add_argument("--use_lora", action="store_true")
args = parser.parse_args()
model = AutoModelForCausalLM.from_pretrained("gpt2")
if {}args.use_lora:
    config = LoraConfig(r=8)
settings = TrainingArguments(output_dir="o", learning_rate=1e-4)
"""
    assert read(tmp_path, text.replace("{}", "")).field("peft").value == "none"
    assert read(tmp_path, text.replace("{}", "not ")).field("peft").value == "lora"


def test_a_command_of_hydra_is_composed_with_the_groups_that_it_chooses(tmp_path):
    (tmp_path / ".git").mkdir()
    read_text = {
        "main.py": "@hydra.main(config_path='conf', config_name='base')\ndef f(): 0\n",
        "conf/base.yaml": "defaults: [{model: tiny}]\noptim: {lr: 1e-3}\ntrainer: {max_steps: 90}\n"
        "loader: {global_batch_size: 64}\n",
        "conf/model/tiny.yaml": "model_type: llama\nhidden_size: 64\nnum_hidden_layers: 2\n",
        "conf/model/big.yaml": "model_type: llama\nhidden_size: 512\nnum_hidden_layers: 8\n"
        "length: 8\n",
    }
    for name, text in read_text.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    command = "python -u -m main model=big model.length=128 optim.lr=2e-4\n"
    read_of = read(tmp_path, command, "scripts/big.sh")
    assert (read_of.field("learning_rate").value, read_of.field("max_steps").value) == (2e-4, 90)
    assert read_of.field("sequence_length").value == 128
    assert read_of.target is not None and read_of.target.overrides["hidden_size"] == 512


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("model: {name: small, type: ddit, hidden_size: 64, n_layers: 2, n_heads: 2}", None),
        ("model: {name: HuggingFaceTB/SmolLM2-135M, num_hidden_layers: 4}", "llama"),
        ("model: {name: HuggingFaceTB/SmolLM2-135M}", "HuggingFaceTB/SmolLM2-135M"),
        ("model: {name: me/new-model-7}\ntokenizer: {name: gpt2}", "me/new-model-7"),
        ("model: {architectures: [BertForMaskedLM], hidden_size: 64, num_hidden_layers: 2}\n"
         "mlm_probability: 0.15", "bert"),
    ],
)  # fmt: skip
def test_a_model_is_what_its_value_can_mean(text, target, tmp_path):
    read_of = read(tmp_path, f"optim: {{lr: 1e-4}}\n{text}\n", "a.yaml")
    assert (read_of.target and read_of.target.name) == target
    assert read_of.names_weights == (target is not None and "/" in target)


def test_a_batch_beside_its_share_is_the_whole_and_rollouts_show_rewards(tmp_path):
    text = "lr: 1e-6\ndata: {batch_size: 256, micro_batch_size: 2}\norchestrator: {algo: x}\n"
    read_of = read(tmp_path, text, "a.yaml")
    assert (read_of.field("batch_size").value, read_of.field("objective").value) == (256, "grpo")


def test_a_batch_in_millions_is_no_number_of_sequences():
    with pytest.raises(InputError, match="sequence"):
        Recipe.parse({"batch_size": "0.5M"})
    assert Recipe.parse({"batch_size": "2k"}).batch_size == 2000


OWN = """
import torch
tokens = load("corpus")
block_size = 128
loader = DataLoader(rows, 48, shuffle=True)
{before}
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
{after}
loss.backward()
"""
TUNED = """
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("gpt2"{loaded})
{before}
settings = TrainingArguments(output_dir="o", learning_rate=1e-4)
"""
CONFIG = """
@dataclass
class Config:
    learning_rate: float = 1e-3
    {field}
config = Config({given})
optimizer = Adam(params, lr=config.learning_rate)
"""


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        (OWN, "learning_rate", 3e-4),
        (OWN, "batch_size", 48),
        (OWN, "schedule", "constant"),  # nothing in it builds one
        (OWN, "max_grad_norm", None),
        (OWN, "weight_decay", 0.01),  # of torch's AdamW
        (OWN, "objective", "lm"),
        (OWN.replace("48, ", "batch_size=size, "), "batch_size", ...),
        (OWN.replace("block_size = 128", ""), "sequence_length", ...),
        (OWN.replace("lr=3e-4", "lr=0"), "learning_rate", ...),
        (OWN.replace("{after}", "for group in g.param_groups: group['lr'] = rate(step)"),
         "learning_rate", ...),
        (OWN.replace("{after}", "optimizer = torch.optim.SGD(p, lr=3e-4)"), "optimizer", ...),
        (OWN.replace("{after}", "replace_linear_with_lora(model)"), "peft", ...),
        (OWN.replace("{after}", "reward = score(teacher)"), "objective", ...),
        (OWN.replace("tokens", "image").replace("corpus", ""), "objective", ...),
        (OWN.replace("{after}", "s = get_scheduler('linear', optimizer)"), "schedule", "linear"),
        (OWN.replace("{after}", "a = Accelerator(mixed_precision='fp16')"), "precision", "fp16"),
        (OWN.replace("{before}", "def unused(): DataLoader(rows, 7)\nif __name__ == '': run()"),
         "batch_size", 48),
        (CONFIG.replace("{given}", ""), "learning_rate", 1e-3),
        (CONFIG.replace("{given}", "learning_rate=5e-4"), "learning_rate", 5e-4),
        (CONFIG.replace("{given}", "**read()"), "learning_rate", ...),
        (TUNED, "peft", "none"),
        (TUNED.replace("{before}", "model = wrap(model, reft)"), "peft", ...),
        (TUNED.replace("{before}", "rows = tokenizer(text, max_length=64)"), "sequence_length", 64),
        (TUNED, "sequence_length", ...),
        (TUNED + "b = TrainingArguments(output_dir='p', learning_rate=2e-4)\n",
         "learning_rate", ...),
    ],
)  # fmt: skip
def test_what_a_script_says_in_a_way_that_is_not_read_is_unknown(text, field, value, tmp_path):
    for name in ("{before}", "{after}", "{loaded}", "{given}", "{field}"):
        text = text.replace(name, "")
    read_of = read(tmp_path, text)
    assert (field in read_of.unknown) == (value is ...)
    if value is not ...:
        assert read_of.field(field).value == value


MODULE = """
MODEL_NAME = "microsoft/phi-2"
LEARNING_RATE = 2e-5
REPO = "phi2-{kind}"
{more}
"""


@pytest.mark.parametrize(
    ("kind", "more", "unknown"),
    [
        ("sft", "", {"peft"}),  # the script that trains may add adapters
        ("sft", "LORA_R = 8", set()),
        ("grpo", "LORA_R = 8", {"objective"}),
        ("sft", "class Lora:\n    lora_r: int = 8\nclass All:\n    lora: Lora | None = None",
         {"peft"}),  # a section that a run has only if somebody asks
    ],
)  # fmt: skip
def test_a_module_of_settings_leaves_to_its_script_what_it_does_not_say(
    kind, more, unknown, tmp_path
):
    text = MODULE.replace("{kind}", kind).replace("{more}", more)
    assert read(tmp_path, text, "config.py").unknown.keys() == unknown


def test_names_are_followed_into_the_modules_of_a_repository(tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / "conf").mkdir()
    module = "class Settings:\n    lr = 7e-4\nsettings = Settings()\n"
    (tmp_path / "conf/base.py").write_text(module, encoding="utf-8")
    text = "from conf.base import settings\no = AdamW(model.parameters(), lr=settings.lr)\n"
    assert read(tmp_path, text, "scripts/train.py").field("learning_rate").value == 7e-4
