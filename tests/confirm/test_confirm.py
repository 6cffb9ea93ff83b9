"""Arms, onsets, comparisons and the command: from curves that are known to sentences."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from scipy.stats import hypergeom
from support.commands import left_with
from support.levers import lever_table

from rksp.batch import Batch
from rksp.cli.progress import sparse
from rksp.confirm.arms import Arm, default_arms, parse_arm, parse_arms
from rksp.confirm.compare import compare, conclude, failed_trials, prediction_held, verdict
from rksp.confirm.confirm import confirm
from rksp.confirm.data import training_data, trivial_loss
from rksp.confirm.onset import first_alarms, leads, onset
from rksp.documents.confirm import ConfirmReport, PredictionReport, TrialReport
from rksp.ground.errors import InputError, NotCovered
from rksp.kernels.cross_entropy import IGNORED
from rksp.models.resolve import resolve, resolve_tiny
from rksp.options import MeasureOptions
from rksp.outcome import Curves, OutcomePolicy
from rksp.recipe import Recipe
from rksp.watch.interventions.qk_norm import QKNorm
from rksp.watch.monitors.alarm import Alarm, Severity
from rksp.watch.monitors.sinks import read_log

POLICY = OutcomePolicy()
SMALL = {"n_embd": "64", "n_layer": "2", "n_head": "2", "vocab_size": "256", "n_positions": "32"}


def _curves(losses: list[float], norms: list[float] | None = None) -> Curves:
    norms = norms or [1.0] * len(losses)
    return Curves(loss=np.float32(losses), grad_norm=np.float32(norms), planned_steps=40)


def _trial(arm: str, seed: int, outcome: str = "healthy", final: float | None = 1.0, **fields):
    given = {
        "steps": 40,
        "undone": 0,
        "onset": None,
        "first_alarms": {},
        "leads": {},
        "alarms": {},
        "silent": {},
        "actions": {},
        "action_seconds": 0.0,
        "monitor_seconds": 0.0,
        "seconds": 4.0,
        "loss": [(0, 1.0)],
        "grad_norm": [(0, 1.0)],
    }
    final = None if outcome == "diverged" else final
    return TrialReport(arm=arm, seed=seed, outcome=outcome, final_loss=final, **given | fields)


def _prediction(verdict: str = "risk", probability: float | None = 0.9) -> PredictionReport:
    return PredictionReport(
        probability_failed=probability,
        low=None,
        high=None,
        verdict=verdict,
        reasons=[],
        start_here=None,
        do_not_exceed=None,
        threshold=0.5,
    )


# Arms


def test_arms_are_read_and_combined() -> None:
    assert parse_arm("baseline") == Arm(label="baseline")
    assert parse_arm("clip=0.5").interventions == ("clip=0.5",)
    assert parse_arm("clip=0.5").make()[0].norm == 0.5
    both = parse_arm("kss:weight=2+rate=0.3+clip=1")
    assert both.rate == 0.3
    assert [i.name for i in both.make()] == ["kss", "clip"]
    assert both.make()[0] is not both.make()[0]  # a fresh set a run


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ksss", "did you mean kss"),
        ("clip=-1", "above zero"),
        ("clip:norms=1", "norm"),
        ("rate=0", "factor above zero"),
        ("rate=fast", "factor above zero"),
        ("nothing=1", "no arm"),
    ],
)
def test_arms_that_mean_nothing_are_refused(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_arm(text)


def test_the_default_arm_is_the_rate_to_start_with() -> None:
    def factors(start_here: float | None) -> list[float]:
        return [arm.rate for arm in default_arms(1e-2, start_here)]

    assert factors(2e-3) == [1.0, 0.2]
    assert factors(None) == factors(2e-2) == factors(9.5e-3) == [1.0, 0.3]  # none is lower


def test_the_first_lever_is_a_default_arm_beside_the_lower_rate() -> None:
    labels = [arm.label for arm in default_arms(1e-2, 2e-3, "qk_norm")]
    assert labels == ["baseline", "rate=0.2", "qk_norm"]


def test_an_arm_changes_the_recipe_it_names_and_nothing_else() -> None:
    recipe = Recipe(learning_rate=1e-3, warmup_steps=10, max_steps=100)
    both = parse_arm("warmup=30+rate=0.5").recipe(recipe)
    assert both == recipe.model_copy(update={"warmup_steps": 30, "learning_rate": 5e-4})
    assert parse_arm("beta1=0.8").recipe(recipe).adam_beta1 == 0.8
    with pytest.raises(InputError, match="warmup"):
        parse_arm("warmup=soon")
    with pytest.raises(InputError, match="no arm 'batch'"):
        parse_arm("batch=64")  # all arms share their batches


def test_a_confirmation_tries_the_first_lever_that_the_model_can_take(monkeypatch) -> None:
    table = lever_table(qk_norm=0.5, clip=0.2)
    monkeypatch.setattr("rksp.assessment.levers.load_lever_table", lambda: table)
    recipe = Recipe(
        learning_rate=1e-2, warmup_steps=1, max_steps=8, batch_size=2, sequence_length=8
    )

    def arms(refuses: bool) -> list[str]:
        if refuses:
            monkeypatch.setattr(QKNorm, "bind", _refuse)
        report = confirm(
            resolve("gpt2", overrides=SMALL),
            recipe,
            seeds=(0,),
            options=MeasureOptions(evidence="config"),
            monitors=(),
        )
        return [arm.arm for arm in report.arms]

    assert arms(refuses=False)[2:] == ["qk_norm"]
    assert arms(refuses=True)[2:] == ["clip=0.1"]


def _refuse(*arguments: object) -> None:
    raise NotCovered("nothing to normalize")


def test_the_baseline_comes_first_and_nothing_twice() -> None:
    assert [a.label for a in parse_arms(["kss", "baseline"])] == ["baseline", "kss"]
    assert [a.label for a in parse_arms(["kss"])] == ["baseline", "kss"]
    with pytest.raises(InputError, match="twice"):
        parse_arms(["kss", "kss"])


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
    assert first_alarms(alarms) == {"a": 5, "b": 30}
    assert first_alarms(alarms, since=10) == {"a": 12, "b": 30}
    assert leads({"a": 12, "b": 30}, 25) == {"a": 13, "b": -5}
    assert leads({"a": 12}, None) == {}


# Comparison


def test_a_plateau_is_a_failure_beside_a_better_arm_of_its_seed() -> None:
    trials = [
        _trial("baseline", 0, final=2.0),
        _trial("rate=0.3", 0, final=1.5),
        _trial("baseline", 1, final=1.6),
        _trial("rate=0.3", 1, final=1.5),
    ]
    assert failed_trials(trials) == {("baseline", 0)}
    assert failed_trials(trials[:1]) == set()


def test_an_arm_that_is_only_slower_is_behind_and_has_not_failed() -> None:
    trials = [
        _trial("baseline", 0, final=1.5),
        _trial("rate=0.3", 0, final=2.0),
        _trial("clip=1", 0, final=2.0),
    ]
    assert failed_trials(trials) == set()
    said = conclude(_prediction("ok", 0.1), compare(trials), [])
    assert "rate=0.3 trained too, and ended 0.50 nats above the baseline." in said


def test_fisher_against_the_hypergeometric_law() -> None:
    trials = [_trial("baseline", s, "diverged" if s < 7 else "healthy") for s in range(8)]
    trials += [_trial("kss", s, "diverged" if s < 1 else "healthy") for s in range(8)]
    baseline, arm = compare(trials)
    table = hypergeom(16, 8, 8)
    at = table.pmf(1)
    two_sided = sum(p for p in table.pmf(np.arange(9)) if p <= at * (1 + 1e-9))
    assert arm.p_value == pytest.approx(two_sided)
    assert baseline.p_value is None
    assert (baseline.failed, baseline.diverged, arm.failed) == (7, 7, 1)
    assert (arm.saved, arm.lost) == (6, 0)


def test_overhead_is_of_the_median_step() -> None:
    trials = [_trial("baseline", s, step_seconds=0.4) for s in range(3)]
    trials += [_trial("kss", s, step_seconds=0.5 if s else 5.0) for s in range(3)]
    trials += [_trial("rate=0.1", s, step_seconds=0.5) for s in range(3)]
    assert compare(trials)[1].overhead == pytest.approx(0.25)
    assert compare(trials)[2].overhead is None  # its steps are the baseline's


def test_the_conclusions_say_what_happened() -> None:
    seen = {"first_alarms": {"loss": 20, "update-rms": 9}, "leads": {"loss": 1, "update-rms": 12}}
    trials = [_trial("baseline", s, "diverged", onset=21, **seen) for s in range(3)]
    trials += [_trial("kss", s) for s in range(3)]
    trials += [_trial("clip=1", s, "diverged") for s in range(3)]
    arms = compare(trials)
    prediction, monitor, helped, useless = conclude(_prediction(), arms, [])
    assert "3 of 3 runs failed: the prediction held" in prediction
    assert "update-rms saw it first, 12 steps before" in monitor
    assert "the loss monitor by 1" in monitor
    assert "kss would have saved 3 of 3" in helped
    assert "clip=1 would not" in useless
    quiet = compare([_trial("baseline", s) for s in range(3)])
    assert conclude(_prediction(), quiet, [])[1] == "No monitor raised an alarm in the baseline."
    assert "did not hold" in conclude(_prediction("ok", 0.1), arms, [])[0]
    assert "without a fault" in conclude(_prediction(), arms, ["bitflip:step=5"])[0]


def test_whether_the_prediction_held() -> None:
    bad = compare([_trial("baseline", s, "diverged") for s in range(3)])
    good = compare([_trial("baseline", s) for s in range(3)])
    assert prediction_held(_prediction("risk"), bad)
    assert not prediction_held(_prediction("risk"), good)
    assert prediction_held(_prediction("ok"), good)
    assert prediction_held(_prediction("cannot tell"), bad) is None
    assert prediction_held(_prediction("ok"), bad, ["bitflip:step=5"]) is None  # of another run


def test_a_failure_without_an_onset_names_the_first_alarm() -> None:
    alarms = {"first_alarms": {"attention-logits": 20, "key-null-sum": 120}}
    said = conclude(
        _prediction(), compare([_trial("baseline", s, "failed", **alarms) for s in range(3)]), ()
    )
    assert said[1].startswith("attention-logits raised the first alarm, at step 20")
    quiet = compare([_trial("baseline", s, "failed") for s in range(3)])
    assert conclude(_prediction(), quiet, ())[1] == "No monitor saw the failure."


def test_runs_that_learned_nothing_but_frequencies_decide_nothing() -> None:
    dull = {"trivial_loss": 1.1}  # the final loss is 1.0, within the margin of 0.25 nats
    none = [_trial(arm, s, **dull) for arm in ("baseline", "rate=0.3") for s in range(2)]
    arms = compare(none)
    assert verdict(arms) == "undecided"
    assert prediction_held(_prediction("ok"), arms) is None
    assert "give more --steps" in conclude(_prediction("ok"), arms, ())[0]
    one = compare([*none[:3], _trial("rate=0.3", 1, final=0.8, **dull)])
    assert verdict(one) == "trained" and prediction_held(_prediction("ok"), one)
    failed = compare([_trial("baseline", 0, "diverged", **dull), *none[1:]])
    assert verdict(failed) == "failed"


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
    first, again, other = (training_data(source, recipe, seed=s).batches for s in (1, 1, 2))
    assert len(first) == 6
    rows = torch.cat([b.inputs["input_ids"] for b in first])
    assert rows.shape == (24, 16)
    assert torch.equal(rows, torch.cat([b.inputs["input_ids"] for b in again]))
    assert not torch.equal(rows, torch.cat([b.inputs["input_ids"] for b in other]))
    assert len(torch.unique(rows, dim=0)) == 24
    split = recipe.model_copy(update={"gradient_accumulation_steps": 2})
    micro = training_data(source, split, seed=1).batches
    assert len(micro) == 12 and len(micro[0].labels) == 2


def test_a_masked_model_must_guess_what_it_cannot_see() -> None:
    source = resolve_tiny("bert")
    recipe = Recipe(learning_rate=1e-3, max_steps=2, batch_size=8, sequence_length=32)
    for batch in training_data(source, recipe, seed=0).batches:
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
        parse_arms(["rate=0.001"]),
        steps=20,
        seeds=(0,),
        monitors=("loss", "gradient-norm", "non-finite"),
        progress=lambda what, done, total: said.append(f"{what} ({done}/{total})"),
    )
    assert any("run 2 of 2, rate=0.001 seed 0: step 20/20" in line for line in said)
    assert said[-1].endswith("healthy (40/40)")
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
            parse_arms(["rate=0.3"]),
            seeds=(0,),
            options=MeasureOptions(evidence="forward"),
            monitors=("loss",),
            folder=folder,
            progress=listen,
        )

    stop_at = "run 2 of 2, rate=0.3 seed 0: step 3"
    with pytest.raises(KeyboardInterrupt):
        again(tmp_path / "kept")
    stop_at = "never"
    continued = again(tmp_path / "kept")
    assert said[0] == "run 1 of 2, baseline seed 0: healthy, already finished"
    assert not any("predicting" in line for line in said)
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
        (["gpt2", "--shrink", "--lr", "1e-3", "--bar", "7"], "--bar"),
        (["gpt2", "--shrink", "--lr", "1e-3", "--fail-on", "0.5"], "--fail-on"),
        (["gpt2", "--shrink", "--set", "n_layer=2", "--lr", "1e-3"], "--shrink"),
    ],
)
def test_what_cannot_be_used_is_said_before_training(arguments, said, capsys) -> None:
    assert left_with(["confirm", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_the_command_prints_writes_and_leaves_with_one_on_failure(tmp_path, capsys) -> None:
    path = tmp_path / "report.json"
    arguments = "gpt2 --shrink --lr 1e30 --optimizer sgd --clip 0 --steps 6 --seeds 1 --evidence "
    arguments += "forward --batch-size 2 --sequence-length 16 --monitor non-finite --threads 1"
    command = ["confirm", *arguments.split(), "-o", str(path), "--keep", str(tmp_path / "kept")]
    assert left_with(command) == 1
    printed = capsys.readouterr()
    assert "FAILED" in printed.out
    assert "run 1 of 2, baseline seed 0: alarm at step" in printed.err
    stored = ConfirmReport.model_validate_json(path.read_text())
    assert stored.verdict == "failed"
    assert (tmp_path / "kept" / "baseline-seed-0.jsonl").exists()


def test_ending_worse_than_not_training_is_no_success() -> None:
    def tuned(arm: str, after: float | None) -> TrialReport:
        return _trial(arm, 0, untrained_loss=2.0, held_out_loss=after)

    better, worse = tuned("baseline", 1.9), tuned("baseline", 2.1)
    assert verdict(compare([better])) == "trained"
    assert verdict(compare([worse])) == "undecided"  # within the margin
    assert failed_trials([tuned("baseline", 2.3)]) == {("baseline", 0)}
    assert failed_trials([tuned("baseline", None)]) == {("baseline", 0)}
    arms = compare([worse, tuned("rate=0.3", 1.8)])
    said = conclude(_prediction("ok", 0.1), arms, [])[-1]
    assert "(2.00): baseline ended 0.10 nats worse, rate=0.3 ended 0.20 nats better." in said
    assert "not training" not in " ".join(
        conclude(_prediction(), compare([_trial("baseline", 0)]), [])
    )
