"""Models of images: their patches are the tokens of a recipe."""

from __future__ import annotations

import json

import pytest
from support.commands import left_with

import rksp
from rksp.models.resolve import resolve


@pytest.mark.parametrize(
    ("name", "changes", "length"),
    [
        ("vit", {}, 14 * 14),
        ("vit", {"image_size": 384, "patch_size": 32}, 12 * 12),
        ("vit", {"image_size": [224, 448]}, 14 * 28),
        ("swin", {}, 14 * 14),  # patches of 4, which two stages halve twice before its middle
        ("convnext", {}, 14 * 14),
        ("convnext", {"depths": [10, 3, 3, 2]}, 56 * 56),
        ("segformer", {}, None),  # no size of the image
        ("resnet", {}, None),
        ("mobilevit", {}, None),  # its patch_size is not that of the image
    ],
)
def test_a_configuration_of_images_shows_its_patches(name, changes, length):
    assert resolve(name, overrides=changes, counts=False).shown == {"sequence_length": length}


def test_a_model_of_text_or_of_unknown_patches_shows_nothing():
    for name in ("gpt2", "bert", "whisper", "clip_text_model", "siglip2"):
        assert "sequence_length" not in resolve(name, counts=False).shown, name


def _scored(capsys, *arguments: str) -> dict:
    command = ["score", *arguments, "--evidence", "config", "--format", "json", "--exit-zero"]
    assert left_with(command) == 0
    return json.loads(capsys.readouterr().out)


def _codes(report: dict) -> set[str]:
    return {finding["code"] for finding in report["findings"]}


def test_an_image_counts_as_its_patches(capsys):
    report = _scored(capsys, "convnext", "--lr", "4e-3", "--batch-size", "4096")
    assert report["recipe"]["sequence_length"] == 196
    assert "sequences of" not in report["assumed"]
    assert "RKSP408" not in _codes(report)  # 802,816 patches; 256 tokens an image made 1,048,576
    large = _scored(capsys, "convnext", "--lr", "4e-3", "--batch-size", "8192")
    assert "RKSP408" in _codes(large)
    typed = _scored(capsys, "vit", "--lr", "1e-3", "--sequence-length", "50")
    assert typed["recipe"]["sequence_length"] == 50


def test_images_of_no_known_size_have_no_tokens(capsys):
    report = _scored(capsys, "resnet", "--lr", "1e-3", "--batch-size", "8192")
    assert "RKSP408" not in _codes(report) and "sequences of" not in report["assumed"]
    assert report["recipe_origins"]["sequence_length"]["kind"] == "unasked"
    text = _scored(capsys, "gpt2", "--lr", "1e-3", "--batch-size", "8192")
    assert "RKSP408" in _codes(text) and "sequences of 256 tokens" in text["assumed"]


def test_python_hears_the_same():
    assert rksp.score("vit", evidence="config", lr=1e-3).recipe.sequence_length == 196
