"""Reads what the model of the edge needs off a configuration, without building the model."""

from __future__ import annotations

from rksp.assessment.risk import edge_inputs
from rksp.classifiers.edge_inputs import CLASSIFIER_VOCABULARY, EdgeInputs, Norm
from rksp.ground.errors import InputError
from rksp.recipe import Recipe

# Types whose blocks normalize after the sum, where the configuration does not say so.
# fmt: off
_POST_NORM_TYPES = (
    "albert", "bart", "bert", "bert-generation", "big_bird", "camembert", "convbert",
    "data2vec-text", "deberta", "deberta-v2", "distilbert", "electra", "ernie", "fnet", "funnel",
    "hubert", "ibert", "layoutlm", "layoutlmv2", "layoutlmv3", "longformer", "luke", "marian",
    "mpnet", "nystromformer", "openai-gpt", "rembert", "roberta", "roformer", "splinter",
    "squeezebert", "tapas", "visual_bert", "wav2vec2", "wavlm", "xlm", "xlm-roberta",
)
# fmt: on


def configured_inputs(config: object, recipe: Recipe, task: str | None = None) -> EdgeInputs:
    """Return the inputs of the edge model from a configuration, without building the model.

    A model of text and images counts as the part that the task needs; an encoder and a decoder
    count as one chain.

    Args:
        config: Of Hugging Face.
        recipe: How the model is to be trained.
        task: What the model predicts, as in `rksp.models.source.Task`.

    Raises:
        InputError: The configuration states no width or depth.
    """
    part = "vision_config" if task == "image-classification" else "text_config"
    config = getattr(config, part, None) or config
    width, depth = _size(config, "hidden_size"), _size(config, "num_hidden_layers")
    vocabulary = _size(config, "vocab_size")
    if vocabulary is None or (task or "").endswith("classification"):
        vocabulary = CLASSIFIER_VOCABULARY
    if width is None or depth is None:
        raise InputError("the configuration states no width or depth")
    if getattr(config, "is_encoder_decoder", False):
        depth += _size(config, "num_decoder_layers", "decoder_layers") or 0
    stages = getattr(config, "depths", None)
    depth = sum(stages) if isinstance(stages, list | tuple) else depth
    is_post = getattr(config, "do_layer_norm_before", True) is False
    is_post |= getattr(config, "model_type", "") in _POST_NORM_TYPES
    is_post &= not getattr(config, "do_stable_layer_norm", False)
    norm: Norm = "post" if is_post else "pre"
    return edge_inputs(recipe, width=width, depth=depth, vocabulary=vocabulary, norm=norm)


def _size(config: object, *names: str) -> int | None:
    """Return the first positive integer among the attributes."""
    sizes = (getattr(config, name, None) for name in names)
    return next((size for size in sizes if isinstance(size, int) and size > 0), None)
