"""What others depend on, frozen as literals: change one and you owe its users a note."""

from __future__ import annotations

import inspect
from importlib import import_module

import pytest
import typer

import rksp
from rksp.cli import app
from rksp.cli.commands import COMMANDS
from rksp.documents.score import ScoreReport

PUBLIC = (
    "ArtifactError Incomplete InputError NotCovered Profile Recipe Result RkspError Status "
    "evaluate profile resolve score"
)

RECIPE = (
    "--accumulate --as --batch-ramp --batch-size --beta1 --beta2 --clip --decay-factor "
    "--decay-milestones --decay-power --decay-shape --decay-steps --devices --epsilon "
    "--learning-rate --lora-alpha --lora-rank --lora-targets --lr --max-steps --min-lr-ratio "
    "--momentum --objective --optimizer --peft --precision --schedule --sequence-length "
    "--warmup-steps --weight-decay --z-loss "
)
MEASURE = (
    "--blocks --evidence --kreiss --max-memory --probe --rank --snapshots --stream --threads "
    "--variant "
)
MODEL = "--allow-hub --max-params --trust-remote-code "

OPTIONS = {
    "bench": "",
    "bench score": "--rounds --states --width",
    "checks": "--audit --format",
    "confirm": RECIPE
    + MODEL
    + "--arm --device --evidence --exit-zero --fail-on --fault --format --keep --monitor --output "
    "--recipe --seed --seeds --set --shrink --steps --text --threads",
    "diff": "--exit-zero --fail-on --format",
    "explain": "",
    "explain-config": "--as --devices --format",
    "grid": RECIPE
    + MEASURE
    + MODEL
    + "--address --classifier --dry-run --engine --exit-zero --export --fail-on --format --ignore "
    "--max-cells --output --retry-failed --risk --sample-seed --samples --slurm --target "
    "--timeout --top --where --workers",
    "lab": "",
    "lab card": "",
    "lab eval": "--collection --measurements --probes --real",
    "lab fit": "--collection --measurements --output --real",
    "lab levers": "--plan",
    "lab measure": "--known --output --pack --workers",
    "lab pack": "--output",
    "lab run": "--device --known --output --workers",
    "report": "--format --output",
    "reproduce": "--data --folder --output --stored --workers",
    "schema": "",
    "score": RECIPE
    + MEASURE
    + MODEL
    + "--baseline --classifier --exit-zero --fail-on --format --ignore --level --output --recipe "
    "--risk --seed --seeds --select --set --verbose",
    "transfer": RECIPE.replace("--as ", "")
    + "--allow-hub --evidence --format --max-params --recipe --set --trust-remote-code",
}

REPORT_KEYS = (
    "assumed baseline findings gate kernels kind non_finite not_run provenance recipe "
    "recipe_origins recipe_places schema_version seeds spread target timings verdict"
)


def commands() -> dict[str, object]:
    """Every command and subcommand by its words."""
    found = {}
    for name, command in typer.main.get_command(app).commands.items():
        found[name] = command
        for inner, part in getattr(command, "commands", {}).items():
            found[f"{name} {inner}"] = part
    return found


def test_public_names():
    assert " ".join(rksp.__all__) == PUBLIC
    assert all(getattr(rksp, name) is not None for name in rksp.__all__)


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
        told = found.info.help if isinstance(found, typer.Typer) else inspect.getdoc(found)
        assert told.splitlines()[0] == summary, name


def test_options_of_the_program():
    options = {opt for p in typer.main.get_command(app).params for opt in p.opts}
    assert options == {"--no-config", "--version", "--install-completion", "--show-completion"}


def test_keys_of_the_report():
    assert " ".join(sorted(ScoreReport.model_json_schema()["properties"])) == REPORT_KEYS
