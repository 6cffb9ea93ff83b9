"""The scales in which Muon's rates are given, each trainer's own, and the ratios between them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

# `match_rms_adamw` and `original` are names of torch.optim.Muon, `spectral` is one of Megatron's.
MuonScale = Literal["match_rms_adamw", "original", "spectral"]
_MATCHED = 0.2  # Liu et al., 2025 (2502.16982), equation 4


@dataclass(frozen=True, slots=True)
class TrainersScale:
    """The scale that one trainer gives Muon's update where its file says nothing.

    Attributes:
        scale: rksp's name of it, or of the one that is the same for a square matrix.
        source: Where the trainer's own code or documentation says so, with its formula.
    """

    scale: MuonScale
    source: str


# By the name of the reader of a trainer's files; the other names have no files of their own.
TRAINERS: dict[str, TrainersScale] = {
    "torch": TrainersScale(
        "original", "√max(1, rows/columns); torch 2.9, torch/optim/_muon.py, adjust_lr_fn=None"
    ),
    "keller-jordan": TrainersScale("original", "√max(1, rows/columns); KellerJordan/Muon, muon.py"),
    "moonlight": TrainersScale(
        "match_rms_adamw", "0.2 √max(rows, columns); Liu et al., 2025 (2502.16982), equation 4"
    ),
    "modded-nanogpt": TrainersScale("original", "√max(1, rows/columns); train_gpt2.py@01482e15"),
    "nanochat": TrainersScale("original", "√max(1, rows/columns); nanochat/muon.py@23c51711"),
    "levanter": TrainersScale(
        "original", "√max(1, rows/columns) without use_kimi_scaling; optim/muon.py@094aeccf"
    ),
    "deepspeed": TrainersScale(
        "original", "√max(1, rows/columns); deepspeed/runtime/zero/muon/original_muon.py@15e3bf4f"
    ),
    "torchtitan": TrainersScale(
        "original", "√max(1, rows/columns), as torch's; distributed_optimizers/muon.py@01e1814a"
    ),
    "axolotl": TrainersScale(
        "original", "√(rows/columns) of DistMuon; contribs/mit/muon, adjust_lr=spectral_norm"
    ),
    "llama-factory": TrainersScale(
        "match_rms_adamw",
        "0.2 √max(rows, columns), as Moonlight's; src/llamafactory/third_party/muon",
    ),
    "megatron": TrainersScale(
        "spectral",
        "√max(rows, columns); optimizer_config.py, muon_scale_mode and muon_extra_scale_factor=1",
    ),
}


def matched_rate(width: float, scale: MuonScale = "original") -> float:
    """Return the rate of `match_rms_adamw` that steps as far as the rate 1 of `scale` does.

    A square matrix of this width has √max(1, rows/columns) = 1 in the scale of Jordan et al.
    (2024), 0.2 √max(rows, columns) in that of Liu et al. (2025, 2502.16982, equation 4), and
    √max(rows, columns) in Megatron's.
    """
    if scale == "match_rms_adamw":
        return 1.0
    return 1 / _MATCHED if scale == "spectral" else 1 / (_MATCHED * math.sqrt(width))
