"""The Trainer's callback names the known faults of the releases that train."""

from __future__ import annotations

import logging

import pytest
from torch import nn
from transformers import GPT2Config, TrainingArguments

from rksp.checks.environment import Environment, Release
from rksp.watch.training.callbacks import hugging_face


@pytest.mark.parametrize(("release", "expected"), [("4.47.1", True), ("4.48.0", False)])
def test_the_callback_logs_known_faults(tmp_path, monkeypatch, caplog, release, expected):
    here = Environment(releases={"transformers": Release(release)}, is_whole=True)
    monkeypatch.setattr(hugging_face, "installed_here", lambda names: here)
    model = nn.Linear(2, 2)
    model.config = GPT2Config()
    args = TrainingArguments(
        output_dir=str(tmp_path), gradient_accumulation_steps=4, use_cpu=True, report_to=[]
    )
    with caplog.at_level(logging.WARNING):
        hugging_face._say_known_faults(args, model)
    said = [record.getMessage() for record in caplog.records]
    assert any(line.startswith("error RKSA-2026-0003") for line in said) is expected
