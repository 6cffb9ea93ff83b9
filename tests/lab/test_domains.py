"""Texts and tasks that models are tuned from and to."""

from __future__ import annotations

import pytest
import torch

from lab.tasks.domain_tasks import DOMAIN_TASKS, make_domain_task
from lab.tasks.domains import DOMAINS, domain_tokens, enciphered

pytest.importorskip("peft")

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")


@pytest.mark.parametrize("name", DOMAINS)
def test_the_parts_of_a_domain_are_all_of_it(name: str) -> None:
    training, held_out = domain_tokens(name, "training"), domain_tokens(name, "held_out")
    assert bytes(torch.cat([training, held_out]).tolist()) == DOMAINS[name]()
    assert 0.08 < len(held_out) / len(training) < 0.15
    assert int(training.min()) > 2  # the mask, the padding and the start are no text


def test_the_cipher_moves_every_letter_and_nothing_else() -> None:
    alphabet = bytes(range(97, 123))
    assert sorted(enciphered(alphabet)) == list(alphabet)
    assert sum(a == b for a, b in zip(enciphered(alphabet), alphabet, strict=True)) <= 3
    assert enciphered(b"Ab, 1\n") == enciphered(b"a").upper() + enciphered(b"b") + b", 1\n"


_OPTIONS = {
    "next_byte": {"domain": "plays"},
    "masked_byte": {"domain": "docs"},
    "filled_byte": {"domain": "code"},
    "translation": {"head": "causal-lm"},
    "digit_views": {"view": "turned", "label": "parity"},
}


@pytest.mark.parametrize("name", DOMAIN_TASKS)
def test_a_seed_decides_the_batches_and_examples_limit_them(name: str) -> None:
    length = {} if name == "digit_views" else {"length": 12}
    options = _OPTIONS.get(name, {}) | length
    task = make_domain_task(name, part="training", **options, examples=10)
    first, again = (task.batches(12, 4, seed=seed) for seed in (1, 1))

    def rows(batch) -> list[bytes]:
        inputs = batch.inputs["input_ids"] if isinstance(batch.inputs, dict) else batch.inputs
        labels = batch.labels.reshape(len(batch.labels), -1)
        parts = labels if name == "masked_byte" else inputs.flatten(1)
        return [row.numpy().tobytes() for row in parts]

    assert [rows(b) for b in first] == [rows(b) for b in again]
    if name not in ("masked_byte", "filled_byte"):  # where the hidden bytes differ each time
        assert len({row for batch in first for row in rows(batch)}) <= 10
    assert task.trivial_loss <= task.uniform_loss + 1e-9


def test_a_decoder_translates_behind_the_plain_text() -> None:
    task = make_domain_task("translation", part="held_out", head="causal-lm", length=12)
    batch = task.batches(1, 3, seed=0)[0]
    for row, labels in zip(batch.inputs.tolist(), batch.labels.tolist(), strict=True):
        assert bytes(row[6:]) == enciphered(bytes(row[:6]))
        assert labels == [-100] * 5 + row[6:] + [-100]
