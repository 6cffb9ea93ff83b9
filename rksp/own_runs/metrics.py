"""What the names of metrics mean: a loss, one on held-out data, a reward, a rate, a norm."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from rksp.ground.text import words
from rksp.recipe_files.columns import without_unit

_TOKEN = re.compile(r"[fF]1(?!\d)|[A-Z]?[a-z]+?(?=loss(?![a-z]))|[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_LOSS = frozenset(
    words(
        "loss losses nll xent ce bce cross perplexity ppl bpb bpc mse mae rmse elbo cost error "
        "objf trl tel"  # of k2; of llm.c on training and on test data
    )
)
_PAID = frozenset(words("reward rewards rew return returns"))  # for what a run does by trial
_REWARD = _PAID.union(words("score scores"))
# Of these more is better; they are judged where nothing else is logged.
_SCORES = frozenset(words("acc accuracy f1 bleu auc auroc map iou psnr"))
_GAINS = _SCORES.union(words("reward rewards rouge mfu throughput"))
_BITS, _PERPLEXITY = frozenset(words("bit bits bpb bpc")), frozenset(words("ppl perplexity"))
_RATES = words("learning_rate train/learning_rate lr train/lr optimizer/lr lr_scheduler/lr")
_PREFIXES = ("metrics.", "summary.", "metric.")
_BARE = ("train", "val", "value")  # as some call the loss itself
_NO_LOSS = frozenset(
    words(
        "non finite excess scale scaler weight mask fn function type name coef ratio time count "
        "min max std best n num steps free mode lr"
    )
)
_HELD_OUT = frozenset(words("val valid validation eval evaluation test dev heldout held tel"))
# Parts of a loss, or terms that stand beside it: only where nothing else is logged.
_TERMS = frozenset(
    words(
        "aux auxiliary balance balancing load z router kl value policy pg entropy vf critic commit "
        "scaled reg regularization box cls dfl obj gen disc gan g d adv mtp distill ema avg smooth "
        "running"
    )
)
_PAIRS = frozenset(words("chosen rejected margins margin accuracies accuracy std min max best"))
_POLICY = frozenset(words("pg policy actor"))
_LEARNS_BY_TRIAL = frozenset(
    words(
        "pg policy ppo grpo advantage advantages rollout completion completions episode ep clip "
        "clipfrac kl critic actor"
    )
)


def tokens_of(name: str) -> frozenset[str]:
    """Return the words of a metric's name."""
    return frozenset(part.lower() for part in _TOKEN.findall(name))


@lru_cache(maxsize=4096)
def is_metric(name: str) -> bool:
    """Tell whether a name is that of a loss or a reward, by its words alone."""
    found = tokens_of(name)
    is_named = bool(found & (_LOSS | _REWARD | _SCORES)) and not found & _NO_LOSS
    return is_named or name.lower() in _BARE


@lru_cache(maxsize=4096)
def is_held_out(name: str) -> bool:
    """Tell whether a metric is of data that is not trained on."""
    return bool(tokens_of(name) & _HELD_OUT)


def training_loss(names: Iterable[str]) -> str | None:
    """Return the training loss among metrics: the whole before its terms, plain before long."""
    return _first(names, lambda name: not is_held_out(name))


def held_out_loss(names: Iterable[str]) -> str | None:
    """Return the loss on held-out data among metrics."""
    return _first(names, is_held_out)


def _first(names: Iterable[str], wanted: Callable[[str], bool]) -> str | None:
    ranked = {}
    for name in filter(wanted, names):
        found = tokens_of(name)
        if (found & _LOSS and not found & _NO_LOSS) or name.lower() in _BARE:
            is_other = not found & {"loss", "losses"}  # such as a perplexity beside the loss
            is_mean = "/" not in name  # train_loss of Hugging Face, beside train/loss
            is_term = bool(found & _TERMS)
            ranked[name] = (is_term, is_other, is_perplexity(name), len(found), is_mean)
    return min(ranked, key=ranked.__getitem__, default=None)


_OPPONENTS = tuple(map(words, ("d dis disc discriminator critic", "g gen generator")))


def is_opposed(names: Iterable[str]) -> bool:
    """Tell whether the losses among metrics are those of a policy, or of two that play a game."""
    found = [tokens_of(name) for name in names if is_metric(name)]
    is_game = all(any(tokens & {*side} for tokens in found) for side in _OPPONENTS)
    return is_game or any(tokens & _POLICY for tokens in found)


def reward_among(names: Sequence[str]) -> str | None:
    """Return the mean reward of a run that learns by trial, or a score where there is no loss.

    None for all other training.
    """
    paid = any(found & _PAID and not found & _PAIRS for found in map(tokens_of, names))
    if paid or any(tokens_of(name) & _LEARNS_BY_TRIAL for name in names):
        wanted, barred = _REWARD, _PAIRS | _HELD_OUT
    elif _first(names, lambda _: True) is None:
        wanted, barred = _REWARD | _SCORES, frozenset(words("std min max best"))
    else:
        return None
    found = {name: tokens_of(name) for name in names}
    kept = [name for name in names if found[name] & wanted and not found[name] & barred]
    return min(kept, key=lambda n: (len(found[n] - {"mean"}), "mean" not in found[n]), default=None)


def loss_among(names: Iterable[str]) -> str | None:
    """Return the name of the loss; training comes before held-out data, as in rksp's own labels."""
    whole = [name for name in names if name.lower() not in _BARE]
    return training_loss(whole) or held_out_loss(whole)


def is_gain(name: str) -> bool:
    """Tell by its name whether more of a metric is better, so that it is no loss."""
    return bool(tokens_of(name) & _GAINS)


def is_rate(name: str) -> bool:
    """Tell whether a metric is the learning rate."""
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return without_unit(name).lower().replace(" ", "_").replace("-", "_") in _RATES


@lru_cache(maxsize=4096)
def is_norm(name: str) -> bool:
    """Tell whether a metric is the norm of all gradients."""
    found = tokens_of(name.replace("gnorm", "grad_norm")) - {"train", "total", "step", "global"}
    return found in ({"norm"}, {"grad", "norm"}, {"gradient", "norm"})


def is_perplexity(name: str) -> bool:
    """Tell whether a metric is the exponential of a loss."""
    return bool(tokens_of(name) & _PERPLEXITY)


def is_of_language(name: str) -> bool:
    """Tell whether a metric is one of language models alone: a perplexity, or of tokens."""
    return bool(tokens_of(name) & (_PERPLEXITY | {"token", "tokens"}))


def in_nats(name: str, value: float) -> float:
    """Return a value of a metric in nats; those per byte are taken as they are.

    Bits are 0.69 nats, and a perplexity is the exponential of the loss.
    """
    if is_perplexity(name):
        return math.log(value) if value > 0 else math.nan
    return value * math.log(2) if tokens_of(name) & _BITS else value
