"""Ways in which strangers write run files: what is set again is not read as what it was before."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rksp.ground.budgets import reading
from rksp.ground.errors import InputError
from rksp.recipe_files.parse.shell import read_shell
from rksp.recipe_files.parse.values import Unresolved
from rksp.recipe_files.registry import read_recipe_file
from rksp.recipe_files.said.origin import RecipeFile

LOAD = 'model = AutoModelForCausalLM.from_pretrained("gpt2")\n'
RATE = "TrainingArguments('out', learning_rate=lr, per_device_train_batch_size=4, max_steps=9)\n"


def read(folder: Path, text: str, name: str = "train.py") -> RecipeFile:
    (folder / name).write_text(text, "utf-8")
    return read_recipe_file(folder / name)


@pytest.mark.parametrize(
    ("start", "rate"),
    [
        ("lr = 1e-4\nlr *= 2\n", 2e-4),
        ("lr = 1e-4\nlr *= world_size\n", None),
        ("lr = 1e-4\nlr = lr * world_size\n", None),
        ("lr = 1e-4\nif big:\n    lr *= 2\n", None),
        ("lr = 1e-4\nfor lr in (1e-5, 1e-6):\n    pass\n", None),
        ("lr, batch = 1e-4, 8\n", 1e-4),
        ("lr: float = 1e-4\n", 1e-4),
        ('lr = float(os.environ.get("LR", "3e-4"))\n', 3e-4),
        ('lr = 1e-4 * int(os.environ.get("WORLD_SIZE", 1))\n', None),
        ("class Other:\n    lr = 1e-4\n", None),
        ("class C:\n    rate = 1e-4\nc = C()\nc.rate = 3e-4\nlr = c.rate\n", None),
        ('c = {"lr": 1e-4}\nlr = c["lr"]\n', 1e-4),
        ('c = {"lr": 1e-4}\nc["lr"] = 2e-4\nlr = c.get("lr")\n', 2e-4),
        ('c = {"lr": 1e-4}\nif big:\n    c["lr"] = 2e-4\nlr = c["lr"]\n', None),
        ('c = {"lr": 1e-4}\nc.update(other)\nlr = c["lr"]\n', None),
    ],
)
def test_a_rate_is_what_a_script_makes_of_it_or_unknown(start, rate, tmp_path):
    assert read(tmp_path, start + LOAD + RATE).recipe().learning_rate == rate


@pytest.mark.parametrize(
    ("call", "rate"),
    [
        ("build(3e-4)", 3e-4),
        ("build(lr=3e-4)", 3e-4),
        ("build()", 1e-4),
        ("build(**more)", None),
        ("build(3e-4), build(1e-3)", None),
        ("fire.Fire(build)", 1e-4),
        ("pass", None),
    ],
)
def test_an_argument_is_what_the_only_call_gives(call, rate, tmp_path):
    text = f"lr = 7.0\n{LOAD}def build(lr=1e-4):\n    return {RATE}{call}\n"
    assert read(tmp_path, text).recipe().learning_rate == rate


def test_arguments_count_with_what_is_set_in_them_later(tmp_path):
    start = f"def fit():\n    a = TrainingArguments('out', learning_rate=1e-3)\n    {LOAD}"
    recipe = read(tmp_path, f"{start}    a.learning_rate = 1e-4\n    a.max_steps = n\n").recipe()
    assert recipe.learning_rate == 1e-4
    again = f"{start}    if x:\n        a.learning_rate = 1e-4\n"
    assert read(tmp_path, again).recipe().learning_rate is None


def test_poured_settings_are_read_and_unknown_ones_hide_the_defaults(tmp_path):
    text = "common = dict(learning_rate=3e-4, max_steps=50)\nTrainingArguments(**common)\n"
    recipe = read(tmp_path, text).recipe()
    assert (recipe.learning_rate, recipe.max_steps) == (3e-4, 50)
    found = read(tmp_path, 'TrainingArguments("out", **settings())\n')
    assert found.field("learning_rate").origin.kind == "unknown"
    assert found.recipe().learning_rate is None


def test_switches_texts_and_classes_of_a_command_line(tmp_path):
    text = (
        'p.add_argument("--no-fp16", dest="fp16", action="store_false")\n'
        'p.add_argument("--lr", type=float, default="2e-4")\nargs = p.parse_args()\n'
        "TrainingArguments(fp16=args.fp16, learning_rate=args.lr)\n"
    )
    recipe = read(tmp_path, text).recipe()
    assert (recipe.precision, recipe.learning_rate) == ("fp16", 2e-4)
    text = (
        "@dataclass\nclass Arguments(transformers.TrainingArguments):\n"
        "    learning_rate: float = field(default=4e-4)\n"
        "args, = HfArgumentParser(Arguments).parse_args_into_dataclasses()\n"
    )
    assert read(tmp_path, text).recipe().learning_rate == 4e-4


def test_modules_beside_a_script_are_read_and_not_run(tmp_path):
    (tmp_path / "settings.py").write_text("lr = 3e-4\nraise SystemExit\n")
    for line, rate in (("from settings import *", 3e-4), ("from settings import lr", 3e-4),
                       ("import settings as s\nlr = s.lr", 3e-4), ("from other import lr", None),
                       ("from settings import lr\nlr *= n", None)):  # fmt: skip
        assert read(tmp_path, f"{line}\n{RATE}").recipe().learning_rate == rate


def test_nanogpts_settings_that_a_branch_sets_again_are_unknown(tmp_path):
    text = (
        "max_iters = 100\nmax_iters *= 2\nlearning_rate = 6e-4\nmin_lr = 6e-5\nbatch_size = 2\n"
        "gradient_accumulation_steps = 40\nif ddp:\n    gradient_accumulation_steps //= world\n"
    )
    recipe = read(tmp_path, text).recipe()
    assert (recipe.max_steps, recipe.batch_size, recipe.min_lr_ratio) == (200, 80, 0.1)
    found = read(tmp_path, f"{text}    learning_rate *= world\n")
    assert found.recipe().learning_rate is None
    assert found.field("min_lr_ratio").origin.kind == "assumed"


AXOLOTL = "base_model: gpt2\nmicro_batch_size: 2\nlearning_rate: {}\nmax_steps: 100\n"


@pytest.mark.parametrize(
    "command", ["cat <<EOF > a/run.yaml", "tee run.yaml <<-EOF", "cat >b <<EOF"]
)
def test_a_file_that_the_script_writes_is_the_run_file(command, tmp_path):
    text = f"LR=${{LR:-3e-4}}\nmkdir -p a\n{command}\n{AXOLOTL.format('$LR')}EOF\n"
    start = "accelerate launch --num_processes 2 -m axolotl.cli.train run.yaml\n"
    if "run.yaml" not in command:
        with pytest.raises(InputError, match=r"run\.yaml"):
            read(tmp_path, text + start, "job.sh")
        return
    found = read(tmp_path, text + start, "job.sh")
    rate = found.field("learning_rate")
    assert (rate.value, rate.origin.line, found.recipe().batch_size) == (3e-4, 6, 4)
    unknown = text.replace("LR=${LR:-3e-4}", "")
    assert read(tmp_path, unknown + start, "job.sh").recipe().learning_rate is None


def test_other_documents_of_a_shell(tmp_path):
    train = "torchrun train.py --model_name_or_path gpt2 --learning_rate $LR --max_steps 7 --bf16\n"
    for start in ("sbatch <<EOF", "cat > job.sh <<EOF", "ssh host bash -s <<EOF"):
        text = f"LR=3e-4\n{start}\n{train}EOF\n"
        assert read(tmp_path, text, "job.sh").recipe().learning_rate == 3e-4
    text = f"python - <<'PY'\nlr = 3e-4\n{LOAD}{RATE}PY\n"
    found = read(tmp_path, text, "job.sh")
    assert (found.recipe().learning_rate, found.field("learning_rate").origin.line) == (3e-4, 4)
    deepspeed = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.95]}}}
    text = f"cat > ds.json <<X\n{json.dumps(deepspeed)}\nX\n{train.strip()} --deepspeed ds.json\n"
    recipe = read(tmp_path, text, "job.sh").recipe()
    assert (recipe.learning_rate, recipe.adam_beta2) == (1e-3, 0.95)


def test_what_a_shell_sets_on_a_test_or_in_a_function_is_unknown():
    text = (
        'A=1\nB=2\nexport C=3 && export D=4\n[ -n "$X" ] && A=5\n[[ $Y ]] || B=6\n'
        "f() {\n  local E=${1:-7}\n  python x.py --e $E --f ${1:-8}\n}\n"
        "python train.py --a $A --b $B --c $C --d ${D} --g ${1:-9} --h $'it\\'s' --i 5 $@\n"
    )
    data = read_shell(text).data
    assert isinstance(data["a"], Unresolved) and isinstance(data["b"], Unresolved)
    assert [data[name] for name in "cdghi"] == [3, 4, 9, "it's", 5]
    inner = read_shell(text.rsplit("python", 1)[0]).data
    assert isinstance(inner["e"], Unresolved) and isinstance(inner["f"], Unresolved)


def test_a_default_does_not_stand_in_for_a_setting_from_elsewhere(tmp_path):
    text = "swift sft --model gpt2 --learning_rate 1e-4 --train_type full --max_steps 9"
    more = " --gradient_accumulation_steps $(( $A / 2 ))"
    assert read(tmp_path, text, "a.sh").recipe().gradient_accumulation_steps == 16
    assert read(tmp_path, text + more, "a.sh").field("batch_size").origin.assumes == ("batch_size",)
    rollout = "python3 -m verl.trainer.main_ppo trainer.total_training_steps=9"
    assert read(tmp_path, rollout, "a.sh").recipe().max_steps == 36
    found = read(tmp_path, f"{rollout} data.train_batch_size=$B", "a.sh")
    assert found.field("max_steps").origin.kind == "unknown"
    auto = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": "auto"}},
            "zero_optimization": {"stage": 2}}  # fmt: skip
    found = read(tmp_path, json.dumps(auto), "ds.json")
    assert found.field("adam_beta2").origin.kind == "assumed"


def test_a_file_that_is_missing_is_said(tmp_path):
    with pytest.raises(InputError, match=r"lost\.yaml"):
        read(tmp_path, "llamafactory-cli train lost.yaml\n", "a.sh")
    found = read(tmp_path, "trl sft --config lost.yaml --learning_rate 1e-4\n", "a.sh")
    assert any("lost.yaml" in note for note in found.notes)
    (tmp_path / "lost.yaml").write_text("stage: sft\ntemplate: x\nlearning_rate: 3e-4\n")
    found = read(tmp_path, "llamafactory-cli train lost.yaml max_steps=5\n", "a.sh")
    assert (found.recipe().learning_rate, found.recipe().max_steps) == (3e-4, 5)


def test_adapters_of_visual_models_and_nanogpts_command_line(tmp_path):
    text = "python train.py --learning_rate 1e-4 --output_dir o --bf16 True --lora_r 128"
    assert read(tmp_path, f"{text} --lora_enable True", "a.sh").recipe().lora_rank == 128
    assert read(tmp_path, text, "a.sh").recipe().peft == "none"
    alone = read(tmp_path, text.replace("train.py", "train_lora.py"), "a.sh").recipe()
    assert (alone.peft, alone.lora_rank) == ("lora", 128)
    text = "python train.py config/gpt2.py --learning_rate=1e-3 --batch_size=64 --max_iters=20"
    found = read(tmp_path, f"{text} --gradient_accumulation_steps=1", "a.sh")
    assert found.trainer.startswith("nanoGPT") and found.recipe().batch_size == 64


def test_notebooks_of_commands_makefiles_and_dockerfiles(tmp_path):
    words = "train.py --learning_rate {} --output_dir o --bf16 True --max_steps 9"
    cells = ["%%writefile x.yaml\na: 1\n", f"!python {words.format('3e-4')} \\\n  --save_steps 2",
             "y = !ls\n?help", "if y:\n    !ls"]  # fmt: skip
    book = {"cells": [{"cell_type": "code", "source": cell} for cell in cells]}
    found = read(tmp_path, json.dumps(book), "a.ipynb")
    assert found.field("learning_rate").value == 3e-4
    assert found.field("learning_rate").origin.line is None
    lines = f"LR ?= 3e-4\ntrain: data\n\t@python {words.format('$(LR)')} \\\n\t  --save_steps 2\n"
    assert read(tmp_path, lines, "Makefile").recipe().learning_rate == 3e-4
    image = f"FROM x\nENV LR=1\nCMD {json.dumps(['python', *words.format('3e-4').split()])}\n"
    assert read(tmp_path, image, "Dockerfile").recipe().learning_rate == 3e-4
    assert read(tmp_path, f"#!/bin/bash\npython {words.format('3e-4')}\n", "run").recipe().max_steps
    with pytest.raises(InputError, match="format"):
        read(tmp_path, f"python {words.format('3e-4')}\n", "run")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Makefile", f"a={' ' * 10**6}\\"),
        ("Dockerfile", f"CMD {'[' * 10**6}"),
        ("a.sh", "read A <<B\n" * 20_000),
        ("a.ipynb", {"cell_type": "code", "source": "%%bash\n" + "a=b " * 250_000}),
        ("many.py", "".join(f"a.x{i} = 1\n" for i in range(900)) + f"a = {RATE}" * 2000),
        ("aliases.py", f"c = {dict.fromkeys(map(str, range(900)), 1)}\n"
         + "".join(f"d{i} = c\nd{i}.update(e)\n" for i in range(900)) + RATE),
        ("fields.py", "class C:\n" + "".join(f"  x{i} = 1\n" for i in range(900))
         + "".join(f"d{i} = C()\nd{i}.update(e)\n" for i in range(900)) + RATE),
    ],
)  # fmt: skip
def test_a_file_whose_reading_would_grow_with_its_square_is_refused(name, text, tmp_path):
    text = text if isinstance(text, str) else json.dumps({"cells": [text]})
    with reading(name, 15.0), pytest.raises(InputError, match=r"holds more than|does not hold"):
        read(tmp_path, text, name)


def test_names_that_are_too_long_and_pipes_are_no_files(tmp_path):
    text = f"from {'a' * 300} import *\n{RATE.replace('=lr', '=1e-4')}"
    assert read(tmp_path, text).recipe().learning_rate == 1e-4
    command = "torchrun train.py --model_name_or_path gpt2 --learning_rate 1e-4 --max_steps 7"
    found = read(tmp_path, f"{command} --bf16 --deepspeed {'a' * 300}.json\n", "a.sh")
    assert any("not found" in note for note in found.notes)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="format"):
        read_recipe_file(tmp_path / "pipe")


RUN = (
    "python train.py --model_name_or_path gpt2 --learning_rate {} --max_steps 9 --output_dir o {}\n"
)


@pytest.mark.parametrize(
    ("script", "rate"),
    [
        ('M=${{1:-a}}\nif [ "$M" = a ]; then LR=1e-4; else LR=2e-4; fi\n{run}', 1e-4),
        ("M=b\nif [[ $M == a* ]]; then LR=1\nelif [ ! 2 -gt 3 ]; then LR=3e-4\nfi\n{run}", 3e-4),
        ("M=b\ncase $M in\n  a|c) LR=1e-4;;\n  b) LR=2e-4;;\n  *) LR=3e-4;;\nesac\n{run}", 2e-4),
        ("case $HOSTNAME in\n  a) LR=1e-4;;\n  *) LR=3e-4;;\nesac\n{run}", None),
        ('LR=1e-4\nif [ "$HOSTNAME" = a ]; then LR=2e-4; fi\n{run}', None),
        ("LR=1e-4\nN=1\nwhile a; do\nif [ $N = 0 ]; then LR=2e-4; fi; N=0; done\n{run}", None),
        ('[ -f x ] || {{ echo "no x"; exit 1; }}\nLR=1e-4\n{run}', 1e-4),
        ("LR=1e-4\n[[ -n $LR ]] || LR=2e-4\n{run}", 1e-4),
        (": ${{LR:=4e-4}}\n{run}", 4e-4),
        ("exec > >(tee -a log) 2>&1\nLR=1e-4\n{run}", 1e-4),
        ("for LR in 1e-4; do\n{run}done\n", 1e-4),
        ("for LR in 1e-4 2e-4; do\n{run}done\n", None),
        ("LR=1e-4\n{run}\n    --learning_rate 2e-4 \\\n    --max_steps 7\n", 1e-4),
        ("LR=1e-4\n{run}python evaluate.py --learning_rate 2e-4 --max_steps 7\n", 1e-4),
        ('LR=${{12:-"1e-4"}}\n{run}', 1e-4),
    ],
)  # fmt: skip
def test_a_shell_decides_its_branches_where_they_can_be_known(script, rate, tmp_path):
    text = script.format(run=RUN.format("$LR", ""))
    assert read(tmp_path, text, "run.sh").recipe().learning_rate == rate


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ("--pre_seq_len 16", "peft"),
        ("--medusa_num_heads 4", "peft"),
        ("--lora_r 8", "peft"),
        ("--nolora False", "peft"),
        ("--vision_lora False", ""),
        ("--q_lora_rank 512", ""),
        ("--config gone.yaml", "peft"),
        ("", ""),
    ],
)
def test_parts_beside_stored_weights_leave_open_what_is_trained(more, field, tmp_path):
    unknown = read(tmp_path, RUN.format("1e-4", more), "run.sh").unknown
    assert field in unknown if field else not unknown


def test_a_batch_of_one_device_or_of_all_is_unknown(tmp_path):
    launch = (
        "torchrun --nproc_per_node={} run.py --learning_rate 1e-4 --train_batch_size 8 --lr_end 0\n"
    )
    assert "batch_size" in read(tmp_path, launch.format(4), "a.sh").unknown
    assert read(tmp_path, launch.format(1), "b.sh").recipe().batch_size == 8


def test_the_devices_that_deepspeed_includes_share_a_batch(tmp_path):
    text = RUN.format("1e-4", "--per_device_train_batch_size 4")
    launch = "deepspeed --include {} train.py"
    one = read(tmp_path, text.replace("python train.py", launch.format("localhost:0,2,5")), "a.sh")
    assert one.recipe().batch_size == 12
    two = read(tmp_path, text.replace("python train.py", launch.format("a:0,1@b:0,1")), "b.sh")
    assert two.field("batch_size").origin.kind == "assumed"


def test_devices_that_share_a_sequence_share_a_batch(tmp_path):
    text = (
        "NPROC_PER_NODE=8 swift sft --model Qwen/Qwen3-0.6B --learning_rate 1e-5 "
        "--per_device_train_batch_size 2 --gradient_accumulation_steps 4 {}\n"
    )
    assert read(tmp_path, text.format(""), "a.sh").recipe().batch_size == 64
    shared = text.format("--sequence_parallel_size 2")
    assert read(tmp_path, shared, "b.sh").recipe().batch_size == 32


def test_words_of_a_variable_are_split_as_the_shell_splits_them(tmp_path):
    more = "A='\n  actor_rollout_ref.actor.optim.lr=5e-7\n  actor_rollout_ref.rollout.n=5\n'\n"
    command = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo $A trainer.nnodes=1\n"
    found = read(tmp_path, more + command, "run.sh").recipe()
    assert (found.learning_rate, found.generations) == (5e-7, 5)
