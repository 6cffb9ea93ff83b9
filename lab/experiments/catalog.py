"""The experiments that train, as data: settings, what each varies, and the papers' results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from lab.experiments import tables
from lab.experiments.failures import FAILURES, Failures
from lab.experiments.profiles import PROFILES, Profiles
from lab.experiments.rows import TrialRow, to_rows
from lab.experiments.trials import DENSE, Trial, small_trial
from lab.tasks.tasks import make_task
from rksp.confirm.arms import BASELINE

Paper = Mapping[str, float | str]
Table = Callable[[Sequence[TrialRow], Paper], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Trials of every arm, rate and set of faults at every seed; the seed varies slowest.

    Attributes:
        seeds: One run of every variant for each seed.
        arms: The arms to train.
        rates: Learning rates; if empty, the setting's own.
        faults: Sets of faults; each set is planted in trials of its own.
    """

    seeds: Sequence[int]
    arms: Sequence[str] = (BASELINE,)
    rates: Sequence[float] = ()
    faults: Sequence[tuple[str, ...]] = ((),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One experiment.

    Attributes:
        setting: The trial from which all others vary.
        blocks: The variations.
        tables: The tables to print, in order.
        paper: Arm → percent of trials that diverged in the paper, or the outcome in a word.
    """

    setting: Trial
    blocks: Sequence[Block]
    tables: Sequence[Table]
    paper: Paper = field(default_factory=dict)
    row_type = TrialRow
    rows = staticmethod(to_rows)

    def plan(self) -> list[Trial]:
        """Return all trials, those of a block at one seed before the next seed."""
        return [
            self._trial(arm, rate, seed, faults)
            for block in self.blocks
            for seed in block.seeds
            for arm in block.arms
            for rate in block.rates or (self.setting.recipe.learning_rate,)
            for faults in block.faults
        ]

    def table(self, rows: Sequence[TrialRow]) -> str:
        """Return the tables of rows, as Markdown, and the loss of a trivial answer."""
        task = make_task(self.setting.task, **self.setting.task_options)
        chance = f"Answering with the label frequencies costs {task.trivial_loss:.3f} nats.\n"
        return "\n".join([*(table(rows, self.paper) for table in self.tables), chance])

    def _trial(self, arm: str, rate: float, seed: int, faults: tuple[str, ...]) -> Trial:
        recipe = self.setting.recipe.model_copy(update={"learning_rate": rate})
        fault_step = self.setting.fault_step if faults else 0
        varied = {"arm": arm, "recipe": recipe, "seed": seed, "faults": faults}
        return self.setting.model_copy(update=varied | {"fault_step": fault_step})


# KSS against its alternatives. Setting of arXiv 2602.22988 §5.3 as far as it is published: No-Norm,
# rates 0.005 to 0.01, 24 paired trials, associative recall of sequence 64, vocabulary 256, 4 pairs,
# batch 32, 100 warm-up steps, AdamW, no clipping. rksp chose width 64, depth 4 and 300 steps.
KSS_RATES = (0.005, 0.0075, 0.01)
ENERGY, PUBLISHED = tables.ENERGY, "kss:form=published"
MAIN_ARMS = (BASELINE, ENERGY, "clip=1.0")
_KSS_PAPER = {BASELINE: 66.7, "clip=1.0": 58.3, PUBLISHED: 12.5}
_KSS = small_trial("zoo_no_norm", "recall", width=64, depth=4, length=64, batch=32, rate=0.005)

# MSign where the baseline diverges: the question of arXiv 2602.01734, Table 5, at small size. These
# runs fail within 300 steps, so MSign acts every 20 steps as well as every 100.
_MSIGN = small_trial(
    *("zoo_no_norm", "recall"), width=64, depth=4, length=16, batch=32, rate=0.005,
    task_options={"length": 16},
)  # fmt: skip
# MSign where training stalls: deep and narrow, at a rate that is too high. The loss stays finite
# and ends far above that of a tenth of the rate.
_MSIGN_DEEP = small_trial(
    *("zoo_pre_ln", "bytes"), width=48, depth=12, length=32, batch=16, rate=0.03,
    warmup=50, task_options={"length": 32},
)  # fmt: skip

# KSS and MSign where runs learn: model, task and optimizer are those of `_KSS` at a size that gets
# far below chance in 400 steps. A step has 512 tokens, and KSS takes all of them.
_PAIRS = {"length": 8, "vocab": 16, "pairs": 2}
_LEARNS = small_trial(
    *("zoo_no_norm", "recall"), width=32, depth=4, length=8, batch=64, rate=0.005,
    steps=400, task_options=_PAIRS, shape={"vocab_size": 16},
)  # fmt: skip
_LEARNING = partial(tables.learning, chance=make_task("recall", **_PAIRS).trivial_loss)
_MSIGN_ARMS = (
    BASELINE,
    *(f"msign:every=20,scope={scope}" for scope in ("attention", "mlp", "all")),
    *(f"msign:every=100,scope={scope}" for scope in ("attention", "all")),
)
_MSIGN_PAPER = {  # outcomes of AdamW, attention-only and all 2-D at P = 100
    BASELINE: "failed",
    "msign:every=100,scope=attention": "trained",
    "msign:every=100,scope=all": "trained",
}

# Which monitor sees which fault, how early, and how often it alarms without a fault.
_CROSS_TALK = small_trial(
    *("zoo_moe", "bytes"), width=32, depth=3, length=32, batch=8, rate=1e-3,
    warmup=tables.WARMUP, clip=1.0, task_options={"length": 32},
    shape={"num_experts": 4, "num_experts_per_tok": 2},
    monitors=DENSE,
    fault_step=tables.FAULT_STEP,
)  # fmt: skip

AnyExperiment = Experiment | Failures | Profiles

EXPERIMENTS: Mapping[str, AnyExperiment] = {
    "kss": Experiment(
        setting=_KSS,
        blocks=(
            Block(seeds=range(8), arms=MAIN_ARMS, rates=KSS_RATES),
            # To find the largest stable rate.
            Block(seeds=range(8), rates=(0.003,)),
            Block(seeds=range(8), arms=(ENERGY,), rates=(0.015,)),
        ),
        tables=(tables.paired_divergence, tables.stable_rates),
        paper=_KSS_PAPER,
    ),
    "kss-learns": Experiment(
        setting=_LEARNS,
        blocks=(Block(seeds=range(3), arms=(*MAIN_ARMS, PUBLISHED), rates=KSS_RATES),),
        tables=(_LEARNING,),
        paper=_KSS_PAPER,
    ),
    "msign-learns": Experiment(
        setting=_LEARNS,
        blocks=(
            Block(
                seeds=range(3),
                arms=(BASELINE, "msign:every=20,scope=all", "msign:every=100,scope=all"),
                rates=(0.005, 0.01),
            ),
        ),
        tables=(_LEARNING,),
        paper=_MSIGN_PAPER,
    ),
    "msign": Experiment(
        setting=_MSIGN,
        blocks=(Block(seeds=range(12), arms=_MSIGN_ARMS),),
        tables=(tables.divergence,),
        paper=_MSIGN_PAPER,
    ),
    "msign-deep": Experiment(
        setting=_MSIGN_DEEP,
        blocks=(
            Block(
                seeds=range(6),
                arms=(
                    BASELINE,
                    tables.REFERENCE,
                    *(
                        f"msign:every={every},scope={scope}"
                        for every in (20, 100)
                        for scope in ("attention", "mlp", "all")
                    ),
                ),
            ),
        ),
        tables=(tables.above_reference,),
        paper={  # Table 5: outcomes of NanoGPT and Sigma-40M at P = 100
            BASELINE: "failed",
            "msign:every=100,scope=attention": "trained",
            "msign:every=100,scope=mlp": "failed",
            "msign:every=100,scope=all": "trained",
        },
    ),
    "cross-talk": Experiment(
        setting=_CROSS_TALK,
        blocks=(
            Block(seeds=range(5), faults=tuple(tables.FAULTS.values())),
            Block(seeds=range(5, 10)),
        ),
        tables=(tables.cross_talk,),
    ),
    "failures": Failures(failures=FAILURES, seeds=range(5)),
    "profiles": PROFILES,
}
