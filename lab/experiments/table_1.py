"""Table 1 of arXiv 2602.22988: spectra at initialization by normalization.

Setting: GPT-2-style blocks, N(0, 0.02²) weights, width 256, 6 blocks, 4 heads, 2,048 states of
random tokens from a vocabulary of 256, full rank; means over the paper's seeds.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import torch

from lab.experiments.tables import markdown
from lab.zoo import build_member
from rksp.spectra.model_profile import profile

SEEDS = (42, 123, 456)
WIDTH, SEQUENCES, LENGTH = 256, 32, 64
QUANTITIES = ("near_unit_mass", "expansive_mass", "spectral_radius")
PAPER = {  # family: (M≈1, M>1, ρ)
    "zoo_pre_ln": (0.16, 0.54, 2.29),
    "zoo_rmsnorm": (0.16, 0.54, 2.28),
    "zoo_post_ln": (0.66, 0.31, 7.48),
    "zoo_deepnorm": (0.00, 1.00, 3.94),
    "zoo_subln": (0.13, 0.54, 2.23),
    "zoo_no_norm": (0.80, 0.19, 1.11),
}


def measure(
    families: Sequence[str] = tuple(PAPER), *, seeds: Sequence[int] = SEEDS
) -> dict[str, tuple[float, ...]]:
    """Return, for each family, the mean over seeds and blocks of each of `QUANTITIES`."""
    shape = {"hidden_size": WIDTH, "num_hidden_layers": 6, "max_position_embeddings": LENGTH}
    found = {}
    for family in families:
        rows = []
        for seed in seeds:
            model = build_member(family, {"vocab_size": 256, **shape}, seed=seed).eval()
            generator = torch.Generator().manual_seed(seed)
            tokens = torch.randint(256, (SEQUENCES, LENGTH), generator=generator)
            seen = profile(model, tokens, variant="paper-full-1")
            rows.append([seen.spectra.aggregates[name]["mean"] for name in QUANTITIES])
        found[family] = tuple(statistics.fmean(column) for column in zip(*rows, strict=True))
    return found


def table(found: Mapping[str, tuple[float, ...]]) -> str:
    """Return rksp's values beside the paper's, as Markdown."""
    cells = [
        [
            family.removeprefix("zoo_"),
            *(f"{value:.2f}" for pair in zip(ours, PAPER[family], strict=True) for value in pair),
        ]
        for family, ours in found.items()
    ]
    header = ("normalization", "M≈1", "paper", "M>1", "paper", "ρ", "paper")
    return markdown(header, cells)
