"""Numbers and notes in the words that all renderings share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rksp.assessment.evidence import NOTHING_RAN
from rksp.classifiers.edge_inputs import MEANINGS, WIDENED_BY
from rksp.classifiers.fine_tuning.published import ADAPTER_LADDERS, LEAST, WIDER
from rksp.documents import score as documents
from rksp.documents.answer import (
    Answer,
    Estimate,
    FromEdge,
    FromFineTuning,
    FromPublished,
    LeverReport,
    PublishedReport,
)
from rksp.documents.finding import Finding
from rksp.documents.spectrum import Status
from rksp.documents.verdict import decisive_finding, worst
from rksp.ground.flags import count
from rksp.ground.model import definite
from rksp.ground.text import BYTES_FOLDED, BYTES_SPREAD, many, short
from rksp.question.compare import STATES
from rksp.question.said import rate
from rksp.recipe import AFTER_TRAINING, LOW_RANK, USUAL_RANK

_WEIGHTS = {"stored": "stored weights", "scratch": "random initialization",
            "elsewhere": "random weights in place of the trained ones"}  # fmt: skip
_NOTICED = 0.1  # decades; a smaller widening moves no interval that one reads
_MOVED = 1.05  # a smaller factor moves no printed digit that matters
_FELT = 0.02  # nats; a smaller price of a lever is not mentioned
_COSTLY = 0.05  # nats; a smaller extra loss at a low rate is not mentioned
_LOSSES = {"lm": "", "mlm": "masked text", "seq2seq": "sequence to sequence",
           "classification": "classification", "distillation": "distillation",
           "reward": "reward model", "other": "another loss"}  # fmt: skip
_ADAPTERS = {"lora": "LoRA", "qlora": "QLoRA", "dora": "DoRA", "rslora": "rsLoRA",
             "pissa": "PiSSA", "other": "adapters"}  # fmt: skip
_NO_END = "RKSP505"  # the warm-up lasts for the whole run
_MOST_LEVERS = 3  # of a line
_MOST_UNREAD = 4  # settings that a page names


def size_and_weights(report: documents.ScoreReport) -> str:
    """Return size and origin of the weights: `124 M parameters, random initialization`."""
    target = report.target
    weights = _WEIGHTS[target.start.kind]
    if target.kind in ("factory", "module"):
        weights = "weights as given"
    if target.parameters is None:
        return weights
    return f"{count(target.parameters)} parameters, {weights}"


def training(report: documents.ScoreReport, name: str) -> str:
    """Return what is trained, how and from where: `gpt2 from scratch`, `GRPO, LoRA r 16 for gpt2`.

    The loss is left out where it is the next token, and the adapters where there are none.
    """
    recipe = report.recipe
    loss = _LOSSES.get(recipe.objective, recipe.objective.upper())
    rank = f" r {recipe.lora_rank or USUAL_RANK}" if recipe.peft in LOW_RANK else ""
    adapters = f"{_ADAPTERS[recipe.peft]}{rank}" if recipe.peft != "none" else ""
    if recipe.objective in AFTER_TRAINING:
        return f"{', '.join(filter(None, (loss, adapters)))} for {name}"
    target = report.target
    if target.start.is_scratch and target.model_type is None and target.parameters is None:
        return name  # of what is not known, a start is not either
    if target.start.is_scratch:
        return f"{name} from scratch{f' for {loss}' * bool(loss)} ({target.start.because})"
    how = f"{f' for {loss}' * bool(loss)}{f' with {adapters}' * bool(adapters)}"
    return f"fine-tuning {name}{how} ({target.start.because})"


def stream(report: documents.ScoreReport) -> str:
    """Describe the residual stream and what the model was shown; each may be missing."""
    if report.seeds[0].spectra.reason == NOTHING_RAN:
        return "only the configuration was read"
    chains = " + ".join(f"{path} ({number})" for path, number in report.target.blocks)
    blocks = f"blocks {chains}, width {report.target.width}"
    none = "the model has no residual stream of constant width"
    return f"{blocks if chains else none}; probe: {report.target.probe}"


def of_published(report: documents.ScoreReport, known: PublishedReport) -> str:
    """Say what is known of the ends of the published runs, and what is not told."""
    failed = (
        f"{known.failed} more failed, from {rate(known.failed_from)} on"
        if known.failed
        else "none of them failed"
    )
    own = dict(report.recipe)["objective"]
    is_wider = known.objective == WIDER.get(own) != own
    few = f"fewer than {LEAST} of them are {own.upper()}; " if is_wider else ""
    return (
        f"{few}{known.stated} of the {known.runs} state an outcome, the others are examples; "
        f"{failed}; P(failed) and the edge are not known"
    )


def reason(report: documents.ScoreReport) -> Finding | None:
    """Return the finding that makes the verdict worse than P(failed) does, if one does."""
    return decisive_finding(report.risk_verdict, report.findings)


def leading(report: documents.ScoreReport) -> str:
    """Say what a reader must know first: what decides the verdict, or a warm-up without an end."""
    recipe, found = report.recipe, reason(report)
    if found is not None:
        return f"{found.level} {found.code} ({found.name})"
    if recipe.warmup_steps > recipe.max_steps:
        return f"the warm-up ({recipe.warmup_steps}) is longer than the run ({recipe.max_steps})"
    return ""


def ordered(report: documents.ScoreReport) -> list[Finding]:
    """Return the findings, the worst first, and before its equals a warm-up without an end."""
    return sorted(report.findings, key=lambda one: (-one.severity, one.code != _NO_END))


def learned(seed: documents.SeedReport) -> str:
    """Say what the team's own runs changed; empty where there are none."""
    found = seed.risk.learned if isinstance(seed.risk, Estimate) else None
    if found is None:
        return ""
    sweeps = f" ({many(found.ladders, 'sweep')})"
    runs = "your run" if found.runs == 1 else f"your {found.runs} runs"
    runs += sweeps if found.ladders else ""
    s = "s" * (found.runs == 1)  # of the verbs
    before, after = (short(x, 2) for x in (found.edge_range_before, found.edge_range_after))
    factor = 10 ** abs(found.edge_shift)
    moved = f"leave{s} the edge where it is"
    if factor >= _MOVED:
        verb = "raise" if found.edge_shift > 0 else "lower"
        moved = f"{verb}{s} the edge {short(factor, 2)}-fold"
    if before == after:
        return f"{runs} {moved} and keep{s} its 90 % range at {after}×"
    verb = "narrow" if found.edge_range_after < found.edge_range_before else "widen"
    return f"{runs} {moved} and {verb}{s} its 90 % range from {before}× to {after}×"


def trained(report: documents.ScoreReport, seed: documents.SeedReport) -> list[str]:
    """Say that the model of fine-tuning answers, what it adds, and where the shape is from."""
    risk, shape = seed.risk, report.target.shape_from
    if isinstance(risk, FromPublished):
        return [of_published(report, risk.published), *([shape] if shape else [])]
    if not isinstance(risk, FromFineTuning):
        return [shape] if shape else []
    said = ["trained weights, so the fine-tuning model answers", *([shape] if shape else [])]
    if risk.usual is not None:
        said.append(f"S is the usual {rate(risk.usual)}{_unbeaten(risk)}")
    recipe = report.recipe
    if recipe.peft in LOW_RANK and recipe.lora_alpha is not None:
        rank = recipe.lora_rank or USUAL_RANK
        looked = f"in {ADAPTER_LADDERS} public sweeps alpha did not matter"
        moved = looked if risk.usual is None else "neither moves one of these rates"
        said.append(f"alpha {short(recipe.lora_alpha, 4)} over rank {rank} (RKSP511): {moved}")
    if risk.forgets_from is not None:
        said.append(
            f"above {rate(risk.forgets_from)} expect to lose a tenth of the model's other skills"
        )
    said += [
        f"with {other.assumption}: start here {rate(other.start_here)}, "
        f"do not exceed {rate(other.do_not_exceed)}"
        for other in seed.alternatives
        if other.assumption == documents.ADAPTERS_BESIDE and other.start_here is not None
    ]
    return said


def carried(report: documents.ScoreReport) -> str:
    """Say where the rate was carried from, or why it was not; empty where nobody asked for it."""
    found = report.carried
    if found is None:
        return ""
    small = f"{short(found.small_rate, 6)} for {found.small}"
    if found.edge_shift is None:
        return f"{small} is not carried here: {'; '.join(found.reasons)}"
    missed = found.errors["rksp"].get("edge")
    error = "" if missed is None else f", missed by {missed:.2f} in the median"
    return f"carried from {small}: the edge moves by {found.edge_shift:+.2f} decades{error}"


def unread(report: documents.ScoreReport) -> str:
    """Say which settings of the run file were not read, the unknown ones first; may be empty."""
    said = [one.text for one in sorted(report.unread, key=lambda one: bool(one.why))]
    more = [f"and {len(said) - _MOST_UNREAD} more"] if len(said) > _MOST_UNREAD else []
    return "; ".join(said[:_MOST_UNREAD] + more)


def _unbeaten(risk: FromFineTuning) -> str:
    is_usual = f"{risk.start_here:.2g}" == f"{risk.usual:.2g}"
    return ": the data show no better one" if is_usual else ", lowered to the rate not to exceed"


def crossed(risk: Answer) -> str:
    """Say that the rate to start with lies above the one not to exceed; empty if it does not."""
    if not isinstance(risk, Estimate) or risk.start_here <= risk.do_not_exceed:
        return ""
    return "in a run this short the best bet (S) is above the safe line (X)"


def lever(one: LeverReport) -> str:
    """Say what a lever adds and by how much: `300 steps of warm-up (…) by 1.8× [1.2×, 2.7×]`."""
    size = f"{short(one.factor, 2)}× [{short(one.low, 2)}, {short(one.high, 2)}]"
    price = f" at {one.loss:+.2f} nats" if abs(one.loss) >= _FELT else ""
    return f"{one.title} {one.change} by {size}{price}"


def levers(risk: FromEdge) -> str:
    """Say what would raise the edge, in one line; empty where nothing is known to."""
    shown = map(lever, risk.levers[:_MOST_LEVERS])
    return f"would raise the edge: {'; '.join(shown)}" if risk.levers else ""


def cost(report: documents.ScoreReport, risk: Answer) -> str:
    """Say what a rate that is too low costs: `0.26 nats more than at S`; empty if little."""
    own = report.recipe.learning_rate
    if not isinstance(risk, FromEdge) or own is None or own >= risk.start_here:
        return ""
    lost = definite(risk.expected_excess) - risk.start_excess
    return f"{lost:.2f} nats more than at S" if lost >= _COSTLY else ""


def open_gate(report: documents.ScoreReport) -> str:
    """Say that the gate lets pass what rksp cannot tell; empty where it does not."""
    gate = report.gate
    if report.risk_verdict not in ("cannot tell", "not assessed") or gate is None or gate.failed:
        return ""
    return "exit 0 although rksp cannot tell; --fail-on unknown makes it exit with 4"


def sentence(text: str) -> str:
    """Capitalize the first letter."""
    return text[:1].upper() + text[1:]


def decisive(report: documents.ScoreReport, seed: documents.SeedReport) -> str:
    """Say which assumptions decide the verdict: another plausible value would change it.

    Where a finding decides it, only what makes it worse still would.
    """
    if not seed.risk.is_told:
        return ""
    turning = [
        other
        for other in seed.alternatives
        if other.verdict not in (seed.risk.verdict, "cannot tell")
        and (reason(report) is None or worst(other.verdict, report.verdict) != report.verdict)
    ]
    worst_first = sorted(turning, key=lambda other: -(other.probability_failed or 0.0))
    shown: dict[str, list[str]] = {}
    for other in worst_first[:2]:
        shown.setdefault(other.verdict, []).append(other.assumption)
    said = "; ".join(f"{verdict} with {' or '.join(those)}" for verdict, those in shown.items())
    return f"would be {said}" if said else ""


def states(changes: Iterable[documents.ChangeReport]) -> str:
    """Count changes by state, the gravest first: `1 new, 2 unchanged`, or "nothing to compare"."""
    numbers: Counter[str] = Counter(change.state for change in changes)
    listed = [f"{numbers[s]} {s}" for s in STATES if s in numbers]
    return ", ".join(listed) or "nothing to compare"


def only_checks(report: documents.ScoreReport, seed: documents.SeedReport) -> str:
    """Say what evidence without a gradient is for; empty for other evidence."""
    if seed.risk.verdict == "not assessed" or seed.risk.evidence == "config":
        return ""
    if isinstance(seed.risk, FromFineTuning):
        return "what was measured feeds the checks alone, not the rates of fine-tuning"
    if seed.risk.evidence != "forward":
        return ""
    return (
        "the forward pass feeds the checks alone; only the first gradient (--evidence gradient) "
        "moves P(failed) and the rates"
    )


def noise(report: documents.ScoreReport) -> str:
    """Say that trained weights were shown tokens that mean nothing to them; empty if not."""
    target = report.target
    is_read = not any(bytes_ in target.probe for bytes_ in (BYTES_SPREAD, BYTES_FOLDED))
    if is_read or not target.start.is_stored:
        return ""
    return (
        "without a tokenizer.json the weights read random token ids: the forward pass measured "
        "noise"
    )


def notes(report: documents.ScoreReport, seed: documents.SeedReport) -> list[str]:
    """Return what could not be measured, and what limits the other numbers."""
    found = [*report.target.notes]
    found += filter(None, (only_checks(report, seed), noise(report)))
    if seed.spectra.reason:
        reading = "indeterminate" if seed.spectra.layers else "not measured"
        found.append(f"the spectra are {reading}: {seed.spectra.reason}")
    for status, number in Counter(layer.status for layer in seed.spectra.layers).items():
        if status != Status.OK.value and not seed.spectra.reason:
            found.append(
                f"{many(number, 'block')} {status.replace('_', ' ')}: {Status(status).remedy}"
            )
    reduced = [layer for layer in seed.spectra.layers if 0 < layer.rank < report.target.width]
    if reduced and len(reduced) == len(seed.spectra.layers):
        found.append(
            f"the spectra have a reduced rank, {reduced[0].rank} of {report.target.width}: compare "
            "them only with spectra of the same rank and number of states"
        )
    found += [f"not measured: {name} ({why})" for name, why in seed.forward.not_measured.items()]
    if seed.gradient is not None and seed.gradient.reason is not None:
        found.append(f"not measured: the gradient ({seed.gradient.reason})")
    found += [
        f"{number} checks were skipped: {reason.replace('it needs', 'they need')}"
        if number > 1
        else f"1 check was skipped: {reason}"
        for reason, number in Counter(check.reason for check in report.not_run).items()
    ]
    if seed.risk.outside:
        worst = sorted(seed.risk.outside.items(), key=lambda item: -item[1])[:4]
        listed = [
            f"{MEANINGS.get(n, n)} by a factor of {10**over:.2g}"
            for n, over in worst
            if over >= 0.05
        ]
        if listed:
            found.append(f"outside the range of the labelled runs: {', '.join(listed)}")
    wide = [
        f"{WIDENED_BY.get(name) or MEANINGS[name]} ({by:.2f} decades)"
        for name, by in (seed.risk.widened_by if isinstance(seed.risk, FromEdge) else {}).items()
        if by >= _NOTICED
    ]
    found += [f"the interval of P(failed) is wider for {', '.join(wide)}"] if wide else []
    for name, values in report.spread.items():
        found.append(
            f"over {len(report.seeds)} seeds {name} is {values['mean']:.3g} ± {values['std']:.2g}, "
            f"from {values['low']:.3g} to {values['high']:.3g}"
        )
    return found
