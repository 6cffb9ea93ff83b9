"""Python and the command line give the same document for the same question."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from support.commands import run_rksp
from support.past_runs import LOSSES, RATES, write_table

import rksp

# What differs: how the question was asked, and how long the answer took.
ASKED = ("provenance", "timings", "next_command")
RUN_FILE = (
    "model_name_or_path: gpt2\nlearning_rate: 6.0e-4\nper_device_train_batch_size: 8\n"
    "max_steps: 2000\nwarmup_steps: 100  # rksp: ignore RKSP503\nbf16: true\noutput_dir: out\n"
)
FACTORY = """
import torch
from torch import nn

def make():
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    return model, (torch.randn(8, 8), torch.randint(0, 4, (8,)))
"""
TINY = {"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 256}
QUICK = ["--no-cache", "--sequence-length", "32", "--snapshots", "64"]
SHORT = {"cache": False, "states": 64}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a run file, past runs, a configuration and a factory, to work in."""
    (tmp_path / "train.yaml").write_text(RUN_FILE)
    (tmp_path / "own_factory.py").write_text(FACTORY)
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    write_table(tmp_path / "past.csv", [rate / 10 for rate in RATES], LOSSES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def typed(*words: str) -> dict:
    """The document of the command line."""
    done = run_rksp("score", *words, "--threads", str(torch.get_num_threads()), "--format", "json")
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def different(command: dict, call: dict) -> dict[str, tuple[object, object]]:
    """The fields in which two documents differ; the origin of a typed field names its option."""
    for document in (command, call):
        for name in ASKED:
            document.pop(name)
        for origin in document["recipe_origins"].values():
            if origin["kind"] == "flag":
                origin["text"] = ""
    for document in (command, call):
        document["summary"]["next_command"] = ""
    assert command.keys() == call.keys()
    return {name: (command[name], call[name]) for name in command if command[name] != call[name]}


def called(*arguments, **more) -> dict:
    """The document of Python."""
    return json.loads(rksp.score(*arguments, **more).report.to_json())


CONFIG = ["--evidence", "config"]
CASES = {
    "plain": (["gpt2", "--lr", "6e-4", *CONFIG], ["gpt2"], {"lr": 6e-4, "evidence": "config"}),
    "terms": (
        [
            *("gpt2", "--lr", "6e-4", "--fail-on", "0.1", "--risk", "0.05"),
            "--ignore=RKSP503",
            *CONFIG,
        ],
        ["gpt2"],
        {"lr": 6e-4, "bar": 0.1, "risk": 0.05, "ignore": "RKSP503", "evidence": "config"},
    ),
    "without a rate": (["gpt2", *CONFIG], ["gpt2"], {"evidence": "config"}),
    "past runs": (
        ["gpt2", "--lr", "3e-3", "--runs", "past.csv", *CONFIG],
        ["gpt2"],
        {"lr": 3e-3, "runs": "past.csv", "evidence": "config"},
    ),
    "run file": (["train.yaml", *CONFIG], ["train.yaml"], {"evidence": "config"}),
    "run file on devices, from scratch": (
        ["train.yaml", "--devices", "8", "--lr", "1e-3", "--from-scratch", *CONFIG],
        ["train.yaml"],
        {"devices": 8, "lr": 1e-3, "is_pretrained": False, "evidence": "config"},
    ),
    "run file of a named trainer": (
        ["train.yaml", "--as", "hugging-face", *CONFIG],
        ["train.yaml"],
        {"trainer": "hugging-face", "evidence": "config"},
    ),
    "recipe of a file": (
        ["gpt2", "--recipe", "train.yaml", "--lr", "1e-3", *CONFIG],
        ["gpt2"],
        {"recipe": "train.yaml", "lr": 1e-3, "evidence": "config"},
    ),
    "fine-tuning": (
        ["gpt2", "--lr", "2e-5", "--pretrained", *CONFIG],
        ["gpt2"],
        {"lr": 2e-5, "is_pretrained": True, "evidence": "config"},
    ),
    "measured seeds": (
        ["config.json", "--lr", "1e-3", "--seeds", "2", *QUICK],
        ["config.json"],
        {"recipe": {"lr": 1e-3, "sequence_length": 32}, "seeds": 2, **SHORT},
    ),
    "factory": (
        ["own_factory:make", "--lr", "1e-3", *QUICK],
        ["own_factory:make"],
        {"recipe": {"learning_rate": 1e-3, "sequence_length": 32}, **SHORT},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_both_faces_give_the_same_document(case, place):
    words, arguments, more = CASES[case]
    assert different(typed(*words), called(*arguments, **more)) == {}


def test_a_checkpoint_too(place):
    import transformers

    torch.manual_seed(0)
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**TINY)).save_pretrained(place / "saved")
    command = typed("saved", "--lr", "1e-4", *QUICK)
    call = called("saved", recipe={"learning_rate": 1e-4, "sequence_length": 32}, **SHORT)
    assert command["target"]["start"]["kind"] == "stored"
    assert different(command, call) == {}


def test_a_baseline_too(place):
    older = rksp.score("gpt2", lr=6e-4, evidence="config")
    Path("older.json").write_text(older.report.to_json())
    command = typed("gpt2", "--lr", "9e-3", "--baseline", "older.json", *CONFIG)
    call = called("gpt2", lr=9e-3, evidence="config", baseline=older)
    assert command["baseline"]["changes"] and command["gate"]["failed"]
    assert different(command, call) == {}


def test_other_questions_have_other_documents(place):
    """The comparison can fail: another rate is seen in every part that depends on it."""
    command = typed("gpt2", "--lr", "6e-4", *CONFIG)
    found = different(command, called("gpt2", lr=7e-4, evidence="config"))
    assert {"recipe", "seeds"} <= found.keys()


def test_a_reason_names_what_the_run_has():
    """An absent feature is no reason, and neither is a warm-up that the run does not have."""
    parts = {
        warmup: {
            part.feature: part.meaning
            for part in rksp.score(
                "gpt2", recipe={"lr": 6e-4, "warmup": warmup}, evidence="config"
            ).to_dict()["contributions"]
        }
        for warmup in (0, 100)
    }
    assert parts[0]["warmup"] == "no warm-up" and parts[100]["warmup"] == "the warm-up"
    assert "parallel" not in parts[0] and "muon" not in parts[0] and "width" in parts[0]
    neox = rksp.score("gpt_neox", lr=6e-4, evidence="config").to_dict()["contributions"]
    assert "parallel" in {part.feature for part in neox}


@pytest.mark.parametrize("words", [[], ["--pretrained"]])
def test_the_first_line_says_from_which_weights(words):
    done = run_rksp("score", "gpt2", "--lr", "1e-4", *words, *CONFIG)
    first = done.stdout.splitlines()[0]
    assert ("from scratch" in first, "fine-tuning" in first) == (not words, bool(words))


def test_the_optimizer_of_a_lightning_module_is_its_recipe():
    class LightningModule(torch.nn.Module):
        def training_step(self, batch, index):
            return torch.nn.functional.cross_entropy(self.head(batch[0]), batch[1])

    class Mine(LightningModule):
        def __init__(self, *, needs_a_trainer: bool = False) -> None:
            super().__init__()
            self.head, self.needs_a_trainer = torch.nn.Linear(8, 4), needs_a_trainer

        def configure_optimizers(self):
            if self.needs_a_trainer:
                raise RuntimeError("no trainer")
            return torch.optim.AdamW(self.parameters(), lr=3e-3, betas=(0.8, 0.9), weight_decay=0.1)

    batch = (torch.randn(8, 8), torch.randint(0, 4, (8,)))
    recipe = rksp.score(Mine(), batch).report.recipe
    assert (recipe.learning_rate, recipe.adam_beta2, recipe.weight_decay) == (3e-3, 0.9, 0.1)
    assert rksp.score(Mine(), batch, lr=1e-4).report.recipe.learning_rate == 1e-4
    assert rksp.score(Mine(needs_a_trainer=True), batch).report.recipe.learning_rate is None


def test_tokens_of_any_name_show_that_a_loss_is_a_cross_entropy():
    class Dict(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = torch.nn.Embedding(16, 8), torch.nn.Linear(8, 16)

        def forward(self, x):
            return {"logits": self.head(self.embed(x))}

    def own(output, batch):
        logits, token = output["logits"][:, :-1], batch["x"][:, 1:]
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), token.flatten())

    tokens = {"x": torch.randint(0, 16, (4, 8))}
    known = rksp.score(Dict(), tokens, loss=own, lr=1e-3)
    assert not any("cross-entropy" in reason for reason in known.to_dict()["reasons"])
    images = {"x": torch.randn(4, 8), "z": torch.randn(4, 8)}
    other = rksp.score(torch.nn.Linear(8, 8), tuple(images.values()), lr=1e-3, loss=_mean)
    assert any("cross-entropy" in reason for reason in other.to_dict()["reasons"])


def _mean(output, target):
    return (output - target.mean()).square().mean()
