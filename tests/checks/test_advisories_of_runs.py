"""Advisories of whole runs: people's questions, and the run files at hand with three freezes."""

from __future__ import annotations

import datetime
import json
import statistics

import pytest
from support.commands import left_with
from support.places import RUN_CONFIGS, TESTS

from rksp.checks.advisories import advisories, answer, audit, gpu_facts, model_facts
from rksp.checks.environment import read_environment
from rksp.documents.finding import Level, applied
from rksp.documents.options import MeasureOptions
from rksp.documents.terms import Terms
from rksp.ground.errors import InputError
from rksp.models.resolve import resolve, stored_settings
from rksp.question.question import Question
from rksp.question.run import Run
from rksp.recipe import Recipe
from rksp.recipe_files.registry import read_recipe_file
from rksp.recipe_files.said.edits import RunText
from rksp.recipe_files.said.facts import run_facts

DAY = datetime.date(2026, 11, 24)
FREEZES = TESTS / "checks/freezes"
DPO = """\
model_name_or_path: Qwen/Qwen3-0.6B
dataset_name: trl-lib/ultrafeedback_binarized
max_prompt_length: 512
max_length: 1024
beta: 0.1
learning_rate: 5.0e-7
per_device_train_batch_size: 4
gradient_accumulation_steps: 8
num_train_epochs: 1
bf16: true
output_dir: out/dpo
"""
SFT = """\
model_name_or_path: google/gemma-4-31b
dataset_name: trl-lib/Capybara
dataset_text_field: text
attn_implementation: sdpa
max_length: 2048
learning_rate: 2.0e-5
per_device_train_batch_size: 4
max_steps: 500
bf16: true
output_dir: out/sft
"""
DEEPSPEED = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 8,
    "optimizer": {"type": "Muon", "params": {"lr": 1e-3, "muon_lr": 0.02, "adam_lr": 3e-4}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 100}},
    "zero_optimization": {"stage": 2},
    "bf16": {"enabled": True},
}


def facts_of(file, *, gpu=None, config=None):
    read = read_recipe_file(file)
    if config is None and read.target is not None:
        try:
            stored = stored_settings(read.target.name)[0]
        except InputError:
            stored = None
        config = None if stored is None else {**stored, **read.target.overrides}
    return {**model_facts(config), **gpu_facts(gpu), **run_facts(read)}


def judged(file, freeze, **more):
    environment = read_environment(FREEZES / f"{freeze}.txt")
    return {one.code[-4:]: one for one in audit(environment, facts_of(file, **more), DAY).findings}


@pytest.fixture
def run(tmp_path):
    def write(text, name="run.yaml"):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


ANY = "model_name: gpt2\nlearning_rate: 1e-4\n"


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        (f"{ANY}model:\n  attn_impl: flash\n", "attn_implementation", ("flash_attention_2",)),
        (f"{ANY}model:\n  attn_implementation: sdpa\n", "attn_implementation", ("sdpa",)),
        (f"{ANY}a:\n  attn_impl: sdpa\nb:\n  attn_impl: eager\n", "attn_implementation", None),
        (f"{ANY}train:\n  zero_stage: 2\n", "zero_stage", (2,)),
        (ANY, "zero_stage", None),
        (ANY, "trainer", None),
        (DPO, "trainer", ("trl", "hf_trainer")),
    ],
)
def test_what_any_file_says_once_is_a_fact(run, text, name, values):
    fact = run_facts(read_recipe_file(run(text))).get(name)
    assert (fact and fact.values[:2]) == values


def test_facts_of_trainers_with_loops_of_their_own():
    neox = run_facts(read_recipe_file(RUN_CONFIGS / "pythia/pythia-6.9b.yml", devices=8))
    assert (neox["trainer"].values, neox["zero_stage"].values) == (("gpt-neox",), (1,))
    assert "0068" in judged(RUN_CONFIGS / "pythia/pythia-6.9b.yml", "early_2025")


def test_question_7_dpo_turns_nan_on_torch_2_13(run):
    found = judged(run(DPO), "newest", gpu="NVIDIA H100 80GB HBM3")
    assert found["0036"].level is Level.WARNING and "enable_cudnn_sdp(False)" in found["0036"].fix
    assert "run.yaml:7" in found["0036"].message or "4 rows" in found["0036"].message
    assert "0036" not in judged(run(DPO), "newest", gpu="a100")
    assert "0036" not in judged(run(DPO), "early_2025", gpu="h100")
    eager = DPO + "attn_implementation: eager\n"
    assert "0036" not in judged(run(eager), "newest", gpu="h100")


def test_question_8_gemma_4_turns_nan_under_sdpa(run):
    gemma = {"model_type": "gemma4", "text_config": {"model_type": "gemma4_text"}}
    found = judged(run(SFT), "newest", config=gemma)
    assert found["0015"].level is Level.WARNING and "eager" in found["0015"].fix
    one_row = SFT.replace("batch_size: 4", "batch_size: 1")
    assert "0015" not in judged(run(one_row), "newest", config=gemma)
    assert "0015" not in judged(run(SFT), "late_2024", config=gemma)


def test_question_9_the_loss_is_multiplied_by_the_accumulation(run):
    found = judged(run(DPO), "late_2024")
    assert found["0003"].level is Level.ERROR and "transformers>=4.48.0" in found["0003"].fix
    assert "run.yaml:8" in found["0003"].message
    plain = DPO.replace("gradient_accumulation_steps: 8", "gradient_accumulation_steps: 1")
    assert "0003" not in judged(run(plain), "late_2024")
    assert "0003" not in judged(run(DPO), "newest")


def test_question_11_weights_and_updates_are_kept_in_16_bits(run):
    stored = {"model_type": "qwen3", "dtype": "bfloat16"}
    full = SFT.replace("attn_implementation: sdpa\n", "")
    found = judged(run(full), "newest", config=stored)
    assert found["0012"].level is Level.WARNING and "float32" in found["0012"].fix
    for other in ("dtype: float32", "use_peft: true\nlora_r: 16"):
        assert "0012" not in judged(run(f"{full}{other}\n"), "newest", config=stored)
    assert "0012" not in judged(run(full), "newest", config=stored | {"dtype": "float32"})


def test_question_15_clipping_divides_muons_update(run):
    file = run(json.dumps(DEEPSPEED), "ds.json")
    found = judged(file, "newest")
    assert found["0250"].level is Level.WARNING and "gradient_clipping: 0" in found["0250"].fix
    off = run(json.dumps(DEEPSPEED | {"gradient_clipping": 0}), "ds.json")
    assert "0250" not in judged(off, "newest") and "0076" not in judged(off, "newest")
    on = run(json.dumps(DEEPSPEED | {"gradient_clipping": 1.0}), "ds.json")
    assert "0076" in judged(on, "newest")
    adam = run(json.dumps(DEEPSPEED | {"optimizer": {"type": "AdamW"}}), "ds.json")
    assert judged(adam, "newest").keys().isdisjoint({"0075", "0076", "0078", "0250"})


def _runs():
    for file in sorted(RUN_CONFIGS.rglob("*.*")):
        if file.is_file() and file.parent != RUN_CONFIGS:
            try:
                yield file, facts_of(file)
            except InputError:
                continue


RUNS = dict(_runs())


@pytest.mark.parametrize("freeze", ["newest", "early_2025", "late_2024"])
@pytest.mark.parametrize("gpu", ["h100", "a100", "b200"])
def test_run_files_raise_no_false_alarms(freeze, gpu):
    assert len(RUNS) > 100
    environment, warnings = read_environment(FREEZES / f"{freeze}.txt"), []
    entries = {one.id: one for one in advisories()}
    for file, facts in RUNS.items():
        known = facts | gpu_facts(gpu)
        found = audit(environment, known, DAY).findings
        warnings.append(sum(one.level is not Level.NOTE for one in found))
        for one in found:
            entry = entries[one.code]
            everything = {**environment.facts(), **known}
            assert answer(entry.database_specific.when, everything).holds, (file, one.code)
            assert entry.is_installed(environment), (file, one.code)
            is_error = one.level is Level.ERROR
            assert not is_error or entry.database_specific.range_is_certain, (file, one.code)
    assert statistics.median(warnings) <= 1


def test_settings_that_are_computed_elsewhere_are_not_known(run):
    script = """\
from trl import SFTConfig, SFTTrainer
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("gpt2", attn_implementation=pick())
args = SFTConfig(output_dir="x", learning_rate=1e-5, packing=flag(), use_liger_kernel=True)
SFTTrainer(model=model, args=args).train()
"""
    facts = facts_of(run(script, "train.py"))
    assert facts["use_liger_kernel"].values == (True,)
    assert not {"packing", "attn_implementation", "dtype"} & facts.keys()
    assert facts["use_vllm"].values == (None,)
    loads = facts_of(run(script.replace("pick()", "'sdpa'"), "train.py"))
    assert loads["attn_implementation"].values == ("sdpa",)


def test_unsloth_is_known_by_its_classes(run):
    script = """\
from unsloth import FastLanguageModel
from trl import SFTConfig, SFTTrainer
model, tokenizer = FastLanguageModel.from_pretrained("unsloth/llama-3-8b", load_in_4bit=True)
args = SFTConfig(output_dir="x", learning_rate=1e-5)
SFTTrainer(model=model, args=args).train()
"""
    assert "unsloth" in facts_of(run(script, "train.py"))["trainer"].values
    plain = script.replace("FastLanguageModel", "AutoModelForCausalLM")
    assert "unsloth" not in facts_of(run(plain, "train.py"))["trainer"].values


def test_the_rows_that_a_trainer_puts_on_a_device_by_default_are_padded(run):
    script = """\
from trl import SFTConfig, SFTTrainer
args = SFTConfig(output_dir="x", learning_rate=1e-5, packing=False)
SFTTrainer(model="gpt2", args=args).train()
"""
    facts = facts_of(run(script, "train.py"))
    assert facts["batch_size"].values == (8,) and facts["padding"].values == (True,)
    assert facts["trainer"].values == ("trl", "hf_trainer")
    assert "padding" not in facts_of(run(script.replace("=False", "=True"), "train.py"))


def test_a_deepspeed_file_beside_the_arguments_is_read(run):
    zero = {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
            "gradient_clipping": "auto"}  # fmt: skip
    run(json.dumps(zero), "zero3.json")
    facts = facts_of(run(f"{DPO}deepspeed: zero3.json\nmax_grad_norm: 0.5\n"))
    wanted = {"distributed": "deepspeed", "zero_stage": 3, "offload_optimizer": True,
              "gradient_clipping": 0.5, "overlap_comm": None}  # fmt: skip
    assert {name: facts[name].values[0] for name in wanted} == wanted
    elsewhere = facts_of(run(f"{DPO}deepspeed: not_here.json\n"))
    assert elsewhere["distributed"].values == ("deepspeed",) and "zero_stage" not in elsewhere


def test_a_setting_that_avoids_a_fault_is_an_edit_of_the_run_file(tmp_path):
    file, env = tmp_path / "sft.yaml", tmp_path / "env.txt"
    env.write_text("trl==0.19.9\ntransformers==4.57.0\ntorch==2.7.0\n")
    fault = "assistant_only_loss: true\nuse_liger_kernel: true\n"
    file.write_text(SFT.replace("google/gemma-4-31b", "Qwen/Qwen3-0.6B") + fault)

    def found():
        run = Run.read(str(file), {})
        source = resolve(run.target, overrides=run.overrides, counts=False)
        question, _ = Question.of(run, source, Terms(env=env)).audited()
        report = question.reported([question.evaluated(MeasureOptions(evidence="config"))])
        return {one.code: one for one in report.findings}

    (edit,) = found()["RKSA-2026-0100"].edit
    assert (edit.field, edit.old, edit.new) == ("use_liger_kernel", "true", "false")
    file.write_text(applied(file.read_text(), [edit]))
    assert file.read_text().endswith("use_liger_kernel: false\n")
    assert "RKSA-2026-0100" not in found()


@pytest.mark.parametrize(
    ("text", "new"),
    [
        ("a: 1\npacking: True # why\n", "a: 1\npacking: False # why\n"),
        ('{"packing": true}', '{"packing": false}'),
        ("train.py --packing true --lr 1", "train.py --packing false --lr 1"),
        ("SFTConfig(packing=True)", "SFTConfig(packing=False)"),
        ("# packing: true\n", None),
        ("pre-packing: true\nunpacking: true\npacking_strategy: bfd\n", None),
        ("packing: true\neval:\n  packing: true\n", None),
        ("packing: $PACKING\n", None),
    ],
)
def test_a_key_is_edited_only_where_it_stands_once(text, new):
    run = RunText(path="x.yaml", recipe=Recipe(), origins={}, text=text)
    edit = run.key_edit("packing", False)
    assert (None if edit is None else applied(text, [edit])) == new


@pytest.mark.parametrize(("bar", "code"), [("error", 1), ("never", 0)])
def test_a_known_fault_fails_the_gate_of_a_grid(tmp_path, capsys, bar, code):
    file, env = tmp_path / "dpo.yaml", tmp_path / "env.txt"
    file.write_text(DPO.replace("Qwen/Qwen3-0.6B", "gpt2"))
    env.write_text("trl==0.12.0\ntransformers==4.46.0\ntorch==2.5.0\n")
    grid = ["grid", str(file), "lr=1e-8", "--evidence", "config", "--workers", "1"]
    assert left_with([*grid, "--env", str(env), "--fail-on", bar]) == code
    assert "error RKSA-2026-0002" in capsys.readouterr().err
    env.write_text("trl==0.12.0\ntransformers==4.48.0\ntorch==2.5.0\n")
    assert left_with([*grid, "--env", str(env), "--fail-on", bar]) == 0
    assert "error RKSA" not in capsys.readouterr().err
