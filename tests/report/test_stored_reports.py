"""Stored reports: every version of the same major schema is read, another is named."""

from __future__ import annotations

import json

import pytest
from support.commands import run_rksp
from support.reports import scored

from rksp.cli.rendering import load
from rksp.documents.base import MAJOR, SCHEMA_VERSION
from rksp.documents.score import ScoreReport
from rksp.ground.errors import ArtifactError

LATER = f"{MAJOR}.{int(SCHEMA_VERSION.partition('.')[2]) + 1}"


@pytest.fixture
def stored(tmp_path):
    """Writes the report with changes, and returns its file."""

    def write(**changed: object):
        document = json.loads(scored().to_json()) | changed
        path = tmp_path / "old.json"
        path.write_text(json.dumps(document))
        return path

    return write


def test_fields_of_a_later_minor_schema_are_left_out(stored):
    target = json.loads(scored().to_json())["target"] | {"color": "red"}
    path = stored(schema_version=LATER, mood="calm", target=target)
    assert load(path).target == scored().target
    assert run_rksp("report", str(path)).returncode == 0


def test_the_same_field_in_this_version_is_an_error(stored):
    with pytest.raises(ArtifactError, match="mood is wrong"):
        load(stored(mood="calm"))


def test_what_a_minor_version_added_has_a_default(stored):
    document = json.loads(scored().to_json())
    optional = [n for n, f in ScoreReport.model_fields.items() if not f.is_required()]
    assert {"next_command", "assumed", "recipe_places"} <= set(optional)
    path = stored()
    path.write_text(json.dumps({k: v for k, v in document.items() if k not in optional}))
    assert load(path).verdict == scored().verdict


@pytest.mark.parametrize("version", ["2.1", "3.0", f"{int(MAJOR) + 1}.0", "none"])
def test_another_major_schema_is_refused_with_what_to_do(stored, version):
    path = stored(schema_version=version)
    done = run_rksp("score", "gpt2", "--lr", "1e-3", "--baseline", str(path))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"it has schema {version}, and {MAJOR}.x is read; score it again" in done.stderr
