"""Ladders of fine-tuning: their data, their base models, what is frozen, and what is stored."""

from __future__ import annotations

import builtins
import copy
import json
import math
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch
from support.fine_tunings import LORA, tiny_base, tiny_plan, tiny_spec
from typer.testing import CliRunner

from rksp.batch import mean_loss
from rksp.cli import lab as cli
from rksp.datasets.domain_tasks import DOMAIN_TASKS, make_domain_task
from rksp.datasets.domains import DOMAINS, domain_tokens, enciphered
from rksp.ground.errors import ArtifactError, InputError
from rksp.lab.contents import hold_fine_tuning, packed_ids
from rksp.lab.fine_tuning.base_model import (
    BaseModels,
    BaseReport,
    has_learned,
    judging_batches,
)
from rksp.lab.fine_tuning.card import fine_tuning_card
from rksp.lab.fine_tuning.measured import MEASURED
from rksp.lab.fine_tuning.model import OldAbility, load_base, model_to_tune
from rksp.lab.fine_tuning.plan import FineTuningPlan
from rksp.lab.fine_tuning.run import FineTunedLadder, HeldOut, run_fine_tuning
from rksp.lab.fine_tuning.store import read_fine_tuned, write_fine_tuned
from rksp.lab.fine_tuning.summary import summarize
from rksp.lab.fine_tuning.table import pack_fine_tuning, read_fine_tuning
from rksp.lab.grid import read_ladder_plan
from rksp.lab.run import run_plan
from rksp.outcome import Curves
from rksp.watch.training import train

pytest.importorskip("peft")

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> BaseModels:
    return BaseModels(tmp_path_factory.mktemp("bases"))


# Data


@pytest.mark.parametrize("name", DOMAINS)
def test_the_parts_of_a_domain_are_all_of_it(name: str) -> None:
    training, held_out = domain_tokens(name, "training"), domain_tokens(name, "held_out")
    assert bytes(torch.cat([training, held_out]).tolist()) == DOMAINS[name]()
    assert 0.08 < len(held_out) / len(training) < 0.15
    assert int(training.min()) > 2  # the mask, the padding and the start are no text


def test_the_cipher_moves_every_letter_and_nothing_else() -> None:
    alphabet = bytes(range(97, 123))
    assert sorted(enciphered(alphabet)) == list(alphabet)
    assert sum(a == b for a, b in zip(enciphered(alphabet), alphabet, strict=True)) <= 3
    assert enciphered(b"Ab, 1\n") == enciphered(b"a").upper() + enciphered(b"b") + b", 1\n"


_OPTIONS = {
    "next_byte": {"domain": "plays"},
    "masked_byte": {"domain": "docs"},
    "filled_byte": {"domain": "code"},
    "translation": {"head": "causal-lm"},
    "digit_views": {"view": "turned", "label": "parity"},
}


@pytest.mark.parametrize("name", DOMAIN_TASKS)
def test_a_seed_decides_the_batches_and_examples_limit_them(name: str) -> None:
    length = {} if name == "digit_views" else {"length": 12}
    options = _OPTIONS.get(name, {}) | length
    task = make_domain_task(name, part="training", **options, examples=10)
    first, again = (task.batches(12, 4, seed=seed) for seed in (1, 1))

    def rows(batch) -> list[bytes]:
        inputs = batch.inputs["input_ids"] if isinstance(batch.inputs, dict) else batch.inputs
        labels = batch.labels.reshape(len(batch.labels), -1)
        parts = labels if name == "masked_byte" else inputs.flatten(1)
        return [row.numpy().tobytes() for row in parts]

    assert [rows(b) for b in first] == [rows(b) for b in again]
    if name not in ("masked_byte", "filled_byte"):  # where the hidden bytes differ each time
        assert len({row for batch in first for row in rows(batch)}) <= 10
    assert task.trivial_loss <= task.uniform_loss + 1e-9


def test_a_decoder_translates_behind_the_plain_text() -> None:
    task = make_domain_task("translation", part="held_out", head="causal-lm", length=12)
    batch = task.batches(1, 3, seed=0)[0]
    for row, labels in zip(batch.inputs.tolist(), batch.labels.tolist(), strict=True):
        assert bytes(row[6:]) == enciphered(bytes(row[:6]))
        assert labels == [-100] * 5 + row[6:] + [-100]


# Base models


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

    monkeypatch.setattr("rksp.lab.fine_tuning.base_model.train", never)
    assert bases.get(spec) == (home, report)


def test_a_damaged_report_is_an_artifact_error(tmp_path: Path) -> None:
    spec = tiny_base()
    home = tmp_path / spec.id
    home.mkdir()
    (home / "base.json").write_text("{}")
    with pytest.raises(ArtifactError, match="not a base model"):
        BaseModels(tmp_path).get(spec)


# What is trained


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
    drifts = [ladder.measured[f"drift_{rate}"] for rate in ("1e-04", "1e-03", "1e-02")]
    assert all(drift >= -1e-6 for drift in drifts) and drifts[2] > drifts[0]
    again = run_fine_tuning(spec, bases, max_extensions=0)
    assert ladder.after == again.after
    assert all(
        np.array_equal(a.loss, b.loss) for a, b in zip(ladder.curves, again.curves, strict=True)
    )


# Plans


def test_every_prefix_has_all_families_and_methods() -> None:
    specs = tiny_plan(ladders=16).expand()
    assert len({spec.id for spec in specs}) == 16
    for turn in range(0, 16, 2):
        assert {spec.family for spec in specs[turn : turn + 2]} == {"gpt2", "vit"}
        assert {spec.method for spec in specs[turn : turn + 2]} == {"all", "lora"}
    assert tiny_plan(ladders=4).expand() == specs[:4]
    assert {spec.base.shape["hidden_size"] for spec in specs} == {16, 32}
    assert {spec.recipe.lora_rank for spec in specs} == {None, 1, 2}


def test_a_plan_that_cannot_be_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown family 'gpt3'"):
        tiny_plan(pretrained={"gpt3": tiny_plan().pretrained["gpt2"]})
    with pytest.raises(ValueError, match="says nothing of width 16"):
        tiny_plan(bases={32: {"steps": 2, "learning_rate": 1e-3}})
    with pytest.raises(InputError, match="within the budget 1"):
        tiny_plan(budget=1.0).expand()


def _shipped() -> FineTuningPlan:
    plan = read_ladder_plan(Path(str(files("rksp.datasets") / "plans" / "fine_tuning.yaml")))
    assert isinstance(plan, FineTuningPlan)
    return plan


def test_the_shipped_plan_has_what_it_promises() -> None:
    specs = _shipped().expand()[:180]
    assert len({spec.family for spec in specs}) == 9
    adapters = {(spec.recipe.lora_rank, spec.recipe.lora_alpha) for spec in specs}
    assert len(adapters - {(None, None)}) == 6
    shapes = {(spec.recipe.batch_size, spec.task_options.get("length")) for spec in specs}
    assert {batch for batch, _ in shapes} == {4, 8, 16} and {32, 64} <= {n for _, n in shapes}
    for spec in specs:
        low, *_, high = spec.rates
        assert high / low > 1e3


@pytest.mark.slow
@pytest.mark.parametrize("family", _shipped().pretrained)
def test_every_task_of_the_shipped_plan_trains(family: str, bases: BaseModels) -> None:
    """On models too small to learn: their adapters fit, their heads are fresh, they are judged."""
    shipped = _shipped()
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


def test_a_resumed_plan_trains_nothing_twice(tmp_path: Path, monkeypatch) -> None:
    trained: list[str] = []
    plan = tiny_plan(ladders=3)

    def run(action, items, folder, **options) -> None:
        for item in items:
            trained.append(item.id)
            (folder / f"{item.id}.json").write_text("{}")

    monkeypatch.setattr("rksp.lab.run.work_through", run)
    assert run_plan(plan, tmp_path).newly_run == 3
    assert run_plan(tiny_plan(ladders=5), tmp_path).newly_run == 2
    assert len(trained) == len(set(trained)) == 5


# What is stored


def _ladder(seed: int = 5, losses=(2.0, 1.0, 1.5), method: str = "lora") -> FineTunedLadder:
    """Three rates: slow, best, failed; the old ability is lost from the second on."""
    spec = tiny_spec(seed=seed, count=3, recipe=LORA if method == "lora" else {})
    spec = spec.model_copy(update={"task_options": spec.task_options | {"examples": 16}})
    steps = spec.recipe.max_steps
    return FineTunedLadder(
        spec=spec,
        base=BaseReport(held_out=2.0, trivial=3.0, parameters=10, seconds=1.0),
        trained_parameters=7,
        before=HeldOut(new=2.5, old=2.0),
        measured=dict.fromkeys(MEASURED, 0.25) | {"critical_rate": None},
        rates=tuple(spec.rates),
        curves=tuple(
            Curves(
                loss=np.full(steps, loss, np.float32),
                grad_norm=np.ones(steps, np.float32),
                planned_steps=steps,
            )
            for loss in losses
        ),
        after=(
            HeldOut(new=2.2, old=2.1),
            HeldOut(new=1.4, old=2.4),
            HeldOut(new=2.6, old=math.nan),
        ),
        seconds=(0.5, 0.5, 0.5),
    )


def test_a_ladder_survives_its_file_and_the_table(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    ladders = [_ladder(1), _ladder(2, method="all")]
    for ladder in ladders:
        path = write_fine_tuned(tmp_path / "ladders", ladder, {"torch": "2"})
        assert str(read_fine_tuned(path).after) == str(ladder.after)
    packed = tmp_path / "fine_tuning.parquet"
    assert pack_fine_tuning([tmp_path / "ladders"], packed) == 6
    found = read_fine_tuning(packed)
    assert {ladder.spec.id for ladder in found} == {ladder.spec.id for ladder in ladders}
    for ladder in found:
        twin = next(other for other in ladders if other.spec == ladder.spec)
        assert str(ladder.after) == str(twin.after)
        assert ladder.judge() == twin.judge() and ladder.base == twin.base
        assert ladder.measured == twin.measured
    assert packed_ids(packed) == {ladder.spec.id for ladder in ladders}
    again = tmp_path / "again.parquet"
    pack_fine_tuning([packed], again)
    assert again.read_bytes() == packed.read_bytes()


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"schema": "rksp-ladder-1"}))
    with pytest.raises(ArtifactError, match="schema"):
        read_fine_tuned(path)
    path.write_text("{")
    with pytest.raises(ArtifactError, match="not a stored ladder"):
        read_fine_tuned(path)
    assert not hold_fine_tuning(path) and not hold_fine_tuning(tmp_path / "none")


def test_the_summary_finds_the_best_the_failed_and_the_forgotten() -> None:
    ladder = _ladder()
    found = summarize(ladder)
    low, middle, high = ladder.rates
    assert (found.best_training, found.best, found.first_failed) == (middle, middle, high)
    assert found.first_forgetting == middle and found.first_worse == high
    assert found.first_held_out_failed == high
    assert found.gain == pytest.approx(1.1)
    assert found.regret(middle) == 0 and found.regret(low / 10) == pytest.approx(0.8)
    assert found.regret(math.sqrt(low * middle)) == pytest.approx(0.4)


def test_pack_and_card_know_ladders_of_fine_tuning(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    for seed in (1, 2):
        write_fine_tuned(tmp_path / "ladders", _ladder(seed, method=("all", "lora")[seed - 1]), {})
    packed = tmp_path / "fine_tuning.parquet"
    runner = CliRunner()
    result = runner.invoke(cli.app, ["pack", str(tmp_path / "ladders"), "-o", str(packed)])
    assert result.exit_code == 0 and result.stdout.startswith("6 runs in ")
    shown = runner.invoke(cli.app, ["card", str(packed)])
    assert shown.exit_code == 0 and shown.stdout == fine_tuning_card(read_fine_tuning(packed))
    assert "6 runs in 2 ladders, 33.3 % failed" in shown.stdout
    assert "| lora | 0.0003 | 1 |" in shown.stdout
