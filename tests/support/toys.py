"""One toy of each kind that CONTRIBUTING.md says how to add: its files, and what proves it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Text to add at the end of a file, which may be new; or (line of it, text to add behind that line).
Change = str | tuple[str, str]

_RUN = """
import json, os, sys
def rksp(*words):
    sys.argv = ["rksp", *words]
    from contextlib import redirect_stdout
    from io import StringIO
    from rksp.cli import main
    told = StringIO()
    try:
        with redirect_stdout(told):
            main()
    except SystemExit:
        pass
    return told.getvalue()
"""
_CONFIRM = """
found = json.loads(rksp("confirm", "gpt2", "--shrink", "--steps", "2", "--seeds", "1", "--lr",
    "1e-3", "--batch-size", "4", "--sequence-length", "32", "--evidence", "config", "--format",
    "json", *TYPED))
"""

_MONITOR = '''
"""A toy."""
from rksp.watch.moment import Phase
from rksp.watch.monitors.base import Monitor, Rule

class Toy(Monitor):
    """Read the step itself."""
    name, phase, default_every, source = "toy", Phase.UPDATE, 1, "none"
    quantities = {"toy_step": Rule(critical=1.0)}
    def bind(self, model):
        return None
    def read(self, moment):
        return [self.reading("toy_step", moment.step, float(moment.step))]
'''
_CHECK = """

@check("RKSP999")
def _toy(evidence):
    yield Observation(level=Level.NOTE, message="A toy.", value=1.0)
"""
_CHECK_TEXTS = """
[RKSP999]
name = "toy"
level = "note"
title = "A toy"
measures = "-"
why = "-"
source = "-"
healthy = "-"
fix = "-"
failing = "-"
stable = "-"
"""
_READER = '''
"""A toy."""

def _length(draft):
    draft.default("max_steps", 77)
'''
_TRAINER = """
[toy]
title = "Toy"
version = "1"
source = "none"
marks = [{ all = "toy toy_rate" }]
steps = [{ learning_rate = "toy_rate" }, "_length"]
"""
_PAST_READER = '''
"""A toy."""
from rksp.own_runs.run import RawRun, RunReader

def _read(path):
    for line in path.read_text().splitlines():
        rate, loss = line.split()
        yield RawRun(name=rate, file=path, said={"learning_rate": float(rate)},
            finals={"loss": float(loss)})

READER = RunReader(matches=lambda path: path.suffix == ".toy", read=_read)
'''
_OPTIMIZER = """
[toy]
family = "plain"
aliases = {toyopt = ""}
make = { kind = "SGD", takes = "momentum", fused = true }
"""
# A score at the cheapest and at the dearest tier, so that no table of optimizers is forgotten.
_OPTIMIZER_SCORED = """
import rksp
from rksp.recipe.optimizers.table import optimizer_named
print(optimizer_named('ToyOpt')[0].name)
small = {'n_layer': 2, 'n_embd': 16, 'n_head': 2, 'n_positions': 32, 'vocab_size': 256}
recipe = {'optimizer': 'toy', 'weight_decay': 0.1, 'sequence_length': 32}
for evidence in ('config', 'gradient'):
    source = rksp.resolve('gpt2', overrides=small)
    found = rksp.score(source, recipe=recipe, lr=1e-3, evidence=evidence, states=128)
    print(found.report.seeds[0].risk.evidence, found.verdict, found.reasons[-1])
"""
_INTERVENTION = '''
"""A toy."""
from rksp.watch.interventions.base import Intervention

class Toy(Intervention):
    """Do nothing."""
    name = "toy"
'''
_FAULT = '''
"""A toy."""
from rksp.watch.faults.base import Fault

class Toy(Fault):
    """Triple the learning rate."""
    name = "toy"
    def recipe(self, recipe):
        return recipe.model_copy(update={"learning_rate": 3 * recipe.learning_rate})
'''
_MEMBER_SCORED = """
import torch, rksp
from lab.zoo.members import build_member
shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
model = build_member("toy", shape, seed=0)
found = rksp.score(model, torch.randint(0, 256, (8, 16)), lr=1e-3, states=64)
print(model.config.residual_multiplier, found.verdict != "", found.width)
"""
_EXPERIMENT = """
from lab.experiments.catalog import EXPERIMENTS
print(len(EXPERIMENTS["toy"].plan()))
"""


@dataclass(frozen=True)
class Toy:
    """A toy.

    Attributes:
        changes: File of the copy → what is added to it.
        proof: Python that uses the toy and prints something.
        shown: What it prints.
    """

    changes: Mapping[str, Change]
    proof: str
    shown: str


# By the words of the table in CONTRIBUTING.md.
TOYS = {
    "a monitor": Toy(
        {
            "rksp/watch/monitors/toy.py": _MONITOR,
            "rksp/watch/registry.py": "\nfrom rksp.watch.monitors.toy import Toy\n"
            "MONITORS['toy'] = Toy\nRULES |= Toy.quantities\n",
        },
        _RUN
        + "TYPED = '--arm', 'baseline', '--monitor', 'toy'"
        + _CONFIRM
        + "print(sorted(found['trials'][0]['first_alarms']))",
        "['toy']",
    ),
    "a check": Toy(
        {"rksp/checks/shape.py": _CHECK, "rksp/checks/checks.toml": _CHECK_TEXTS},
        "import rksp\nfound = rksp.score('gpt2', evidence='config').findings\n"
        "print([finding.message for finding in found if finding.code == 'RKSP999'])",
        "['A toy.']",
    ),
    "a recipe reader": Toy(
        {
            "rksp/recipe_files/readers/toy.py": _READER,
            "rksp/recipe_files/keys.toml": _TRAINER,
            "rksp/recipe_files/registry.py": "\nfrom rksp.recipe_files.readers import toy\n"
            "READERS = (*READERS, reader_of('toy', vars(toy)))\n",
        },
        _RUN
        + "open('run.yaml', 'w').write('toy: 1\\ntoy_rate: 3.0e-4\\n')\n"
        + "found = json.loads(rksp('score', 'gpt2', '--recipe', 'run.yaml', '--evidence', 'config',"
        + " '--format', 'json'))['recipe']\nprint(found['learning_rate'], found['max_steps'])",
        "0.0003 77",
    ),
    "a reader of past runs": Toy(
        {
            "rksp/own_runs/readers/toy.py": _PAST_READER,
            "rksp/own_runs/registry.py": "\nfrom rksp.own_runs.readers import toy\n"
            "READERS = (*READERS, toy.READER)\n",
        },
        _RUN
        + "open('past.toy', 'w').write('1e-4 4.0\\n3e-4 3.5\\n1e-3 6.0\\n')\n"
        + "found = json.loads(rksp('runs', 'past.toy', '--target', 'gpt2', '--format', 'json'))\n"
        + "print([run['label'] for run in found['history']['ladders'][0]['runs']])",
        "['undertrained', 'healthy', 'failed']",
    ),
    "an optimizer": Toy(
        {"rksp/recipe/optimizers/optimizers.toml": _OPTIMIZER},
        _OPTIMIZER_SCORED,
        "toy\nconfig cannot tell the labelled runs include no optimizer toy\n"
        "gradient cannot tell the labelled runs include no optimizer toy",
    ),
    "a model type": Toy(
        {"rksp/models/families.toml": 'granite = "encoder of=bert overflows_fp16"\n'},
        _RUN
        + "found = json.loads(rksp('score', 'granite', '--precision', 'fp16', '--peft', "
        + "'lora', '--evidence', 'config', '--format', 'json'))\n"
        + "print([f['message'] for f in found['findings'] if 'granite' in f['message']])",
        "['Trained weights of granite models are known to overflow in fp16.']",
    ),
    "an intervention": Toy(
        {
            "rksp/watch/interventions/toy.py": _INTERVENTION,
            "rksp/watch/registry.py": "\nfrom rksp.watch.interventions.toy import "
            "Toy\nINTERVENTIONS['toy'] = Toy\n",
        },
        _RUN
        + "TYPED = '--arm', 'baseline', '--arm', 'toy'"
        + _CONFIRM
        + "print([arm['arm'] for arm in found['arms']])",
        "['baseline', 'toy']",
    ),
    "a fault": Toy(
        {
            "rksp/watch/faults/toy.py": _FAULT,
            "rksp/watch/registry.py": "\nfrom rksp.watch.faults.toy import Toy\n"
            "FAULTS['toy'] = Toy\n",
        },
        _RUN
        + "TYPED = '--arm', 'baseline', '--fault', 'toy'"
        + _CONFIRM
        + "print(found['faults'], len(found['trials']))",
        "['toy'] 1",
    ),
    "a lab family": Toy(
        {
            "lab/zoo/members.py": (
                "ZOO_FAMILIES: dict[str, dict[str, Any]] = {",
                '    "toy": {"residual_multiplier": 0.5},',
            )
        },
        _MEMBER_SCORED,
        "0.5 True 16",
    ),
    "a report format": Toy(
        {
            "rksp/report/toy.py": "def render(document):\n    return f'a toy {document.kind}'\n",
            "rksp/report/formats.py": (
                "FORMATS = (",
                '    Format("toy", "", ("score",), "rksp.report.toy:render"),',
            ),
        },
        _RUN + "print(rksp('score', 'gpt2', '--evidence', 'config', '--format', 'toy'))",
        "a toy score",
    ),
    "an experiment": Toy(
        {
            "lab/experiments/catalog.py": "\nEXPERIMENTS['toy'] = Experiment("
            "setting=EXPERIMENTS['kss'].setting, blocks=[Block(seeds=range(3))], tables=())\n"
        },
        _RUN + _EXPERIMENT,
        "3",
    ),
    "an option": Toy(
        {
            "rksp/documents/options.py": (
                '    ] = "gradient"',
                '    toy: Annotated[bool, Flag("--toy", "A toy.")] = False\n',
            )
        },
        _RUN
        + "print('--toy' in rksp('score', '--help-all'))\n"
        + "print(rksp('score', 'gpt2', '--toy', '--evidence', 'config', '--format', 'json')[0])",
        "True\n{",
    ),
}
