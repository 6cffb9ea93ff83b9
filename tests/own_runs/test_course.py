"""What a log says became of its run, in the words of many trainers, and the judgement alone."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from rksp.ground.budgets import Limit
from rksp.ground.errors import InputError
from rksp.own_runs.course import Fate, course
from rksp.own_runs.readers import records
from rksp.own_runs.registry import read_raw_runs
from rksp.own_runs.story import course_of

STEPS = range(10, 1210, 10)
ONSET = 800


def loss_at(step: int, *, fails: bool) -> float:
    """A loss that falls as a language model's does; from step 800 on it may climb back."""
    noise = 0.02 * math.sin(7.3 * step)
    fallen = 3.0 + 8.0 / (1 + step / 20) + noise
    return fallen + (min(4.0, 0.1 * (step - ONSET)) if fails and step > ONSET else 0.0)


def norm_at(step: int, *, fails: bool) -> float:
    return 0.5 + 0.05 * math.sin(step) + (30.0 if fails and step > ONSET - 50 else 0.0)


# Each is what one trainer writes for a record; s, n, l, r, g: step, of how many, loss, rate, norm.
LINES = {
    "trainer": "{{'loss': {l:.4f}, 'grad_norm': {g:.3f}, 'learning_rate': {r:.3e}, 'epoch': {e}}}",
    "trainer5": "{{'loss': '{l:.4f}', 'grad_norm': '{g:.3f}', 'learning_rate': '{r}', "
    "'epoch': '{e}'}}",
    "nanogpt": "iter {s}: loss {l:.4f}, time 90.12ms, mfu 12.31%",
    "llm.c": "step {s:5d}/{n} | loss {l:.6f} (+nanz)| norm {g:.4f} (+1.2z)| lr {r:.2e} | 3151.00 ms"
    " | 48.1% bf16 MFU | 166410 tok/s",
    "litgpt": "Epoch 1 | iter {s} step {s} | loss train: {l:.3f}, val: n/a | iter time: 361.27 ms"
    " (step) remaining time: 3 days, 1:22:11",
    "torchtune": "Step {s} | loss:{l} lr:{r} tokens_per_second_per_gpu:1712.9 grad_norm:{g}",
    "torchtitan": "[rank0]:[titan] 2025-01-02 03:04:05,678 - root - INFO - step: {s:2}  loss: "
    "{l:7.4f}  grad_norm: {g:.4f}  memory: 47.81GiB(50.3%)  tps: 1,234  mfu: 12.20%",
    "megatron": " [2024-05-06 07:08:09] iteration {s:8d}/{n:8d} | consumed samples: 2048 | elapsed "
    "time per iteration (ms): 512.3 | learning rate: {r:.3E} | global batch size: 256 | lm loss: "
    "{l:.6E} | loss scale: 1.0 | grad norm: {g:.3f} | number of skipped iterations: 0 | number of "
    "nan iterations: 0 |",
    "fairseq": "2020-01-01 00:00:00 | INFO | train_inner | epoch 001: {s} / {n} loss={l:.3f}, "
    "nll_loss={l:.3f}, ppl=12.31, wps=1234.5, ups=1.2, wpb=1024, bsz=32, num_updates={s}, lr={r}, "
    "gnorm={g:.3f}, clip=0, train_wall=12, wall=123",
    "mmengine": "07/08 09:10:11 - mmengine - INFO - Iter(train) [ {s}/{n}]  lr: {r:.4e}  eta: "
    "1:02:03  time: 0.34  data_time: 0.01  memory: 1234  grad_norm: {g:.4f}  loss: {l:.4f}",
    "timm": "Train: 0 [{s:4d}/{n} (  3%)]  Loss: {l:.3f} ({l:.2f})  Time: 0.51s, 251.0/s  LR: "
    "{r:.3e}  Data: 0.01 (0.02)",
    "tqdm": "Epoch 0:  12%|█▏        | {s}/{n} [00:12<01:02, 17.3it/s, v_num=0, loss={l:.3f}]",
    "axolotl": " 12%|█▏        | {s}/{n} [1:02:03<3:04:05,  1.02s/it]\n{{'loss': {l:.4f}, "
    "'grad_norm': {g}, 'learning_rate': {r}, 'epoch': {e}}}",
    "key=value": "t=2025-03-04T05:06:07Z level=info msg=train step={s} train_loss={l} lr={r}",
    "key: value": "INFO:train:step: {s}, training loss: {l}, gradient norm: {g}",
    "spaced": "[{s}/{n}] train loss {l:.4f} lr {r:.2e}",
    "json": '{{"level": "info", "step": {s}, "train/loss": {l}, "train/grad_norm": {g}}}',
    "table": "| {s} | {l:.4f} | {r} |",
    "colors": "\x1b[36mstep\x1b[0m {s} \x1b[1mloss\x1b[0m {l:.4f}",
    "kaldi": "Epoch 1, batch {s}, loss[loss={l:.4f}, over 2048 frames.], lr: {r:.2e}, "
    "grad_scale: 8",
    "numbered": "{s} train {l:.6f}",
    "prose": "Cost after iteration {s}: {l:.4f}",
    "mindspore": "epoch: 1 step: {s}, loss is {l:.5f}",
    "tensor": "step {s} loss=tensor({l:.4f}, device='cuda:0', grad_fn=<MeanBackward0>) lr={r}",
    "boxes": "----------\n| time/ |  |\n| step | {s} |\n| train/ | |\n|    loss       | {l:.4f} |",
    "progress": "{s}/{n} [====>.........] - ETA: 12s - loss: {l:.4f} - accuracy: 0.4123",
}
NOISE = """Traceback (most recent call last):
  File "train.py", line 12, in <module>
RuntimeError: it was restarted at 12:01:02 after 3 of 8 ranks left
/usr/lib/python3/warnings.py:109: UserWarning: lr_scheduler.step() before optimizer.step() 2
WARNING 2025-01-01 01:01:01,123 max length 2048 is longer than 1024
"""
WITH_NORM = ("trainer", "llm.c", "torchtune", "torchtitan", "megatron", "mmengine", "json")


def console(form: str, *, fails: bool) -> str:
    head = "| step | train loss | lr |\n|---|---|---|\n" if form == "table" else ""
    lines = [
        LINES[form].format(
            s=step,
            n=1200,
            l=loss_at(step, fails=fails),
            g=norm_at(step, fails=fails),
            r=3e-4,
            e=round(step / 1200, 3),
        )
        for step in STEPS
    ]
    return NOISE + head + "\n".join([*lines[:40], NOISE, *lines[40:]]) + "\n"


def told(path):
    (raw,) = read_raw_runs([path])
    return course_of(raw)


@pytest.mark.parametrize("fails", [True, False], ids=["fails", "fine"])
@pytest.mark.parametrize("form", LINES)
def test_a_console_is_read_by_kind(form, fails, tmp_path):
    path = tmp_path / "train.log"
    path.write_text(console(form, fails=fails))
    found = told(path)
    assert len(found.curve.values) == len(STEPS)
    assert found.curve.values[0] == pytest.approx(loss_at(10, fails=False), rel=1e-3)
    assert found.course.fate is (Fate.DIVERGED if fails else Fate.FINE)
    if fails:
        is_counted = form not in ("trainer", "trainer5")  # which prints no step
        at = ONSET if is_counted else ONSET / 10
        assert at - 5 <= found.course.onset <= at * 1.05
    if fails and form in WITH_NORM:
        assert found.course.moved_first == "grad_norm" and found.course.lead > 0


def rows(*, fails: bool) -> list[dict]:
    return [
        {"step": step, "loss": loss_at(step, fails=fails), "grad_norm": norm_at(step, fails=fails)}
        for step in STEPS
    ]


def _yolo(found):
    lines = [f"{n:>20},{r['loss']:>20.5f},{r['loss'] + 0.1:>20.5f}" for n, r in enumerate(found)]
    return "               epoch,      train/box_loss,        val/box_loss\n" + "\n".join(lines)


def _csv(found):
    return "step,loss,grad_norm\n" + "\n".join(",".join(map(str, r.values())) for r in found)


FILES = {
    "history.json": json.dumps,
    "m.json": lambda found: json.dumps({"args": {"lr": 1}, "log": found}),
    "columns.json": lambda found: json.dumps({k: [r[k] for r in found] for k in found[0]}),
    "numbered.json": lambda found: json.dumps({str(r["step"]): r for r in found}),
    "trainer_state.json": lambda found: json.dumps({"log_history": found, "global_step": 1200}),
    "metrics.jsonl": lambda found: "\n".join(map(json.dumps, found)),
    "nested.jsonl": lambda found: "\n".join(
        json.dumps({"step": r["step"], "train": {"loss": r["loss"], "grad_norm": r["grad_norm"]}})
        for r in found
    ),
    "metrics.csv": _csv,
    "metrics.tsv": lambda found: _csv(found).replace(",", "\t"),
    "train.txt": lambda found: _csv(found).replace(",", "   "),
}


@pytest.mark.parametrize("fails", [True, False], ids=["fails", "fine"])
@pytest.mark.parametrize("name", FILES)
def test_a_file_of_records_is_one_run(name, fails, tmp_path):
    path = tmp_path / name
    path.write_text(FILES[name](rows(fails=fails)))
    found = told(path)
    assert len(found.curve.values) == len(STEPS) and found.course.fate.is_failure is fails
    if fails:
        assert ONSET < found.course.onset <= ONSET * 1.05
        assert found.course.moved_first == "grad_norm" and 40 <= found.course.lead <= 60


def test_the_names_of_columns(tmp_path):
    """Blanks about them, capitals, TensorBoard's download, lists of two lengths, a score alone."""
    path = tmp_path / "results.csv"
    path.write_text(_yolo(rows(fails=True)))
    found = told(path)
    assert (found.metric, found.held_out_name) == ("train/box_loss", "val/box_loss")
    assert found.course.fate is Fate.DIVERGED and 80 <= found.course.onset <= 84
    table = "\n".join(f"17.{n},{n},{loss_at(n, fails=True)}" for n in STEPS)
    path.write_text("Wall time,Step,Value\n" + table)
    assert told(path).course.fate is Fate.DIVERGED and told(path).curve.steps[-1] == 1200
    held = [1.0 + 0.04 * (n - 5) ** 2 for n in range(20)]
    lists = {"train_losses": [3 / (1 + n) for n in range(400)], "val_losses": held}
    path = tmp_path / "lists.json"
    path.write_text(json.dumps(lists))
    assert told(path).course.fate is Fate.OVERFIT
    path.write_text(json.dumps([{"Epoch": n, "val_acc": min(0.9, n / 20)} for n in range(40)]))
    assert told(path).course.fate is Fate.FINE


def test_a_row_may_name_its_metric(tmp_path):
    """As `rksp watch` writes its readings."""
    path = tmp_path / "watch.jsonl"
    row = '{{"kind": "reading", "quantity": "{}", "step": {}, "layer": "{}", "value": {}}}'
    lines = ['{"kind": "run", "model": "gpt2", "parameters": 3}']
    for n in STEPS:
        lines += [row.format("loss", n, "", loss_at(n, fails=True))]
        lines += [row.format("gradient_norm", n, "", norm_at(n, fails=True))]
        lines += [row.format("loss", n, "3", 0.0)]  # of a layer
    path.write_text("\n".join(lines))
    found = told(path)
    assert len(found.curve.values) == len(STEPS) and found.course.fate is Fate.DIVERGED
    assert found.course.moved_first == "grad_norm"


def test_a_resumed_run_counts_once(tmp_path):
    """What came after the checkpoint that a run went back to did not become of it."""
    path = tmp_path / "train.log"
    lost = [f"step {n}: loss {loss_at(n, fails=True)}" for n in STEPS if n <= 1000]
    again = [f"step {n}: loss {loss_at(n, fails=False)}" for n in STEPS if n > 700]
    path.write_text("\n".join([*lost, "resumed", *again]))
    found = told(path)
    assert len(found.curve.values) == len(STEPS) and found.course.fate is Fate.FINE
    path.write_text("\n".join([*again, "resumed", *lost]))  # the same, the other way round
    assert told(path).course.fate is Fate.DIVERGED


def test_ranks_that_write_at_once_are_one_run(tmp_path):
    path = tmp_path / "train.out"
    lines = [
        f"[rank{k}] step {n} loss {loss_at(n, fails=True):.4f}" for n in STEPS for k in range(4)
    ]
    for at in range(0, len(lines) - 8, 8):  # out of order
        lines[at + 3], lines[at + 4] = lines[at + 4], lines[at + 3]
    path.write_text("\n".join(lines))
    found = told(path)
    assert len(found.curve.values) == len(STEPS) and found.course.fate is Fate.DIVERGED


def test_steps_that_begin_anew_each_epoch_are_added(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(
        "\n".join(
            f"Epoch [{e + 1}/10] Step [{n}/100] Loss: {4 - 0.3 * e - n / 400:.4f}"
            for e in range(10)
            for n in range(10, 101, 10)
        )
    )
    found = told(path)
    assert len(found.curve.values) == 100 and found.curve.steps[-1] == 1000


def test_held_out_lines_are_a_curve_of_their_own(tmp_path):
    """Keras, a line an epoch; the training loss falls and the other rises."""
    path = tmp_path / "console.txt"
    lines = []
    for e in range(1, 31):
        held = 0.5 + 0.02 * (e - 8) ** 2 if e > 8 else 1.2 - 0.0875 * e
        lines += [f"Epoch {e}/30", f"100/100 - 2s - loss: {2 / e:.4f} - val_loss: {held:.4f}"]
    path.write_text("\n".join(lines))
    found = told(path).course
    assert (found.fate, found.onset, found.best_step) == (Fate.OVERFIT, 9, 8)


def test_a_loss_that_transformers_writes_as_zero_is_no_number(tmp_path):
    path = tmp_path / "t.log"
    good = ["{'loss': 2.31, 'grad_norm': 1.2, 'epoch': 0.1}"] * 5
    path.write_text("\n".join([*good, *["{'loss': 0.0, 'grad_norm': nan, 'epoch': 0.2}"] * 5]))
    assert told(path).course.fate is Fate.NAN
    path.write_text("\n".join([*good, *["{'loss': 0.0, 'grad_norm': 0.01, 'epoch': 0.2}"]]))
    assert told(path).course.fate is not Fate.NAN


CUT = {
    "trainer_state.json": json.dumps({"log_history": rows(fails=True), "global_step": 9}, indent=1),
    "metrics.jsonl": "\n".join(map(json.dumps, rows(fails=True))),
    "history.json": json.dumps(rows(fails=True)),
}


@pytest.mark.parametrize("name", CUT)
def test_a_file_that_a_process_was_killed_within(name, tmp_path):
    path = tmp_path / name
    path.write_text(CUT[name][: CUT[name].rindex('"loss"') + 9])
    found = told(path)
    assert len(found.curve.values) == len(STEPS) - 1 and found.course.fate is Fate.DIVERGED


def test_what_tensorboards_page_downloads(tmp_path):
    """The metric stands in the file's name alone; a return is a reward, and no loss."""
    risen = [(1.7e9 + n, n, min(20.0, -20 + n / 10)) for n in range(600)]
    path = tmp_path / "run-pong-tag-train_return (1).csv"
    path.write_text("Wall time,Step,Value\n" + "\n".join(",".join(map(str, r)) for r in risen))
    assert told(path).course.fate is Fate.FINE and told(path).curve.steps[-1] == 599
    path = tmp_path / "loss.json"
    path.write_text(json.dumps([[1.7e9, n, loss_at(n, fails=True)] for n in STEPS]))
    assert told(path).course.fate is Fate.DIVERGED


def test_the_line_says_what_its_loss_is_of(tmp_path):
    """As fairseq, timm, Caffe and many a script do; the step of a test is no step of the run."""
    path = tmp_path / "train.log"
    lines = []
    for n in STEPS:
        held = 5.0 if n % 100 else 9.0
        lines += [f"train | step {n} | loss {loss_at(n, fails=False):.4f}"]
        lines += [f"Test: [ 3/ 12]  Loss: {held}", f"    Test net output #0: loss = {held}"]
    path.write_text("\n".join(lines))
    found = told(path)
    assert len(found.curve.values) == len(STEPS) and found.course.fate is Fate.FINE
    assert found.held_out_name == "val_loss" and found.curve.steps[-1] == 1200


def test_of_a_long_run_what_it_is_judged_by_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "LOGGED", Limit(600, "logged values"))
    path = tmp_path / "train.log"
    said = "step {0} loss {1:.4f} grad_norm {2} " + "".join(f"timer {c} 3.5 " for c in "abcdef")
    text = [said.format(n, loss_at(n, fails=True), norm_at(n, fails=True)) for n in STEPS]
    path.write_text("\n".join(text))
    found = told(path)
    assert len(found.curve.values) == len(STEPS) and found.course.moved_first == "grad_norm"
    path.write_text("\n".join(text * 4))
    with pytest.raises(InputError, match="logged values"):
        told(path)


@pytest.mark.parametrize(
    "line",
    ["INFO - it may cost 1-30 minutes...", "this will cost 3 hours", "usage: [--loss 3]"],
)
def test_prose_is_no_record(line, tmp_path):
    (tmp_path / "a.log").write_text(f"{line}\n" * 20)
    with pytest.raises(InputError, match="holds nothing"):
        read_raw_runs([tmp_path / "a.log"])


def test_names_in_any_script_and_after_a_sentence(tmp_path):
    path = tmp_path / "a.log"
    said = "训练次数：{0}, Loss：{1}\n测试集上的Loss: 262.6"
    path.write_text("\n".join(said.format(n, 9 / n) for n in STEPS))
    assert told(path).course.fate is Fate.FINE and len(told(path).curve.values) == len(STEPS)
    said = "[Iteration {0}] Throughput is 408.4 records/second. Loss is {1}. Current rate is 0.1."
    path.write_text("\n".join(said.format(n, 9 / n) for n in STEPS))
    assert told(path).metric == "loss" and told(path).curve.values[0] == pytest.approx(0.9)


def test_losses_that_play_against_each_other_fail_by_their_numbers_alone(tmp_path):
    path = tmp_path / "gan.log"
    lines = [f"Epoch {n} D Loss: {1.4 - n / 40:.3f} G Loss: {0.6 + n / 9:.3f}" for n in range(40)]
    path.write_text("\n".join(lines))
    assert told(path).course.fate is Fate.FINE
    path.write_text("\n".join([*lines, *[f"Epoch {n} D Loss: nan G Loss: nan" for n in (40, 41)]]))
    assert told(path).course.fate is Fate.NAN


def test_a_table_of_runs_is_no_curve(tmp_path):
    """Negative control: rows with rates and names are runs, even if their steps rise."""
    path = tmp_path / "runs.csv"
    path.write_text(
        "name,step,learning_rate,loss\n"
        + "\n".join(f"run{n},{1000 + n},{10 ** (-4 + n / 5)},{3 + n / 10}" for n in range(9))
    )
    assert len(read_raw_runs([path])) == 9


def fates(curves) -> list[Fate]:
    return [course(np.arange(len(curve)), curve).fate for curve in curves]


def _fallen(seed: int, n: int = 400, unit: float = 1.0, noise: float = 0.05) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return unit * (3 + 7 / (1 + np.arange(n) / 20) + noise * rng.standard_normal(n))


@pytest.mark.parametrize("unit", [1e-4, 1.0, 1e5])
@pytest.mark.parametrize("noise", [0.01, 0.1, 0.3])
def test_the_judgement_knows_no_unit(unit, noise):
    """Of twenty curves each, nothing fine is called failed, and no failure fine."""
    fine = [_fallen(seed, unit=unit, noise=noise) for seed in range(20)]
    failed = []
    for curve in fine:
        high = curve.copy()
        high[250:] += unit * np.minimum(4.0, 0.1 * np.arange(150))
        failed.append(high)
    assert not any(fate.is_failure for fate in fates(fine))
    assert all(fate is Fate.DIVERGED for fate in fates(failed))


def remembering(rng: np.random.Generator, n: int, memory: float) -> np.ndarray:
    """Noise of variance 1 of which each value remembers the one before."""
    noise = rng.standard_normal(n)
    for i in range(1, n):
        noise[i] = memory * noise[i - 1] + math.sqrt(1 - memory**2) * noise[i]
    return noise


HEALTHY = {
    "fell": lambda t: 3 + 7 / (1 + 20 * t),
    "fell slowly": lambda t: 5 - t,
    "fell at once": lambda t: 1 + 2 * np.exp(-30 * t),
    "fine-tuning that has nothing to learn": lambda t: np.full(len(t), 2.0),
    "warm restarts": lambda t: 3 + 3 / (1 + 20 * t) + 0.15 * ((4 * t) % 1 < 0.25),
    "harder data": lambda t: 2 + 3 * np.exp(-8 * t) + 0.5 * (t > 0.5) * np.exp(2 - 4 * t),
}


@pytest.mark.parametrize("shape", HEALTHY)
@pytest.mark.parametrize("memory", [0.0, 0.5, 0.9])
def test_noise_with_a_memory_is_no_failure(shape, memory):
    """Of 60 curves at three levels of noise at most one in twelve; where all is noise, one in six.

    Negative control: of the same curves that rise by half of what was learned, nine in ten fail.
    """
    alarms = found = 0
    for seed in range(60):
        rng, n = np.random.default_rng(seed), (20, 60, 150, 500)[seed % 4]
        t = np.arange(n) / (n - 1)
        curve = HEALTHY[shape](t) + (0.02, 0.1, 0.3)[seed % 3] * remembering(rng, n, memory)
        alarms += fates([curve])[0].is_failure
        high = curve + 4 * np.clip((t - 0.6) * 5, 0, 1)
        found += fates([high])[0].is_failure
    assert alarms <= (10 if shape.startswith("fine-tuning") and memory > 0.5 else 5)
    assert found >= 54


@pytest.mark.parametrize("curve", [[1.0, 1.2, 1.4], [2.0, 2.1, 2.3, 2.2, 2.4], [3.0, 1.0, 2.2]])
def test_a_short_run_that_rose_is_never_called_fine(curve):
    assert fates([np.array(curve)])[0] not in (Fate.FINE, Fate.SPIKE_RECOVERED)


def test_each_fate_has_its_curve():
    fallen = _fallen(0)
    came_back, half_back, gone = fallen.copy(), fallen.copy(), fallen.copy()
    came_back[200:210] += 6.0
    half_back[200:] += 1.5 + 4.0 * np.exp(-np.arange(200) / 15)
    gone[300:] = np.nan
    assert fates([came_back, half_back, gone]) == [
        Fate.SPIKE_RECOVERED,
        Fate.SPIKE_UNRECOVERED,
        Fate.NAN,
    ]
    guessing = math.log(50257) + 0.01 * np.random.default_rng(0).standard_normal(100)
    at_once = np.array([9.3, 2000.0, 900.0, 400.0, 300.0, 120.0, 90.0, 80.0, 75.0])
    assert fates([guessing, at_once, fallen[:2]]) == [
        Fate.NEVER_LEARNED,
        Fate.DIVERGED,
        Fate.UNTOLD,
    ]


def test_a_reward_that_falls_for_good_has_collapsed():
    steps = np.arange(200)
    reward = np.minimum(1.0, steps / 80) + 0.02 * np.sin(steps)
    assert course(steps, reward, is_gain=True).fate is Fate.FINE
    reward[120:] = 0.1
    found = course(steps, reward, is_gain=True)
    assert found.fate is Fate.COLLAPSED and 118 <= found.onset <= 122


def judged(values, **more):
    return course(np.arange(len(values), dtype=float), np.asarray(values, float), **more)


def test_a_reward_that_stays_at_its_floor_was_never_learned():
    rng = np.random.default_rng(0)
    flat, draw = rng.normal(0, 1, 200), rng.random(200)
    sparse, rarer = np.where(draw < 0.04, -40.0, -50.0), np.full(9, -21.0)
    assert {judged(one, is_gain=True).fate for one in (sparse, rarer)} == {Fate.NEVER_LEARNED}
    rising = flat + np.linspace(0, 2, 200)
    paid = np.where(draw < np.linspace(0, 0.6, 200), -40.0, -50.0)
    level = flat  # as good from the start: a model that was trained before
    found = {judged(one, is_gain=True).fate for one in (rising, paid, level)}
    assert found == {Fate.FINE}


def test_a_small_rise_that_goes_on_is_a_failure():
    noise = np.random.default_rng(1).normal(0, 0.03, 400)
    falls = 2.3 + 8 / (1 + np.arange(400) / 10) + noise
    climbs = falls + 0.5 * np.clip(np.arange(400) - 250, 0, None) / 150
    assert judged(falls).fate is Fate.FINE
    found = judged(climbs)
    assert found.fate is Fate.DIVERGED
    assert 225 < found.onset < 310
    assert found.ended - found.level < 0.06 * (falls[0] - found.level)


def test_a_loss_that_dies_at_a_guess_has_learned_nothing():
    start = [0.68, 2.46, 5.3, 1.0, 10.7, 2.0, 3.6, 0.69]
    found = judged([*start, *[0.6931] * 20])
    assert (found.fate, found.onset) == (Fate.NEVER_LEARNED, 7)
    once = judged([*start, *[0.6931] * 5, 0.711, *[0.6931] * 14])  # one record is no movement
    assert once.fate is Fate.NEVER_LEARNED
    assert not judged([*start, *np.linspace(0.69, 0.4, 20)]).fate.is_failure
    noise = np.random.default_rng(2).normal(0, 0.05, 300)
    words = 7.3 + 3.5 / (1 + np.arange(300) / 5) ** 3 + noise
    assert judged(words).fate is Fate.NEVER_LEARNED  # no more than the frequencies of words
    assert judged(words - 3 * np.linspace(0, 1, 300)).fate is Fate.FINE


def test_noise_of_a_held_out_rise_is_measured_against_the_rise():
    held = [0.265, 0.076, 0.142, 0.083, 0.106, 0.112, 0.139, 0.185, 0.207, 0.219, 0.210, 0.237]
    steps, losses = np.arange(12.0), np.linspace(0.04, 0.005, 12)
    found = judged(losses, held_out=(steps, np.array(held)))
    assert (found.fate, found.onset) == (Fate.OVERFIT, 2)
    wobbles = np.array([0.265, *[0.09, 0.11] * 5, 0.10])
    assert judged(losses, held_out=(steps, wobbles)).fate is Fate.FINE


def test_a_held_out_loss_that_rises_each_time_is_judged_by_its_last_value():
    held = np.array([3.77, 1.92, 1.64, 1.56, 1.51, 1.50, 1.508, 1.51, 1.545, 1.585, 1.611])
    steps, losses = np.arange(11.0), np.linspace(3.7, 0.8, 11)
    found = judged(losses, held_out=(steps, held))
    assert (found.fate, found.onset) == (Fate.OVERFIT, 6)
    held[[8, 9]] = held[[9, 8]]  # as high at its end, and not each time
    assert judged(losses, held_out=(steps, held)).fate is Fate.FINE


def test_noisy_evaluations_that_turned_are_an_overfit():
    rng, steps = np.random.default_rng(3), np.arange(30.0)
    noise, losses = rng.normal(0, 0.01, 30), np.linspace(0.18, 0.09, 30)
    turned = 0.18 + 0.0015 * np.clip(steps - 8, 0, None) + noise
    found = judged(losses, held_out=(steps, turned))
    assert found.fate is Fate.OVERFIT and 2 <= found.onset <= 15
    assert judged(losses, held_out=(steps, 0.18 + noise)).fate is Fate.FINE


def test_few_records_that_fall_and_rise_have_diverged_and_noise_has_not():
    turned = judged([0.0475, 0.0474, 0.0473, 0.0471, 0.0472, 0.0612, 0.0958, 0.0877])
    assert (turned.fate, turned.onset) == (Fate.DIVERGED, 5)
    noisy = judged([2.2, 1.6, 2.9, 2.1, 1.5, 2.6, 2.8, 1.9, 2.4])
    assert not noisy.fate.is_failure


def test_a_language_model_that_ends_worse_than_any_guess_has_diverged():
    losses = [11.0, 30.0, 19.0, 17.0, 16.0, 15.9, 15.8, 15.7, 15.7, 15.6]
    found = judged(losses, is_language=True)
    assert (found.fate, found.onset) == (Fate.DIVERGED, 1)
    assert judged(losses).fate is not Fate.DIVERGED  # of another unit nobody knows


def test_a_run_that_stands_still_after_its_blow_up_is_over():
    wild = [4.6, *[0.01, 9.0, 0.02, 6.0, 0.01, 7.0] * 66, *[4.5] * 20]
    assert judged(wild).fate.is_failure
    assert not judged([*wild[:-20], *[0.01] * 20]).fate.is_failure


def test_a_held_out_loss_that_never_fell_is_an_overfit_and_a_thousandth_is_none():
    steps, losses = np.arange(20.0), np.linspace(4, 0.01, 20)
    rises = judged(losses, held_out=(steps, np.linspace(4, 19, 20)))
    assert (rises.fate, rises.onset) == (Fate.OVERFIT, 1)
    turn = 9e-6 + np.geomspace(4, 1e-5, 20)
    turn[-4:] *= 1.4
    assert judged(losses, held_out=(steps, turn)).fate is Fate.FINE


def test_of_a_part_of_a_run_any_fall_counts():
    """Whoever pastes ten lines of a long run shows how much it learned in ten lines."""
    part = [10.09, 10.07, 10.05, 10.03, 10.02, 10.01, 9.99, 9.98]
    steps = np.arange(370.0, 450.0, 10)
    assert course(steps, np.array(part)).fate is Fate.FINE
    assert course(steps, np.array([10.05, 10.06] * 4)).fate is Fate.NEVER_LEARNED
