"""What the model of the edge looks at: the recipe and the shape, then what was measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Literal, get_args

from rksp.recipe.optimizers.makers import MuonScale, matched_rate
from rksp.recipe.optimizers.table import OPTIMIZERS as _TABLE
from rksp.recipe.optimizers.table import optimizer_spec

Norm = Literal["pre", "post", "none"]
LineName = Literal["edge", "best", "divergence"]
LINES: tuple[LineName, ...] = get_args(LineName)
Unit = Literal["decades", "share"]  # of a column: a logarithm, or between 0 and 1

_LONGEST_WARMUP = 4000  # steps, of a public ladder whose edge is known
_FIRST_STEPS = 30  # of a warm-up, below which its length hardly counts
_UNWARMED_STEPS = 1000  # what an optimizer that a warm-up does not protect counts as having
_ADAM_BETAS = (0.9, 0.98)  # where a source does not say
# What a classifier counts as: the lab's have ten classes and stand with this number in the data,
# which say nothing of other numbers of classes.
CLASSIFIER_VOCABULARY = 256
SHORT, LONG = 300, 5000  # steps: horizons of the lab's ladders and of the real ones
_KEPT = 0.5  # share of what toy runs show of a kind of model that counts in long runs
_NARROWEST = (32, 256)  # widths, of the lab's short runs and of public long ones
CRITICAL_BATCH = 1e6  # tokens, beyond which the best rate of public ladders rises no more
TOY_BATCH = 3e4  # tokens, below which the batch of a toy run moves its best rate otherwise
_SMALL_BATCH = 4000  # tokens, below which a step costs more, in runs longer than any of the lab's
_LATE = (2400, 10_000)  # steps of a run: as many as the lab's longest, and as public ones
_SEEN = (3e6, 3e7)  # tokens of a run: more than any run of the lab has, and as few as a public one
_DECAYED = 0.01  # mean share of the peak in the last tenth, below which the rate has decayed
_FEW_STEPS = 100  # from which what builds up over a run counts
_LARGE_BATCH = 2**17  # tokens, beyond which the edge of public ladders rises no more with a step
_MUON_WIDTH = 512  # of public ladders of Muon, from which its edge moves with the width
_DEPTH = 4  # blocks, from which the depth counts apart where no branch is normalized before
# What a beta1 of 0.9 and of 0.95 comes to: the columns of a memory begin beyond these.
_SHORT_MEMORY, _LONG_MEMORY = (-math.log10(1 - beta1) for beta1 in (0.9, 0.95))

# These differ from AdamW by a fraction of a decade, which the public ladders give.
ADAM_FAMILY = tuple(spec.name for spec in _TABLE if spec.is_adam_kin)
# Names other than adamw get a column each, which is 0 or 1.
OPTIMIZERS = tuple(
    spec.name
    for spec in _TABLE
    if spec.labelled != "none" and not spec.counts_as and spec.name != "adamw"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeInputs:
    """The facts of a model and its recipe that the edge depends on.

    Attributes:
        width, depth: Of the residual stream, and the number of blocks.
        vocabulary: Number of tokens; `CLASSIFIER_VOCABULARY` for a classifier.
        norm: Where the blocks normalize: before a branch, after the sum, or nowhere.
        family: The model type, such as gpt_neox; "" where it is none that has a name.
        alike: Families whose blocks do the same, for a model of no family.
        is_parallel: Attention and feed-forward read the same state and are added together.
        normalizes_branches: A norm follows every branch, before the sum.
        init_std: Standard deviation of the initial weights; None where it is not known.
        normalizes_qk: Queries and keys are normalized.
        predicts_next: The objective is the next token, as that of most public ladders.
        masks: The objective is masked or replaced text, as an encoder's.
        is_made_up: The task is an algorithmic one of the lab, no text and no images.
        steps, warmup_steps: Optimizer steps in all, and those of the warm-up.
        batch_tokens: Tokens an optimizer step.
        late_share: The mean rate of the last tenth of the run over the highest that is reached; 1
            for a constant schedule.
        is_unread: Nothing says where the blocks normalize or what they add: no configuration, and a
            pass could not be read.
        in_fp8: The arithmetic has 8 bits or fewer, as in no labelled run.
        muon_scale: Of the update of Muon or Scion, as in a recipe.
        beta1, beta2: Of Adam and its kin; None where the optimizer has none.
    """

    width: int
    depth: int
    vocabulary: int
    sequence_length: int
    batch_tokens: float
    steps: int
    warmup_steps: int
    optimizer: str = "adamw"
    muon_scale: MuonScale = "match_rms_adamw"
    late_share: float = 0.1
    beta1: float | None = 0.9
    beta2: float | None = 0.98
    norm: Norm = "pre"
    family: str = ""
    alike: tuple[str, ...] = ()
    is_parallel: bool = False
    normalizes_branches: bool = False
    normalizes_qk: bool = False
    init_std: float | None = None
    predicts_next: bool = True
    masks: bool = False
    is_made_up: bool = False
    is_unread: bool = False
    in_fp8: bool = False

    @property
    def is_usual(self) -> bool:
        """Whether it is as most public ladders: Adam's kin, norms, the next token."""
        return self.optimizer in ADAM_FAMILY and self.norm != "none" and self.predicts_next

    @property
    def kind_share(self) -> float:
        """Return the share of a kind's effect in the lab's runs that counts: half in long runs.

        No public ladder shows these kinds, and short runs of small models are all there is.
        """
        return 1 - (1 - _KEPT) * horizon_share(self.steps)

    @property
    def climbing(self) -> float:
        """The share of the second half of the run in which the rate still rises."""
        return min(1.0, max(0.0, 2 * self.warmup_steps / self.steps - 1))

    @property
    def narrowness(self) -> float:
        """Decades by which the width lies below the narrowest that runs of this length show."""
        short, long = _NARROWEST
        narrowest = short * (long / short) ** horizon_share(self.steps)
        return max(0.0, math.log10(narrowest / self.width))

    @property
    def counted_width(self) -> float:
        """The logarithm of the width, down to the narrowest that runs of this length show."""
        return math.log10(self.width) + self.narrowness

    @property
    def lack_of_tokens(self) -> float:
        """Decades by which a step of a long run holds fewer tokens than nearly all of them do."""
        few = max(0.0, math.log10(_SMALL_BATCH / self.batch_tokens))
        return _between(self.steps, *_LATE) * few

    @property
    def text_seen(self) -> float:
        """0 where a run sees as few tokens as the lab's at most, 1 where as many as public ones."""
        return _between(self.batch_tokens * self.steps, *_SEEN)

    @property
    def warmed_steps(self) -> float:
        """The steps of the warm-up that count."""
        is_warmed = optimizer_spec(self.optimizer).has_memories
        counted = min(self.warmup_steps, _LONGEST_WARMUP) if is_warmed else _UNWARMED_STEPS
        return min(counted, self.steps / 2)

    @property
    def memories(self) -> tuple[float, float] | None:
        """Decades of steps that Adam's first and second moment last; None where it has none."""
        if not optimizer_spec(self.optimizer).has_memories:
            return None
        betas = zip((self.beta1, self.beta2), _ADAM_BETAS, strict=True)
        first, second = (-math.log10(1 - (usual if b is None else b)) for b, usual in betas)
        return first, second

    @property
    def peak_share(self) -> float:
        """The highest rate that is reached, over the nominal one.

        It is below 1 where the warm-up is longer than the run. A rate of Muon or Scion counts as
        that of the update of AdamW's size.
        """
        share = min(1.0, self.steps / self.warmup_steps) if self.warmup_steps else 1.0
        has_scales = optimizer_spec(self.optimizer).has_scales
        return share * (matched_rate(self.width, self.muon_scale) if has_scales else 1.0)


def horizon_share(steps: float) -> float:
    """0 for runs as short as the lab's, 1 for runs as long as the real ones."""
    return _between(steps, SHORT, LONG)


def _between(value: float, low: float, high: float) -> float:
    """0 up to `low`, 1 from `high` on, and between them in proportion to the logarithm."""
    return min(1.0, max(0.0, math.log(value / low) / math.log(high / low)))


def _has(optimizer: str, run: EdgeInputs) -> float:
    return float(run.optimizer == optimizer)


def _normed(norm: Norm, run: EdgeInputs) -> float:
    return float(run.norm == norm)


def _normed_depth(norm: Norm, run: EdgeInputs) -> float:
    return (run.norm == norm) * math.log10(run.depth / _DEPTH)


def _above(value: float, least: float) -> float:
    return max(0.0, value - least)


def _large_batch(run: EdgeInputs) -> float:
    return _above(math.log10(min(run.batch_tokens, CRITICAL_BATCH)), math.log10(TOY_BATCH))


def _long_memory(run: EdgeInputs) -> float:
    return _above(run.memories[0], _LONG_MEMORY) if run.memories else 0.0


def _memory_excess(run: EdgeInputs) -> float:
    return _above(*run.memories) if run.memories else 0.0


def _short_memory(run: EdgeInputs) -> float:
    if run.memories is None or not optimizer_spec(run.optimizer).looks_ahead:
        return 0.0
    lasting = math.log10(max(run.steps, _FEW_STEPS) / _FEW_STEPS)
    return _above(_SHORT_MEMORY, run.memories[0]) * lasting


def _large_init(run: EdgeInputs) -> float:
    if not run.init_std:
        return 0.0
    above = _above(math.log10(run.init_std * math.sqrt(2.5)) + run.counted_width / 2, 0.0)
    return (1 - horizon_share(run.steps)) * above


def _noise(run: EdgeInputs) -> float:
    """Return how far the tokens of a step lie below `_LARGE_BATCH`, as far as text was seen.

    The lab's runs show no price of a small batch, and public ones, that see more text, do. A larger
    step sees more text, so below the step at which the price is the highest it stays that: with a
    larger batch the edge never falls.
    """
    few, many = _SEEN
    costliest = min(math.sqrt(_LARGE_BATCH * few / run.steps), many / run.steps)
    batch = min(max(run.batch_tokens, costliest, _SMALL_BATCH), _LARGE_BATCH)
    return _between(batch * run.steps, few, many) * math.log10(batch / _LARGE_BATCH)


def _matched_width(run: EdgeInputs) -> float:
    if not optimizer_spec(run.optimizer).has_scales:
        return 0.0
    return horizon_share(run.steps) * (run.counted_width - math.log10(_MUON_WIDTH))


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the model.

    Attributes:
        of: Its value, in `unit`; None where it is measured.
        sign: The edge may only rise (1) or only fall (-1) with it; 0 leaves it free.
        lines: Of which rates it is a column.
        prior: Standard deviation of its coefficient before the data; None leaves that to the ridge.
        mean: Of its coefficient before the data.
    """

    name: str
    meaning: str
    of: Callable[[EdgeInputs], float] | None = None
    unit: Unit = "decades"
    sign: int = 0
    lines: tuple[LineName, ...] = LINES
    prior: float | None = None
    mean: float = 0.0


_CLIMBING = 1.0  # decades: what a rate that never stops rising does, which one source shows
_LENGTH = 0.3  # decades: by how much the best rate of long runs differs, beside all else
# Decades a decade: by how much less the width lowers the edge of Muon and Scion than of AdamW,
# whose line falls with its 0.9th power: √width from their steps, and nanochat's rates, alike at
# all widths.
_MATCHED_WIDTH, _WIDTH_KNOWN = 0.4, 0.1
# Decades: what normalized queries and keys add where text is seen, and how far it is known. Pairs
# of the lab say 0.3; DCLM's runs, which all trained, lie higher, and no other public edge is known.
_QK_NORM, _QK_KNOWN = 0.3, 0.1
# What masked text does, in decades: one public team shows it from both sides. Of 0.15 and 0.3, with
# which published encoders lie above the rate not to exceed.
_MASKED = 0.15
_BATCH = 0.3  # decades a decade: what a step of few tokens costs, which one ladder shows
KIND = 0.5  # decades: what a kind of model does, which few ladders show
_KINDLY = partial(Column, unit="share", prior=KIND)
# What the edge and the best rate are said to depend on, and why:
# - The width counts down to the narrowest that runs of this length show; none bears more.
# - The warm-up counts in steps, up to half of the run, since what follows it must decay, and up to
#   the longest of the public ladders. A rate that still rises at the end has a column of its own.
# - The end of the schedule counts by the mean rate of the last tenth of the run over the peak. What
#   is left of a rate that is too high shows in the loss, so its logarithm moves the edge, down to a
#   hundredth, at which a cosine to zero ends; the best rate hardly moves above a tenth: its square.
# - Depth costs more where blocks normalize after the sum (Xiong et al., 2020), and most where none
#   normalizes, since what each adds is multiplied by the next.
# - The memories of Adam's moments count where the first is long (beta1 > 0.95), is short (< 0.9) in
#   an optimizer that looks ahead, the more the longer the run, or outlasts the second.
# - What public runs alone show of another objective and of normalized queries and keys counts by
#   the text that a run sees, as the noise does, so that the length turns the edge only once.
# - Where a run sees much text, its edge rises with the tokens of a step up to `_LARGE_BATCH`, since
#   the noise of the gradient falls (McCandlish et al., 2018, 1812.06162).
# - A step of Muon or Scion moves the outputs by its rate times the root of the width in AdamW's
#   scale, one of AdamW by its rate times the width, so a wider model lowers their edge less.
# - The best rate follows the batch up to `CRITICAL_BATCH`, and its length up to `LONG` steps.
# - An initial deviation counts above sqrt(2/5 width) (Nguyen and Salazar, 2019), in short runs.
CONFIG_COLUMNS: tuple[Column, ...] = (
    Column("width", "the width", lambda run: run.counted_width, sign=-1),
    Column("depth", "the number of blocks", lambda run: math.log10(run.depth), sign=-1),
    Column(
        "warmup", "the warm-up", lambda run: math.log10(_FIRST_STEPS + run.warmed_steps), sign=1
    ),
    Column(
        "undecayed",
        "the end of the schedule",
        lambda run: math.log10(max(run.late_share, _DECAYED)),
        sign=-1,
        lines=("edge", "divergence"),
    ),
    Column(
        "late_share",
        "the mean rate of the last tenth, squared",
        lambda run: run.late_share**2,
        unit="share",
        sign=-1,
        lines=("best",),
    ),
    Column(
        "climbing",
        "a rate that rises to the end",
        lambda run: run.climbing,
        unit="share",
        sign=-1,
        prior=_CLIMBING,
    ),
    Column(
        "length",
        "the length of the run",
        lambda run: horizon_share(run.steps),
        unit="share",
        lines=("best", "divergence"),
        prior=_LENGTH,
    ),
    Column(
        "batch_tokens",
        "the tokens of a batch",
        lambda run: math.log10(min(run.batch_tokens, TOY_BATCH)),
        sign=1,
        lines=("best",),
    ),
    Column("large_batch", "the tokens of a large batch", _large_batch, sign=1, lines=("best",)),
    Column(
        "vocabulary",
        "the vocabulary, up to 1024",
        lambda run: math.log10(min(run.vocabulary, 1024)),
    ),
    Column("post_norm", "normalization after the sum", partial(_normed, "post"), "share", sign=-1),
    Column(
        "post_norm_depth",
        "blocks normalized after the sum",
        partial(_normed_depth, "post"),
        sign=-1,
        prior=KIND,
    ),
    _KINDLY("no_norm", "no normalization", partial(_normed, "none"), sign=-1),
    Column(
        "no_norm_depth", "blocks that nothing normalizes", partial(_normed_depth, "none"), sign=-1
    ),
    Column("short_memory", "a low beta1 with look-ahead over many steps", _short_memory, sign=-1),
    Column("long_memory", "a high beta1", _long_memory, sign=-1),
    Column("memory_excess", "a first moment that outlasts the second", _memory_excess, sign=-1),
    _KINDLY("parallel", "parallel blocks", lambda run: run.kind_share * run.is_parallel, sign=1),
    _KINDLY(
        "branch_norm",
        "a norm after every branch",
        lambda run: run.kind_share * run.normalizes_branches,
        sign=1,
    ),
    Column("large_init", "a large initial deviation", _large_init, prior=KIND),
    _KINDLY(
        "other_objective",
        "another objective",
        lambda run: run.text_seen * (not run.predicts_next and not run.masks),
        sign=1,
    ),
    Column(
        "masked",
        "masked text",
        lambda run: horizon_share(run.steps) * run.masks,
        unit="share",
        prior=_MASKED,
    ),
    Column(
        "qk_norm",
        "normalized queries and keys",
        lambda run: run.text_seen * run.normalizes_qk,
        unit="share",
        prior=_QK_KNOWN,
        mean=_QK_NORM,
    ),
    Column("noise", "the tokens of a step", _noise, sign=1),
    Column(
        "small_batch",
        "a batch of few tokens",
        lambda run: -run.lack_of_tokens,
        sign=1,
        prior=_BATCH,
    ),
    Column(
        "matched_width",
        "the width under Muon",
        _matched_width,
        prior=_WIDTH_KNOWN,
        mean=_MATCHED_WIDTH,
    ),
    Column("made_up", "a made-up task", lambda run: float(run.is_made_up), unit="share"),
    *(
        Column(name, f"the optimizer ({name})", partial(_has, name), unit="share")
        for name in OPTIMIZERS
    ),
)


@lru_cache(maxsize=4096)
def config_features(inputs: EdgeInputs) -> Mapping[str, float]:
    """Return the columns that need no measurement; logarithms are decimal."""
    return {column.name: column.of(inputs) for column in CONFIG_COLUMNS if column.of}


# Measured at rate 1 (`rksp.spectra.features`), each less the value that the configuration predicts.
MEASURED_COLUMNS: tuple[Column, ...] = (
    Column("grad_norm", "the gradient before the first step", prior=0.06),
)

# What every contribution to the edge is of.
MEANINGS = {c.name: c.meaning for c in (*CONFIG_COLUMNS, *MEASURED_COLUMNS)} | {
    "family": "the model's family"
}
NO_WARMUP = "no warm-up"
# What widens a spread and is no column, in words.
WIDENED_BY = {
    "family": "the model's family",
    "kind": "the kind of its blocks, known from short runs alone",
    "placement": "the place of its norms, which could not be read off the module",
    "objective": "the objective, which is not the next token",
    "optimizer": "the optimizer, known from few sources",
    "precision": "the 8-bit arithmetic, which no labelled run has",
    "few_tokens": "a batch of few tokens",
}
