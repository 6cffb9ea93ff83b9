"""Every callback names the known faults of the releases that train, once, at the start."""

from __future__ import annotations

import logging

import pytest
import torch
from support import trainers
from torch import nn
from transformers import GPT2Config, TrainingArguments

from rksp.checks.environment import Environment, Release
from rksp.watch.training import known_faults

pytestmark = [  # Lightning's own
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def _installed(monkeypatch: pytest.MonkeyPatch, release: str) -> None:
    here = Environment(releases={"transformers": Release(release)}, is_whole=True)
    monkeypatch.setattr(known_faults, "installed_here", lambda names: here)


def _said(caplog: pytest.LogCaptureFixture, code: str) -> int:
    return sum(code in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("trainer", sorted(trainers.TRAINERS))
@pytest.mark.parametrize(("model_type", "expected"), [("gemma2", 1), ("gpt2", 0)])
def test_all_callbacks_name_a_fault_of_the_model_once(
    trainer, model_type, expected, tmp_path, monkeypatch, caplog
):
    def model() -> nn.Module:
        made = trainers.gpt2()
        made.config.model_type = model_type
        return made

    _installed(monkeypatch, "4.57.0")
    rows = trainers.rows()[: 2 * trainers.BATCH]
    monkeypatch.setattr(trainers, "rows", lambda length: rows)
    with caplog.at_level(logging.WARNING, logger="rksp"):
        trainers.TRAINERS[trainer](tmp_path, trainers.Setting(model=model))
    assert _said(caplog, "RKSA-2026-0017") == expected


@pytest.mark.parametrize(("release", "expected"), [("4.47.1", 1), ("4.48.0", 0)])
def test_arguments_of_a_trainer_count(tmp_path, monkeypatch, caplog, release, expected):
    _installed(monkeypatch, release)
    model = nn.Linear(2, 2)
    model.config = GPT2Config()
    args = TrainingArguments(
        output_dir=str(tmp_path), gradient_accumulation_steps=4, use_cpu=True, report_to=[]
    )
    with caplog.at_level(logging.WARNING):
        known_faults.log_known_faults(model, None, known_faults.facts_of_arguments(args))
    assert _said(caplog, "error RKSA-2026-0003") == expected


@pytest.mark.parametrize(("fused", "expected"), [(True, 1), (False, 0)])
def test_the_optimizer_that_trains_counts(monkeypatch, caplog, fused, expected):
    model = nn.Linear(2, 2)
    here = Environment(releases={"torch": Release("2.0.1")}, is_whole=True)
    monkeypatch.setattr(known_faults, "installed_here", lambda names: here)
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
    with caplog.at_level(logging.WARNING):
        known_faults.log_known_faults(model, optimizer, known_faults.stated(precision="fp16"))
    assert _said(caplog, "RKSA-2026-0046") == expected
