"""The smallest plan and the smallest ladder."""

from __future__ import annotations

from pathlib import Path

import yaml

from lab.ladders.plan import LadderSpec, Plan

TINY = {
    "name": "tiny",
    "seed": 3,
    "ladders": 4,
    "families": {"zoo_pre_ln": 1.0, "zoo_no_norm": 1.0},
    "tasks": {"recall": 1.0},
    "widths": [32],
    "depths": [2],
    "batch_sizes": [4],
    "sequence_lengths": [16],
    "steps": [4],
}


def tiny_plan(**fields: object) -> Plan:
    return Plan.model_validate({**TINY, **fields})


def tiny_spec(**fields: object) -> LadderSpec:
    defaults: dict[str, object] = {
        "family": "zoo_pre_ln",
        "shape": {
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "vocab_size": 32,
            "max_position_embeddings": 8,
        },
        "task": "recall",
        "task_options": {"length": 8, "vocab": 32, "pairs": 2},
        "recipe": {"max_steps": 4, "batch_size": 2, "sequence_length": 8},
        "seed": 5,
        "first_rate": 1e-4,
        "count": 3,
        "step": 1.0,
    }
    return LadderSpec.model_validate({**defaults, **fields})


def write_plan(folder: Path, document: object) -> Path:
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return path
