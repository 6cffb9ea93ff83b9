"""What transformers draws for the matrices of the blocks, against what a configuration declares."""

from __future__ import annotations

import json

import pytest
from torch import nn

from rksp.checks.evidence import CheckEvidence
from rksp.checks.facts import read_facts
from rksp.checks.registry import run_checks
from rksp.models.declared import Declared
from rksp.models.families import family_of
from rksp.models.resolve import resolve, resolve_tiny
from rksp.recipe import Recipe

OWN = ("clip_text_model", "funnel", "imagegpt", "metaclip_2", "mlcd", "openai-gpt")
DECLARED = ("mamba", "mamba2", "falcon_mamba", "gpt2", "jamba")


def _drawn(name: str, factor: float, folder) -> float:
    """Median RMS of the matrices that read the stream, with `initializer_range` times a factor."""
    settings = resolve_tiny(name).config.to_dict()
    for part in (settings, *(v for v in settings.values() if isinstance(v, dict))):
        if isinstance(part.get("initializer_range"), float):
            part["initializer_range"] *= factor
    path = folder / "config.json"
    path.write_text(json.dumps(settings, default=str), encoding="utf-8")
    source = resolve(str(path))
    model = source.build(0)
    chains = [(n, len(m)) for n, m in model.named_modules() if isinstance(m, nn.ModuleList)]
    return read_facts(model, chains, Declared(source.config).width).input_std


@pytest.mark.parametrize("name", OWN + DECLARED)
def test_a_family_says_whether_its_matrices_follow_the_configuration(name, tmp_path):
    ratio = _drawn(name, 4.0, tmp_path) / _drawn(name, 1.0, tmp_path)
    assert family_of((name,)).own_scales == (name in OWN)
    assert ratio == pytest.approx(1.0 if name in OWN else 4.0, rel=0.2)


def _said(name: str, **changes: object) -> list[str]:
    source = resolve(name, overrides=changes)
    evidence = CheckEvidence(recipe=Recipe(learning_rate=1e-4), config=source.config)
    return [finding.name for finding in run_checks(evidence)]


def test_a_declared_deviation_that_the_code_does_not_use_is_no_finding():
    assert "init-std" not in _said("funnel")
    assert "init-std" not in _said("clip_text_model", initializer_range=0.5)
    assert "init-std" in _said("gpt2", initializer_range=0.5)


def test_mamba_of_transformers_draws_what_it_declares():
    assert "init-std" in _said("mamba", hidden_size=2048)
    assert "init-std" not in _said("mamba", hidden_size=2048, initializer_range=0.0128)
