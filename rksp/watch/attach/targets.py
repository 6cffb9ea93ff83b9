"""The targets of a loss, read from its graph: the model's own cross-entropy, and their counts."""

from __future__ import annotations

import contextlib
import math
import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.nn import functional as F
from torch.utils._pytree import keystr, tree_leaves_with_path

from rksp.watch.expected import Reference, entropy_of, information_of

_FARTHEST = 64  # nodes of the graph between a loss and its cross-entropy
_COUNTED = 300  # steps, and
_MOST = 4_000_000  # targets that are counted
_FOLDED = 128  # words of a pair, of more the number modulo it
_PAIRS = 20  # counts a cell, for an entropy of pairs
_FEWEST = 5_000  # pairs for what one tells of the other, each modulo
_COARSE = 32
_FEW, _DRIFT = 20, 1.5  # steps, factor between the variances of their halves
_NOT_WORDS = re.compile("mask|label|target|position|type", re.IGNORECASE)
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8)


class CrossEntropy(NamedTuple):
    """A cross-entropy in a graph.

    Attributes:
        targets: `[rows]`.
        ignored: The target that does not count.
        total, number: Sum of the losses of those that count, in nats, and their number.
        classes: Number of classes.
        is_twice: Whether what it takes for logits went through a softmax already.
        is_one: Whether all targets that count are the same.
    """

    targets: Tensor
    ignored: int
    total: Tensor
    number: Tensor
    classes: int
    is_twice: bool
    is_one: Tensor

    def again(self, output: Tensor) -> Tensor | None:
        """Return the loss of other logits `[…, tokens, classes]`; None of those of another size.

        The script may have shifted them by one token.
        """
        for part in (output, output[..., :-1, :]):
            if part[..., 0].numel() == self.targets.numel():
                rows = part.flatten(0, -2).float()
                return F.cross_entropy(rows, self.targets, ignore_index=self.ignored)
        return None


class SquaredError(NamedTuple):
    """A mean square in a graph: its targets, the sum of the squares, and their number."""

    targets: Tensor
    total: Tensor
    number: Tensor

    def again(self, output: Tensor) -> Tensor | None:
        """Return the loss of another output; None of one of another size."""
        if output.numel() != self.targets.numel():
            return None
        return F.mse_loss(output.reshape(self.targets.shape).float(), self.targets.float())


Criterion = CrossEntropy | SquaredError


def criteria_of(loss: Tensor) -> list[Criterion]:
    """Return the criteria in the graph of a loss: cross-entropies of one kind, or a mean square.

    Of cross-entropies of different numbers of classes nothing tells which is the model's: none is
    returned, and none of several squares.
    """
    nodes = deque([loss.grad_fn])
    seen, found = set(), []
    for _ in range(_FARTHEST):
        node = nodes.popleft() if nodes else None
        if node is None:
            break
        if node in seen:
            continue
        seen.add(node)
        if node.name().startswith(("NllLoss", "MseLoss")):
            found.append(node)
            continue
        nodes += [parent for parent, _ in node.next_functions if parent is not None]
    with contextlib.suppress(RuntimeError):  # the script wrote to them: torch will say so
        if [node.name()[:3] for node in found] == ["Mse"]:
            return [_squares(found[0])]
        if all(node.name().startswith("Nll") for node in found):
            read = [_read(node) for node in found]
            return [*read] if len({one.classes for one in read}) == 1 else []
    return []


def _squares(node: Any) -> SquaredError:
    output, targets = node._saved_self.detach(), node._saved_target.detach()
    squares = (output.float() - targets.float()).square()
    return SquaredError(targets, squares.sum(), torch.tensor(squares.numel()))


def _read(node: Any) -> CrossEntropy:
    # Autograd keeps the index, which may be negative, as an unsigned number.
    ignored = (node._saved_ignore_index + 2**63) % 2**64 - 2**63
    rows, targets = node._saved_self.detach(), node._saved_target.detach()
    if rows.dim() == 1:
        rows, targets = rows[None], targets[None]
    if rows.dim() > 2:
        rows = rows.movedim(1, -1).flatten(0, -2)
    targets = targets.flatten()
    counts = targets != ignored
    own = rows.gather(1, targets.where(counts, 0)[:, None])[:, 0].float()
    total = -own.where(counts, 0.0).sum()
    return CrossEntropy(
        targets=targets,
        ignored=ignored,
        total=total,
        number=counts.sum(),
        classes=rows.shape[1],
        is_twice=_follows_softmax(node),
        is_one=((targets == targets.where(counts, -1).max()) | ~counts).all(),
    )


def _follows_softmax(node: Node | None) -> bool:
    """Tell whether a softmax, and no product, lies directly before the logarithm of a softmax."""
    names: list[str] = []
    while node is not None and len(names) < 8:
        parents = [parent for parent, _ in node.next_functions if parent is not None]
        node = parents[0] if len(parents) == 1 else None
        names.append("" if node is None else node.name())
    plain = ("LogSoftmax", "View", "Reshape", "ToCopy", "Transpose", "Permute", "Clone", "Slice")
    for name in names:
        if name.startswith("Softmax"):
            return True
        if not name.startswith((*plain, "Unsafe", "Alias")):
            return False
    return False


class Targets:
    """Counts the targets of a run, and knows the model's own loss of the present step.

    Attributes:
        own: The model's mean cross-entropy of the step, in nats, or its mean square; None where it
            has neither.
        masked: Whether every target of the step is one that does not count.
        is_one: Whether all that count are the same.
        reference: What the counts say; None before a target was seen.
        repeats: Steps in a row with the same targets.
    """

    def __init__(self) -> None:
        self.own: float | None = None
        self.masked = self.is_twice = self.is_one = False
        self._ahead = np.zeros((3, 2))  # how many, and of how many
        self.repeats = 0
        self._last: bytes = b""
        self._is_matching = False
        self._dense = np.zeros(2)
        self._counts: np.ndarray | None = None
        self._pairs = np.zeros((_FOLDED, _FOLDED), np.int64)
        self._passes: list[tuple[Criterion, list[Tensor]]] = []
        self._moments: list[tuple[float, float]] = []  # of a step's targets: mean, and of squares
        self._steps = 0
        self.rows: int | None = None  # targets of the step that count

    def begin(self) -> None:
        """Begin a step."""
        self._passes, self.own, self.masked = [], None, False

    def add(
        self, found: Sequence[Criterion], args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> None:
        """Add the criteria of a pass with these inputs."""
        words = words_of(args, kwargs)
        self._passes += [(one, words) for one in found]

    @torch.no_grad()
    def end(self) -> None:
        """Know the step's own loss, and count its targets."""
        if not self._passes:
            return
        count = sum(int(one.number) for one, _ in self._passes)
        self.rows = count
        self.masked = count == 0
        if count:
            self.own = sum(float(one.total) for one, _ in self._passes) / count
        known = [(one, words) for one, words in self._passes if isinstance(one, CrossEntropy)]
        squares = [one.targets for one, _ in self._passes if isinstance(one, SquaredError)]
        self.is_one = count > 0 and bool(known) and all(bool(one.is_one) for one, _ in known)
        self.is_twice = bool(known) and all(one.is_twice for one, _ in known)
        self._steps += 1
        if self._steps <= _COUNTED and (self._counts is None or self._counts.sum() < _MOST):
            for one, words in known:
                self._count(one, words)
            if squares:
                flat = torch.cat([one.flatten().float() for one in squares])
                self._moments.append((float(flat.mean()), float(flat.square().mean())))
            content = self._passes[0][0].targets.cpu().numpy().tobytes()
            self.repeats = self.repeats + 1 if content == self._last else 0
            self._last = content
        self._passes = []

    def _count(self, one: CrossEntropy, given: Sequence[Tensor]) -> None:
        targets = one.targets.cpu().numpy()
        counts = targets != one.ignored
        if self._counts is None or len(self._counts) != one.classes:
            self._counts = np.zeros(one.classes, np.int64)
        self._is_matching = len(targets) == one.classes == len(np.unique(targets))
        inside = counts & (targets >= 0) & (targets < one.classes)
        self._counts += np.bincount(targets[inside], minlength=one.classes)
        aligned = _aligned(given, targets)
        # Of an encoder and a decoder that makes its own inputs, a target for every second word.
        fewest = len(targets) if aligned else max((x.numel() for x in given), default=0)
        self._dense += inside.sum() * bool(given), max(fewest, len(targets))
        if aligned is not None:
            words, before = aligned
            x, y = before[inside], targets[inside]
            shape = (len(words), -1)
            rows, asked = before.reshape(shape), targets.reshape(shape)
            for ahead, share in enumerate(self._ahead):
                length = rows.shape[1] - ahead
                right = asked[:, :length] != one.ignored
                share += (rows[:, ahead:] == asked[:, :length])[right].sum(), right.sum()
            code = (x % _FOLDED) * _FOLDED + y % _FOLDED
            self._pairs += np.bincount(code, minlength=_FOLDED**2).reshape(_FOLDED, _FOLDED)

    @property
    def reference(self) -> Reference | None:
        """What is known of the targets."""
        if (spread := self._spread) is not None:
            return Reference(classes=0, spread=spread, rows=self.rows)
        if self._counts is None or not self._counts.sum():
            return None
        pairs = None
        classes, total = len(self._counts), self._pairs.sum()
        if classes <= _FOLDED and total > _PAIRS * np.count_nonzero(self._pairs):
            pairs = entropy_of(self._pairs.ravel()) - entropy_of(self._pairs.sum(1))
        return Reference(
            classes=classes,
            entropy=entropy_of(self._counts),
            pairs=pairs,
            information=self.information,
            is_dense=self.is_dense,
            rows=self.rows,
            is_matching=self._is_matching,
        )

    @property
    def ahead(self) -> list[float]:
        """The shares of targets that are the token at their own place, one and two ahead."""
        return [hits / max(of, 1) for hits, of in self._ahead.tolist()]

    @property
    def is_dense(self) -> bool:
        """Whether every token has a target, as in language models."""
        return bool(self._dense[0] > self._dense[1] / 2)

    @property
    def _spread(self) -> float | None:
        """The variance of a regression's targets; infinite where it drifts, as of returns."""
        steps = np.array(self._moments).reshape(-1, 2)
        if not len(steps):
            return None
        known = float(steps[:, 1].mean() - steps[:, 0].mean() ** 2)
        if len(steps) < _FEW:
            return known
        halves = (steps[: len(steps) // 2], steps[len(steps) // 2 :])
        means, squares = np.array([half.mean(0) for half in halves]).T
        early, late = squares - means**2
        is_steady = _DRIFT * early > late > early / _DRIFT and np.ptp(means) ** 2 < known / 4
        return known if is_steady else math.inf

    @property
    def kinds(self) -> tuple[int, int]:
        """How many different targets were seen, and how many targets."""
        counts = np.zeros(0) if self._counts is None else self._counts
        return int(np.count_nonzero(counts)), int(counts.sum())

    @property
    def most(self) -> tuple[int, float]:
        """The most frequent target, and its share."""
        if self._counts is None:
            return 0, 0.0
        top = int(self._counts.argmax())
        return top, float(self._counts[top] / max(self._counts.sum(), 1))

    @property
    def information(self) -> float | None:
        """What the token at a target's place tells of it, in nats; None if few were seen."""
        if not self.is_dense or self._pairs.sum() < _FEWEST:
            return None
        folds = _FOLDED // _COARSE
        return information_of(self._pairs.reshape(folds, _COARSE, folds, _COARSE).sum((0, 2)))


def words_of(args: tuple[object, ...], kwargs: Mapping[str, object]) -> list[Tensor]:
    """Return the inputs of a pass that may be words, by shape, type and name.

    A batch may come whole, with its labels, as to what wraps a module of Lightning.
    """
    leaves = tree_leaves_with_path((args, dict(kwargs)))
    named = [x for at, x in leaves if isinstance(x, Tensor) and not _NOT_WORDS.search(keystr(at))]
    return [x for x in named if x.dim() == 2 and x.dtype in _INTEGERS]


def _aligned(given: Sequence[Tensor], targets: np.ndarray) -> tuple[Tensor, np.ndarray] | None:
    """Return the words that have a target each, and those at the targets' places.

    A model that computes its own loss is given the targets too, and not by a name that says so:
    what equals them is them, if something else is of their length.
    """
    found = [
        (words, part.flatten().cpu().numpy())
        for words in reversed(given)  # a decoder's come behind those of its encoder
        for part in (words, words[:, :-1])  # a model may shift by itself
        if part.numel() == len(targets)
    ]
    others = [one for one in found if not np.array_equal(one[1], targets)]
    return next(iter(others or found), None)
