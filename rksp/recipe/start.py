"""How a run starts, which decides the fitted model that answers; one function says so."""

from __future__ import annotations

from typing import Literal

from rksp.ground.errors import InputError
from rksp.ground.model import Strict
from rksp.recipe import Recipe

LEARNED = 0.5  # nats below a uniform guess; random weights lie at it or above


class Start(Strict):
    """The weights that a run starts from.

    Attributes:
        kind: `scratch`, random weights; `stored`, trained ones that rksp can read; `elsewhere`,
            trained ones that are not at hand, so that random ones stand for them.
        because: What shows it, a clause.
    """

    kind: Literal["scratch", "stored", "elsewhere"]
    because: str

    @property
    def is_scratch(self) -> bool:
        """Whether the run starts from random weights."""
        return self.kind == "scratch"

    @property
    def is_stored(self) -> bool:
        """Whether rksp can read the weights that the run starts from."""
        return self.kind == "stored"

    @property
    def elsewhere(self) -> Start:
        """The same start where the weights are not at hand."""
        return self.model_copy(update={"kind": "elsewhere"}) if self.is_stored else self


SCRATCH = Start(kind="scratch", because="nothing names weights")


def decide_start(
    held: Start,
    *,
    recipe: Recipe | None = None,
    said: Start | None = None,
    loss: float | None = None,
    guess: float | None = None,
    name: str = "The model",
) -> Start:
    """Decide how a run starts.

    What a person or the run file says comes first, then what the target holds; a way of training
    that needs trained weights, and a loss far below a guess, make a start from random ones one from
    trained ones.

    Args:
        held: What the target holds.
        recipe: How it is trained.
        said: What a person typed, or else what the run file names.
        loss: Of the weights at hand on tokens that they know, in nats; None where it is unknown.
        guess: The loss of a uniform guess on the same tokens.
        name: Of the target, for the message.

    Raises:
        InputError: The run is said to start from random weights, and the target holds trained ones.

    Example:
        >>> held = Start(kind="scratch", because="a model type")
        >>> decide_start(held, recipe=Recipe(peft="lora")).kind
        'elsewhere'
    """
    found = held
    if said is not None and said.is_scratch:
        if held.is_stored:
            raise InputError(
                f"{name} holds trained weights; to train it from scratch, give its config.json."
            )
        found = said
    elif said is not None and held.is_scratch:
        found = said
    if not found.is_scratch:
        return found
    if recipe is not None and (needed := recipe.weights_needed_by):
        return Start(kind="elsewhere", because=f"{needed} needs trained weights")
    if loss is not None and guess is not None and loss < guess - LEARNED:
        below = f"its loss, {loss:.1f} nats, is far below a guess, {guess:.1f}"
        return Start(kind="stored", because=below)
    return found
