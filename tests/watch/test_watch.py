"""The laws of a watched run, and where its readings go."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from support.places import ROOT
from support.watching import markdown_table, read_log
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.hooks import RemovableHandle
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from lab.zoo import ZooConfig, ZooTransformer
from rksp.ground.errors import ArtifactError, InputError
from rksp.watch.moment import Moment, Phase
from rksp.watch.monitors.base import Monitor, Reading
from rksp.watch.monitors.rules import Rules, replay
from rksp.watch.monitors.sinks import (
    JsonLines,
    Latest,
    MLflow,
    TensorBoard,
    Trackio,
    WeightsAndBiases,
    said,
    sentence,
)
from rksp.watch.monitors.watch import Watch
from rksp.watch.registry import INTERVENTIONS, MONITORS, ON_REQUEST, RULES, make_monitors

VOCABULARY = 31


def _zoo(**fields: object) -> nn.Module:
    small = {
        "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "vocab_size": VOCABULARY, "max_position_embeddings": 16,
    }  # fmt: skip
    return ZooTransformer(ZooConfig(**{**small, **fields}))


def _gpt2() -> nn.Module:
    return GPT2LMHeadModel(
        GPT2Config(
            n_embd=16, n_layer=2, n_head=2, vocab_size=VOCABULARY, n_positions=16,
            resid_pdrop=0.2, embd_pdrop=0.2, attn_pdrop=0.2, bos_token_id=0, eos_token_id=0,
        )
    )  # fmt: skip


def _llama() -> nn.Module:
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            intermediate_size=32, vocab_size=VOCABULARY, max_position_embeddings=16,
            attention_dropout=0.2, bos_token_id=0, eos_token_id=0,
        )
    )  # fmt: skip


MODELS = {
    "gpt2": _gpt2,
    "llama": _llama,
    "pre_ln": _zoo,
    "none": lambda: _zoo(norm="none"),
    "moe": lambda: _zoo(feed_forward="moe", num_experts=4),
    "qk_norm": lambda: _zoo(qk_norm=True, norm="rmsnorm", activation="swiglu"),
}


def _tokens(step: int, rows: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.randint(0, VOCABULARY, (rows, 16), generator=generator)


def _loss(model: nn.Module, tokens: Tensor) -> Tensor:
    logits = model(tokens).logits
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def _train(
    model: nn.Module, watch: Watch | None, steps: int = 6, *, micro: int = 1, spike: int = -1
) -> list[float]:
    """A plain loop with clipping; the losses."""
    torch.manual_seed(5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    if watch:
        watch.bind(model)
    for step in range(steps):
        if watch:
            watch.begin_step(step)
        for part in range(micro):
            loss = _loss(model, _tokens(step * micro + part)) * (50.0 if step == spike else 1.0)
            (loss / micro).backward()
        losses.append(float(loss.detach()))
        if watch:
            watch.after_backward(
                Moment(step=step, model=model, optimizer=optimizer, loss=losses[-1])
            )
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if watch:
            watch.after_update(Moment(step=step, model=model, optimizer=optimizer))
        optimizer.zero_grad()
    if watch:
        watch.close()
    return losses


def _weights(model: nn.Module) -> list[Tensor]:
    tensors = [*model.parameters(), *model.buffers()]
    return [tensor.detach().clone() for tensor in tensors]


def _same(left: Sequence[Tensor], right: Sequence[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def _every_step() -> list[Monitor]:
    return make_monitors([f"{name}:every=1" for name in MONITORS])


@pytest.mark.parametrize("family", MODELS)
def test_a_watched_run_is_bitwise_equal(family: str) -> None:
    torch.manual_seed(0)
    alone = MODELS[family]()
    torch.manual_seed(0)
    watched = MODELS[family]()
    before = _weights(watched)
    random.seed(1)
    np.random.seed(1)
    states = random.getstate(), np.random.get_state()[1].copy()
    watch = Watch(_every_step())
    losses = _train(alone, None)
    end = torch.get_rng_state()
    assert _train(watched, watch) == losses
    assert _same(_weights(alone), _weights(watched))
    assert not _same(before, _weights(watched))
    assert torch.equal(torch.get_rng_state(), end)
    assert random.getstate() == states[0]
    assert np.array_equal(np.random.get_state()[1], states[1])
    off = {name: why for name, why in watch.silent.items() if "switched off" in why}
    assert off == {}
    assert {r.monitor for r in watch.readings} | set(watch.silent) >= set(MONITORS)
    for reading in watch.readings:
        stem, _, window = reading.quantity.rpartition("_")
        name = stem if window.isdecimal() else reading.quantity
        assert name in MONITORS[reading.monitor].quantities
    for module in watched.modules():
        assert not module._forward_hooks and not module._forward_pre_hooks
        assert not module._backward_hooks and not module._backward_pre_hooks


class _Probe(Monitor):
    """Counts its hooks and draws random numbers; misbehaves where it is told to."""

    name: ClassVar[str] = "probe"
    phase: ClassVar[Phase] = Phase.GRADIENT
    default_every: ClassVar[int] = 1

    def __init__(self, *, every: int | None = None, fail: str = "") -> None:
        super().__init__(every=every)
        self.fail, self.calls, self.backward, self.resets = fail, [], 0, 0

    def bind(self, model: nn.Module) -> str | None:
        self._act("bind")
        return "nothing here" if self.fail == "reason" else None

    def arm(self, model: nn.Module) -> Sequence[RemovableHandle]:
        self._act("arm")
        block = next(m for m in model.modules() if isinstance(m, nn.LayerNorm))
        return [
            block.register_forward_hook(self._after),
            block.register_full_backward_hook(self._backward),
        ]

    def read(self, moment: Moment) -> list[Reading]:
        self._act("read")
        return []

    def reset(self) -> None:
        self.resets += 1

    def _act(self, part: str) -> None:
        torch.rand(7)
        if self.fail == part:
            raise RuntimeError(f"cannot {part}")

    def _after(self, module: nn.Module, args: tuple, output: Tensor) -> Tensor:
        self.calls.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))
        if self.fail == "hook":
            raise ValueError("cannot hook")
        return output * 2  # what a monitor must never do: it is dropped

    def _backward(self, module: nn.Module, grads: tuple, outputs: tuple) -> None:
        self.backward += 1


@pytest.mark.parametrize("fail", ["", "reason", "bind", "arm", "hook", "read"])
def test_a_monitor_can_neither_change_nor_kill_a_run(fail: str) -> None:
    torch.manual_seed(0)
    alone, watched = _zoo(), None
    torch.manual_seed(0)
    watched = _zoo()
    losses = _train(alone, None)
    watch = Watch([_Probe(fail=fail), *make_monitors(["gradient-norm"])])
    assert _train(watched, watch) == losses
    assert _same(_weights(alone), _weights(watched))
    assert len([r for r in watch.readings if r.monitor == "gradient-norm" and not r.layer]) == 6
    expected = {
        "": None,
        "reason": "nothing here",
        "bind": "switched off before the first step: RuntimeError: cannot bind",
        "arm": "switched off at step 0: RuntimeError: cannot arm",
        "hook": "switched off at step 0: ValueError: cannot hook",
        "read": "switched off at step 0: RuntimeError: cannot read",
    }
    assert watch.silent.get("probe") == expected[fail]


def test_a_bug_in_a_monitor_is_not_hidden() -> None:
    class Interrupted(_Probe):
        def read(self, moment: Moment) -> list[Reading]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _train(_zoo(), Watch([Interrupted()]))


def test_only_the_first_micro_batch_is_looked_at() -> None:
    probe = _Probe(every=2)
    _train(_zoo(), Watch([probe]), steps=4, micro=3)
    assert len(probe.calls) == probe.backward == 2  # steps 0 and 2
    assert not any(graph for graph, _ in probe.calls)


def test_what_is_evaluated_between_the_passes_is_not_looked_at() -> None:
    model, probe = _zoo(), _Probe()
    watch = Watch([probe])
    watch.bind(model)
    watch.begin_step(0)
    with torch.no_grad():
        model(_tokens(0))
    assert probe.calls == []
    _loss(model, _tokens(0)).backward()
    with torch.no_grad():
        model(_tokens(0))
    watch.after_backward(Moment(step=0, model=model))
    model(_tokens(0))
    assert len(probe.calls) == 1


class _Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8)) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return x


def test_recomputation_is_not_looked_at_twice() -> None:
    model, probe = _Checkpointed(), _Probe()
    watch = Watch([probe])
    watch.bind(model)
    fired = []
    model.blocks[0][0].register_forward_hook(lambda *args: fired.append(1))
    watch.begin_step(0)
    model(torch.ones(2, 8).requires_grad_()).sum().backward()
    watch.after_backward(Moment(step=0, model=model))
    assert (len(fired), len(probe.calls)) == (2, 1)


def test_a_model_whose_parts_are_called_is_watched_until_told_otherwise() -> None:
    model, probe = _Checkpointed(), _Probe()
    watch = Watch([probe])
    watch.bind(model)
    watch.begin_step(0)
    model.blocks[0](torch.ones(2, 8).requires_grad_()).sum().backward()
    watch.end_forward_backward()
    model.blocks[0](torch.ones(2, 8).requires_grad_()).sum().backward()
    assert len(probe.calls) == 1


def test_hooks_run_outside_of_autocast() -> None:
    class Reads(_Probe):
        def _after(self, module: nn.Module, args: tuple, output: Tensor) -> None:
            super()._after(module, args, output)
            self.weight_used = nn.functional.linear(output.float(), model.lm_head.weight).dtype

    model, probe = _gpt2(), Reads()
    watch = Watch([probe])
    watch.bind(model)
    watch.begin_step(0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = _loss(model, _tokens(0))
    loss.backward()
    assert probe.calls == [(False, False)] and probe.weight_used is torch.float32
    assert all(p.grad is not None for p in model.parameters())


def test_steps_must_begin_before_they_are_read() -> None:
    model = _zoo()
    watch = Watch(make_monitors(["gradient-norm"]))
    with pytest.raises(InputError, match="bind"):
        watch.begin_step(0)
    watch.bind(model)
    with pytest.raises(InputError, match="begin_step"):
        watch.after_backward(Moment(step=0, model=model))


def test_a_reset_reaches_every_monitor() -> None:
    model, probe = _zoo(), _Probe()
    watch = Watch([probe])
    watch.bind(model)
    watch.begin_step(3)
    watch.reset()
    assert probe.resets == 1


def test_replay_equals_live_and_thresholds_can_be_changed_afterwards() -> None:
    watch = Watch(make_monitors(["loss", "gradient-norm", "update-rms", "non-finite"]))
    _train(_zoo(), watch, steps=60, spike=50)
    assert {alarm.step for alarm in watch.alarms} >= {50}
    assert replay(watch.readings, watch.rules) == watch.alarms
    deaf = replay(watch.readings, Rules(warmup_steps=60))
    assert len(deaf) < len(watch.alarms)


def test_a_long_run_keeps_the_newest_readings_and_all_alarms() -> None:
    watch = Watch(make_monitors(["loss", "non-finite"]), keep=50)
    _train(_zoo(), watch, steps=60, spike=50)
    assert 50 <= len(watch.readings) <= 100 and watch.readings[-1].step == 59
    whole = Watch(make_monitors(["loss", "non-finite"]))
    _train(_zoo(), whole, steps=60, spike=50)
    assert watch.readings == whole.readings[-len(watch.readings) :]
    assert watch.alarms == whole.alarms != []


# the registry


def test_monitors_are_made_by_name() -> None:
    assert [m.name for m in make_monitors()] == [n for n in MONITORS if n not in ON_REQUEST]
    chosen = make_monitors(["gradient-norm:every=7", "loss"])
    assert {m.name: m.every for m in chosen} == {"loss": 1, "gradient-norm": 7}
    every = {m.name: m.every for m in make_monitors(["all", "loss:every=3"])}
    assert every["loss"] == 3 and len(every) == len(MONITORS) - len(ON_REQUEST)
    assert make_monitors(["gradient_norm"])[0].name == "gradient-norm"
    with pytest.raises(InputError, match=r"did you mean gradient-norm\? The monitors are loss, "):
        make_monitors(["gradient-nrom"])
    for text, told in (
        ("loss:every=0", "greater than 0"),
        ("loss:often", "key=value"),
        ("loss:every=x", "every='x'"),
        ("loss:states=2", "no option 'states'"),
        ("all:every=2", "no monitor 'all'"),
    ):
        with pytest.raises(InputError, match=told):
            make_monitors([text])
    with pytest.raises(InputError, match="twice"):
        Watch([*make_monitors(["loss"]), *make_monitors(["loss"])])


def test_every_monitor_has_a_name_of_its_own_and_says_when_it_is_read() -> None:
    for name, monitor in MONITORS.items():
        made = monitor()
        assert made.name == name and name == name.lower() and "_" not in name
        assert made.phase in Phase and made.every == made.default_every >= 1
        assert monitor.__doc__ and len(monitor.__doc__) > 100
        assert monitor.source and all(f"`{q}`" in monitor.__doc__ for q in monitor.quantities)


def test_every_quantity_has_one_monitor_one_rule_and_a_row_in_the_readme() -> None:
    quantities = [q for monitor in MONITORS.values() for q in monitor.quantities]
    assert sorted(quantities) == sorted(RULES)
    assert {rule.advice for rule in RULES.values()} <= {"", *INTERVENTIONS}
    readme = ROOT / "rksp" / "watch" / "monitors" / "README.md"
    assert markdown_table() in readme.read_text(encoding="utf-8")


# sinks


def _reading(step: int, value: float = 1.5, **detail: float) -> Reading:
    return Reading(
        monitor="m", quantity="q", step=step, layer="a.0", value=value, detail=detail
    )  # fmt: skip


def test_json_lines_are_flat_read_back_equal_and_are_flushed(tmp_path: Path) -> None:
    path = tmp_path / "monitor.jsonl"
    sink = JsonLines(path)
    readings = [_reading(0, 1 / 3, median=0.1, inf=math.inf), _reading(1, -math.inf)]
    alarms = replay([_reading(0), _reading(1, math.nan)], Rules())
    sink.write(readings, alarms)
    assert read_log(path)[0] == readings  # before it is closed
    sink.close()
    (alarm,) = read_log(path)[1]
    assert math.isnan(alarm.value) and alarm.severity is alarms[0].severity
    for line in path.read_text().splitlines():
        record = json.loads(line, parse_constant=pytest.fail)
        assert all(not isinstance(value, dict | list) for value in record.values())


def test_a_log_is_continued_where_it_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "monitor.jsonl"
    sink = JsonLines(path)
    for step in range(4):
        sink.write([_reading(step)], [])
    sink.close()
    with path.open("a") as file:
        file.write('{"kind": "reading", "st')
    again = JsonLines(path)
    again.write([_reading(4)], [])
    again.close()
    assert [r.step for r in read_log(path)[0]] == [0, 1, 2, 3, 4]
    resumed = JsonLines(path, from_step=2)
    resumed.write([_reading(2, 9.0)], [])
    resumed.close()
    assert [(r.step, r.value) for r in read_log(path)[0]] == [(0, 1.5), (1, 1.5), (2, 9.0)]
    path.write_text('{"kind": "reading"}\n')
    with pytest.raises(ArtifactError, match="Line 1"):
        read_log(path)
    with pytest.raises(InputError, match="folder that exists"):
        JsonLines(tmp_path / "absent" / "monitor.jsonl")


def test_the_newest_value_of_a_quantity_is_that_of_the_worst_layer() -> None:
    latest = Latest()
    both = [
        Reading(monitor="m", quantity=q, step=0, layer=layer, value=value)
        for q in ("stable_rank", "activation_max")
        for layer, value in (("a", 2.0), ("b", 1.0))
    ]
    latest.write(both, _alarm())
    assert latest.values == {
        "rksp/m/stable_rank": 1.0, "rksp/m/activation_max": 2.0, "rksp/alarms": 1.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("module", "make"),
    [
        ("tensorboard", lambda: TensorBoard("absent")),
        ("wandb", WeightsAndBiases),
        ("mlflow", MLflow),
        ("trackio", Trackio),
    ],
)
def test_a_missing_tracker_is_one_sentence(
    module: str, make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(InputError, match=f"pip install {module}"):
        make()


class _Tracker:
    """Stands for a tracker's run: keeps what is logged."""

    def __init__(self) -> None:
        self.logged: list[tuple] = []

    def log(self, values: dict, step: int | None = None) -> None:
        self.logged.append((values, step))

    def define_metric(self, *args: str, **kwargs: str) -> None:
        self.logged.append((args, kwargs))

    def log_metrics(self, values: dict, step: int) -> None:
        self.logged.append((values, step))

    def alert(self, **fields: object) -> None:
        self.logged.append((fields, None))

    def set_tag(self, name: str, value: str) -> None:
        self.logged.append((name, value))


def _alarm():
    return replay([_reading(0), _reading(1, math.inf)], Rules())


def _module(name: str, monkeypatch: pytest.MonkeyPatch, **fields: object) -> None:
    module = type(__import__("sys"))(name)
    vars(module).update(fields)
    monkeypatch.setitem(__import__("sys").modules, name, module)


def test_trackers_get_readings_into_the_run_that_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    run, tag = _Tracker(), "rksp/m/q/a.0"
    _module("wandb", monkeypatch, run=None)
    with pytest.raises(InputError, match=r"wandb\.init"):
        WeightsAndBiases()
    levels = type("AlertLevel", (), {"WARN": "WARN", "ERROR": "ERROR"})
    _module("wandb", monkeypatch, run=run, AlertLevel=levels)
    sink = WeightsAndBiases()
    for _ in range(2):
        sink.write([_reading(3)], _alarm())
    assert run.logged[1] == ({"rksp/step": 3, tag: 1.5}, None)
    assert run.logged[2][0]["rksp/alarm"] == sentence(_alarm()[0])
    alerts = [entry for entry, _ in run.logged if "title" in entry]
    assert [(a["title"], a["level"]) for a in alerts] == [("rksp: q critical", "ERROR")]

    run = _Tracker()
    _module("mlflow", monkeypatch, active_run=lambda: None)
    with pytest.raises(InputError, match="start_run"):
        MLflow()
    fields = {"log_metrics": run.log_metrics, "set_tag": run.set_tag}
    _module("mlflow", monkeypatch, active_run=lambda: run, **fields)
    sink = MLflow()
    for _ in range(2):
        sink.write([_reading(3)], _alarm())
    assert run.logged[0] == ({tag: 1.5}, 3) and run.logged[1][0] == "rksp.alarm.critical.q"
    assert len(run.logged) == 3  # the tag once

    run = _Tracker()
    current = type("Holder", (), {"get": lambda self: run})()
    holder = type("Variables", (), {"current_run": current})
    _module("trackio", monkeypatch, context_vars=holder)
    Trackio().write([_reading(3)], _alarm())
    assert run.logged[0] == ({tag: 1.5}, 3) and "not finite" in run.logged[1][0]["rksp/alarm"]
    run = None
    with pytest.raises(InputError, match=r"trackio\.init"):
        Trackio()


def test_an_alarm_is_one_sentence() -> None:
    readings = [_reading(step, 1 + 0.01 * math.sin(7 * step)) for step in range(60)]
    table = {"q": Rules().table["gradient_norm"]}
    (alarm,) = replay([*readings, _reading(60, 500.0)], Rules(table=table))
    assert said(alarm) == "q of a.0 is 500 (usual 1.001)"
    assert sentence(alarm) == f"warn: {said(alarm)}"
