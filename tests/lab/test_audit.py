"""The checks over public runs: right about failures, quiet about successes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from lab.audit.__main__ import main
from lab.audit.audit import PublicRun, audit, corpus
from rksp.checks.registry import CHECKS
from rksp.documents.finding import Level

BAD = (Level.ERROR, Level.WARNING)


def test_the_corpus_is_large_and_every_row_cites_its_source():
    healthy, failures = corpus("healthy"), corpus("failures")
    assert len(healthy) >= 60 and len(failures) >= 40
    names = [run.name for run in healthy + failures]
    assert len(set(names)) == len(names)
    codes = {check.code for check in CHECKS}
    for run in healthy + failures:
        assert len(run.source) > 10 and set(run.expected) <= codes, run.name
        known = {*run.config, *run.recipe, *run.measured}
        assert set(run.inferred) <= known | {"adam_beta2", "precision"}, run.name
    assert all(run.cause and (run.expected or run.unseen) for run in failures)
    assert not any(run.cause or run.expected for run in healthy)


def test_public_successes_are_left_alone():
    seen = audit()
    # Four: fp16 at 100 billion parameters warns of GPT-3, and of GLM-130B, which collapsed.
    assert len(seen.warned) <= 4, seen.warned
    assert seen.in_error == ()


def test_public_failures_are_named():
    seen = audit()
    visible = len(seen.named) + len(seen.missed)
    assert len(seen.named) >= 0.85 * visible, seen.missed
    assert visible >= 40
    assert len(seen.named) + len(seen.missed) + len(seen.unseen) == len(corpus("failures"))


def test_tallies_add_up():
    seen = audit()
    assert [tally.code for tally in seen.tallies] == [check.code for check in CHECKS]
    assert sum(tally.hits for tally in seen.tallies) >= len(seen.named)
    assert sum(tally.false_alarms for tally in seen.tallies) >= len(seen.warned)


def test_a_cause_is_a_setting_that_p_failed_does_not_judge():
    judged = ("learning_rate", "warmup_steps", "batch_size", "max_steps", "z_loss")
    assert not [check.code for check in CHECKS if check.is_cause and check.texts.field in judged]
    assert not [check.code for check in CHECKS if check.is_cause and check.level is Level.NOTE]


def test_failures_by_precision_initialization_or_configuration_carry_a_cause():
    by_rate = {check.code for check in CHECKS if not check.is_cause}
    for run in corpus("failures"):
        named = [x for x in run.findings() if x.level in BAD and x.code in run.expected]
        if named and not set(run.expected) & by_rate:
            assert all(finding.is_cause for finding in named), run.name
    names = ("T5 from scratch", "Qwen2 7B, fp16", "BigScience 104B, experiment 8")
    runs = [run for run in corpus("failures") if run.name in names]
    assert len(runs) == len(names)
    assert all(any(f.is_cause and f.level in BAD for f in run.findings()) for run in runs)


# failure → what its source changed to repair it
TWINS = {
    "BigScience 104B, experiment 8": {"config": {"initializer_range": 0.006}},
    "MPT-125M": {"recipe": {"warmup_steps": 1000}},
    "T5 base, fp16": {"recipe": {"precision": "fp32"}},
    "Qwen2 7B, fp16": {"recipe": {"precision": "bf16"}},
    "GPT-Neo, fp16": {"recipe": {"precision": "bf16"}},
    "Mamba 130M cast to bf16": {"recipe": {"precision": "bf16"}},
    "Fine-tuning a 1B in fp8": {"recipe": {"precision": "bf16"}},
    "T5 from scratch": {"measured": {"loss": 11.0, "logit_std": 1.0}},
    "Marin 8B at 2e-3": {"recipe": {"learning_rate": 1e-3}},
    "Marin 8B at 1e-3, in its last phase": {"recipe": {"z_loss": 1e-4}},
    "Marin 32B": {"config": {"qk_norm": True}},
    "RoPE-ViT-B at LAMB's rate under AdamW": {"recipe": {"max_grad_norm": 1.0}},
    "Post-norm 12 and 12 on WMT'14": {"config": {"model_type": "m2m_100"}},  # pre-norm
    "KempnerForge 410M, top-1": {"config": {"router_z_loss_coef": 1e-3}},
    "Mixtral, no balance loss": {"config": {"output_router_logits": True}},
    "A mixture in trl with coefficient 0": {"config": {"router_aux_loss_coef": 0.001}},
    "4.8B at 1e-2 without QK-norm": {"config": {"qk_norm": True}},
    "4.8B at 0.3 with ε = 1e-8": {"recipe": {"adam_epsilon": 1e-15}},
    "CLIP ViT-H with β₂ = 0.999": {"recipe": {"adam_beta2": 0.95}},
    "Llama 2 7B by LoRA at 5e-2": {"recipe": {"learning_rate": 2e-4}},
    "Marin sweep, adamw, warm-up 500": {"recipe": {"warmup_steps": 2000}},
    "Marin sweep, lion, β₁ 0.98": {"recipe": {"adam_beta1": 0.9}},
    "Marin sweep, muon at 0.128": {"recipe": {"learning_rate": 0.016}},
}


@pytest.mark.parametrize("name", TWINS)
def test_the_documented_repair_silences_the_finding(name: str):
    run = next(run for run in corpus("failures") if run.name == name)
    changed = {part: getattr(run, part) | new for part, new in TWINS[name].items()}
    twin = run.model_copy(update=changed)
    assert {f.code for f in run.findings() if f.level in BAD} & set(run.expected)
    assert not {f.code for f in twin.findings() if f.level in BAD} & set(run.expected)


def test_a_miss_is_counted(monkeypatch):
    import lab.audit.audit as module

    quiet = PublicRun(name="x", source="nowhere", expected=("RKSP503",), cause="y")
    loud = PublicRun(name="z", source="nowhere", recipe={"adam_epsilon": 0.0})
    monkeypatch.setattr(module, "corpus", lambda kind: (quiet,) if kind == "failures" else (loud,))
    seen = audit()
    assert seen.missed == (("x", "RKSP503"),)
    assert seen.in_error == (("z", "RKSP405"),)
    tallies = {tally.code: tally for tally in seen.tallies}
    assert tallies["RKSP503"] == replace(tallies["RKSP503"], misses=1, hits=0)
    assert tallies["RKSP405"].false_alarms == 1


def test_the_command_prints_the_audit(capsys):
    for arguments in ([], ["--json"]):
        main(arguments)
        said = capsys.readouterr().out
        assert ("public successes carry a warning" in said) == (not arguments)
    assert len(json.loads(said)["tallies"]) == len(CHECKS)
