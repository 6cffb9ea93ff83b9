"""Where the lab's data lie: in the checkout, since no wheel holds them."""

from __future__ import annotations

from pathlib import Path

DATA = Path(__file__).parents[1] / "datasets"  # plans, runs, public recipes, tokenizers
