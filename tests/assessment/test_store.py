"""What was measured once is not measured again, and only where it is the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from support.commands import run_rksp

import rksp
from rksp.assessment import measuring, store
from rksp.assessment.measurement import Measurement
from rksp.assessment.pipeline import evaluate, gather, gradient_of
from rksp.assessment.store import MeasurementStore
from rksp.documents.options import MeasureOptions
from rksp.grid.cell import evaluate_group
from rksp.grid.group import CellGroup, GroupCell, Options
from rksp.ground.files import user_cache
from rksp.models.resolve import resolve, resolve_tiny
from rksp.recipe import Recipe

TINY = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 300}
OPTIONS = MeasureOptions(states=128)
RECIPE = Recipe(learning_rate=1e-3)
_COMMAND = ("score", "gpt2", *(f"--set={k}={v}" for k, v in TINY.items()), "--snapshots", "128")


@pytest.fixture
def kept(tmp_path) -> MeasurementStore:
    return MeasurementStore(tmp_path / "kept")


@pytest.fixture
def counted(monkeypatch) -> list[str]:
    """Names the measurements that were made."""
    made = []

    def watched(name):
        real = getattr(measuring, name)

        def run(*given, **more):
            made.append(name)
            return real(*given, **more)

        return run

    for name in ("profile", "measure_gradient"):
        monkeypatch.setattr(measuring, name, watched(name))
    return made


def _report(*more: str, lr: str = "1e-3") -> dict:
    done = run_rksp(*_COMMAND, "--lr", lr, "--format", "json", "--exit-zero", *more)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    del found["timings"]
    return found


def test_a_second_score_measures_nothing_and_says_the_same(counted):
    first = _report()
    assert counted == ["profile", "measure_gradient"]
    assert _report() == first
    assert _report("--no-cache") == first  # a control: it is the same when measured anew
    assert counted == ["profile", "measure_gradient"] * 2


def test_another_rate_warm_up_length_or_batch_measures_nothing(counted):
    _report()
    del counted[:]
    for change in (["--warmup-steps=50"], ["--max-steps=500"], ["--batch-size=64"]):
        stored = _report(*change, lr="3e-4")
        assert counted == []
        assert stored == _report(*change, "--no-cache", lr="3e-4")
        del counted[:]


def test_another_optimizer_measures_nothing(counted):
    _report()
    del counted[:]
    stored = _report("--optimizer=lion")
    assert counted == []
    assert stored == _report("--optimizer=lion", "--no-cache")


@pytest.mark.parametrize("damage", ["cut", "other", "empty"])
def test_a_damaged_entry_is_measured_anew_and_replaced(counted, damage):
    first = _report()
    [file] = user_cache().rglob("*.json")
    whole = file.read_bytes()
    file.write_bytes({"cut": whole[: len(whole) // 2], "empty": b""}.get(damage, b"{}\n{}"))
    assert _report() == first
    assert file.read_bytes() == whole
    assert counted == ["profile", "measure_gradient"] * 2


def test_an_entry_of_another_form_is_measured_anew(counted, kept):
    source = resolve("gpt2", overrides=TINY)
    kept._cache.write(kept._key(source, OPTIONS), b'{"tier": "gradient"}')
    assert kept.find(source, OPTIONS) is None
    evaluate(source, RECIPE, OPTIONS, store=kept)
    assert counted == ["profile", "measure_gradient"]
    assert kept.find(source, OPTIONS) is not None


def test_nothing_is_kept_where_that_was_asked():
    _report("--no-cache")
    _report("--evidence=config")
    rksp.score("gpt2", lr=1e-3, cache=False, evidence="config")
    assert not user_cache().exists()


def test_python_keeps_where_it_is_told(tmp_path, counted):
    source = lambda: resolve("gpt2", overrides=TINY)
    first = rksp.score(source(), lr=1e-3, cache=tmp_path, options=OPTIONS)
    again = rksp.score(source(), lr=2e-3, cache=tmp_path, options=OPTIONS)
    assert counted == ["profile", "measure_gradient"]
    assert again.grad_norm == first.grad_norm and not user_cache().exists()


def test_python_a_command_and_a_grid_share_an_entry(counted):
    _report("--threads", "1")
    source = resolve("gpt2", overrides=TINY, counts=False, max_params=1e6)
    counted.clear()
    assert rksp.score(source, lr=2e-3, options=OPTIONS).grad_norm > 0
    assert counted == []
    for is_cached, made in ((True, []), (False, ["profile", "measure_gradient"])):
        cells = (GroupCell(key="cell", recipe=RECIPE.model_dump_json()),)
        options = Options(states=OPTIONS.states, is_cached=is_cached)
        group = CellGroup(target="gpt2", overrides=TINY, options=options, cells=cells)
        assert [event.kind for event in evaluate_group(group)] == ["profile", "result"]
        assert counted == made


def test_a_stored_score_is_read_once(monkeypatch):
    _report()
    reads = []
    find = MeasurementStore.find
    monkeypatch.setattr(
        MeasurementStore, "find", lambda self, *of: reads.append(of) or find(self, *of)
    )
    _report(lr="2e-3")
    assert len(reads) == 1


def test_a_model_that_is_too_large_is_not_answered_from_the_store(kept):
    source = resolve("gpt2", overrides=TINY, counts=False)
    gather(source, OPTIONS, store=kept)
    assert kept.find(source, OPTIONS) is not None
    small = resolve("gpt2", overrides=TINY, counts=False, max_params=10)
    assert kept.find(small, OPTIONS) is None


def _keys(kept: MeasurementStore, tmp_path: Path) -> dict[str, str]:
    """Return the key of each of several measurements that differ in one thing."""
    plain = resolve("gpt2", overrides=TINY, counts=False)
    text = tmp_path / "probe.txt"
    text.write_text("to be or not to be")
    options = {
        "plain": {},
        "seed": {"seed": 1},
        "states": {"states": 64},
        "variant": {"variant": "paper-full-1"},
        "evidence": {"evidence": "forward"},
        "threads": {"threads": 3},
        "probe": {"probe": text},
    }
    found = {
        name: kept._key(plain, OPTIONS.model_copy(update=change))
        for name, change in options.items()
    }
    text.write_text("that is the question, and more")
    found["probe's text"] = kept._key(plain, OPTIONS.model_copy(update={"probe": text}))
    wider = resolve("gpt2", overrides=TINY | {"n_embd": 64}, counts=False)
    found["settings"] = kept._key(wider, OPTIONS)
    found["task"] = kept._key(
        resolve("gpt2", overrides=TINY, task="text-classification", counts=False), OPTIONS
    )
    return found


def test_whatever_changes_a_measurement_changes_its_key(kept, tmp_path, monkeypatch):
    keys = _keys(kept, tmp_path)
    assert None not in keys.values() and len({*keys.values()}) == len(keys)
    assert _keys(kept, tmp_path) == keys
    monkeypatch.setattr(store, "_versions", lambda: {"torch": "0.1"})
    older = _keys(kept, tmp_path)
    monkeypatch.setattr(store, "_code", lambda: "edited")
    edited = _keys(kept, tmp_path)
    assert len({*keys.values(), *older.values(), *edited.values()}) == 3 * len(keys)


def test_other_weights_of_the_same_shape_are_another_model(kept, tmp_path):
    keys = []
    for seed in (0, 1, 0):
        model = resolve("gpt2", overrides=TINY).build(seed)
        model.save_pretrained(tmp_path / "weights")
        keys.append(kept._key(resolve(str(tmp_path / "weights"), counts=False), OPTIONS))
    assert keys[0] == keys[2] != keys[1]


def test_code_of_others_is_never_kept(kept, tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(
        "import torch\n"
        "def make():\n"
        "    return torch.nn.Linear(4, 4), (torch.randn(8, 4), torch.randn(8, 4))\n"
    )
    monkeypatch.chdir(tmp_path)
    source = resolve("own:make")
    evaluate(source, RECIPE, OPTIONS, store=kept)
    assert kept._key(source, OPTIONS) is None and kept.find(source, OPTIONS) is None
    rksp.score(torch.nn.Linear(4, 4), (torch.randn(8, 4), torch.randn(8, 4)), lr=1e-3)
    assert not user_cache().exists() and not (tmp_path / "kept").exists()
    assert kept._key(resolve("gpt2", trust_remote_code=True, counts=False), OPTIONS) is None


@pytest.mark.parametrize("kind", ["gpt2", "mixtral", "t5", "vit", "rwkv"])
def test_a_measurement_is_read_as_it_was_written(kind):
    evidence = gather(resolve_tiny(kind), OPTIONS)
    gradient_of(evidence, RECIPE, lambda done, total, label: None)
    written = evidence.kept().to_json()
    read = Measurement.from_json(written)
    assert read.to_json() == written
    assert read.gradients == evidence.kept().gradients
    assert read.profile.forward == evidence.profile.forward
    for one, other in zip(
        read.profile.spectra.layers, evidence.profile.spectra.layers, strict=True
    ):
        assert one.status is other.status
        assert one.eigenvalues.tobytes() == other.eigenvalues.tobytes()
        assert one.eigenvalues.dtype == other.eigenvalues.dtype


def test_a_streamed_model_answers_for_another_optimizer_too(kept):
    options = OPTIONS.model_copy(update={"streaming": "always"})
    source = lambda: resolve("gpt2", overrides=TINY)
    evaluate(source(), RECIPE, options, store=kept)
    lion = RECIPE.model_copy(update={"optimizer": "lion"})
    again = evaluate(source(), lion, options, store=kept)
    assert again.gradient == evaluate(source(), lion, options).gradient
