"""A recipe is checked before a model is built: fast, without torch, and saying what it left out."""

from __future__ import annotations

import pytest
from support.check_evidence import TUNED, found, healthy

from rksp.checks.evidence import CheckEvidence, Need
from rksp.checks.registry import (
    CHECKS,
    blamed_field,
    not_run,
    run_checks,
    select_findings,
    setting_line,
)
from rksp.documents.finding import Level
from rksp.ground.errors import InputError
from rksp.models.declared import Declared
from rksp.recipe import Recipe
from rksp.recipe.start import SCRATCH, decide_start

LLAMA_7B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "intermediate_size": 11_008,
    "vocab_size": 32_000,
    "max_position_embeddings": 4096,
    "rope_theta": 1e4,
    "initializer_range": 0.02,
}
GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024}
GOOD = {
    "learning_rate": 3e-4,
    "warmup_steps": 2000,
    "max_steps": 100_000,
    "batch_size": 512,
    "sequence_length": 1024,
    "adam_beta2": 0.95,
}

# Silent in the first release, though certain or likely to break.
CONTRADICTIONS = {
    "warm-up longer than the run": (GPT2, {"warmup_steps": 200_000}, "RKSP505"),
    "sequences beyond the positions": (GPT2, {"sequence_length": 2048}, "RKSP205"),
    "clipping at 1e-6": (GPT2, {"max_grad_norm": 1e-6}, "RKSP406"),
    "clipping at 1e4": (GPT2, {"max_grad_norm": 1e4}, "RKSP406"),
    "weight decay 5": (GPT2, {"weight_decay": 5}, "RKSP409"),
    "a rate that moves nothing": (GPT2, {"learning_rate": 1e-12}, "RKSP506"),
    "beta2 0.5": (GPT2, {"adam_beta2": 0.5}, "RKSP407"),
    "beta2 0.99999": (GPT2, {"adam_beta2": 0.99999}, "RKSP407"),
    "beta1 0.999": (GPT2, {"adam_beta1": 0.999}, "RKSP407"),
    "epsilon 1e-2": (GPT2, {"adam_epsilon": 1e-2}, "RKSP405"),
    "dropout 0.9": (GPT2 | {"resid_pdrop": 0.9}, {}, "RKSP704"),
    "rotary base at 128k": (
        LLAMA_7B | {"max_position_embeddings": 131_072},
        {"sequence_length": 131_072},
        "RKSP206",
    ),
    "balance loss at 0": (
        LLAMA_7B | {"num_experts": 8, "router_aux_loss_coef": 0.0},
        {},
        "RKSP804",
    ),
    "Lion at Adam's rate": (GPT2, {"optimizer": "lion", "learning_rate": 6e-4}, "RKSP507"),
}


def _known(recipe, config=None, **more):
    """The evidence before a model is built."""
    more |= {"start": decide_start(more.get("start", SCRATCH), recipe=recipe)}
    return CheckEvidence(recipe=recipe, config=config, **more)


CERTAIN = ("RKSP205", "RKSP506", "RKSP704")


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_what_was_silent_is_found_without_a_model(case: str):
    config, change, code = CONTRADICTIONS[case]
    levels = {f.code: f.level for f in run_checks(_known(Recipe(**GOOD | change), config))}
    assert levels.get(code) is (Level.ERROR if code in CERTAIN else levels[code])
    assert levels[code] is not Level.NOTE
    plain = LLAMA_7B if "model_type" in config and config["model_type"] == "llama" else GPT2
    assert run_checks(_known(Recipe(**GOOD), plain)) == ()


def test_full_fine_tuning_of_7b_at_1e_2_is_an_error():
    recipe = Recipe(learning_rate=1e-2, warmup_steps=100, batch_size=64, sequence_length=2048)
    seen = run_checks(_known(recipe, LLAMA_7B, start=TUNED))
    assert [(f.code, f.level) for f in seen] == [("RKSP508", "error")]
    usual = recipe.model_copy(update={"learning_rate": 2e-5})
    assert run_checks(_known(usual, LLAMA_7B, start=TUNED)) == ()


def test_what_did_not_run_is_listed_with_its_reason():
    alone = {entry.code: entry.reason for entry in not_run(_known(Recipe(**GOOD)).held)}
    beside = {entry.code: entry.reason for entry in not_run(_known(Recipe(**GOOD), GPT2).held)}
    assert alone["RKSP205"] == "it needs the model's configuration"
    assert beside["RKSP101"] == "it needs a forward pass"
    assert beside["RKSP305"] == "it needs the model's weights"
    assert set(beside) < set(alone) and "RKSP503" not in alone
    assert not_run(healthy().held) == ()
    assert {need for check in CHECKS for need in check.needs} == set(Need)


MIXTRAL = LLAMA_7B | {
    "model_type": "mixtral",
    "intermediate_size": 14_336,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "intermediate_size": 18_432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "vocab_size": 129_280,
}


@pytest.mark.parametrize(
    ("config", "total", "active"),
    [
        (LLAMA_7B, 6.738e9, 6.738e9),
        (GPT2 | {"vocab_size": 50_257, "tie_word_embeddings": True}, 124.4e6, 124.4e6),
        (MIXTRAL, 46.7e9, 12.9e9),
        (DEEPSEEK_V3, 671e9, 37e9),
    ],
)
def test_a_configuration_counts_its_parameters(config: dict, total: float, active: float):
    """The published counts, within 3 %."""
    shape = Declared(config).shape
    assert shape.parameters == pytest.approx(total, rel=0.03)
    assert shape.active_parameters == pytest.approx(active, rel=0.03)


def test_experts_count_as_far_as_a_token_meets_them():
    dense = healthy(config=LLAMA_7B)
    mixture = healthy(config=LLAMA_7B | {"num_experts": 8, "num_experts_per_tok": 2})
    assert mixture.active_parameters < dense.active_parameters
    assert mixture.rate_over_published < dense.rate_over_published


def test_all_advice_about_the_rate_is_one():
    evidence = healthy(
        facts={"parameters": 8_000_000_000},
        recipe={"learning_rate": 2e-2, "batch_size": 1},
        start_here=1e-4,
        do_not_exceed=2e-4,
        likely_edge=1e-3,
    )
    seen = found(evidence)
    rates = {"learning-rate", "published-rate", "batch-scaling", "missing-qk-norm"}
    assert rates <= set(seen)
    advice = {seen[name].fix.partition("ower the learning rate to ")[2] for name in rates}
    assert len(advice) == 1 and advice != {""}
    advised = float(advice.pop().rstrip("."))
    silent = found(
        healthy(
            recipe={"learning_rate": advised, "batch_size": 1}, likely_edge=1e-3, do_not_exceed=2e-4
        )
    )
    assert not rates & set(silent)


def _lowered(fix: str) -> float:
    return float(fix.rpartition(" ")[2].rstrip("."))


def test_a_fix_satisfies_every_finding_about_the_rate_and_never_repeats_it():
    """Trained weights at 2.7e-3, where the rate to start with is 2.7e-3 too."""
    lines = {"start_here": 2.69e-3, "do_not_exceed": 1e-3, "likely_edge": 2e-2}
    recipe = {"learning_rate": 2.7e-3, "batch_size": 16, "sequence_length": 256}
    small = {"parameters": 100_000_000}
    seen = found(healthy(facts=small, recipe=recipe, start=TUNED, **lines))
    assert _lowered(seen["fine-tuning-rate"].fix) < 1e-3
    assert seen["learning-rate"].fix == seen["fine-tuning-rate"].fix


@pytest.mark.parametrize("rate", [5.01e-4, 5.09e-4])
def test_a_fix_as_near_as_two_percent_names_the_direction_and_the_limit(rate):
    evidence = healthy(
        facts={"parameters": 100_000_000}, start=TUNED,
        recipe={"learning_rate": rate, "batch_size": 16, "sequence_length": 256},
        start_here=None, do_not_exceed=None, likely_edge=None,
    )  # fmt: skip
    assert found(evidence)["fine-tuning-rate"].fix == "Lower the learning rate below 5e-4."


@pytest.mark.parametrize("rate", [0.9e-3, 1e-3, 1.05e-3, 2.1e-3])
def test_a_rate_above_x_is_a_finding_also_below_a_higher_start(rate):
    lines = {"start_here": 2e-3, "do_not_exceed": 1e-3, "likely_edge": 2e-2}
    seen = found(healthy(recipe={"learning_rate": rate}, **lines))
    assert ("learning-rate" in seen) == (rate > 1e-3)


def test_every_recipe_check_blames_a_field_of_the_recipe():
    assert {check.texts.field for check in CHECKS} - {""} <= set(Recipe.model_fields)
    alone = [check for check in CHECKS if not check.needs]
    assert all(
        check.texts.field or check.texts.settings for check in alone if check.code != "RKSP901"
    )
    assert blamed_field("RKSP503") == "warmup_steps"
    assert blamed_field("RKSP101") == blamed_field("RKSP999") == ""


def test_a_finding_points_at_its_setting(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{\n "model_type": "gpt2",\n "resid_pdrop" : 0.9\n}\n')
    assert setting_line(path, "RKSP704") == 3
    path.write_text('{\n "rope_theta": 10000\n}\n')
    assert setting_line(path, "RKSP206") == 2
    assert setting_line(path, "RKSP503") == setting_line(path, "RKSP701") == 1
    assert setting_line(tmp_path / "absent.json", "RKSP206") == 1


def mixed():
    return run_checks(healthy(recipe={"warmup_steps": 0, "adam_epsilon": 0.0, "precision": "fp16"}))


def test_findings_are_selected_and_ignored_by_code_beginning_and_name():
    codes = [finding.code for finding in mixed()]
    assert {"RKSP405", "RKSP503", "RKSP307"} <= set(codes)
    assert [f.code for f in select_findings(mixed(), select=["RKSP4"])] == ["RKSP405"]
    assert "RKSP503" not in [f.code for f in select_findings(mixed(), ignore=["warmup"])]
    longer = select_findings(mixed(), select=["RKSP503"], ignore=["RKSP5"])
    assert [f.code for f in longer] == ["RKSP503"]
    assert select_findings(mixed(), select=["RKSP5"], ignore=["RKSP503"]) == ()


def test_a_level_can_be_changed_and_reorders():
    seen = select_findings(mixed(), levels={"warmup": "error", "RKSP405": "note"})
    assert seen[0].code == "RKSP503" and seen[0].level is Level.ERROR
    assert {f.code: f.level for f in seen}["RKSP405"] is Level.NOTE


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"select": ["RKSP42"]}, "RKSP42"),
        ({"ignore": ["warmupp"]}, "warmup"),
        ({"levels": {"RKSP503": "eror"}}, "did you mean error"),
        ({"levels": {"RKSP5": "error"}}, "RKSP5"),
    ],
)
def test_unknown_codes_and_levels_name_the_nearest(arguments: dict, said: str):
    with pytest.raises(InputError, match=said):
        select_findings(mixed(), **arguments)


def test_a_short_form_is_a_name_of_its_field_and_a_misspelt_one_is_answered():
    assert Recipe.parse({"warmup": 100}) == Recipe(warmup_steps=100)
    with pytest.raises(InputError, match="did you mean warmup_steps"):
        Recipe.parse({"warmup_step": 100})
