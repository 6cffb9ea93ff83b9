"""What was measured, with its healthy range, and what it changed about the first answer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from rksp.classifiers.edge_model import load_edge_model
from rksp.documents.answer import FromEdge, FromFineTuning
from rksp.documents.score import SeedReport
from rksp.ground.text import short
from rksp.question import said as phrases
from rksp.report.glossary import find_word

RANGE_NOTE = (
    "Ranges hold before training. “Usually” is the middle 90 % of the labelled models; it is no "
    "verdict."
)

_SAME = 1.05  # a smaller factor is none to a reader
_GRADIENT = "grad_norm"  # the column that the first gradient moves
# Name of a number -> column of the labelled models, and what turns the column into the number.
_LABELLED: dict[str, tuple[str, Callable[[float], float]]] = {
    "near-unit mass": ("near_unit_mass", float),
    "gradient norm": ("grad_norm", lambda column: 10.0**column),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One measured number.

    Attributes:
        word: Its name, which `rksp explain` knows.
        path: Its place in the report of a seed.
        note: Where in the model, or what to compare it with; may be empty.
    """

    word: str
    path: str
    note: str = ""

    @property
    def healthy(self) -> str:
        """The healthy range in words."""
        found = find_word(self.word)
        assert found is not None, self.word
        return found.range


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of the table of blocks.

    Attributes:
        title: Its head, which `rksp explain` knows.
        field: Field of `LayerReport`.
        form: How its numbers are written; empty for three digits.
    """

    title: str
    field: str
    form: str = ".2f"


COLUMNS = (
    Column(title="M≈1", field="near_unit_mass"),
    Column(title="M>1", field="expansive_mass"),
    Column(title="M<1", field="contractive_mass"),
    Column(title="ρ", field="spectral_radius"),
    Column(title="κ(V)", field="eigenvector_condition", form=".3g"),
    Column(title="non-normality", field="nonnormality"),
    Column(title="gain", field="energy_gain"),
    Column(title="η", field="nonlinearity"),
    Column(title="update", field="update_ratio"),
    Column(title="rms in", field="rms_in", form=".3g"),
    Column(title="rms out", field="rms_out", form=".3g"),
)


def usual(column: Column) -> str:
    """Return the usual range of a column in short: `0.06–1`, or a dash."""
    found = find_word(column.title)
    if found is None or found.usual is None:
        return "–"
    return "–".join(f"{end:.4g}" for end in found.usual)


def measured(seed: SeedReport) -> list[Measured]:
    """Return what was measured in the forward pass and of the gradient, in the pages' order."""
    forward = seed.forward
    uniform = forward.uniform_loss
    rows = [
        ("initial loss", "forward/loss", "" if uniform is None else f"a guess has {uniform:.3g}"),
        ("logit std", "forward/logit_std", ""),
        ("attention logit std", "forward/attention_logit_std", "largest layer"),
        ("attention entropy", "forward/attention_entropy", "lowest layer"),
        ("router entropy", "forward/router_entropy", "lowest layer"),
        ("largest activation", "forward/activation_absmax", forward.activation_name or ""),
        ("near-unit mass", "spectra/published_score", "mean over the blocks"),
    ]
    if seed.gradient is not None:
        rows.append(("gradient norm", "gradient/grad_norm", "first batch"))
    found = []
    for word, path, note in rows:
        part, field = path.split("/")
        value = getattr(getattr(seed, part), field)
        if value is not None:
            notes = filter(None, (note, _beyond(word, value)))
            found.append(Measured(word=word, path=path, note="; ".join(notes)))
    return found


def _beyond(word: str, value: float) -> str:
    column, of = _LABELLED.get(word, ("", float))
    ends = load_edge_model().measured_ranges.get(column)
    if ends is None:
        return ""
    low, high = sorted(map(of, ends))
    is_outside = not low <= value <= high
    return f"outside {short(low, 2)} to {short(high, 2)} of the labelled models" * is_outside


def change(seed: SeedReport) -> str:
    """Say what measuring changed about the edge that the configuration gives; empty for nothing.

    Where the forward pass alone was measured, it says that the rates are the configuration's.
    """
    before, after = seed.configured, seed.risk
    if before is None:
        return ""
    if after.evidence == "forward" or isinstance(after, FromFineTuning):
        return "the rates are the configuration's: what was measured feeds the checks alone"
    if before.likely_edge is None or not isinstance(after, FromEdge):
        if before.likely_edge is None and not isinstance(after, FromEdge):
            return ""
        had = phrases.rate(before.likely_edge)
        told = "measuring told what the configuration could not"
        return told if before.likely_edge is None else f"the configuration had said E {had}"
    factor = after.likely_edge / before.likely_edge
    cause = _cause(after, factor)
    if max(factor, 1 / factor) < _SAME:
        return f"{cause} left the edge where the configuration puts it"
    verb, by = ("raised", factor) if factor > 1 else ("lowered", 1 / factor)
    turned = f", from {before.verdict} to {after.verdict}" * (before.verdict != after.verdict)
    return f"{cause} {verb} the edge by a factor of {by:.2g}{turned}"


def _cause(answer: FromEdge, factor: float) -> str:
    """Name the first gradient where nothing else moved: a built model may differ in more."""
    moved = [part.decades for part in answer.contributions if part.feature == _GRADIENT]
    is_all = moved and abs(moved[0] - math.log10(factor)) < math.log10(_SAME)
    return "the first gradient" if is_all else "measuring"
