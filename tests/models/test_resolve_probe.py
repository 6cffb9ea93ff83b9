"""The probe of a target: bytes over its vocabulary, inputs of its kind, or the user's file."""

from __future__ import annotations

import pytest
import torch
from support.tiny_models import IDS, TINY_GPT2

from rksp.datasets.probe import make_probe, spread_bytes
from rksp.ground.errors import InputError, NotCovered
from rksp.measure.snapshots import collect
from rksp.models.resolve import resolve


def test_bytes_are_spread_over_the_vocabulary():
    ids = spread_bytes(50_257)
    assert len(set(ids.tolist())) == 256 and int(ids.min()) > 0 and int(ids.max()) < 50_257
    assert torch.equal(ids, spread_bytes(50_257)) and not torch.equal(ids, spread_bytes(50_257, 1))
    assert int(spread_bytes(100).max()) == 99
    with pytest.raises(InputError):
        spread_bytes(1)


def test_probe_of_a_language_model():
    source = resolve("gpt2")
    probe = make_probe(source)
    tokens = probe.inputs["input_ids"]
    assert tokens.shape == (16, 128) and probe.num_tokens == 2048
    assert torch.equal(probe.labels[:, :-1], tokens[:, 1:])
    assert len(torch.unique(tokens, dim=0)) == 16
    assert "bytes" in probe.description
    assert torch.equal(make_probe(source).inputs["input_ids"], tokens)


def test_probe_fits_the_model():
    short = make_probe(resolve("gpt2", overrides={"n_positions": "32"}))
    assert short.inputs["input_ids"].shape == (64, 32) and "shortened" in short.description
    folded = make_probe(resolve("gpt2", overrides={"vocab_size": "50", **IDS}))
    assert int(folded.inputs["input_ids"].max()) < 50 and "folded" in folded.description
    pair = make_probe(resolve("t5"))
    assert pair.inputs["decoder_input_ids"].shape == pair.inputs["input_ids"].shape
    masked = make_probe(resolve("bert"))
    assert torch.equal(masked.labels, masked.inputs["input_ids"])
    images = make_probe(resolve("vit"), num_sequences=2)
    assert images.inputs["pixel_values"].shape == (2, 3, 224, 224)


def test_probe_files(tmp_path):
    source = resolve("gpt2", overrides=TINY_GPT2 | IDS)
    file = tmp_path / "text.txt"
    file.write_text("To be, or not to be: that is the question. " * 20)
    assert "text.txt" in make_probe(source, text=file).description
    for content in ("", "a"):
        file.write_text(content)
        with pytest.raises(InputError, match="token"):
            make_probe(source, text=file)
    file.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(InputError, match="UTF-8"):
        make_probe(source, text=file)
    with pytest.raises(InputError, match="cannot be read"):
        make_probe(source, text=tmp_path / "none.txt")
    with pytest.raises(InputError, match="at least two"):
        make_probe(source, num_sequences=1, sequence_length=1)


def test_token_ids_beyond_the_vocabulary():
    model = resolve("gpt2", overrides=TINY_GPT2 | IDS).build()
    with pytest.raises(InputError, match="token id 300, but the vocabulary has 300"):
        collect(model, {"input_ids": torch.tensor([[1, 300]])}, consume=lambda t: None)
    assert issubclass(NotCovered, InputError)
