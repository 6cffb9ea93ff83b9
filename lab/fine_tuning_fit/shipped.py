"""The model of fine-tuning that ships: fitted on everything, with what leaving out says of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lab.fine_tuning_fit.fit import fit_fine_tuning
from lab.fine_tuning_fit.ladder import FineTuningLadder
from lab.fine_tuning_fit.left_out import KEYS, lapses, left_out
from lab.fine_tuning_fit.scores import AT_USUAL, chosen_starts
from rksp.classifiers.fine_tuning.inputs import USUAL
from rksp.classifiers.fine_tuning.model import FineTuningModel


def shipped_model(ladders: Sequence[FineTuningLadder]) -> FineTuningModel:
    """Return the model of all ladders, with its lapses and where the usual rate is the start.

    The lab is one source, so nothing is known of a tiny model where it is left out.
    """
    seen = {
        name: [x for x in left_out(ladders, key) if not x.ladder.inputs.is_tiny]
        for name, key in KEYS.items()
    }
    usual = {name: USUAL[name] for name, start in chosen_starts(seen).items() if start == AT_USUAL}
    return replace(fit_fine_tuning(ladders), lapse=lapses(seen["sources"]), usual=usual)
