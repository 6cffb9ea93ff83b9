"""Where each field of a recipe comes from, and the one line that says what was assumed."""

from pathlib import Path
from typing import Annotated

import pytest
import typer
from support.places import RUN_CONFIGS as CONFIGS
from support.reports import scored
from typer.testing import CliRunner

from rksp.cli.options import Given, Panel, with_options
from rksp.cli.shared_options import RunOptions
from rksp.question.run import Run, origins_of_flags
from rksp.recipe import Recipe
from rksp.recipe_files.registry import read_recipe_file
from rksp.recipe_files.said.origin import OriginKind, assumed_line, flag_of, in_full, recipe_table
from rksp.report.formats import render

PYTHIA = CONFIGS / "pythia" / "pythia-1b.yml"
DOLLY = CONFIGS / "llm-foundry" / "7b_dolly_sft.yaml"


def alternatives(recipe, origins):
    return Run(target="gpt2", recipe=recipe, origins=origins).alternatives()


def line_of(path: Path, **settings) -> str:
    read = read_recipe_file(path, **settings)
    return assumed_line(read.recipe(), read.origins())


def test_a_batch_per_device_says_that_one_replica_was_assumed():
    assert line_of(PYTHIA) == "assumed: one replica, so a batch of 16; pass --devices"
    assert line_of(PYTHIA, devices=64) == ""
    read = read_recipe_file(PYTHIA, devices=64)
    assert read.recipe().batch_size == 1024
    assert read.field("batch_size").origin.kind is OriginKind.COMPUTED
    assert "--devices" in read.field("batch_size").origin.text


def test_a_share_of_an_assumed_run_is_assumed_with_it():
    path = CONFIGS / "axolotl" / "gpt-oss-20b-fft-fsdp2.yaml"
    assert line_of(path) == (
        "assumed: one replica, so a batch of 2; 1000 steps, so 30 steps of warm-up; "
        "pass --devices, --max-steps"
    )
    typed = read_recipe_file(path, given={"max_steps": 5000})
    assert typed.recipe().warmup_steps == 150  # 0.03 of what was typed
    assert typed.field("warmup_steps").origin.assumes == ()


def test_a_typed_rate_changes_what_the_file_states_in_terms_of_it():
    read = read_recipe_file(PYTHIA, given={"learning_rate": 5e-4})
    assert read.recipe().min_lr_ratio == pytest.approx(2.5e-5 / 5e-4)
    assert read.field("learning_rate").origin.text == "--lr"


def test_a_default_names_the_trainer_and_its_version():
    origin = read_recipe_file(CONFIGS / "torchtune" / "7B_full.yaml").field("weight_decay").origin
    assert origin.kind is OriginKind.TRAINER
    assert origin.text == "default of torchtune 0.6.1"


def test_a_value_of_the_file_has_its_line():
    field = read_recipe_file(PYTHIA).field("learning_rate")
    assert field.origin.kind is OriginKind.FILE
    assert PYTHIA.read_text().splitlines()[field.origin.line - 1].strip().startswith('"lr"')
    assert field.origin.file == PYTHIA.as_posix()


def test_flags_left_out_are_assumed_too():
    recipe = Recipe(learning_rate=1e-3, max_steps=500)
    origins = origins_of_flags(recipe, {"learning_rate": "--lr", "max_steps": ".rksp.toml"})
    assert origins["learning_rate"].text == "--lr"
    assert origins["max_steps"].kind is OriginKind.FLAG
    assert origins["batch_size"].kind is OriginKind.ASSUMED
    line = assumed_line(recipe, origins)
    for said in ("a batch of 32", "no warm-up", "sequences of 256 tokens", "adamw", "clipping at 1",
                 "--batch-size", "--warmup-steps", "--clip", "--beta2"):  # fmt: skip
        assert said in line
    assert "momentum" not in line  # AdamW has none
    assert "500" not in line
    every = {name: flag_of(name) for name in Recipe.model_fields}
    assert assumed_line(recipe, origins_of_flags(recipe, every)) == ""


def test_sgd_has_momentum_and_no_second_beta():
    recipe = Recipe(optimizer="sgd", learning_rate=0.1)
    line = assumed_line(recipe, origins_of_flags(recipe, {}))
    assert "momentum 0.9" in line
    assert "β₂" not in line


def test_alternatives_vary_one_assumption_at_a_time():
    read = read_recipe_file(PYTHIA)
    found = alternatives(read.recipe(), read.origins())
    assert [said for said, _ in found] == [
        "8 devices, so a batch of 128",
        "64 devices, so a batch of 1024",
        "1024 devices, so a batch of 16384",
    ]
    assert found[-1][1].batch_size == 16384
    sure = read_recipe_file(CONFIGS / "levanter" / "llama2_7b.yaml")
    assert alternatives(sure.recipe(), sure.origins()) == []


def test_the_table_has_one_row_for_every_field_that_somebody_decided():
    read = read_recipe_file(DOLLY)
    origins = {f.name: in_full(f.origin) for f in read.fields}
    rows = list(recipe_table({f.name: f.value for f in read.fields}, origins))
    assert rows[0].split() == ["field", "value", "from"]
    by_name = {row.split()[0]: row for row in rows[1:]}
    assert "optimizer.lr (line" in by_name["learning_rate"]
    assert "assumed: max_duration (line 85): 1 epochs" in by_name["max_steps"]
    assert "peft" not in by_name


def asked(arguments: list[str]) -> tuple[str, object]:
    """What a command with score's recipe flags reads, and what it says on stderr."""
    app, seen = typer.Typer(), {}

    @app.command()
    @with_options
    def command(
        target: str,
        recipe: Annotated[Given[Recipe], Panel(title="Recipe")],
        of: Annotated[RunOptions, Panel(title="Recipe")],
    ) -> None:
        seen["asked"] = of.run(target, recipe)

    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    return result.output, seen["asked"]


def test_a_score_says_what_was_assumed():
    _, found = asked([str(PYTHIA)])
    assert "assumed: one replica, so a batch of 16; pass --devices" in found.assumed
    assert found.target == "gpt_neox"
    report = found.written_in(scored())
    assert "batch_size" not in report.recipe_places  # no line of the file says 16
    assert report.recipe_places["learning_rate"][0] == PYTHIA.as_posix()
    assert report.recipe_origins["learning_rate"].text.startswith("optimizer.params.lr (line")
    assert report.recipe_origins["batch_size"].text.startswith("assumed: ")
    _, found = asked([str(PYTHIA), "--devices", "64"])
    assert found.assumed == ""


def test_every_page_shows_origins_and_assumptions():
    recipe = scored().recipe
    origins = origins_of_flags(recipe, {"learning_rate": "--lr"})
    report = Run(target="gpt2", recipe=recipe, origins=origins).written_in(scored())
    for form in ("html", "markdown", "full"):
        page = render(report, form)
        assert "--lr" in page and "assumed: default of rksp; give --beta2" in page


def test_a_score_without_a_file_says_what_its_flags_left_open():
    _, found = asked(["gpt2", "--lr", "1e-3", "--batch-size", "64"])
    assert found.assumed.startswith("assumed: 1000 steps; no warm-up;")
    assert found.origins["batch_size"].text == "--batch-size"


def test_a_format_can_be_named_for_a_score(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("base_model: gpt2\nlearning_rate: 1e-3\n", encoding="utf-8")
    _, found = asked([str(path), "--as", "axolotl"])
    assert (found.target, found.recipe.learning_rate) == ("gpt2", 1e-3)


def test_no_other_run_ends_within_its_warm_up():
    for warmup, shortest in ((0, 100), (99, 100), (100, 10_000), (20_000, 100_000)):
        recipe = Recipe(warmup_steps=warmup)
        origins = origins_of_flags(recipe, {"warmup_steps": "--warmup-steps"})
        others = {other.max_steps for _, other in alternatives(recipe, origins)}
        assert min(others - {recipe.max_steps}) == shortest
