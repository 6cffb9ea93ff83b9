"""The samples of rksp/watch/training/README.md run on the real libraries."""

from __future__ import annotations

import re
from pathlib import Path

import lightning
import pytest
import torch
from support.places import ROOT
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

README = ROOT / "rksp" / "watch" / "training" / "README.md"
SAMPLES = dict(
    re.findall(r"^## ([^\n]+)\n\n```python\n(.*?)```", README.read_text(), re.DOTALL | re.MULTILINE)
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def _names() -> dict[str, object]:
    shape = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 32, "n_positions": 8}
    model = GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0))
    tokens = torch.randint(0, 31, (16, 8))
    rows = [{"input_ids": row, "labels": row} for row in tokens]

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: dict, index: int) -> torch.Tensor:
            return self.model(**batch).loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    return {
        "model": model,
        "rows": rows,
        "loader": DataLoader(rows, batch_size=4),
        "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-3),
        "module": Module(),
    }


def test_there_is_a_sample_for_every_trainer() -> None:
    assert set(SAMPLES) == {"transformers", "Lightning", "Accelerate", "A loop of your own"}


@pytest.mark.parametrize("name", SAMPLES)
def test_the_sample_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = _names()
    before = [p.detach().clone() for p in names["model"].parameters()]
    exec(SAMPLES[name], names)
    losses = [r.step for r in names["watch"].watch.readings if r.quantity == "loss"]
    assert losses == [0, 1, 2, 3]
    assert not all(map(torch.equal, before, names["model"].parameters()))
