"""Define the result of a score in Python: one flat object over the report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from rksp.documents import score as documents
from rksp.documents.answer import KINDS, Answer, Untold
from rksp.documents.base import Part
from rksp.documents.finding import Finding
from rksp.ground.text import many, short
from rksp.question import said as phrases
from rksp.question.gate import deciding
from rksp.recipe import Recipe
from rksp.recipe_files.said.origin import flag_of
from rksp.report import words
from rksp.report.html import render

# If two parts have the same name, it means the first part's field.
_PARTS: tuple[tuple[str, type[Part]], ...] = (
    *(("risk", kind) for kind in KINDS),
    ("gradient", documents.GradientReport),
    ("forward", documents.ForwardReport),
    ("spectra", documents.SpectraReport),
    ("target", documents.ScoredTarget),
)
_RATES = ("start_here", "likely_edge", "do_not_exceed")
_MOST_FINDINGS = 3


@dataclass(frozen=True, repr=False)
class Result:
    """The answer for one model and recipe.

    Its fields are those of the report, and those of the deciding seed's `risk`, `gradient`,
    `forward` and `spectra` and of the `target`. The names are those of the JSON: `result.verdict`,
    `result.probability_failed`, `result.grad_norm`, `result.published_score`. A field of a part
    that was not measured is None.

    Attributes:
        report: The document that `rksp score` writes.
    """

    report: documents.ScoreReport

    @property
    def verdict(self) -> documents.ScoreVerdict:
        """The answer in a word."""
        return self.report.verdict

    @property
    def answer(self) -> Answer:
        """The answer itself: its `kind` says who gave it, and which fields it has."""
        return deciding(self.report).risk

    @property
    def summary(self) -> documents.SummaryReport | None:
        """May the run be launched, why, at which rate, and what to change."""
        return self.report.summary

    @property
    def findings(self) -> list[Finding]:
        """What the checks found, the worst first."""
        return self.report.findings

    @property
    def probability_failed(self) -> float | None:
        """P(failed) at the recipe's learning rate; None without an answer."""
        return self.answer.number("probability_failed")

    @property
    def start_here(self) -> float | None:
        """The learning rate to start with; None without an answer."""
        return self.answer.number("start_here")

    @property
    def do_not_exceed(self) -> float | None:
        """The learning rate not to exceed; None without an answer."""
        return self.answer.number("do_not_exceed")

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and name in (fields := self.to_dict()):
            return fields[name]
        raise AttributeError(f"a result has no field {name!r}; dir(result) lists them")

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *self.to_dict()})

    def to_dict(self) -> dict[str, Any]:
        """Return all fields by name; `report.to_json()` is the document."""
        seed = deciding(self.report)
        fields = {name: getattr(self.report, name) for name in documents.ScoreReport.model_fields}
        for where, kind in _PARTS:
            part = self.report.target if where == "target" else getattr(seed, where)
            for name, field in kind.model_fields.items():
                empty: list[object] | None = [] if "list[" in str(field.annotation) else None
                fields.setdefault(name, getattr(part, name, empty))
        return fields

    def rates(self) -> dict[str, float]:
        """Return the learning rates in the answer, by field name; none where rksp cannot tell."""
        if not self.answer.is_told:
            return {}
        fields = self.to_dict()
        return {name: fields[name] for name in _RATES if fields.get(name) is not None}

    def __repr__(self) -> str:
        seed = deciding(self.report)
        lines = [f"{self.report.target.name}: {self.report.verdict.upper()}"]
        if isinstance(seed.risk, Untold):
            lines.append(f"  {seed.risk.reasons[0]}")
        else:
            lines.append(f"  {phrases.answer(self.report, seed.risk)}")
            named = (f"{name} {short(rate, 2)}" for name, rate in self.rates().items())
            lines.append(f"  {', '.join(named) or 'no rate is known to be safe'}")
            said_more = (words.crossed(seed.risk), words.learned(seed))
            lines += [f"  {said}" for said in said_more if said]
        findings = self.report.findings
        lines += [f"  {f.level} {f.code} {f.message}" for f in findings[:_MOST_FINDINGS]]
        if len(findings) > _MOST_FINDINGS:
            lines.append(f"  and {many(len(findings) - _MOST_FINDINGS, 'more finding')}")
        if self.report.unread:
            lines.append(f"  {words.unread(self.report)}")
        if self.report.assumed:
            lines.append(f"  {_in_python(self.report.assumed)}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the page in a frame for notebooks: its styles stay inside, and no script runs."""
        return Markup(
            '<iframe sandbox="" title="rksp: {}" srcdoc="{}" '
            'style="width: 100%; height: 680px; border: 0"></iframe>'
        ).format(self.report.target.name, render(self.report))


def _in_python(assumed: str) -> str:
    said, _, options = assumed.partition("; pass ")
    names = {flag_of(name): name for name in Recipe.model_fields}
    fields = [names[option] for option in options.split(", ") if option in names]
    return f"{said}; recipe={{…}} takes {', '.join(fields)}" if fields else assumed
