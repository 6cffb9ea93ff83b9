"""Build small transformers whose every design choice is a switch, and Hugging Face's models."""

from rksp.models.zoo.config import NORMS, ZooConfig
from rksp.models.zoo.members import FAMILIES, build_member, zoo_config
from rksp.models.zoo.transformer import ZooOutput, ZooTransformer

__all__ = [
    "FAMILIES",
    "NORMS",
    "ZooConfig",
    "ZooOutput",
    "ZooTransformer",
    "build_member",
    "zoo_config",
]
