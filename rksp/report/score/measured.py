"""The measurements of a score with their healthy ranges: one table for all renderings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rksp.documents.score import SeedReport
from rksp.report.glossary import find_word

RANGE_NOTE = (
    "Ranges hold before training. “Usually” is the middle 90 % of the labelled models; it is no "
    "verdict."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One measured number.

    Attributes:
        word: Its name, which `rksp explain` knows.
        path: Its place in the report of a seed.
        value: The number.
        form: How it is written; empty for three digits.
        note: Where in the model, or what to compare it with; may be empty.
    """

    word: str
    path: str
    value: float
    form: str = ""
    note: str = ""

    @property
    def healthy(self) -> str:
        """The healthy range in words."""
        return healthy(self.word)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of the table of blocks.

    Attributes:
        title: Its head, which `rksp explain` knows.
        field: Field of `LayerReport`.
        form: How its numbers are written; empty for three digits.
        is_brief: Whether the terminal shows it too.
    """

    title: str
    field: str
    form: str = ".2f"
    is_brief: bool = True


COLUMNS = (
    Column(title="M≈1", field="near_unit_mass"),
    Column(title="M>1", field="expansive_mass"),
    Column(title="M<1", field="contractive_mass", is_brief=False),
    Column(title="ρ", field="spectral_radius"),
    Column(title="κ(V)", field="eigenvector_condition", form=".3g"),
    Column(title="non-normality", field="nonnormality", is_brief=False),
    Column(title="gain", field="energy_gain", is_brief=False),
    Column(title="η", field="nonlinearity"),
    Column(title="update", field="update_ratio"),
    Column(title="rms in", field="rms_in", form=".3g", is_brief=False),
    Column(title="rms out", field="rms_out", form=".3g", is_brief=False),
)


def healthy(word: str) -> str:
    """Return the healthy range of a measured word."""
    found = find_word(word)
    assert found is not None, word
    return found.range


def usual(column: Column) -> str:
    """Return the usual range of a column in short: `0.06–1`, or a dash."""
    found = find_word(column.title)
    if found is None or found.usual is None:
        return "–"
    return "–".join(f"{end:.4g}" for end in found.usual)


def measured(seed: SeedReport) -> list[Measured]:
    """Return what was measured in the forward pass and in the response, in the pages' order."""
    return list(_measured(seed))


def _measured(seed: SeedReport) -> Iterator[Measured]:
    forward, response = seed.forward, seed.response
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
    if response is not None:
        rows += [
            ("gradient norm", "response/grad_norm", "first batch"),
            ("critical rate", "response/critical_rate", "first step"),
            ("drift", "response/drift", "nats a position, one update at 1e-3"),
        ]
    for word, path, note in rows:
        part, field = path.split("/")
        value = getattr(getattr(seed, part), field)
        if value is not None:
            yield Measured(word=word, path=path, value=value, note=note)
