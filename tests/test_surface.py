"""What others depend on, frozen as literals: change one and you owe its users a note."""

from __future__ import annotations

import typer

import rksp
from rksp.cli import app
from rksp.documents.score import ScoreReport

PUBLIC = (
    "ArtifactError Incomplete InputError NotCovered Profile Recipe RksPError Status evaluate "
    "profile resolve"
).replace("RksP", "Rksp")

SCORE_OPTIONS = (
    "--allow-hub --baseline "
    "--batch-size --beta2 --blocks --clip --devices --epsilon --evidence --exit-zero --fail-on "
    "--format --kreiss --lr --max-memory --max-params --max-steps --optimizer --output "
    "--precision --probe --rank --recipe --risk --schedule --seed --seeds --sequence-length --set "
    "--snapshots --stream --threads --trust-remote-code --variant --warmup-steps --weight-decay"
)

REPORT_KEYS = (
    "baseline findings gate kernels kind non_finite provenance recipe recipe_places schema_version "
    "seeds spread target timings verdict"
)


def test_public_names():
    assert " ".join(rksp.__all__) == PUBLIC
    assert all(getattr(rksp, name) is not None for name in rksp.__all__)


def test_commands():
    command = typer.main.get_command(app)
    assert sorted(command.commands) == [
        "bench",
        "checks",
        "confirm",
        "diff",
        "explain",
        "explain-config",
        "grid",
        "lab",
        "report",
        "reproduce",
        "schema",
        "score",
    ]


def test_options_of_score():
    parameters = typer.main.get_command(app).commands["score"].params
    options = {name for p in parameters for name in p.opts if name.startswith("--")}
    assert " ".join(sorted(options)) == SCORE_OPTIONS


def test_keys_of_the_report():
    assert " ".join(sorted(ScoreReport.model_json_schema()["properties"])) == REPORT_KEYS
