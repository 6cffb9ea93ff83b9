"""A question: a run beside its model and the terms; `answer` gives the finished report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rksp.documents.terms import Terms
from rksp.question.run import Run
from rksp.recipe_files.said.origin import DECISIVE, OriginKind

if TYPE_CHECKING:  # a run is read without what measures a model
    from rksp.assessment.evidence import Evidence
    from rksp.assessment.pipeline import Evaluation
    from rksp.assessment.store import MeasurementStore
    from rksp.checks.advisories import Audit
    from rksp.classifiers.edge_model import EdgePredictor
    from rksp.documents.options import MeasureOptions
    from rksp.documents.own_runs import HistoryReport
    from rksp.documents.score import CarriedReport, ScoreReport
    from rksp.ground.model import Progress
    from rksp.models.source import ModelSource

Notes = tuple[str, ...]  # a line each


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A run beside its model, and all else that its answer depends on but for the measurement.

    Attributes:
        run: The run.
        source: Its model.
        classifier: The model of the edge that answers; None stands for the shipped one.
        own_runs: The past runs that the classifier knows.
        unlearned: Why the past runs move nothing, a clause; empty where they do.
        software: The known faults of the software that trains; None where it is not known.
        terms: What it is judged by.
        store: Where measurements are kept; None keeps none.
        carried: Where its learning rate was carried from; see `rksp.question.carry`.
    """

    run: Run
    source: ModelSource
    classifier: EdgePredictor | None = None
    own_runs: HistoryReport | None = None
    unlearned: str = ""
    software: Audit | None = None
    terms: Terms = field(default_factory=Terms)
    store: MeasurementStore | None = None
    carried: CarriedReport | None = None

    @classmethod
    def of(cls, run: Run, source: ModelSource, terms: Terms | None = None) -> Question:
        """Return the question about a run and the source of its target; see `Run.with_model`."""
        run, source = run.with_model(source)
        return cls(run=run, source=source, terms=terms or Terms())

    def learning(self, paths: Sequence[Path]) -> Question:
        """Return the question to a classifier that also knows past runs.

        Args:
            paths: Files and folders of past runs.

        Raises:
            InputError: A path holds no run that can be read.
        """
        if not paths:
            return self
        from rksp.assessment.risk import choose_model
        from rksp.own_runs.scorecard import learn

        model, read = learn(paths, self.source, self.run.recipe)
        reasons = sorted({ladder.unused for ladder in read.ladders})
        why = read.doubt or ("" if "" in reasons else "; ".join(reasons))
        choice = choose_model(self.run.recipe, self.source.start)
        tunes = choice.model == "fine-tuning"
        used = {ladder.is_of_tuning for ladder in read.ladders if not ladder.unused}
        if not why and tunes not in used:
            kinds = ("random", "trained")
            why = f"they start from {kinds[not tunes]} weights, the target from {kinds[tunes]} ones"
        return replace(self, classifier=model, own_runs=read, unlearned=why)

    def remembering(self) -> Question:
        """Return the question that shares what the classifier estimates with others of its kind."""
        from rksp.classifiers.edge_model import Remembered, load_edge_model

        return replace(self, classifier=Remembered(self.classifier or load_edge_model()))

    def audited(self) -> tuple[Question, Notes]:
        """Return the question with the known faults of the software, and what to say of them.

        Raises:
            InputError: The file of the software cannot be read.
        """
        env, gpu = self.terms.env, self.terms.gpu
        if env is None and self.run.read_file is None:
            return self, ()
        from rksp.checks.software import audited

        found, said = audited(self.run.read_file, self.source.config, env, gpu)
        return replace(self, software=found), said

    def keeping(self, place: bool | str | Path) -> Question:
        """Return the question whose measurements are kept; see `MeasurementStore.of`."""
        from rksp.assessment.store import MeasurementStore

        return replace(self, store=MeasurementStore.of(place))

    def answer(
        self, seeds: Sequence[MeasureOptions], baseline: ScoreReport | None = None
    ) -> ScoreReport:
        """Measure what has to be measured, and return the finished report.

        Args:
            seeds: How to measure, one for each initialization.
            baseline: An older report; only what is new or worse fails the gate.

        Raises:
            InputError: An option, the probe or the model cannot be used, or the baseline cannot be
                compared.
        """
        report = self.reported([self.evaluated(options) for options in seeds])
        return self.finished(report, baseline)[0]

    def finished(
        self,
        report: ScoreReport,
        baseline: ScoreReport | None = None,
        command: Callable[[ScoreReport], str] | None = None,
    ) -> tuple[ScoreReport, Notes]:
        """Return a report with its findings, gate, comparison and summary, and what to say of it.

        Args:
            report: From `reported`.
            baseline: See `answer`.
            command: Writes the command that comes next; default in the words of a new command line.
        """
        from rksp.question.compare import compare
        from rksp.question.gate import judged, summarized
        from rksp.question.next_step import next_step, written

        since = None if baseline is None else partial(compare, baseline, strict=True)
        report, notes = judged(report, self.run, self.terms, since)
        run, following = self.run, "" if command is None else command(report)
        if command is None and self.source.kind != "module":
            typed = run.target if run.is_typed else run.named
            has_file = run.is_typed and bool(run.named)
            step = next_step(report, target=typed, has_recipe_file=has_file, has_data=False)
            following = written(step, run)
        return summarized(report.model_copy(update={"next_command": following})), notes

    def evaluated(
        self,
        options: MeasureOptions,
        progress: Progress = lambda done, total, label: None,
    ) -> Evaluation:
        """Return the evidence and the answer at one seed; see `rksp.assessment.pipeline`."""
        from rksp.assessment.pipeline import gather

        if self.source.missing:  # there is nothing to measure
            options = options.model_copy(update={"evidence": "config"})
        evidence = gather(self.source, options, store=self.store, progress=progress)
        return self.judged(evidence, progress=progress)

    def judged(self, evidence: Evidence, **more: Any) -> Evaluation:
        """Return the answer that evidence of the source gives; see `rksp.assessment.pipeline`."""
        from rksp.assessment.pipeline import judge

        unknown = {
            name: f"the {name.replace('_', ' ')} is not known: {origin.text}"
            for name, origin in self.run.origins.items()
            if origin.kind is OriginKind.UNKNOWN and name in DECISIVE
        }
        if self.source.missing:
            unknown["model"] = f"the model is not known: {self.source.missing.rstrip('.')}"
        more |= {"classifier": self.classifier, "terms": self.terms, "unknown": unknown}
        batch = self.run.origins.get("batch_size")
        more["has_devices"] = batch is None or "devices" not in batch.assumes
        more["alternatives"] = [] if unknown else self.run.alternatives()
        return judge(evidence, self.run.recipe, **more)

    def known(self, seeds: Sequence[MeasureOptions]) -> ScoreReport | None:
        """Return the report that needs no measurement; None if one of the seeds needs one."""
        from rksp.assessment.pipeline import known

        recipe = self.run.recipe
        if self.source.missing:
            return self.reported([self.evaluated(options) for options in seeds[:1]])
        found = [known(self.source, options, recipe, self.store) for options in seeds]
        evidence = [one for one in found if one is not None]
        if len(evidence) < len(found):
            return None
        return self.reported([self.judged(one) for one in evidence])

    def reported(self, evaluations: Sequence[Evaluation]) -> ScoreReport:
        """Return the document of the evaluations, one a seed."""
        from rksp.assessment.pipeline import score_report

        report = score_report(self.run.recipe, evaluations)
        faults = () if self.software is None else self.software.findings
        findings = [*report.findings, *faults]
        more = {"own_runs": self.own_runs, "carried": self.carried, "findings": findings}
        report = report.model_copy(update=more).finite()
        return self.run.written_in(report)
