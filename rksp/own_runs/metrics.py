"""Which of a tracker's metrics is the loss, and in which unit."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from rksp.ground.text import words
from rksp.recipe_files.columns import without_unit

# The first that a run has counts. Hugging Face's `train_loss` is a mean over the whole run, and
# stands beside `train/loss`, the last one.
_TRAINING = words(
    "final_loss final_train_loss train/loss loss lm_loss train_loss_step training_loss train_loss "
    "train_loss_epoch loss/train metrics/loss"
)
_HELD_OUT = words(
    "val/loss val_loss eval/loss eval_loss validation/loss validation_loss valid_loss valid/loss "
    "dev_loss test_loss loss/val val_loss_epoch"
)
LOSSES = (*_TRAINING, *_HELD_OUT)
_RATES = words("learning_rate train/learning_rate lr train/lr optimizer/lr lr_scheduler/lr")
_RANK = {name: place for place, name in enumerate(LOSSES)}
_PREFIXES = ("metrics.", "summary.", "metric.")
_EDGE = r"[/_.\s()\[\]-]"  # of a word in a name
_PER_BYTE = re.compile(rf"(^|{_EDGE})(bpb|bpc|bits[_ ]per[_ ](byte|char\w*))({_EDGE}|$)", re.I)
_BITS = re.compile(rf"(^|{_EDGE})bits?({_EDGE}|$)", re.I)
_PERPLEXITY = re.compile(rf"(^|{_EDGE})(ppl|perplexity)({_EDGE}|$)", re.I)

_GAIN = re.compile(
    rf"(^|{_EDGE}|_)(acc|accuracy|f1|bleu|rouge\w*|auc|auroc|reward\w*|mfu|throughput)({_EDGE}|$)",
    re.I,
)


def is_gain(name: str) -> bool:
    """Tell by its name whether more of a metric is better, so that it is no loss."""
    return _GAIN.search(name) is not None


def _plain(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return without_unit(name).lower().replace(" ", "_").replace("-", "_")


def is_loss(name: str) -> bool:
    """Tell whether a metric is a loss by its name."""
    return _plain(name) in _RANK


def is_rate(name: str) -> bool:
    """Tell whether a metric is the learning rate."""
    return _plain(name) in _RATES


def loss_among(names: Iterable[str]) -> str | None:
    """Return the name of the loss; training comes before held-out data, as in rksp's own labels."""
    ranked = [(_RANK[_plain(name)], name) for name in names if _plain(name) in _RANK]
    return min(ranked)[1] if ranked else None


def in_nats(name: str, value: float) -> float:
    """Return a value of a metric in nats; those per byte are taken as they are.

    Bits are 0.69 nats, and a perplexity is the exponential of the loss.
    """
    if _PERPLEXITY.search(name):
        return math.log(value) if value > 0 else math.nan
    return value * math.log(2) if _BITS.search(name) or _PER_BYTE.search(name) else value
