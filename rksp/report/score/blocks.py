"""The full page of a score: the answer, then the numbers behind it, then what was not measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rksp.documents.answer import (
    Answer,
    CertainFailure,
    Estimate,
    FromEdge,
    FromPublished,
    Untold,
)
from rksp.documents.score import CarriedReport, ComparisonReport, ScoreReport, SeedReport
from rksp.documents.spectrum import VARIANTS
from rksp.documents.verdict import Verdict
from rksp.ground.text import short
from rksp.question import said as phrases
from rksp.question.gate import deciding, place
from rksp.recipe_files.said.origin import recipe_rows, shown
from rksp.report import blocks as page
from rksp.report import words
from rksp.report.diff import changed_blocks
from rksp.report.runs import history_blocks
from rksp.report.score import figures
from rksp.report.score.measured import COLUMNS, RANGE_NOTE, change, measured, usual

_SMALL = 0.05  # decades; a smaller reason is not listed
_MOST_REASONS = 12
_FAILED = (
    "Failed means: the run diverges, or ends more than 0.25 nats higher than at a lower learning "
    "rate."
)
_DOTS = (
    " The dots are your own runs, at 0 % those that trained and at 100 % those that failed; runs "
    "of other models are drawn at the same distance from the edge that rksp expected of them."
)
_LEVERS = (
    "What would raise the edge, with the 80 % interval for a family of models that was not "
    "measured; measured in pairs of small runs with equal seeds and batches."
)
_PLANE = (
    "The fitted linear map of each residual block, in the complex plane: the real axis across, the "
    "imaginary one up, on one scale."
)
_CARRIED = "Missed by: in decades, the median over pairs of sizes of teams left out of the fit."
_ERRORS = ("edge", "best")  # of a rule of scaling
_WHY = (
    "How each property moves the edge away from that of the average labelled run, in decades: "
    "green bars raise it, red bars lower it."
)


def blocks(report: ScoreReport) -> list[page.Block]:
    """Return the blocks of the page."""
    seed = deciding(report)
    number = page.Numbers(report, f"seeds/{report.seeds.index(seed)}/")
    runs = report.own_runs and history_blocks(report.own_runs, page.Numbers(report, "own_runs/"))
    parts: list[Iterable[page.Block]] = [
        [
            page.Title(
                eyebrow="rksp",
                name=words.training(report, report.target.name),
                about=f"{words.size_and_weights(report)}; {words.stream(report)}",
            ),
            _verdict(report, seed, number),
        ],
        _around(report, seed),
        _curve(report, seed.risk),
        _findings(report),
        _since(report, report.baseline),
        _carried(report.carried, words.carried(report)),
        _levers(seed.risk, number),
        _reasons(report, seed.risk, number),
        _spectra(seed, number),
        [_evidence(report, seed, number)],
        [page.Section("Your own runs", runs, folds="summary")] if runs else [],
        [_recipe(report), _provenance(report, seed, number)],
    ]
    return [block for part in parts for block in part]


def _verdict(report: ScoreReport, seed: SeedReport, number: page.Numbers) -> page.Verdict:
    risk, gauge = seed.risk, None
    odds: tuple[str, page.Words] | tuple[()] = ()
    if isinstance(risk, Estimate | CertainFailure) and risk.probability_failed is not None:
        odds = ("P(failed)", number("risk/probability_failed", page.PERCENT))
        low, high = risk.probability_failed_low, risk.probability_failed_high
        gauge = figures.gauge(risk.probability_failed, low, high, risk.threshold)
    return page.Verdict(
        verdict=report.verdict,
        headline=_headline(report, risk),
        odds=odds,
        gauge=gauge,
        blocks=list(_answer(report, seed, number)),
    )


def _headline(report: ScoreReport, risk: Answer) -> str:
    if leading := words.leading(report):
        finding = words.reason(report)
        return f"{leading}: {finding.message}" if finding else words.sentence(leading)
    if isinstance(risk, Untold):
        is_asked = risk.verdict is Verdict.CANNOT_TELL
        return "No data support an answer" if is_asked else "The risk was not assessed"
    if isinstance(risk, FromPublished):
        return words.sentence(phrases.published(report, risk))
    if risk.probability_failed is not None:
        return f"{page.likelihood(risk.probability_failed).capitalize()} to fail"
    if isinstance(risk, CertainFailure):
        return "No learning rate trains this model"
    return f"Start at a learning rate of {phrases.rate(risk.start_here)}"


def _answer(report: ScoreReport, seed: SeedReport, number: page.Numbers) -> Iterator[page.Block]:
    risk = seed.risk
    if isinstance(risk, Untold):
        for reason in risk.reasons:
            yield page.Sentence(f"{words.sentence(reason)}.")
        if said := words.open_gate(report):
            yield page.Sentence(f"{words.sentence(said)}.", "advice")
        return
    if risk.number("probability_failed") is not None:
        bar = number("risk/threshold", ".0%")
        yield page.Sentence((phrases.answer(report, risk), "; the bar is ", bar, "."))
    head = ("Learning rate", "Value", "Meaning")
    yield page.Table(head, list(_rates(report, risk, number)), look="figures")
    for sentence in filter(None, (risk.counterfactual, phrases.margin(report, risk))):
        yield page.Sentence(sentence, "advice")
    hints = [words.crossed(risk), words.learned(seed), *words.trained(report, seed), change(seed)]
    for said in filter(None, hints):
        yield page.Sentence(f"{words.sentence(said)}.", "hint")
    yield page.Sentence(_FAILED, "hint")


def _rates(report: ScoreReport, risk: Answer, number: page.Numbers) -> Iterator[list[page.Words]]:
    recipe, own = report.recipe, page.Numbers(report)
    given = own("recipe/learning_rate", digits=6) if recipe.learning_rate else "none given"
    steps = own("recipe/max_steps", ",d")
    yield ["Recipe", given, (f"{recipe.optimizer}, {recipe.schedule}, ", steps, " steps")]
    if isinstance(risk, CertainFailure):
        yield ["Start here", page.MISSING, "no learning rate trains this model"]
        return
    start = number("risk/start_here", digits=2)
    if isinstance(risk, FromPublished):
        yield ["Start here", start, "the middle of the published runs"]
        return
    excess: page.Words = ()
    if isinstance(risk, FromEdge):
        excess = ("expected loss +", number("risk/start_excess", ".2f"), " nats, ")
    yield [
        *("Start here", start),
        (*excess, "P(failed) ", number("risk/start_failed", page.PERCENT)),
    ]
    yield ["Likely edge", number("risk/likely_edge", digits=2), "P(failed) is one half"]
    most, share = number("risk/do_not_exceed", digits=2), number("risk/risk", ".0%")
    yield ["Do not exceed", most, ("P(failed) reaches ", share)]


def _around(report: ScoreReport, seed: SeedReport) -> Iterator[page.Block]:
    if report.gate and report.gate.failed:
        keys = page.Code(", ".join(report.gate.issues))
        failed = page.Code(f"--fail-on {report.gate.fail_on}")
        yield page.Sentence(("Failed by ", failed, ": ", keys, "."))
    for line in (words.unread(report), words.decisive(report, seed), report.assumed):
        if line:
            yield page.Sentence(f"{words.sentence(line)}.", "hint")


def _curve(report: ScoreReport, risk: Answer) -> Iterator[page.Block]:
    if not isinstance(risk, Estimate) or not risk.curve:
        return
    yield page.Figure(
        title="Risk against the learning rate",
        hint="P(failed) with its interval, for this recipe at other learning rates."
        + _DOTS * (risk.learned is not None),
        drawing=figures.risk_panel(report, risk),
        text=figures.sparkline(risk.curve),
    )


def _findings(report: ScoreReport) -> Iterator[page.Block]:
    rows: page.Rows = []
    for one in words.ordered(report):
        stands = place(report, one)
        where = [one.layer, "{}:{}".format(*stands) if stands else ""]
        small: list[str] = [
            part for name in filter(None, where) for part in (page.Code(name), " · ")
        ]
        small.append(f"{one.healthy}; source: {one.source}")
        rows.append([one.level.value, one.code, one.message, one.fix, small])
    if rows:
        head = ("Level", "Check", "Message", "Fix", "Healthy")
        yield page.Section("Findings", [page.Table(head, rows, look="items")])
    else:
        yield page.Section("Findings", [page.Sentence("No check found anything.", "hint")])


def _since(report: ScoreReport, changed: ComparisonReport | None) -> Iterator[page.Block]:
    if changed is not None:
        said = page.Sentence(f"Compared with the baseline: {words.states(changed.changes)}.")
        blocks = [said, *changed_blocks(changed, page.Numbers(report, "baseline/"))]
        yield page.Section("Since the baseline", blocks)


def _carried(found: CarriedReport | None, said: str) -> Iterator[page.Block]:
    if found is None:
        return
    rows: page.Rows = [
        [rule, short(rate), *(page.written(found.errors[rule].get(of), ".2f") for of in _ERRORS)]
        for rule, rate in sorted(found.rules.items(), key=lambda one: one[0] != "rksp")
    ]
    table = page.Table(("Rule", "Rate", "Edge missed by", "Best rate missed by"), rows)
    carried = page.Sentence(f"{words.sentence(said)}.")
    yield page.Section("The carried rate", [carried, table], hint=_CARRIED)


def _levers(risk: Answer, number: page.Numbers) -> Iterator[page.Block]:
    if not isinstance(risk, FromEdge) or not risk.levers:
        return
    rows: page.Rows = []
    for i, one in enumerate(risk.levers):
        at = f"risk/levers/{i}"
        between = (number(f"{at}/low", digits=2), "× to ", number(f"{at}/high", digits=2), "×")
        loss, cost = (number(f"{at}/loss", "+.2f"), " nats"), (number(f"{at}/cost", ".2f"), "×")
        size = (number(f"{at}/factor", digits=2), "×")
        rows.append([f"{one.title} {one.change}", size, between, loss, cost])
    head = ("Would raise the edge", "By", "Interval", "Final loss", "Time a step")
    yield page.Section("Levers", [page.Table(head, rows)], hint=_LEVERS)


def _reasons(report: ScoreReport, risk: Answer, number: page.Numbers) -> Iterator[page.Block]:
    if not isinstance(risk, Estimate) or report.recipe.learning_rate is None:
        return
    rows = [
        [one.meaning, number(f"risk/contributions/{i}/1", "+.2f")]
        for i, one in enumerate(risk.contributions)
        if abs(one.decades) >= _SMALL
    ]
    if rows:
        bars = page.Table(("Reason", "Decades"), rows[:_MOST_REASONS], look="bars")
        yield page.Section("Why", [bars], hint=_WHY, folds="summary")


def _spectra(seed: SeedReport, number: page.Numbers) -> Iterator[page.Block]:
    layers, variant = seed.spectra.layers, VARIANTS.get(seed.spectra.variant)
    if not layers:
        return
    frame = figures.frame(layers)
    part = (
        f" The drawings show the part of the plane where all eigenvalues are, from "
        f"{frame.middle - frame.reach:.2f} to {frame.middle + frame.reach:.2f} on the real axis."
    )
    yield page.Figure(
        title="Eigenvalues of every block",
        hint=(_PLANE, part * frame.is_part),
        drawing=figures.small_multiples(layers, frame, variant, number),
    )
    rows: page.Rows = []
    for i, layer in enumerate(layers):
        cells = (number(f"spectra/layers/{i}/{column.field}", column.form) for column in COLUMNS)
        status = layer.status.replace("_", " ")
        rows.append([page.Code(layer.name), *cells, "" if status == "ok" else status])
    rows.append(["usual", *map(usual, COLUMNS), ""])
    table = page.Table(("Block", *(column.title for column in COLUMNS), "Status"), rows)
    coverage = number("spectra/coverage", ".0%")
    about = page.Sentence((f"Variant {seed.spectra.variant}, coverage ", coverage, "."), "hint")
    yield page.Section("All numbers of all blocks", [about, table], folds="page")


def _evidence(report: ScoreReport, seed: SeedReport, number: page.Numbers) -> page.Section:
    rows = [
        [words.sentence(one.word), number(one.path), one.healthy, one.note]
        for one in measured(seed)
    ]
    table = page.Table(("Measured", "Value", "Healthy", ""), rows, look="cards")
    notes = words.notes(report, seed)
    numbers: list[page.Block] = [table, page.Sentence(RANGE_NOTE, "hint")] if rows else []
    return page.Section(
        "Evidence", [*numbers, *([page.Notes(notes)] if notes else [])], folds="summary"
    )


def _recipe(report: ScoreReport) -> page.Section:
    values = dict(report.recipe)
    places = {
        name: (" ", page.Code(f"{at[0]}:{at[1]}")) for name, at in report.recipe_places.items()
    }
    rows = [
        (name, value, (said, *places.get(name, ())))
        for name, value, said in recipe_rows(values, report.recipe_origins)
    ]
    rows = rows or [(name, shown(value), ("",)) for name, value in values.items()]
    table = page.Table(("Field", "Value", "From"), rows)
    if report.seeds[0].risk.kind != "edge":
        return page.Section("Recipe", [table], folds="page")
    from rksp.classifiers.levers.fields import edge_effects  # numpy

    effects = page.Notes(edge_effects([name for name, *_ in rows]))
    return page.Section("Recipe", [table, effects], folds="page")


def _provenance(report: ScoreReport, seed: SeedReport, number: page.Numbers) -> page.Section:
    more: page.Rows = [["seed", number("seed"), "", ""]]
    digests = {"configuration": report.target.config_hash}
    digests["classifier’s data"] = seed.risk.classifier_data
    more += [[name, page.Code(digest[:16]), "", ""] for name, digest in digests.items() if digest]
    return page.provenance(report, page.Numbers(report), *more)
