"""Write fitted models to their files: the same model, the same bytes."""

from __future__ import annotations

import json
from dataclasses import asdict

from rksp.classifiers.edge_model import ARTIFACT as EDGE
from rksp.classifiers.edge_model import EdgeModel
from rksp.classifiers.fine_tuning.model import ARTIFACT as FINE_TUNING
from rksp.classifiers.fine_tuning.model import FineTuningModel
from rksp.classifiers.levers.effects import LeverTable


def artifact_json(model: EdgeModel | FineTuningModel | LeverTable) -> str:
    """Return the JSON of a fitted model, as `Artifact.parse` reads it."""
    if isinstance(model, FineTuningModel):
        return _fine_tuning(model)
    if isinstance(model, LeverTable):
        return json.dumps(model.model_dump(by_alias=True), indent=1, sort_keys=True) + "\n"
    document = {"schema": EDGE.schema} | asdict(model)
    return json.dumps(document, indent=1, sort_keys=True, allow_nan=False) + "\n"


def _fine_tuning(model: FineTuningModel) -> str:
    """Return one row of the covariance a line."""
    plain = {
        "schema": FINE_TUNING.schema,
        "card": model.card,
        "spreads": model.spreads,
        "stated": model.stated,
        "noise": model.noise,
        "lapse": [model.lapse.share, model.lapse.low, model.lapse.high],
        "shows": model.shows,
        "usual": model.usual,
        "mean": model.mean,
    }
    head = json.dumps(plain, indent=1, allow_nan=False, ensure_ascii=False)
    rows = ",\n".join("  " + json.dumps(list(row)) for row in model.covariance)
    return head.removesuffix("\n}") + f',\n "covariance": [\n{rows}\n ]\n}}\n'
