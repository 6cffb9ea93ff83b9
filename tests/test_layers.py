"""The import law: imports are absolute and point down."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Each package or module may import those above it and nothing else; the order is that of design.md.
LAYERS = (
    "rksp.errors",
    "rksp.text",
    "rksp.processes",
    "rksp.allocator",
    "rksp.files",
    "rksp.factory",
    "rksp.batch",
    "rksp.moment",
    "rksp.outcome",
    "rksp.kernels",
    "rksp.sizes",
    "rksp.flags",
    "rksp.option_lines",
    "rksp.objective",
    "rksp.given_loss",
    "rksp.optimizers",
    "rksp.recipe",
    "rksp.options",
    "rksp.documents",
    "rksp.recipe_files",
    "rksp.datasets",
    "rksp.models",
    "rksp.run_state",
    "rksp.measure",
    "rksp.spectra",
    "rksp.features",
    "rksp.checks",
    "rksp.classifiers",
    "rksp.risk",
    "rksp.configured",
    "rksp.monitors",
    "rksp.interventions",
    "rksp.faults",
    "rksp.training",
    "rksp.evidence",
    "rksp.transfer",
    "rksp.pipeline",
    "rksp.config_score",
    "rksp.score_report",
    "rksp.lab",
    "rksp.grid",
    "rksp.confirm",
    "rksp.report",
    "rksp.result",
    "rksp.scoring",
    "rksp.bench",
    "rksp.cli",
)


def _layer(module: str) -> int | None:
    for number, name in enumerate(LAYERS):
        if module == name or module.startswith(name + "."):
            return number
    return None


def _modules() -> dict[str, Path]:
    found = {}
    for home in ("rksp", "cli", "kernels", "classifiers", "datasets"):
        for path in (ROOT / home).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            parts = parts if home == "rksp" else ("rksp", *parts)
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


def _breaches(module: str, source: str) -> list[str]:
    own = _layer(module)
    targets = {name for name in _imports(source) if name == "rksp" or name.startswith("rksp.")}
    return [t for t in sorted(targets) if t == "rksp" or (_layer(t) or 0) > own]


@pytest.mark.parametrize("module", sorted(_modules()))
def test_imports_point_down(module):
    if module in ("rksp", "rksp.__main__"):
        pytest.skip("the lazy surface names every layer")
    assert _layer(module) is not None, f"{module} has no layer: add it to LAYERS"
    assert _breaches(module, _modules()[module].read_text()) == []


def test_every_layer_is_one_package_or_module():
    homes = {".".join(module.split(".")[:2]) for module in _modules()} - {"rksp", "rksp.__main__"}
    assert sorted(LAYERS) == sorted(homes)


def test_the_law_can_be_broken():
    assert _breaches("rksp.recipe", "from rksp.cli import app") == ["rksp.cli"]
    assert _breaches("rksp.errors", "import rksp.models.resolve") == ["rksp.models.resolve"]
    assert _breaches("rksp.flags", "from rksp.option_lines import x") == ["rksp.option_lines"]
    assert _breaches("rksp.cli", "from rksp.recipe import Recipe") == []
    idle = "if TYPE_CHECKING:\n    from rksp.cli import app"
    assert _breaches("rksp.recipe", idle) == ["rksp.cli"]
    with pytest.raises(AssertionError, match="relative"):
        _breaches("rksp.cli", "from . import app")
