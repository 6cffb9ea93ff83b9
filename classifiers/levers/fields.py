"""What every field of a recipe does to the likely edge: moves it, does not, or is not measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rksp.classifiers.edge_inputs import CONFIG_COLUMNS, SHORT
from rksp.classifiers.edge_model import EdgeModel, load_edge_model
from rksp.classifiers.levers.catalogue import LEVERS
from rksp.classifiers.levers.effects import LeverSize, LeverTable, load_lever_table

_TOKENS = ("noise", "small_batch")
_DECAY = ("undecayed",)
# The columns of the model of the edge that a field moves.
_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "warmup_steps": ("warmup", "climbing"),
    "max_steps": ("warmup", "climbing", *_TOKENS),
    "batch_size": _TOKENS,
    "sequence_length": _TOKENS,
    "adam_beta1": ("long_memory", "short_memory", "memory_excess"),
    "adam_beta2": ("memory_excess",),
    **dict.fromkeys(("schedule", "min_lr_ratio", "decay_steps", "decay_shape"), _DECAY),
    **dict.fromkeys(("decay_power", "decay_milestones", "decay_factor"), _DECAY),
}
_SCALES = {  # fields that E is stated in, or that another one holds
    "learning_rate": "E is a learning rate, and no field moves it by moving this one",
    "optimizer": "each optimizer has an edge of its own; score the run with each",
    "muon_scale": "the edge is stated in the scale that it names, by a known factor",
    "gradient_accumulation_steps": "batch_size counts all of a step, so this moves nothing",
    "rows": "batch_size counts all of a step, so this moves nothing",
}


def edge_effect(field: str) -> str:
    """Return what a field of the recipe does to the edge, a clause; as `explain` prints it."""
    if field in _SCALES:
        return _SCALES[field]
    model, table = load_edge_model(), load_lever_table()
    told = [*_moved(model, field), *_measured(table, field)]
    return "; ".join(told) or "not measured: no pair of runs differs in it, and it moves nothing"


def _moved(model: EdgeModel, field: str) -> Iterator[str]:
    for column in CONFIG_COLUMNS:
        if column.name in _COLUMNS.get(field, ()):
            unit = "a decade of" if column.unit == "decades" else "at most by"
            weight = model.edge.weights[column.name]
            yield f"moves E by {weight:+.2f} decades {unit} {column.meaning}"


def _measured(table: LeverTable, field: str) -> Iterator[str]:
    for lever in LEVERS:
        size = table.size("decoder", lever.name)
        if lever.field == field and size is not None and not lever.intervention:
            yield f"{_shown(size)} ({lever.name}, {size.pairs} pairs of decoders, {_HORIZON})"


_HORIZON = f"runs up to {SHORT} steps"


def _shown(size: LeverSize) -> str:
    if size.low is None or size.high is None:
        return f"measured, {size.shift:+.2f} decades in too few families to tell"
    ends = f"[{size.low:+.2f}, {size.high:+.2f}]"
    if size.low <= 0 <= size.high:
        return f"measured, no effect beyond chance, {size.shift:+.2f} decades {ends}"
    return f"measured, {size.shift:+.2f} decades {ends}"
