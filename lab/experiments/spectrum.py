"""Print the table that `spectrum.md` registers, of ladders that are trained and answered for."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rksp.classifiers.metrics import auroc

STORED = Path(__file__).parent / "results" / "spectrum.jsonl"
READ = STORED.with_name("spectrum_read.jsonl")
DRAWS = 12
RATES = tuple(10 ** (decade / 2) for decade in range(-6, 3))  # at which runs count as such
ANSWERS = ("released", "read")  # by rksp 0.11.0, and with the module read
FEATURES = ("sigma_max", "gain", "near_unit_mass", "rho", "kappa", "eta", "response")


def read(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file; a line that a kill cut off is none."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the registered comparisons, as Markdown: each with the kinds left out whole."""
    answers = {name: [row | row[name] for row in rows] for name in ANSWERS}
    released, read = answers["released"], answers["read"]
    asked = [("rksp 0.11", released, ()), ("the module read", read, ())]
    asked += [(f"0.11 + {name}", released, (name,)) for name in FEATURES]
    asked += [("0.11 + gain + response", released, ("gain", "response"))]
    asked += [(f"read + {name}", read, (name,)) for name in ("sigma_max", "gain")]
    asked += [("read + gain + response", read, ("gain", "response"))]
    lines = [f"{len(rows)} ladders of {DRAWS * len({row['kind'] for row in rows})}.", ""]
    lines += [
        "| evidence | AUROC | gain over 0.11 [90 %] | Brier | edge error |",
        "|---|---|---|---|---|",
    ]
    base, said = _left_out(released, ()), list[str]()
    for name, given, features in asked:
        one = _left_out(given, features)
        low, high = _interval(base, one)
        gain = one.auroc - base.auroc
        lines.append(
            f"| {name} | {one.auroc:.3f} | {gain:+.3f} [{low:+.3f}, {high:+.3f}] | {one.brier:.3f} "
            f"| {one.error:.2f} |"
        )
    for name, given in (("rksp 0.11", released), ("the module read", read)):
        one = _raw(given)
        sure = one.p >= 0.9
        lines.append(f"| {name}, P as it is | {one.auroc:.3f} | | {one.brier:.3f} | |")
        said += [f"P ≥ 0.9 of {name} comes true in {one.failed[sure].mean():.2f} of {sure.sum()}"]
    lines += ["", "; ".join(said) + "."]
    closer = {
        "rksp 0.11": _left_out(released, (), "edge_0.12"),
        "with sigma_max": _left_out(released, ("sigma_max",), "edge_0.12"),
        "the module read": _left_out(read, (), "edge_0.12"),
    }
    aurocs = ", ".join(f"{name} {one.auroc:.3f}" for name, one in closer.items())
    lines += ["", f"AUROC at a margin of 0.12 nats: {aurocs}."]
    within = _within(rows)
    lines += ["", "Within kinds, r with log edge: "]
    lines[-1] += ", ".join(f"{name} {r:+.2f}" for name, r in within.items()) + "."
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class _Asked:
    """Answers about kinds that were left out: kind, failed and P of every run, and edge errors."""

    kinds: np.ndarray
    failed: np.ndarray
    p: np.ndarray
    error: float

    @property
    def auroc(self) -> float:
        return auroc(self.failed, self.p)

    @property
    def brier(self) -> float:
        return float(np.mean((self.p - self.failed) ** 2))


def _left_out(
    rows: Sequence[dict[str, Any]], features: Sequence[str], label: str = "edge_0.25"
) -> _Asked:
    from sklearn.linear_model import LogisticRegression

    kinds, x, failed, edges = [], [], [], []
    for row in rows:
        shown = [row[name] if row[name] is not None else math.nan for name in features]
        for at, is_bad in _labels(row[label]):
            kinds.append(row["kind"])
            failed.append(is_bad)
            x.append([math.log(row["p"][at] / (1 - row["p"][at])), *shown])
        last, first = row[label] or (None, None)
        if first is not None:
            middle = math.log10(last * first) / 2
            edges.append((row["kind"], middle, [math.log10(row["e"]), *shown]))
    kind_of, bad, known = np.array(kinds), np.array(failed), np.array(x)
    p = np.empty(len(bad))
    for kind in dict.fromkeys(kinds):
        out = kind_of == kind
        mean, deviation = np.nanmean(known[~out], 0), np.nanstd(known[~out], 0)
        scaled = np.nan_to_num((known - mean) / deviation)
        fitted = LogisticRegression().fit(scaled[~out], bad[~out])
        p[out] = fitted.predict_proba(scaled[out])[:, 1]
    return _Asked(kind_of, bad, p, _edge_error(edges))


def _raw(rows: Sequence[dict[str, Any]]) -> _Asked:
    """Return P as rksp says it, without anything fitted to these runs."""
    found = [(r["kind"], bad, r["p"][at]) for r in rows for at, bad in _labels(r["edge_0.25"])]
    kinds, failed, p = map(np.array, zip(*found, strict=True))
    return _Asked(kinds, failed, p, math.nan)


def _edge_error(edges: Sequence[tuple[str, float, list[float]]]) -> float:
    found = []
    kinds = np.array([kind for kind, _, _ in edges])
    middle = np.array([edge for _, edge, _ in edges])
    shown = np.array([known for _, _, known in edges])
    for kind in dict.fromkeys(kinds):
        out = kinds == kind
        x = np.nan_to_num(shown - np.nanmean(shown[~out], 0))
        x = np.column_stack([x, np.ones(len(x))])
        line = np.linalg.lstsq(x[~out], middle[~out], rcond=None)[0]
        found += list(np.abs(x[out] @ line - middle[out]))
    return float(np.mean(found))


def _interval(base: _Asked, one: _Asked) -> tuple[float, float]:
    """Return the 90 % interval of the gain in AUROC, over resampled kinds."""
    names = np.unique(base.kinds)
    draw = np.random.default_rng(0)
    times = np.array([np.bincount(draw.integers(0, len(names), len(names)), minlength=len(names))
                      for _ in range(2000)])  # fmt: skip
    gains = _resampled(one, names, times) - _resampled(base, names, times)
    low, high = np.quantile(gains, (0.05, 0.95))
    return float(low), float(high)


def _resampled(one: _Asked, names: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Return the AUROC with every kind as often as `times` says, `[resamples, kinds]`."""
    bad = [one.p[(one.kinds == name) & one.failed] for name in names]
    good = [one.p[(one.kinds == name) & ~one.failed] for name in names]
    above = lambda a, b: np.mean(a[:, None] > b) + np.mean(a[:, None] == b) / 2
    pairs = [
        [above(a, b) * len(a) * len(b) if len(a) and len(b) else 0.0 for b in good] for a in bad
    ]
    won = np.einsum("ri,ij,rj->r", times, np.array(pairs), times)
    return np.asarray(won / ((times @ list(map(len, bad))) * (times @ list(map(len, good)))))


def _within(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the correlation of each feature with the edge, both without their kind's mean."""
    known = [row for row in rows if row["edge_0.25"] and row["edge_0.25"][1] is not None]
    kinds = np.array([row["kind"] for row in known])
    edges = np.array([math.log10(math.prod(row["edge_0.25"])) / 2 for row in known])
    found = {}
    for name in FEATURES:
        values = np.array([math.nan if row[name] is None else row[name] for row in known])
        left, right = [], []
        for kind in dict.fromkeys(kinds):
            own = (kinds == kind) & np.isfinite(values)
            if not own.any():
                continue
            left += list(values[own] - values[own].mean())
            right += list(edges[own] - edges[own].mean())
        found[name] = float(np.corrcoef(left, right)[0, 1])
    return found


def claim(rows: Sequence[dict[str, Any]]) -> str:
    """Return how well M≈1 predicts divergence beside simpler predictors, the paper's and ours."""
    lines = [
        "AUROC; ours at nine rates from 0.001 to 10, next-byte prediction of 400 steps, of "
        f"{len(rows)} models in {len({row['kind'] for row in rows})} kinds of blocks.",
        "",
        "| predictor | paper, diverged | diverged | failed | the paper's kinds | failed |",
        "|---|---|---|---|---|---|",
    ]
    known = [row for row in rows if row["kind"] in _PAPER_KINDS]
    columns = [(some, of) for some in (rows, known) for of in ("diverged", "failed")]
    for name, (paper, value) in _PREDICTORS.items():
        cells = [_alone(some, of, value) for some, of in columns]
        lines.append(f"| {name} | {paper} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


_PAPER_KINDS = ("pre_ln", "post_ln", "rms", "deepnorm", "subln", "none")
# Name → the paper's AUROC (arXiv 2602.22988) and the value of a row at the place of a rate.
_PREDICTORS: Mapping[str, tuple[str, Callable[[Mapping[str, Any], int], float | None]]] = {
    "M≈1": ("0.995", lambda row, at: row["near_unit_mass"]),
    "ρ": ("0.845", lambda row, at: row["rho"]),
    "κ(V)": ("0.687", lambda row, at: row["kappa"]),
    "no norm, one bit": ("0.989 by its table", lambda row, at: float(row["kind"] in _BARE)),
    "the rate": ("–", lambda row, at: RATES[at]),
    "P(failed), rksp 0.11": ("–", lambda row, at: row["p"][at]),
    "P(failed), the module read": ("–", lambda row, at: row["read"]["p"][at]),
}
_BARE = ("none", "rezero")


def _alone(rows: Sequence[Mapping[str, Any]], of: str, value: Callable[..., float | None]) -> str:
    """Return the AUROC of one predictor, high for bad."""
    bad, seen = [], []
    for row in rows:
        edge = row["edge_0.25"] if of == "failed" else _divergence(row["runs"])
        for at, label in _labels(edge):
            found = value(row, at)
            if found is not None:
                bad.append(label)
                seen.append(found)
    return f"{auroc(np.array(bad), np.array(seen)):.3f}"


def _divergence(runs: Sequence[Sequence[Any]]) -> tuple[float, float | None]:
    """Return the last rate below the first that diverged, and that."""
    first = next((rate for rate, _, bad in runs if bad), None)
    below = [rate for rate, _, _ in runs if first is None or rate < first]
    return max(below, default=0.0), first


def _labels(edge: Sequence[float | None] | None) -> Iterator[tuple[int, bool]]:
    """Yield the places of the nine rates whose label an edge tells, with it."""
    last, first = edge or (0.0, RATES[0])
    for at, rate in enumerate(RATES):
        is_bad = first is not None and rate >= 0.99 * first
        if is_bad or (last is not None and rate <= 1.01 * last):
            yield at, is_bad


def stored() -> list[dict[str, Any]]:
    """Return the rows, each with what rksp answered when it read the module (`read`)."""
    answers = {(row["kind"], row["draw"]): row for row in read(READ)}
    rows = [row | {"released": row} for row in read(STORED)]
    return [
        row | {"read": answers[row["kind"], row["draw"]]}
        for row in rows
        if (row["kind"], row["draw"]) in answers
    ]


def tables() -> str:
    """Return what the stored rows say of the paper's claim and of the hypotheses."""
    rows = stored()
    return f"{claim(rows)}\n{table(rows)}"


if __name__ == "__main__":
    print(tables(), end="")
