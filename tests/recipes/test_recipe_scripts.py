"""Scripts around Hugging Face's trainers are read by their calls, and never run."""

from __future__ import annotations

import ast
import io
import json
import time
from pathlib import Path

import pytest

from rksp.ground.errors import InputError
from rksp.recipe_files.parse.python_script import Script
from rksp.recipe_files.parse.python_source import read_python
from rksp.recipe_files.parse.values import Unresolved
from rksp.recipe_files.registry import read_recipe_file
from rksp.recipe_files.said.origin import RecipeFile

UNSLOTH = """
from unsloth import FastLanguageModel, is_bfloat16_supported
max_seq_length = 2048
raise SystemExit("this must not run")
model, tokenizer = FastLanguageModel.from_pretrained(
    model_name = "unsloth/Llama-3.2-1B", max_seq_length = max_seq_length)
model = FastLanguageModel.get_peft_model(
    model, r = 16, target_modules = ["q_proj", "v_proj"], lora_alpha = 32)
trainer = SFTTrainer(model = model, args = TrainingArguments(
    per_device_train_batch_size = 2, gradient_accumulation_steps = 4, warmup_steps = 5,
    max_steps = 60, learning_rate = 2e-4, fp16 = not is_bfloat16_supported(),
    bf16 = is_bfloat16_supported(), optim = "adamw_8bit"))
"""
CLASSIFIER = """
def main():
    rank = 4
    model = AutoModelForSequenceClassification.from_pretrained("bert-base-cased", num_labels=2)
    tokenizer = AutoTokenizer.from_pretrained("another")
    model = get_peft_model(model, LoraConfig(task_type="SEQ_CLS", r=rank, use_rslora=True))
    TrainingArguments(learning_rate=args.lr, per_device_train_batch_size=2 * 8, max_steps=100)
"""


def read(folder: Path, text: str) -> RecipeFile:
    path = folder / "train.py"
    path.write_text(text, "utf-8")
    return read_recipe_file(path)


def test_a_script_of_unsloth(tmp_path):
    found = read(tmp_path, UNSLOTH)
    recipe = found.recipe()
    assert (recipe.learning_rate, recipe.warmup_steps, recipe.max_steps) == (2e-4, 5, 60)
    assert (recipe.batch_size, recipe.sequence_length, recipe.precision) == (8, 2048, "bf16")
    assert (recipe.peft, recipe.lora_rank, recipe.lora_alpha) == ("qlora", 16, 32)
    assert recipe.lora_targets == ("q_proj", "v_proj")
    assert found.target.name == "unsloth/Llama-3.2-1B" and found.names_weights
    assert found.field("learning_rate").origin.line == 11


def test_the_task_of_adapters_is_a_word_or_a_member(tmp_path):
    text = CLASSIFIER.replace("AutoModelForSequenceClassification", "AutoModel")
    for task, objective in (("'SEQ_CLS'", "classification"), ("TaskType.SEQ_CLS", "classification"),
                            ("TaskType.CAUSAL_LM", "lm")):  # fmt: skip
        found = read(tmp_path, text.replace('"SEQ_CLS"', task))
        assert found.recipe().objective == objective


def test_what_a_script_computes_elsewhere_is_assumed(tmp_path):
    found = read(tmp_path, CLASSIFIER)
    recipe = found.recipe()
    assert recipe.learning_rate is None
    assert found.field("learning_rate").origin.kind == "unknown"
    assert (recipe.batch_size, recipe.objective) == (16, "classification")
    assert (recipe.peft, recipe.lora_rank, recipe.lora_alpha) == ("rslora", 4, 8)
    assert found.target.name == "bert-base-cased"


@pytest.mark.parametrize(
    ("call", "trainer", "objective", "rate"),
    [
        ("trl.DPOConfig()", "TRL", "dpo", 1e-6),
        ("SFTConfig(max_length=512)", "TRL", "lm", 2e-5),
        ("GRPOConfig(learning_rate=3e-6)", "TRL", "grpo", 3e-6),
        ("Seq2SeqTrainingArguments()", "Hugging Face", "seq2seq", 5e-5),
        ("SentenceTransformerTrainingArguments()", "Hugging Face", "lm", 5e-5),
    ],
)
def test_the_class_of_the_arguments_names_the_trainer(call, trainer, objective, rate, tmp_path):
    found = read(tmp_path, f"args = {call}\n")
    assert found.trainer.startswith(trainer)
    assert (found.recipe().objective, found.recipe().learning_rate) == (objective, rate)


ARGPARSE = """
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("-m", "--base-model", default="gpt2")
    parser.add_argument("-lr", type=float, default=2e-4)
    parser.add_argument("--steps", dest="max_steps", type=int, default=70)
    parser.add_argument("--warmup", type=int, required=True)
    parser.add_argument("--fp16", action="store_true")
    parser.add_argument("--limit", type=int)
    opts = parser.parse_args()
"""
FIELDS = """
@dataclass
class Options:
    base_model: str = field(default="gpt2", metadata={"help": "the model"})
    lr: float = 2e-4
    max_steps: int = 70
    fp16: bool = False
    limit: Optional[int] = None
    warmup: int = field(default_factory=lambda: 5)
"""
HF_PARSER = (
    f"{FIELDS}def main():\n    opts, *_ = HfArgumentParser(Options).parse_args_into_dataclasses()\n"
)
USE = """
    model = AutoModelForCausalLM.from_pretrained(opts.base_model)
    TrainingArguments(learning_rate=opts.lr / 2, max_steps=opts.max_steps, warmup_steps=opts.warmup,
        per_device_train_batch_size=4 if opts.max_steps >= 70 else 2, fp16=opts.fp16,
        bf16=not opts.fp16, num_train_epochs=opts.limit, seed=opts.seed)
"""


@pytest.mark.parametrize(
    "start", [ARGPARSE, HF_PARSER, f"{FIELDS}def main():\n    opts = Options()\n"]
)
def test_settings_that_an_object_holds_count_with_their_defaults(start, tmp_path):
    found = read(tmp_path, start + USE)
    recipe = found.recipe()
    assert found.target.name == "gpt2"
    assert (recipe.learning_rate, recipe.max_steps, recipe.precision) == (1e-4, 70, "bf16")
    assert recipe.batch_size == 4
    assert found.field("warmup_steps").origin.kind == "assumed"  # it has no default
    assert any("opts.warmup" in one.value for one in found.unread)


def test_a_name_counts_with_what_it_was_assigned_last_before_the_call(tmp_path):
    load = "model = AutoModelForCausalLM.from_pretrained(path)\n"
    text = f"path = 'gpt2'\nlr = 1e-4\nlr = 2 * lr\n{load}TrainingArguments(learning_rate=lr)\n"
    found = read(tmp_path, f"{text}lr = 5\npath = 'out'\n{load}")
    assert (found.target.name, found.recipe().learning_rate) == ("gpt2", 2e-4)
    unsure = read(tmp_path, f"if big:\n    lr = 1e-3\n{text}")  # also assigned on a condition
    assert unsure.field("learning_rate").origin.kind == "unknown"


@pytest.mark.parametrize(
    ("condition", "precision"),
    [
        ("torch.cuda.is_available() and torch.cuda.is_bf16_supported()", "bf16"),
        ("torch.cuda.is_available() and not torch.cuda.is_bf16_supported()", "fp32"),
        ("pick_device() == 'cuda'", "bf16"),
        ("('cuda' if torch.cuda.is_available() else 'cpu') == 'cpu'", "fp32"),
        ("torch.backends.mps.is_available()", "fp32"),
    ],
)
def test_questions_about_the_device_are_answered_for_a_gpu(condition, precision, tmp_path):
    recipe = read(tmp_path, f"TrainingArguments(bf16={condition})\n").recipe()
    assert recipe.precision == precision


def test_other_arguments_of_a_script_are_named(tmp_path):
    notes = read(tmp_path, "a = TrainingArguments()\nb = TrainingArguments()\n").notes
    assert any("of line 1, the first of 2" in note for note in notes)


def test_a_notebook_is_the_script_of_its_cells(tmp_path):
    code = UNSLOTH.replace('raise SystemExit("this must not run")', "%pip install unsloth")
    cells = [{"cell_type": "markdown", "source": ["# a = TrainingArguments("]}]
    cells += [{"cell_type": "code", "source": [f"{x}\n" for x in code.splitlines()]}]
    path = tmp_path / "train.ipynb"
    path.write_text(json.dumps({"cells": cells, "nbformat": 4, "metadata": {}}), "utf-8")
    found = read_recipe_file(path)
    assert found.recipe().learning_rate == 2e-4 and found.recipe().peft == "qlora"
    assert found.field("learning_rate").origin.line is None


def test_a_loop_of_ones_own_is_read_by_name(tmp_path):
    found = read(tmp_path, "opt = torch.optim.AdamW(model.parameters(), lr=3e-4)\n")
    assert (found.reader, found.target) == ("by name", None)
    assert (found.recipe().optimizer, found.recipe().learning_rate) == ("adamw", 3e-4)


def test_names_of_parts_do_not_double_at_every_step():
    lines = ["a0 = [1, 1]", "d0 = {'a': 1}"]
    lines += [f"a{i + 1} = [a{i}, a{i}]\nd{i + 1} = {{'x': d{i}, 'y': d{i}}}" for i in range(60)]
    lines += ["TrainingArguments(learning_rate=a60, lr_scheduler_kwargs=d60, x=round(1, -10**12))"]
    begun = time.process_time()
    tree = ast.parse("\n".join(lines))
    (call,) = Script(tree).of_trainer
    read_python(tree)
    assert time.process_time() - begun < 5
    assert all(isinstance(part, Unresolved) for part in call.given["learning_rate"])


def test_assignments_of_nanogpt_that_share_a_line(tmp_path):
    text = (
        "n_layer, n_head, n_embd = 24, 16, 1024\nmax_iters = lr_decay_iters = 5_000\n"
        "block_size = 64\nwarmup_iters = int(0.01 * max_iters)\n"
    )
    found = read(tmp_path, text)
    shape = found.target.overrides
    assert (shape["n_layer"], shape["n_head"], shape["n_embd"]) == (24, 16, 1024)
    recipe = found.recipe()
    assert (recipe.max_steps, recipe.warmup_steps, recipe.decay_steps) == (5000, 50, None)
    text = text.replace("int(0.01 * max_iters)", "steps()")
    assert read(tmp_path, text).field("warmup_steps").origin.kind == "assumed"


def test_a_command_around_a_run_file_is_read_with_it(tmp_path):
    (tmp_path / "run.yaml").write_text(
        "base_model: gpt2\nmicro_batch_size: 2\nlearning_rate: 1e-4\nmax_steps: 100\n"
    )
    job = tmp_path / "job.slurm"
    job.write_text(
        "#!/bin/bash\n#SBATCH --nodes=2\nsrun accelerate launch --num_processes 16 "
        "-m axolotl.cli.train run.yaml --learning_rate 3e-4\n"
    )
    read = read_recipe_file(job)
    assert read.trainer.startswith("axolotl")
    assert (read.field("max_steps").value, read.field("batch_size").value) == (100, 32)
    rate = read.field("learning_rate")
    assert (rate.value, rate.origin.line) == (3e-4, None)  # it stands in no line of the file
    (tmp_path / "run.yaml").unlink()
    with pytest.raises(InputError, match=r"job\.slurm"):
        read_recipe_file(job)


@pytest.mark.parametrize(
    ("text", "trainer"),
    [
        ("base_model: gpt2\nmicro_batch_size: 2\nlearning_rate: 1e-4\n", "axolotl"),
        ('{"per_device_train_batch_size": 2, "learning_rate": 1e-4}', "Hugging Face"),
        (
            "#!/bin/bash\nswift sft --model gpt2 \\\n  --learning_rate 1e-4 --lora_rank 8\n",
            "ms-swift",
        ),
        ("from trl import SFTConfig\nargs = SFTConfig(learning_rate=1e-4)\n", "TRL"),
        ("python3 -m verl.trainer.main_ppo \\\n actor_rollout_ref.actor.optim.lr=1e-4\n", "verl"),
    ],
)
def test_standard_input_is_read_by_its_syntax(text, trainer, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    read = read_recipe_file(Path("-"))
    assert read.trainer.startswith(trainer) and read.field("learning_rate").value == 1e-4


POST_TRAINING = {
    "a queue before the trainer": (
        "LR=${LR:-5e-7}\npython mason.py --num_nodes 2 --gpus 8 -- source setup.sh \\&\\& python "
        "open_instruct/grpo_fast.py --beta 0.01 --num_samples_per_prompt_rollout 16 \\\n"
        "  --learning_rate $LR --model_name_or_path Qwen/Qwen2.5-7B --lr_scheduler_type constant\n",
        {"objective": "grpo", "learning_rate": 5e-7, "kl_coefficient": 0.01, "generations": 16},
    ),
    "a document of the shell": (
        "read -r -d '' training_commands <<EOF\nopenrlhf.cli.train_dpo --pretrain gpt2 \\\n"
        "  --learning_rate 6e-7 --beta 0.2\nEOF\n"
        'if [[ ${1} != "slurm" ]]; then\n    deepspeed --module $training_commands\nfi\n',
        {"objective": "dpo", "learning_rate": 6e-7, "preference_beta": 0.2, "generations": None},
    ),
    "a default within a default": (
        'HOME_OF=${HOME_OF:-"${HOME}/verl"}\nMODEL=${MODEL:-"${HOME_OF}/models/Qwen2.5-32B"}\n'
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo "
        'actor_rollout_ref.model.path="${MODEL}" actor_rollout_ref.actor.optim.lr=2e-6 '
        "actor_rollout_ref.rollout.n=8 actor_rollout_ref.actor.clip_ratio_low=0.1\n",
        {"objective": "grpo", "learning_rate": 2e-6, "generations": 8, "clip_range": 0.1},
    ),
}


@pytest.mark.parametrize("case", POST_TRAINING)
def test_scripts_of_post_training_are_read_through_their_shells(case, tmp_path):
    text, wanted = POST_TRAINING[case]
    (tmp_path / "run.sh").write_text(text)
    read = read_recipe_file(tmp_path / "run.sh")
    assert {name: getattr(read.recipe(), name) for name in wanted} == wanted
    assert read.target is not None and "elsewhere" not in " ".join(read.notes)
