"""What the model of the edge looks at: the recipe and the shape, then what was measured."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from rksp.ground.model import definite
from rksp.recipe.optimizers.makers import MuonScale, matched_rate
from rksp.recipe.optimizers.table import OPTIMIZERS as _TABLE
from rksp.recipe.optimizers.table import optimizer_spec

Norm = Literal["pre", "post", "none"]

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
_SMALL_BATCH = 4000  # tokens, below which a step lowers the edge of a run that sees much text more
_SEEN = (3e6, 3e7)  # tokens of a run: more than any run of the lab has, and as few as a public one
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
    def seen_share(self) -> float:
        """0 for runs that see as few tokens as the lab's, 1 for those that see as many as others.

        The lab's runs, of the smallest batches, show no price of a small batch.
        """
        few, many = _SEEN
        seen = math.log(self.batch_tokens * self.steps / few) / math.log(many / few)
        return min(1.0, max(0.0, seen))

    @property
    def lack_of_tokens(self) -> float:
        """Decades by which a batch holds fewer tokens than any of a run that sees much text."""
        return self.seen_share * max(0.0, math.log10(_SMALL_BATCH / self.batch_tokens))

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
    share = math.log(steps / SHORT) / math.log(LONG / SHORT)
    return min(1.0, max(0.0, share))


def config_features(inputs: EdgeInputs) -> dict[str, float]:
    """Return the columns that need no measurement; logarithms are decimal.

    The width counts down to the narrowest that runs of this length show; a narrower model has no
    higher edge. The warm-up counts in steps, up to half of the run, since what follows it must
    decay, and up to the longest of the public ladders. A schedule that does not decay counts by its
    mean over the last tenth of the run, squared: one that ends at a tenth of its peak costs hardly
    anything. A rate that still rises at the end has a column of its own. Depth costs more where
    blocks normalize after the sum (Xiong et al., 2020), and most where none normalizes, since what
    each adds is multiplied by the next. The memories of Adam's moments count where the first is
    long (β₁ > 0.95), is short (β₁ < 0.9) in an optimizer that looks ahead, the more the longer the
    run, or outlasts the second. Where a run sees much text, its edge rises with the batch up to
    `_LARGE_BATCH`, as the noise of the gradient falls (McCandlish et al., 2018, 1812.06162). A
    step of Muon or Scion moves the outputs by its rate times √width in AdamW's scale, one of AdamW
    by its rate times the width, so a wider model lowers their edge less. The best rate follows the
    batch up to `CRITICAL_BATCH` in every run, and its length up to `LONG` steps. An initial
    deviation counts above √(2/5 width) (Nguyen and Salazar, 2019), in short runs only.
    """
    spec = optimizer_spec(inputs.optimizer)
    warmup: float = min(inputs.warmup_steps, _LONGEST_WARMUP) if spec.is_warmed else _UNWARMED_STEPS
    warmup = min(warmup, inputs.steps / 2)
    first = second = None
    if spec.has_memories:
        first = -math.log10(1 - (inputs.beta1 if inputs.beta1 is not None else _ADAM_BETAS[0]))
        second = -math.log10(1 - (inputs.beta2 if inputs.beta2 is not None else _ADAM_BETAS[1]))
    looks_ahead = first is not None and spec.looks_ahead
    lasting = math.log10(max(inputs.steps, _FEW_STEPS) / _FEW_STEPS)
    long = horizon_share(inputs.steps)
    batch = min(max(inputs.batch_tokens, _SMALL_BATCH), _LARGE_BATCH)
    features = {
        "width": math.log10(inputs.width) + inputs.narrowness,
        "depth": math.log10(inputs.depth),
        "warmup": math.log10(_FIRST_STEPS + warmup),
        "undecayed": inputs.late_share**2,
        "climbing": inputs.climbing,
        "length": horizon_share(inputs.steps),
        "batch_tokens": math.log10(min(inputs.batch_tokens, TOY_BATCH)),
        "large_batch": math.log10(
            min(max(inputs.batch_tokens, TOY_BATCH), CRITICAL_BATCH) / TOY_BATCH
        ),
        "vocabulary": math.log10(min(inputs.vocabulary, 1024)),
        "post_norm": float(inputs.norm == "post"),
        "post_norm_depth": math.log10(inputs.depth / _DEPTH) if inputs.norm == "post" else 0.0,
        "no_norm": float(inputs.norm == "none"),
        "no_norm_depth": math.log10(inputs.depth / _DEPTH) if inputs.norm == "none" else 0.0,
        "short_memory": max(0.0, _SHORT_MEMORY - definite(first)) * lasting if looks_ahead else 0.0,
        "long_memory": max(0.0, first - _LONG_MEMORY) if first is not None else 0.0,
        "memory_excess": max(0.0, first - definite(second)) if first is not None else 0.0,
    }
    features |= {
        "parallel": inputs.kind_share * inputs.is_parallel,
        "branch_norm": inputs.kind_share * inputs.normalizes_branches,
        "large_init": (1 - long) * _large_init(inputs),
        "other_objective": long * (not inputs.predicts_next and not inputs.masks),
        "made_up": float(inputs.is_made_up),
        "masked": long * inputs.masks,
        "qk_norm": long * inputs.normalizes_qk,
        "small_batch": -inputs.lack_of_tokens,
        "seen_batch": inputs.seen_share * math.log10(batch / _LARGE_BATCH),
        "matched_width": inputs.seen_share
        * (math.log10(inputs.width / _MUON_WIDTH) if spec.has_scales else 0.0),
    }
    return features | {name: float(inputs.optimizer == name) for name in OPTIMIZERS}


def _large_init(inputs: EdgeInputs) -> float:
    if not inputs.init_std:
        return 0.0
    return max(0.0, math.log10(inputs.init_std * math.sqrt(2.5 * inputs.width)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of the model.

    Attributes:
        sign: The edge may only rise (1) or only fall (-1) with it; 0 leaves it free.
        of_edge: The edge depends on it; every column serves the best rate.
        prior: Standard deviation of its coefficient before the data; None leaves that to the ridge.
        mean: Of its coefficient before the data.
    """

    name: str
    meaning: str
    sign: int = 0
    of_edge: bool = True
    prior: float | None = None
    mean: float = 0.0


_CLIMBING = 1.0  # decades: what a rate that never stops rising does, which one source shows
_LENGTH = 0.3  # decades: by how much the best rate of long runs differs, beside all else
_BATCH = 0.3  # decades a decade: what a step of fewer tokens costs, the lab's show none of it
# Decades a decade: by how much less the width lowers the edge of Muon and Scion than of AdamW,
# whose line falls with its 0.9th power: √width from their steps, and nanochat's rates, alike at
# all widths.
_MATCHED_WIDTH, _WIDTH_KNOWN = 0.4, 0.1
# Decades: what normalized queries and keys add in long runs, and how far that is known. Pairs of
# the lab say 0.3; DCLM's runs, which all trained, lie higher, and no other public edge is known.
_QK_NORM, _QK_KNOWN = 0.3, 0.1
# What masked text does, in decades: one public team shows it from both sides. Of 0.15 and 0.3, with
# which published encoders lie above the rate not to exceed.
_MASKED = 0.15
KIND = 0.5  # decades: what a kind of model does, which few ladders show
CONFIG_COLUMNS: tuple[Column, ...] = (
    Column(name="width", meaning="the width"),
    Column(name="depth", meaning="the number of blocks"),
    Column(name="warmup", meaning="the warm-up", sign=1),
    Column(name="undecayed", meaning="the end of the schedule"),
    Column(name="climbing", meaning="a rate that rises to the end", sign=-1, prior=_CLIMBING),
    Column(name="length", meaning="the length of the run", of_edge=False, prior=_LENGTH),
    Column(name="batch_tokens", meaning="the tokens of a batch", sign=1, of_edge=False),
    Column(name="large_batch", meaning="the tokens of a large batch", sign=1, of_edge=False),
    Column(name="vocabulary", meaning="the vocabulary, up to 1024"),
    Column(name="post_norm", meaning="normalization after the sum", sign=-1),
    Column(name="post_norm_depth", meaning="blocks normalized after the sum", sign=-1, prior=KIND),
    Column(name="no_norm", meaning="no normalization", sign=-1, prior=KIND),
    Column(name="no_norm_depth", meaning="blocks that nothing normalizes", sign=-1),
    Column(name="short_memory", meaning="a low beta1 with look-ahead over many steps", sign=-1),
    Column(name="long_memory", meaning="a high beta1", sign=-1),
    Column(name="memory_excess", meaning="a first moment that outlasts the second", sign=-1),
    Column(name="parallel", meaning="parallel blocks", sign=1, prior=KIND),
    Column(name="branch_norm", meaning="a norm after every branch", sign=1, prior=KIND),
    Column(name="large_init", meaning="a large initial deviation", prior=KIND),
    Column(name="other_objective", meaning="another objective", prior=KIND),
    Column(name="masked", meaning="masked text", prior=_MASKED),
    Column(name="qk_norm", meaning="normalized queries and keys", prior=_QK_KNOWN, mean=_QK_NORM),
    Column(name="small_batch", meaning="a batch of few tokens", sign=1, prior=_BATCH),
    Column(name="seen_batch", meaning="the tokens of a step", sign=1, prior=_BATCH),
    Column(
        name="matched_width",
        meaning="the width under Muon",
        prior=_WIDTH_KNOWN,
        mean=_MATCHED_WIDTH,
    ),
    Column(name="made_up", meaning="a made-up task"),
    *(Column(name=name, meaning=f"the optimizer ({name})") for name in OPTIMIZERS),
)
# Measured at rate 1 (`rksp.spectra.features`), each less the value that the configuration predicts.
MEASURED_COLUMNS: tuple[Column, ...] = (
    Column(name="grad_norm", meaning="the gradient before the first step", prior=0.06),
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
    "narrow": "the width, narrower than in any run so long",
}
