"""Options said once: fields with flags become options, and messages name what was typed."""

from __future__ import annotations

import json
from typing import Annotated, Literal, get_args

import pytest
import typer
from pydantic import BaseModel, Field
from support.commands import left_with

from rksp.cli.options import Given, Panel, with_options
from rksp.cli.shared_options import ConfirmOutput, ScoreOutput
from rksp.documents.options import MeasureOptions
from rksp.documents.spectrum import VARIANTS
from rksp.ground.errors import InputError, nearest
from rksp.ground.flags import Flag, checked, flags_of, whole
from rksp.models.streaming.memory import Streaming
from rksp.recipe import Recipe
from rksp.recipe_files.registry import read_recipe_file
from rksp.report.formats import formats_of


class Shape(BaseModel):
    """A model with flags."""

    depth: Annotated[int, Flag("--depth", "Blocks.", aliases=("--layers",))] = Field(2, ge=1)
    norm: Annotated[float | None, Flag("--norm", "A norm.", zero_is_off=True)] = 1.0
    kind: Annotated[Literal["a", "b"], Flag("--kind", "A kind.")] = "a"
    hidden: int = 7


seen: list[object] = []


@with_options
def named(name: str, shape: Annotated[Shape, Panel(title="Shape", leave_out=("kind",))]) -> None:
    """Take a model."""
    seen.append((name, shape))


@with_options
def parts(shape: Annotated[Given[Shape], Panel(title="Shape", defaults={"depth": 5})]) -> None:
    """Take what was typed."""
    seen.append(shape)


def call(command, *arguments: str) -> object:
    single = typer.Typer()
    single.command()(command)
    typer.main.get_command(single).main(args=list(arguments), standalone_mode=False)
    return seen.pop()


def test_a_model_becomes_options_and_the_options_a_model():
    assert call(named, "x") == ("x", Shape())
    assert call(named, "x", "--layers", "3", "--norm", "0") == ("x", Shape(depth=3, norm=None))
    with pytest.raises(InputError, match=r"^--depth is 0; it should be greater than or equal to"):
        call(named, "x", "--depth", "0")


def test_what_was_typed_is_told_from_what_was_not():
    given = call(parts, "--kind", "b")
    assert given.values == {"depth": 5, "norm": 1.0, "kind": "b"}
    assert given.typed == {"kind"}


def test_choices_are_those_of_the_type():
    with pytest.raises(typer.BadParameter.__mro__[1], match="use a, b"):
        call(parts, "--kind", "c")


def test_capitals_do_not_count(capsys):
    command = ["score", "gpt2", "--lr", "1e-4", "--evidence", "config", "--format", "json"]
    assert left_with([*command, "--optimizer", "AdamW", "--precision", "BF16"]) == 0
    recipe = json.loads(capsys.readouterr().out)["recipe"]
    assert (recipe["optimizer"], recipe["precision"]) == ("adamw", "bf16")
    assert Recipe.parse({"optimizer": "Lion"}).optimizer == "lion"
    assert "did you mean gpt2" in nearest("GPT2", ["llama", "gpt2"])


def test_every_field_of_the_recipe_and_of_the_measurement_has_a_flag():
    for model in (Recipe, MeasureOptions):
        assert flags_of(model).keys() == model.model_fields.keys()


def test_choices_agree_with_what_they_choose_among():
    def choices(model: type[BaseModel], field: str) -> tuple[str, ...]:
        return get_args(model.model_fields[field].annotation)

    assert choices(MeasureOptions, "variant") == tuple(VARIANTS)
    assert choices(MeasureOptions, "streaming") == get_args(Streaming)
    assert choices(ScoreOutput, "output_format") == formats_of("score")
    assert set(choices(ConfirmOutput, "output_format")) >= set(formats_of("confirm"))


def test_sizes_of_memory_are_read():
    assert MeasureOptions(max_memory="8GB").max_memory == 8 * 10**9
    for text in ("500 MB", "1.5G", "7"):
        assert MeasureOptions(max_memory=text).max_memory in (5 * 10**8, 15 * 10**8, 7)


@pytest.mark.parametrize("text", ["", "much", "-1GB", "8 GBB"])
def test_what_is_no_size_of_memory_is_refused(text):
    flags = {"max_memory": "--max-memory"}
    with pytest.raises(InputError, match=r"--max-memory is .* such as 8GB"):
        checked(MeasureOptions, {"max_memory": text}, noun="command", sources=flags)


@pytest.mark.parametrize(
    ("text", "number"),
    [("1e4", 10_000), ("10_000", 10_000), ("10k", 10_000), ("1.5M", 1_500_000), ("7.0", 7)],
)
def test_counts_are_read_as_people_write_them(text, number, capsys):
    assert whole(text) == Recipe.parse({"max_steps": text}).max_steps == number
    command = ["score", "gpt2", "--lr", "1e-4", "--evidence", "config", "--format", "json"]
    assert left_with([*command, "--max-steps", text, "--max-params", "1.3B"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["recipe"]["max_steps"] == number


@pytest.mark.parametrize(
    "text", ["1.5", "1e-3", "ten", "", "k", "1e4k", "1m", "inf", "nan", "0x10"]
)
def test_what_is_not_whole_is_no_count(text, capsys):
    assert left_with(["score", "gpt2", "--max-steps", text, "--evidence", "config"]) == 2
    said = capsys.readouterr().err
    assert f"--max-steps is '{text}'; it should be a whole number, such as 10000" in said
    with pytest.raises(InputError, match=r"'max_steps' is .*; it should be a whole number"):
        Recipe.parse({"max_steps": text})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--clip -1", "--clip is -1.0; it should be greater than 0, and --clip 0 switches it off"),
        ("--learning-rate -1", "--lr is -1.0; it should be greater than 0"),
        ("--beta1 1", "--beta1 is 1.0; it should be less than 1"),
        ("--directions 0", "--directions is 0; it should be greater than or equal to 1"),
        ("--optimizer adam2", "--optimizer is 'adam2'"),
    ],
)
def test_a_message_names_the_flag(arguments, words, capsys):
    assert left_with(["score", "gpt2", *arguments.split()]) == 2
    assert words in capsys.readouterr().err


def test_a_message_names_the_line_of_the_file(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("learning_rate: 1.0e-3\nweight_decay: -2\nper_device_train_batch_size: 4\n")
    with pytest.raises(InputError, match=r"run.yaml:2: weight_decay .* is -2.*; it should"):
        read_recipe_file(file).recipe()
    with pytest.raises(InputError, match=r"^--weight-decay is -1; it should"):
        read_recipe_file(file, given={"weight_decay": -1}).recipe()


def test_without_a_source_a_message_names_the_field():
    with pytest.raises(InputError, match=r"^Recipe field 'batch_size' is 0; it should be"):
        Recipe.parse({"batch_size": 0})
    with pytest.raises(InputError, match="no field 'batch_sise'; did you mean batch_size"):
        Recipe.parse({"batch_sise": 1})


def test_the_version_is_printed(capsys):
    assert left_with(["--version"]) == 0
    assert capsys.readouterr().out.startswith("rksp ")


def test_completion_lists_choices(capsys, monkeypatch):
    monkeypatch.setenv("_RKSP_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "rksp score gpt2 --optimizer ")
    monkeypatch.setenv("COMP_CWORD", "4")
    assert left_with([]) == 0
    shown = capsys.readouterr()
    assert shown.out.split() == [*get_args(Recipe.model_fields["optimizer"].annotation)]
    assert shown.err == ""
