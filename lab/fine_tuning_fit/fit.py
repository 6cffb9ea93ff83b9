"""Fit the model of fine-tuning to ladders, recipes and runs of many sources."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lab.fine_tuning_fit.ladder import CARD, OPEN, FineTuningLadder
from lab.fine_tuning_fit.posterior import Posterior, Seen, posterior
from rksp.classifiers.fine_tuning.inputs import terms
from rksp.classifiers.fine_tuning.model import RESPONSES, FineTuningModel
from rksp.classifiers.rates import Lapse

_DECIMALS = 5
_FITTED_ONLY = ("source", "model")  # offsets that a new run does not share

# Stated means, by term: the constants that people use, and what is published of methods without
# rows. A spread around them is in SPREADS; the data may move every one.
STATED: dict[str, float] = {
    "shared: base adapter/any": math.log10(3e-4),
    "shared: base full/decoder": math.log10(2e-5),  # at 7 billion parameters
    "shared: base full/encoder": math.log10(5e-5),  # at 86 million, as those below
    "shared: base full/encoder_decoder": -4.0,
    "shared: base full/speech": -4.0,
    "shared: base full/vision": -4.0,
    # Of models of a hundred thousand parameters, as the lab's ladders have it.
    "shared: base tiny-full/decoder": -2.4,
    "shared: base tiny-full/encoder": -2.4,
    "shared: base tiny-full/encoder_decoder": -2.4,
    "shared: base tiny-full/vision": -2.4,
    "shared: base tiny-adapter/any": -1.9,
    "shared: base vector/any": -2.0,
    "shared: base other/any": math.log10(3e-4),
    "shared: method adapter/pissa": -1.0,  # a tenth of LoRA's rate
    "shared: objective listed/rl": -0.6,  # GRPO with LoRA at 5e-5 to 7e-5
    "shared: objective listed/preference": -1.6,  # DPO of all weights at 5e-7
    # The first failed rate over the best one: 10 for adapters, 5 for encoders; the edge lies a
    # quarter to a half of a decade below it.
    "edge: base adapter/any": 0.75,
    "edge: base full/decoder": 0.75,
    "edge: base full/encoder": 0.5,
    "edge: base full/encoder_decoder": 0.75,
    "edge: base full/speech": 0.75,
    "edge: base full/vision": 0.75,
    **{
        f"edge: base {scope}": 0.75
        for scope in (
            *("tiny-full/decoder", "tiny-full/encoder", "tiny-full/encoder_decoder"),
            *("tiny-full/vision", "tiny-adapter/any"),
        )
    },
    "edge: base vector/any": 0.75,
    "edge: base other/any": 0.75,
}
# Prior standard deviations in decades, by "block: factor (what is trained)"; 0.2 to 0.3 is what
# sources, families and methods differ by. README.md says how each was chosen.
SPREADS: dict[str, float] = {
    "shared: base": 0.3,
    "shared: base (vector)": 0.7,
    "shared: base (other)": 0.7,
    "shared: kind": 0.15,
    "shared: method": 0.1,
    "shared: method adapter/pissa": 0.4,  # these have no rows
    "shared: method adapter/rslora": 0.3,
    "shared: method adapter/adalora": 0.3,
    "shared: method (vector)": 0.5,
    "shared: method (other)": 0.5,
    "shared: objective": 0.2,
    "shared: objective listed/rl": 0.4,
    "shared: objective (unlisted)": 0.7,
    "shared: optimizer": 1.5,
    "shared: family (full)": 0.3,
    "shared: source": 0.2,
    "shared: source (adapter)": 0.1,
    "shared: source (full)": 0.15,
    "shared: model": 0.05,
    "shared: family (tiny-full)": 0.2,
    "shared: family (tiny-adapter)": 0.2,
    "shared: size (full)": 0.5,
    "shared: no size (full)": 0.5,
    "best: method": 0.2,
    "best: family": 0.1,
    "best: source": 0.1,
    "best: source (full)": 0.3,
    "best: rank": 0.2,
    "best: size (adapter)": 0.1,
    "edge: base": 0.2,
    "edge: base (full)": 0.4,
    "edge: family (full)": 0.2,
    "edge: source": 0.1,
    "edge: source (adapter)": 0.05,
    "edge: model": 0.1,
    "forgetting: base": 0.5,
    "forgetting: method": 0.15,
    "forgetting: source": 0.2,
}
_LAPSE = Lapse(share=0.01, low=0.005, high=0.02)  # until it is measured on what was left out
# That of the best rate has the largest marginal likelihood among 0.05 to 0.3.
NOISE: dict[str, float] = {"best": 0.15, "edge": 0.1, "forgetting": 0.2}


def fit_fine_tuning(ladders: Sequence[FineTuningLadder]) -> FineTuningModel:
    """Return the posterior after all ladders, without what leaving out says of its errors."""
    ladders = sorted(ladders, key=lambda x: (x.inputs.source, x.name))
    prior, found = _posterior(ladders)
    return replace(_kept(prior, found), shows=_shows(ladders), card=_card(ladders))


def rounded(value: float) -> float:
    """Return a number of the artifact, to five decimals."""
    return round(float(value), _DECIMALS) + 0.0


def _posterior(ladders: Sequence[FineTuningLadder]) -> tuple[FineTuningModel, Posterior]:
    """Return the model before the data, and its posterior after the ladders."""
    prior = FineTuningModel(
        spreads=SPREADS,
        stated=STATED,
        mean={},
        covariance=[],
        noise=NOISE,
        lapse=_LAPSE,
        shows={},
        card={},
    )
    seen: list[Any] = []
    spreads: dict[str, Any] = {}
    for ladder in ladders:
        for response, (low, high) in _brackets(ladder):
            counted = prior.counted(ladder.inputs, response)
            noise = NOISE[response]
            if ladder.kind == CARD:  # offsets that one row alone has are noise to it
                own = [spread for _, term, spread in counted if term.factor in _FITTED_ONLY]
                noise = math.hypot(noise, *own)
                counted = [one for one in counted if one[1].factor not in _FITTED_ONLY]
            spreads |= {name: spread for name, _, spread in counted}
            values = {name: term.value for name, term, _ in counted}
            seen.append(Seen(values=values, low=low, high=high, noise=noise, count=ladder.count))
    return prior, posterior(seen, STATED, spreads)


def _brackets(ladder: FineTuningLadder) -> list[tuple[str, tuple[float, float]]]:
    """(response, between which rates it lies) of all that a ladder shows."""
    brackets = (ladder.best, ladder.edge, ladder.forgetting or OPEN)
    return [
        (name, bracket)
        for name, bracket in zip(RESPONSES, brackets, strict=True)
        if bracket != OPEN
    ]


def _kept(prior: FineTuningModel, found: Posterior) -> FineTuningModel:
    """Return the model without the offsets that no new run shares: they are integrated out."""
    kept = [n for n, name in enumerate(found.names) if name.split(" ")[1] not in _FITTED_ONLY]
    return replace(
        prior,
        mean={found.names[n]: rounded(found.mean[n]) for n in kept},
        covariance=[
            [rounded(found.covariance[n, m]) for m in kept[: row + 1]] for row, n in enumerate(kept)
        ],
    )


def _shows(ladders: Sequence[FineTuningLadder]) -> dict[str, dict[str, int]]:
    """Return by name how many rows stand behind it, by response."""
    found: dict[str, Counter[str]] = {}
    for ladder in ladders:
        for response, _ in _brackets(ladder):
            for term in terms(ladder.inputs):
                if term.is_name and term.factor not in _FITTED_ONLY:
                    found.setdefault(f"{term.factor} {term.level}", Counter())[response] += 1
    return {name: dict(sorted(found[name].items())) for name in sorted(found)}


def _card(ladders: Sequence[FineTuningLadder]) -> dict[str, object]:
    """Describe what the model was fitted on, with a digest of it."""
    sha = hashlib.sha256()
    for x in ladders:
        sha.update(repr((x.kind, x.name, x.inputs, x.best, x.edge, x.forgetting, x.count)).encode())
    by_kind: dict[str, Counter[str]] = {}
    for x in ladders:
        by_kind.setdefault(x.kind, Counter())[x.inputs.source] += x.count
    return {
        "rows": {kind: dict(sorted(by_kind[kind].items())) for kind in sorted(by_kind)},
        "edges": sum(x.has_edge for x in ladders),
        "forgetting": sum(x.forgetting is not None for x in ladders),
        "digest": sha.hexdigest(),
    }
