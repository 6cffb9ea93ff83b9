"""Check a training run before it starts.

    import rksp
    result = rksp.score(model, (inputs, target), lr=1e-3)
    result.verdict, result.probability_failed

Importing rksp is cheap: torch and transformers load when a name that needs them is first used.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rksp.assessment.pipeline import evaluate
    from rksp.calls.fix import fix
    from rksp.calls.score import score
    from rksp.calls.why import why
    from rksp.documents.spectrum import Status
    from rksp.ground.errors import ArtifactError, Incomplete, InputError, NotCovered, RkspError
    from rksp.ground.versions import __version__ as __version__
    from rksp.models.resolve import resolve
    from rksp.recipe import Recipe
    from rksp.report.diff import diff
    from rksp.report.score.result import Result
    from rksp.spectra.model_profile import Profile, profile
    from rksp.watch.interventions.update_bound import UpdateBound

# In a checkout four of the packages stand beside this folder; installed, they lie within it. An
# editable installation links this file, and all others are imported from the checkout itself.
_FOLDER = Path(__file__).resolve().parent
if not (_FOLDER / "classifiers").is_dir():
    __path__[:] = [str(_FOLDER), str(_FOLDER.parent)]

_HOME = {
    "__version__": "rksp.ground.versions",
    "ArtifactError": "rksp.ground.errors",
    "Incomplete": "rksp.ground.errors",
    "InputError": "rksp.ground.errors",
    "NotCovered": "rksp.ground.errors",
    "Profile": "rksp.spectra.model_profile",
    "Recipe": "rksp.recipe",
    "Result": "rksp.report.score.result",
    "RkspError": "rksp.ground.errors",
    "Status": "rksp.documents.spectrum",
    "UpdateBound": "rksp.watch.interventions.update_bound",
    "diff": "rksp.report.diff",
    "evaluate": "rksp.assessment.pipeline",
    "fix": "rksp.calls.fix",
    "profile": "rksp.spectra.model_profile",
    "resolve": "rksp.models.resolve",
    "score": "rksp.calls.score",
    "why": "rksp.calls.why",
}
_DOORS = ("confirm", "grid", "watch")  # packages that can be called
__all__ = [
    "ArtifactError",
    "Incomplete",
    "InputError",
    "NotCovered",
    "Profile",
    "Recipe",
    "Result",
    "RkspError",
    "Status",
    "UpdateBound",
    "confirm",
    "diff",
    "evaluate",
    "fix",
    "grid",
    "profile",
    "resolve",
    "score",
    "watch",
    "why",
]


def __getattr__(name: str) -> object:
    if name in _DOORS:
        return importlib.import_module(f"rksp.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'rksp' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
