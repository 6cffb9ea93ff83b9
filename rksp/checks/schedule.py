"""Checks of the schedule: a peak that is reached, and weights that move."""

from __future__ import annotations

from collections.abc import Iterator

from rksp.checks.check import Check, Observation
from rksp.checks.evidence import CheckEvidence
from rksp.documents.finding import Level
from rksp.ground.text import short
from rksp.optimizers.table import optimizer_spec

_TRAVEL, _NO_TRAVEL = 1e-5, 1e-6  # fine-tuning by reinforcement travels 1e-4
_LOST_IN_FP32 = 1e-9  # half a unit in the last place of a weight of 0.02


def _warmup_length(evidence: CheckEvidence) -> Iterator[Observation]:
    recipe = evidence.recipe
    if recipe.warmup_steps >= recipe.max_steps and recipe.warmup_steps > 1:
        share = recipe.max_steps / recipe.warmup_steps
        yield Observation(
            message=(
                f"The warm-up of {recipe.warmup_steps} steps lasts for the whole run of "
                f"{recipe.max_steps} steps: the learning rate only rises, to {share:.0%} of its "
                "peak."
            ),
            value=1 / share,
            fix=f"Warm up for {max(1, recipe.max_steps // 10)} steps, or train for longer.",
        )


def _travel(evidence: CheckEvidence) -> Iterator[Observation]:
    recipe = evidence.recipe
    rate = recipe.learning_rate
    if rate is None or optimizer_spec(recipe.optimizer).family in ("plain", "layerwise"):
        return
    farthest = rate * recipe.max_steps
    if farthest < _TRAVEL or rate < _LOST_IN_FP32:
        is_still = farthest < _NO_TRAVEL or rate < _LOST_IN_FP32
        yield Observation(
            level=Level.ERROR if is_still else Level.WARNING,
            message=(
                f"A learning rate of {short(rate, 6)} over {recipe.max_steps} steps moves a weight "
                f"by at most {farthest:.1g}, so nothing is learned."
            ),
            value=farthest,
        )


CHECKS = (
    Check(
        code="RKSP505",
        name="warmup-length",
        level=Level.WARNING,
        title="The warm-up lasts for the whole run",
        measures="The warm-up steps against the steps of the run.",
        why=(
            "The learning rate only rises: it reaches its peak at the last step or never, and it "
            "never decays. Usually the setting is left over from a longer run. The run trains, "
            "but not by the recipe that was intended."
        ),
        source="arithmetic; nanoGPT-mup runs 1,000 steps with a warm-up of 2,000",
        healthy="a warm-up that is shorter than the run",
        fix="Shorten the warm-up to a tenth of the run.",
        failing="--warmup-steps 2000 --max-steps 1000",
        stable="--warmup-steps 100 --max-steps 1000",
        look=_warmup_length,
        field="warmup_steps",
        reads="recipe",
    ),
    Check(
        code="RKSP506",
        name="no-movement",
        level=Level.ERROR,
        title="The learning rate is too small to move a weight",
        measures=(
            "The peak learning rate times the steps of the run, which bounds how far a normalized "
            f"update moves a weight, and the learning rate against {_LOST_IN_FP32:g}."
        ),
        why=(
            "Weights are about 0.02. A step of Adam or a similar optimizer moves each weight by "
            "at most about the learning rate. Below 1e-9 a float32 weight of that size does not "
            "change at all. Usually an exponent was mistyped."
        ),
        source="arithmetic (IEEE 754 single precision); Kingma and Ba, 2015, section 2.1",
        healthy=f"a product of at least {_TRAVEL:g}; an error under {_NO_TRAVEL:g}",
        fix=(
            "Check the exponent for a typing error: pre-training uses 1e-4 to 1e-3, fine-tuning "
            "1e-5."
        ),
        failing="--lr 1e-12 --max-steps 1000",
        stable="--lr 5e-7 --max-steps 500 (preference tuning)",
        look=_travel,
        field="learning_rate",
    ),
)
