"""Each task's law, its trivial loss, its seeds, and what it says when it cannot be made."""

from __future__ import annotations

import math

import pytest
import torch

from lab.tasks import tasks
from lab.tasks.corpora import bpe_tokens, byte_tokens
from lab.tasks.tasks import make_task
from rksp.datasets.probe import digit_images, shakespeare
from rksp.ground.errors import InputError
from rksp.kernels.cross_entropy import IGNORED

BUNDLED = ("recall", "synthetic", "bytes", "masked_bytes", "masked_repeats", "bpe", "digits")
OPTIONS = {"synthetic": {"vocab": 512, "length": 64}}


def _task(name: str) -> tasks.Task:
    return make_task(name, **OPTIONS.get(name, {}))


def _answer(keys_and_values: list[int], query: int) -> int:
    pairs = dict(zip(keys_and_values[::2], keys_and_values[1::2], strict=True))
    return pairs[query]


def test_recall_asks_for_the_value_of_a_key_it_showed() -> None:
    task = make_task("recall", length=16, vocab=32, pairs=5)
    batch = task.draw(torch.Generator().manual_seed(0), 200)
    assert batch.inputs.shape == batch.labels.shape == (200, 16)
    for tokens, labels in zip(batch.inputs.tolist(), batch.labels.tolist(), strict=True):
        shown, query = tokens[:10], tokens[-1]
        assert labels[-1] == _answer(shown, query)
        assert set(labels[:-1]) == {IGNORED}
        assert len(set(shown[::2])) == 5  # distinct keys, or the question would be ambiguous
        assert all(0 < key < 16 for key in shown[::2])
        assert all(16 <= value < 32 for value in shown[1::2])
        assert tokens[10:-1] == [0] * 5
    asked = {tokens[::2].index(tokens[-1]) for tokens in batch.inputs.tolist()}
    assert asked == set(range(5))  # every pair is asked for: the first alone would be a shortcut


def test_recall_has_the_published_defaults() -> None:
    task = make_task("recall")
    assert (task.sequence_length, task.vocab_size, task.head) == (64, 256, "causal-lm")
    assert task.trivial_loss == pytest.approx(math.log(128))
    assert task.uniform_loss == pytest.approx(math.log(256))
    shown = task.draw(torch.Generator().manual_seed(0), 8).inputs
    assert ((shown != 0).sum(-1) == 9).all()  # four pairs and the question


def _explained(row: list[int]) -> float:
    """Share of tokens that continue an ascending run or repeat one of the last five lags."""
    hits = 0
    for i in range(5, len(row)):
        hits += row[i] == row[i - 1] + 1 or any(row[i] == row[i - lag] for lag in range(2, 6))
    return hits / (len(row) - 5)


def test_synthetic_text_is_runs_repeats_and_noise() -> None:
    task = make_task("synthetic")
    assert (task.sequence_length, task.vocab_size) == (256, 10_000)
    rows = task.draw(torch.Generator().manual_seed(1), 40).inputs
    assert rows.min() >= 10
    assert rows.max() < 10_000
    # A third of the segments each; repeats have 7-8 tokens on average of which 2/3 repeat, runs
    # and noise 10: about (5 + 9) / 28 = 0.5 of the tokens follow from the last five.
    shares = [_explained(row) for row in rows.tolist()]
    assert 0.4 < sum(shares) / len(shares) < 0.6
    noise = torch.randint(10, 10_000, (256,), generator=torch.Generator().manual_seed(2))
    assert _explained(noise.tolist()) < 0.02  # negative control


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_each_kind_of_segment_has_its_law(kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = 0
    for seed in range(60):
        generator = torch.Generator().manual_seed(seed)
        if int(torch.randint(0, 3, (), generator=generator)) != kind:
            continue
        found += 1
        segment = tasks._segment(torch.Generator().manual_seed(seed), 500).tolist()
        if kind == 0:
            assert any(
                len(segment) == period * times and segment == segment[:period] * times
                for period in range(2, 6)
                for times in range(2, 5)
            )
        elif kind == 1:
            assert 5 <= len(segment) <= 15
            assert segment == list(range(segment[0], segment[0] + len(segment)))
        else:
            assert 5 <= len(segment) <= 15
        assert min(segment) >= 10
        assert max(segment) < 500
    assert found >= 10


@pytest.mark.parametrize("name", ["synthetic", "bytes", "bpe"])
def test_labels_are_inputs_shifted_by_one(name: str) -> None:
    batch = _task(name).draw(torch.Generator().manual_seed(0), 16)
    assert torch.equal(batch.inputs[:, 1:], batch.labels[:, :-1])
    assert batch.labels.is_contiguous()
    assert not torch.equal(batch.inputs, batch.labels)


def test_bytes_are_the_text_itself() -> None:
    row = make_task("bytes", length=32).draw(torch.Generator().manual_seed(3), 1)
    text = bytes(row.inputs[0].tolist()) + bytes([int(row.labels[0, -1])])
    assert text in shakespeare()
    assert len(byte_tokens()) == len(shakespeare())


def test_bpe_tokens_decode_to_the_text() -> None:
    ids, vocab = bpe_tokens()
    assert vocab == 1024
    assert int(ids.min()) >= 0
    assert int(ids.max()) < vocab
    assert len(ids) < 0.6 * len(byte_tokens())  # merges shorten the text, or nothing was merged


def test_masked_bytes_hide_what_they_ask_for() -> None:
    task = make_task("masked_bytes")
    batch = task.draw(torch.Generator().manual_seed(0), 200)
    asked = batch.labels != IGNORED
    assert (batch.inputs[asked] == 0).all()
    assert (batch.inputs[~asked] != 0).all()
    assert (batch.labels[asked] != 0).all()
    assert asked.any(-1).all()
    assert float(asked.float().mean()) == pytest.approx(0.15, abs=0.01)
    short = make_task("masked_bytes", length=2).draw(torch.Generator().manual_seed(0), 300)
    assert (short.labels != IGNORED).any(-1).all()  # without the guard 72 % would ask nothing


def test_masked_repeats_can_be_filled_in_from_what_is_shown() -> None:
    task = make_task("masked_repeats", length=14, vocab=32, period=4, hidden=30)
    batch = task.draw(torch.Generator().manual_seed(0), 200)
    asked = batch.labels != IGNORED
    whole = torch.where(asked, batch.labels, batch.inputs)
    assert torch.equal(whole[:, 4:], whole[:, :-4])
    assert (batch.inputs[asked] == 0).all() and (whole != 0).all()
    assert float(asked.float().mean()) == pytest.approx(0.3, abs=0.02)


def test_denoised_bytes_show_the_decoder_only_what_came_before() -> None:
    batch = make_task("denoised_bytes", length=32).draw(torch.Generator().manual_seed(0), 200)
    seen, started = batch.inputs["input_ids"], batch.inputs["decoder_input_ids"]
    assert torch.equal(started[:, 1:], batch.labels[:, :-1])
    assert (started[:, 0] == 0).all()
    noisy = seen == 0
    assert torch.equal(seen[~noisy], batch.labels[~noisy])
    assert float(noisy.float().mean()) == pytest.approx(0.3, abs=0.02)


def test_digits_are_scikit_learn_s_standardized() -> None:
    images, labels = digit_images()
    assert images.shape == (1797, 1, 8, 8)
    assert float(images.mean()) == pytest.approx(0, abs=1e-5)
    assert float(images.std()) == pytest.approx(1, abs=1e-5)
    batch = make_task("digits").draw(torch.Generator().manual_seed(0), 32)
    for image, label in zip(batch.inputs, batch.labels, strict=True):
        same = (images == image).flatten(1).all(-1)
        assert label in labels[same]


@pytest.mark.parametrize("name", BUNDLED)
def test_trivial_loss_is_the_entropy_of_the_labels(name: str) -> None:
    task = _task(name)
    drawn = torch.cat([b.labels.flatten() for b in task.batches(60, 64, seed=9)])
    counts = drawn[drawn != IGNORED].bincount().double()
    share = counts[counts > 0] / counts.sum()
    # Miller and Madow (1955): a plug-in entropy is low by (classes - 1) / (2 draws).
    measured = float(-(share * share.log()).sum() + (len(share) - 1) / (2 * counts.sum()))
    assert measured == pytest.approx(task.trivial_loss, abs=0.03)
    assert task.trivial_loss < task.uniform_loss or name == "digits"


@pytest.mark.parametrize("name", BUNDLED)
def test_seeds_decide_and_nothing_else_does(name: str) -> None:
    task = _task(name)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = task.batches(3, 4, seed=7)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    again, other = task.batches(5, 4, seed=7), task.batches(3, 4, seed=8)
    assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(first, again, strict=False))
    assert all(torch.equal(a.labels, b.labels) for a, b in zip(first, again, strict=False))
    assert not torch.equal(first[0].inputs, other[0].inputs)
    assert not torch.equal(first[0].inputs, first[1].inputs)


@pytest.mark.parametrize("name", BUNDLED)
def test_labels_fit_the_classes(name: str) -> None:
    task = _task(name)
    batch = task.draw(torch.Generator().manual_seed(4), 64)
    asked = batch.labels[batch.labels != IGNORED]
    assert int(asked.min()) >= 0
    assert int(asked.max()) < task.num_classes
    if task.head != "image":
        assert int(batch.inputs.max()) < task.vocab_size
        assert batch.inputs.shape[1] == task.sequence_length


def test_a_task_is_made_once_for_the_same_options() -> None:
    assert make_task("recall", length=32, vocab=64) is make_task("recall", vocab=64, length=32)
    assert make_task("recall", length=32) is not make_task("recall", length=16)


def test_an_unknown_task_names_the_nearest() -> None:
    with pytest.raises(InputError, match=r"'recal'.*recall"):
        make_task("recal")
