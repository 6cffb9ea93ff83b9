"""Histories: runs alike in all but the rate become ladders, and what is wrong with them is said."""

from __future__ import annotations

import json
import random
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.past_runs import COLUMNS, LOSSES, RATES, team_ladder, write_table

from rksp.classifiers.edge_model import load_edge_model
from rksp.ground.errors import InputError
from rksp.models.resolve import resolve
from rksp.own_runs.history import History, read_history
from rksp.own_runs.observed import Observed
from rksp.own_runs.outcome import Judged
from rksp.own_runs.scorecard import history_report, learn, scorecard
from rksp.recipe import Recipe

QUESTION = resolve("gpt2", counts=False), Recipe(max_steps=2000)


def history(path: Path, recipe: Recipe = QUESTION[1], **more: str) -> History:
    return read_history([path], QUESTION[0], recipe, **more)


def test_runs_alike_in_all_but_the_rate_are_one_ladder(tmp_path):
    write_table(tmp_path / "one.csv")
    write_table(tmp_path / "two.csv", layers=6)
    found = history(tmp_path)
    assert [len(ladder.runs) for ladder in found.ladders] == [5, 5]
    depths = sorted(ladder.observed.inputs.depth for ladder in found.ladders)
    assert depths == [4, 6]
    assert {ladder.observed.inputs.width for ladder in found.ladders} == {256}
    assert [label.label for label in found.ladders[0].labels] == [
        *("undertrained", "healthy", "healthy", "healthy", "failed"),
    ]
    assert found.ignored == ["_runtime"]


def test_seeds_are_one_ladder_and_texts_keep_runs_apart(tmp_path):
    rows = [
        f"{rate},{seed},{data},{loss}"
        for data in ("wiki", "code")
        for seed in (0, 1)
        for rate, loss in zip(RATES, LOSSES, strict=True)
    ]
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(["lr,seed,dataset,loss", *rows]))
    found = history(path)
    assert [len(ladder.runs) for ladder in found.ladders] == [10, 10]
    assert {ladder.observed.kept_apart for ladder in found.ladders} == {
        "dataset=code",
        "dataset=wiki",
    }


def test_what_a_run_does_not_say_comes_from_the_recipe_and_is_said(tmp_path):
    recipe = Recipe(warmup_steps=77, batch_size=12, max_steps=500)
    path = write_table(tmp_path / "runs.csv")
    found = history(path, recipe)
    (ladder,) = found.ladders
    assert (ladder.recipe.warmup_steps, ladder.recipe.batch_size) == (77, 12)
    assert ladder.recipe.max_steps == 2000  # the table says so
    (report,) = history_report(found, load_edge_model()).ladders
    assert "warmup_steps" in report.assumed and "max_steps" not in report.assumed


def test_a_trainers_own_words_are_understood(tmp_path):
    path = tmp_path / "runs.jsonl"
    path.write_text(
        '{"learning_rate": 1e-3, "per_device_train_batch_size": 4, "loss": 3.0, "max_steps": 100,'
        ' "gradient_accumulation_steps": 2, "lr_scheduler_type": "linear", "warmup_ratio": 0.1,'
        ' "num_train_epochs": 3, "optim": "adamw_torch", "bf16": true}'
    )
    (ladder,) = history(path).ladders
    recipe = ladder.recipe
    assert (recipe.batch_size, recipe.schedule, recipe.warmup_steps) == (8, "linear", 10)
    assert (recipe.optimizer, recipe.precision) == ("adamw", "bf16")


def test_runs_that_say_nothing_are_left_out_with_a_reason(tmp_path):
    path = write_table(tmp_path / "runs.csv")
    path.write_text(path.read_text() + "no-loss,crashed,1e-3,4,256,4,2000,,1\n")
    path.write_text(path.read_text() + "no-rate,finished,,4,256,4,2000,3.0,1\n")
    path.write_text(path.read_text() + "odd,finished,1e-3,5,256,7,2000,3.0,1\n")
    found = history(path)
    reasons = {one.name: one.reason for one in found.left_out}
    assert "no loss" in reasons["no-loss"] and "no learning rate" in reasons["no-rate"]
    assert (
        sum(len(x.runs) for x in found.ladders) == 6 or "odd" in reasons
    )  # 256 is no multiple of 7


def test_a_loss_that_is_written_as_nan_diverged_and_a_missing_one_did_not(tmp_path):
    path = tmp_path / "runs.csv"
    rows = ["lr,loss,state", "1e-4,3.2,finished", "1e-3,3.1,finished", "1e-2,nan,crashed"]
    path.write_text("\n".join(rows))
    assert [label.label for label in history(path).ladders[0].labels][-1] == "diverged"
    path.write_text("\n".join([*rows[:-1], "1e-2,,crashed"]))
    assert len(history(path).left_out) == 1


@pytest.mark.parametrize("metric", ["val/accuracy", "eval_f1", "rewards", "test.BLEU"])
def test_what_is_better_when_more_is_no_loss(metric, tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text(f"lr,{metric}\n1e-3,0.4\n1e-2,0.1\n")
    with pytest.raises(InputError, match="is no loss"):
        history(path, metric=metric)


def test_the_metric_that_counts_is_no_ignored_column(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("lr,bpb,colour\n1e-3,1.1,red\n1e-2,1.2,blue\n")
    assert history(path, metric="bpb").ignored == ["colour"]


@pytest.mark.parametrize(
    ("text", "said"),
    [("lr,Verlust\n1e-3,3\n", r"no loss among its columns \(Verlust, lr\)"),
     ("lr,loss,steps\n1e-3,3,2x\n1e-2,4,2x\n", "None of the 2 runs .* .max_steps. is .2x.")],
)  # fmt: skip
def test_no_run_that_can_be_used_is_an_error(text, said, tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        history(path)


def test_a_run_may_name_no_factory(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("target,lr,loss\nos:getcwd,1e-3,3.0\ngpt2,1e-3,3.0\n")
    found = history(path)
    assert [one.reason for one in found.left_out] == [
        f"{path} names the factory 'os:getcwd', which would run code; a factory must be typed on "
        "the command line"
    ]


def test_a_loss_in_another_unit_is_named(tmp_path):
    path = write_table(tmp_path / "runs.csv", losses=[300 + loss for loss in LOSSES])
    assert all(label.label == "diverged" for label in history(path).ladders[0].labels)
    path = write_table(tmp_path / "runs.csv", losses=[20 + loss for loss in LOSSES])
    (ladder,) = history(path).ladders
    assert ladder.observed is None and "another unit" in ladder.unused


def test_a_loss_below_zero_is_no_cross_entropy(tmp_path):
    path = write_table(tmp_path / "runs.csv", losses=[-loss for loss in LOSSES])
    with pytest.raises(InputError, match="below zero"):
        history(path)


def test_another_metric_can_be_named(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("lr,loss,my_loss\n1e-3,9,3\n1e-2,9,4\n")
    (ladder,) = history(path, metric="my_loss").ladders
    assert [run.final for run in ladder.runs] == [3, 4]
    with pytest.raises(InputError, match="no metric 'other'"):
        history(path, metric="other")


def test_shuffled_losses_are_named_and_move_nothing(tmp_path):
    """A negative control: the losses of six ladders in a random order."""
    rates = [10 ** (-4 + step / 2) for step in range(7)]
    losses = [4.4, 4.0, 3.6, 3.4, 3.8, 5.5, 7.0]
    source = random.Random(3)
    for number in range(6):
        source.shuffle(losses)
        write_table(tmp_path / f"{number}.csv", rates, losses, layers=2 + number)
    found = history(tmp_path)
    assert "do not follow the rate" in found.doubt
    model, read = learn([tmp_path], *QUESTION)
    assert read.doubt and model.seen == []


def test_ten_thousand_runs_are_read_within_moments(tmp_path):
    path = tmp_path / "runs.csv"
    source = random.Random(0)
    rows = [
        f"run-{n},finished,{10 ** source.uniform(-5, -1):.5g},{2 + n % 9},256,4,2000,"
        f"{3 + source.random():.4f},12"
        for n in range(10_000)
    ]
    path.write_text("\n".join([COLUMNS, *rows]))
    start = time.process_time()
    found = history(path)
    assert sum(len(x.runs) for x in found.ladders) == 10_000
    assert time.process_time() - start < 15  # 1.1 on a machine of its own, 4.5 on a busy one


def test_the_scorecard_knows_a_good_prediction_from_a_bad_one():
    from rksp.own_runs.history import PastLadder  # made by hand: rates, losses and labels count

    prior, tracker = load_edge_model(), SimpleNamespace(name="run", file="runs.csv")

    def runs_of(one):
        return [
            SimpleNamespace(raw=tracker, rate=10**rate, final=loss)
            for rate, loss in zip(one.log_rates, one.losses, strict=True)
        ]

    def past(offset: float) -> History:
        seen = [team_ladder(offset, name=str(w), width=w) for w in (256, 512, 768)]
        ladders = [
            PastLadder(
                name=one.name,
                runs=runs_of(one),
                labels=[Judged(label="failed" if x else "healthy") for x in one.failed],
                recipe=Recipe(),
                said=frozenset(),
                observed=one,
            )
            for one in seen
        ]
        return History(ladders=ladders, left_out=(), ignored=())

    good, bad = (scorecard(history_report(past(x), prior)) for x in (0.0, 1.0))
    assert good.auroc > 0.95 and good.edge_error < 0.1 and good.covered == 1.0
    assert bad.edge_error == pytest.approx(1.0, abs=0.1) and bad.ece > good.ece
    assert bad.edge_error_with_others < 0.6 * bad.edge_error
    named = history_report(past(1.5), prior).ladders
    assert all("what" in ladder.surprise for ladder in named)
    assert not any(ladder.surprise for ladder in history_report(past(0.0), prior).ladders)


def test_a_ladder_that_contradicts_itself_is_named():
    from rksp.own_runs.scorecard import _surprise

    ladder = team_ladder(0.0)
    torn = replace(ladder, failed=np.where(np.arange(10) == 8, 0.0, ladder.failed))
    said = load_edge_model().predict(ladder.inputs)
    assert "where it failed" in _surprise(torn, said, None)


def test_a_row_that_states_only_its_width_keeps_the_heads_of_the_target(tmp_path):
    config = {"model_type": "llama", "hidden_size": 1280, "num_hidden_layers": 8}
    heads = {"num_attention_heads": 10, "num_key_value_heads": 10, "intermediate_size": 3456}
    (tmp_path / "config.json").write_text(json.dumps(config | heads), encoding="utf-8")
    rows = [f"a,finished,{rate},{width},{loss}" for rate, width, loss in _WIDTHS]
    table = tmp_path / "runs.csv"
    table.write_text("\n".join(["name,state,lr,hidden_size,train_loss", *rows]), encoding="utf-8")
    source = resolve(str(tmp_path / "config.json"), counts=False)
    found = read_history([table], source, Recipe())
    assert not found.left_out
    assert {one.inputs.width for one in found.used(Observed)} == {1024, 900}


_WIDTHS = ((3e-4, 1024, 3.9), (1e-3, 1024, 3.7), (1e-3, 900, 3.8), (1e-2, 900, 4.9))
