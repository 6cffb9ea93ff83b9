"""Lines of consoles as people and trainers write them, read into one run."""

from __future__ import annotations

import pytest

from rksp.ground.errors import InputError
from rksp.own_runs.course import Fate
from rksp.own_runs.registry import read_raw_runs
from rksp.own_runs.story import course_of


def logged(tmp_path, text):
    log = tmp_path / "train.log"
    log.write_text(text)
    (raw,) = read_raw_runs([log])
    return course_of(raw)


def epochs(start):
    """Batches that are counted anew in each epoch; the loss goes on, or begins again."""
    return "\n".join(
        f"Train: {epoch} [{batch}/100] Loss: {4 / (1 + (start * epoch * 100 + batch) / 40):.3f}"
        for epoch in range(3)
        for batch in range(0, 100, 4)
    )


def test_batches_counted_anew_are_one_run_where_the_loss_goes_on(tmp_path):
    assert len(logged(tmp_path, epochs(start=1)).curve.values) == 75
    assert len(logged(tmp_path, epochs(start=0)).curve.values) == 25  # the last of three runs


def test_a_pass_over_held_out_data_is_one_value(tmp_path):
    lines = []
    for epoch in range(4):
        lines += [f"Train: [{epoch}/4][{n}/50] loss {2 - epoch / 4 - n / 500}" for n in range(50)]
        lines += [f"Test: [{n}/10] Loss {1.5 - epoch / 5 + (n % 3) / 5}" for n in range(10)]
    held = logged(tmp_path, "\n".join(lines)).held_out
    assert held.values == pytest.approx([1.68 - epoch / 5 for epoch in range(4)])


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("Epoch: {n} | Train Loss: {l:.3f} | Val. Loss: 0.9", "train_loss"),
        ("{n}epoch:train:1-50batch: iter_time=0.1, loss_ctc=9.1, loss={l:.3f}", "loss"),
        ("epoch: {n}; trainloss: {l:.3f}; lr: 0.1", "trainloss"),
    ],
)
def test_names_as_people_shorten_them(line, name, tmp_path):
    story = logged(tmp_path, "\n".join(line.format(n=n, l=3 - n / 10) for n in range(1, 13)))
    assert (story.metric, len(story.curve.values)) == (name, 12)
    assert story.curve.values[0] == pytest.approx(2.9)


def test_a_gradient_that_is_no_number_tells_of_a_log_without_a_loss(tmp_path):
    lines = [f"iteration {n}/ 90 | learning rate: 1e-3 | grad norm: nan |" for n in range(9)]
    assert logged(tmp_path, "\n".join(lines)).course.fate is Fate.NAN
    with pytest.raises(InputError, match="no curve of a loss"):
        logged(tmp_path, "\n".join(lines).replace("nan", "0.5"))


def test_a_counter_is_what_rises_and_a_second_phase_goes_on(tmp_path):
    """As two public logs have it: a bar that ends at one step, and epochs that begin anew."""
    losses = [1.24, 1.20, 1.18, 1.17, 1.16, 0.96, 0.95, 0.94]
    lines = [
        f"Epoch {n}: 100%|####| {size}/{size} [01:00<00:00]\nEpoch {n} | Train Loss: {loss}"
        for (n, size), loss in zip(
            [*((n, 700) for n in range(1, 6)), *((n, 240) for n in range(1, 4))],
            losses,
            strict=True,
        )
    ]
    found = logged(tmp_path, "\n".join(lines))
    assert found.curve.values.tolist() == losses
    rows = "\n".join(f"{40 - n:.2f}\t{20 - n / 2:.2f}" for n in range(30))
    bare = logged(tmp_path, f"total loss\tctc loss\n{rows}\n")
    assert (bare.metric, len(bare.curve.values)) == ("total_loss", 30)


def test_a_perplexity_is_judged_by_its_logarithm(tmp_path):
    lines = [
        f"{53000 + 50 * n}/733817; acc: 42.0; ppl: {22 + n % 3}.5; 900 tok/s" for n in range(20)
    ]
    flat = logged(tmp_path, "\n".join(lines))
    assert (flat.course.fate, flat.course.first) == (Fate.FINE, pytest.approx(22.5))
    both = logged(
        tmp_path, "\n".join(f"step {n}; ppl: 99; xent: {5 - n / 9:.2f}" for n in range(20))
    )
    assert both.metric == "xent"


def test_a_file_of_losses_needs_no_word_for_them(tmp_path):
    """As CycleGAN's loss_log.txt, and tables without a header, have it; other files do not."""
    texts = {
        "loss_log.txt": "\n".join(
            f"(epoch: 1, iters: {n}) cycle_A: {9 - n / 9:.3f}" for n in range(9)
        ),
        "losses.csv": "\n".join(f"{n},{9 - n / 9:.4f}" for n in range(9)),
        "my_loss.log": "\n".join(f"{9 - n / 9:.4f}" for n in range(9)),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        (raw,) = read_raw_runs([tmp_path / name])
        assert course_of(raw).curve.values.tolist() == pytest.approx(
            [9 - n / 9 for n in range(9)], abs=1e-3
        )
        (tmp_path / "notes.txt").write_text(text)
        with pytest.raises(InputError, match="nothing in a format of runs"):
            read_raw_runs([tmp_path / "notes.txt"])


def test_a_counter_that_stands_still_is_none_and_a_cell_may_be_a_tensor(tmp_path):
    lines = [
        "100%|##| 5/900 [00:01<00:10]",
        *(f"{{'loss': {5 - n / 9:.3f}, 'epoch': {n / 90:.2f}}}" for n in range(20)),
    ]
    assert len(logged(tmp_path, "\n".join(lines)).curve.values) == 20
    (tmp_path / "losses.csv").write_text(
        "epoch,train_loss\n"
        + "".join(f"{n},\"tensor({3 - n / 9:.3f}, device='cuda:0')\"\n" for n in range(9))
    )
    (raw,) = read_raw_runs([tmp_path / "losses.csv"])
    assert raw.curves["train_loss"].values[0] == 3.0
    said = logged(
        tmp_path, "\n".join(f"Total rewards in episode {n} is {n / 2} in all" for n in range(9))
    )
    assert said.curve.values.tolist() == [n / 2 for n in range(9)]


@pytest.mark.parametrize(
    "line", ["tensor({l})", "{l}", "{n}0 {l}", "{l} loss, 12.0 accuracy", "s:{n} trl:{l}"]
)
def test_a_value_needs_no_name_before_it(line, tmp_path):
    losses = [9 - n / 9 + 0.125 for n in range(12)]
    text = "\n".join(line.format(n=n, l=f"{loss:.4f}") for n, loss in enumerate(losses))
    assert logged(tmp_path, f"training begins\n{text}").curve.values == pytest.approx(
        losses, abs=1e-3
    )
    with pytest.raises(InputError, match="nothing in a format of runs"):
        logged(tmp_path, "\n".join(f"{loss} seconds, v{loss}" for loss in losses))
