"""Onsets, data and the command: from curves that are known to reports."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
import torch
from support.commands import left_with
from support.watching import read_log

from rksp.cli.process import sparse
from rksp.confirm.confirm import confirm
from rksp.confirm.options import TrialOptions
from rksp.confirm.trial import Trainee, onset, seen, trivial_loss
from rksp.datasets.batch import Batch
from rksp.documents.confirm import ConfirmReport
from rksp.documents.options import MeasureOptions
from rksp.kernels.cross_entropy import IGNORED
from rksp.models.resolve import resolve_tiny
from rksp.own_runs.outcome import Curves, OutcomePolicy
from rksp.recipe import Recipe
from rksp.watch.monitors.base import Alarm, Severity

POLICY = OutcomePolicy()


def _curves(losses: list[float], norms: list[float] | None = None) -> Curves:
    norms = norms or [1.0] * len(losses)
    return Curves(loss=np.float32(losses), grad_norm=np.float32(norms), planned_steps=40)


# Onsets


@pytest.mark.parametrize(
    ("losses", "norms", "expected"),
    [
        ([2.0] * 40, None, None),
        ([2.0] * 9 + [math.nan], None, 9),
        ([2.0] * 9 + [60.0] + [2.0] * 30, None, 9),
        ([2.0] * 40, [1.0] * 5 + [600.0] + [1.0] * 34, 5),
        ([2.0] * 20 + [3.0] * 20, None, 22),  # the mean of four is 0.5 above from the third on
        ([2.0] * 20 + [3.0] * 8 + [2.0] * 12, None, None),  # it came back
    ],
)
def test_the_onset_of_a_failure(losses, norms, expected) -> None:
    found = onset(_curves(losses, norms), POLICY)
    assert found is None if expected is None else abs(found - expected) <= 1


def test_first_alarms_after_the_fault_and_their_lead() -> None:
    def alarm(monitor: str, step: int) -> Alarm:
        return Alarm(
            monitor=monitor, quantity="q", layer="", step=step, severity=Severity.WARN,
            rule="", value=1.0, baseline=None,
        )  # fmt: skip

    alarms = [alarm("a", 5), alarm("a", 12), alarm("b", 30)]
    assert seen(alarms, None, since=0)["first_alarms"] == {"a": 5, "b": 30}
    found = seen(alarms, 25, since=10)
    assert (found["first_alarms"], found["leads"]) == ({"a": 12, "b": 30}, {"a": 13, "b": -5})
    assert seen(alarms, None, since=10)["leads"] == {}


def test_the_trivial_loss_is_the_entropy_of_the_labels_that_count() -> None:
    labels = torch.tensor([[0, 1, -100, 1], [0, -100, 2, 2]])
    found = trivial_loss([Batch(inputs={}, labels=row[None]) for row in labels])
    assert found == pytest.approx(np.log(3.0))  # two of each
    one = Batch(inputs={}, labels=torch.zeros(1, 4, dtype=torch.long))
    assert trivial_loss([one]) == 0.0


# Data and recipe


def test_the_schedule_is_shrunk_whole() -> None:
    full = Recipe(learning_rate=1e-3, max_steps=1000, warmup_steps=100)
    short = full.shortened(200)
    assert (short.max_steps, short.warmup_steps) == (200, 20)
    assert short.learning_rate_at(199) == pytest.approx(full.learning_rate_at(995), rel=1e-2)
    assert full.shortened(5000) == full


def test_batches_depend_on_the_seed_alone_and_no_sequence_comes_twice() -> None:
    source = resolve_tiny("gpt2")
    recipe = Recipe(learning_rate=1e-3, max_steps=6, batch_size=4, sequence_length=16)
    first, again, other = (
        Trainee(source=source, recipe=recipe).data_of(s).batches for s in (1, 1, 2)
    )
    assert len(first) == 6
    rows = torch.cat([b.inputs["input_ids"] for b in first])
    assert rows.shape == (24, 16)
    assert torch.equal(rows, torch.cat([b.inputs["input_ids"] for b in again]))
    assert not torch.equal(rows, torch.cat([b.inputs["input_ids"] for b in other]))
    assert len(torch.unique(rows, dim=0)) == 24
    split = recipe.model_copy(update={"gradient_accumulation_steps": 2})
    micro = Trainee(source=source, recipe=split).data_of(1).batches
    assert len(micro) == 12 and len(micro[0].labels) == 2


def test_a_masked_model_must_guess_what_it_cannot_see() -> None:
    source = resolve_tiny("bert")
    recipe = Recipe(learning_rate=1e-3, max_steps=2, batch_size=8, sequence_length=32)
    for batch in Trainee(source=source, recipe=recipe).data_of(0).batches:
        counted = batch.labels != IGNORED
        assert 0.05 < counted.float().mean() < 0.3
        assert len(torch.unique(batch.inputs["input_ids"][counted])) == 1


# The whole way


@pytest.fixture(scope="module")
def report() -> ConfirmReport:
    recipe = Recipe(
        learning_rate=5.0, max_steps=20, optimizer="sgd", batch_size=2, sequence_length=16,
        max_grad_norm=None, schedule="constant",
    )  # fmt: skip
    said: list[str] = []
    found = confirm(
        resolve_tiny("gpt2"),
        recipe,
        TrialOptions(
            arms=["rate=0.001"],
            steps=20,
            seeds=1,
            monitors=["loss", "gradient-norm", "non-finite"],
        ),
        progress=lambda what, done, total: said.append(f"{what} ({done}/{total})"),
    )
    assert any("run 2 of 2, rate=0.001 seed 0: step 20/20" in line for line in said)
    assert said[-1].endswith("(40/40)")
    return found


def _untimed(report: ConfirmReport) -> dict:
    """The content without times, which differ between equal runs."""
    content = json.loads(report.to_json())
    del content["timings"]
    for part in (*content["arms"], *content["trials"]):
        for name in [name for name in part if name.endswith("seconds") or name == "overhead"]:
            del part[name]
    return content


def test_an_interrupted_confirmation_goes_on_from_its_folder(tmp_path) -> None:
    recipe = Recipe(learning_rate=1e-3, max_steps=6, batch_size=2, sequence_length=16)
    said: list[str] = []

    def listen(what: str, done: int, total: int) -> None:
        said.append(what)
        if what.startswith(stop_at):
            raise KeyboardInterrupt

    def again(folder, recipe: Recipe = recipe) -> ConfirmReport:
        said.clear()
        return confirm(
            resolve_tiny("gpt2"),
            recipe,
            TrialOptions(arms=["rate=0.3"], seeds=1, monitors=["loss"], keep=folder),
            measure=MeasureOptions(evidence="forward"),
            progress=listen,
        )

    stop_at = "run 2 of 2, rate=0.3 seed 0: step 3"
    with pytest.raises(KeyboardInterrupt):
        again(tmp_path / "kept")
    stop_at = "never"
    continued = again(tmp_path / "kept")
    assert re.fullmatch(
        "run 1 of 2, baseline seed 0: ended at a loss of [0-9.]+, already finished", said[1]
    )
    log = read_log(tmp_path / "kept" / "rate-0.3-seed-0.jsonl")[0]
    steps = [reading.step for reading in log if reading.quantity == "loss"]
    assert steps == sorted(set(steps))  # without what the interrupted run wrote
    assert _untimed(continued) == _untimed(again(None))
    again(tmp_path / "kept", recipe.model_copy(update={"learning_rate": 2e-3}))
    # The runs of another recipe do not count.
    assert not any(line.endswith("already finished") for line in said)


def test_progress_is_sparse_and_says_how_long_it_will_take(capsys) -> None:
    now = 0.0
    say = sparse(lambda: now, lambda what: ": step " not in what)
    say("predicting seed 0", 0, 100)
    for step in range(1, 101):
        now += 6.0
        say(f"run 1 of 1, baseline seed 0: step {step}/100, loss 1", step, 100)
    say("run 1 of 1, baseline seed 0: healthy", 100, 100)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "rksp: predicting seed 0"
    assert lines[1].endswith("step 1/100, loss 1")
    assert lines[2].endswith("step 6/100, loss 1 (about 9 min left)")
    assert len(lines) == 2 + 20  # one in 30 seconds, and those that stay
    assert lines[-1].endswith("seed 0: healthy")


def test_a_hopeless_recipe_fails_and_its_low_rate_does_not(report: ConfirmReport) -> None:
    baseline, low = report.arms
    assert report.verdict == "failed"
    assert (baseline.failed, low.failed, low.saved) == (1, 0, 1)
    assert report.trials[0].onset is not None
    assert any("would have saved 1 of 1" in sentence for sentence in report.conclusions)


def test_the_report_is_json_without_nan_and_comes_back(report: ConfirmReport) -> None:
    text = report.to_json()
    assert "NaN" not in text and "Infinity" not in text
    content = json.loads(text)
    assert list(content) == sorted(content)
    again = ConfirmReport.model_validate(content)
    assert again.arms == report.arms
    with pytest.raises(ValueError, match="extra"):
        ConfirmReport.model_validate(content | {"surprise": 1})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gpt2", "--shrink"], "needs a learning rate"),
        (["gpt2", "--lr", "1e-3"], "max-params"),
        (["gpt2", "--shrink", "--lr", "1e-3", "--arm", "ksss"], "did you mean kss"),
        (["gpt2", "--shrink", "--lr", "1e-3", "--fault", "bitflap"], "bitflip"),
        (["gpt2", "--shrink", "--lr", "1e-3", "--monitor", "los"], "loss"),
        (["gpt2", "--shrink", "--lr", "1e-3", "--fault", "aux_off"], "routers"),
        (["gpt2", "--lr", "1e-3", "--seeds", "0"], "--seeds"),
        (["gpt2", "--shrink", "--lr", "1e-3", "--peft", "other"], "cannot build the adapters"),
        (["gpt2", "--shrink", "--lr", "1e-3", "--fail-on", "0.5"], "--fail-on"),
        (["gpt2", "--shrink", "--set", "n_layer=2", "--lr", "1e-3"], "--shrink"),
    ],
)
def test_what_cannot_be_used_is_said_before_training(arguments, said, capsys) -> None:
    assert left_with(["confirm", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_the_command_prints_writes_and_leaves_with_one_on_failure(tmp_path, capsys) -> None:
    path = tmp_path / "report.json"
    arguments = "gpt2 --shrink --lr 1e-3 --fault bitflip:step=1,bit=30,name=ln_f.weight "
    arguments += "--steps 6 --seeds 1 --evidence forward --batch-size 2 --sequence-length 16 "
    arguments += "--monitor non-finite --threads 1"
    command = ["confirm", *arguments.split(), "-o", str(path), "--keep", str(tmp_path / "kept")]
    assert left_with(command) == 1
    printed = capsys.readouterr()
    assert "FAILED" in printed.out
    assert "run 1 of 3, baseline seed 0: alarm at step" in printed.err
    stored = ConfirmReport.model_validate_json(path.read_text())
    assert stored.verdict == "failed"
    assert (tmp_path / "kept" / "baseline-seed-0.jsonl").exists()
