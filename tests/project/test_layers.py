"""The import law: imports are absolute and point down."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from support.places import ROOT

# Each room may import those above it and nothing else; the order is that of design.md.
LAYERS = (
    "ground", "kernels", "recipe",
    "documents", "datasets", "models", "recipe_files", "measure", "spectra",
    "checks", "classifiers", "assessment", "own_runs", "question", "watch", "grid", "confirm",
    "report", "calls", "cli",
)  # fmt: skip
# The authors' package, above all of rksp: nothing that is installed imports it.
LAB = (
    "places", "zoo", "tasks", "fit", "fine_tuning_fit", "ladders",
    "post_training", "own_runs", "hub_table", "bench",
    "house", "advisories", "forecasts", "commands", "audit", "experiments", "faults",
    "__main__",
)  # fmt: skip
# Inside the ground, in the same way: it is what everything stands on.
GROUND = (
    "text", "errors", "tables", "versions", "model", "budgets", "processes", "allocator", "files",
    "reading", "factory", "flags", "option_lines", "giving_way", "doors",
)  # fmt: skip


def _layer(module: str) -> tuple[int, int]:
    """Return the place of a module in the order; a module that has none is an error."""
    package, room, *rest = module.split(".")
    order = LAB if package == "lab" else LAYERS
    assert room in order, f"{module} has no layer: add it to LAYERS"
    if package == "lab":
        return len(LAYERS) + LAB.index(room), -1
    return LAYERS.index(room), GROUND.index(rest[0]) if room == "ground" and rest else -1


def _modules() -> dict[str, Path]:
    found = {}
    for home in ("rksp", "cli", "kernels", "classifiers", "datasets", "lab"):
        for path in (ROOT / home).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            parts = parts if home in ("rksp", "lab") else ("rksp", *parts)
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


def _imports(source: str) -> set[str]:
    """Imported modules, those under TYPE_CHECKING and in functions too."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def _neighbours(path: Path, modules: dict[str, Path]) -> set[str]:
    """Modules of this project that a file imports: a package only for names of its own."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & modules.keys() or {str(node.module)}
    return found & modules.keys()


def _breaches(module: str, source: str) -> list[str]:
    own = _layer(module)
    targets = {name for name in _imports(source) if name.partition(".")[0] in ("rksp", "lab")}
    return [f"{module} -> {t}" for t in sorted(targets) if "." not in t or _layer(t) > own]


def test_imports_point_down():
    surface = ("rksp", "rksp.__main__", "lab")  # the lazy surface names every layer
    breaches = [
        breach
        for module, path in sorted(_modules().items())
        if module not in surface
        for breach in _breaches(module, path.read_text())
    ]
    assert breaches == []


def _in_order(imports: dict[str, set[str]]) -> list[str]:
    """Return the modules, each behind those it imports, also in functions.

    Raises:
        CycleError: Modules import each other in a circle.
    """
    return list(TopologicalSorter(imports).static_order())


def test_no_modules_import_each_other_in_a_circle():
    modules = _modules()
    surface = modules.pop("rksp")  # imports nothing until a name is used
    assert surface.name == "__init__.py"
    _in_order({module: _neighbours(path, modules) for module, path in modules.items()})
    with pytest.raises(CycleError):
        _in_order({"evidence": {"measuring"}, "measuring": {"evidence"}})


def test_every_layer_is_one_package_or_module():
    modules = _modules()
    rooms = {m.split(".")[1] for m in modules if m.startswith("rksp.")} - {"__main__"}
    assert sorted(LAYERS) == sorted(rooms)
    authors = {m.split(".")[1] for m in modules if m.startswith("lab.")}
    assert sorted(LAB) == sorted(authors)
    ground = {m.split(".")[2] for m in modules if m.startswith("rksp.ground.")}
    assert sorted(GROUND) == sorted(ground)


def test_the_law_can_be_broken():
    assert _breaches("rksp.recipe", "from rksp.cli import app") == ["rksp.recipe -> rksp.cli"]
    assert _breaches("rksp.ground.errors", "import rksp.models.resolve")
    assert _breaches("rksp.ground.flags", "from rksp.ground.option_lines import x")
    assert _breaches("rksp.cli", "from rksp.recipe import Recipe") == []
    assert _breaches("rksp.cli", "from lab.fit.edge_fit import x")
    assert _breaches("rksp.cli", "import lab")
    assert _breaches("lab.zoo.config", "from lab.ladders.plan import x")
    assert _breaches("lab.fit.edge_fit", "from rksp.cli import app") == []
    idle = "if TYPE_CHECKING:\n    from rksp.cli import app"
    assert _breaches("rksp.recipe", idle) == ["rksp.recipe -> rksp.cli"]
    with pytest.raises(AssertionError, match="relative"):
        _breaches("rksp.cli", "from . import app")
    with pytest.raises(AssertionError, match="no layer"):
        _breaches("rksp.elsewhere", "import rksp.cli")
