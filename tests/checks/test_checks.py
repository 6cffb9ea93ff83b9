"""Checks together: their order, their facts, families at their defaults, and what they teach."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from support.check_evidence import (
    BLOCK,
    TUNED,
    found,
    healthy,
    measured,
    on_meta,
    token_batch,
)
from support.reports import with_findings
from support.small_zoo import zoo
from torch import nn

from lab.zoo import ZooConfig, ZooTransformer
from rksp.checks.evidence import published_rate
from rksp.checks.facts import read_facts
from rksp.checks.registry import CHECKS, find_check, run_checks
from rksp.cli import main
from rksp.datasets.probe import make_probe
from rksp.documents.finding import Level
from rksp.ground.errors import InputError
from rksp.models.resolve import resolve_tiny
from rksp.recipe import Recipe
from rksp.report.formats import render


def test_errors_come_first_and_equals_by_code():
    evidence = healthy(
        recipe={"warmup_steps": 0, "learning_rate": 5e-3},
        forward={"loss": 110.0, "activation_absmax": 1000.0},
        facts={"block_norms": 0},
    )
    findings = run_checks(evidence)
    order = list(Level)
    keys = [(order.index(finding.level), finding.code) for finding in findings]
    assert keys == sorted(keys)
    assert {finding.level for finding in findings} == set(Level)
    assert run_checks(evidence) == findings


class _Unread:
    """A recipe of which some fields may not be read, here all but what the start is decided by."""

    weights_needed_by = ""

    def __getattr__(self, name):
        raise AssertionError(f"{name} was read")


class _Rateless(Recipe):
    """A recipe whose rate may not be read."""

    def __getattribute__(self, name):
        assert name != "learning_rate", f"{name} was read"
        return super().__getattribute__(name)


SEVERAL = (
    healthy(forward={"loss": 110.0, "logit_std": 50.0}, facts={"block_norms": 0}),
    healthy(config={"num_attention_heads": 3, "hidden_size": 4096, "dropout": 0.9}),
    healthy(recipe={"precision": "fp16-pure", "sequence_length": 70_000, "warmup_steps": 900}),
    healthy(recipe={"precision": "fp8", "max_grad_norm": None, "adam_beta2": 0.9999}),
    healthy(recipe={"peft": "lora", "lora_rank": 4, "objective": "dpo"}, start=TUNED),
)


def test_a_check_that_is_not_of_the_recipe_reads_none_of_it():
    of_model = [check for check in CHECKS if check.reads == "model"]
    assert len(of_model) > 10
    for evidence in SEVERAL:
        blind = replace(evidence, recipe=_Unread(), start_here=None, likely_edge=None)
        for check in of_model:
            assert tuple(check.look(blind)) == tuple(check.look(evidence)), check.code
    with pytest.raises(AssertionError, match="was read"):
        tuple(find_check("learning-rate").look(blind))


def test_a_check_that_is_not_of_the_rate_reads_none():
    of_recipe = [check for check in CHECKS if check.reads == "recipe"]
    assert len(of_recipe) > 15
    seen = 0
    for evidence in SEVERAL:
        rateless = _Rateless.model_construct(**evidence.recipe.__dict__)
        answer = dict.fromkeys(("start_here", "do_not_exceed", "likely_edge"))
        blind = replace(evidence, recipe=rateless, **answer)
        for check in of_recipe:
            looked = tuple(check.look(evidence))
            assert tuple(check.look(blind)) == looked, check.code
            seen += len(looked)
    assert seen >= 3
    with pytest.raises(AssertionError, match="was read"):
        tuple(find_check("optimizer-rate").look(blind))


def test_recipes_of_one_model_share_what_does_not_depend_on_them():
    config = {"resid_pdrop": 0.9, "hidden_size": 4096}
    recipes = [
        {"learning_rate": rate, "precision": precision}
        for precision in ("fp32", "fp16-pure")
        for rate in (1e-4, 1e-1)
    ]
    alone = [run_checks(healthy(config=config, recipe=recipe)) for recipe in recipes]
    seen = {}
    shared = [run_checks(healthy(config=config, recipe=recipe), seen) for recipe in recipes]
    assert shared == alone and len({str(found) for found in alone}) == 4
    kept = [{(check.name, one.level) for check, one in sights} for sights in seen.values()]
    assert len(kept) == 3 and all(("dropout", Level.ERROR) in sights for sights in kept)


def test_the_table_is_in_order_and_its_names_are_names():
    codes = [check.code for check in CHECKS]
    assert codes == sorted(set(codes))
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    assert all(name == name.lower() and " " not in name for name in names)
    for check in CHECKS:
        assert check.texts.fix.endswith("."), check.code
        for part in ("title", "measures", "why", "source", "healthy", "failing", "stable"):
            assert getattr(check.texts, part).strip(), (check.code, part)


def test_published_rate_passes_through_gpt_3s_ends():
    assert published_rate(125_000_000) == pytest.approx(6e-4)
    assert published_rate(175_000_000_000) == pytest.approx(0.6e-4, rel=0.02)


@pytest.mark.parametrize("wanted", ["RKSP101", "rksp101", "initial-loss", "Initial-Loss"])
def test_a_check_is_found_by_code_and_name(wanted: str):
    assert find_check(wanted).code == "RKSP101"


def test_an_unknown_check_names_the_nearest():
    with pytest.raises(InputError, match="did you mean RKSP10"):
        find_check("RKSP109")
    with pytest.raises(InputError, match="attention-entropy"):
        find_check("attention-entropie")
    with pytest.raises(InputError, match="rksp explain lists"):
        find_check("zzz")


class ByLayer:
    """A configuration of transformers whose layers differ."""

    num_attention_heads = 8

    @property
    def head_dim(self) -> int:
        raise RuntimeError("it is a per-layer attribute")


def test_a_setting_that_differs_by_layer_is_no_setting():
    evidence = healthy(config={"text_config": ByLayer()})
    assert evidence.settings.get("head_dim") is None
    assert evidence.settings.get("head_dim", "num_attention_heads") == 8
    assert evidence.settings.number("head_dim", "num_attention_heads") == 8
    assert healthy(config={"d_ff": [1, 2], "tied": True}).settings.number("d_ff", "tied") is None


def test_encoder_and_decoder_are_chains_of_their_own():
    quiet = [replace(BLOCK, name=f"encoder.{i}", rms_out=1.0) for i in range(8)]
    loud = [replace(BLOCK, name=f"decoder.{i}", rms_out=100.0) for i in range(8)]
    assert "residual-scaling" not in found(healthy(forward={"blocks": (*quiet, *loud)}))


def test_facts_are_read_from_the_modules():
    model = zoo(num_hidden_layers=3, scale_residual_init=True, qk_norm=True)
    evidence = measured(model, token_batch(256))
    facts = evidence.facts
    assert (facts.depth, facts.width) == (3, 64)
    assert facts.parameters == sum(p.numel() for p in model.parameters())
    assert facts.qk_norms == 6
    assert facts.block_norms == 6 + 6
    assert facts.attentions == 3
    assert facts.input_std == pytest.approx(0.02, rel=0.02)
    assert facts.output_std / facts.input_std == pytest.approx(1 / math.sqrt(6), rel=0.05)


def test_facts_know_gpt_2s_transposed_matrices_and_ties():
    source = resolve_tiny("gpt2")
    model = source.build(0)
    facts = read_facts(model, (("transformer.h", 4),), 64)
    assert facts.output_std / facts.input_std == pytest.approx(1 / math.sqrt(8), rel=0.05)
    assert facts.ties_embeddings
    assert facts.embedding_std == pytest.approx(0.02, rel=0.05)
    assert facts.qk_norms == 0


@pytest.mark.parametrize(("width", "std", "loss"), [(1024, 0.02, 16.0), (64, 1.0, 20.0)])
def test_a_tied_output_layer_that_copies_its_input_token_is_healthy_and_a_wild_one_is_not(
    width, std, loss
):
    from transformers import BloomConfig, BloomForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": 1000, "hidden_size": width, "n_layer": 2, "n_head": 4}
    model = BloomForCausalLM(BloomConfig(**sizes, initializer_range=std, bos_token_id=0))
    evidence = measured(model, token_batch(1000))
    assert evidence.facts.ties_embeddings and evidence.forward.loss > loss
    assert ("initial-loss" in found(evidence)) == (std == 1.0)


def test_biases_that_balance_experts_are_read_from_the_modules():
    gate = nn.Linear(8, 4)
    gate.register_buffer("e_score_correction_bias", torch.zeros(4))
    blocks = nn.ModuleDict({"blocks": nn.Sequential(nn.Linear(8, 16), gate)})
    assert read_facts(blocks, (("blocks", 2),), 8).balancing_biases == 1
    plain = nn.ModuleDict({"blocks": nn.Sequential(nn.Linear(8, 16), nn.Linear(8, 4))})
    assert read_facts(plain, (("blocks", 2),), 8).balancing_biases == 0


def test_facts_of_a_skeleton_have_shapes_but_no_scales():
    config = ZooConfig(num_hidden_layers=2)
    facts = on_meta(ZooTransformer, config, (("blocks", 2),), 64)
    assert facts.depth == 2
    assert facts.block_norms == 4
    assert facts.input_std is None


def test_a_model_without_ends_or_norms_has_none():
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8))
    facts = read_facts(nn.ModuleDict({"blocks": model}), (("blocks", 2),), 8)
    assert facts.embedding_std is None
    assert not facts.ties_embeddings
    assert facts.block_norms == facts.attentions == 0


def test_zero_initialized_branches_are_noted_from_a_real_pass():
    assert found(measured(zoo(zero_init_branches=True), token_batch(256)))[
        "zero-init-branch"
    ].value == pytest.approx(4)
    assert "zero-init-branch" not in found(measured(zoo(), token_batch(256)))


@pytest.mark.parametrize("norm", ["none", "pre_ln", "post_ln", "rmsnorm", "subln", "deepnorm"])
def test_missing_normalization_is_seen_in_a_real_model(norm: str):
    evidence = measured(zoo(norm=norm), token_batch(256))
    assert ("missing-normalization" in found(evidence)) == (norm == "none")


def test_a_stream_that_grows_with_depth_is_seen_in_a_real_pass():
    switches = {"num_hidden_layers": 8, "init_scheme": "fan_in", "norm": "none"}
    loud, quiet = zoo(**switches), zoo(**switches | {"norm": "pre_ln"})
    with torch.no_grad():
        for name, weight in loud.blocks.named_parameters():
            if name.endswith("weight"):
                weight.mul_(1.5)
    assert found(measured(loud, token_batch(256)))["residual-scaling"].value > 4
    assert "residual-scaling" not in found(measured(quiet, token_batch(256)))


DENSE = ("gpt2", "llama", "qwen3", "gemma2", "olmo2", "opt", "bert", "mamba", "t5", "gpt_neox")
MIXTURES = ("mixtral", "olmoe", "qwen3_moe")


@pytest.mark.parametrize("family", DENSE + MIXTURES)
def test_families_at_their_defaults_are_not_accused(family: str):
    source = resolve_tiny(family)
    probe = make_probe(source, num_sequences=4, sequence_length=64)
    evidence = measured(
        source.build(0), probe.batch, respond=True, config=source.config, sequence_length=256
    )
    assert set(found(evidence)) == ({"balance-loss-off"} if family in MIXTURES else set())


def test_a_terminal_shows_every_finding_the_worst_first():
    evidence = healthy(
        recipe={"warmup_steps": 0, "learning_rate": 5e-3, "precision": "fp16-pure"},
        forward={"loss": 110.0, "logit_std": 20.0, "activation_absmax": 1e5},
        facts={"block_norms": 0},
    )
    findings = list(run_checks(evidence))
    assert len(findings) > 7
    page = render(with_findings(*findings), "full")
    lines = page.partition("\nFindings\n")[2].replace("\n", " ")
    assert findings[0].level == "error"
    places = [lines.index(f"{f.level} {f.code} ") for f in findings]
    assert places == sorted(places) and places[0] == 0
    for part in (findings[0].message, findings[0].fix):
        assert " ".join(part.split()) in " ".join(lines.split())


def leaves_with(arguments: list[str]) -> int | str | None:
    with pytest.raises(SystemExit) as leaving:
        main(arguments)
    return leaving.value.code


def test_rksp_explain_lists_them_all(capsys):
    assert leaves_with(["explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines] == [[c.code, c.level, c.name] for c in CHECKS]
    assert leaves_with(["explain", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["code"] for row in rows] == [check.code for check in CHECKS]
    assert leaves_with(["explain", "--format", "xml"]) == 2


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.code)
def test_rksp_explain_teaches_each(check, capsys):
    assert leaves_with(["explain", check.name]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith(f"{check.code} {check.name}")
    for title in ("Measures", "Why", "Healthy", "Fix", "Fails", "Passes", "Source"):
        assert title in said
    assert check.texts.why.split()[0] in said


def test_rksp_explain_of_nothing_is_one_sentence(capsys):
    assert leaves_with(["explain", "RKSP109"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "did you mean" in captured.err
