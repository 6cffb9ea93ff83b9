"""Shell scripts, Python sources, W&B's logs and DeepSpeed's files as sources of recipes."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from support.places import RUN_CONFIGS as CONFIGS

from rksp.ground.errors import InputError
from rksp.recipe_files.parse.document import load_document
from rksp.recipe_files.parse.python_source import read_python
from rksp.recipe_files.parse.shell import read_shell
from rksp.recipe_files.parse.values import Unresolved, read_number
from rksp.recipe_files.registry import read_recipe_file


def test_variables_arrays_quotes_and_arithmetic():
    command = read_shell(
        'N=8\nM=$((N * 2 + 1))\nA=(--lr 1e-3 # peak\n  --steps "$M")\n'
        'B=" --name x-${N} \\\n --flag"\nA+=(--more 3)\n'
        "torchrun --nproc_per_node=$N a/pretrain_gpt.py ${A[@]} $B --text 'two words' key.a=5 "
        "> log\n"
    )
    assert command.program == "pretrain_gpt.py"
    assert command.data == {
        "lr": 1e-3, "steps": 17, "more": 3, "name": "x-8", "flag": True, "text": "two words",
        "key": {"a": 5},
    }  # fmt: skip
    assert command.launcher == {"nproc_per_node": 8}
    assert (command.lines["lr"], command.lines["steps"], command.lines["flag"]) == (3, 4, 6)


def test_what_a_script_decides_on_a_condition_is_not_known():
    command = read_shell(
        'LR=1\nOPTS="--a 1"\nif [ "$X" = 1 ]; then\n  LR=2\n  OPTS="$OPTS --b 2"\n'
        "else\n  NEW=3\nfi\n"
        "python train.py --lr $LR $OPTS --new $NEW --given $1 --made $(date) --set ${Y:-7}\n"
    )
    assert isinstance(command.data["lr"], Unresolved)
    assert isinstance(command.data["b"], Unresolved)
    assert isinstance(command.data["given"], Unresolved)
    assert isinstance(command.data["made"], Unresolved)
    assert (command.data["a"], command.data["new"], command.data["set"]) == (1, 3, 7)


def test_a_path_below_an_unknown_folder_is_known_by_its_end(tmp_path):
    path = tmp_path / "train.sh"
    for value in ("$ROOT/models/Qwen3-8B", "`pwd -P`/Qwen3-8B", "$(realpath ..)/a/Qwen3-8B",
                  "/hub/models--Qwen--Qwen3-8B/snapshots/5d8e171e5ee60e8c"):  # fmt: skip
        path.write_text(f"M={value}\ndeepspeed --module openrlhf.cli.train_sft --pretrain $M\n")
        target = read_recipe_file(path).target
        assert target is not None and target.name.removeprefix("Qwen/") == "Qwen3-8B"
    path.write_text("deepspeed --module openrlhf.cli.train_sft --pretrain $ROOT/4\n")
    assert read_recipe_file(path).target is None


def test_the_model_of_slime_stands_in_its_checkpoint(tmp_path):
    path = tmp_path / "train.sh"
    path.write_text("python pretrain_gpt.py --hf-checkpoint $M/Qwen3-8B --lr 1e-5 "
                    "--seq-length 64 --decoder-seq-length 512 --global-batch-size 8")  # fmt: skip
    read = read_recipe_file(path, trainer="megatron")
    assert read.target is not None and read.target.name == "Qwen3-8B" and read.names_weights
    assert read.recipe().sequence_length == 512


def test_commands_in_backticks_are_one_word():
    text = (
        "d=`date '+%Y %m'`\ntorchrun train.py --out a/${d}/b --lr 1e-3 --log `hostname`.log --x 2"
    )
    data = read_shell(text).data
    assert (data["lr"], data["x"], list(data)) == (1e-3, 2, ["out", "lr", "log", "x"])


def test_a_script_is_never_run(tmp_path):
    marker = tmp_path / "ran"
    path = tmp_path / "a.sh"
    path.write_text(
        f"touch {marker}\nX=$(touch {marker})\nY=`touch {marker}`\n"
        "python pretrain_gpt.py --num-layers 2 --hidden-size 8 --seq-length 8 --lr $X\n",
        encoding="utf-8",
    )
    read = read_recipe_file(path)
    assert not marker.exists()
    assert read.field("learning_rate").origin.assumes == ("learning_rate",)


@pytest.mark.parametrize(
    "text",
    [
        "A0=x\n" + "".join(f"A{i + 1}=$A{i}$A{i}$A{i}$A{i}\n" for i in range(40)),
        "A=(" + "$A " * 50 + ")\n" * 50,
        "X=$((9**9**9))\na.py --x $X",
        "X=$((" + "(" * 500 + "1" + ")" * 500 + "))\na.py --x $X",
        "'unclosed\na.py --x 1",
        "${${${",
        "a.py --x ${",
        "\\",
        "x" * 300_000,
        "a=" + "'x'" * 10_000,
        "A=" + "x" * 500_000 + "\n" + "echo $A $A\n" * 500,
        "$((" * 50_000,
        "if for case esac fi done }",
    ],
)  # fmt: skip
def test_hostile_scripts_end(text):
    assert isinstance(read_shell(text).data, dict)


def test_a_script_without_a_trainer_is_named_so(tmp_path):
    path = tmp_path / "x.sh"
    path.write_text("echo hello\nls -la\n", encoding="utf-8")
    with pytest.raises(InputError, match="does not hold a command of a trainer"):
        read_recipe_file(path)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("1.0e_8", None), ("1.0e-8", 1e-8), ("1_000", 1000), (".5", 0.5), ("3.", 3.0)),
        *(("nan", None), ("9" * 5000, float("inf"))),
    ],
)
def test_numbers_are_those_of_yaml(text, value):
    assert read_number(text) == value


def test_a_misspelt_number_is_refused(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("learning_rate: 1.0e_8\nnum_train_epochs: 1\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"a\.yaml:1: learning_rate is '1\.0e_8', not a number"):
        read_recipe_file(path)


def test_a_registry_holds_several_and_one_is_chosen(tmp_path):
    path = CONFIGS / "torchtitan" / "llama3.py"
    with pytest.raises(InputError, match=r"llama3\.py::NAME"):
        read_recipe_file(path)
    with pytest.raises(InputError, match=r"did you mean.*llama3_8b"):
        read_recipe_file(Path(f"{path}::llama3_8"))
    read = read_recipe_file(Path(f"{path}::llama3_8b_mxfp8"))  # built from llama3_8b()
    assert read.recipe().learning_rate == 3e-4
    assert "lr=3e-4" in path.read_text().splitlines()[read.field("learning_rate").origin.line - 1]
    assert read.target.name == "llama"


def test_processes_stand_in_variables_of_swift(tmp_path):
    path = tmp_path / "a.sh"
    text = "NPROC_PER_NODE=4 swift sft --model gpt2 --learning_rate 1e-4 --train_type full "
    path.write_text(f"export NNODES=2\n{text}--per_device_train_batch_size 3\n", encoding="utf-8")
    assert read_recipe_file(path).recipe().batch_size == 24
    path.write_text("NPROC_PER_NODE=4 python run_clm.py --learning_rate 1e-4 --bf16 --do_train\n")
    assert "devices" in read_recipe_file(path).field("batch_size").origin.assumes


def test_python_is_not_run_and_powers_are_bounded():
    text = "a = 2**10\nb = 9**9**9\nc = open('x', 'w')\nclass H:\n    d: int = 3 * 4\n"
    data, _ = read_python(ast.parse(text))
    assert data["a"] == 1024
    assert isinstance(data["b"], Unresolved)
    assert isinstance(data["c"], Unresolved)
    assert data["H"] == {"d": 12}


def test_wandb_logs_are_unwrapped_with_their_lines():
    path = CONFIGS / "restated" / "wandb" / "bert_emotion_lora.yaml"
    read = read_recipe_file(path)
    line = path.read_text().splitlines()[read.field("learning_rate").origin.line - 1]
    assert line == "learning_rate:"
    assert "Read from the configuration that W&B logged." in read.notes
    assert read.field("sequence_length").origin.kind == "assumed"  # max_length is generation's


def arguments(tmp_path: Path, deepspeed: object) -> Path:
    settings = {
        "learning_rate": 1e-5, "lr_scheduler_type": "cosine", "per_device_train_batch_size": 4,
        "max_grad_norm": 1.0, "max_steps": 500, "bf16": True, "torch_dtype": "bfloat16",
        "deepspeed": deepspeed,
    }  # fmt: skip
    path = tmp_path / "args.json"
    path.write_text(json.dumps(settings), encoding="utf-8")
    return path


DEEPSPEED = {
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-5, "betas": [0.9, 0.95], "eps": "auto"}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 20}},
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
}


@pytest.mark.parametrize("inline", [True, False])
def test_a_deepspeed_file_decides_what_it_states(tmp_path, inline):
    (tmp_path / "ds.json").write_text(json.dumps(DEEPSPEED), encoding="utf-8")
    read = read_recipe_file(arguments(tmp_path, DEEPSPEED if inline else "ds.json"))
    recipe = read.recipe()
    assert (recipe.learning_rate, recipe.adam_beta2, recipe.schedule) == (3e-5, 0.95, "constant")
    assert (recipe.warmup_steps, recipe.max_grad_norm, recipe.adam_epsilon) == (20, 1.0, 1e-8)
    assert recipe.precision == "bf16"  # DeepSpeed keeps a float32 copy
    home = "args.json" if inline else "ds.json"
    assert read.field("learning_rate").origin.file.endswith(home)


@pytest.mark.parametrize("name", ["missing.json", "../ds.json", "/etc/ds.json", "zero3"])
def test_a_deepspeed_file_elsewhere_is_said(tmp_path, name):
    read = read_recipe_file(arguments(tmp_path, name))
    assert read.recipe().learning_rate == 1e-5
    assert any("DeepSpeed" in note or "deepspeed" in note for note in read.notes)


def test_references_beside_a_key_are_omegaconfs():
    document = load_document(CONFIGS / "restated" / "nemo" / "megatron_gpt_config.yaml")
    assert document.find("model.max_position_embeddings").value == 512
    found = document.find("exp_manager.checkpoint_callback_params.model_parallel_size")
    assert isinstance(found.value, Unresolved)
