"""The playground: one page whose sliders move the answer of the model of the edge.

The formulas are those of `classifiers/edge_model.js`. The page embeds the model's own file, and
loads nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any, get_args

from markupsafe import Markup

from rksp.assessment.risk import choose_model, declared_inputs
from rksp.checks.coverage import uncovered
from rksp.classifiers.edge_inputs import (
    MEANINGS,
    NO_WARMUP,
    OPTIMIZERS,
    EdgeInputs,
)
from rksp.classifiers.edge_model import EdgeModel
from rksp.ground.errors import InputError, NotCovered
from rksp.ground.flags import flags_of
from rksp.models.declared import Declared
from rksp.recipe import Recipe, Schedule
from rksp.recipe.optimizers.table import OPTIMIZERS as TABLE
from rksp.recipe.optimizers.table import optimizer_spec
from rksp.report.blocks import LIKELIHOOD
from rksp.report.html import page
from rksp.report.words import TITLES

if TYPE_CHECKING:
    from rksp.models.source import ModelSource

_SCHEDULES = ("constant", "linear", "cosine", "wsd", "inverse_sqrt", "exponential")
_FIXED = (
    *("decay_steps", "decay_shape", "decay_power", "decay_milestones", "decay_factor"),
    "muon_scale",
)
MOVED = (
    *("learning_rate", "warmup_steps", "max_steps", "batch_size", "sequence_length"),
    *("optimizer", "schedule", "min_lr_ratio", "adam_beta1", "adam_beta2"),
)
# What `--set` calls what the page moves about the model; every type knows these names.
_SET = (("width", "hidden_size"), ("depth", "num_hidden_layers"), ("vocabulary", "vocab_size"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Playground:
    """What a playground starts from.

    Attributes:
        target: As the user wrote it.
        inputs: The model and the run, as the model of the edge sees them.
        recipe: The run; its learning rate is None where none was given.
        command: What scores the target, without options for what the page moves.
        known: What that command has for these fields of the recipe, where it says.
    """

    target: str
    inputs: EdgeInputs
    recipe: Recipe
    command: str
    known: Mapping[str, object]


def playground(
    source: ModelSource, recipe: Recipe, command: str, known: Mapping[str, object]
) -> Playground:
    """Return the playground of a target and a recipe.

    Args:
        source: The target; only its configuration is read.
        recipe: How it is to be trained.
        command: See `Playground`.
        known: See `Playground`.

    Raises:
        InputError: The model of the edge says nothing of this run, whatever is moved.
    """
    said = Declared(source.config, source.task)
    choice = choose_model(recipe, is_pretrained=source.holds_trained)
    reasons = [*choice.reasons, *uncovered(recipe)]
    if choice.model == "fine-tuning":
        reasons = ["it draws random initializations, and this run starts from trained weights"]
    if reasons:
        raise InputError(
            f"The playground cannot draw {source.target}: {'; '.join(reasons)}; "
            "rksp score says what is known."
        )
    try:
        inputs = declared_inputs(said, recipe)
    except NotCovered as error:
        raise InputError(f"The playground cannot draw {source.target}: {error}.") from None
    return Playground(
        target=source.target,
        inputs=inputs,
        recipe=recipe,
        command=command,
        known=known,
    )


def render(start: Playground, model: EdgeModel, version: str) -> str:
    """Return the page.

    Without a learning rate it starts at the one to start with.

    Args:
        start: The target and the recipe.
        model: The model of the edge.
        version: Of rksp.
    """
    rate = start.recipe.learning_rate
    if rate is None:
        rate = float(f"{model.predict(start.inputs).start_here:.1e}")
    script = _script("rksp.classifiers", "edge_model.js") + _script(
        "rksp.report", "templates/playground.js"
    )
    document = _document(start, model, rate)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return page(
        "playground.html.j2",
        document,
        name=start.target,
        version=version,
        script=Markup(script),
        digest=digest,
        edges=model.card["edges"],
        optimizers=[(name, name) for name in _offered(start.recipe)],
        schedules=[(name, name.replace("_", " ")) for name in _schedules(start.recipe)],
    )


def _document(start: Playground, model: EdgeModel, rate: float) -> dict[str, Any]:
    """Return what the page embeds: the model's file, facts that its formulas use, the settings."""
    values = start.recipe.model_dump(mode="json")
    settings = {name: values[name] for name in (*MOVED, *_FIXED)} | {
        "learning_rate": rate,
        "width": start.inputs.width,
        "depth": start.inputs.depth,
        "vocabulary": start.inputs.vocabulary,
        "norm": start.inputs.norm,
        "family": start.inputs.family,
        "is_parallel": start.inputs.is_parallel,
        "normalizes_branches": start.inputs.normalizes_branches,
        "normalizes_qk": start.inputs.normalizes_qk,
        "masks": start.inputs.masks,
        "init_std": start.inputs.init_std,
        "predicts_next": start.inputs.predicts_next,
    }
    flags = flags_of(Recipe)
    return {
        "model": json.loads(model.to_json()),
        "facts": {
            "optimizers": {spec.name: _facts(spec.name) for spec in TABLE},
            "meanings": MEANINGS,
            "no_warmup": NO_WARMUP,
        },
        "settings": settings,
        "command": start.command,
        "flags": [(name, flags[name].name, start.known.get(name)) for name in MOVED],
        "set": _SET,
        "titles": TITLES,
        "likelihood": LIKELIHOOD,
    }


def _facts(name: str) -> Mapping[str, object]:
    """Return what the columns depend on about an optimizer."""
    spec = optimizer_spec(optimizer_spec(name).counts_as or name)
    facts = asdict(spec)
    return {
        **{key: facts[key] for key in ("is_warmed", "has_memories", "looks_ahead")},
        "has_scales": spec.has_scales,
        "is_adam_kin": spec.is_adam_kin,
        "counts_as": spec.name,
        "column": name in OPTIMIZERS,
    }


def _offered(recipe: Recipe) -> list[str]:
    """Return the optimizers that the labelled runs cover."""
    names = [spec.name for spec in TABLE]
    return [name for name in names if not uncovered(recipe.model_copy(update={"optimizer": name}))]


def _schedules(recipe: Recipe) -> list[str]:
    """Return the schedules that need no milestones, and the recipe's own."""
    return [name for name in get_args(Schedule) if name in (*_SCHEDULES, recipe.schedule)]


def _script(package: str, name: str) -> str:
    return files(package).joinpath(name).read_text("utf-8")
