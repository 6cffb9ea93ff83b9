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
from rksp.cli.app import COMMANDS, HIDDEN, OLD
from rksp.documents.score import ScoreReport
from rksp.ground.flags import flags_of
from rksp.recipe import Recipe

PUBLIC = (
    "ArtifactError Incomplete InputError NotCovered Profile Recipe Result RkspError Status "
    "UpdateBound confirm diff evaluate fix grid profile resolve score watch why"
)

RECIPE = (
    "--batch --bs --dtype --eps --optim --warmup --wd "  # of one word, by `Flag.names`
    "--accumulate --batch-size --beta1 --beta2 --clip --epsilon --examples "
    "--learning-rate --lora-alpha --lora-rank --lr --max-steps --min-lr-ratio "
    "--objective --optimizer --peft --precision --rows "
    "--schedule --sequence-length --warmup-steps --weight-decay "
)
SHORT = (  # where the run is not the question
    "--batch --batch-size --bs --devices --learning-rate --lr --max-steps --optim --optimizer "
    "--recipe --schedule --sequence-length --steps --warmup --warmup-steps --set --help-all "
)
RUN = "--as --devices --pretrained --recipe --strict "
MEASURE = "--evidence --max-memory --snapshots --stream --threads "
MODEL = "--allow-hub --offline --max-params --trust-remote-code --set "

OPTIONS = {
    "audit": "--as --devices --env --format --gpu --ignore --model --verbose --help-all",
    "confirm": RECIPE
    + RUN
    + MODEL
    + "--task --arm --data --device --evidence --exit-zero --fault --format --keep --monitor "
    "--output --record --runs --seed --seeds --shrink --steps --sweep --threads --help-all",
    "diff": "--exit-zero --fail-on --format",
    "explain": "--as --devices --format --rows",
    "fix": "--as --devices --format --write",
    "grid": RECIPE
    + MEASURE
    + MODEL
    + "--as --devices --steps --address --data --dry-run --engine --exit-zero --export --fail-on "
    "--format --env --gpu --ignore --no-cache --output --retry-failed --risk --runs "
    "--samples --slurm --target --timeout --top --where --workers --help-all",
    "mcp": "--root",
    "report": SHORT + "--allow-hub --format --offline --output --schema --sliders --task",
    "reproduce": "--stored",
    "why": SHORT + "--allow-hub --as --format --metric --offline --output --target",
    "score": RECIPE
    + RUN
    + MEASURE
    + MODEL
    + "--steps --task --help-all --baseline --blocks --data --exit-zero --fail-on --format "
    "--env --gpu --ignore --level --no-cache --output --probe --directions --risk --runs --seed "
    "--seeds --select --spectra --tuned --variant --verbose",
    "watch": "--log --memory --monitor --notify --on-alarm --record --status --to --help-all",
}
MOST_SHOWN, MOST = 90, 250  # options of all ten commands, in --help and in --help-all

REPORT_KEYS = (
    "assumed baseline carried findings gate kind next_command non_finite not_run own_runs "
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


def test_ten_commands_with_few_options(capsys):
    shown = _help(capsys, "--help")
    listed = [name for name, *_ in COMMANDS if f"│ {name} " in shown]
    assert len(listed) == 10 and not {*listed} & {*HIDDEN}
    options = {name: _options(command) for name, command in commands().items() if name in listed}
    brief = {name: getattr(commands()[name].loaded, "brief", ()) for name in listed}
    in_help = [
        option
        for name, found in options.items()
        for option in found
        if not brief[name] or option.name in (*brief[name], "help_all")
    ]
    assert len(in_help) <= MOST_SHOWN
    assert sum(map(len, options.values())) <= MOST


def _options(command) -> list:
    return [one for one in command.params if one.param_type_name == "option" and not one.hidden]


OLD_CALLS = {
    "transfer": "llama llama --lr 1e-3 --evidence config",
    "calibrate": "gpt2 --set n_layer=2 --shrink",
    "playground": "llama --optimizer lamb",
    "schema": "grid",
    "runs": "nosuch",
    "checks": "",
    "explain-config": "nosuch.yaml",
}


@pytest.mark.parametrize("name", OLD)
def test_an_old_name_works_and_names_the_new_one(capsys, name):
    code = left_with([name, *OLD_CALLS[name].split()])
    old = capsys.readouterr()
    note, *errors = old.err.splitlines()
    assert f"rksp {name} is now rksp {' '.join(OLD[name])};" in note and "0.13" in note
    assert left_with([*OLD[name], *OLD_CALLS[name].split()]) == code
    new = capsys.readouterr()
    assert (old.out, errors) == (new.out, new.err.splitlines())


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
