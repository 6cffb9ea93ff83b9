"""What is particular to one trainer: where a run starts, schedules, defaults, shapes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from support.places import RUN_CONFIGS as CONFIGS

from rksp.calls.fix import scored
from rksp.recipe_files.parse.document import Document
from rksp.recipe_files.registry import READERS, read_recipe_file
from rksp.recipe_files.table.draft import Draft
from rksp.recipe_files.table.names import hub_id_of, shape_of
from rksp.report.score.page import render


def changed(tmp_path: Path, name: str, *changes: tuple[str, str], more: str = ""):
    """A real file with some of its text replaced, read."""
    file, at, part = name.partition("::")
    source = CONFIGS / file
    text = source.read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    path = tmp_path / source.name
    path.write_text(text + more, encoding="utf-8")
    return read_recipe_file(Path(f"{path}{at}{part}"))


def test_levanter_fields_of_an_included_optimizer_are_assumed(tmp_path):
    text = "optimizer: !include other.yaml\ntrainer: {train_batch_size: 8, mp: bfloat16}\n"
    path = tmp_path / "a.yaml"
    path.write_text(text, encoding="utf-8")
    read = read_recipe_file(path)
    for field in ("learning_rate", "adam_beta2", "weight_decay", "schedule"):
        kind = "unknown" if field == "learning_rate" else "assumed"
        assert read.field(field).origin.kind == kind, field
        assert "!include other.yaml" in read.field(field).origin.text
    assert [one.value for one in read.unread] == ["!include other.yaml"]


def test_levanter_without_a_batch_size_is_recognized_and_trains_400000_steps(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(
        "model: {type: gpt2}\ntrainer: {mp: p=f32, wandb: {project: x}}\noptimizer: {}\n",
        encoding="utf-8",
    )
    recipe = read_recipe_file(path).recipe()
    assert (recipe.max_steps, recipe.warmup_steps, recipe.batch_size) == (400_000, 4000, 512)
    assert recipe.precision == "fp32"


def test_the_scale_of_muon_is_read_from_the_trainers_files(tmp_path):
    levanter = "levanter/gpt2_small_fast_muon.yaml"
    assert changed(tmp_path, levanter).recipe().muon_scale == "original"
    matched = changed(
        tmp_path, levanter, ("type: muon\n", "type: muon\n  use_kimi_scaling: true\n")
    )
    assert matched.recipe().muon_scale == "match_rms_adamw"
    assert (
        changed(tmp_path, "restated/modded-nanogpt/train_gpt2.py").recipe().muon_scale == "original"
    )
    distributed = changed(tmp_path, "axolotl/muon-pretrain-fsdp2.yaml").field("muon_scale")
    assert (distributed.value, distributed.origin.kind) == ("original", "trainer")


OWN_SCALES = [one for one in READERS if one.muon]


@pytest.mark.parametrize("reader", OWN_SCALES, ids=lambda reader: reader.name)
def test_every_trainer_of_the_table_gives_muon_its_own_scale(reader):
    said = {"optimizer": "muon"}
    draft = Draft(Document(path=Path("a"), syntax="yaml", data={}), reader.title, given=said)
    reader.read(draft)
    assert draft.value("muon_scale") == reader.muon["scale"]
    assert reader.muon["source"].count(";") == 1  # a formula, and where it was read


_ZERO = """{"zero_optimization": {"stage": 2}, "train_batch_size": 64, %s
  "optimizer": {"type": "Muon", "params": {"lr": 1e-3, "muon_lr": 0.02}}}"""


def test_deepspeeds_muon_has_the_scale_of_keller_jordan_and_clips_its_update(tmp_path):
    path = tmp_path / "ds.json"
    path.write_text(_ZERO % "", encoding="utf-8")
    read = read_recipe_file(path)
    assert (read.recipe().muon_scale, read.recipe().learning_rate) == ("original", 0.02)
    assert any("#8439" in note for note in read.notes)
    path.write_text(_ZERO % '"gradient_clipping": 0,', encoding="utf-8")
    assert not any("#8439" in note for note in read_recipe_file(path).notes)


_MEGATRON = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --lr 1e-3"


@pytest.mark.parametrize(
    ("flags", "scale"),
    [
        ("", "spectral"),
        ("--muon-extra-scale-factor 0.2", "match_rms_adamw"),
        ("--muon-scale-mode shape_scaling", "original"),
    ],
)
def test_megatrons_muon_has_a_scale_and_a_factor(tmp_path, flags, scale):
    path = tmp_path / "run.sh"
    command = f"python pretrain_gpt.py {_MEGATRON} --train-iters 9 --micro-batch-size 1"
    path.write_text(f"{command} --optimizer muon {flags}\n", encoding="utf-8")
    assert read_recipe_file(path).recipe().muon_scale == scale


def test_levanter_batch_schedules_ramp(tmp_path):
    read = changed(
        tmp_path, "levanter/gpt2_small_fast_muon.yaml",
        ("size: 256", "size: [{start: 0, value: 64}, {start: 9, value: 256}]"),
    )  # fmt: skip
    assert read.recipe().batch_ramp == ((0, 64), (9, 256))
    assert read.recipe().batch_size == 256


def test_levanter_stable_makes_a_plateau(tmp_path):
    read = changed(
        tmp_path, "levanter/gpt2_small_fast_muon.yaml",
        ("type: muon\n", "type: muon\n  stable: 0.5\n  lr_schedule: linear\n"),
    )  # fmt: skip
    recipe = read.recipe()
    assert (recipe.schedule, recipe.decay_shape) == ("wsd", "linear")
    assert recipe.decay_steps == 20_000 - 200 - 10_000


def test_levanter_can_start_from_the_hub(tmp_path):
    read = changed(tmp_path, "levanter/llama2_7b.yaml", more="\ninitialize_from_hf: org/name\n")
    assert (read.target.name, read.target.overrides) == ("org/name", {})


def test_llm_foundry_starts_from_random_weights_unless_pretrained():
    read = read_recipe_file(CONFIGS / "llm-foundry" / "gpt-neo-125m.yaml")
    assert read.target.name == "gpt_neo"  # not the Hub's weights
    assert read.target.overrides["num_layers"] == 12


def test_olmo_says_that_it_continues(tmp_path):
    read = changed(tmp_path, "olmo/OLMo-20M.yaml", ("load_path: null", "load_path: /a/step100"))
    assert any("continues from /a/step100" in note for note in read.notes)


def test_nanogpt_characters_are_65_and_init_from_starts_from_weights():
    home = CONFIGS / "restated" / "nanogpt"
    assert read_recipe_file(home / "train_shakespeare_char.py").target.overrides["vocab_size"] == 65
    assert read_recipe_file(home / "train_gpt2.py").target.overrides["vocab_size"] == 50304
    assert (
        read_recipe_file(home / "finetune_shakespeare.py").target.name == "openai-community/gpt2-xl"
    )


_LEVANTER = "initialize_from_checkpoint_path: a\n"
_LINGUA, _GOES_ON = "restated/lingua/llama2-1b.yaml", "continue_training_from_init"
_NANOTRON, _RESUMED = "nanotron/config_tiny_llama.yaml", "resume_checkpoint_path: null"
_TITAN, _WHOLE = "torchtitan/deepseek_v3.py::deepseek_v3_16b", "initial_load_model_only"
_SPEECH, _NEMO = (
    "restated/fairseq/wav2vec_ctc_100h.yaml",
    "restated/nemo/megatron_llama_config.yaml",
)
_RESTORED = "checkpoint: {restore_file: a.pt, reset_optimizer: true}\n"
_TRAINED = (
    *("axolotl/pretrain.yaml", "llm-foundry/7b_dolly_sft.yaml", "torchtune/llama3_8B_full.yaml"),
    *("restated/trl/zephyr_sft_full.yaml", "restated/llama-factory/llama3_full_sft_ds3.yaml"),
    *("restated/ms-swift/full.sh", "restated/litgpt/phi-2_full.yaml"),
    *("restated/nanogpt/finetune_shakespeare.py", _SPEECH),
)
_RANDOM = (
    *("axolotl/muon-pretrain-fsdp2.yaml", "llm-foundry/mpt-1b.yaml", "litgpt/tinyllama.yaml"),
    *("levanter/llama2_7b.yaml", "olmo/OLMo-1B.yaml", "restated/nanogpt/train_gpt2.py"),
    *("restated/llm.c/run_gpt2_124M.sh", "restated/megatron/llama3_8b.sh", "pythia/pythia-1b.yml"),
    *("restated/maxtext/base.yml", "restated/fairseq/wav2vec2_base.yaml", _NEMO, _LINGUA),
    *(_NANOTRON, _TITAN),
)


@pytest.mark.parametrize("name", [*_TRAINED, *_RANDOM])
def test_a_file_says_whether_the_run_starts_trained(name):
    assert read_recipe_file(CONFIGS / name).names_weights is (name in _TRAINED)


@pytest.mark.parametrize(
    ("name", "change", "is_trained"),
    [
        ("axolotl/pretrain.yaml", ("base_model:", "reinit_weights: true\nbase_model:"), False),
        ("litgpt/tinyllama.yaml", ("initial_checkpoint_dir:", "initial_checkpoint_dir: a"), True),
        ("olmo/OLMo-20M.yaml", ("load_path: null", "load_path: /a/step100"), False),
        (
            "olmo/OLMo-20M.yaml",
            ("load_path: null", "load_path: /a\nreset_optimizer_state: true"),
            True,
        ),
        ("llm-foundry/gpt-neo-125m.yaml", ("  pretrained: false", "  pretrained: true"), True),
        ("gpt-neox/125M.yml", ('"pipe_parallel', '"finetune": true, "pipe_parallel'), True),
        ("levanter/llama2_7b.yaml", ("trainer:", f"{_LEVANTER}trainer:"), True),
        (_LINGUA, ("data:", "checkpoint: {init_ckpt_path: a}\ndata:"), True),
        (_LINGUA, ("data:", f"checkpoint: {{init_ckpt_path: a, {_GOES_ON}: true}}\ndata:"), False),
        (_NANOTRON, (_RESUMED, "resume_checkpoint_path: a"), False),
        (_NANOTRON, (_RESUMED, "resume_checkpoint_path: a\n  load_optimizer: false"), True),
        (_TITAN, ("interval=10)", 'interval=10, initial_load_path="a")'), True),
        (_TITAN, ("interval=10)", f'interval=10, initial_load_path="a", {_WHOLE}=False)'), False),
        (_SPEECH, ("_name: wav2vec_ctc", "_name: wav2vec_ctc\n  no_pretrained_weights: 1"), False),
        ("restated/fairseq/roberta_base.yaml", ("common:", f"{_RESTORED}common:"), True),
        (_NEMO, ("model:\n", "pretrained_checkpoint: {restore_from_path: a.nemo}\nmodel:\n"), True),
    ],
)
def test_one_line_of_a_file_decides_where_the_run_starts(tmp_path, name, change, is_trained):
    assert changed(tmp_path, name, change).names_weights is is_trained


def test_nanotron_mup_is_said(tmp_path):
    name = "nanotron/sp_350m_llama_config.yaml"
    read = changed(tmp_path, name, ("    std: 0.03125", "    use_mup: true\n    #"))
    assert any("use_mup" in one.key and "rates" in one.why for one in read.unread)


def test_nanotron_plateau_is_a_wsd(tmp_path):
    name = "nanotron/sp_350m_llama_config.yaml"
    read = changed(
        tmp_path, name, ("lr_decay_starting_step: null", "lr_decay_starting_step: 340"),
        ("lr_decay_style: cosine", "lr_decay_style: 1-sqrt"),
    )  # fmt: skip
    recipe = read.recipe()
    assert (recipe.schedule, recipe.decay_shape, recipe.decay_steps) == ("wsd", "sqrt", 100)


def test_gpt_neox_decays_a_tenth_since_2024(tmp_path):
    read = changed(tmp_path, "gpt-neox/125M.yml", ('"weight_decay": 0.1,', ""))
    field = read.field("weight_decay")
    assert (field.value, field.origin.kind) == (0.1, "trainer")


def test_gpt_neox_llama_and_mistral_shapes(tmp_path):
    name = "gpt-neox/125M.yml"
    llama = (
        '"norm": "rmsnorm", "activation": "swiglu", "intermediate_size": 2048, "num_kv_heads": 4'
    )
    read = changed(tmp_path, name, ('"norm": "layernorm"', llama))
    assert read.target.name == "llama"
    assert read.target.overrides["num_key_value_heads"] == 4
    # 2/3 of 2048 holds gate and input; half of that, 682, is rounded up to a multiple of 256
    assert read.target.overrides["intermediate_size"] == 768
    read = changed(
        tmp_path, name, ('"norm": "layernorm"', llama + ', "sliding_window_width": 4096')
    )
    assert read.target.name == "mistral"


def test_gpt_neox_s_gated_width_is_a_third_of_the_named_one(tmp_path):
    name, gated = "gpt-neox/125M.yml", '"norm": "rmsnorm", "activation": "swiglu"'
    for named, width in (("", 1024), (', "intermediate_size": 33024', 11008)):
        read = changed(tmp_path, name, ('"norm": "layernorm"', gated + named))
        assert read.target.overrides["intermediate_size"] == width
    assert changed(tmp_path, name).target.overrides["intermediate_size"] == 4 * 768


def test_gpt_neox_gates_only_what_neox_gates(tmp_path):
    name = "gpt-neox/125M.yml"
    read = changed(tmp_path, name, ('"norm": "layernorm"', '"activation": "geglu"'))
    assert read.target is None and "no gate" in read.target_missing
    plain = '"norm": "rmsnorm", "activation": "silu"'
    assert changed(tmp_path, name, ('"norm": "layernorm"', plain)).target is None


def test_torchtune_switches_give_adapters_to_more_modules(tmp_path):
    name, output = "torchtune/llama2_7B_lora_dpo.yaml", "apply_lora_to_output: False"
    attention = ("q_proj", "v_proj", "output_proj")
    found = changed(tmp_path, name).field("lora_targets")
    assert found.value == (*attention, "gate_proj", "up_proj", "down_proj")
    assert "model.apply_lora_to_mlp" in found.origin.keys
    narrow = changed(tmp_path, name, ("apply_lora_to_mlp: True", "apply_lora_to_mlp: False"))
    assert narrow.field("lora_targets").value == attention
    every = changed(tmp_path, name, (output, "apply_lora_to_output: True"))
    assert every.field("lora_targets").value[-1] == "output"


EPOCHS = {
    "hugging-face": "per_device_train_batch_size: 8\nnum_train_epochs: 2\nlearning_rate: 1e-4\n",
    "axolotl": "base_model: gpt2\nmicro_batch_size: 8\nnum_epochs: 2\nlearning_rate: 1e-4\n",
    "torchtune": "batch_size: 8\nepochs: 2\noptimizer: {_component_: torch.optim.AdamW}\n",
    "litgpt": "checkpoint_dir: a\ntrain: {global_batch_size: 8, micro_batch_size: 8, epochs: 2}\n",
    "llm-foundry": "max_duration: 2ep\nglobal_train_batch_size: 8\noptimizer: {lr: 1.0e-4}\n",
}


@pytest.mark.parametrize("trainer", EPOCHS)
def test_epochs_are_steps_where_the_rows_are_known(trainer, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(EPOCHS[trainer], encoding="utf-8")
    read = lambda **given: read_recipe_file(path, trainer=trainer, devices=1, given=given)
    unknown = read().field("max_steps").origin
    assert unknown.kind == "assumed" and "give --rows or --max-steps" in unknown.text
    known = read(rows=1001).field("max_steps")
    assert known.value == 252  # 126 batches, the last of one row, twice
    assert known.origin.kind == "computed"
    assert read(rows=1001, max_steps=7).field("max_steps").value == 7


def test_the_steps_of_known_rows_rest_on_the_assumed_replicas(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(EPOCHS["hugging-face"], encoding="utf-8")
    read = read_recipe_file(path, trainer="hugging-face", given={"rows": 1001})
    assert read.field("max_steps").origin.assumes == ("devices",)


def test_litgpt_model_config_is_a_shape(tmp_path):
    shape = (
        "model_config: {n_layer: 4, n_head: 8, n_embd: 64, n_query_groups: 2, vocab_size: 100, "
        "norm_class_name: RMSNorm, intermediate_size: 128, block_size: 256}"
    )
    read = changed(tmp_path, "litgpt/microllama.yaml", ("model_config:", shape))
    assert read.target.name == "llama"
    assert read.target.overrides["num_key_value_heads"] == 2
    assert read.target.overrides["vocab_size"] == 100


@pytest.mark.parametrize(
    ("name", "peft", "objective"),
    [
        ("torchtune/llama2_7B_lora_dpo.yaml", "lora", "dpo"),
        ("restated/trl/zephyr_dpo_qlora.yaml", "qlora", "dpo"),
        ("restated/llama-factory/llama3_lora_reward.yaml", "lora", "reward"),
        ("restated/ms-swift/qlora_bnb.sh", "qlora", "lm"),
        ("axolotl/tinker_rl.yaml", "lora", "grpo"),
        ("axolotl/tinker_sft.yaml", "lora", "lm"),
        ("restated/verl/ppo_trainer.yaml", "none", "ppo"),
        ("restated/litgpt/llama-2-7b_lora.yaml", "lora", "lm"),
    ],
)
def test_adapters_and_other_losses_reach_the_first_line(name, peft, objective):
    report = scored(str(CONFIGS / name))
    assert (report.recipe.peft, report.recipe.objective) == (peft, objective)
    first = render(report).renderables[0].text.plain
    told = {"lm": "fine-tuning", "reward": "reward model"}.get(objective, objective.upper())
    rank = report.recipe.lora_rank
    assert told in first and ("" if rank is None else f"LoRA r {rank}") in first


KINDS = {
    "llama-factory": "model_name_or_path: a\nfinetuning_type: lora\nstage: sft\n",
    "axolotl": "base_model: gpt2\nadapter: lora\nmicro_batch_size: 1\n",
}


@pytest.mark.parametrize(
    ("trainer", "more", "peft"),
    [
        ("llama-factory", "use_dora: true", "dora"),
        ("llama-factory", "use_rslora: true", "rslora"),
        ("llama-factory", "pissa_init: true", "pissa"),
        ("llama-factory", "use_dora: false", "lora"),
        ("llama-factory", "use_dora: true\nquantization_bit: 4", "qlora"),
        ("axolotl", "peft_use_dora: true", "dora"),
        ("axolotl", "peft_use_rslora: true", "rslora"),
        ("axolotl", "peft_init_lora_weights: pissa_niter_4", "pissa"),
        ("axolotl", "peft_init_lora_weights: gaussian", "lora"),
    ],
)
def test_switches_make_other_kinds_of_adapters_of_lora(trainer, more, peft, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(f"{KINDS[trainer]}{more}\nlearning_rate: 1e-4\n", encoding="utf-8")
    found = read_recipe_file(path, trainer=trainer, devices=1).field("peft")
    assert found.value == peft


def test_torchtune_names_dora_by_its_builder():
    read = read_recipe_file(CONFIGS / "torchtune/llama3_8B_dora.yaml")
    assert read.recipe().peft == "dora"


@pytest.mark.parametrize(
    ("more", "precision"),
    [("", "bf16-pure"), ("fsdp: full_shard\n", "bf16"), ("use_peft: true\n", "bf16")],
)
def test_weights_loaded_in_bf16_stay_so_unless_something_keeps_float32(tmp_path, more, precision):
    read = changed(tmp_path, "restated/trl/zephyr_sft_full.yaml", more=more)
    assert read.recipe().precision == precision


def test_megatron_ramps_take_an_equal_share_of_the_samples():
    recipe = read_recipe_file(CONFIGS / "restated" / "megatron" / "gpt3_175b.sh").recipe()
    ramp = recipe.batch_ramp
    assert ramp[0] == (0, 16)
    assert ramp[-1][1] == 1536
    taken = sum((end - start) * size for (start, size), (end, _) in pairwise(ramp))
    assert taken == pytest.approx(5_859_375, rel=1e-2)


def test_rates_of_their_own_are_said():
    home = CONFIGS / "restated"
    modded = read_recipe_file(home / "modded-nanogpt" / "train_gpt2.py")
    assert any("Adam at 0.6" in note for note in modded.notes)
    megatron = read_recipe_file(home / "megatron" / "llama3_8b.sh")
    assert any("their own rate (0.0005)" in note for note in megatron.notes)


def test_names_of_models():
    assert shape_of("qwen3_8b_first_85_pct_layers")[1]["num_hidden_layers"] == 36
    assert shape_of("gpt3:c768")[1]["n_embd"] == 768
    assert shape_of("llama3_8") is None
    assert (
        hub_id_of("/tmp/Meta-Llama-3-8B-Instruct/original/")
        == "meta-llama/Meta-Llama-3-8B-Instruct"
    )
    assert hub_id_of("/tmp/my_run") is None
    assert hub_id_of("checkpoints/<NAME>") is None


GRPO = "grpo:\n  num_prompts_per_step: 8\n  num_generations_per_prompt: 4\n  max_num_steps: 20\n"
MODEL = "model_name: Qwen/Qwen3-0.6B\nlearning_rate: 1e-5\n"
PEFT = "model_name_or_path: gpt2\nlearning_rate: 1e-4\nper_device_train_batch_size: 4\n"
VERL = "data.train_batch_size=64 actor_rollout_ref.actor.optim.lr=1e-6"
VERL_MAIN = f"python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo {VERL}"
SLIME = "python train.py --advantage-estimator grpo --lr 1e-6 --rollout-batch-size 32"
SWIFT = "swift sft --model Qwen/Qwen3-0.6B --model_name robot --learning_rate 1e-4"
MEGATRON = (
    "megatron rlhf --rlhf_type gkd --model Qwen/Qwen3-4B --external_plugins a/plugin.py --lr 1e-5"
)
LOAD = "model = AutoModelFor{}.from_pretrained('x/y')\n"
SEQ2SEQ = "Seq2SeqTrainingArguments('out', learning_rate=1e-4, predict_with_generate=True)\n"
LLAMA_V1 = """\
model: Qwen/Qwen3-0.6B
model_class: llm
train_dataset: a
cutoff_len: 2048
micro_batch_size: 1
learning_rate: 1e-4
peft_config:
  name: """


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("a.yaml", f"{MODEL}dpo:\n  max_num_steps: 20\ndata:\n  path: x\n", "objective", "dpo"),
        ("a.yaml", f"{MODEL}sft:\n  max_num_steps: 20\n{GRPO}", "objective", None),
        ("a.yaml", f"{MODEL}optim:\n  dpo: 1\n", "objective", "lm"),
        ("a.yaml", f"{PEFT}peft_type: C3A\n", "peft", "other"),
        ("a.yaml", f"{PEFT}peft_type: IA3\n", "peft", "other"),
        ("a.yaml", f"{PEFT}peft_type: GLORA\nlora_rank: 8\n", "peft", "other"),
        ("a.yaml", f"{PEFT}peft_type: LORA\nlora_rank: 8\n", "peft", "lora"),
        ("a.yaml", f"{PEFT}use_peft: true\nuse_4bit_quantization: true\n", "peft", "qlora"),
        ("a.yaml", f"{LLAMA_V1}freeze\n", "peft", "other"),
        ("a.yaml", f"{LLAMA_V1}lora\n  r: 8\n", "peft", "lora"),
        ("a.sh", f"{VERL_MAIN} actor_rollout_ref.model.lora.rank=32", "peft", "lora"),
        (
            "a.sh",
            f"{VERL_MAIN} actor_rollout_ref.actor.ppo_mini_batch_size=256",
            "batch_size",
            None,
        ),
        ("a.sh", f"{SLIME} --n-samples-per-prompt 8", "batch_size", 256),
        (
            "a.sh",
            f"{SLIME} --n-samples-per-prompt 8 --num-steps-per-rollout 4",
            "batch_size",
            64,
        ),
        ("a.sh", f"{SWIFT} --num_iterations 4", "model", "Qwen/Qwen3-0.6B"),
        ("a.sh", MEGATRON, "objective", "distillation"),
        ("a.py", LOAD.format("CausalLM") + SEQ2SEQ, "objective", "lm"),
        ("a.py", LOAD.format("Seq2SeqLM") + SEQ2SEQ, "objective", "seq2seq"),
    ],
)
def test_what_official_examples_write(tmp_path, name, text, field, value):
    (tmp_path / name).write_text(text, encoding="utf-8")
    read = read_recipe_file(tmp_path / name, devices=1)
    found = read.target.name if field == "model" else read.field(field).value
    assert (None if field in read.unknown else found) == value
