"""Single ranks of data-parallel runs, for `torch.multiprocessing.spawn`, which must import it."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist

from rksp.datasets.tasks import make_task
from rksp.models.zoo import ZooConfig, ZooTransformer
from rksp.moment import Moment
from rksp.recipe import Recipe
from rksp.watch.faults.replica_corruption import ReplicaCorruption
from rksp.watch.interventions.repeat_step import RepeatStep
from rksp.watch.monitors.silent_corruption import SilentCorruption
from rksp.watch.monitors.watch import Watch
from rksp.watch.training import run

STEPS, CORRUPTED = 6, 3


def train_replica(rank: int, world: int, folder: str) -> None:
    """Train one rank; on rank 1 the lowest bit of one weight flips at step 3."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world
    )
    torch.manual_seed(0)
    model = ZooTransformer(ZooConfig(hidden_size=16, num_hidden_layers=3, vocab_size=31))
    generator = torch.Generator().manual_seed(1 + rank)
    watch = Watch([SilentCorruption(every=1, checksum_every=2, blocks=2)])
    assert watch.bind(model) == {}
    for step in range(STEPS):
        if step == CORRUPTED and rank == 1:
            with torch.no_grad():
                bits = model.blocks[1].attention.qkv.weight.view(torch.int32)
                bits[3, 3] ^= 1
        watch.begin_step(step)
        tokens = torch.randint(0, 31, (4, 16), generator=generator)
        model(tokens).logits.logsumexp(-1).mean().backward()
        watch.after_backward(Moment(step=step, model=model))
        model.zero_grad()
    torch.save((watch.readings, watch.alarms, watch.silent), Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


def repeat_step(rank: int, world: int, folder: str) -> None:
    """Rank 1 computes wrong logits at step 12, others each time."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world
    )
    torch.manual_seed(0)
    model = ZooTransformer(ZooConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2))
    batches = make_task("bytes", length=16).batches(16, 4, seed=rank)
    repeat = RepeatStep()
    recipe = Recipe(learning_rate=1e-3, max_steps=16, batch_size=4)
    fault = ReplicaCorruption(rank=1, step=12, steps=1, scale=100.0, name="head")
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    run(wrapped, batches, recipe, faults=[fault], interventions=[repeat])
    found = [(a.step, a.what, a.detail["rank"]) for a in repeat.actions]
    torch.save(found, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()
