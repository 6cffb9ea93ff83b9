"""The reliability diagram: what was predicted against what happened."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rksp.classifiers.metrics import ece, reliability
from rksp.errors import InputError
from rksp.files import replacing

_COLORS = ("#0b6e99", "#c2571a", "#5a7d2a", "#7b4fa3")


def reliability_diagram(y: np.ndarray, predictions: Mapping[str, np.ndarray], path: Path) -> None:
    """Draws one curve per predictor over bins of equal count, and the histogram of predictions.

    Args:
        y: Labels, `[rows]`.
        predictions: Name → probabilities of unseen rows, `[rows]`.
        path: Written as SVG or PNG by its suffix; the same input gives the same SVG.

    Raises:
        InputError: matplotlib is missing, or the suffix is neither.
    """
    if path.suffix not in (".svg", ".png"):
        raise InputError(f"A figure is .svg or .png, got {path.name}; name it so.")
    try:
        import matplotlib
    except ImportError:
        raise InputError("A figure needs matplotlib; pip install 'rksp[plots]'.") from None
    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    with plt.rc_context({"svg.hashsalt": "rksp", "font.size": 9, "axes.spines.top": False}):
        figure, (curve, counts) = plt.subplots(
            2, 1, figsize=(4.2, 5.0), height_ratios=(4, 1), sharex=True, layout="constrained"
        )
        curve.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle="--")
        for color, (name, p) in zip(_COLORS, predictions.items(), strict=False):
            bins = reliability(y, p)
            label = f"{name} (ECE {ece(y, p):.3f})"
            predicted, observed, _ = zip(*bins, strict=True)
            curve.plot(predicted, observed, "o-", markersize=4, color=color, label=label)
            counts.hist(p, bins=np.linspace(0, 1, 31), histtype="step", color=color)
        curve.set(xlim=(0, 1), ylim=(0, 1), ylabel="observed share that failed")
        counts.set(xlabel="predicted probability, unseen ladders", ylabel="runs")
        curve.legend(frameon=False, loc="upper left")
        for axes in (curve, counts):
            axes.spines["right"].set_visible(False)
        metadata = {"Date": None} if path.suffix == ".svg" else None
        with replacing(path) as partial:
            figure.savefig(partial, format=path.suffix[1:], metadata=metadata, dpi=150)
        plt.close(figure)
