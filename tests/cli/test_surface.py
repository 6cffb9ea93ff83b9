"""What others depend on, frozen as literals: change one and you owe its users a note."""

from __future__ import annotations

import ast
import inspect
import re
from importlib import import_module

import pytest
import typer
from support.commands import left_with
from support.places import ROOT

import rksp
from rksp.cli import app
from rksp.cli.app import AUTHORS, COMMANDS
from rksp.documents.score import ScoreReport
from rksp.ground.flags import flags_of
from rksp.recipe import Recipe

PUBLIC = (
    "ArtifactError Incomplete InputError NotCovered Profile Recipe Result RkspError Status "
    "diff evaluate profile resolve score why"
)

WHY = (
    "--allow-hub --format --metric --offline --output --recipe --set --strict --target --task "
    "--trust-remote-code --help-all"
)
RECIPE = (
    "--batch --bs --dtype --eps --optim --warmup --wd "  # of one word, by `Flag.names`
    "--accumulate --as --batch-ramp --batch-size --beta1 --beta2 --clip --clip-range "
    "--decay-factor --decay-milestones --decay-power --decay-shape --decay-steps --devices "
    "--epsilon --examples --generations --kl-coefficient --preference-beta "
    "--learning-rate --lora-alpha --lora-rank --lora-targets --lr --max-steps --min-lr-ratio "
    "--momentum --muon-scale --objective --optimizer --peft --precision --pretrained --rows "
    "--schedule --sequence-length --warmup-steps --weight-decay --z-loss "
)
MEASURE = (
    "--blocks --evidence --kreiss --max-memory --probe --rank --snapshots --spectra --stream "
    "--threads "
    "--variant "
)
MODEL = "--allow-hub --offline --max-params --trust-remote-code "

OPTIONS = {
    "calibrate": RECIPE
    + MODEL
    + "--data --device --evidence --format --output --recipe --record --seed --set --shrink "
    "--steps --strict --task --text --threads --verbose --help-all",
    "audit": "--as --devices --env --format --gpu --ignore --model --verbose",
    "checks": "--format",
    "confirm": RECIPE
    + MODEL
    + "--task --arm --bar --data --device --evidence --exit-zero --fault --format --keep --monitor "
    "--output --recipe --record --runs --seed --seeds --set --shrink --steps --strict --text "
    "--threads --help-all",
    "diff": "--exit-zero --fail-on --format",
    "explain": "--format",
    "explain-config": "--as --devices --format --rows --strict",
    "fix": "--as --devices --format --write",
    "grid": RECIPE.replace("--pretrained ", "")
    + "--steps "
    + MEASURE
    + MODEL
    + "--address --data --dry-run --engine --exit-zero --export --fail-on --format "
    "--env --gpu --ignore --max-cells --no-cache --output --retry-failed --risk --runs "
    "--sample-seed --samples --set --slurm --target --timeout --top --where --workers --help-all",
    "mcp": "",
    "playground": RECIPE
    + "--steps "
    + "--allow-hub --offline --output --recipe --set --strict --task --help-all",
    "report": "--format --output",
    "reproduce": "--stored",
    "why": RECIPE + "--steps " + WHY,
    "runs": RECIPE + "--steps " + WHY,
    "schema": "",
    "score": RECIPE
    + "--steps "
    + MEASURE
    + MODEL
    + "--task --help-all --apply --baseline --data --exit-zero --fail-on --format "
    "--env --gpu --ignore --level --no-cache --output --recipe --risk --runs --seed --seeds "
    "--select --set --strict --verbose",
    "watch": "--log --memory --monitor --notify --on-alarm --record --status --to",
    "transfer": RECIPE.replace("--as ", "")
    + "--steps "
    + "--task --allow-hub --format --max-params --offline --recipe --runs --set "
    "--strict --trust-remote-code --help-all",
}

REPORT_KEYS = (
    "assumed baseline findings gate kind next_command non_finite not_run own_runs "
    "provenance recipe recipe_origins recipe_places risk_verdict schema_version seeds spread "
    "summary target timings unread verdict"
)


def commands() -> dict[str, object]:
    """Every command by its name."""
    return dict(typer.main.get_command(app).commands)


def test_public_names():
    assert " ".join(rksp.__all__) == PUBLIC
    assert all(getattr(rksp, name) is not None for name in rksp.__all__)


def test_every_whole_number_may_be_written_as_1e1():
    def read(option, text):
        try:
            return option.process_value(context, text)
        except typer.BadParameter:
            return None

    context = typer.Context(typer.core.TyperCommand("rksp"), resilient_parsing=True)
    options = [
        option
        for command in commands().values()
        for option in getattr(command, "params", ())
        if not option.multiple and not option.is_eager
    ]
    counts = [option for option in options if type(read(option, "10")) is int]
    assert {"max_steps", "devices", "seeds", "threads", "workers"} <= {o.name for o in counts}
    assert [option.name for option in counts if read(option, "1e1") != 10] == []


def test_commands():
    assert sorted(commands()) == sorted(OPTIONS)


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name):
    options = {opt for p in commands()[name].params for opt in p.opts if opt.startswith("--")}
    assert sorted(options) == sorted(OPTIONS[name].split())


def test_every_command_is_listed_as_it_describes_itself():
    for name, where, summary in COMMANDS:
        module, _, attribute = where.partition(":")
        found = getattr(import_module(module), attribute)
        assert inspect.getdoc(found).splitlines()[0] == summary, name


def _help(capsys, *words: str) -> str:
    assert left_with([*words]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(("name", "place"), [("lab", "python -m lab"), ("bench", "lab bench")])
def test_what_left_the_package_says_where_it_went(capsys, name, place):
    assert left_with([name, "--help"]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert f"rksp {name}" in sentence and place in sentence and "checkout" in sentence
    assert left_with(["labb"]) == 2
    assert "checkout" not in capsys.readouterr().err


def test_the_help_of_score_is_short_and_help_all_has_every_option(capsys):
    short, whole = _help(capsys, "score", "--help"), _help(capsys, "score", "--help-all")
    others = {one for flag in flags_of(Recipe).values() for one in flag.options[1:]}
    names = {n for n in OPTIONS["score"].split() if n not in others}
    listed = {name for name in names if f"{name} " in short or f"{name}," in short}
    assert len(listed) == 15  # fourteen that people use, and --help-all
    assert all(f"{name} " in whole or f"{name}," in whole for name in names)
    assert "--help-all" in short
    assert len(short.splitlines()) < len(whole.splitlines()) / 2
    assert _help(capsys, "score", "--help") == short


def test_what_serves_authors_stands_under_its_own_heading(capsys):
    shown = _help(capsys, "--help")
    people, authors = shown.split("For authors")
    assert all(f" {name} " in authors.partition("╰")[0] for name in AUTHORS)
    assert "│ score " in people and "│ score " not in authors


# Options of Megatron-LM and of git.
FOREIGN = {"--num-layers", "--exclude-standard"}


def test_every_option_that_a_message_names_exists():
    known = {
        option
        for command in commands().values()
        for parameter in getattr(command, "params", ())
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    known |= {"--help", "--no-config", "--version"} | FOREIGN
    named = {}
    for home in ("rksp", "cli"):
        for path in sorted((ROOT / home).rglob("*.py")):
            if {"readers", "parse", "bench", "engines"} & set(path.parts):
                continue  # these name the options of the programs that they read or start
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    for option in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", node.value):
                        named.setdefault(option, path.name)
    assert {o: file for o, file in named.items() if o not in known} == {}
    assert "--task" in named


def test_options_of_the_program():
    options = {opt for p in typer.main.get_command(app).params for opt in p.opts}
    assert options == {"--no-config", "--version", "--install-completion", "--show-completion"}


def test_keys_of_the_report():
    assert " ".join(sorted(ScoreReport.model_json_schema()["properties"])) == REPORT_KEYS
