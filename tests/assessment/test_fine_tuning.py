"""The answer for trained weights: known rates, laws of the answer, and what is not answered."""

from __future__ import annotations

import pytest
from support.places import RUN_CONFIGS
from transformers import GPT2Config, GPT2LMHeadModel

import rksp
from rksp.assessment.fine_tuning import assess_fine_tuning, fine_tuning_inputs
from rksp.assessment.risk import About
from rksp.checks.evidence import CheckEvidence
from rksp.checks.registry import run_checks
from rksp.classifiers.fine_tuning.model import load_fine_tuning_model
from rksp.classifiers.fine_tuning.published import published_runs
from rksp.documents.answer import FromFineTuning
from rksp.recipe import Recipe
from rksp.recipe.start import Start
from rksp.recipe_files.registry import read_recipe_file
from rksp.spectra.features import Tier

BERT = {"model_type": "bert", "hidden_size": 768, "num_hidden_layers": 12, "vocab_size": 30522}
GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257}
LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "intermediate_size": 11008,
    "vocab_size": 32000,
}
SMOLLM = LLAMA | {"hidden_size": 2048, "num_hidden_layers": 24, "intermediate_size": 8192}
PUBLISHED = {  # run files of others, and what stands for the weights that they name
    "restated/litgpt/llama-2-7b_lora.yaml": LLAMA,
    "restated/llama-factory/llama3_full_sft_ds3.yaml": LLAMA,
    "restated/llama-factory/llama3_lora_dpo.yaml": LLAMA,
    "restated/llama-factory/llama3_lora_pretrain.yaml": LLAMA,
    "restated/llama-factory/llama3_lora_sft_fsdp_qlora.yaml": LLAMA,
    "restated/llama-factory/qwen2_full_sft_muon.yaml": SMOLLM | {"model_type": "qwen2"},
    "restated/ms-swift/qlora_bnb.sh": LLAMA | {"model_type": "qwen2"},
    "restated/ms-swift/streaming.sh": LLAMA | {"model_type": "qwen2"},
    "restated/trl/smollm2_sft.yaml": SMOLLM,
    "restated/trl/zephyr_orpo.yaml": LLAMA | {"model_type": "mixtral", "num_local_experts": 8},
    "restated/trl/zephyr_sft_full.yaml": LLAMA | {"model_type": "mistral"},
    "restated/wandb/bert_emotion_lora.yaml": BERT,
    "torchtune/llama2_7B_qlora.yaml": LLAMA,
    "torchtune/llama3_1_405B_qlora.yaml": LLAMA,
    "torchtune/llama3_1_8B_full_dpo.yaml": LLAMA,
    "torchtune/llama3_2_3B_lora.yaml": LLAMA,
    "torchtune/llama3_8B_dora.yaml": LLAMA,
    "torchtune/mistral_7B_qlora_single_device.yaml": LLAMA | {"model_type": "mistral"},
    "torchtune/phi4_14B_lora.yaml": LLAMA | {"model_type": "phi3"},
    "torchtune/qwen2_5_7B_lora.yaml": LLAMA | {"model_type": "qwen2"},
}
LORA = {"peft": "lora", "lora_rank": 16}
CLASSES = {"task": "text-classification"}


def answer(
    config: dict, *, task: str = "causal-lm", rate: float | None = None, **recipe: object
) -> FromFineTuning:
    given = Recipe(learning_rate=rate, **recipe)
    return assess_fine_tuning(
        fine_tuning_inputs(config, task, None, given),
        load_fine_tuning_model(),
        About(tier=Tier.CONFIG, steps=given.max_steps, learning_rate=rate),
        objective=given.objective,
    )


@pytest.mark.parametrize(
    ("config", "more", "usual"),
    [
        (LLAMA, LORA, 3e-4),
        (LLAMA, LORA | {"peft": "qlora", "lora_rank": 64}, 3e-4),
        (LLAMA | {"model_type": "stablelm"}, LORA, 3e-4),
        (GPT2, LORA, 3e-4),
        (LLAMA, {}, 2e-5),
        (LLAMA | {"model_type": "mistral"}, {}, 2e-5),
        (LLAMA | {"model_type": "gemma3_text"}, {}, 2e-5),
        (BERT, CLASSES, 5e-5),
        (BERT | {"model_type": "roberta"}, CLASSES, 5e-5),
        (BERT | {"model_type": "distilbert"}, CLASSES, 5e-5),
        (BERT, {"task": "masked-lm", "objective": "classification"}, 5e-5),
    ],
)
def test_the_start_lies_within_a_decade_of_the_known_rate(config, more, usual):
    said = answer(config, **more)
    assert said.verdict == "ok" and usual / 10 < said.start_here < usual * 10
    assert said.start_here <= said.do_not_exceed < said.likely_edge
    assert answer(config, rate=usual, **more).verdict == "ok"


@pytest.mark.parametrize("name", PUBLISHED)
def test_no_published_recipe_of_fine_tuning_is_at_risk(name):
    recipe = read_recipe_file(RUN_CONFIGS / name).recipe()
    given = recipe.model_dump(exclude={"learning_rate"}, exclude_unset=True)
    said = answer(PUBLISHED[name], rate=recipe.learning_rate, **given)
    is_covered = recipe.optimizer == "adamw"
    assert said.verdict in (("ok", "caution") if is_covered else ("cannot tell",))
    by_runs = recipe.objective in ("dpo", "orpo")
    assert not is_covered or (said.kind == "published") == by_runs


@pytest.mark.parametrize("more", [LORA, {}], ids=["lora", "all"])
def test_the_risk_rises_with_the_rate_as_the_curve_says(more):
    rates = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2]
    said = [answer(LLAMA, rate=rate, **more) for rate in rates]
    risks = [found.probability_failed for found in said]
    assert risks == sorted(risks) and said[-1].verdict == "risk"
    chances = [point.probability for point in said[0].curve]
    assert chances == sorted(chances) and chances[-1] > 0.9
    assert all(point.low <= point.probability <= point.high for point in said[0].curve)
    assert "times lower" in said[-1].counterfactual and said[0].counterfactual is None


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"objective": "dpo", "optimizer": "lion"}, "optimizer lion"),
        ({"objective": "mlm", "task": "masked-lm"}, "objective masked"),
        ({"objective": "distillation"}, "objective distillation"),
        ({"peft": "other"}, "method other"),
        ({"optimizer": "lion"}, "optimizer lion"),
        ({"task": "other", "config": {"model_type": "unheard-of"}}, "kind of model other"),
    ],
)
def test_what_no_run_has_is_not_told(more, reason):
    said = answer(**{"config": LLAMA, "rate": 1e-5} | more)
    assert said.verdict == "cannot tell" and said.kind == "untold"
    assert said.reasons[0].startswith("trained weights: ") and reason in "; ".join(said.reasons)


def test_few_published_runs_are_named_and_answer_nothing(monkeypatch):
    few = tuple(row.model_copy(update={"runs": 2, "stated": 0}) for row in published_runs())
    monkeypatch.setattr("rksp.assessment.fine_tuning.published_runs", lambda: few)
    said = answer(LLAMA, objective="reward", rate=1e-5)
    assert said.verdict == "cannot tell" and "has 2 of reward models" in "; ".join(said.reasons)


@pytest.mark.parametrize(
    ("objective", "rates"),
    [("grpo", (1e-6, 1e-4, 1e-3)), ("ppo", (5e-7, 1e-4, 1e-3)), ("reward", (1e-5, 1e-3, 1e-2))],
)
def test_published_runs_of_all_weights_answer(objective, rates):
    said = [answer(LLAMA, objective=objective, rate=rate) for rate in rates]
    assert [one.verdict for one in said] == ["ok", "caution", "risk"]
    assert {one.kind for one in said} == {"published"}


def test_published_runs_answer_for_objectives_whose_edge_no_run_shows():
    said = {rate: answer(LLAMA, objective="grpo", rate=rate, **LORA) for rate in (1e-6, 5e-5, 1e-3)}
    assert [one.verdict for one in said.values()] == ["ok", "caution", "risk"]
    for one in said.values():
        known = one.published
        assert one.kind == "published" and one.number("probability_failed") is None
        assert known.lowest <= one.start_here == known.middle <= known.highest < 5e-5
        assert known.runs >= 5 and not hasattr(one, "likely_edge") and not hasattr(one, "curve")
    assert said[1e-6].counterfactual is None and "times lower" in said[1e-3].counterfactual
    at_highest = answer(LLAMA, objective="grpo", rate=said[1e-6].published.highest, **LORA)
    assert at_highest.verdict == "ok"


def test_the_usual_rate_is_the_start_where_no_data_beat_it():
    bert, lora, wide = answer(BERT, **CLASSES), answer(LLAMA, **LORA), LORA | {"lora_rank": 128}
    assert bert.start_here == bert.usual == 5e-5 and lora.usual is None
    assert answer(LLAMA, peft="dora", lora_rank=16).start_here == 2e-4
    assert answer(LLAMA, **wide).start_here > lora.start_here
    large = answer(BERT | {"model_type": "roberta", "hidden_size": 1024, "num_hidden_layers": 24},
                   **CLASSES)  # fmt: skip
    assert large.usual is None and large.start_here < bert.start_here
    assert answer(LLAMA).start_here == answer(GPT2).usual == 2e-5
    preferred = answer(LLAMA, objective="dpo")
    assert not hasattr(preferred, "usual") and preferred.kind == "published"


def test_an_encoder_among_the_lab_sizes_is_answered_with_a_wider_edge():
    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    encoder = answer(BERT | small | {"intermediate_size": 128}, **CLASSES)
    decoder = answer(GPT2 | {"n_embd": 64, "n_layer": 2, "n_head": 2}, **CLASSES)
    spread = [one.likely_edge / one.do_not_exceed for one in (encoder, decoder)]
    assert encoder.kind == "fine-tuning" and spread[0] > spread[1]
    masked = answer(BERT | small | {"intermediate_size": 128}, task="masked-lm", objective="mlm")
    assert masked.verdict == "cannot tell"


def test_a_partly_frozen_model_is_not_told():
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=640, n_head=2, vocab_size=256))
    whole = rksp.score(model, lr=2e-5, is_pretrained=True, evidence="config")
    model.transformer.h[0].requires_grad_(False)
    frozen = rksp.score(model, lr=2e-5, is_pretrained=True, evidence="config")
    assert whole.rates() and not frozen.rates()
    assert "not some layers" in frozen.reasons[0]


def test_only_adapters_say_where_they_forget():
    said = answer(LLAMA, **LORA)
    assert said.start_here < said.forgets_from < said.likely_edge
    assert answer(LLAMA).forgets_from is None


@pytest.mark.parametrize("width", [1024, 2048, 4096, 8192])
@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma", "mistral", "phi", "gpt2", "olmo2"])
def test_no_check_complains_of_the_rate_to_start_with(family, width):
    config = LLAMA | {"model_type": family, "hidden_size": width, "intermediate_size": 3 * width}
    for more in (LORA, {}):
        said = answer(config, **more)
        evidence = CheckEvidence(
            recipe=Recipe(learning_rate=said.start_here, warmup_steps=100, **more),
            config=config,
            task="causal-lm",
            start_here=said.start_here,
            do_not_exceed=said.do_not_exceed,
            likely_edge=said.likely_edge,
            start=Start(kind="elsewhere", because="as asked"),
        )
        found = {finding.code for finding in run_checks(evidence)}
        assert not found & {"RKSP501", "RKSP502", "RKSP508"}
