"""Build small transformers whose every design choice is a switch, and Hugging Face's models."""

from lab.zoo.config import NORMS, ZooConfig
from lab.zoo.members import FAMILIES, build_member, zoo_config
from lab.zoo.transformer import ZooOutput, ZooTransformer

__all__ = [
    "FAMILIES",
    "NORMS",
    "ZooConfig",
    "ZooOutput",
    "ZooTransformer",
    "build_member",
    "zoo_config",
]
