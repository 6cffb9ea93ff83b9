"""Ranks of data-parallel and sharded runs, for `torch.multiprocessing.spawn`, which imports it."""

from __future__ import annotations

import json
import os
from itertools import product
from pathlib import Path

import torch
import torch.distributed as dist
from support.intervention_steps import take_step
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from lab.tasks.tasks import make_task
from lab.zoo import ZooConfig, ZooTransformer, build_member
from rksp.datasets.batch import Batch
from rksp.models.anatomy.weight_view import gathered
from rksp.recipe import Recipe
from rksp.watch.faults.computation import ReplicaCorruption
from rksp.watch.interventions.recovery import RepeatStep
from rksp.watch.moment import Moment
from rksp.watch.monitors.rules import Rules
from rksp.watch.monitors.silent_corruption import SilentCorruption
from rksp.watch.monitors.watch import Watch
from rksp.watch.registry import make_intervention, make_monitors
from rksp.watch.training import run

RANKS = 2
SHAPE = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 32,
    "max_position_embeddings": 8,
}
SHARDED_STEPS = 3
# One spectral monitor beside the norm; every=1 so that three steps are enough.
WATCHED = ["gradient-norm:every=1", "stable-rank:every=1"]
SHARDED = Recipe(
    learning_rate=1e-2, max_steps=SHARDED_STEPS, schedule="constant", max_grad_norm=0.5
)


def every_rank(rank: int, folder: str) -> None:
    """Do all the work of one rank in one process group, and store what was seen.

    The process ends without gloo's threads being taken down: groups of meshes and of replicas
    are let go in an order that is now and then wrong, and C++ then aborts a rank whose work is
    done. What failed in Python was raised before.
    """
    torch.set_num_threads(1)
    meet = f"file://{folder}/meet"
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=RANKS)
    for work in (sharded, corrupted, repeated, clipped):
        work(rank, Path(folder))
    dist.barrier()
    os._exit(0)


def batches() -> list[Batch]:
    """Return the whole batches, of which every rank trains on its half."""
    return make_task("recall", length=8, vocab=32, pairs=2).batches(SHARDED_STEPS, 8, seed=0)


def measured(model: torch.nn.Module, given: list[Batch]) -> dict[str, object]:
    """Train with clipping and monitors; return curves and readings."""
    record = run(model, given, SHARDED, watch=Watch(make_monitors(WATCHED), Rules()))
    readings = {f"{r.quantity}/{r.layer}/{r.step}": r.value for r in record.readings}
    return {
        "loss": record.curves.loss.tolist(),
        "grad_norm": record.curves.grad_norm.tolist(),
        "readings": readings,
        "silent": dict(record.silent),
    }


def sharded(rank: int, folder: Path) -> None:
    """Train weights that FSDP2 shards."""
    mesh = dist.init_device_mesh("cpu", (RANKS,))
    model = build_member("zoo_pre_ln", SHAPE, seed=0)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    assert any(hasattr(p, "full_tensor") for p in model.parameters())
    halves = [Batch(inputs=b.inputs[rank::RANKS], labels=b.labels[rank::RANKS]) for b in batches()]
    found = measured(model, halves)
    (folder / f"sharded-{rank}.json").write_text(json.dumps(found), encoding="utf-8")


BOUNDS = {"step_clip": "step_clip:delta=0.05,tokens=1000", "update_bound": "update_bound"}
WAYS = ("replicated", "sharded", "split")


def clipped(rank: int, folder: Path) -> None:
    """Train with the bounds: replicas, sharded weights, and matrices split over the ranks."""
    for name, way in product(BOUNDS, WAYS):
        found = stepped(name, way, rank)
        torch.save(found, folder / f"{name}-{way}-{rank}.pt")


def stepped(name: str, way: str, rank: int = 0) -> dict[str, object]:
    """Return the weights after steps with a bound; `alone` is one process on whole batches."""
    model: torch.nn.Module = build_member("zoo_pre_ln", SHAPE | {"bias": True}, seed=0)
    given, clip = batches(), make_intervention(BOUNDS[name])
    if way in ("replicated", "sharded"):
        given = [Batch(inputs=b.inputs[rank::RANKS], labels=b.labels[rank::RANKS]) for b in given]
    trained = model
    if way == "replicated":
        trained = torch.nn.parallel.DistributedDataParallel(model)
    elif way == "sharded":
        mesh = dist.init_device_mesh("cpu", (RANKS,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif way == "split":
        mesh = dist.init_device_mesh("cpu", (RANKS,))
        plan = {"feed_forward.up": ColwiseParallel(), "feed_forward.down": RowwiseParallel()}
        for block in model.blocks:
            parallelize_module(block, mesh, plan)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=0.1, eps=1e-3, foreach=False)
    clip.bind(model, optimizer)
    for step, batch in enumerate(given):
        take_step(trained, optimizer, clip, step, batch)
    weights = {name: gathered(p).clone() for name, p in model.named_parameters()}
    return {"weights": weights, "said": clip.closing()}


def corrupted(rank: int, folder: Path, *, steps: int = 6, at: int = 3) -> None:
    """Train one replica; on rank 1 the lowest bit of one weight flips at a step."""
    torch.manual_seed(0)
    model = ZooTransformer(ZooConfig(hidden_size=16, num_hidden_layers=3, vocab_size=31))
    generator = torch.Generator().manual_seed(1 + rank)
    watch = Watch([SilentCorruption(every=1, checksum_every=2, blocks=2)])
    assert watch.bind(model) == {}
    for step in range(steps):
        if step == at and rank == 1:
            with torch.no_grad():
                bits = model.blocks[1].attention.qkv.weight.view(torch.int32)
                bits[3, 3] ^= 1
        watch.begin_step(step)
        tokens = torch.randint(0, 31, (4, 16), generator=generator)
        model(tokens).logits.logsumexp(-1).mean().backward()
        watch.after_backward(Moment(step=step, model=model))
        model.zero_grad()
    torch.save((watch.readings, watch.alarms, watch.silent), folder / f"corrupted-{rank}.pt")


def repeated(rank: int, folder: Path) -> None:
    """Repeat steps; rank 1 computes wrong logits at step 12, others each time."""
    torch.manual_seed(0)
    model = ZooTransformer(ZooConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2))
    given = make_task("bytes", length=16).batches(16, 4, seed=rank)
    repeat = RepeatStep()
    recipe = Recipe(learning_rate=1e-3, max_steps=16, batch_size=4)
    fault = ReplicaCorruption(rank=1, step=12, steps=1, scale=100.0, name="head")
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    run(wrapped, given, recipe, faults=[fault], interventions=[repeat])
    found = [(a.step, a.what, a.detail["rank"]) for a in repeat.actions]
    torch.save(found, folder / f"repeated-{rank}.pt")
