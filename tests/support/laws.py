"""Models of many kinds, and runs of them, along which the answer moves as physics does."""

from __future__ import annotations

from rksp.assessment.risk import edge_inputs
from rksp.classifiers.edge_inputs import EdgeInputs
from rksp.recipe import Recipe

_DECODER = {"vocabulary": 50_257, "norm": "pre"}
MODELS = {
    "gpt2": {**_DECODER, "width": 768, "depth": 12, "family": "gpt2"},
    "gpt2-small": {**_DECODER, "width": 256, "depth": 4, "family": "gpt2"},
    "llama": {**_DECODER, "width": 2048, "depth": 24, "family": "llama"},
    "llama-7b": {**_DECODER, "width": 4096, "depth": 32, "family": "llama"},
    "qk-norm": {**_DECODER, "width": 1024, "depth": 28, "normalizes_qk": True, "family": "qwen3"},
    "parallel": {**_DECODER, "width": 1024, "depth": 16, "is_parallel": True, "family": "gpt_neox"},
    "branch-norm": {**_DECODER, "width": 512, "depth": 8, "normalizes_branches": True},
    "post-norm": {**_DECODER, "width": 512, "depth": 6, "norm": "post"},
    "bert": {
        **{"width": 768, "depth": 12, "vocabulary": 30_522, "norm": "post", "family": "bert"},
        **{"predicts_next": False, "masks": True},
    },
    "vit": {
        **{"width": 512, "depth": 6, "vocabulary": 256, "norm": "pre", "family": "vit"},
        "predicts_next": False,
    },
    "characters": {"width": 128, "depth": 4, "vocabulary": 65, "norm": "pre", "family": "gpt2"},
    "own": {"width": 96, "depth": 5, "vocabulary": 600, "norm": "none", "init_std": 0.02},
}
_OF_MODEL = ("width", "depth", "vocabulary", "init_std")


def inputs(model: str, steps: int, **settings: float) -> EdgeInputs:
    """Return the inputs of a model at a horizon; `settings` stand in place of the usual ones."""
    of_model = {name: settings.pop(name) for name in _OF_MODEL if name in settings}
    steps = settings.pop("max_steps", steps)
    warmup = settings.pop("warmup_share", 0.05)
    usual = {"batch_size": 32, "sequence_length": 256, "schedule": "cosine"}
    recipe = Recipe(**usual | settings, max_steps=steps, warmup_steps=int(warmup * steps))
    return edge_inputs(recipe, **MODELS[model] | of_model)
