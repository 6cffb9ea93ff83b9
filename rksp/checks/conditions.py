"""The conditions of an advisory, each true, false or not known of a run."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rksp.models.declared import EXPERTS, Declared, setting
from rksp.recipe_files.said.facts import Fact, Facts

_COMPARED = re.compile(r"(>=|<=|!=|>|<)\s*(\d[\d.e+-]*)")
_OPERATORS = {">=": operator.ge, "<=": operator.le, "!=": operator.ne, ">": operator.gt,
              "<": operator.lt}  # fmt: skip
GIVEN = ("given", "set")  # the setting has a value, whatever it is


@dataclass(frozen=True, slots=True)
class Answer:
    """What is known of some conditions together.

    Attributes:
        holds: True, False, or None where that is not known.
        by: The keys that made it true.
        lacks: The keys whose values are not known and would decide.
    """

    holds: bool | None
    by: tuple[str, ...] = ()
    lacks: tuple[str, ...] = field(default=())


def answer(when: Mapping[str, Any], facts: Facts) -> Answer:
    """Return whether all conditions hold; `any` holds a list of alternatives.

    A condition is a value, a list of which one must be there (null: left at the default), a
    comparison such as `>1`, or `given`. What one condition makes false stays false, whatever is not
    known of the others.
    """
    found = [_alternatives(wanted, facts) if key == "any" else _one(key, wanted, facts)
             for key, wanted in when.items()]  # fmt: skip
    if any(one.holds is False for one in found):
        return Answer(False)
    lacks = _joined(one.lacks for one in found)
    is_known = all(one.holds for one in found)
    return Answer(True if is_known else None, _joined(one.by for one in found), lacks)


def _alternatives(choices: list[Mapping[str, Any]], facts: Facts) -> Answer:
    found = [answer(choice, facts) for choice in choices]
    true = [one for one in found if one.holds]
    if true:
        return true[0]
    unknown = [one for one in found if one.holds is None]
    return Answer(None, (), _joined(one.lacks for one in unknown)) if unknown else Answer(False)


def _joined(parts: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for part in parts for name in part))


def _one(key: str, wanted: Any, facts: Facts) -> Answer:
    fact = facts.get(key)
    holds = None if fact is None else _any(key, wanted, fact)
    if holds is None:
        return Answer(None, (), (key,))
    return Answer(holds, (key,) if holds else ())


def _any(key: str, wanted: Any, fact: Fact) -> bool | None:
    """Return whether one of the values of a fact is wanted."""
    choices = wanted if isinstance(wanted, list) else [wanted]
    found = [_matches(key, choice, value) for choice in choices for value in fact.values]
    return True if True in found else None if None in found else False


def _matches(key: str, wanted: Any, value: Any) -> bool | None:
    compared = _COMPARED.fullmatch(wanted) if isinstance(wanted, str) else None
    if compared is not None:
        if value is None:  # a default that is off; a comparison with a usual value needs it
            return None if compared[1] == "!=" else False
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return bool(_OPERATORS[compared[1]](value, float(compared[2])))
    if wanted in GIVEN:
        return value is not None
    if key == "gpu":
        return re.search(rf"\b{re.escape(wanted)}", str(value), re.IGNORECASE) is not None
    if wanted is None or value is None:
        return wanted is value or (wanted is False and value is None)
    if isinstance(wanted, str) and isinstance(value, str):
        return wanted.lower() == value.lower()
    return type(wanted) is type(value) and wanted == value


def in_force(settings: Mapping[str, Any], facts: Facts) -> bool:
    """Return True if all settings of a fix are known to be there already."""
    known = [facts.get(key.rpartition(".")[2]) for key in settings]
    return bool(known) and all(
        fact is not None and wanted in fact.values
        for wanted, fact in zip(settings.values(), known, strict=True)
    )


def model_facts(config: object, task: str | None = None) -> dict[str, Fact]:
    """Return what a configuration shows of the model; nothing without one."""
    if config is None:
        return {}
    said = Declared(config, task)
    types = {str(setting(part, "model_type") or "") for part in (said.config, said.part)} - {""}
    scaling = said.get("rope_scaling", "rope_parameters")
    stored = str(said.get("dtype", "torch_dtype") or "").removeprefix("torch.")
    found = {
        "model_type": tuple(sorted(types)),
        "head_dim": said.number("head_dim"),
        "num_key_value_heads": said.number("num_key_value_heads"),
        "tied_weights": said.get("tie_word_embeddings"),
        "stored_dtype": {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}.get(stored),
        "output_router_logits": said.get("output_router_logits"),
    }
    facts = {
        name: Fact(value if isinstance(value, tuple) else (value,))
        for name, value in found.items()
        if value not in (None, ())
    }
    facts["moe"] = Fact((bool(said.get(*EXPERTS)),))
    facts["vision"] = Fact((setting(config, "vision_config") is not None,))
    kind = scaling.get("rope_type", scaling.get("type")) if isinstance(scaling, dict) else None
    facts["rope_type"] = Fact((kind,))
    if "model_type" in facts:
        said_type = f"model type {', '.join(facts['model_type'].values)}"
        facts["model_type"] = Fact(facts["model_type"].values, said_type)
    return facts


def gpu_facts(name: str | None) -> dict[str, Fact]:
    """Return what the name of an accelerator shows, such as `h100` or `NVIDIA H100 80GB HBM3`."""
    if not name:
        return {}
    is_amd = re.search(r"\bMI[0-9]{3}|\bRX |Radeon|gfx", name, re.IGNORECASE)
    is_apple = re.search(r"\bM[1-9]\b|apple|mps", name, re.IGNORECASE)
    device = "rocm" if is_amd else "mps" if is_apple else "cuda"
    return {"gpu": Fact((name,), f"GPU {name}"), "device": Fact((device,))}
