"""Recipes from trainers' own files: values checked by hand, origins, units, hostile input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.benchmark_scripts import script
from support.places import RUN_CONFIGS as CONFIGS

from rksp.ground.errors import InputError
from rksp.recipe import Recipe
from rksp.recipe_files.parse.content import parse_yaml
from rksp.recipe_files.parse.document import load_document
from rksp.recipe_files.parse.values import Unresolved
from rksp.recipe_files.registry import READERS, read_recipe_file

FILES = sorted(
    path
    for path in CONFIGS.rglob("*")
    if path.suffix in (".yaml", ".yml", ".json", ".sh") and path.parent != CONFIGS
)


@pytest.fixture(scope="module")
def table():
    """The script that writes the page of real runs."""
    return script("recipe_files")


@pytest.fixture(scope="module")
def runs(table):
    """Every real run, read and compared with what was read off by eye."""
    return {name: table.row(name) for name in table.names()}


def test_no_field_differs_from_what_was_read_by_eye(runs, table):
    checked = [run for run in runs.values() if run.is_checked]
    assert {run.name: run.wrong for run in checked if run.wrong} == {}
    assert set(table.checked()) == {run.name for run in checked}
    assert len(checked) >= 100


def test_every_checked_trainer_names_the_source_it_was_read_against(runs):
    sources = parse_yaml((CONFIGS / "sources.yaml").read_text(encoding="utf-8"))
    names = {reader.title: reader.name for reader in READERS}
    used = {
        names[run.read.trainer.removesuffix(f" {reader.version}")]
        for run in runs.values()
        if run.is_checked
        for reader in READERS
        if run.read.trainer == f"{reader.title} {reader.version}"
    }
    assert set(sources) == used == set(names.values())
    assert all(sources[name] for name in used)


def test_nothing_is_assumed_in_silence(runs, table):
    for run in runs.values():
        if run.read is not None:
            assert table.silent(run.read) == [], run.name


def test_the_comparison_sees_a_wrong_value(table, monkeypatch):
    monkeypatch.setattr(table, "checked", lambda: {"gpt-neox/125M.yml": {"learning_rate": 7e-4}})
    assert table.row("gpt-neox/125M.yml").wrong == ("learning_rate is 0.0006, not 0.0007",)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_real_file_yields_a_recipe_with_origins_or_one_sentence(path):
    try:
        read = read_recipe_file(path)
    except InputError as error:
        assert path.name == "pythia-12b.yml"  # upstream misses a comma there
        assert f"{path.name}:21:4: not valid YAML" in str(error)
        return
    assert [f.name for f in read.fields] == list(Recipe.model_fields)
    assert isinstance(read.recipe(), Recipe)
    for field in read.fields:
        kind, origin = field.origin.kind, field.origin
        assert kind != "file" or origin.keys, field
        assert (kind in ("assumed", "unknown")) == bool(origin.assumes), field
        assert origin.text, field
    assert read.target is not None or read.target_missing.endswith(".")
    lines = path.read_text().splitlines()
    rate = read.field("learning_rate")
    if rate.origin.kind == "file":
        assert rate.origin.keys[0].split(".")[-1] in lines[rate.origin.line - 1]


def test_the_committed_table_is_what_the_readers_find(runs, table):
    assert table.PAGE.read_text(encoding="utf-8") == table.page(list(runs.values()))


@pytest.mark.parametrize(
    "name",
    ["gpt-neox/19M.yml", "levanter/gpt2_nano.yaml", "nanotron/config_mamba.yaml",
     "llm-foundry/mpt-small-cpu.yaml", "olmo/OLMo-20M.yaml"],
)  # fmt: skip
def test_a_model_in_the_file_becomes_the_target(name):
    from rksp.models.resolve import resolve

    target = read_recipe_file(CONFIGS / name).target
    source = resolve(target.name, overrides=target.overrides)
    settings = source.config.to_dict()
    for key, value in target.overrides.items():
        part, _, inner = key.partition(".")
        assert (settings[part][inner] if inner else getattr(source.config, key)) == value


def test_numbers_follow_yaml_1_2():
    text = "{a: 3e-4, b: 1E-2, c: 0.97e-4, d: 1_000, e: no, f: on, g: true, h: 1:30, i: '5e-4'}"
    assert parse_yaml(text) == {
        "a": 3e-4, "b": 1e-2, "c": 0.97e-4, "d": 1000, "e": "no", "f": "on", "g": True,
        "h": "1:30", "i": "5e-4",
    }  # fmt: skip
    yaml = pytest.importorskip("yaml")
    assert yaml.safe_load("3e-4") == "3e-4"  # the trap: the library itself reads text


def write(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_hugging_face_batches_warm_up_and_clipping(tmp_path):
    settings = {
        "output_dir": "x", "learning_rate": 2e-4, "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 8, "max_steps": 2000, "warmup_steps": 0.05,
        "max_grad_norm": 0, "bf16": True, "optim": "adamw_torch_fused",
        "lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 2e-5},
    }  # fmt: skip
    path = write(tmp_path, "args.json", json.dumps(settings))
    recipe = read_recipe_file(path, devices=16).recipe()
    assert recipe.batch_size == 4 * 8 * 16
    assert recipe.warmup_steps == 100
    assert recipe.max_grad_norm is None
    assert (recipe.precision, recipe.optimizer) == ("bf16", "adamw")
    assert recipe.min_lr_ratio == pytest.approx(0.1)
    alone = read_recipe_file(path)
    assert alone.recipe().batch_size == 32
    assert alone.field("batch_size").origin.assumes == ("devices",)
    assert alone.field("adam_beta2").origin.kind == "trainer"


def test_what_hugging_face_itself_writes_is_read_back(tmp_path):
    from transformers import TrainingArguments

    given = TrainingArguments(
        output_dir=str(tmp_path), learning_rate=3e-4, max_steps=500, warmup_steps=0.1,
        per_device_train_batch_size=4, lr_scheduler_type="cosine", max_grad_norm=0.5,
        use_cpu=True, report_to=[],
    )  # fmt: skip
    path = write(tmp_path, "args.json", given.to_json_string())
    read = read_recipe_file(path)
    recipe = read.recipe()
    assert (recipe.learning_rate, recipe.max_steps, recipe.warmup_steps) == (3e-4, 500, 50)
    assert (recipe.batch_size, recipe.schedule, recipe.max_grad_norm) == (4, "cosine", 0.5)
    assert recipe.adam_beta2 == given.adam_beta2
    line = path.read_text().splitlines()[read.field("learning_rate").origin.line - 1]
    assert '"learning_rate"' in line  # JSON has lines too


CLIPS = {
    "axolotl": ("base_model: x\nmicro_batch_size: 1\nlearning_rate: 1\n", "max_grad_norm: 0\n"),
    "gpt-neox": ("", "gradient_clipping: 0\n"),
    "hugging-face": ("learning_rate: 1\n", "max_grad_norm: 0\n"),
    "levanter": ("", "optimizer: {learning_rate: 1, max_grad_norm: 0}\n"),
    "litgpt": ("optimizer: {init_args: {lr: 1}}\n", "train: {max_norm: 0}\n"),
    "nanotron": ("", "optimizer: {clip_grad: 0}\n"),
    "olmo": ("optimizer: {learning_rate: 1}\n", "max_grad_norm: 0\n"),
    "torchtitan": ("", "training: {max_norm: 0}\n"),
    "torchtune": ("", "clip_grad_norm: 0\n"),
}


@pytest.mark.parametrize("trainer", CLIPS)
def test_a_clipping_norm_of_zero_is_none(trainer, tmp_path):
    rest, off = CLIPS[trainer]
    path = write(tmp_path, "a.yaml", rest + off)
    field = read_recipe_file(path, trainer=trainer).field("max_grad_norm")
    assert (field.value, field.origin.kind) == (None, "file")
    on = write(tmp_path, "b.yaml", rest + off.replace("0", "0.25"))
    assert read_recipe_file(on, trainer=trainer).field("max_grad_norm").value == 0.25


@pytest.mark.parametrize(
    ("content", "is_run"),
    [
        ({"learning_rate": 1e-3, "output_dir": "x", "bf16": True}, True),
        ({"model_type": "gpt2", "n_layer": 2}, False),
        ({"architectures": ["X"]}, False),
    ],
)
def test_a_json_target_is_a_run_file_or_a_model(content, is_run, tmp_path):
    from rksp.question.run import is_run_file

    assert is_run_file(str(write(tmp_path, "a.json", json.dumps(content)))) == is_run


def test_data_parallel_replicas_exclude_the_parallel_parts_of_one_model():
    path = CONFIGS / "gpt-neox" / "20B.yml"  # 4 × 32, pipeline 4 × tensor 2
    assert read_recipe_file(path, devices=96).recipe().batch_size == 4 * 32 * 12


def test_epochs_cannot_be_counted_and_say_so():
    read = read_recipe_file(CONFIGS / "llm-foundry" / "7b_dolly_sft.yaml")
    assert read.field("max_steps").origin.kind == "assumed"
    assert "size of the data set" in read.field("max_steps").origin.text


def test_decoupled_weight_decay_is_divided_by_the_rate(tmp_path):
    text = (CONFIGS / "llm-foundry" / "mpt-125m.yaml").read_text()
    path = write(tmp_path, "a.yaml", text.replace("weight_decay: 0.0", "weight_decay: 6e-5"))
    assert read_recipe_file(path).recipe().weight_decay == pytest.approx(0.1)


def test_old_torchtitan_toml(tmp_path):
    path = write(
        tmp_path,
        "llama.toml",
        '[model]\nname="llama3"\nflavor="8B"\n[optimizer]\nname="AdamW"\nlr=3e-4\n'
        "[lr_scheduler]\nwarmup_steps=200\nmin_lr_factor=0.1\n"
        "[training]\nlocal_batch_size=2\nseq_len=8192\nsteps=1000\nmax_norm=1.0\n",
    )
    read = read_recipe_file(path, devices=64)
    recipe = read.recipe()
    assert (recipe.learning_rate, recipe.warmup_steps, recipe.max_steps) == (3e-4, 200, 1000)
    assert (recipe.batch_size, recipe.sequence_length) == (128, 8192)
    assert (recipe.schedule, recipe.min_lr_ratio, recipe.precision) == ("linear", 0.1, "bf16")
    assert (read.target.name, read.target.overrides["hidden_size"]) == ("llama", 4096)


_TITAN = """[model]
name="llama3"
flavor="8B"
%s
[optimizer]
lr=3e-4
[training]
local_batch_size=2
steps=1000
[parallelism]
data_parallel_shard_degree=%s
data_parallel_replicate_degree=2
tensor_parallel_degree=8
"""


def test_torchtitan_says_its_data_parallel_ranks_and_its_float8(tmp_path):
    path = write(tmp_path, "llama.toml", _TITAN % ('converters=["float8"]', 128))
    read = read_recipe_file(path)
    assert (read.recipe().batch_size, read.recipe().precision) == (2 * 128 * 2, "fp8")
    assert not read.field("batch_size").origin.assumes
    assert read_recipe_file(path, devices=32).recipe().batch_size == 2 * 4  # what is typed counts
    path = write(tmp_path, "b.toml", _TITAN % ("converters=[]", -1))  # all devices, however many
    read = read_recipe_file(path)
    assert (read.recipe().batch_size, read.recipe().precision) == (2, "bf16")
    assert read.field("batch_size").origin.assumes == ("devices",)
    registry = (
        "def llama3_8b():\n    return Trainer.Config(\n"
        "        model_spec=model_registry('8B', converters=[Float8LinearConverter.Config()]),\n"
        "        optimizer=default_adamw(lr=3e-4), training=TrainingConfig(steps=9))\n"
    )
    path = write(tmp_path, "registry.py", registry)
    assert read_recipe_file(path).recipe().precision == "fp8"


def test_nanogpt_is_read_as_a_syntax_tree_and_never_run(tmp_path):
    marker = tmp_path / "ran"
    path = write(
        tmp_path,
        "train_gpt2.py",
        f"open({str(marker)!r}, 'w')\nbatch_size = 12\nblock_size = 1024\n"
        "gradient_accumulation_steps = 5 * 8\nmax_iters = 600000\nlr_decay_iters = max_iters\n"
        "weight_decay = 1e-1\nn_layer = 2\nn_head = 2\nn_embd = 64\nout = __import__('os').name\n",
    )
    read = read_recipe_file(path)
    assert not marker.exists()
    assert read.recipe().batch_size == 480
    assert read.field("min_lr_ratio").value == pytest.approx(0.1)
    assert read.target.overrides["n_embd"] == 64


def test_flags_replace_what_has_no_equivalent(tmp_path):
    text = (CONFIGS / "axolotl" / "pretrain.yaml").read_text()
    path = write(tmp_path, "a.yaml", text.replace("adamw_torch", "came_pytorch"))
    read = read_recipe_file(path)
    assert read.recipe().optimizer == "other"
    assert "came_pytorch" in read.field("optimizer").origin.text
    typed = read_recipe_file(path, given={"optimizer": "adafactor"})
    assert typed.recipe().optimizer == "adafactor"
    assert typed.field("optimizer").origin.kind == "flag"


def test_references_are_followed_and_cycles_end(tmp_path):
    path = write(
        tmp_path, "a.yaml", "a: ${b}\nb: ${a}\nc: ${d.e}/x\nd: {e: 7}\nf: ${oc.env:HOME}\n"
    )
    document = load_document(path)
    assert isinstance(document.find("a").value, Unresolved)
    assert document.find("c").value == "7/x"
    assert isinstance(document.find("f").value, Unresolved)


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("a.yaml", "a: [1, 2\nb: 3\n", r"a\.yaml:\d+:\d+: not valid YAML"),
        ("a.json", '{"a": 1,}', r"a\.json:1:\d+: not valid JSON"),
        ("a.toml", "a = ", "not valid TOML"),
        ("a.py", "a = (", "not valid Python"),
        ("a.yaml", "- 1\n- 2\n", "holds a list"),
        ("a.yaml", "color: red\n", "does not match any trainer"),
        ("a.yaml", "method: grid\nparameters: {lr: {values: [1]}}\n", "rksp grid"),
        ("a.pkl", "", "a pickle.*to_json_string"),
        ("training_args.bin", "", "a pickle.*to_json_string"),
        ("a.txt", "", "a format that rksp cannot read"),
        ("a.yaml", "learning_rate: fast\nnum_train_epochs: 1\n", "'fast', not a number"),
        ("a.yaml", "learning_rate: -1\nnum_train_epochs: 1\n", "learning_rate.*greater than 0"),
    ],
)  # fmt: skip
def test_bad_files_are_one_sentence(tmp_path, name, text, complaint):
    path = write(tmp_path, name, text)
    with pytest.raises(InputError, match=complaint) as caught:
        read_recipe_file(path).recipe()
    assert "\n" not in str(caught.value)


def test_aliases_cannot_unfold_without_end(tmp_path):
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    with pytest.raises(InputError, match="20,000 settings"):
        load_document(write(tmp_path, "bomb.yaml", "\n".join(rows)))


def test_tags_are_never_executed(tmp_path):
    path = write(tmp_path, "a.yaml", "a: !!python/object/apply:os.system ['exit 1']\n")
    with pytest.raises(InputError, match="not valid YAML"):
        load_document(path)
    path = write(tmp_path, "b.yaml", "a: !include other.yaml\n")
    assert load_document(path).find("a").value == Unresolved("!include other.yaml")


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_a_forced_reader_gives_a_recipe_or_one_sentence(reader):
    for path in {path.parent: path for path in FILES}.values():  # one of each trainer's
        try:
            read_recipe_file(path, trainer=reader.name).recipe()
        except InputError as error:
            assert "\n" not in str(error)


def test_names_of_readers_are_unique_and_forceable(tmp_path):
    assert len({reader.name for reader in READERS}) == len(READERS) == 29
    path = write(tmp_path, "a.yaml", "learning_rate: 1e-3\n")
    assert read_recipe_file(path, trainer="hugging-face").recipe().learning_rate == 1e-3
    with pytest.raises(InputError, match="did you mean nanotron"):
        read_recipe_file(path, trainer="nanotro")


def test_a_section_of_another_kind_is_passed_over(tmp_path):
    data = parse_yaml((CONFIGS / "nanotron" / "config_mamba.yaml").read_text(encoding="utf-8"))
    data["model"]["model_config"]["ssm_cfg"] = "auto"
    path = write(tmp_path, "a.json", json.dumps(data))
    assert read_recipe_file(path).target.name == "mamba"


@pytest.mark.parametrize("kwargs", ["3", "'[1]'", "[1]", "'{'"])
def test_settings_of_a_schedule_that_are_no_mapping_are_not_read(tmp_path, kwargs):
    path = write(tmp_path, "a.yaml", f"learning_rate: 1e-3\nlr_scheduler_kwargs: {kwargs}\n")
    assert read_recipe_file(path, trainer="hugging-face").recipe().min_lr_ratio == 0.0
