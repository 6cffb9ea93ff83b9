"""The line `next:` is the user's own command with what is to change in it, and it can be run."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from unittest import mock

import pytest
import transformers
from support.commands import run_rksp

from rksp.ground.errors import InputError

SIZES = ["n_layer=2", "n_embd=32", "n_head=2", "vocab_size=512"]
TINY = [word for size in SIZES for word in ("--set", size)]
QUICK = ["--snapshots", "256", "--threads", "1"]


def following(*arguments: str, cwd: Path | None = None) -> tuple[list[str], dict]:
    """Score, and return the words of the next command and the report."""
    out = (cwd or Path.cwd()) / "report.json"
    done = run_rksp("score", *arguments, "-o", str(out), cwd=cwd)
    report = json.loads(out.read_text())
    out.unlink()
    line = done.stdout.replace(" \\\n    ", " ").partition("  next: ")[2].splitlines()[0]
    shown = shlex.split(line.partition("   (")[0])
    assert shown == shlex.split(report["next_command"] or "the same command with -v")
    return shown, report


def trained(words: list[str], cwd: Path | None = None) -> tuple[object, object]:
    """Run a confirmation as far as its model, and return the run and the model's source."""
    from rksp.cli import training
    from rksp.cli.training import trained_source

    seen = {}

    def instead(run, measure, model, trials):
        seen["run"] = run
        seen["source"] = trained_source(trials, run, model)
        raise InputError("seen")

    with mock.patch.object(training, "_confirmed", instead):
        assert run_rksp(*words[1:], cwd=cwd).stderr.endswith("rksp: seen\n")
    return seen["run"], seen["source"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("with a space") / "my model"
    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=512)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


def test_another_rate_keeps_the_model_the_optimizer_and_the_run(tmp_path):
    given = ["gpt2", *TINY, "--optimizer", "lion", "--max-steps", "300", "--evidence", "config"]
    words, report = following(*given, "--lr", "0.9", cwd=tmp_path)
    assert words[:3] == ["rksp", "score", "gpt2"] and report["verdict"] == "risk"
    risk = report["seeds"][0]["risk"]
    start = min(risk["start_here"], risk["do_not_exceed"])  # in a run so short S is above X
    again = following(*words[2:], cwd=tmp_path)[1]
    assert again["recipe"] == report["recipe"] | {"learning_rate": pytest.approx(start, rel=0.05)}
    assert again["target"]["config_hash"] == report["target"]["config_hash"]
    assert again["risk_verdict"] != "risk"


def test_without_a_rate_it_is_the_one_to_start_with(tmp_path):
    words, _ = following("gpt2", *TINY, "--evidence", "config", cwd=tmp_path)
    _, again = following(*words[2:], cwd=tmp_path)
    assert again["recipe"]["learning_rate"] is not None


def test_after_a_run_file_it_names_the_file(tmp_path):
    (tmp_path / "train.yaml").write_text(
        "learning_rate: 0.5\nmax_steps: 400\nper_device_train_batch_size: 16\nwarmup_steps: 40\n"
        "bf16: true\n"
    )
    given = ["gpt2", "--recipe", "train.yaml", "--devices", "1", "--evidence", "config"]
    words, report = following(*given, cwd=tmp_path)
    assert words[words.index("--recipe") + 1] == "train.yaml"
    _, again = following(*words[2:], cwd=tmp_path)
    assert again["recipe"]["learning_rate"] < 0.5
    changed = {k for k in again["recipe"] if again["recipe"][k] != report["recipe"][k]}
    assert changed == {"learning_rate"}


def test_after_the_cheap_tier_it_measures(tmp_path):
    words, _ = following("gpt2", *TINY, "--lr", "1e-3", "--evidence", "config", cwd=tmp_path)
    assert words == ["rksp", "score", "gpt2", "--lr", "1e-3", *TINY]


def test_settings_of_a_small_model_are_trained_as_they_are(tmp_path):
    words, _ = following("gpt2", *TINY, *QUICK, "--lr", "1e-3", "--beta2", "0.95", cwd=tmp_path)
    assert words[:2] == ["rksp", "confirm"] and "--shrink" not in words
    run, source = trained(words, tmp_path)
    assert (run.recipe.learning_rate, run.recipe.adam_beta2) == (1e-3, 0.95)
    assert source.config.n_embd == 32
    few = ["--steps", "2", "--seeds", "1", "--batch-size", "2", "--sequence-length", "16"]
    cheap = ["--evidence", "config", "--arm", "baseline"]
    assert run_rksp(*words[1:], *few, *cheap, cwd=tmp_path).returncode in (0, 1)


def test_a_checkpoint_is_trained_itself_and_its_path_is_quoted(checkpoint, tmp_path):
    words, report = following(str(checkpoint), "--lr", "1e-4", *QUICK, cwd=tmp_path)
    assert report["target"]["start"]["kind"] == "stored"
    assert words[:2] == ["rksp", "confirm"] and "--shrink" not in words
    run, source = trained(words, tmp_path)
    assert source.start.is_stored and run.recipe.learning_rate == 1e-4


def test_a_large_model_type_is_shrunk_without_the_settings_that_shrinking_refuses(tmp_path):
    unseen = ["--set", "resid_pdrop=0.0", "--lr", "1e-3", "--set", "batch_ramp=0:16,500:32"]
    words, report = following("gpt2", *unseen, "--evidence", "config", cwd=tmp_path)
    assert report["risk_verdict"] == "cannot tell"
    assert words[:2] == ["rksp", "confirm"] and {"--shrink", "--sweep"} <= set(words)
    assert "--seeds" not in words and "resid_pdrop=0.0" not in words  # refused beside it
    assert words[words.index("--set") + 1] == "batch_ramp=0:16,500:32"  # of the recipe


@pytest.mark.parametrize("rate", [[], ["--lr", "1e-4"]])
def test_where_rksp_cannot_tell_it_proposes_no_rate_of_its_own(rate, tmp_path):
    given = ["gpt2", *TINY, "--objective", "grpo", "--evidence", "config", *rate]
    words, report = following(*given, cwd=tmp_path)
    assert report["risk_verdict"] == "cannot tell"
    assert words[:3] == ["rksp", "score", "gpt2"] and words[words.index("--runs") + 1] == "RUNS"
    assert ("--lr" in words) == bool(rate)


@pytest.mark.parametrize(
    "given",
    [
        ["--objective", "dpo"],
        ["--precision", "fp8", "--pretrained"],
        ["--optimizer", "lamb", "--peft", "lora"],
        ["--task", "text-classification", "--objective", "reward"],
    ],
)
def test_after_cannot_tell_a_command_leads_on(given, tmp_path):
    words, report = following("gpt2", *TINY, *given, "--evidence", "config", cwd=tmp_path)
    assert report["risk_verdict"] == "cannot tell"
    assert words[0] == "rksp" and (words[1] == "score" or "--sweep" in words)
    assert ("CHECKPOINT" in words) == (given[-1] == "--pretrained")


def test_where_rksp_cannot_tell_of_a_model_of_ones_own_it_trains_a_ladder(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom torch import nn\n\ndef make():\n"
        "    return nn.Linear(4, 3), (torch.randn(6, 4), torch.randint(0, 3, (6,)))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    words, report = following("mine:make", "--lr", "1e-3", "--no-cache", *QUICK, cwd=tmp_path)
    assert report["risk_verdict"] == "cannot tell"
    assert words[:3] == ["rksp", "confirm", "mine:make"] and "--sweep" in words


def test_an_error_is_explained_next(tmp_path):
    given = ["gpt2", *TINY, "--precision", "fp16-pure", "--lr", "1e-4", "--evidence", "config"]
    words, report = following(*given, cwd=tmp_path)
    assert (report["verdict"], report["risk_verdict"]) == ("risk", "ok")
    assert words == ["rksp", "explain", "RKSP304"]
    assert run_rksp(*words[1:]).returncode == 0


def test_a_command_with_several_arguments_is_told_as_it_was_typed(tmp_path):
    table = tmp_path / "past.csv"
    table.write_text("learning_rate,max_steps,final_loss\n1e-4,1000,4.1\n1e-3,1000,3.9\n")
    names = [str(table), str(table)]
    done = run_rksp("why", *names, "--target", "gpt2", "--format", "json")
    told = json.loads(done.stdout)["provenance"]["command"]
    assert shlex.split(told)[:4] == ["rksp", "why", *names]


@pytest.mark.parametrize(("typed", "verb"), [([], "fix"), (["--lr", "0.4"], "score")])
def test_a_run_file_that_is_not_to_be_launched_is_fixed(typed, verb, tmp_path):
    (tmp_path / "a run.yaml").write_text(
        "base_model: gpt2\nlearning_rate: 0.3\nmicro_batch_size: 8\nsequence_len: 512\n"
        "gradient_accumulation_steps: 1\nmax_steps: 1000\ndatasets: [{path: texts, type: alpaca}]\n"
    )
    given = ["a run.yaml", "--evidence", "config", *typed]
    words, report = following(*given, cwd=tmp_path)
    assert words[:3] == ["rksp", verb, "a run.yaml"]
    write = " --write" if verb == "fix" else ""
    assert report["summary"]["next_command"] == report["next_command"] + write
