"""Defaults from a file: found, checked, and weaker than what is typed."""

from __future__ import annotations

import pytest
import typer

from rksp.cli import app
from rksp.cli.defaults import TYPED_ONLY, default_map, find_defaults
from rksp.ground.errors import InputError

COMMAND = typer.main.get_command(app)


def _map(tmp_path, text: str) -> dict:
    (tmp_path / ".rksp.toml").write_text(text)
    file, tables = find_defaults(tmp_path)
    return default_map(file, tables, COMMAND)


def test_the_nearest_file_wins_and_the_search_ends_at_the_repository(tmp_path):
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert find_defaults(inner) is None or not str(find_defaults(inner)[0]).startswith(
        str(tmp_path)
    )
    (tmp_path / "pyproject.toml").write_text("[tool.rksp.score]\nlr = 1e-3\n")
    assert find_defaults(inner) == (tmp_path / "pyproject.toml", {"score": {"lr": 1e-3}})
    (tmp_path / "a" / "pyproject.toml").write_text("[project]\nname = 'x'\n")  # has no table
    assert find_defaults(inner)[0] == tmp_path / "pyproject.toml"
    (tmp_path / ".rksp.toml").write_text("[score]\nlr = 2e-3\n")
    assert find_defaults(inner)[1] == {"score": {"lr": 2e-3}}
    (tmp_path / "a" / ".git").mkdir()
    assert find_defaults(inner) is None


def test_options_become_parameters(tmp_path):
    found = _map(tmp_path, "[score]\nwarmup-steps = 10\nkreiss = true\n")
    assert found == {"score": {"warmup_steps": 10, "kreiss": True}}


BAD = {
    "[scor]": "did you mean score",
    "[lab.eval]": "no command 'lab'",
    "score = 3": r"under \[score\]",
    "[score]\nwarm-up-steps = 3": "did you mean warmup-steps",
    "[confirm]\nmonitor = 'loss'": "list of texts",
    "[score]\nset = ['n_layer=2']": "model that is judged; type --set",
    "[score]\nignore = ['RKSP205']": "can hide a failure; type --ignore",
    "[score]\nselect = ['RKSP9']": "can hide a failure; type --select",
    "[score]\nlevel = ['RKSP205=note']": "can hide a failure; type --level",
    "[score]\nkreiss = 'yes'": "true or false",
    "[score]\nlr = [1]": "one text or number",
    "[score]\nseeds = true": "one text or number",
    "[score]\ntrust-remote-code = true": "type --trust-remote-code",
    "[score]\nallow_hub = true": "type --allow-hub",
    "[score": "not valid TOML",
    "[score]\noutput = ['text=x']": "writes files; type --output",
    "[confirm]\nkeep = 'x'": "writes files; type --keep",
    "[grid]\nexport = ['x.csv']": "writes files; type --export",
    "[grid]\nengine = 'ray'": "other machines; type --engine",
    "[grid]\naddress = 'ray://x:1'": "other machines; type --address",
    "[grid]\nslurm = ['a=b']": "other machines; type --slurm",
    "[grid]\ntarget = 'evil:run'": "run or be fetched; type --target",
    "[score]\nexit-zero = true": "can hide a failure; type --exit-zero",
    "[score]\nbaseline = 'x.json'": "can hide a failure; type --baseline",
    "[score]\nfail-on = 'never'": "in a file of defaults; type --fail-on never",
    "[score]\nfail-on = 0.9": "cannot be weaker than 0.5",
    "[diff]\nfail-on = 'never'": "cannot be weaker than error",
    "[score]\nclassifier = 'mine.json'": "type --classifier",
}


@pytest.mark.parametrize("value", ["'error'", "'warning'", "0.1", "'0.5'"])
def test_a_gate_may_be_stricter(tmp_path, value):
    assert _map(tmp_path, f"[score]\nfail-on = {value}\n")["score"]["fail_on"]


def _options(command) -> set[str]:
    inner = getattr(command, "commands", None)
    if inner is None:
        return {name for p in command.params for name in p.opts if name.startswith("--")}
    return set().union(*(_options(part) for part in inner.values()))


# Options that take a path or a place, and only read it.
READS = {"--data", "--runs", "--recipe", "--probe", "--text"}


def test_every_option_that_must_be_typed_exists():
    assert {f"--{name}" for name in TYPED_ONLY} <= _options(COMMAND)


def test_every_option_with_a_path_reads_or_must_be_typed():
    def paths(command) -> set[str]:
        inner = getattr(command, "commands", None)
        if inner is None:
            kinds = (p for p in command.params if p.param_type_name == "option")
            found = (p.opts for p in kinds if "pathlib" in str(vars(p)))
            return {name for names in found for name in names if name.startswith("--")}
        return set().union(*(paths(part) for part in inner.values()))

    typed = {f"--{name}" for name in TYPED_ONLY}
    assert paths(COMMAND) <= READS | typed
    assert "--probe" in paths(COMMAND)


@pytest.mark.parametrize("text", BAD)
def test_what_means_nothing_is_refused(text, tmp_path):
    with pytest.raises(InputError, match=BAD[text]):
        _map(tmp_path, text)


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs `rksp checks`, a command without torch, in a folder with a file of defaults."""
    from rksp.cli import main

    (tmp_path / ".git").mkdir()
    (tmp_path / ".rksp.toml").write_text("[checks]\nformat = 'json'\n")
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(list(arguments))
        return left.value.code, *capsys.readouterr()

    return call


def test_a_default_is_taken_and_named_on_stderr(run):
    code, out, err = run("checks")
    assert (code, out[0]) == (0, "[")
    assert "defaults from" in err
    assert ".rksp.toml" in err


def test_the_command_line_wins(run):
    assert run("checks", "--format", "text")[1].startswith("RKSP")


def test_no_config_ignores_the_file(run):
    code, out, err = run("--no-config", "checks")
    assert code == 0
    assert out.startswith("RKSP")
    assert "defaults" not in err


def test_a_bad_value_is_exit_code_two_with_nothing_on_stdout(run, tmp_path):
    (tmp_path / ".rksp.toml").write_text("[score]\nseeds = 'many'\n")
    code, out, err = run("score", "gpt2")
    assert (code, out) == (2, "")
    assert "--seeds" in err
