"""Equal configurations answer alike, whatever their type is called."""

from __future__ import annotations

import pytest

from rksp.assessment.risk import kind_of
from rksp.models.declared import Declared

_LLAMA = {
    "hidden_act": "silu",
    "hidden_size": 2048,
    "num_hidden_layers": 24,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
}


def _family(**config: object) -> str:
    return kind_of(Declared(_LLAMA | config))["family"]


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2", "smollm3", "granite", "my_own"])
def test_what_has_llamas_blocks_is_a_llama(name):
    assert _family(model_type=name) == "llama"


@pytest.mark.parametrize(
    "differing",
    [
        {"model_type": "qwen3"},
        {"model_type": "granite", "residual_multiplier": 0.22},
        {"model_type": "mixtral", "num_local_experts": 8},
        {"model_type": "gemma", "hidden_act": "gelu_pytorch_tanh"},
        {"model_type": "cohere"},
        {"model_type": "jamba", "mamba_d_state": 16},
    ],
)
def test_what_differs_keeps_its_name(differing):
    assert _family(**differing) == differing["model_type"]
