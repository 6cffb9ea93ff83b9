"""The playground: one page whose sliders move the answer of the model of the edge.

The formulas are those of `classifiers/edge_model.js`. The page embeds the model's own file, and
loads nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from importlib.resources import files
from typing import TYPE_CHECKING, get_args

from markupsafe import Markup

from rksp.assessment import risk
from rksp.assessment.risk import choose_model, declared_inputs
from rksp.classifiers import edge_inputs, lines, rates
from rksp.classifiers.edge_inputs import MEANINGS, NO_WARMUP, OPTIMIZERS
from rksp.classifiers.edge_model import EdgeEstimate, load_edge_model
from rksp.documents import terms
from rksp.documents.verdict import WORST_FIRST
from rksp.ground.errors import InputError, NotCovered
from rksp.ground.flags import flags_of
from rksp.ground.text import words
from rksp.ground.versions import version
from rksp.models.declared import Declared
from rksp.recipe import Recipe, Schedule
from rksp.recipe.coverage import uncovered
from rksp.recipe.optimizers.table import OPTIMIZERS as TABLE
from rksp.recipe.optimizers.table import optimizer_spec
from rksp.report.blocks import LIKELIHOOD
from rksp.report.html import page

if TYPE_CHECKING:
    from rksp.models.source import ModelSource

# Schedules that need no milestones.
_SCHEDULES = words("constant linear cosine wsd inverse_sqrt exponential")
_FIXED = words("decay_steps decay_shape decay_power decay_milestones decay_factor muon_scale")
MOVED = words(
    "learning_rate warmup_steps max_steps batch_size sequence_length optimizer schedule "
    "min_lr_ratio adam_beta1 adam_beta2"
)
# What `--set` calls what the page moves about the model; every type knows these names.
_SET = (("width", "hidden_size"), ("depth", "num_hidden_layers"), ("vocabulary", "vocab_size"))
# What the columns of a model need beside the recipe, as fields of `EdgeInputs`.
_OF_MODEL = words(
    "width depth vocabulary norm family is_parallel normalizes_branches normalizes_qk masks "
    "init_std predicts_next"
)


def playground(
    source: ModelSource, recipe: Recipe, command: str, known: Mapping[str, object]
) -> str:
    """Return the page of a target and a recipe.

    Without a learning rate it starts at the one to start with.

    Args:
        source: The target; only its configuration is read.
        recipe: How it is to be trained.
        command: What scores the target, without options for what the page moves.
        known: What that command has for these fields of the recipe, where it says.

    Raises:
        InputError: The model of the edge says nothing of this run, whatever is moved.
    """
    choice = choose_model(recipe, source.start)
    reasons = [*choice.reasons, *uncovered(recipe)]
    if choice.model == "fine-tuning":
        reasons = ["it draws random initializations, and this run starts from trained weights"]
    if reasons:
        raise InputError(
            f"The playground cannot draw {source.target}: {'; '.join(reasons)}; "
            "rksp score says what is known."
        )
    try:
        inputs = declared_inputs(Declared(source.config, source.task), recipe)
    except NotCovered as error:
        raise InputError(f"The playground cannot draw {source.target}: {error}.") from None
    model, flags, values = load_edge_model(), flags_of(Recipe), recipe.model_dump(mode="json")
    settings = {name: values[name] for name in (*MOVED, *_FIXED)}
    settings |= {name: getattr(inputs, name) for name in _OF_MODEL}
    if recipe.learning_rate is None:
        settings["learning_rate"] = float(f"{model.predict(inputs).start_here:.1e}")
    hands = files("rksp.report").joinpath("templates/playground.js")
    script = formulas() + hands.read_text("utf-8")
    document = {
        "model": asdict(model),
        "facts": {
            "optimizers": {spec.name: _facts(spec.name) for spec in TABLE},
            "meanings": MEANINGS,
            "no_warmup": NO_WARMUP,
        },
        "settings": settings,
        "command": command,
        "flags": [(name, flags[name].name, known.get(name)) for name in MOVED],
        "set": _SET,
        "titles": {one: one.upper() for one in WORST_FIRST},
        "likelihood": LIKELIHOOD,
    }
    schedules = [one for one in get_args(Schedule) if one in (*_SCHEDULES, recipe.schedule)]
    return page(
        "playground.html.j2",
        document,
        name=source.target,
        version=version("rksp"),
        script=Markup(script),
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        edges=model.card["edges"],
        optimizers=[
            (spec.name, spec.name)
            for spec in TABLE
            if not uncovered(recipe.model_copy(update={"optimizer": spec.name}))
        ],
        schedules=[(name, name.replace("_", " ")) for name in schedules],
    )


def formulas() -> str:
    """Return the model of the edge in JavaScript, after the constants of Python that it names."""
    script = files("rksp.classifiers").joinpath("edge_model.js").read_text("utf-8")
    modules = (edge_inputs, lines, rates, risk, terms)
    known = {name.lstrip("_"): value for one in modules for name, value in vars(one).items()}
    known["TAIL"] = EdgeEstimate.tail
    named = set(re.findall(r"\b[A-Z][A-Z_]{2,}\b", script)) & known.keys()
    constants = (f"const {name} = {json.dumps(known[name])};\n" for name in sorted(named))
    return "".join(['"use strict";\n', *constants, script])


def _facts(name: str) -> Mapping[str, object]:
    spec = optimizer_spec(optimizer_spec(name).counts_as or name)
    facts = ("has_memories", "looks_ahead", "has_scales", "is_adam_kin")
    found = {fact: getattr(spec, fact) for fact in facts}
    return found | {"counts_as": spec.name, "column": name in OPTIMIZERS}
