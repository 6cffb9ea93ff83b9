"""What a command loads and what it keeps: cold start, memory, processor time of a pass."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest
import torch

from lab.bench.cost import score_cost
from rksp.assessment.pipeline import evaluate, gather
from rksp.documents.options import MeasureOptions
from rksp.ground.allocator import collector_paused, return_freed_memory
from rksp.ground.errors import InputError
from rksp.models.resolve import resolve, resolve_tiny
from rksp.models.streaming.memory import resident_memory
from rksp.recipe import Recipe


@pytest.mark.parametrize("kind", ["gpt2", "bert", "t5", "qwen3_vl", "vit"])
def test_the_class_is_known_before_it_is_loaded(kind):
    small = resolve_tiny(kind)
    bare = resolve(kind, counts=False)
    assert bare.num_parameters is None
    assert (bare.model_class, bare.task) == (small.model_class, small.task)


def test_a_multimodal_configuration_is_scored_by_its_text_part():
    recipe, options = Recipe(learning_rate=1e-4), MeasureOptions(evidence="config")
    whole, text = (
        evaluate(resolve(kind, counts=False), recipe, options).risk
        for kind in ("gemma3", "gemma3_text")
    )
    assert whole == text
    assert whole.do_not_exceed > 0


_FAULTS = """
import resource
from concurrent.futures import ThreadPoolExecutor
from rksp.ground.allocator import freed_memory_kept

def faults(size=1 << 26):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        b"x" * size
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

with freed_memory_kept():
    inside = faults()
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(faults, 1 << 23).result()
print(inside, beside, faults())
"""


def test_freed_memory_comes_without_new_pages():
    done = subprocess.run(
        [sys.executable, "-c", _FAULTS], capture_output=True, text=True, check=True
    )
    inside, beside, outside = map(int, done.stdout.split())
    assert 4 * inside < outside
    assert 4 * beside < outside / 8  # pieces of an eighth, in a thread


_HOLES = """
import torch
from rksp.ground.allocator import freed_memory_returned
from rksp.models.streaming.memory import resident_memory

def grown(count=100):  # every second piece of 2 MB is replaced
    before = resident_memory()
    pieces = [torch.ones(1 << 19) for _ in range(count)]
    fresh = []
    for place in range(0, count, 2):
        pieces[place] = None
        fresh.append(torch.ones(1 << 19))
    return (resident_memory() - before) / (count << 21)

torch.ones(1 << 19)  # glibc maps no piece of a size that was freed once
with freed_memory_returned():
    returned = grown(200)
print(returned, grown(100))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_pieces_freed_between_others_go_back_to_the_system_at_once():
    done = subprocess.run(
        [sys.executable, "-c", _HOLES], capture_output=True, text=True, check=True
    )
    returned, kept = map(float, done.stdout.split())
    assert 0.9 < returned < 1.1, kept


def test_freed_pieces_go_back_to_the_system():
    pieces = [torch.ones(1 << 14) for _ in range(2000)]  # 64 KB each, below what is mapped
    last = torch.ones(1 << 14)  # keeps the heap from shrinking by itself
    del pieces
    before = resident_memory()
    return_freed_memory()
    assert before - resident_memory() > 10**8 > last.nbytes


def test_the_collector_rests_only_inside():
    with pytest.raises(KeyError), collector_paused():
        assert not gc.isenabled()
        with collector_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled()


def test_stages_of_a_score_add_up():
    rows = score_cost("gpt2", overrides={"n_layer": 2, "n_embd": 64, "n_head": 4})
    assert [row["stage"] for row in rows][0::4] == ["one forward pass", "all"]
    assert rows[-1]["seconds"] == pytest.approx(sum(row["seconds"] for row in rows[1:-1]))


@pytest.mark.parametrize(
    ("kind", "needs"),
    [
        ("blip", "needs pixel_values"),
        ("audio-spectrogram-transformer", "neither tokens nor images"),
        ("cohere_asr", "needs input_features"),
        ("detr", "the library timm, which is not installed"),
    ],
)
def test_a_model_of_other_inputs_is_refused_by_their_name(kind, needs):
    with pytest.raises(InputError, match=needs):
        gather(resolve_tiny(kind))
