"""What measuring trained weights adds to what their configuration and recipe say of a rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from lab.ladders.fine_tuning.as_ladders import GAIN
from lab.ladders.fine_tuning.ladder import FineTunedLadder
from lab.ladders.fine_tuning.summary import LadderSummary, summarize
from lab.ladders.markdown import table
from rksp.ground.model import definite

# (rate that is predicted, what is measured): the response for the rates of the task, the drift of
# the old predictions for forgetting.
ASKED: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("best", ("grad_norm", "critical_rate")),
    ("edge", ("grad_norm", "critical_rate")),
    ("forgetting", ("grad_norm", "critical_rate")),
    ("forgetting", ("drift_1e-03",)),
)
_RIDGE = 10.0  # in units of one ladder, after columns are standardized
_DRAWS, _ENDS = 2000, (2.5, 97.5)
_FEWEST = 20  # ladders of three families at least


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """The error of a rate with and without a measurement, whole families left out, in decades.

    Attributes:
        rate: best, edge or forgetting.
        method: all or lora.
        measured: What was measured.
        ladders, families: Behind it.
        constant: Mean absolute error of the median of the other families.
        without: That of a linear model of configuration and recipe.
        with_it: That of the same model with the measurement.
        low, high: 95 % interval of the difference, drawn over families.
    """

    rate: str
    method: str
    measured: tuple[str, ...]
    ladders: int
    families: int
    constant: float
    without: float
    with_it: float
    low: float
    high: float

    @property
    def helps(self) -> bool:
        """Whether it lowers the error for certain, and below that of the constant."""
        return self.high < 0 and self.with_it < self.constant


def what_measuring_adds(ladders: Sequence[FineTunedLadder]) -> list[Added]:
    """Return every row of `ASKED` for each method that has enough ladders."""
    found = [summarize(ladder) for ladder in ladders]
    rows = []
    for method in ("all", "lora"):
        part = [s for s in found if s.ladder.spec.method == method]
        for rate, names in ASKED:
            known = [(s, place) for s in part if (place := _place(s, rate)) is not None]
            families = {s.ladder.spec.family for s, _ in known}
            if len(known) >= _FEWEST and len(families) > 2:
                rows.append(_added(rate, method, names, known))
    return rows


def as_card(rows: Sequence[Added]) -> list[dict[str, object]]:
    """Return the rows as the model's card keeps them, rounded."""
    return [
        {k: round(v, 3) if isinstance(v, float) else v for k, v in asdict(row).items()}
        | {"measured": list(row.measured), "helps": row.helps}
        for row in rows
    ]


def evidence_table(rows: Sequence[Added]) -> str:
    """Return the rows as a Markdown table."""
    lines = [
        [
            f"{row.rate}, {row.method}",
            " and ".join(row.measured),
            f"{row.ladders} of {row.families}",
            f"{row.constant:.3f}",
            f"{row.without:.3f}",
            f"{row.with_it:.3f}",
            f"{row.with_it - row.without:+.3f} [{row.low:+.3f}, {row.high:+.3f}]",
            "yes" if row.helps else "no",
        ]
        for row in rows
    ]
    header = ["rate", "measured", "ladders of families", "constant", "without", "with"]
    return table([*header, "difference", "helps"], lines)


def _added(
    rate: str, method: str, names: tuple[str, ...], known: Sequence[tuple[LadderSummary, float]]
) -> Added:
    summaries = [s for s, _ in known]
    places = np.array([place for _, place in known])
    family = np.array([s.ladder.spec.family for s in summaries])
    plain = np.array([_configured(s) for s in summaries])
    seen = np.array([[_log(s.ladder.measured.get(name)) for name in names] for s in summaries])
    seen = np.column_stack([np.nan_to_num(seen), np.isnan(seen)])
    constant, without, with_it = (np.empty(len(places)) for _ in range(3))
    for name in sorted(set(family)):
        out, rest = family == name, family != name
        constant[out] = np.abs(np.median(places[rest]) - places[out])
        for errors, columns in ((without, plain), (with_it, np.column_stack([plain, seen]))):
            errors[out] = np.abs(_ridge(columns[rest], places[rest], columns[out]) - places[out])
    low, high = _interval(with_it - without, family)
    return Added(
        rate=rate,
        method=method,
        measured=names,
        ladders=len(places),
        families=len(set(family)),
        constant=float(constant.mean()),
        without=float(without.mean()),
        with_it=float(with_it.mean()),
        low=low,
        high=high,
    )


def _place(summary: LadderSummary, rate: str) -> float | None:
    """Return log10 of the rate, or of the middle of where it lies; None where it is not known."""
    if rate == "best":
        return math.log10(definite(summary.best)) if summary.gain >= GAIN else None
    first = summary.first_forgetting if rate == "forgetting" else summary.first_held_out_failed
    rates = summary.ladder.rates
    if first is None or first == rates[0]:
        return None
    return math.log10(first * rates[rates.index(first) - 1]) / 2


def _configured(summary: LadderSummary) -> list[float]:
    """Return what the configuration and the recipe say, as numbers."""
    spec, recipe = summary.ladder.spec, summary.ladder.spec.recipe
    rank = recipe.lora_rank or 1
    return [
        math.log10(summary.ladder.base.parameters),
        math.log10(int(str(spec.base.shape["hidden_size"]))),
        math.log10(rank),
        math.log10((recipe.lora_alpha or rank) / rank),
        math.log10(recipe.batch_size),
        math.log10(recipe.max_steps),
        float(recipe.warmup_steps > 0),
        float(recipe.schedule == "constant"),
        float(recipe.max_grad_norm is None),
        float(recipe.objective == "classification"),
        float(spec.fresh_head),
    ]


def _ridge(seen: np.ndarray, places: np.ndarray, asked: np.ndarray) -> np.ndarray:
    middle, spread = seen.mean(0), seen.std(0) + 1e-9
    columns, wanted = (seen - middle) / spread, (asked - middle) / spread
    weights = np.linalg.solve(
        columns.T @ columns + _RIDGE * np.eye(columns.shape[1]),
        columns.T @ (places - places.mean()),
    )
    return places.mean() + wanted @ weights


def _interval(differences: np.ndarray, family: np.ndarray) -> tuple[float, float]:
    """Return the 95 % interval of the mean, drawn over whole families."""
    parts = [differences[family == name] for name in sorted(set(family))]
    draws = np.random.default_rng(0).integers(0, len(parts), (_DRAWS, len(parts)))
    means = [np.concatenate([parts[i] for i in draw]).mean() for draw in draws]
    low, high = np.percentile(means, _ENDS)
    return float(low), float(high)


def _log(value: float | None) -> float:
    return math.log10(value) if value is not None and 0 < value < math.inf else math.nan
