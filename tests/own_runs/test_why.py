"""`rksp why` of one run: what it says of the rate, the checkpoint and the recipe beside a log."""

from __future__ import annotations

import json
import math

import pytest
from support.commands import run_rksp

import rksp
from rksp.confirm.watched import watched_run
from rksp.report.formats import render

SCRATCH = {"model_type": "gpt2", "n_layer": 4, "n_embd": 256, "n_head": 4}
ARGUMENTS = {
    "per_device_train_batch_size": 32,
    "max_steps": 1200,
    "warmup_steps": 100,
    "optim": "adamw_torch",
    "lr_scheduler_type": "cosine",
}


def write_run(folder, *, rate: float, fails: bool, first: float = 10.8, every: int = 10):
    """A Trainer's run whose gradient norm leaves its range at step 750, and its loss at 800."""
    folder.mkdir(parents=True)
    history = []
    for step in range(every, 1201, every):
        high = fails and step > 800
        loss = 0.3 * first + 0.7 * first / (1 + (step - every) / 100)
        history.append(
            {
                "step": step,
                "loss": loss + 0.01 * math.sin(step) + (5.0 if high else 0.0),
                "grad_norm": 20.0 if fails and step > 750 else 0.5,
                "learning_rate": rate,
            }
        )
    state = {"log_history": history, "max_steps": 1200, "global_step": 1200}
    (folder / "trainer_state.json").write_text(json.dumps(state))
    (folder / "args.json").write_text(json.dumps({"learning_rate": rate, **ARGUMENTS}))
    (folder / "config.json").write_text(json.dumps(SCRATCH))
    return folder


def test_a_failed_run_has_its_step_its_checkpoint_and_its_rate(tmp_path):
    folder = write_run(tmp_path / "run", rate=0.1, fails=True)
    for step in (500, 700, 900):
        (folder / f"checkpoint-{step}").mkdir()
    done = run_rksp("why", str(folder))
    said = " ".join(done.stdout.split())
    assert done.returncode == 0 and "FAILED It diverged" in said
    assert "rose from step 810 on" in said
    assert "The gradient norm left its range 50 steps before." in said
    assert "Go back to checkpoint-700 (step 700)." in said
    assert "the learning rate 0.1 is above the likely edge" in said
    calm = rksp.why(write_run(tmp_path / "calm", rate=1e-4, fails=True))
    assert any("is hardly the cause" in line for line in calm.advice)


def test_a_fine_run_gets_no_advice(tmp_path):
    found = rksp.why(write_run(tmp_path / "run", rate=1e-3, fails=False))
    assert (found.verdict, found.advice) == ("fine", [])
    assert "nothing went wrong" in found.courses[0].told[0]


RUN = {"kind": "run", "model": "GPT", "command": "train.py"}
ALARM = {
    "kind": "alarm",
    "monitor": "loss",
    "quantity": "loss_excess",
    "layer": "",
    "step": 30,
    "severity": "critical",
    "rule": "limit >= 1",
    "value": 2.5,
    "baseline": None,
    "text": "the loss is 2.5 above its usual",
}
STOP = {"kind": "stop", "step": 30, "reason": "stopped at step 30"}
DATA = {"kind": "cause", "step": 30, "cause": "data", "text": "one batch is all padding"}
DONE = {"kind": "end", "steps": 40, "seconds": 2.0, "crash": None}
CRASH = {**DONE, "crash": "ValueError"}
SLOW, FAST = (
    {
        "kind": "cause",
        "step": 30,
        "cause": "rate",
        "text": f"other steps learn; {way} the learning rate",
    }
    for way in ("raise", "lower")
)


@pytest.mark.parametrize(
    ("more", "outcome", "said"),
    [
        ([DONE], "fine", ["The run finished.", "No monitor raised an alarm."]),
        ([ALARM, DATA, DONE], "alarmed", ["step 30", "usual", "padding"]),
        ([ALARM, STOP], "alarmed", ["rksp stopped at step 30"]),
        ([ALARM, SLOW, DONE], "alarmed", ["raise the learning rate"]),
        ([ALARM, FAST, DONE], "alarmed", ["lower the learning rate", "Go back to a state"]),
        ([CRASH], "crashed", ["The run raised ValueError"]),
        ([ALARM, CRASH], "alarmed", ["The run raised ValueError"]),
    ],
)
def test_the_log_of_a_watch_tells_its_alarms(tmp_path, more, outcome, said):
    reading = {"kind": "reading", "monitor": "loss", "quantity": "loss", "layer": ""}
    losses = [{**reading, "step": n, "value": 4 - n / 20} for n in range(40)]
    log = tmp_path / "watch.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in [RUN, *losses, *more]))
    found = rksp.why(log)
    told = " ".join(found.courses[0].told)
    assert found.courses[0].outcome == outcome
    assert found.verdict == ("cannot tell" if outcome == "crashed" else outcome)
    assert all(text in told for text in said) and "nothing went wrong" not in told
    assert ("train on at" in told) == (FAST in more)  # one advice: that of the alarm's cause
    if outcome == "crashed":  # as the page of the watch says of the same log
        headline = render(watched_run(log), "text").splitlines()[1].partition("  ")[2]
        assert headline.strip() and headline in render(found, "text")


def test_python_and_the_command_line_say_the_same(tmp_path):
    folder = write_run(tmp_path / "run", rate=0.1, fails=True)
    told = json.loads(run_rksp("why", str(folder), "--format", "json").stdout)
    told["provenance"] = {}
    assert told == json.loads(rksp.why(folder).to_json())
    with_recipe = ("--target", "gpt2", "--lr", "0.1", "--max-steps", "1200")
    told = json.loads(run_rksp("why", str(folder), *with_recipe, "--format", "json").stdout)
    same = rksp.why([folder], "gpt2", {"learning_rate": 0.1, "max_steps": 1200})
    for name in ("likely_edge", "start_here", "do_not_exceed"):
        assert told["rate"][name] == getattr(same.rate, name)


def test_a_loss_far_below_a_guess_began_with_trained_weights(tmp_path):
    tuned = rksp.why(write_run(tmp_path / "a", rate=0.1, fails=True, first=2.0)).rate
    fresh = rksp.why(write_run(tmp_path / "b", rate=0.1, fails=True)).rate
    assert "from trained weights" in tuned.recipe_from and "from scratch" in fresh.recipe_from
    late = write_run(tmp_path / "c", rate=0.1, fails=True, first=2.0, every=150)
    assert "from scratch" in rksp.why(late).rate.recipe_from  # by then any model has learned


@pytest.mark.parametrize(("logged", "is_its"), [(2e-4, True), (1e-4, True), (3e-4, False)])
def test_a_run_file_whose_rate_the_run_passed_is_not_its_recipe(tmp_path, logged, is_its) -> None:
    lines = [{"loss": 10.8 - n / 50, "learning_rate": logged * n / 100} for n in range(1, 101)]
    (tmp_path / "train.log").write_text("\n".join(map(str, lines)))
    (tmp_path / "sft.yaml").write_text(
        "model_name_or_path: gpt2\nlearning_rate: 2e-4\noutput_dir: out\nmax_steps: 100\n"
        "per_device_train_batch_size: 8\n"
    )
    assert (rksp.why(tmp_path / "train.log").rate is not None) == is_its


def test_a_run_file_beside_the_log_is_its_recipe(tmp_path):
    log = tmp_path / "train.log"
    log.write_text("\n".join(f"{{'loss': {1.5 + max(0, n - 60) / 5:.3f}}}" for n in range(100)))
    assert rksp.why(log).rate is None
    (tmp_path / "sft.yaml").write_text(
        "base_model: Qwen/Qwen2.5-0.5B\nlearning_rate: 2.0e-2\nmicro_batch_size: 4\n"
        "max_steps: 400\noptimizer: adamw_torch\n"
    )
    found = rksp.why(log)
    assert found.rate.recipe_from.startswith(str(tmp_path / "sft.yaml"))
    assert found.rate.learning_rate == 2e-2 and "above the likely edge" in found.advice[-1]
    assert rksp.why(log, recipe=tmp_path / "sft.yaml").rate.likely_edge == found.rate.likely_edge


def test_of_several_runs_the_difference_to_one_that_trained(tmp_path):
    write_run(tmp_path / "good", rate=1e-3, fails=False)
    write_run(tmp_path / "bad", rate=0.1, fails=True)
    found = rksp.why(tmp_path)
    assert {one.name: one.outcome for one in found.courses} == {"good": "fine", "bad": "diverged"}
    assert found.differences == [("bad", "good", "learning rate", "0.1", "1e-3")]
    labels = {run.name: run.label for x in found.history.ladders for run in x.runs}
    assert labels["bad"] == "diverged"


def test_every_page_is_drawn(tmp_path):
    folder = write_run(tmp_path / "run", rate=0.1, fails=True)
    pages = [tmp_path / f"page.{end}" for end in ("html", "md", "json", "txt")]
    done = run_rksp("why", str(folder), *(word for page in pages for word in ("-o", str(page))))
    assert done.returncode == 0, done.stderr
    html = pages[0].read_text()
    assert "It diverged" in html and "Gradient norm" in html and "step 810" in html
    assert json.loads(pages[2].read_text())["kind"] == "why"
    assert "\u2800" in done.stdout and "▲" in done.stdout  # the curve, and its onset


@pytest.mark.parametrize("metric", ["loss", "grad_norm"])
def test_another_curve_can_be_judged(metric, tmp_path):
    found = rksp.why(write_run(tmp_path / "run", rate=0.1, fails=True), metric=metric)
    assert found.courses[0].metric == metric and found.verdict == "failed"
    with pytest.raises(rksp.InputError, match="has no metric"):
        rksp.why(tmp_path / "run", metric="nothing")
