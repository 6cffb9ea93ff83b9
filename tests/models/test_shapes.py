"""Model shapes without a task of their own are scored in part, or refused in a true sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import transformers

from rksp.ground.errors import InputError
from rksp.models.resolve import resolve

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 300,
}
VISION = {k: v for k, v in SMALL.items() if k != "vocab_size"} | {
    "image_size": 16,
    "patch_size": 8,
}


def config(folder: Path, settings: dict) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(settings))
    return str(path)


def two_towers(kind: str, name: str) -> dict:
    return {
        "model_type": kind,
        "architectures": [name],
        "text_config": SMALL | {"model_type": f"{kind}_text_model"},
        "vision_config": VISION | {"model_type": f"{kind}_vision_model"},
    }


def test_of_two_towers_the_text_tower_is_scored(tmp_path):
    source = resolve(config(tmp_path, two_towers("clip", "CLIPModel")))
    assert source.model_class == "CLIPTextModel"
    assert "--task image-classification scores the image tower" in source.notes[-1]


def test_two_towers_that_cannot_be_taken_apart_are_refused(tmp_path):
    target = config(tmp_path, two_towers("siglip", "SiglipModel"))
    with pytest.raises(InputError, match=r"compares two towers.*siglip_text_model.*--task image"):
        resolve(target)
    assert resolve(target, task="image-classification").task == "image-classification"


def test_the_head_for_classes_of_trained_weights_is_the_task(tmp_path):
    made = transformers.BertConfig(**SMALL)
    transformers.BertForSequenceClassification(made).save_pretrained(tmp_path)
    source = resolve(str(tmp_path))
    assert source.model_class == "BertForSequenceClassification" and source.notes == ()
    assert source.task == "text-classification" and not source.has_fresh_head
    source.build()


def test_trained_weights_under_a_head_without_a_task_are_scored_without_it(tmp_path):
    made = transformers.BertConfig(**SMALL)
    transformers.BertForMultipleChoice(made).save_pretrained(tmp_path)
    source = resolve(str(tmp_path))
    assert source.model_class == "BertModel" and source.task == "other"
    assert "Only the model below" in source.notes[0]
    source.build()  # no weight is missing


def test_without_weights_a_head_for_classes_gives_way_to_one_with_a_loss(tmp_path):
    settings = SMALL | {"model_type": "bert", "architectures": ["BertForTokenClassification"]}
    source = resolve(config(tmp_path, settings))
    assert source.model_class == "BertForMaskedLM"
    assert "BertForTokenClassification is scored with a head for masked-lm" in source.notes[0]


def test_the_depth_of_an_encoder_says_that_the_decoder_keeps_its_own():
    small = {"d_model": 32, "vocab_size": 300, "num_hidden_layers": 1}
    (note,) = resolve("bart", overrides=small).notes
    assert "the decoder keeps decoder_layers 12" in note
    assert resolve("bart", overrides=small | {"decoder_layers": 1}).notes == ()
    assert resolve("t5", overrides=small).notes == ()  # whose decoder follows
