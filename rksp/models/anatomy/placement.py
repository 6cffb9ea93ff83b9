"""Tell where blocks normalize and which branches they add, from the graph of a forward pass.

A block's *stream* is the way from the state that enters it to the one that leaves it along which
nothing is multiplied by a matrix: sums, norms, factors, changes of shape. What a sum adds to it is
a *branch*. So code of any style is read alike: modules, functionals, norms written by hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Literal

from rksp.documents.shown import Placement
from rksp.ground.model import definite
from rksp.ground.text import words
from rksp.models.anatomy.chains import Chain
from rksp.models.anatomy.graph import ForwardGraph, Node

_SAME = frozenset(
    words(
        "view _unsafe_view reshape expand permute transpose t squeeze unsqueeze contiguous clone "
        "detach alias _to_copy slice select split split_with_sizes unbind chunk narrow dropout "
        "native_dropout lift_fresh flatten unflatten as_strided _reshape_alias to copy movedim "
        "nan_to_num clamp"
    )
)
_FACTORS = frozenset(words("mul div true_divide neg"))
_SUMS = frozenset(words("add sub rsub addcmul addcdiv lerp add_relu"))
_NORMS = frozenset(
    words(
        "native_layer_norm layer_norm rms_norm _fused_rms_norm native_group_norm group_norm "
        "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training "
        "batch_norm cudnn_batch_norm"
    )
)
_PRODUCTS = frozenset(
    words("mm addmm bmm baddbmm matmul linear convolution mkldnn_linear _grouped_mm dot mv addmv")
)
_REDUCTIONS = frozenset(words("mean sum var var_mean std std_mean linalg_vector_norm norm amax"))
_SIZES = frozenset(words("sqrt rsqrt pow abs std std_mean linalg_vector_norm norm square"))
# What mixes tokens beside products of two things that both depend on the state.
_SOFTMAX = frozenset(words("_softmax softmax _safe_softmax"))
_MIXERS = frozenset(words("cumsum cumprod logcumsumexp convolution _fft_r2c roll"))
_ATTENTION = "_scaled_dot_product"
_SUM_INPUT = frozenset(words("addmm baddbmm addmv"))  # products that add their first input


def read_placement(graph: ForwardGraph, chains: Sequence[Chain]) -> Placement | None:
    """Read the blocks of all chains off the graph of a pass; None where nothing can be read."""
    ends = [end for chain in chains for end in graph.ends(chain)]
    read = [_Block(graph.nodes, *end) for end in ends if end is not None]
    found = [block for block in read if block.adds_branches]
    if 2 * len(found) < len(ends) or not found:
        return None
    placed = [block.norm for block in found]
    likeliest = max(dict.fromkeys(placed), key=placed.count)
    attending = [block for block in found if block.attention]
    branches = [(block, branch) for block in found for branch, _ in block.branches]
    norms = [(block, norm) for block in found for norm in block.norms]
    return Placement(
        norm=likeliest if 2 * placed.count(likeliest) > len(placed) else None,
        behind_norm=_share(block.is_behind_norm(branch) for block, branch in branches),
        branch_norm=_share(block.is_normed(branch) for block, branch in branches),
        centered=_share(block.is_centered(norm) for block, norm in norms),
        parallel=_share(block.is_parallel() for block in found),
        routed=_share(block.routes() for block in found),
        qk_norm=_share(block.normalizes_qk() for block in attending) if attending else None,
        scales_output=_scales_output(graph.nodes, max(end[1] for end in ends if end is not None)),
        read=len(found),
        blocks=len(ends),
    )


def _share(said: Iterable[bool]) -> float:
    answers = list(said)
    return sum(answers) / max(1, len(answers))


def _scales_output(nodes: Sequence[Node], last: int) -> bool:
    """Tell whether a number multiplies what the last block leaves, or the logits, as in μP.

    A cap divides before its tanh, and is none.
    """
    derived, scaled, capped = {last}, set[int](), set[int]()
    rows = math.prod(nodes[last].shape[:-1])
    for index in range(last + 1, len(nodes)):
        node, given = nodes[index], [i for i in nodes[index].inputs if i in derived]
        if not given or math.prod(node.shape[:-1]) != rows:
            continue
        derived.add(index)
        if node.op in _FACTORS - {"neg"} and len(node.inputs) == 1:
            scaled.add(index)
        if node.op == "tanh" or not capped.isdisjoint(given):
            capped.update((index, *given))
    return bool(scaled - capped)


class _Block:
    """The nodes between the state that enters a block and the one that leaves it."""

    def __init__(self, nodes: Sequence[Node], x: int, y: int) -> None:
        self.nodes, self.x, self.y, self.width = nodes, x, y, nodes[x].shape[-1:]
        self.derived = {x}
        for index in range(x + 1, y + 1):
            if not self.derived.isdisjoint(nodes[index].inputs):
                self.derived.add(index)
        self._light: dict[int, bool] = {x: True}
        self._norms: dict[int, int | None] = {}
        for index in sorted(self.derived - {x}):  # each after what it is made from
            self._norms[index] = self._normed(index)
            self._light[index] = self._is_light(index)

    @property
    def adds_branches(self) -> bool:
        return self._light.get(self.y, False) and bool(self.branches)

    @property
    def norm(self) -> Literal["pre", "post", "none"] | None:
        """Where it normalizes; None where it has norms, but none that is at one of these places."""
        if any(self._norms.get(i) is not None for i in self.stream):
            return "post"
        if any(self.is_behind_norm(one) or self.is_normed(one) for one, _ in self.branches):
            return "pre"
        return None if self.norms else "none"

    @cached_property
    def norms(self) -> set[int]:
        qk = {norm for pair in self.attention for part in pair for norm in self._norms_of(part)}
        return {index for index, of in self._norms.items() if of is not None} - qk

    def routes(self) -> bool:
        return any(self.nodes[index].op == "topk" for index in self.derived)

    def normalizes_qk(self) -> bool:
        return all(self._norms_of(part) for pair in self.attention for part in pair)

    def _inputs(self, index: int) -> list[int]:
        return [i for i in dict.fromkeys(self.nodes[index].inputs) if i in self.derived]

    def _main(self, index: int) -> int | None:
        node, given = self.nodes[index], self._inputs(index)
        if len(given) == 2 and node.op == "sub" and self._is_statistic(given[0], given[1]):
            return given[0]  # centered
        if len(given) == 2 and node.op == "copy":
            return given[1]  # a view of what was written to
        if len(given) != 1:
            return None
        if node.op in _SAME or node.op in _FACTORS or node.op in _SUMS:
            return given[0]
        # A weight that does not act on the width mixes rows, as hyper-connections mix streams.
        is_rows = self.nodes[given[0]].shape[-1:] != self.width or node.inputs[-1] == given[0]
        is_mixed = (
            node.op in ("mm", "mv", "bmm", "matmul")
            and is_rows
            and self._light.get(given[0], False)
        )
        return given[0] if is_mixed else None

    def _strip(self, index: int) -> int:
        while index != self.x and (below := self._main(index)) is not None:
            index = below
        return index

    def _normed(self, index: int) -> int | None:
        node, given = self.nodes[index], self._inputs(index)
        if node.op in _NORMS and given:
            return given[0]
        if node.op not in ("mul", "div", "true_divide") or len(given) != 2:
            return None
        pairs = [given] if node.op != "mul" else [given, given[::-1]]
        return next((a for a, by in pairs if self._is_statistic(a, by, _SIZES)), None)

    def is_centered(self, norm: int) -> bool:
        if self.nodes[norm].op in _NORMS:
            return "rms" not in self.nodes[norm].op
        here = definite(self._norms[norm])
        while here != self.x and (below := self._main(here)) is not None:
            if self.nodes[here].op == "sub":
                return True
            here = below
        return False

    def _is_statistic(self, of: int, index: int, must: frozenset[str] = frozenset()) -> bool:
        """Tell whether a node is one number a row, computed from the row and no weight matrix.

        One of the operations `must` is on the way, if there are any: a sum alone, as of a softmax
        written by hand, is no size.
        """
        while self.nodes[index].op in ("expand", "expand_as", "copy") and self._inputs(index):
            index = self._inputs(index)[0]
        whole, shape = self.nodes[of].shape, self.nodes[index].shape
        aligned = zip(reversed(whole), (*reversed(shape), *[1] * len(whole)), strict=False)
        if not any(of_row > 1 == size for of_row, size in aligned):
            return False
        rows = self._entrywise(of)
        left, seen = [index], {index}
        while left:
            here = left.pop()
            if self.nodes[here].op in _REDUCTIONS:
                if must and must.isdisjoint(self.nodes[i].op for i in {*seen, *self._inputs(here)}):
                    return False
                return not rows.isdisjoint(self._entrywise(here))
            if self.nodes[here].op not in _PRODUCTS and here != self.x:
                new = [i for i in self._inputs(here) if i not in seen]
                seen.update(new)
                left += new
        return False

    def _entrywise(self, index: int) -> set[int]:

        def is_passed(here: int) -> bool:
            is_sum = self.nodes[here].op in _SUMS and self._main(here) is None
            return not (self._is_end(here) or (is_sum and here != index))

        return self._reached(index, is_passed)

    def _is_end(self, index: int) -> bool:
        return index == self.x or self.nodes[index].op in _PRODUCTS

    def _reached(self, start: int, is_passed: Callable[[int], bool]) -> set[int]:
        left, seen = [start], {start}
        while left:
            if is_passed(here := left.pop()):
                new = [i for i in self._inputs(here) if i not in seen]
                seen.update(new)
                left += new
        return seen

    def _is_light(self, index: int) -> bool:
        if (of := self._norms[index]) is not None:
            return self._light[of]
        if (below := self._main(index)) is not None:
            return self._light[below]
        return any(self._light[i] for i in self._summed(index))

    def _summed(self, index: int) -> list[int]:
        node, given = self.nodes[index], self._inputs(index)
        if node.op in _SUM_INPUT:
            return [node.inputs[0]] if node.inputs[0] in self.derived else []
        if node.op == "sum" and given and self.nodes[given[0]].op == "stack":
            return self._inputs(given[0])
        return given if node.op in _SUMS else []

    @cached_property
    def stream(self) -> list[int]:
        """The nodes from the state that leaves back to the one that enters, both included."""
        found, here = [self.y], self.y
        while here != self.x:
            below = self._norms[here]
            if below is None:
                below = self._main(here)
            if below is None:  # the oldest: a later summand was made from it
                below = min(i for i in self._summed(here) if self._light[i])
            here = below
            found.append(here)
        return found

    @cached_property
    def branches(self) -> list[tuple[int, int]]:
        """What the sums of the stream add, each with the node that it is added to; last first."""
        found = []
        for here, below in zip(self.stream, self.stream[1:], strict=False):
            if self._norms[here] is None and self._main(here) is None:
                heavy = [i for i in self._summed(here) if not self._light[i]]
                parts = heavy if self.nodes[here].op not in _SUM_INPUT else [here]
                found += [(part, below) for one in parts for part in self._parts(one)]
        return found

    def _parts(self, branch: int) -> list[int]:
        here = self._strip(branch)
        parts = [i for i in self._summed(here) if not self._light[i]]
        if self.nodes[here].op in _PRODUCTS and not parts:
            below = [self._strip(i) for i in self._inputs(here)]
            cats = [i for i in below if self.nodes[i].op == "cat"]
            parts = [i for cat in cats for i in self._inputs(cat) if not self._light[i]]
        kinds = [self._mixes(part) for part in parts]
        return parts if len(parts) == 2 and kinds[0] != kinds[1] else [branch]

    def _inside(self, branch: int) -> set[int]:
        found = self._reached(branch, lambda here: here == branch or not self._light[here])
        return {here for here in found if here == branch or not self._light[here]}

    def _mixes(self, branch: int) -> bool:
        for here in self._inside(branch):
            node, is_sequence = self.nodes[here], len(self.nodes[here].shape) > 2
            if node.op.startswith(_ATTENTION) or (node.op in _MIXERS and is_sequence):
                return True
            if node.op in ("bmm", "baddbmm", "matmul") and len(self._inputs(here)) > 1:
                return True
        return False

    def is_normed(self, branch: int) -> bool:
        return self._norms.get(self._strip(branch)) is not None

    def is_behind_norm(self, branch: int) -> bool:
        entries = [
            i
            for here in self._inside(branch)
            if self.nodes[here].op in _PRODUCTS
            for i in self._inputs(here)
            if self._light[i] and not (self.nodes[here].op in _SUM_INPUT and i in self.stream)
        ]
        return bool(entries) and all(map(self._passes_norm, entries))

    def _passes_norm(self, index: int) -> bool:
        while index not in self.stream:
            if self._norms[index] is not None:
                return True
            below = self._main(index)
            if below is None:
                return False
            index = below
        return False

    def is_parallel(self) -> bool:
        for place, (late, _) in enumerate(self.branches):
            for early, base in self.branches[place + 1 :]:
                both = self._mixes(late) != self._mixes(early)
                if both and all(i <= base or i not in self.stream for i in self._reads(late)):
                    return True
        return False

    def _reads(self, branch: int) -> set[int]:
        found: set[int] = set()
        for here in self._inside(branch):
            for i in self._inputs(here):
                while self._light[i] and i not in self.stream:
                    of = self._norms[i]
                    i = of if of is not None else self._main(i) or self.x
                if self._light[i]:
                    found.add(i)
        return found

    @cached_property
    def attention(self) -> list[tuple[int, int]]:
        return list(self._attention())

    def _attention(self) -> Iterator[tuple[int, int]]:
        for index in sorted(self.derived):
            node = self.nodes[index]
            if node.op.startswith(_ATTENTION) and len(node.shape) == 4:
                q, k = node.inputs[:2]
            elif node.op in _SOFTMAX:
                logits = self._logits(self._inputs(index)[0])
                if logits is None:
                    continue
                q, k = logits
            else:
                continue
            if q in self.derived and k in self.derived:
                yield q, k

    def _logits(self, index: int) -> tuple[int, int] | None:
        while True:
            node, given = self.nodes[index], self._inputs(index)
            if node.op in ("bmm", "matmul") and len(given) == 2:
                return node.inputs[0], node.inputs[1]
            if node.op == "baddbmm" and len(given) >= 2:
                return node.inputs[-2], node.inputs[-1]
            if not given or node.op in _PRODUCTS or index == self.x:
                return None
            index = given[0]

    def _norms_of(self, part: int) -> set[int]:
        seen = self._reached(part, lambda here: not (self._is_end(here) or self._light[here]))
        return {i for i in seen if self._norms.get(i) is not None and not self._light[i]}
