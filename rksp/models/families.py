"""What is known of a model type and its configuration does not say: `families.toml`, a row a type.

To add a type, write its row: its kind, `of=` its lineage, and the fields of `Family` that are true
of it. A type without a row has a gated feed-forward, normalizes before its branches and rotates its
positions, as most do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from rksp.ground.tables import known_word, packaged_toml, row_of

# Decoders and encoders are of text; those of images are fine-tuned at higher rates, and encoders of
# text on few examples.
KINDS = ("decoder", "encoder", "encoder_decoder", "speech", "vision")


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The facts about one model type.

    Attributes:
        kind: One of `KINDS`; None where nothing here depends on it.
        of: The lineage whose fine-tuning runs speak for the type; None for its own.
        two_matrices: The feed-forward layers have two matrices; gated ones have three.
        qk_norm: Queries and keys are normalized.
        post_norm: Blocks normalize after the residual sum.
        parallel: Attention and feed-forward read the same state, and both are added.
        branch_norm: A norm follows every branch, before the residual sum.
        bias_balanced: A bias, not a loss, balances the load of the experts.
        overflows_fp16: Reported to overflow in fp16, having been trained in bf16: unsloth-zoo PRs
            600 and 866, transformers #5651 and #11076, QwenLM/Qwen3 #670 and #868; BLOOM and BLOOMZ
            of 176B, whose smaller ones declare float16 and so are left alone.
        learned_positions: Positions are looked up in a table; beyond its end is an index error.
        reserved_positions: The table's first two rows are not positions.
        relative_positions: Any distance will do.
        no_positions: Attention has no positions, whatever `rope_theta` says.
        own_scales: The code draws the matrices that read the stream by a rule of its own (by width
            or `initializer_factor`), whatever `initializer_range` says.
        unscaled_attention: The code multiplies normalized queries and keys by a scale of 1.
        unit_head: The code draws an untied output layer with a deviation of `initializer_factor`.
    """

    kind: str | None = None
    of: str | None = None
    two_matrices: bool = False
    qk_norm: bool = False
    post_norm: bool = False
    parallel: bool = False
    branch_norm: bool = False
    bias_balanced: bool = False
    overflows_fp16: bool = False
    learned_positions: bool = False
    reserved_positions: bool = False
    relative_positions: bool = False
    no_positions: bool = False
    own_scales: bool = False
    unscaled_attention: bool = False
    unit_head: bool = False


def _row(model_type: str, words: str) -> Family:
    said: dict[str, object] = {}
    where = f"families.toml {model_type}"
    for word in words.split():
        name, is_of, lineage = word.partition("=")
        if word in KINDS:
            said["kind"] = word
        else:
            names = ("of=",) if is_of else (*KINDS, *Family.__slots__)
            known_word(f"{name}=" if is_of else name, names, where=where, noun="word")
            said[name] = lineage if is_of else True
    return row_of(Family, said, where=where)


_WORDS = packaged_toml("rksp.models", "families.toml")
FAMILIES: dict[str, Family] = {name: _row(name, words) for name, words in _WORDS.items()}
_FACTS = tuple(field.name for field in fields(Family) if field.type == "bool")


def family_of(names: Iterable[str]) -> Family:
    """Return what is true of any of these model types: a whole model and its text part."""
    rows = [FAMILIES[name] for name in names if name in FAMILIES]
    said: dict[str, Any] = {fact: any(getattr(row, fact) for row in rows) for fact in _FACTS}
    return Family(kind=next((row.kind for row in rows if row.kind), None), **said)


def lineage_of(model_type: str) -> str:
    """Return the lineage of a model type, as runs of fine-tuning name it; most are their own."""
    row = FAMILIES.get(model_type)
    return model_type if row is None else row.of or model_type
