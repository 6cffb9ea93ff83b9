"""Ladders of fine-tuning: their data, their base models, what is frozen, and what is stored."""

from __future__ import annotations

import builtins
import copy
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from support.fine_tunings import LORA, shipped_plan, tiny_base, tiny_spec

from lab.ladders.fine_tuning.base_model import (
    BaseModels,
    has_learned,
    judging_batches,
)
from lab.ladders.fine_tuning.measured import MEASURED
from lab.ladders.fine_tuning.model import OldAbility, load_base, model_to_tune
from lab.ladders.fine_tuning.plan import FineTuningPlan
from lab.ladders.fine_tuning.run import run_fine_tuning
from rksp.datasets.batch import mean_loss
from rksp.ground.errors import ArtifactError, InputError
from rksp.watch.training import train

pytest.importorskip("peft")

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> BaseModels:
    return BaseModels(tmp_path_factory.mktemp("bases"))


def test_the_base_learned_and_is_trained_once(bases: BaseModels, monkeypatch) -> None:
    spec = tiny_base(steps=300)
    home, report = bases.get(spec)
    assert has_learned(report, margin=0.2)
    assert not has_learned(bases.get(tiny_base())[1])  # two steps teach nothing
    assert (home / "model.safetensors").is_file()
    kept = mean_loss(load_base(home), judging_batches(spec.old_task("held_out")))
    assert kept == pytest.approx(report.held_out, rel=1e-6)

    def never(*args, **kwargs):
        raise AssertionError("trained again")

    monkeypatch.setattr("lab.ladders.fine_tuning.base_model.train", never)
    assert bases.get(spec) == (home, report)


def test_a_damaged_report_is_an_artifact_error(tmp_path: Path) -> None:
    spec = tiny_base()
    home = tmp_path / spec.id
    home.mkdir()
    (home / "base.json").write_text("{}")
    with pytest.raises(ArtifactError, match="not a base model"):
        BaseModels(tmp_path).get(spec)


def test_base_weights_are_frozen_bitwise_under_lora(bases: BaseModels) -> None:
    spec = tiny_spec(recipe=LORA)
    home, _ = bases.get(spec.base)
    model = model_to_tune(spec, home)
    before = copy.deepcopy(model.state_dict())
    recipe = spec.recipe.model_copy(update={"learning_rate": 1e-2})
    train(model, spec.new_task("training").batches(4, 4, seed=0), recipe)
    moved = {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}
    assert moved and all("lora_" in name for name in moved)
    own = load_base(home).state_dict()
    kept = model.get_base_model().state_dict()
    for name, value in own.items():
        assert torch.equal(
            kept.get(name, kept.get(name.replace("c_attn.", "c_attn.base_layer."))), value
        )


def test_adapters_begin_as_nothing_and_their_seed_decides_them(bases: BaseModels) -> None:
    spec = tiny_spec(recipe=LORA)
    home, _ = bases.get(spec.base)
    batches = judging_batches(spec.new_task("held_out"))
    state = torch.get_rng_state()
    first, again = model_to_tune(spec, home), model_to_tune(spec, home)
    assert torch.equal(state, torch.get_rng_state())
    assert mean_loss(first, batches) == pytest.approx(mean_loss(load_base(home), batches), abs=1e-6)
    pairs = zip(first.parameters(), again.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert sum(p.numel() for p in first.parameters() if p.requires_grad) == 2 * (32 + 96)


@pytest.mark.parametrize("adapters", [{}, LORA])
def test_a_rate_near_zero_changes_no_loss(bases: BaseModels, adapters: dict) -> None:
    ladder = run_fine_tuning(
        tiny_spec(recipe=adapters, first_rate=1e-12, step=0.3), bases, max_extensions=0
    )
    for after in ladder.after:
        assert after.new == pytest.approx(ladder.before.new, abs=1e-5)
        assert after.old == pytest.approx(ladder.before.old, abs=1e-5)


@pytest.mark.parametrize("adapters", [{}, LORA])
def test_a_fresh_head_is_trained_and_the_old_ability_stays(
    bases: BaseModels, adapters: dict
) -> None:
    spec = tiny_spec(task="mirrored", task_options={"length": 16}, fresh_head=True, recipe=adapters)
    home, report = bases.get(spec.base)
    model = model_to_tune(spec, home)
    head = dict(model.named_parameters())
    trained = [name for name, p in head.items() if p.requires_grad and "score" in name]
    assert trained
    ability = OldAbility(load_base(home), fresh_head=True)
    old = judging_batches(spec.base.old_task("held_out"))
    assert mean_loss(ability(model), old) == pytest.approx(report.held_out, abs=1e-5)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.5)
    assert mean_loss(ability(model), old) > report.held_out + 0.1  # it is the tuned body


def test_a_head_that_would_be_loaded_is_not_called_fresh(bases: BaseModels) -> None:
    base = tiny_base(family="bert_classifier", task="origin", task_options={"length": 16})
    spec = tiny_spec(base, task="origin", task_options={"length": 16}, fresh_head=True)
    with pytest.raises(InputError, match="as many classes"):
        model_to_tune(spec, bases.get(base)[0])


def test_without_peft_the_extra_is_named(bases: BaseModels, monkeypatch) -> None:
    real = builtins.__import__

    def absent(name: str, *args, **kwargs):
        if name == "peft":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    spec = tiny_spec(recipe=LORA)
    home, _ = bases.get(spec.base)
    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(InputError, match=r"rksp\[peft\]"):
        model_to_tune(spec, home)


def test_targets_that_no_module_has_are_an_input_error(bases: BaseModels) -> None:
    spec = tiny_spec(recipe=LORA | {"lora_targets": ("nowhere",)})
    with pytest.raises(InputError, match="do not fit"):
        model_to_tune(spec, bases.get(spec.base)[0])


def test_the_start_is_measured_and_left_as_it_was(bases: BaseModels) -> None:
    spec = tiny_spec(recipe=LORA)
    ladder = run_fine_tuning(spec, bases, max_extensions=0)
    assert set(ladder.measured) == set(MEASURED)
    known = {name for name, value in ladder.measured.items() if value is not None}
    assert known == {"grad_norm", "grad_rms", "grad_max"}
    again = run_fine_tuning(spec, bases, max_extensions=0)
    assert ladder.after == again.after
    assert all(
        np.array_equal(a.loss, b.loss) for a, b in zip(ladder.curves, again.curves, strict=True)
    )


@pytest.mark.slow
@pytest.mark.parametrize("family", shipped_plan().pretrained)
def test_every_task_of_the_shipped_plan_trains(family: str, bases: BaseModels) -> None:
    """On models too small to learn: their adapters fit, their heads are fresh, they are judged."""
    shipped = shipped_plan()
    member = shipped.pretrained[family].model_copy(update={"widths": [32]})
    quick = {"steps": 1, "learning_rate": 1e-3}
    plan = FineTuningPlan.model_validate(
        shipped.model_dump()
        | {
            "pretrained": {family: member},
            "kinds": {k: v.model_dump() | {"training": quick} for k, v in shipped.kinds.items()},
            "bases": {32: quick},
            "ladders": 28,
            "steps": [1],
            "count": 2,
        }
    )
    seen = {}
    for spec in plan.expand():
        seen.setdefault((spec.task, spec.method, spec.fresh_head), spec)
    assert len(seen) >= 4
    for spec in seen.values():
        ladder = run_fine_tuning(spec, bases, max_extensions=0)
        assert all(math.isfinite(after.new) and math.isfinite(after.old) for after in ladder.after)
        assert (ladder.trained_parameters < ladder.base.parameters) or spec.method == "all"
