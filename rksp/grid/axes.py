"""The axes of a grid: their names, their values and the ranges to draw from."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeGuard

from rksp.grid.cell import Cell
from rksp.ground.errors import InputError, nearest
from rksp.ground.factory import is_factory
from rksp.ground.text import many
from rksp.models.configuration import ModelSettings
from rksp.models.resolve import settings_of
from rksp.recipe import Recipe
from rksp.recipe_files.columns import canonical, names_weights
from rksp.recipe_files.parse.content import parse_yaml
from rksp.recipe_files.parse.misread import misread
from rksp.recipe_files.parse.values import Parsed

_SCALARS = {*Recipe.model_fields} - {"decay_milestones", "batch_ramp", "lora_targets"}
_MOST = 1_000_000  # values on one axis
_LARGEST_POWER = 300
_OVERRIDE = re.compile(r"^(?P<name>\+{0,2}[\w./@-]+)=(?P<value>.*)$", re.DOTALL)
# Distributions of W&B; bounds of those without `_values` are natural exponents.
_UNIFORM = re.compile(r"(q_|int_)?uniform|(q_|inv_)?(?P<log>log_)uniform(?P<values>_values)?")
_CALL = re.compile(r"^(?P<name>range|choice|interval|logspace|linspace)\((?P<inside>.*)\)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A continuous or integer range to draw from.

    Attributes:
        kind: `uniform`, `log_uniform`, `normal` or `log_normal`.
        low, high: Bounds, or mean and standard deviation for the normal kinds.
        step: Values are multiples of it, if given.
        whole: Values are whole numbers.
    """

    kind: str
    low: float
    high: float
    step: float | None = None
    whole: bool = False

    def draw(self, source: random.Random) -> float | int:
        """Draw one value."""
        if self.kind == "log_uniform":
            value = math.exp(source.uniform(math.log(self.low), math.log(self.high)))
        elif self.kind == "normal":
            value = source.gauss(self.low, self.high)
        elif self.kind == "log_normal":
            value = math.exp(source.gauss(self.low, self.high))
        elif self.whole:
            return source.randint(int(self.low), int(self.high))
        else:
            value = source.uniform(self.low, self.high)
        if self.step:
            value = round(value / self.step) * self.step
        return round(value) if self.whole else float(f"{value:.6g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Values to draw from, with weights unless all are equally likely."""

    values: tuple[object, ...]
    weights: tuple[float, ...] | None = None

    def draw(self, source: random.Random) -> object:
        """Draw one value.

        Raises:
            InputError: There is none.
        """
        if not self.values:
            raise InputError("An axis of the grid has no values; give it one, or leave it out.")
        return source.choices(self.values, weights=self.weights)[0]


Axis = Choice | Range


def axis_of(name: str, value: object) -> Axis:
    """Convert one entry of a grid's mapping to an axis.

    The entry is a list, a single value, or a W&B parameter (a mapping).

    Raises:
        InputError: A mapping is not a W&B parameter.
    """
    if isinstance(value, Mapping):
        return sweep_axis(name, value)
    return Choice(values=tuple(value) if isinstance(value, list | tuple) else (value,))


def read_override(text: str) -> tuple[str, Axis]:
    """Parse a Hydra-style override.

    Examples: `lr=1e-4,3e-4`, `n_layer=range(2,9,2)`, `x=choice(a,b)`, `lr=logspace(-4,-2,5)`, and
    `lr=interval(1e-4,1e-2)` to draw from.

    Source: Hydra 1.3's override grammar (sweep functions), without modifiers such as `shuffle`;
    `logspace` and `linspace` are additions of rksp. An interval of positive bounds over more than
    a decade is drawn logarithmically.

    Raises:
        InputError: The text is not such an override.
    """
    match = _OVERRIDE.match(text)
    if match is None:
        raise InputError(f"{text!r} is not NAME=VALUES without blanks, such as lr=1e-4,3e-4.")
    name, value = match.group("name", "value")
    name, value = name.lstrip("+"), value.strip()
    call = _CALL.match(value)
    if re.fullmatch(r"0,0\d+", value):
        raise InputError(f"{text!r} lists two values; for one write {name}=0.{value[2:]}.")
    if call is None and re.fullmatch(r"([\d.]+%,?)+", value):
        shares = ",".join(f"{float(one) / 100:g}" for one in value.replace(",", "").split("%")[:-1])
        raise InputError(f"{text!r}: write shares as {name}={shares}.")
    if call is None:
        is_number = re.search(r"\d", value) is not None  # or meant as one
        if is_number and "," not in value and (how := misread(value, name, instead="write")):
            raise InputError(f"{text!r} is no list of values; {how}")
        if other := re.match(r"([A-Za-z_]+)\([^()]*\)$", value):
            known = ("range", "choice", "interval", "logspace", "linspace")
            hint = nearest(other[1], known, count=1) or f"; use {', '.join(known)}."
            raise InputError(f"{text!r}: an axis has no function {other[1]}(){hint}")
        values = _listed(text, value)
        if len(values) == 1 and isinstance(values[0], list) and canonical(name)[1] in _SCALARS:
            values = values[0]
        return name, Choice(values=tuple(values))
    kind, inside = call.group("name", "inside")
    parts = _listed(text, inside)
    if kind == "choice":
        return name, Choice(values=tuple(parts))
    numbers = [part for part in parts if _is_number(part)]
    if len(numbers) < len(parts):
        raise InputError(f"{text!r}: {kind}() takes numbers, with commas between them.")
    return name, _spread(text, kind, numbers)


def _spread(text: str, kind: str, parts: list[float]) -> Axis:
    count: float
    try:
        if kind == "range":
            start, stop, step = {1: (0, *parts, 1), 2: (*parts, 1), 3: tuple(parts)}[len(parts)]
            count = max(0, math.ceil((stop - start) / step))
            if len(parts) == 3 and count == 1:
                raise InputError(
                    f"{text!r}: steps of {step:g} from {start:g} lead past {stop:g} at once; for a "
                    "range of rates write logspace(-4,-2,5)."
                )
        elif kind == "interval":
            low, high = parts
            is_log = low > 0 and high / low > 10
            return Range(kind="log_uniform" if is_log else "uniform", low=low, high=high)
        else:
            start, stop, count = parts
            step = (stop - start) / max(1, count - 1)
    except (KeyError, ValueError, ZeroDivisionError) as error:
        takes = {"range": "START,STOP,STEP", "interval": "LOW,HIGH"}.get(kind, "START,STOP,COUNT")
        raise InputError(f"{text!r}: {kind}() takes {takes}.") from error
    if kind == "logspace" and 0 < start <= 0.1 and 0 < stop < 1:
        ends = ",".join(f"{math.log10(end):.4g}" for end in (start, stop))
        raise InputError(
            f"{text!r}: the bounds of logspace() are powers of ten; write "
            f"logspace({ends},{count:g})."
        )
    if count != int(count) or not 1 <= count <= _MOST:
        raise InputError(f"{text!r} lists {count:g} values; there can be 1 to {_MOST:,}.")
    points = [start + i * step for i in range(int(count))]
    if kind == "logspace":
        if max(map(abs, points)) > _LARGEST_POWER:
            raise InputError(f"{text!r}: the bounds of logspace() are powers of ten.")
        points = [float(f"{10**p:.6g}") for p in points]
    return Choice(values=tuple(points))


def _listed(text: str, value: str) -> list[Parsed]:
    try:
        found = parse_yaml(f"[{value}]") if value.count("(") == value.count(")") else None
    except InputError:
        found = None
    if not isinstance(found, list) or not found or value.endswith(","):
        raise InputError(
            f"{text!r}: a value is empty, or a bracket or quote is not closed; write its values, "
            "such as lr=1e-4,3e-4."
        )
    return found


def flat_parameters(parameters: object, prefix: str = "") -> dict[str, Mapping[str, object]]:
    """Return the definition of each parameter of a W&B sweep by its dotted name.

    Raises:
        InputError: They are not mappings.
    """
    if not isinstance(parameters, Mapping):
        raise InputError(f"Sweep parameters {prefix or 'of the file'} are not a mapping.")
    found: dict[str, Mapping[str, object]] = {}
    for name, definition in parameters.items():
        if not isinstance(definition, Mapping):
            raise InputError(f"Sweep parameter {prefix}{name} has neither values nor a range.")
        if "parameters" in definition:
            found |= flat_parameters(definition["parameters"], f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = definition
    return found


def sweep_axis(name: str, definition: Mapping[str, object]) -> Axis:
    """Convert one parameter of a W&B sweep to an axis.

    The definition holds `value`, `values` (with `probabilities`) or a distribution.

    Source: Weights & Biases, "Sweep configuration options": bounds of `log_uniform` are natural
    exponents, those of `log_uniform_values` the values themselves.

    Raises:
        InputError: The definition cannot be read.
    """
    if "value" in definition:
        return Choice(values=(definition["value"],))
    if "values" in definition:
        values, weights = definition["values"], definition.get("probabilities")
        if not isinstance(values, list) or not values:
            raise InputError(f"Sweep parameter {name}: 'values' is not a list of values.")
        if weights is None:
            return Choice(values=tuple(values))
        if not _are_weights(weights, len(values)):
            raise InputError(
                f"Sweep parameter {name}: 'probabilities' must give one number for each value."
            )
        return Choice(values=tuple(values), weights=tuple(weights))
    bounds: list[Any] = [definition.get(key) for key in ("min", "max", "q")]
    low, high, step = bounds
    whole = isinstance(low, int) and isinstance(high, int)
    kind = str(definition.get("distribution") or ("int_uniform" if whole else "uniform"))
    known = _UNIFORM.fullmatch(kind)
    if "normal" in kind:
        plain = "log_normal" if "log" in kind else "normal"
        low, high = definition.get("mu", 0.0), definition.get("sigma", 1.0)
    elif known is None:
        raise InputError(f"Sweep parameter {name}: rksp does not know distribution {kind!r}.")
    else:
        is_log, are_values = known.group("log", "values")
        plain = "log_uniform" if is_log else "uniform"
        if is_log and not are_values:
            low, high = (math.exp(v) if _is_number(v) and v < 700 else None for v in (low, high))
    if not all(map(_is_number, (low, high, step or 1))):
        raise InputError(f"Sweep parameter {name} has neither values nor a range from min to max.")
    if ("normal" not in plain and low > high) or (plain == "log_uniform" and low <= 0):
        raise InputError(f"Sweep parameter {name}: there is no {kind} from {low:g} to {high:g}.")
    return Range(kind=plain, low=low, high=high, step=step, whole=kind == "int_uniform")


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _are_weights(weights: object, count: int) -> TypeGuard[list[float]]:
    return (
        isinstance(weights, list)
        and len(weights) == count
        and all(_is_number(weight) and weight >= 0 for weight in weights)
        and sum(weights) > 0
    )


class Columns:
    """Tells the columns that set a cell's recipe, model or seed from metrics and names.

    Attributes:
        ignored: The names of the others, of every row so far.
    """

    def __init__(self, *, allow_hub: bool = False) -> None:
        self.ignored: set[str] = set()
        self._settings = lru_cache(lambda target: settings_of(target, allow_hub=allow_hub))

    def chosen(self, row: Mapping[str, object], target: str | None) -> dict[str, object]:
        """Return what a row sets.

        A column without a prefix is a setting of the model if the configuration of the row's
        target has it. Beside stored weights it counts only where it differs from theirs.

        Args:
            row: Values by column.
            target: The model, if the row names none.
        """
        own = next((str(row[n]) for n in ("target", *row) if _is_target(n) and n in row), target)
        known = self._settings(own) if own is not None else None
        point = {}
        for name, value in row.items():
            kind, setting = canonical(name)
            if kind == "set" and not name.startswith("set."):
                if known is None or setting not in known:
                    self.ignored.add(name)
                    continue
                value = _typed(value, known.value(setting))
                if known.is_stored and value == known.value(setting):
                    continue
            elif _names_target_again(name, value, row):
                self.ignored.add(name)
                continue
            point[name] = value
        return point

    def notes(self) -> list[str]:
        """Return a note that names the ignored columns; none if there are none."""
        names = ", ".join(sorted(self.ignored))
        said = f"Ignored columns (neither recipe nor settings of the model): {names}."
        return [said] if names else []


def _is_target(name: str) -> bool:
    return canonical(name)[0] == "target"


def _names_target_again(name: str, value: object, row: Mapping[str, object]) -> bool:
    """Tell whether a column adds nothing to `target`; the name of its weights adds that."""
    if not _is_target(name) or name == "target" or "target" not in row:
        return False
    return value != row["target"] or not names_weights(name)


def _typed(value: object, like: object) -> object:
    """Convert 2.0 to 2 where the setting is a whole number: a column with gaps holds floats."""
    is_whole = isinstance(like, int) and not isinstance(like, bool)
    return int(value) if is_whole and isinstance(value, float) and value.is_integer() else value


def check_names(cells: Sequence[Cell], *, allow_hub: bool = False) -> tuple[str, ...]:
    """Return notes on the settings of a grid: what a name means, and which cells cannot run.

    Args:
        cells: The cells of the grid.
        allow_hub: Fetch the configuration of a Hub model that the cache lacks.

    Raises:
        InputError: No cell can run, because each sets something that its model does not have.
    """
    settings: dict[str, ModelSettings | None] = {}
    refused: Counter[str] = Counter()
    meant: dict[str, None] = {}
    for cell in cells:
        if not cell.overrides or is_factory(cell.target):  # a factory refuses every setting
            continue
        if cell.target not in settings:
            settings[cell.target] = settings_of(cell.target, allow_hub=allow_hub)
        known = settings[cell.target]
        if known is None:  # the worker says what is wrong with the target
            continue
        unknown = [name for name in cell.overrides if name not in known]
        if unknown:
            name = unknown[0]
            refused[
                f"{name} is neither a field of the recipe nor a setting of {cell.target}"
                f"{known.close(name)} Use --ignore {name} to leave the axis out."
            ] += 1
        elif "dropout" in cell.overrides and known.dropouts:
            meant[f"dropout sets {', '.join(known.dropouts)} of {cell.target}."] = None
    if sum(refused.values()) == len(cells) and cells:
        raise InputError(" ".join(refused))
    stopped = (f"{many(n, 'cell')} cannot run: {why}" for why, n in refused.items())
    return (*meant, *stopped)
