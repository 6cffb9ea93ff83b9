"""What every field of a recipe does to the likely edge: moves it, does not, or is not measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rksp.classifiers.edge_inputs import CONFIG_COLUMNS, SHORT
from rksp.classifiers.edge_model import load_edge_model
from rksp.classifiers.levers.catalogue import LEVERS
from rksp.classifiers.levers.effects import LeverSize, load_lever_table

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
# The fields that public runs change alone, by what `card["one_setting"]` calls them.
_CHANGED = {
    "warmup_steps": "warmup",
    "batch_size": "train_batch_size",
    "adam_beta1": "beta1",
    "adam_beta2": "beta2",
    "adam_epsilon": "epsilon",
    "weight_decay": "weight_decay",
    "max_grad_norm": "max_grad_norm",
}
_HARMLESS = 0.02  # share of such runs that fail, up to which the field has shown no effect
_MOVES = "Moves the likely edge, in decades a decade or at most"
_NONE = "Measured, no effect on it beyond chance"
_UNKNOWN = "Not measured, or in too few families to tell"
NOT_MEASURED = "not measured: no pair of runs differs in it, and it moves nothing"
_SCALES = {  # fields that E is stated in, that another one holds, or that say what is trained
    "learning_rate": "E is a learning rate, and no field moves it by moving this one",
    "optimizer": "each optimizer has an edge of its own; score the run with each",
    "muon_scale": "the edge is stated in the scale that it names, by a known factor",
    "gradient_accumulation_steps": "batch_size counts all of a step, so this moves nothing",
    "rows": "batch_size counts all of a step, so this moves nothing",
    "peft": "each way to train held weights has an edge of its own; score the run with each",
    "objective": "of held weights, each has an edge of its own; score the run with each",
    "lora_rank": "measured in sweeps of adapters: it moves the best rate, no effect on E is seen",
}


def edge_effect(field: str) -> str:
    """Return what a field of the recipe does to the edge, a clause that begins with its kind."""
    if field in _SCALES:
        return _SCALES[field]
    moves, sizes, runs, failed = _known(field)
    told = [f"moves E by {'; '.join(moves)}"] if moves else []
    told += map(_shown, sizes)
    if runs:
        is_told = moves or failed > _HARMLESS * runs or not all(map(_is_chance, sizes))
        none = "" if is_told else "measured, no effect seen: "
        told.append(f"{none}of {runs} public runs that change it alone, long ones, {failed} failed")
    return "; ".join(told) or NOT_MEASURED


def edge_effects(fields: Iterable[str]) -> list[str]:
    """Return what is known of several fields, a sentence for each kind of answer that they have."""
    kinds: dict[str, list[str]] = {_MOVES: [], _NONE: [], _UNKNOWN: []}
    for field in (one for one in fields if one not in _SCALES):
        moves, measured, runs, failed = _known(field)
        sizes = [x for x in measured if x[1].low is not None]
        if moves or not all(map(_is_chance, sizes)):
            amounts = [text.split(" ")[0] for text in moves]
            amounts = amounts or [f"{size.shift:+.2f}" for _, size in sizes]
            kinds[_MOVES].append(f"{field} ({', '.join(amounts)})")
        elif sizes or (runs and failed <= _HARMLESS * runs):
            pairs = sum(size.pairs for _, size in sizes)
            kinds[_NONE].append(f"{field} ({pairs} pairs, {runs} runs)")
        else:
            kinds[_UNKNOWN].append(field)
    return [f"{kind}: {', '.join(named)}" for kind, named in kinds.items() if named]


def _known(field: str) -> tuple[list[str], list[tuple[str, LeverSize]], int, int]:
    """Return what moves the edge, a clause a column, what pairs of decoders measured, and runs.

    The runs are public ones that change the field alone, and those of them that failed.
    """
    model, table = load_edge_model(), load_lever_table()
    moves = [
        f"{model.edge.weights[column.name]:+.2f} decades "
        f"{'a decade of' if column.unit == 'decades' else 'at most by'} {column.meaning}"
        for column in CONFIG_COLUMNS
        if column.name in _COLUMNS.get(field, ())
    ]
    found = [(one.name, table.size("decoder", one.name)) for one in LEVERS if one.field == field]
    runs, failed = model.card.get("one_setting", {}).get(_CHANGED.get(field), (0, 0))
    return moves, [(name, size) for name, size in found if size is not None], runs, failed


def _is_chance(measured: tuple[str, LeverSize]) -> bool:
    low, high = measured[1].low, measured[1].high
    return low is None or high is None or low <= 0 <= high


def _shown(measured: tuple[str, LeverSize]) -> str:
    name, size = measured
    behind = f"({name}, {size.pairs} pairs of decoders, runs up to {SHORT} steps)"
    if size.low is None or size.high is None:
        return f"measured, {size.shift:+.2f} decades in too few families to tell {behind}"
    none = "no effect beyond chance, " if _is_chance(measured) else ""
    ends = f"[{size.low:+.2f}, {size.high:+.2f}]"
    return f"measured, {none}{size.shift:+.2f} decades {ends} {behind}"
