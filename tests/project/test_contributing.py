"""CONTRIBUTING.md tells the truth: a toy of each kind needs at most three files."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
from support.places import ROOT

HOMES = ("cli", "kernels", "classifiers", "datasets")

TOY_MONITOR = '''
"""A toy."""
from rksp.moment import Phase
from rksp.watch.monitors.base import Monitor

class Toy(Monitor):
    """Read the step itself."""
    name, phase, default_every, quantities, source = "toy", Phase.UPDATE, 1, ("toy_step",), "none"
    def bind(self, model):
        return None
    def read(self, moment):
        return [self.reading("toy_step", moment.step, float(moment.step))]
'''
TOY_CHECK = """
CHECKS = (*CHECKS, Check(code="RKSP999", name="toy", level=Level.NOTE, title="A toy", measures="-",
    why="-", source="-", healthy="-", fix="-", failing="-", stable="-", look=lambda e: iter(())))
"""
TOY_OPTIMIZER = """
OPTIMIZERS = (*OPTIMIZERS, OptimizerSpec(name="toy", family="plain", aliases=(("toyopt", ""),),
    make=makers.sgd))
"""
# A score at the cheapest and at the dearest tier, so that no table of optimizers is forgotten.
TOY_OPTIMIZER_SCORED = """
import rksp
from rksp.optimizers.table import optimizer_named
print(optimizer_named('ToyOpt')[0].name)
small = {'n_layer': 2, 'n_embd': 16, 'n_head': 2, 'n_positions': 32, 'vocab_size': 256}
recipe = {'optimizer': 'toy', 'weight_decay': 0.1, 'sequence_length': 32}
for evidence in ('config', 'response'):
    source = rksp.resolve('gpt2', overrides=small)
    found = rksp.score(source, recipe=recipe, lr=1e-3, evidence=evidence, states=128)
    print(found.report.seeds[0].risk.evidence, found.verdict, found.reasons[-1])
"""
TOY_FORMAT = """
FORMATS = (*FORMATS, Format(name="toy", renderings=dict.fromkeys(KINDS, "rksp.report.toy:render")))
RENDERINGS |= {(kind, "toy"): "rksp.report.toy:render" for kind in KINDS}
"""
# kind -> file of the copy: text to add, or (text, text in place of it); then what proves it
TOYS = {
    "monitor": (
        {
            "rksp/watch/monitors/toy.py": TOY_MONITOR,
            "rksp/watch/monitors/registry.py": "\nfrom rksp.watch.monitors.toy import Toy\n"
            "MONITORS['toy'] = Toy\n",
            "rksp/watch/monitors/rule_table.py": "\nRULES['toy_step'] = Rule()\n",
        },
        "from rksp.watch.monitors.registry import make_monitors, markdown_table as t\n"
        "print(make_monitors(['toy'])[0].name, 'toy_step' in t())",
        "toy True",
    ),
    "check": (
        {"rksp/checks/shape.py": TOY_CHECK},
        "from rksp.checks.registry import find_check\nprint(find_check('toy').code)",
        "RKSP999",
    ),
    "optimizer": (
        {"rksp/optimizers/table.py": TOY_OPTIMIZER},
        TOY_OPTIMIZER_SCORED,
        "toy\nconfig cannot tell no labelled run has the optimizer 'toy'\n"
        "response cannot tell no labelled run has the optimizer 'toy'",
    ),
    "format": (
        {
            "rksp/report/toy.py": "def render(document):\n    return document.kind\n",
            "rksp/report/formats.py": TOY_FORMAT,
        },
        "from rksp.report.formats import formats_of\n"
        "print([formats_of(k)[-1] for k in ('score', 'confirm', 'grid')])",
        "['toy', 'toy', 'toy']",
    ),
}


@pytest.fixture
def copy(tmp_path):
    """The packages as they are installed, in a folder of their own."""
    stored = shutil.ignore_patterns("corpus", "__pycache__")
    shutil.copytree(ROOT / "rksp", tmp_path / "rksp", ignore=stored)
    for home in HOMES:
        keep = shutil.ignore_patterns("runs", "images", "__pycache__")
        shutil.copytree(ROOT / home, tmp_path / "rksp" / home, ignore=keep)
    return tmp_path


@pytest.mark.parametrize("kind", TOYS)
def test_a_toy_needs_no_more_files_than_it_says(copy, kind):
    changes, proof, shown = TOYS[kind]
    assert len(changes) <= 3
    for name, text in changes.items():
        path = copy / name
        before = path.read_text() if path.exists() else ""
        path.write_text(before + text)
    code = f"import sys\nsys.path.insert(0, {str(copy)!r})\n{proof}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=copy
    )
    assert done.stdout.strip() == shown, done.stderr


def test_without_its_line_a_toy_is_unknown(copy):
    code = f"import sys\nsys.path.insert(0, {str(copy)!r})\n{TOYS['check'][1]}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "No check is called 'toy'" in done.stderr
