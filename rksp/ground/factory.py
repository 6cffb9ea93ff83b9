"""Load factories `package.module:callable`, the only targets that run a user's code."""

from __future__ import annotations

import importlib
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path

from rksp.ground.errors import InputError, nearest, summary

_PACKAGE = str(Path(__file__).parents[1])
_FACTORY = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")


def is_factory(target: str) -> bool:
    """Tell whether a target has the form `package.module:callable`."""
    return _FACTORY.match(target) is not None


def refuse_factory(target: str | None, source: object) -> None:
    """Refuse a factory that is named in a file: only a typed target may run code.

    Args:
        target: A target that was read from a file.
        source: The file, for the message.

    Raises:
        InputError: The target has the form of a factory, whether or not the module exists.
    """
    if target is not None and is_factory(target):
        raise InputError(
            f"{source} names the factory {target!r}, which would run code; a factory must be typed "
            "on the command line."
        )


def load_factory(target: str) -> Callable[[], object]:
    """Import a factory. The working folder is searched last, so it cannot shadow a package.

    Args:
        target: `package.module:callable`.

    Returns:
        The factory. It raises `InputError` if the user's code tries to end the program.

    Raises:
        InputError: The factory cannot be imported or is not callable.
    """
    module_name, _, attribute = target.partition(":")
    here = str(Path.cwd())
    sys.path.append(here)  # last: a folder here must not shadow an installed package
    try:
        module = _guarded(target, lambda: importlib.import_module(module_name))
    except ImportError as error:
        hint = f"; write {module_name[:-3]}:{attribute}" if module_name.endswith(".py") else ""
        raise InputError(f"{target}: {module_name} cannot be imported ({error}){hint}.") from error
    except Exception as error:  # code of the user, which may raise anything
        raise InputError(
            f"{target}: importing {module_name} failed ({described(error)})."
        ) from error
    finally:
        sys.path.remove(here)
    factory = module
    for part in attribute.split("."):
        factory = getattr(factory, part, None)
    if not callable(factory):
        names = [n for n in dir(module) if callable(getattr(module, n)) and not n.startswith("_")]
        raise InputError(
            f"{module_name} has no function {attribute}{nearest(attribute, names) or '.'}"
        )
    return lambda: _guarded(target, factory)


def described(error: Exception) -> str:
    """Return the type, text and place of an error in foreign code: `ValueError: …, at my.py:12`.

    The place is the deepest line outside of the installed packages.
    """
    installed = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith((*installed, _PACKAGE, "<"))]
    place = f", at {Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""
    return f"{summary(error, 300)}{place}"


def _guarded(target: str, action: Callable[[], object]) -> object:
    try:
        return action()
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit and its relatives, which would end rksp
        raise InputError(
            f"{target} tried to end the program ({type(error).__name__}: {error}); "
            "a factory returns a torch.nn.Module."
        ) from error
