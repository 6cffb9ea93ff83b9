"""Finds what a script trains, through hooks that torch has for all modules and optimizers."""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import os
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING, ParamSpec, SupportsFloat, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.jit import _recursive
from torch.nn.modules import module as hooks
from torch.nn.modules.module import _IncompatibleKeys
from torch.optim import Optimizer
from torch.optim import optimizer as optimizer_hooks
from torch.utils.hooks import RemovableHandle

from rksp.ground.errors import RkspError
from rksp.recipe.optimizers.groups import parameters_of
from rksp.watch.attach import living
from rksp.watch.attach.options import Watching

if TYPE_CHECKING:  # loaded once something trains: a script may import torch for other ends
    from rksp.watch.attach.session import Session

_CLIPS = ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_")
_P = ParamSpec("_P")
_T = TypeVar("_T")
_Args: TypeAlias = tuple[object, ...]
_Named: TypeAlias = dict[str, object]
_Outputs: TypeAlias = Tensor | Sequence[Tensor]
_Call: TypeAlias = Callable[..., _T]
_MOST_PASSES = 10_000  # backward passes without a step of an optimizer


class _Phase(Enum):
    """Where in a step the script is."""

    BETWEEN = auto()  # after an update, before the next training pass
    PASSES = auto()  # forward and backward passes
    READ = auto()  # gradients are complete and were read


class Finder:
    """Follows a script through its steps and calls a `Session` at the moments that monitors need.

    A step begins with the first forward pass that trains (the module called first, with a graph).
    Its loss is the sum of the scalars on which backward is called. Its gradients are read at the
    first of: a clip of torch, and the step of an optimizer (inside of it, after its closure). It
    ends when every optimizer that took part in the last step has stepped. Nothing is raised into
    the script but the end that `--on-alarm stop` asks for: at any error the finder detaches.

    Attributes:
        keep: Gets each session.
        raises: Errors of the user, which are raised where Python asked for the watch.
    """

    raises: type[RkspError] | tuple[()] = ()

    def __init__(self, options: Watching) -> None:
        self.options = options
        self._session: Callable[[], Session | None] = lambda: None  # the model's hook holds it
        self._process = os.getpid()
        self._made: list[weakref.ref[Optimizer]] = []
        self._passed: set[tuple[int, int]] = set()  # (module, number of optimizers) looked at
        self._phase = _Phase.BETWEEN
        self._losses: list[Tensor] = []
        self._product: Tensor | float = 0.0  # of vectors differentiated, with their weights
        self._is_searching = False  # an optimizer evaluates its closure anew, as LBFGS does
        # What a loss scaler returned last, and for what.
        self._scaled: tuple[int, Tensor | None] = (0, None)
        self._words = 0  # by which the step's losses are multiplied
        self._depth = 0  # of backward passes
        self._is_busy = self._is_over = False
        self._known: weakref.WeakKeyDictionary[Optimizer, bool] = weakref.WeakKeyDictionary()
        self._expected: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._is_called = False  # the model in training; otherwise steps begin with backward
        self._has_mode = False  # the script puts the model into training mode
        self._handles: list[RemovableHandle] = []
        self._seeking: RemovableHandle | None = None  # the hook on all modules, until one is met
        self._rests_until = 0.0
        self._wrapped: list[tuple[object, str, object]] = []
        # What the script loaded a state into, and what that state lacked.
        self._loaded: dict[str, str] = {}
        self.keep: Callable[[Session], None] = lambda session: None

    @property
    def session(self) -> Session | None:
        """The watch of a model, as long as the script keeps the model."""
        return self._session()

    @classmethod
    def attach(cls) -> None:
        """Attach to this process, once torch is imported."""
        finder = cls(Watching.model_validate_json(os.environ["RKSP_WATCH"]))
        finder.hook()
        atexit.register(finder.close)

    def take(self, optimizer: Optimizer) -> None:
        """Take an optimizer that was made before the watch."""
        self._made.append(weakref.ref(optimizer))

    def close(self) -> None:
        """End the watch, and leave torch as it was; not to be called inside of a hook."""
        if os.getpid() != self._process:
            return
        self._cease()
        for handle in self._handles:
            handle.remove()
        for owner, name, original in reversed(self._wrapped):
            setattr(owner, name, original)
        self._wrapped.clear()
        self._end()

    def hook(self) -> None:
        """Register with torch."""
        # Of torch.compile, about the one global hook, which is gone before anything is compiled.
        warnings.filterwarnings("ignore", message=".*when there are global hooks on modules")
        self._seek()
        self._handles = [
            optimizer_hooks.register_optimizer_step_pre_hook(self._before_step),
            optimizer_hooks.register_optimizer_step_post_hook(self._after_step),
        ]
        self._wrap(nn.Module, "__reduce_ex__", self._around_reduction)
        self._wrap(_recursive, "get_hook_stubs", self._around_stubs)
        self._wrap(torch.autograd, "backward", self._around_backward)
        self._wrap(torch.autograd, "grad", self._around_grad)
        self._wrap(Optimizer, "__init__", self._around_making)
        self._wrap(nn.Module, "load_state_dict", self._around_loading)
        self._wrap(Optimizer, "load_state_dict", self._around_loading)
        for name in _CLIPS:
            for place in (torch.nn.utils, torch.nn.utils.clip_grad):
                self._wrap(place, name, self._around_clip)
        self._wrap(GradScaler, "scale", self._around_scale)
        self._wrap(GradScaler, "step", self._around_scaled_step)

    def _seek(self) -> None:
        if self._seeking is None:
            self._seeking = hooks.register_module_forward_pre_hook(self._before_any_forward)

    def _cease(self) -> None:
        if self._seeking is not None:
            self._seeking.remove()
            self._seeking = None

    def _guarded(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T | None:
        """Call unless the watch is over, is looking itself, or this is a fork of the process."""
        if self._is_busy or self._is_over or os.getpid() != self._process:
            return None
        self._is_busy = True
        try:
            with torch.random.fork_rng(devices=[]):
                return call(*args, **kwargs)
        except self.raises:
            raise
        except Exception as error:
            self._detach(f"{type(error).__name__}: {error}")
            return None
        finally:
            self._is_busy = False

    def _detach(self, why: str) -> None:
        if os.environ.get("RANK", "0") == "0":
            print(f"rksp watch: detached, the script runs on ({why})", file=sys.stderr, flush=True)
        with contextlib.suppress(Exception):
            self._end()  # the hooks stay: torch goes through them now

    def _end(self) -> None:
        was_over, self._is_over = self._is_over, True
        if self.session is not None and not was_over:
            self.session.close()

    # What the script calls

    def _before_any_forward(self, module: nn.Module, args: _Args) -> None:
        # An evaluation counts: the hooks must be gone before torch.compile sees a module.
        key = (id(module), len(self._made))
        if torch.compiler.is_compiling() or self._depth or not self._made or key in self._passed:
            return
        self._passed.add(key)
        self._guarded(self._meet, module)
        if self.session is not None:  # its own hook comes too late for this pass
            self._before_entry(self.session, module, args, {})

    def _before_entry(
        self, session: Session, module: nn.Module, args: _Args, kwargs: _Named
    ) -> None:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled() or self._depth:
            return
        if not self._is_called or session is not self.session:
            return
        if module.training or not self._has_mode:
            self._has_mode |= module.training
            known = set(module._forward_pre_hooks)
            self._guarded(self._begin, args, kwargs)
            self._guarded(_run_new, module, known, args, kwargs)

    def _around_backward(
        self, backward: _Call[None], tensors: _Outputs, *args: object, **kw: object
    ) -> None:
        whole = tensors
        if not self._depth and isinstance(tensors, Tensor):
            self._guarded(self._before_backward, tensors)
            penalty = self._guarded(self._penalty, tensors)
            whole = tensors if penalty is None else tensors + penalty
        self._depth += 1
        try:
            backward(whole, *args, **kw)
        finally:
            self._depth -= 1
        if not self._depth:
            weights = _given("grad_tensors", 0, args, kw)
            self._guarded(self._after_backward, tensors, weights)

    def _around_grad(
        self, grad: _Call[_T], outputs: object, inputs: object, *args: object, **kw: object
    ) -> _T:
        if isinstance(inputs, Iterator):  # of parameters, which torch would use up
            inputs = tuple(inputs)
        found = grad(outputs, inputs, *args, **kw)
        parts = inputs if isinstance(inputs, tuple | list) else (inputs,)
        is_of_weights = any(isinstance(one, nn.Parameter) for one in parts)
        if is_of_weights and isinstance(outputs, Tensor) and not self._depth:
            weights = _given("grad_outputs", 0, args, kw)
            self._guarded(self._differentiated, outputs, weights)
        return found

    def _around_reduction(self, reduce: _Call[object], module: nn.Module, *args: object) -> object:
        """Leave our hooks out of a copy of a module, and of the file that it is pickled to."""
        reduced = reduce(module, *args)
        if isinstance(reduced, tuple) and len(reduced) > 2 and isinstance(reduced[2], dict):
            return (*reduced[:2], _without_ours(reduced[2]), *reduced[3:])
        return reduced

    def _around_clip(self, clip: _Call[_T], *args: object, **kwargs: object) -> _T:
        limit = _given("max_norm", 1, args, kwargs)
        is_norm = clip.__name__ != "clip_grad_value_"
        known = limit if is_norm and isinstance(limit, SupportsFloat) else None
        self._guarded(self._read, 1.0, known)
        return clip(*args, **kwargs)

    def _around_making(
        self, make: _Call[None], optimizer: Optimizer, *args: object, **kw: object
    ) -> None:
        self._guarded(self._look_again)
        self._made.append(weakref.ref(optimizer))
        make(optimizer, *args, **kw)

    def _around_loading(
        self, load: _Call[_T], owner: object, *args: object, **kwargs: object
    ) -> _T:
        kind = "optimizer" if isinstance(owner, Optimizer) else "model"
        self._loaded.setdefault(kind, "")
        done = load(owner, *args, **kwargs)
        if isinstance(owner, nn.Module) and isinstance(done, _IncompatibleKeys):
            self._loaded[kind] = _mismatch(owner, done)
        return done

    def _around_scale(
        self, scale: _Call[_T], scaler: GradScaler, *args: object, **kwargs: object
    ) -> _T:
        scaled = scale(scaler, *args, **kwargs)
        outputs = _given("outputs", 0, args, kwargs)
        if isinstance(outputs, Tensor):
            self._scaled = (id(scaled), outputs.detach())
        if self.session is not None:
            self.session.scaler = scaler
        return scaled

    def _around_scaled_step(
        self, step: _Call[_T], scaler: object, optimizer: Optimizer, *args: object, **kw: object
    ) -> _T:
        before = len(self._stepped)
        done = step(scaler, optimizer, *args, **kw)
        if self._phase is not _Phase.BETWEEN and len(self._stepped) == before:
            self._guarded(self._skip, optimizer)
        return done

    def _around_stubs(self, stubs: _Call[_T], module: nn.Module) -> _T:
        """Leave our hooks out of a module that `torch.jit.script` compiles."""
        held = vars(module).copy()
        vars(module).update(_without_ours(held))
        try:
            return stubs(module)
        finally:
            vars(module).update(held)

    def _before_step(
        self, optimizer: Optimizer, args: _Args, kwargs: _Named
    ) -> tuple[_Args, _Named] | None:
        if torch.compiler.is_compiling():
            return None
        if self._depth:
            self._guarded(self._refuse, "an optimizer steps inside of a backward pass")
            return None
        self._is_searching = False
        closure = _given("closure", 1, args, kwargs)
        if not callable(closure):
            self._guarded(self._before_update, optimizer)
            return None

        def watched() -> object:
            result: object = closure()
            self._guarded(self._before_update, optimizer)
            self._is_searching = self._phase is _Phase.READ
            return result

        return ((args[0], watched, *args[2:]), {k: v for k, v in kwargs.items() if k != "closure"})

    def _after_step(self, optimizer: Optimizer, *_: object) -> None:
        if not torch.compiler.is_compiling():
            self._is_searching = False
            self._guarded(self._after_update, optimizer)

    def _wrap(self, owner: object, name: str, around: _Call[object]) -> None:
        """Replace `owner.name` by what calls `around` with it; compilers see the original alone."""
        original = getattr(owner, name, None)
        if original is None:  # an older torch
            return

        @functools.wraps(original)
        def wrapped(*args: object, **kwargs: object) -> object:
            if torch.compiler.is_compiling():
                return original(*args, **kwargs)
            return around(original, *args, **kwargs)

        self._wrapped.append((owner, name, original))
        setattr(owner, name, wrapped)

    # What that means

    def _look_again(self) -> None:
        """Free a model that the script dropped, and look for the next one that trains."""
        is_used = self.session is not None and self.session.step > 0
        if is_used and (now := time.monotonic()) >= self._rests_until:
            gc.collect()  # a model and its watch refer to each other
            end = time.monotonic()
            self._rests_until = end + 50 * (end - now)  # a script may make optimizers all the time
        if self.session is None:
            self._seek()

    def _refuse(self, why: str) -> None:
        raise RuntimeError(why)

    def _optimizers(self) -> list[Optimizer]:
        made = [one for ref in self._made if (one := ref()) is not None and one.param_groups]
        return [one for one in made if not _holds_others(one)]

    def _meet(self, module: nn.Module | None, stepping: Optimizer | None = None) -> None:
        """Take a module that is called first, or an optimizer that steps, for what is trained."""
        own = set() if module is None else {id(p) for p in module.parameters()}
        met = [o for o in self._optimizers() if o is stepping or not own.isdisjoint(_ids(o))]
        trained: set[int] = set().union(*map(_ids, met))
        if not trained:
            return
        root = module
        if root is None or not trained <= own:
            root = owner_of(trained) or module
        if root is None:
            raise LookupError("no module holds what the optimizer trains")
        self._cease()
        from torch.distributed.fsdp import FullyShardedDataParallel

        from rksp.watch.attach.session import Session

        self._expected, self._stepped = weakref.WeakSet(met), weakref.WeakSet()
        self._known.clear()
        self._phase, self._is_called, self._has_mode = _Phase.BETWEEN, module is not None, False
        session = Session(root, module, met, self.options, self._optimizers, self._loaded)
        self._session = weakref.ref(session)
        self.keep(session)
        if all(owner is not FullyShardedDataParallel for owner, *_ in self._wrapped):
            self._wrap(FullyShardedDataParallel, "clip_grad_norm_", self._around_clip)
        hook = functools.partial(self._before_entry, session)
        holder = root if module is None else module
        self._handles.append(holder.register_forward_pre_hook(hook, with_kwargs=True))

    def _begin(self, args: _Args, kwargs: _Named) -> None:
        if self._phase is _Phase.READ and not self._is_searching:
            self._finish()  # an optimizer of the last step did not step this time
        if self.session is None or self._is_searching:
            return
        if self._phase is _Phase.BETWEEN:
            self._phase = _Phase.PASSES
            self.session.begin(args, kwargs)
        self.session.begin_pass(args, kwargs)

    def _before_backward(self, loss: Tensor) -> None:
        self._words += _words(loss)
        if self.session is not None and not self._is_of_another():
            self.session.begin_backward(loss)

    def _penalty(self, loss: Tensor) -> Tensor | None:
        if self.session is None or self._is_of_another() or loss.numel() != 1:
            return None
        return self.session.penalty(is_scaled=id(loss) == self._scaled[0])

    def _after_backward(self, tensors: _Outputs, weights: object) -> None:
        parts = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        (scaled, loss), self._scaled = self._scaled, (0, None)
        if self._is_of_another():
            return
        if all(part.numel() == 1 for part in parts):
            self._losses += [
                loss if loss is not None and id(part) == scaled else part.detach() for part in parts
            ]
        elif len(parts) == 1:
            self._differentiated(parts[0], weights)
        if len(self._losses) > _MOST_PASSES:
            self._refuse(f"no optimizer stepped in {_MOST_PASSES} backward passes")
        if self.session is not None:
            self.session.end_micro_batch()

    def _differentiated(self, output: Tensor, weights: object) -> None:
        """Note what stands for the loss of a step in which backward is called on no scalar."""
        if self._is_of_another():
            return
        if isinstance(weights, Tensor):
            self._product = self._product + (output.detach() * weights).sum()
        elif output.numel() == 1:
            self._product = self._product + output.detach()

    def _is_of_another(self) -> bool:
        is_off = self._is_called and self._phase is not _Phase.PASSES
        return is_off or self._is_searching

    def _before_update(self, optimizer: Optimizer) -> None:
        if not self._losses and not any(float(g.get("lr", 1)) for g in optimizer.param_groups):
            return  # such a step fills the state of an optimizer before a checkpoint is loaded
        if self.session is None:
            self._meet(None, optimizer)
        if self._takes_part(optimizer):
            if self._phase is _Phase.BETWEEN:
                self._is_called = False
            scale = getattr(optimizer, "grad_scale", None)  # of a fused optimizer, still in there
            self._read(1.0 if scale is None else float(scale))

    def _read(self, scale: float, limit: SupportsFloat | None = None) -> None:
        if self.session is None or self._phase is _Phase.READ:
            return
        if self._phase is _Phase.BETWEEN:
            if self._is_called:
                return  # the optimizer of another model, or a second clip
            self.session.begin((), {})
        self._phase = _Phase.READ
        found = self._losses or [one for one in (self._product,) if isinstance(one, Tensor)]
        losses = [loss / max(self._words, 1) for loss in found]
        self._losses, self._product, self._words = [], 0.0, 0
        clipped_to = None if limit is None else float(limit)
        self.session.after_backward(losses, scale=scale, limit=clipped_to)

    def _after_update(self, optimizer: Optimizer) -> None:
        if self._phase is _Phase.READ and self._takes_part(optimizer):
            self._stepped.add(optimizer)
            if self._stepped >= self._expected:
                self._finish()

    def _finish(self) -> None:
        self._phase = _Phase.BETWEEN
        self._expected, self._stepped = self._stepped or self._expected, weakref.WeakSet()
        if self.session is not None:
            self.session.after_update()

    def _skip(self, optimizer: Optimizer) -> None:
        if self._takes_part(optimizer):
            self._read(1.0)
            self._phase = _Phase.BETWEEN
            if self.session is not None:
                self.session.skip()

    def _takes_part(self, optimizer: Optimizer) -> bool:
        """Tell whether an optimizer moves the watched model; it may have been made later."""
        if self.session is None:
            return False
        if optimizer not in self._known:
            own = {id(p) for p in self.session.model.parameters()}
            is_one = not _holds_others(optimizer)
            self._known[optimizer] = is_one and not own.isdisjoint(_ids(optimizer))
            if self._known[optimizer] and optimizer not in self.session.optimizers:
                self.session.optimizers.append(optimizer)
        return self._known[optimizer]


def _given(name: str, place: int, args: _Args, kwargs: _Named) -> object:
    return kwargs.get(name, args[place] if len(args) > place else None)


def _run_new(module: nn.Module, known: set[int], args: _Args, kwargs: _Named) -> None:
    """Run the hooks that another hook of the same call registered, since torch would not."""
    for key, hook in list(module._forward_pre_hooks.items()):
        if key not in known:
            more = (kwargs,) if key in module._forward_pre_hooks_with_kwargs else ()
            hook(module, args, *more)


def _without_ours(state: _Named) -> _Named:
    held = {n: part for n, part in state.items() if "_hooks" in n and isinstance(part, dict)}
    ours = {
        key
        for part in held.values()
        for key, hook in part.items()
        if str(getattr(getattr(hook, "func", hook), "__module__", "")).startswith("rksp.")
    }
    if not ours:
        return state
    parts = {n: part for n, part in held.items() if not ours.isdisjoint(part)}
    return state | {n: type(p)((k, p[k]) for k in p if k not in ours) for n, p in parts.items()}


def owner_of(trained: set[int]) -> nn.Module | None:
    """Return the smallest module that holds all of these parameters."""
    holders = [m for m in living(nn.Module) if trained <= {id(p) for p in m.parameters()}]
    return min(holders, key=lambda m: sum(1 for _ in m.modules()), default=None)


def _words(loss: Tensor) -> int:
    """Return the number of words that a mean is multiplied by, as in torchtune's recipes, or 0.

    They divide the gradients of a step by the sum of these numbers before they clip.
    """
    if loss.grad_fn is None or not loss.grad_fn.name().startswith("MulBackward"):
        return 0
    with contextlib.suppress(RuntimeError):  # the script wrote to it
        other = getattr(loss.grad_fn, "_saved_other", None)
        if isinstance(other, Tensor) and other.dtype == torch.int64 and other.numel() == 1:
            return int(other)
    return 0


def _ids(optimizer: Optimizer) -> set[int]:
    return set(map(id, parameters_of(optimizer)))


def _holds_others(optimizer: Optimizer) -> bool:
    held = (one if isinstance(one, list) else [one] for one in vars(optimizer).values())
    return any(isinstance(one, Optimizer) for part in held for one in part)


def _mismatch(module: nn.Module, keys: _IncompatibleKeys) -> str:
    """Say that a state hardly fits a module, from what `load_state_dict` returns; empty if not."""
    missing, given = list(keys.missing_keys), list(keys.unexpected_keys)
    count = len(module.state_dict())
    if not given or 2 * len(missing) < count:
        return ""
    return (
        f"load_state_dict(strict=False) found {count - len(missing)} of the {count} tensors of the "
        f"model: {missing[0]} is missing, and {given[0]} is in the file; rename them"
    )
